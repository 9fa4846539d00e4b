/* SPDX-License-Identifier: MIT
 * Learning a model from a few decodes at attach: its attention layers, which of them have a window, and that our attention
 * means the same as ggml's. The caller's callback sees none of this, and the memory is cleared at the end. */
#include "adapter.h"

#include <stdlib.h>
#include <string.h>

/* Far beyond any window in use, and 4 W stays inside a position. */
enum { WINDOW_LIMIT = 1 << 28 };

/* A batch of one sequence at first, first + 1, ...; one output, as a prompt has. */
static struct llama_batch probe_batch(kvf_llama *h, int32_t seq, int32_t first, int32_t n)
{
    llama_token start = llama_vocab_bos(llama_model_get_vocab(h->model));
    if (start < 0 || start >= h->n_vocab) start = 0;
    for (int32_t i = 0; i < n; i++) {
        h->tokens[i] = (kvf_token){.seq = seq, .pos = first + i};
        h->ids[i] = (start + 7 * i) % h->n_vocab;
        h->positions[i] = first + i;
        h->seqs[i] = seq;
        h->outputs[i] = i == n - 1;
    }
    return (struct llama_batch){.n_tokens = n,
                                .token = h->ids,
                                .pos = h->positions,
                                .n_seq_id = h->seq_counts,
                                .seq_id = h->seq_ptrs,
                                .logits = h->outputs};
}

static void clear(kvf_llama *h)
{
    llama_memory_clear(llama_get_memory(h->ctx), true);
}

/* Every cache of keys must be read by a flash attention: what is computed in another way cannot be replaced. */
static int all_read(kvf_llama *h)
{
    for (int32_t i = 0; i < h->n_slots; i++)
        if (h->slots[i].stored && !h->slots[i].read)
            return kvfi_host_fail(h, KVF_E_MODEL,
                                  "layer %d: its attention is not computed as flash attention and cannot be replaced", (int)i);
    if (!h->n_attn) return kvfi_host_fail(h, KVF_E_MODEL, "the model computed no attention over a cache: nothing to fold");
    return KVF_OK;
}

/* Long contexts of LongRoPE models use other frequency factors; libllama chooses them by the size of its context. */
static int check_long_rope(kvf_llama *h)
{
    for (int32_t i = 0; i < h->n_attn && h->long_rope; i++) {
        const char *name = h->attn[i].rope.factors_name;
        const char *wrong = h->long_rope == 2 ? "rope_factors_short" : "rope_factors_long";
        if (strstr(name, wrong))
            return kvfi_host_fail(h, KVF_E_HOST, "layer %d: libllama chose %s for a context of %lld tokens", (int)h->attn[i].il,
                                  wrong, (long long)h->n_ctx);
    }
    return KVF_OK;
}

/* Cells at W, W - 1 and 1 before the next token, which is a quarter of a window past a multiple of W: a full layer sees all
 * three, a window of the standard kind the last two, chunks and symmetric windows the last. Positions of a sequence have no gaps,
 * but an empty one may start anywhere: the last cell is made in a sequence of its own and then given to the first. (Moving
 * cells would be simpler, but libllama aborts on that when one of its caches has no layers.) */
static int probe_windows(kvf_llama *h)
{
    int32_t w = h->window, p = 3 * w + w / 4;
    if (w < 4) return kvfi_host_fail(h, KVF_E_MODEL, "a window of %d tokens is too small to be folded", (int)w);
    int rc = kvfi_host_graph(h, KVFI_HOST_WINDOW, probe_batch(h, 0, p - w, 2));
    if (!rc) rc = kvfi_host_graph(h, KVFI_HOST_WINDOW, probe_batch(h, 1, p - 1, 1));
    if (rc) return rc;
    llama_memory_seq_cp(llama_get_memory(h->ctx), 1, 0, 0, INT32_MAX);
    return kvfi_host_graph(h, KVFI_HOST_WINDOW, probe_batch(h, 0, p, 1));
}

static int judge_windows(kvf_llama *h)
{
    for (int32_t i = 0; i < h->n_attn; i++) {
        kvfi_host_layer *l = &h->attn[i];
        if (l->visible == 4) continue;
        if (l->visible != 3)
            return kvfi_host_fail(h, KVF_E_MODEL,
                                  "layer %d: a window of %d tokens of another kind than \"the last %d\" (chunks, or "
                                  "symmetric); it cannot be folded",
                                  (int)l->il, (int)h->window, (int)h->window);
        l->window = h->window;
    }
    return KVF_OK;
}

int kvfi_host_probe(kvf_llama *h)
{
    clear(h);
    h->asks = 0;
    int rc = kvfi_host_graph(h, KVFI_HOST_SHAPE, probe_batch(h, 0, 0, KVFI_HOST_PROBE_ROWS));
    if (!rc && !h->asks)
        rc = kvfi_host_fail(h, KVF_E_ARG, "attach: the context does not call back; it was not made from the prepared parameters");
    if (!rc) rc = all_read(h);
    if (!rc) rc = check_long_rope(h);
    if (!rc && h->window > 0 && h->window < WINDOW_LIMIT) {
        clear(h);
        rc = probe_windows(h);
        if (!rc) rc = judge_windows(h);
    }
    clear(h);
    return rc;
}

static int scratch_room(kvf_llama *h)
{
    size_t most = 0;
    for (int32_t i = 0; i < h->n_attn; i++) {
        size_t n = (size_t)h->attn[i].q_heads * (size_t)h->attn[i].v_dim * KVFI_HOST_PROBE_ROWS * sizeof(float);
        if (n > most) most = n;
    }
    h->scratch = malloc(most);
    h->scratch_size = h->scratch ? most : 0;
    return h->scratch ? KVF_OK : kvfi_host_fail(h, KVF_E_NOMEM, "out of memory: %zu bytes", most);
}

/* ggml sums the values of so few rows in f16, so agreement ends at about half of this; a misread parameter is far above. */
static int judge_check(kvf_llama *h)
{
    const double bound = 1e-2;
    for (int32_t i = 0; i < h->n_attn; i++)
        if (!(h->attn[i].mismatch <= bound))
            return kvfi_host_fail(h, KVF_E_MODEL,
                                  "layer %d: our attention differs from ggml's by %.3g (bound %.3g); this libllama "
                                  "means something else by its parameters",
                                  (int)h->attn[i].il, h->attn[i].mismatch, bound);
    return KVF_OK;
}

/* All rows of this decode lie in the exact tail, so the codecs have no part in it. */
int kvfi_host_check(kvf_llama *h)
{
    int rc = scratch_room(h);
    struct llama_batch batch = probe_batch(h, 0, 0, KVFI_HOST_PROBE_ROWS);
    if (!rc && (rc = kvf_batch_begin(h->cache, h->tokens, KVFI_HOST_PROBE_ROWS))) rc = kvfi_host_fail_cache(h, rc, "probe");
    if (!rc) {
        rc = kvfi_host_graph(h, KVFI_HOST_CHECK, batch);
        kvf_batch_abort(h->cache);
    }
    if (!rc) rc = judge_check(h);
    clear(h);
    free(h->scratch);
    h->scratch = NULL, h->scratch_size = 0;
    return rc;
}
