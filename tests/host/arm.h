/* SPDX-License-Identifier: MIT
 * One way to run a model in the host tests: plain libllama, or folded. Both are fed in the same way, so that a test compares
 * nothing but the cache. */
#ifndef KVF_TESTS_ARM_H
#define KVF_TESTS_ARM_H

#include <stdbool.h>
#include <stdint.h>

#include "kvfold_llama.h"
#include "llama.h"

typedef struct arm {
    struct llama_model *model;
    struct llama_context *ctx;
    kvf_llama *fold; /* NULL: plain libllama */
    int32_t n_vocab;
    char error[512];
} arm;

/* What an arm may be asked for beyond its model. */
typedef struct arm_options {
    int32_t n_ctx; /* tokens over all sequences */
    int32_t n_seq;
    int32_t threads;      /* 1: where programs share processors, threads that wait for each other cost more than they give */
    const char *k, *v;    /* NULL: plain libllama, f16 and flash attention */
    const char *kv_layer; /* as in kvf_llama_params */
    int32_t sink, recent; /* -1: the defaults */
    const char *evict;    /* NULL: all tokens stay */
    const kvf_llama_calibration *calibration;
    void (*observe)(void *user, const kvf_llama_rows *rows); /* of the fold */
    void *observe_user;
    ggml_backend_sched_eval_callback cb_eval;
    void *cb_user;
    ggml_abort_callback abort;
    void *abort_user;
    void (*log)(void *user, kvf_log_level level, const char *text); /* of the fold */
    void *log_user;
} arm_options;

void arm_options_init(arm_options *o, int32_t n_ctx, const char *k, const char *v);

/* NULL when the model does not load. Of what libllama logs only errors are shown. */
struct llama_model *arm_load(const char *path);

/* Hides the errors too: for decodes that are meant to fail. */
void arm_hide_errors(bool hide);

/* 0, or the kvf_error (plain: KVF_E_HOST) with the sentence in a->error. arm_close is needed either way. */
int arm_open(arm *a, struct llama_model *model, const arm_options *o);
void arm_close(arm *a);

/* One row to decode. */
typedef struct arm_row {
    llama_token token;
    int32_t pos, seq;
} arm_row;

/* Decodes n rows in one call. logits: NULL, or n rows of n_vocab. Returns the decode's code. */
int arm_decode(arm *a, const arm_row *rows, int32_t n, float *logits);

/* tokens[pos .. pos+n) of sequence seq in one call. */
int arm_feed(arm *a, const llama_token *tokens, int32_t pos, int32_t n, int32_t seq, float *logits);

/* Forgets positions >= pos of a sequence (pos 0: all). */
int arm_cut(arm *a, int32_t seq, int32_t pos);

/* |x - y| / |y| over one row, in double. */
double arm_distance(const float *x, const float *y, int32_t n);

/* The worst of rows [from, to) of two tables of logits. */
double arm_worst(const float *x, const float *y, int32_t from, int32_t to, int32_t n_vocab, int32_t *row);

#endif
