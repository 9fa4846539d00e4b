/* SPDX-License-Identifier: MIT */
#include "arm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void show_errors(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void show_nothing(enum ggml_log_level level, const char *text, void *user)
{
    (void)level;
    (void)text;
    (void)user;
}

void arm_hide_errors(bool hide)
{
    llama_log_set(hide ? show_nothing : show_errors, NULL);
}

void arm_options_init(arm_options *o, int32_t n_ctx, const char *k, const char *v)
{
    memset(o, 0, sizeof *o);
    o->n_ctx = n_ctx;
    o->n_seq = 1;
    o->threads = 1;
    o->k = k;
    o->v = v;
    o->sink = o->recent = -1;
}

struct llama_model *arm_load(const char *path)
{
    struct llama_model_params p = llama_model_default_params();
    p.n_gpu_layers = 0;
    arm_hide_errors(false);
    return llama_model_load_from_file(path, p);
}

static struct llama_context_params context_params(const arm_options *o)
{
    struct llama_context_params c = llama_context_default_params();
    c.n_ctx = (uint32_t)o->n_ctx;
    c.n_batch = c.n_ubatch = (uint32_t)o->n_ctx;
    c.n_seq_max = (uint32_t)o->n_seq;
    c.n_threads = c.n_threads_batch = o->threads;
    c.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    c.kv_unified = true;
    c.cb_eval = o->cb_eval;
    c.cb_eval_user_data = o->cb_user;
    c.abort_callback = o->abort;
    c.abort_callback_data = o->abort_user;
    return c;
}

static int fold(arm *a, const arm_options *o, struct llama_context_params *c)
{
    kvf_llama_params p;
    kvf_llama_params_init(&p);
    p.n_ctx = o->n_ctx;
    p.n_seq = o->n_seq;
    p.k = o->k;
    p.v = o->v;
    p.kv_layer = o->kv_layer;
    p.sink = o->sink;
    p.recent = o->recent;
    p.evict = o->evict;
    p.calibration = o->calibration;
    p.observe = o->observe, p.observe_user = o->observe_user;
    p.log = o->log;
    p.log_user = o->log_user;
    return kvf_llama_prepare(a->model, c, &p, &a->fold, a->error, sizeof a->error);
}

int arm_open(arm *a, struct llama_model *model, const arm_options *o)
{
    struct llama_context_params c = context_params(o);
    memset(a, 0, sizeof *a);
    a->model = model;
    a->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    int rc = o->k ? fold(a, o, &c) : KVF_OK;
    if (rc) return rc;
    a->ctx = llama_init_from_model(model, c);
    if (!a->ctx) {
        snprintf(a->error, sizeof a->error, "libllama makes no context");
        return KVF_E_HOST;
    }
    rc = a->fold ? kvf_llama_attach(a->fold, a->ctx) : KVF_OK;
    if (rc) snprintf(a->error, sizeof a->error, "%s", kvf_llama_error(a->fold));
    return rc;
}

void arm_close(arm *a)
{
    if (a->fold && a->ctx) kvf_llama_detach(a->fold);
    if (a->ctx) llama_free(a->ctx);
    if (a->fold) kvf_llama_free(&a->fold);
    memset(a, 0, sizeof *a);
}

static const float *logits_of(arm *a, int32_t i)
{
    return a->fold ? kvf_llama_logits_ith(a->fold, i) : llama_get_logits_ith(a->ctx, i);
}

int arm_decode(arm *a, const arm_row *rows, int32_t n, float *logits)
{
    struct llama_batch b = llama_batch_init(n, 0, 1);
    for (int32_t i = 0; i < n; i++) {
        b.token[i] = rows[i].token;
        b.pos[i] = rows[i].pos;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = rows[i].seq;
        b.logits[i] = logits != NULL;
    }
    b.n_tokens = n;
    int rc = a->fold ? kvf_llama_decode(a->fold, b) : llama_decode(a->ctx, b);
    for (int32_t i = 0; !rc && logits && i < n; i++) {
        const float *row = logits_of(a, i);
        if (!row)
            rc = -1000 - i;
        else
            memcpy(logits + (size_t)i * (size_t)a->n_vocab, row, (size_t)a->n_vocab * sizeof *row);
    }
    llama_batch_free(b);
    return rc;
}

int arm_feed(arm *a, const llama_token *tokens, int32_t pos, int32_t n, int32_t seq, float *logits)
{
    arm_row rows[4096];
    if (n > 4096) return KVF_E_ARG;
    for (int32_t i = 0; i < n; i++) rows[i] = (arm_row){.token = tokens[pos + i], .pos = pos + i, .seq = seq};
    return arm_decode(a, rows, n, logits);
}

int arm_cut(arm *a, int32_t seq, int32_t pos)
{
    if (a->fold) return kvf_llama_seq_rm(a->fold, seq, pos, -1);
    return llama_memory_seq_rm(llama_get_memory(a->ctx), seq, pos, -1) ? KVF_OK : KVF_E_HOST;
}

double arm_distance(const float *x, const float *y, int32_t n)
{
    double d = 0, norm = 0;
    for (int32_t i = 0; i < n; i++) {
        double e = (double)x[i] - (double)y[i];
        d += e * e;
        norm += (double)y[i] * (double)y[i];
    }
    return sqrt(d / norm); /* NaN stays NaN: no comparison with a bound will hold */
}

double arm_worst(const float *x, const float *y, int32_t from, int32_t to, int32_t n_vocab, int32_t *row)
{
    double worst = 0;
    for (int32_t i = from; i < to; i++) {
        size_t at = (size_t)i * (size_t)n_vocab;
        double d = arm_distance(x + at, y + at, n_vocab);
        if (!(d <= worst)) {
            worst = d;
            if (row) *row = i;
            if (isnan(d)) return d;
        }
    }
    return worst;
}
