/* SPDX-License-Identifier: MIT
 * The evaluation callback. The host asks about every node before it computes it (ask), and calls again after the nodes that
 * were asked for. Rows that enter the host's cache are noticed in the ask call of their SET_ROWS node; flash attention over
 * that cache is skipped (its COMPUTE flag is cleared for the moment) and its result written by us.
 *
 * Returning false would only end one piece of the graph, and the host would still report success; so a failure is kept in
 * run.error, the results of the remaining attentions are zeroed, and the graph ends in the ordinary way. */
#include "adapter.h"

#include <math.h>
#include <string.h>

static int failed(kvf_llama *h, int rc)
{
    if (rc && !h->run.error) h->run.error = rc;
    return rc;
}

/* Cell of each row of the batch. The index tensors are inputs of the graph: valid until the node that uses them has run. */
static const int32_t *read_cells(kvf_llama *h, const struct ggml_tensor *index)
{
    kvfi_host_run *r = &h->run;
    for (int32_t i = 0; i < r->n_index; i++)
        if (r->index[i].tensor == index) return r->index[i].cells;
    int wide = index->type == GGML_TYPE_I64;
    if (r->n_index == KVFI_HOST_INDEX_SETS || index->ne[0] != r->rows || (!wide && index->type != GGML_TYPE_I32)) return NULL;
    kvfi_host_index *set = &r->index[r->n_index++];
    set->tensor = index;
    for (int32_t i = 0; i < r->rows; i++) {
        int64_t cell = 0;
        int32_t narrow = 0;
        if (wide)
            ggml_backend_tensor_get(index, &cell, (size_t)i * sizeof cell, sizeof cell);
        else
            ggml_backend_tensor_get(index, &narrow, (size_t)i * sizeof narrow, sizeof narrow), cell = narrow;
        set->cells[i] = (int32_t)cell;
    }
    return set->cells;
}

/* Keys or values of the batch enter the cache of layer il. */
static int ask_rows(kvf_llama *h, const struct ggml_tensor *t, int32_t il, kvf_side side)
{
    if (il >= h->n_slots)
        return kvfi_host_fail(h, KVF_E_MODEL, "the host caches layer %d of a model of %d layers", (int)il, (int)h->n_layers);
    kvfi_host_slot *slot = &h->slots[il];
    slot->cells[side] = read_cells(h, t->src[1]);
    if (!slot->cells[side])
        return kvfi_host_fail(h, KVF_E_HOST, "layer %d: the host split the batch (%lld of %d rows)", (int)il,
                              (long long)t->src[1]->ne[0], (int)h->run.rows);
    if (h->run.mode != KVFI_HOST_SHAPE || side != KVF_K) return KVF_OK;
    slot->stored = 1;
    return kvfi_host_read_rope(t->src[0], &slot->rope) ? kvfi_host_fail(h, KVF_E_NOMEM, "out of memory") : KVF_OK;
}

static int ask_set_rows(kvf_llama *h, const struct ggml_tensor *t)
{
    const struct ggml_tensor *root = kvfi_host_root(t);
    int32_t il = kvfi_host_cache_layer(root, 'k');
    if (il >= 0) return ask_rows(h, t, il, KVF_K);
    il = kvfi_host_cache_layer(root, 'v');
    if (il >= 0) return ask_rows(h, t, il, KVF_V);
    if (kvfi_host_is_cache(root))
        return kvfi_host_fail(h, KVF_E_MODEL,
                              "the model keeps a cache of another kind (%s), as sparse attention does; it cannot be folded",
                              root->name);
    return KVF_OK;
}

static bool ask_attention(kvf_llama *h, struct ggml_tensor *t)
{
    if (kvfi_host_cache_layer(kvfi_host_root(t->src[1]), 'k') < 0) return false; /* no cache behind it: not ours */
    if (h->run.mode == KVFI_HOST_DECODE && !h->keep_host_attention) {
        t->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
        h->run.skipped = t;
    }
    h->run.stop = t;
    return true;
}

static bool ask(kvf_llama *h, struct ggml_tensor *t)
{
    if (h->run.mode == KVFI_HOST_SHAPE) {
        int32_t il = kvfi_host_name_layer(t->name);
        if (il >= 0 && il < h->n_layers) h->run.last_il = il;
    }
    if (t->op == GGML_OP_SET_ROWS) failed(h, ask_set_rows(h, t));
    return t->op == GGML_OP_FLASH_ATTN_EXT && ask_attention(h, t);
}

static void restore_flag(kvf_llama *h)
{
    if (h->run.skipped) h->run.skipped->flags |= GGML_TENSOR_FLAG_COMPUTE;
    h->run.skipped = NULL;
}

/* Cells that the only row of the window probe sees. */
static void count_visible(kvfi_host_layer *l, const struct ggml_tensor *mask)
{
    l->visible = 0;
    for (int64_t i = 0; i < mask->ne[0]; i++) l->visible += kvfi_host_visible(mask, 0, i);
}

/* Relative distance of ours from ggml's own result, over all heads and rows. */
static int compare(kvf_llama *h, kvfi_host_layer *l, const struct ggml_tensor *t)
{
    size_t n = (size_t)ggml_nelements(t);
    const float *theirs = t->data;
    double distance = 0, length = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)h->scratch[i] - (double)theirs[i];
        distance += d * d;
        length += (double)theirs[i] * (double)theirs[i];
    }
    l->mismatch = length > 0 ? sqrt(distance / length) : sqrt(distance);
    if (!isfinite(length)) return kvfi_host_fail(h, KVF_E_MODEL, "layer %d: ggml's own attention is not finite", (int)l->il);
    return KVF_OK;
}

/* The host computes on with zeros: other nodes may index by what follows from this one. */
static void zero_result(struct ggml_tensor *t)
{
    if (kvfi_host_in_host_memory(t))
        memset(t->data, 0, ggml_nbytes(t));
    else
        ggml_backend_tensor_memset(t, 0, 0, ggml_nbytes(t));
}

static int attend_node(kvf_llama *h, struct ggml_tensor *t)
{
    kvfi_host_run *r = &h->run;
    if (r->mode == KVFI_HOST_SHAPE) return kvfi_host_add_layer(h, t);
    int32_t layer = r->attended;
    if (layer >= h->n_attn) return kvfi_host_fail(h, KVF_E_HOST, "more attentions than the %d that were probed", (int)h->n_attn);
    kvfi_host_layer *l = &h->attn[layer];
    if (kvfi_host_cache_layer(kvfi_host_root(t->src[1]), 'k') != l->owner)
        return kvfi_host_fail(h, KVF_E_HOST, "layer %d: its attention reads another cache than when it was probed", (int)l->il);
    int rc = kvfi_host_same_layer(h, l, t);
    if (rc) return rc;
    if (r->mode == KVFI_HOST_WINDOW) {
        count_visible(l, t->src[3]);
        return KVF_OK;
    }
    if (r->mode == KVFI_HOST_DECODE) return kvfi_host_attend(h, layer, t, t->data);
    if (ggml_nbytes(t) > h->scratch_size) return kvfi_host_fail(h, KVF_E_HOST, "layer %d: result too large", (int)l->il);
    rc = kvfi_host_attend(h, layer, t, h->scratch);
    return rc ? rc : compare(h, l, t);
}

static void stop(kvf_llama *h, struct ggml_tensor *t)
{
    int64_t start = ggml_time_us();
    h->stops++;
    restore_flag(h);
    if (h->run.error || failed(h, attend_node(h, t))) {
        if (h->run.mode == KVFI_HOST_DECODE) zero_result(t);
    } else {
        h->run.attended++;
    }
    h->attend_us += ggml_time_us() - start;
}

bool kvfi_host_callback(struct ggml_tensor *t, bool asking, void *user)
{
    kvf_llama *h = user;
    kvfi_host_run *r = &h->run;
    int callers = h->caller_callback && (r->mode == KVFI_HOST_IDLE || r->mode == KVFI_HOST_DECODE);
    if (asking) {
        bool ours = false;
        r->caller_wants = callers && h->caller_callback(t, true, h->caller_data);
        if (r->mode != KVFI_HOST_IDLE) h->asks++, ours = ask(h, t);
        return ours || r->caller_wants;
    }
    if (r->stop == t) stop(h, t);
    r->stop = NULL;
    bool go_on = !r->caller_wants || h->caller_callback(t, false, h->caller_data);
    if (!go_on) r->stopped = 1;
    return go_on;
}

/* llama_decode with the callback in the given mode. KVF_OK when the graph ran to its end and every attention of it is done. */
int kvfi_host_graph(kvf_llama *h, kvfi_host_mode mode, struct llama_batch batch)
{
    kvfi_host_run *r = &h->run;
    memset(r, 0, sizeof *r);
    r->rows = batch.n_tokens;
    r->last_il = -1;
    for (int32_t i = 0; i < KVFI_HOST_INDEX_SETS; i++) r->index[i].cells = h->cell_memory + (size_t)i * (size_t)h->n_batch;
    for (int32_t i = 0; i < h->n_slots; i++) h->slots[i].cells[KVF_K] = h->slots[i].cells[KVF_V] = NULL;
    r->mode = mode;
    int32_t rc = llama_decode(h->ctx, batch);
    r->mode = KVFI_HOST_IDLE;
    restore_flag(h); /* the host may have given up between the two calls for a node */
    if (r->error) return r->error;
    if (rc == 1)
        return kvfi_host_fail(h, KVF_E_HOST, "libllama found no room for %d rows among its %d cells", (int)r->rows,
                              (int)h->host_ctx);
    if (rc == 2) return kvfi_host_fail(h, KVF_E_HOST, "the decode was aborted by the caller's abort callback");
    if (rc) return kvfi_host_fail(h, KVF_E_HOST, "llama_decode failed with code %d", (int)rc);
    if (r->stopped) return kvfi_host_fail(h, KVF_E_HOST, "the caller's evaluation callback stopped the graph");
    if (mode != KVFI_HOST_SHAPE && r->attended != h->n_attn)
        return kvfi_host_fail(h, KVF_E_HOST, "only %d of the %d attention layers were computed", (int)r->attended,
                              (int)h->n_attn);
    llama_synchronize(h->ctx);
    return KVF_OK;
}
