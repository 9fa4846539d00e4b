/* SPDX-License-Identifier: MIT
 * From a context to a folded cache, and back. */
#include "adapter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_attach(kvf_llama *h, struct llama_context *ctx)
{
    if (h->ctx) return kvfi_host_fail(h, KVF_E_STATE, "attach: the handle is attached already");
    if (!ctx) return kvfi_host_fail(h, KVF_E_ARG, "attach: no context");
    if (llama_get_model(ctx) != h->model) return kvfi_host_fail(h, KVF_E_ARG, "attach: the context belongs to another model");
    if (!llama_get_memory(ctx)) return kvfi_host_fail(h, KVF_E_MODEL, "the context has no memory: nothing to fold");
    if ((int32_t)llama_n_ctx(ctx) != h->host_ctx || (int32_t)llama_n_batch(ctx) != h->n_batch ||
        (int32_t)llama_n_ubatch(ctx) != h->n_batch || (int32_t)llama_n_seq_max(ctx) != h->host_seq)
        return kvfi_host_fail(h, KVF_E_ARG,
                              "attach: the context has %u cells, batches of %u and %u rows, %u sequences; prepared were %d, %d "
                              "and %d, %d",
                              llama_n_ctx(ctx), llama_n_batch(ctx), llama_n_ubatch(ctx), llama_n_seq_max(ctx), (int)h->host_ctx,
                              (int)h->n_batch, (int)h->n_batch, (int)h->host_seq);
    if (!llama_get_causal_attn(ctx)) return kvfi_host_fail(h, KVF_E_MODEL, "attach: the attention of the context is not causal");
    return KVF_OK;
}

static const char *chosen(const char *of_layer, const char *of_all, const char *preset)
{
    return *of_layer ? of_layer : of_all ? of_all : preset;
}

static void default_preset(const char **k, const char **v)
{
    kvf_preset_info preset;
    *k = *v = "f16";
    for (int32_t i = 0; kvf_preset_list(i, &preset) == KVF_OK; i++)
        if (preset.is_default) *k = preset.k, *v = preset.v;
}

/* Latent attention keeps a compressed row and a turned piece side by side: only codecs that do not mix channels fit. */
static int check_latent(kvf_llama *h, const kvfi_host_layer *l, const char *canonical)
{
    size_t n = strcspn(canonical, ":");
    if (!l->v_in_k || (n == 3 && !strncmp(canonical, "f16", n)) || (n == 4 && !strncmp(canonical, "q8_0", n))) return KVF_OK;
    return kvfi_host_fail(h, KVF_E_UNSUPPORTED, "layer %d: latent attention (MLA) with codec %s; allowed are f16 and q8_0",
                          (int)l->il, canonical);
}

static int canonical_spec(kvf_llama *h, const kvfi_host_layer *l, kvf_side side, char *spec, const char *wanted)
{
    char why[256];
    kvf_spec_info info;
    const kvf_calibrated_layer *known = kvf_llama_calibration_layer(h->calibration, l->il);
    int rc = kvf_spec_check_calibrated(wanted, side, side == KVF_K ? l->k_dim : l->v_dim, known, &info, why, sizeof why);
    if (rc) return kvfi_host_fail(h, rc, "layer %d, %s: %s", (int)l->il, side == KVF_K ? "keys" : "values", why);
    snprintf(spec, KVFI_HOST_SPEC, "%s", info.canonical);
    return KVF_OK;
}

/* A layer that shares shows its owner's codecs; latent attention has none for values. */
static int choose_specs(kvf_llama *h)
{
    static const char latent_default[] = "q8_0";
    const char *k, *v;
    int32_t latent = 0;
    default_preset(&k, &v);
    for (int32_t i = 0; i < h->n_attn; i++) {
        kvfi_host_layer *l = &h->attn[i];
        if (l->share >= 0) {
            memcpy(l->k, h->attn[l->share].k, sizeof l->k);
            memcpy(l->v, h->attn[l->share].v, sizeof l->v);
            continue;
        }
        const char *fallback = l->v_in_k ? latent_default : k;
        if (l->v_in_k && !*l->k && !h->k) latent++;
        int rc = canonical_spec(h, l, KVF_K, l->k, chosen(l->k, h->k, fallback));
        if (!rc) rc = check_latent(h, l, l->k);
        if (!rc && !l->v_in_k) rc = canonical_spec(h, l, KVF_V, l->v, chosen(l->v, h->v, v));
        if (rc) return rc;
        if (l->v_in_k) l->v[0] = 0;
    }
    if (latent)
        kvfi_host_log(h, KVF_LOG_WARN, "latent attention in %d layers: %s there, as the default %s does not fit it", (int)latent,
                      latent_default, k);
    return KVF_OK;
}

/* As the graph turns its keys. */
int32_t kvfi_host_rope_style(const kvfi_host_layer *l)
{
    if (!l->rope_freq) return l->rope.dims ? KVF_ROPE_UNKNOWN : KVF_ROPE_NORM;
    return l->rope.mode == GGML_ROPE_TYPE_NORMAL ? KVF_ROPE_NORM : KVF_ROPE_NEOX;
}

/* What is known of the layers that own their keys. */
static int describe_known(kvf_llama *h, kvf_calibrated_layer *known)
{
    for (int32_t i = 0; i < h->n_attn; i++) {
        const kvfi_host_layer *l = &h->attn[i];
        const kvf_calibrated_layer *of = l->share < 0 ? kvf_llama_calibration_layer(h->calibration, l->il) : NULL;
        known[i] = of ? *of : (kvf_calibrated_layer){.size = sizeof *known};
        if (of && (of->kv_heads != l->kv_heads || of->k_dim != l->k_dim || of->v_dim != l->v_dim))
            return kvfi_host_fail(
                h, KVF_E_MODEL,
                "layer %d: the calibration is of %d KV heads of %d and %d channels (keys, values), and the model's "
                "are %d of %d and %d",
                (int)l->il, (int)of->kv_heads, (int)of->k_dim, (int)of->v_dim, (int)l->kv_heads, (int)l->k_dim, (int)l->v_dim);
    }
    return KVF_OK;
}

static void describe_layers(const kvf_llama *h, kvf_layer *layers)
{
    for (int32_t i = 0; i < h->n_attn; i++) {
        const kvfi_host_layer *l = &h->attn[i];
        kvf_layer_init(&layers[i]);
        layers[i].q_heads = l->q_heads, layers[i].kv_heads = l->kv_heads;
        layers[i].k_dim = l->k_dim, layers[i].v_dim = l->v_dim;
        layers[i].window = l->window, layers[i].share = l->share, layers[i].v_in_k = l->v_in_k;
        layers[i].rope_style = kvfi_host_rope_style(l);
        if (l->rope_freq) layers[i].rope_dims = l->rope.dims, layers[i].rope_freq = l->rope_freq;
        layers[i].k = l->share < 0 ? l->k : NULL;
        layers[i].v = l->share < 0 && !l->v_in_k ? l->v : NULL;
    }
}

static int32_t most_threads(const kvf_llama *h)
{
    int32_t one = llama_n_threads(h->ctx), many = llama_n_threads_batch(h->ctx), most = one > many ? one : many;
    return most < 1 ? 1 : most > 256 ? 256 : most;
}

static int keeps_all(const kvf_llama *h)
{
    kvf_evict_info info;
    return kvf_evict_check(h->evict, h->sink, h->recent, 0, &info, NULL, 0) == KVF_OK && !info.evicts;
}

static int create_cache(kvf_llama *h)
{
    char why[320] = "";
    kvf_layer *layers = calloc((size_t)h->n_attn, sizeof *layers);
    kvf_calibrated_layer *known = calloc((size_t)h->n_attn, sizeof *known);
    if (!layers || !known) {
        free(layers), free(known);
        return kvfi_host_fail(h, KVF_E_NOMEM, "out of memory");
    }
    describe_layers(h, layers);
    int rc = describe_known(h, known);
    if (rc) {
        free(layers), free(known);
        return rc;
    }
    const kvf_calibration calibration = {.size = sizeof calibration, .n_layers = h->n_attn, .layers = known};
    kvf_params p;
    kvf_params_init(&p);
    p.calibration = h->calibration ? &calibration : NULL;
    p.n_layers = h->n_attn, p.layers = layers;
    p.sink = h->sink, p.recent = h->recent;
    if (p.recent > h->n_ctx && keeps_all(h)) p.recent = (int32_t)h->n_ctx; /* rows beyond cannot come, but would be accounted */
    p.seal_each = h->seal_each, p.evict = h->evict;
    if (h->exact_bits) p.exact_bits = h->exact_bits;
    p.max_sequences = h->n_seq, p.max_batch = h->n_batch, p.threads = most_threads(h);
    p.cpu = h->cpu, p.log = h->log, p.log_user = h->log_user, p.error = why, p.error_size = sizeof why;
    rc = kvf_cache_create(&h->cache, &p);
    free(layers), free(known);
    if (rc) return kvfi_host_fail(h, rc, "%s", *why ? why : kvf_strerror(rc));
    kvfi_host_set_positions(h);
    h->reserved = h->n_ctx + h->n_batch; /* room for blocks that a cut leaves half empty */
    rc = kvf_reserve(h->cache, h->reserved, h->n_seq, h->n_batch);
    return rc ? kvfi_host_fail_cache(h, rc, "reserve") : KVF_OK;
}

static void forget(kvf_llama *h)
{
    kvf_cache_free(&h->cache);
    kvfi_host_threads_free(&h->threads);
    kvfi_host_free_layers(h);
    h->ctx = NULL;
}

static void report(const kvf_llama *h)
{
    int32_t windows = 0, shared = 0;
    for (int32_t i = 0; i < h->n_attn; i++) windows += h->attn[i].window > 0, shared += h->attn[i].share >= 0;
    kvfi_host_log(h, KVF_LOG_INFO,
                  "%d of %d layers have attention (%d with a window of %d, %d share keys and values); libllama keeps %d cells",
                  (int)h->n_attn, (int)h->n_layers, (int)windows, (int)h->window, (int)shared, (int)h->host_ctx);
    if (h->hybrid && h->n_seq > 1)
        kvfi_host_log(h, KVF_LOG_WARN,
                      "layers without attention: batches of several sequences are decoded one sequence at a time");
}

int kvf_llama_attach(kvf_llama *h, struct llama_context *ctx)
{
    if (!h) return KVF_E_ARG;
    h->error[0] = 0;
    int rc = check_attach(h, ctx);
    if (rc) return rc;
    h->ctx = ctx;
    rc = kvfi_host_threads_init(h);
    if (!rc) rc = kvfi_host_probe(h);
    if (!rc) rc = kvfi_host_layer_specs(h, h->kv_layer);
    if (!rc) rc = choose_specs(h);
    if (!rc) rc = create_cache(h);
    if (!rc) rc = kvfi_host_check(h);
    if (rc) {
        forget(h);
        return rc;
    }
    memset(h->held, 0, (size_t)h->n_seq * sizeof *h->held);
    memset(h->lost, 0, (size_t)h->n_seq * sizeof *h->lost);
    h->n_rows = h->rows_done = 0;
    h->asks = h->stops = h->attend_us = 0;
    llama_perf_context_reset(ctx);
    report(h);
    return KVF_OK;
}

void kvf_llama_detach(kvf_llama *h)
{
    if (!h || !h->ctx) return;
    llama_memory_clear(llama_get_memory(h->ctx), true);
    forget(h);
}

void kvf_llama_free(kvf_llama **handle)
{
    if (!handle || !*handle) return;
    kvf_llama *h = *handle;
    *handle = NULL;
    forget(h); /* does not touch the context, which may be gone */
    void *memory[] = {h->attn,       h->slots,      h->tokens,  h->ids,         h->positions,  h->seqs,
                      h->seq_ptrs,   h->seq_counts, h->outputs, h->cell_memory, h->next,       h->held,
                      h->lost,       h->row_seq,    h->row_pos, h->row_saved,   h->row_output, h->saved,
                      h->state.data, h->k,          h->v,       h->kv_layer,    h->cpu,        h->evict};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
    free(h);
}
