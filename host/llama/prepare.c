/* SPDX-License-Identifier: MIT
 * Before the context exists: what can never be folded is refused, the rest of the parameters is set. */
#include "adapter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kvf_llama_params_init(kvf_llama_params *p)
{
    *p = (kvf_llama_params){.size = sizeof *p, .n_seq = 1, .sink = -1, .recent = -1};
}

static const struct refusal {
    const char *arch, *reason;
} refused[] = {
#define REFUSED(arch, reason) {arch, reason},
#include "refused.def"
#undef REFUSED
};

/* A scalar of the model file; 0 when it is not there. */
static int meta(const struct llama_model *model, const char *arch, const char *key, char *value, size_t size)
{
    char name[160];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    return llama_model_meta_val_str(model, name, value, size) >= 0;
}

static void architecture(const struct llama_model *model, char *arch, size_t size)
{
    if (llama_model_meta_val_str(model, "general.architecture", arch, size) < 0) snprintf(arch, size, "unknown");
}

static int check_model(kvf_llama *h, const struct llama_model *model)
{
    char arch[64], value[64];
    architecture(model, arch, sizeof arch);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!strcmp(arch, refused[i].arch))
            return kvfi_host_fail(h, KVF_E_MODEL, "%s: %s cannot be folded", arch, refused[i].reason);
    if (llama_model_has_encoder(model))
        return kvfi_host_fail(h, KVF_E_MODEL, "%s: a model with an encoder cannot be folded", arch);
    if (!llama_model_has_decoder(model))
        return kvfi_host_fail(h, KVF_E_MODEL, "%s: a model without a decoder has no cache to fold", arch);
    if (llama_model_is_diffusion(model))
        return kvfi_host_fail(h, KVF_E_MODEL, "%s: a diffusion model has no cache to fold", arch);
    if (llama_model_is_recurrent(model))
        return kvfi_host_fail(h, KVF_E_MODEL, "%s: a recurrent model has no attention to fold", arch);
    if (meta(model, arch, "attention.causal", value, sizeof value) && !strcmp(value, "false"))
        return kvfi_host_fail(h, KVF_E_MODEL, "%s: attention that is not causal cannot be folded", arch);
    if (meta(model, arch, "attention.indexer.top_k", value, sizeof value) && strcmp(value, "0") != 0)
        return kvfi_host_fail(h, KVF_E_MODEL, "%s: sparse attention (an index chooses %s keys) cannot be folded", arch, value);
    return KVF_OK;
}

static int check_context(kvf_llama *h, const struct llama_context_params *c)
{
    if (c->ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT)
        return kvfi_host_fail(h, KVF_E_MODEL, "a context for drafting (MTP) cannot be folded");
    if (c->ctx_other) return kvfi_host_fail(h, KVF_E_MODEL, "a context that shares the memory of another one cannot be folded");
    if (c->embeddings) return kvfi_host_fail(h, KVF_E_MODEL, "a context for embeddings cannot be folded");
    if (c->pooling_type != LLAMA_POOLING_TYPE_UNSPECIFIED && c->pooling_type != LLAMA_POOLING_TYPE_NONE)
        return kvfi_host_fail(h, KVF_E_MODEL, "a context that pools embeddings cannot be folded");
    if (c->attention_type == LLAMA_ATTENTION_TYPE_NON_CAUSAL)
        return kvfi_host_fail(h, KVF_E_MODEL, "a context whose attention is not causal cannot be folded");
    return KVF_OK;
}

static int copy_text(char **to, const char *from)
{
    if (!from) return KVF_OK;
    size_t n = strlen(from) + 1;
    *to = malloc(n);
    if (!*to) return KVF_E_NOMEM;
    memcpy(*to, from, n);
    return KVF_OK;
}

static int copy_params(kvf_llama *h, const kvf_llama_params *p)
{
    kvf_params defaults;
    kvf_params_init(&defaults);
    h->sink = p->sink < 0 ? defaults.sink : p->sink, h->recent = p->recent < 0 ? defaults.recent : p->recent;
    h->keep_host_attention = p->keep_host_attention;
    h->seal_each = p->seal_each, h->exact_bits = p->exact_bits;
    h->log = p->log, h->log_user = p->log_user;
    h->calibration = p->calibration, h->observe = p->observe, h->observe_user = p->observe_user;
    if (copy_text(&h->k, p->k) || copy_text(&h->v, p->v) || copy_text(&h->kv_layer, p->kv_layer) || copy_text(&h->cpu, p->cpu) ||
        copy_text(&h->evict, p->evict))
        return kvfi_host_fail(h, KVF_E_NOMEM, "out of memory");
    return kvfi_host_layer_specs(h, h->kv_layer);
}

static int set_context_length(kvf_llama *h, const kvf_llama_params *p)
{
    const int32_t trained = llama_model_n_ctx_train(h->model);
    h->n_ctx = p->n_ctx ? p->n_ctx : trained;
    if (!p->n_ctx && trained < 1)
        return kvfi_host_fail(h, KVF_E_UNSUPPORTED,
                              "the model gives %d tokens as its training length (context_length): ask for a context of 1 to %d",
                              (int)trained, INT32_MAX);
    if (h->n_ctx < 1 || h->n_ctx > INT32_MAX)
        return kvfi_host_fail(h, KVF_E_ARG, "a context of %lld tokens; allowed are 1 to %d", (long long)h->n_ctx, INT32_MAX);
    return KVF_OK;
}

/* Cells in whole steps of the host's padding, shared by the rows of a batch and one left-over row of each sequence. */
static int fit_batch(kvf_llama *h, const kvf_llama_params *p)
{
    int32_t most = (int32_t)llama_max_parallel_sequences();
    if (most > 256) most = 256;
    if (p->n_seq < 1 || p->n_seq > most)
        return kvfi_host_fail(h, KVF_E_ARG, "%d sequences; allowed are 1 to %d", (int)p->n_seq, (int)most);
    if (p->n_batch < 0 || p->n_batch > (1 << 20))
        return kvfi_host_fail(h, KVF_E_ARG, "batches of %d rows; allowed are 1 to %d, 0 for the default", (int)p->n_batch,
                              1 << 20);
    int32_t wanted = p->n_batch ? p->n_batch : KVFI_HOST_PAD - 1;
    int32_t steps = (wanted + p->n_seq + KVFI_HOST_PAD / 2) / KVFI_HOST_PAD;
    if (steps < 1) steps = 1;
    while (steps * KVFI_HOST_PAD - p->n_seq < KVFI_HOST_MIN_BATCH) steps++;
    h->n_seq = p->n_seq;
    h->host_seq = h->window > 0 && h->n_seq < 2 ? 2 : h->n_seq; /* the window probe needs two */
    h->host_ctx = steps * KVFI_HOST_PAD;
    h->n_batch = h->host_ctx - h->n_seq;
    if (p->n_batch && p->n_batch != h->n_batch)
        kvfi_host_log(h, KVF_LOG_INFO, "batches of %d rows instead of %d: with %d left-over rows they fill %d cells",
                      (int)h->n_batch, (int)p->n_batch, (int)h->n_seq, (int)h->host_ctx);
    return KVF_OK;
}

/* LongRoPE: libllama takes the long factors when its own context is larger than the original one. Such files name the original
 * context but neither "yarn" nor "linear"; the probe looks at the factors that were taken. */
static void fit_long_rope(kvf_llama *h, const struct llama_context_params *c)
{
    char arch[64], original[64], type[64];
    architecture(h->model, arch, sizeof arch);
    if (!meta(h->model, arch, "rope.scaling.original_context_length", original, sizeof original)) return;
    if (meta(h->model, arch, "rope.scaling.type", type, sizeof type) && strcmp(type, "longrope") != 0) return;
    int64_t length = c->yarn_orig_ctx ? (int64_t)c->yarn_orig_ctx : strtoll(original, NULL, 10);
    if (length < 1 || length > (1 << 24)) return;
    h->long_rope = h->n_ctx > length ? 2 : 1;
    int32_t steps = (int32_t)(length / KVFI_HOST_PAD);
    if (h->long_rope == 2 && h->host_ctx <= length) {
        h->host_ctx = (steps + 1) * KVFI_HOST_PAD;
        kvfi_host_log(h, KVF_LOG_WARN,
                      "the model turns its keys in another way beyond %lld tokens: libllama keeps %d cells for that",
                      (long long)length, (int)h->host_ctx);
    }
    if (h->long_rope == 1 && h->host_ctx > length && steps * KVFI_HOST_PAD - h->n_seq >= KVFI_HOST_MIN_BATCH) {
        h->host_ctx = steps * KVFI_HOST_PAD;
        h->n_batch = h->host_ctx - h->n_seq;
    }
}

static void set_context_params(kvf_llama *h, struct llama_context_params *c)
{
    h->caller_callback = c->cb_eval, h->caller_data = c->cb_eval_user_data;
    c->cb_eval = kvfi_host_callback, c->cb_eval_user_data = h;
    c->n_ctx = (uint32_t)h->host_ctx;
    c->n_batch = c->n_ubatch = (uint32_t)h->n_batch;
    c->n_seq_max = (uint32_t)h->host_seq;
    c->flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    c->type_k = c->type_v = GGML_TYPE_F16;
    c->kv_unified = true;
    c->swa_full = false;
    c->offload_kqv = false;
}

static int allocate(kvf_llama *h)
{
    size_t n = (size_t)h->n_batch, s = (size_t)h->n_seq;
    h->attn = calloc((size_t)h->n_layers, sizeof *h->attn);
    h->slots = calloc((size_t)h->n_slots, sizeof *h->slots);
    h->tokens = calloc(n, sizeof *h->tokens);
    h->ids = calloc(n, sizeof *h->ids);
    h->positions = calloc(n, sizeof *h->positions);
    h->seqs = calloc(n, sizeof *h->seqs);
    h->seq_ptrs = calloc(n, sizeof *h->seq_ptrs);
    h->seq_counts = calloc(n, sizeof *h->seq_counts);
    h->outputs = calloc(n, sizeof *h->outputs);
    h->cell_memory = calloc(n * KVFI_HOST_INDEX_SETS, sizeof *h->cell_memory);
    h->next = calloc(s, sizeof *h->next);
    h->held = calloc(s, sizeof *h->held);
    h->lost = calloc(s, sizeof *h->lost);
    if (!h->attn || !h->slots || !h->tokens || !h->ids || !h->positions || !h->seqs || !h->seq_ptrs || !h->seq_counts ||
        !h->outputs || !h->cell_memory || !h->next || !h->held || !h->lost)
        return kvfi_host_fail(h, KVF_E_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) h->seq_counts[i] = 1, h->seq_ptrs[i] = &h->seqs[i];
    return KVF_OK;
}

static int fill(kvf_llama *h, struct llama_context_params *cparams, const kvf_llama_params *p)
{
    int rc = check_model(h, h->model);
    if (!rc) rc = check_context(h, cparams);
    if (!rc) rc = copy_params(h, p);
    if (!rc) rc = set_context_length(h, p);
    if (!rc) rc = fit_batch(h, p);
    if (rc) return rc;
    fit_long_rope(h, cparams);
    rc = allocate(h);
    if (rc) return rc;
    set_context_params(h, cparams);
    return KVF_OK;
}

static int leave(char *error, size_t error_size, int code, const char *sentence)
{
    if (error && error_size) snprintf(error, error_size, "%s", sentence);
    return code;
}

int kvf_llama_prepare(const struct llama_model *model, struct llama_context_params *cparams, const kvf_llama_params *p,
                      kvf_llama **out, char *error, size_t error_size)
{
    if (out) *out = NULL;
    if (!model || !cparams || !p || !out)
        return leave(error, error_size, KVF_E_ARG, "prepare: a model, parameters and a place for the handle are needed");
    if (p->size != sizeof *p)
        return leave(error, error_size, KVF_E_VERSION, "prepare: kvf_llama_params of another version; use kvf_llama_params_init");
    kvf_llama *h = calloc(1, sizeof *h);
    if (!h) return leave(error, error_size, KVF_E_NOMEM, "out of memory");
    h->model = model;
    h->n_layers = llama_model_n_layer(model);
    h->n_slots = h->n_layers + llama_model_n_layer_nextn(model);
    h->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    h->window = llama_model_n_swa(model);
    h->hybrid = llama_model_is_hybrid(model);
    int rc = fill(h, cparams, p);
    leave(error, error_size, rc, h->error);
    if (rc) kvf_llama_free(&h);
    *out = h;
    return rc;
}
