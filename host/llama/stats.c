/* SPDX-License-Identifier: MIT
 * Numbers of an attached handle. */
#include "adapter.h"

#include <string.h>

int64_t kvf_llama_n_ctx(const kvf_llama *h)
{
    return h ? h->n_ctx : 0;
}

int64_t kvf_llama_n_positions(const kvf_llama *h)
{
    return h ? h->n_positions : 0;
}

kvf_cache *kvf_llama_cache(kvf_llama *h)
{
    return h ? h->cache : NULL;
}

static int64_t padded(int64_t cells)
{
    return (cells + KVFI_HOST_PAD - 1) / KVFI_HOST_PAD * KVFI_HOST_PAD;
}

/* Cells of plain libllama for a layer at the folded context: window layers have a cache of their own, as large as the windows
 * of all sequences and one batch (of our size) need. */
static int64_t plain_cells(const kvf_llama *h, const kvfi_host_layer *l)
{
    int64_t all = padded(h->n_ctx), window = (int64_t)l->window * h->n_seq + h->n_batch;
    return l->window && window < all ? padded(window) : all;
}

int kvf_llama_stats(const kvf_llama *h, kvf_llama_stats_t *s)
{
    if (!h || !s) return KVF_E_ARG;
    if (s->size != sizeof *s) return KVF_E_VERSION;
    if (!h->cache) return KVF_E_STATE;
    *s =
        (kvf_llama_stats_t){.size = sizeof *s, .layers_total = h->n_layers, .layers_attention = h->n_attn, .n_batch = h->n_batch};
    for (int32_t i = 0; i < h->n_attn; i++) {
        const kvfi_host_layer *l = &h->attn[i];
        if (l->share >= 0) continue;
        s->host += l->host_bytes;
        s->f16 += l->row_bytes * plain_cells(h, l);
        if (l->host_cells > s->host_cells) s->host_cells = (int32_t)l->host_cells;
    }
    kvf_stats_t cache = {.size = sizeof cache};
    int rc = kvf_stats(h->cache, &cache);
    s->layers_folded = cache.layers_folded;
    s->asks = h->asks, s->stops = h->stops, s->attend_seconds = (double)h->attend_us * 1e-6;
    return rc;
}

int kvf_llama_layer(const kvf_llama *h, int32_t il, kvf_llama_layer_t *info)
{
    if (!h || !info) return KVF_E_ARG;
    if (info->size != sizeof *info) return KVF_E_VERSION;
    if (!h->cache) return KVF_E_STATE;
    if (il < 0 || il >= h->n_layers) return KVF_E_ARG;
    *info = (kvf_llama_layer_t){
        .size = sizeof *info, .share = -1, .k = "", .v = "", .reason = "no attention in this layer (recurrent or convolution)"};
    for (int32_t i = 0; i < h->n_attn; i++) {
        const kvfi_host_layer *l = &h->attn[i];
        if (l->il != il) continue;
        const kvfi_host_layer *owner = l->share < 0 ? l : &h->attn[l->share];
        const kvfi_host_rope *rope = &owner->rope;
        info->attention = info->folded = 1;
        info->q_heads = l->q_heads, info->kv_heads = l->kv_heads, info->k_dim = l->k_dim, info->v_dim = l->v_dim;
        info->window = l->window;
        info->share = l->share < 0 ? -1 : h->attn[l->share].il;
        info->rope_dims = rope->dims, info->rope_mode = rope->mode, info->rope_base = rope->base, info->rope_scale = rope->scale;
        info->rope_freq = owner->rope_freq, info->rope_style = kvfi_host_rope_style(owner);
        info->k = l->k, info->v = l->v, info->reason = "";
    }
    return KVF_OK;
}
