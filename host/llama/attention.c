/* SPDX-License-Identifier: MIT
 * One attention on the folded cache, with the host's tensors as queries, exact tail and mask. */
#include "adapter.h"

#include <stdio.h>
#include <string.h>

static kvf_view view_of(const struct ggml_tensor *t, kvf_type type)
{
    return (kvf_view){.data = t->data, .type = type, .token_stride = (int64_t)t->nb[1], .head_stride = (int64_t)t->nb[2]};
}

/* Row j of the batch must be row j of the graph: each row sees the row before it of its own sequence and not the one after,
 * and neighbours of two sequences do not see each other. Only the host's mask is asked, so this holds whatever way the
 * host chose to split and order the batch. Once for each mask of a graph. */
int kvfi_host_prove_order(kvf_llama *h, const struct ggml_tensor *mask, const kvfi_host_layer *l)
{
    kvfi_host_run *r = &h->run;
    for (int32_t i = 0; i < r->n_masks; i++)
        if (r->masks[i] == mask) return KVF_OK;
    for (int32_t row = 0; row < r->rows; row++) {
        int32_t seq = h->tokens[row].seq, before = row - 1;
        while (before >= 0 && h->tokens[before].seq != seq) before--;
        int good = kvfi_host_visible(mask, row, l->cells[row]);
        if (before >= 0)
            good = good && kvfi_host_visible(mask, row, l->cells[before]) && !kvfi_host_visible(mask, before, l->cells[row]);
        if (row && h->tokens[row - 1].seq != seq)
            good = good && !kvfi_host_visible(mask, row, l->cells[row - 1]) && !kvfi_host_visible(mask, row - 1, l->cells[row]);
        if (!good)
            return kvfi_host_fail(h, KVF_E_HOST, "layer %d: the host ordered the rows of the batch in another way (row %d)",
                                  (int)l->il, (int)row);
    }
    if (r->n_masks < KVFI_HOST_MASKS) r->masks[r->n_masks++] = mask;
    return KVF_OK;
}

static int32_t threads_of(const kvf_llama *h)
{
    return h->run.rows > 1 ? llama_n_threads_batch(h->ctx) : llama_n_threads(h->ctx);
}

static void describe(kvf_llama *h, int32_t layer, const struct ggml_tensor *t, float *out, kvf_attention *a)
{
    kvfi_host_layer *l = &h->attn[layer];
    const struct ggml_tensor *mask = t->src[3], *sinks = t->src[4];
    kvf_attention_init(a);
    a->layer = layer;
    a->q = view_of(t->src[0], KVF_F32);
    a->k = l->k_rows = view_of(t->src[1], KVF_F16);
    a->v = l->v_rows = view_of(t->src[2], KVF_F16);
    a->cells = l->cells;
    a->mask = mask->data;
    a->mask_type = KVF_F16;
    a->mask_stride = (int64_t)mask->nb[1];
    a->scale = l->scale;
    a->softcap = l->softcap;
    a->slopes = l->slopes;
    a->sinks = sinks ? sinks->data : NULL;
    a->out = out;
    a->out_head_stride = (int64_t)t->nb[1];
    a->out_token_stride = (int64_t)t->nb[2];
}

/* Keys and values of a row must lie in the same cell: the cache is given one list. */
static int find_cells(kvf_llama *h, kvfi_host_layer *l, const char *where)
{
    const int32_t *const *cells = h->slots[l->owner].cells;
    const int32_t *values = l->v_in_k ? cells[KVF_K] : cells[KVF_V];
    l->cells = cells[KVF_K];
    if (!l->cells || !values) return kvfi_host_fail(h, KVF_E_HOST, "%s: the host stored no rows for it", where);
    if (values != l->cells && memcmp(values, l->cells, (size_t)h->run.rows * sizeof *values))
        return kvfi_host_fail(h, KVF_E_HOST, "%s: the host keeps keys and values of a row in different cells", where);
    return KVF_OK;
}

static void show(const kvf_llama *h, const kvfi_host_layer *l, const kvf_attention *a)
{
    const kvf_llama_rows rows = {.size = sizeof rows,
                                 .layer = l->il,
                                 .owner = l->owner,
                                 .n = h->run.rows,
                                 .tokens = h->tokens,
                                 .q = a->q,
                                 .k = a->k,
                                 .v = a->v,
                                 .cells = l->cells,
                                 .scale = l->scale,
                                 .softcap = l->softcap};
    h->observe(h->observe_user, &rows);
}

/* Computes the attention of node t into out, which has t's strides. */
int kvfi_host_attend(kvf_llama *h, int32_t layer, const struct ggml_tensor *t, float *out)
{
    kvfi_host_layer *l = &h->attn[layer];
    char where[48];
    snprintf(where, sizeof where, "layer %d of the model", (int)l->il);
    int rc = find_cells(h, l, where);
    if (!rc) rc = kvfi_host_prove_order(h, t->src[3], l);
    if (rc) return rc;
    kvf_attention a;
    kvf_plan plan;
    describe(h, layer, t, out, &a);
    if (h->observe && h->run.mode == KVFI_HOST_DECODE) show(h, l, &a);
    rc = kvf_attend_begin(h->cache, &a, &plan);
    if (rc) return kvfi_host_fail_cache(h, rc, where);
    kvfi_host_run_plan(&h->threads, &plan, threads_of(h));
    rc = kvf_attend_end(&plan);
    return rc ? kvfi_host_fail_cache(h, rc, where) : KVF_OK;
}
