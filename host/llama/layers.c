/* SPDX-License-Identifier: MIT
 * What one GGML_OP_FLASH_ATTN_EXT node says about its layer.
 * src: 0 queries [k_dim, rows, q_heads], 1 keys and 2 values [dim, cells, kv_heads] (views of the cache), 3 mask, 4 sinks;
 * op_params: 0 scale, 1 max_bias, 2 softcap. The parameters are no API: attach compares the whole attention with ggml's. */
#include "adapter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { Q = 0, K = 1, V = 2, MASK = 3, SINKS = 4, SCALE = 0, MAX_BIAS = 1, SOFTCAP = 2 };

/* Slopes of ALiBi as ggml has them: a geometric series, for head counts that are no power of two continued at half steps. */
static float *make_slopes(int32_t heads, float max_bias)
{
    float *slopes = malloc((size_t)heads * sizeof *slopes);
    if (!slopes) return NULL;
    int32_t power = 1;
    while (power * 2 <= heads) power *= 2;
    float whole = powf(2.0f, -max_bias / (float)power), half = powf(2.0f, -(max_bias / 2.0f) / (float)power);
    for (int32_t i = 0; i < heads; i++)
        slopes[i] = i < power ? powf(whole, (float)(i + 1)) : powf(half, (float)(2 * (i - power) + 1));
    return slopes;
}

static int check_memory(kvf_llama *h, int32_t il, const struct ggml_tensor *t)
{
    const struct ggml_tensor *parts[] = {t, t->src[Q], t->src[K], t->src[V], t->src[MASK], t->src[SINKS]};
    const char *names[] = {"result", "queries", "keys", "values", "mask", "sinks"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i] && !kvfi_host_in_host_memory(parts[i]))
            return kvfi_host_fail(h, KVF_E_UNSUPPORTED,
                                  "layer %d: the %s of its attention are not in host memory; attention on a "
                                  "device cannot be folded (load the model with fewer layers on the device)",
                                  (int)il, names[i]);
    return KVF_OK;
}

static int check_types(kvf_llama *h, int32_t il, const struct ggml_tensor *t)
{
    const struct ggml_tensor *q = t->src[Q], *k = t->src[K], *v = t->src[V], *mask = t->src[MASK], *sinks = t->src[SINKS];
    if (!q || !k || !v || !mask) return kvfi_host_fail(h, KVF_E_MODEL, "layer %d: its attention has no mask", (int)il);
    if (q->type != GGML_TYPE_F32 || k->type != GGML_TYPE_F16 || v->type != GGML_TYPE_F16 || mask->type != GGML_TYPE_F16 ||
        t->type != GGML_TYPE_F32 || (sinks && sinks->type != GGML_TYPE_F32))
        return kvfi_host_fail(
            h, KVF_E_MODEL, "layer %d: attention on queries %s, keys %s, values %s, mask %s; f32, f16, f16, f16 are needed",
            (int)il, ggml_type_name(q->type), ggml_type_name(k->type), ggml_type_name(v->type), ggml_type_name(mask->type));
    if (q->ne[3] != 1 || k->ne[3] != 1 || mask->ne[2] != 1 || mask->ne[3] != 1)
        return kvfi_host_fail(h, KVF_E_MODEL, "layer %d: attention over several streams or a mask for each head", (int)il);
    if (q->nb[0] != sizeof(float) || k->nb[0] != sizeof(ggml_fp16_t) || v->nb[0] != sizeof(ggml_fp16_t))
        return kvfi_host_fail(h, KVF_E_MODEL, "layer %d: channels of a head are not contiguous", (int)il);
    if (mask->op != GGML_OP_NONE)
        return kvfi_host_fail(h, KVF_E_MODEL,
                              "layer %d: its mask is computed in the graph (%s), as sparse attention does; only "
                              "masks from positions can be folded",
                              (int)il, ggml_op_name(mask->op));
    return KVF_OK;
}

static int check_shape(kvf_llama *h, int32_t il, const struct ggml_tensor *t)
{
    const struct ggml_tensor *q = t->src[Q], *k = t->src[K], *v = t->src[V];
    if (q->ne[1] != h->run.rows || t->src[MASK]->ne[1] < h->run.rows)
        return kvfi_host_fail(h, KVF_E_MODEL, "layer %d: attention of %lld rows in a batch of %d", (int)il, (long long)q->ne[1],
                              (int)h->run.rows);
    if (q->ne[0] != k->ne[0] || v->ne[2] != k->ne[2] || k->ne[2] < 1 || q->ne[2] % k->ne[2] || k->ne[0] > 1024 || v->ne[0] > 1024)
        return kvfi_host_fail(h, KVF_E_MODEL,
                              "layer %d: %lld query heads of %lld channels on %lld key heads of %lld and %lld value "
                              "heads of %lld; query heads must be a multiple, sizes at most 1024",
                              (int)il, (long long)q->ne[2], (long long)q->ne[0], (long long)k->ne[2], (long long)k->ne[0],
                              (long long)v->ne[2], (long long)v->ne[0]);
    float scale = kvfi_host_param(t, SCALE), bias = kvfi_host_param(t, MAX_BIAS), cap = kvfi_host_param(t, SOFTCAP);
    if (!isfinite(scale) || !isfinite(bias) || !isfinite(cap) || bias < 0 || cap < 0)
        return kvfi_host_fail(h, KVF_E_MODEL, "layer %d: attention with scale %g, bias %g, softcap %g", (int)il, (double)scale,
                              (double)bias, (double)cap);
    return KVF_OK;
}

static int check_node(kvf_llama *h, int32_t il, const struct ggml_tensor *t)
{
    int rc = check_types(h, il, t);
    if (!rc) rc = check_memory(h, il, t);
    return rc ? rc : check_shape(h, il, t);
}

static int32_t find_owner(const kvf_llama *h, int32_t owner)
{
    for (int32_t i = 0; i < h->n_attn; i++)
        if (h->attn[i].owner == owner && h->attn[i].share < 0) return i;
    return -1;
}

static void measure_cells(kvfi_host_layer *l, const struct ggml_tensor *k, const struct ggml_tensor *v)
{
    l->row_bytes = (int64_t)k->nb[1] + (l->v_in_k ? 0 : (int64_t)v->nb[1]);
    l->host_bytes = (int64_t)ggml_nbytes(k) + (l->v_in_k ? 0 : (int64_t)ggml_nbytes(v));
    l->host_cells = k->ne[1];
}

/* Layer of the model of an attention that reads an earlier layer's rows: from the names that the model gave its nodes, or the
 * one after the last attention. */
static int32_t reader_layer(const kvf_llama *h)
{
    int32_t last = h->n_attn ? h->attn[h->n_attn - 1].il : -1;
    return h->run.last_il > last ? h->run.last_il : last + 1;
}

static int take_frequencies(kvfi_host_layer *l)
{
    if (l->rope.dims < 2 || l->rope.dims > l->k_dim) return KVF_OK;
    l->rope_freq = malloc((size_t)(l->rope.dims / 2) * sizeof *l->rope_freq);
    if (!l->rope_freq) return KVF_E_NOMEM;
    if (!kvfi_host_rope_freq(&l->rope, l->rope_freq)) {
        free(l->rope_freq);
        l->rope_freq = NULL;
    }
    return KVF_OK;
}

/* Adds the layer of node t, met in graph order. */
int kvfi_host_add_layer(kvf_llama *h, const struct ggml_tensor *t)
{
    const struct ggml_tensor *kroot = kvfi_host_root(t->src[K]), *vroot = kvfi_host_root(t->src[V]);
    int32_t owner = kvfi_host_cache_layer(kroot, 'k'), share = find_owner(h, owner);
    int32_t il = share < 0 ? owner : reader_layer(h);
    if (owner < 0 || owner >= h->n_slots || il >= h->n_layers || h->n_attn >= h->n_layers)
        return kvfi_host_fail(h, KVF_E_MODEL, "attention on the cache of layer %d of a model of %d layers", (int)owner,
                              (int)h->n_layers);
    if (h->n_attn && il <= h->attn[h->n_attn - 1].il)
        return kvfi_host_fail(h, KVF_E_MODEL, "layer %d: a second attention, or layers out of order", (int)il);
    if (share < 0 && !h->slots[owner].stored)
        return kvfi_host_fail(h, KVF_E_MODEL, "layer %d: attention on rows that no node of the graph stores", (int)il);
    int rc = check_node(h, il, t);
    if (rc) return rc;
    kvfi_host_layer *l = &h->attn[h->n_attn];
    memset(l, 0, sizeof *l);
    l->il = il, l->owner = owner, l->share = share;
    l->q_heads = (int32_t)t->src[Q]->ne[2], l->kv_heads = (int32_t)t->src[K]->ne[2];
    l->k_dim = (int32_t)t->src[K]->ne[0], l->v_dim = (int32_t)t->src[V]->ne[0];
    l->v_in_k = vroot == kroot;
    if (l->v_in_k && (t->src[V]->data != t->src[K]->data || l->v_dim > l->k_dim))
        return kvfi_host_fail(h, KVF_E_MODEL, "layer %d: values that are not the first channels of the keys", (int)il);
    l->scale = kvfi_host_param(t, SCALE), l->max_bias = kvfi_host_param(t, MAX_BIAS), l->softcap = kvfi_host_param(t, SOFTCAP);
    if (l->max_bias > 0 && !(l->slopes = make_slopes(l->q_heads, l->max_bias)))
        return kvfi_host_fail(h, KVF_E_NOMEM, "out of memory");
    if (share < 0) {
        measure_cells(l, kroot, vroot);
        l->rope = h->slots[owner].rope;
        memset(&h->slots[owner].rope, 0, sizeof h->slots[owner].rope);
        if (take_frequencies(l)) return kvfi_host_fail(h, KVF_E_NOMEM, "out of memory");
    }
    h->slots[owner].read = 1;
    h->n_attn++;
    return KVF_OK;
}

/* Does the node still have the shape that the probe saw? */
int kvfi_host_same_layer(kvf_llama *h, const kvfi_host_layer *l, const struct ggml_tensor *t)
{
    int rc = check_node(h, l->il, t);
    if (rc) return rc;
    if (t->src[Q]->ne[2] != l->q_heads || t->src[K]->ne[2] != l->kv_heads || t->src[K]->ne[0] != l->k_dim ||
        t->src[V]->ne[0] != l->v_dim || kvfi_host_param(t, SCALE) != l->scale || kvfi_host_param(t, MAX_BIAS) != l->max_bias ||
        kvfi_host_param(t, SOFTCAP) != l->softcap)
        return kvfi_host_fail(h, KVF_E_HOST, "layer %d: its attention is not the one that was probed", (int)l->il);
    return KVF_OK;
}

void kvfi_host_free_layers(kvf_llama *h)
{
    if (!h->attn || !h->slots) return;
    for (int32_t i = 0; i < h->n_attn; i++) {
        free(h->attn[i].slopes);
        free(h->attn[i].rope_freq);
        free(h->attn[i].rope.factors);
    }
    for (int32_t i = 0; i < h->n_slots; i++) free(h->slots[i].rope.factors);
    memset(h->slots, 0, (size_t)h->n_slots * sizeof *h->slots);
    h->n_attn = 0;
}
