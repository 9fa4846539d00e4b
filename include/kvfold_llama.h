/* SPDX-License-Identifier: MIT
 * kvfold_llama.h: fold the KV cache of a llama_context of stock libllama. Uses only public names of llama.h and ggml.h.
 *
 *   struct llama_context_params cp = llama_context_default_params();     your own settings
 *   kvf_llama_params kp; kvf_llama_params_init(&kp); kp.n_ctx = 32768;
 *   kvf_llama *h; kvf_llama_prepare(model, &cp, &kp, &h);                adjusts cp: a small n_ctx, n_ubatch, the callback
 *   struct llama_context *ctx = llama_init_from_model(model, cp);
 *   kvf_llama_attach(h, ctx);                                            probes the model, creates the cache
 *   kvf_llama_decode(h, batch);                                          instead of llama_decode(ctx, batch)
 *   llama_get_logits_ith(ctx, -1)                                        as ever
 *   kvf_llama_detach(h); llama_free(ctx); kvf_llama_free(&h);            h must outlive the context
 *
 * Rules for the caller
 * - Ask kvf_llama_n_ctx() for the context length: llama_n_ctx() now returns the few cells that the host keeps for a batch.
 * - Decode, remove and copy through this header only: llama_decode and llama_memory_* on the context would bypass the cache.
 * - A llama_batch may be longer than n_ubatch: it is split. Logits of rows before the last split are read with
 *   kvf_llama_logits_ith.
 * - One thread at a time per handle.
 * Every function returns KVF_OK or a negative kvf_error; kvf_llama_error() then holds the sentence.
 */
#ifndef KVFOLD_LLAMA_H
#define KVFOLD_LLAMA_H

#include <stdbool.h>
#include "kvfold.h"
#include "kvfold_calibration.h"

struct llama_model;
struct llama_context;
struct llama_context_params;
struct llama_batch;

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvf_llama kvf_llama;                         /* opaque */
typedef struct kvf_llama_calibration kvf_llama_calibration; /* opaque: a calibration file in memory */

/* What one attention layer is given for the rows of a batch, before it is computed. Valid during the call. */
typedef struct kvf_llama_rows {
    uint32_t size;           /* sizeof(kvf_llama_rows) */
    int32_t layer, owner;    /* layers of the model: this one, and the one whose keys and values it reads (most often itself) */
    int32_t n;               /* rows */
    const kvf_token *tokens; /* [n] */
    kvf_view q, k,
        v; /* q: row i is token i; k and v: row cells[i]. Queries and keys are turned by RoPE; v is that of k where values
                                are the first channels of the keys */
    const int32_t *cells; /* [n] */
    float scale, softcap; /* of the scores */
    int64_t reserved[4];
} kvf_llama_rows;

typedef struct kvf_llama_params {
    uint32_t size;        /* sizeof(kvf_llama_params) */
    int32_t n_seq;        /* sequences; default 1 */
    int64_t n_ctx;        /* tokens of the folded context, over all sequences; 0: the training length of the model */
    int32_t n_batch;      /* rows of one host batch, 0: 255. With n_seq it is fitted so that the host's cells need no padding
                              (n_batch + n_seq is a multiple of 256) */
    const char *k, *v;    /* codec specs; NULL: those of the default preset */
    const char *kv_layer; /* NULL or overrides "0,1,8-11=q8_0;5=kivi4/kivi2": layers = K and V, or K/V */
    int32_t sink, recent; /* tokens kept exact at the start and at the end; defaults 4 and 64; -1: the default */
    const char *cpu;      /* instruction set, NULL: best */
    int32_t exact_bits;   /* how those are kept: 16 (f16), 8 (q8_0); 0: the default, 16 */
    int32_t seal_each;    /* as in kvf_params: for judging codecs only */
    int32_t keep_host_attention; /* 1: let libllama compute its own attention too (slower; a check). Default 0 */
    void (*log)(void *user, kvf_log_level level, const char *text);
    void *log_user;
    const char *evict;                        /* which tokens stay, as in kvf_params; NULL: all */
    const kvf_llama_calibration *calibration; /* NULL: none; must stay until attach, where the cache copies what it needs */
    void (*observe)(void *user, const kvf_llama_rows *rows); /* NULL: nobody watches; called for every layer of every decode */
    void *observe_user;
    int64_t reserved[3];
} kvf_llama_params;

KVF_API void kvf_llama_params_init(kvf_llama_params *p);

/* Adjusts *cparams for folding (n_ctx, n_batch, n_ubatch, n_seq_max, flash attention, f16 cache types, unified cells, small SWA
 * cache, cb_eval; the caller's own cb_eval is chained; models with windows get one sequence more for a probe) and makes the handle. Refuses what can never be folded: an encoder, a
 * model without attention, sparse-attention caches, embeddings contexts. error/error_size: where to leave the sentence, as there
 * is no handle on failure (NULL: nowhere). *h is NULL on failure. */
KVF_API int kvf_llama_prepare(const struct llama_model *model, struct llama_context_params *cparams, const kvf_llama_params *p,
                              kvf_llama **h, char *error, size_t error_size);

/* Probes the context that was made from those parameters: which layers have attention, their shapes, windows, sharing and RoPE;
 * compares one attention with ggml's and refuses on mismatch; creates and reserves the cache. What cannot be folded is said per
 * layer (kvf_llama_layer). */
KVF_API int kvf_llama_attach(kvf_llama *h, struct llama_context *ctx);

/* llama_decode on the folded cache. Rows must carry explicit or default positions that continue their sequence. On failure
 * nothing of the failed part is kept; rows of earlier parts of a split batch are (kvf_llama_pos_max tells). */
KVF_API int kvf_llama_decode(kvf_llama *h, struct llama_batch batch);

/* Logits of row i of the last decoded batch, wherever it was split; NULL if not requested. i < 0: outputs counted from the end, as
 * llama_get_logits_ith does. */
KVF_API const float *kvf_llama_logits_ith(kvf_llama *h, int32_t i);

/* As the kvf_seq_* functions, for cache and host together. */
KVF_API int kvf_llama_seq_rm(kvf_llama *h, int32_t seq, int32_t p0, int32_t p1);
KVF_API int kvf_llama_seq_cp(kvf_llama *h, int32_t src, int32_t dst);
KVF_API int kvf_llama_seq_keep(kvf_llama *h, int32_t seq);
KVF_API int32_t kvf_llama_pos_max(const kvf_llama *h, int32_t seq);
KVF_API int kvf_llama_can(kvf_llama *h, kvf_ability what, int32_t seq, int32_t pos);

/* Tokens of the folded context. */
KVF_API int64_t kvf_llama_n_ctx(const kvf_llama *h);

/* Positions that a sequence may take, 0 before attach: n_ctx; with a policy (kvf_llama_params.evict) of which no layer's budget, times
 * n_seq, is above n_ctx, the training length of the model if that is more, or as many as leave n_ctx tokens when a share is kept. */
KVF_API int64_t kvf_llama_n_positions(const kvf_llama *h);

/* The cache itself, for statistics; NULL before attach. */
KVF_API kvf_cache *kvf_llama_cache(kvf_llama *h);

typedef struct kvf_llama_stats_t {
    uint32_t size;            /* set by the caller to sizeof(kvf_llama_stats_t) */
    int32_t layers_total;     /* layers of the model */
    int32_t layers_folded;    /* of those, folded into coded form by this cache */
    int32_t layers_attention; /* of those, with attention */
    int32_t host_cells;       /* token cells that libllama keeps for its batch */
    int32_t n_batch;          /* rows of one host batch */
    int64_t host;             /* bytes of those cells */
    int64_t f16;              /* bytes that plain libllama would allocate for n_ctx tokens, f16, its window caches included */
    int64_t asks, stops;      /* callback calls, and those at which the graph stopped, since attach */
    double attend_seconds;    /* time in our attention since attach */
    int64_t reserved[8];
} kvf_llama_stats_t;
KVF_API int kvf_llama_stats(const kvf_llama *h, kvf_llama_stats_t *s);

typedef struct kvf_llama_layer_t {
    uint32_t size;     /* set by the caller */
    int32_t attention; /* 0: no attention in this layer (recurrent, convolution) */
    int32_t folded;    /* 1: K/V are ours */
    int32_t q_heads, kv_heads, k_dim, v_dim;
    int32_t window;    /* 0: full */
    int32_t share;     /* layer whose K/V it reads, -1: own */
    int32_t rope_dims; /* channels that RoPE turns, 0: none found */
    int32_t rope_mode; /* ggml rope type */
    float rope_base, rope_scale;
    const char *k, *v;  /* canonical codec specs, "" when not folded */
    const char *reason; /* why not folded, "" when folded */
    const double
        *rope_freq; /* [rope_dims / 2] radians per position, of the owner; NULL: not rotated, or not by one frequency a pair */
    int32_t rope_style; /* kvf_rope_style */
    int32_t reserved0;
    int64_t reserved[2];
} kvf_llama_layer_t;
/* KVF_E_ARG past the last layer. */
KVF_API int kvf_llama_layer(const kvf_llama *h, int32_t il, kvf_llama_layer_t *info);

/* ---- calibration files (docs/calibration.md) --------------------------------------------------------------------------------- */

/* A hash of a model's weights: names, types and shapes of all tensors, and a sample of the bytes of each. path: the GGUF file, the first of
 * a split model. KVF_E_IO, KVF_E_DAMAGED with a sentence in error (NULL: nowhere). */
KVF_API int kvf_llama_model_hash(const char *path, uint64_t *hash, char *error, size_t error_size);

typedef struct kvf_llama_calibration_info {
    uint32_t size; /* set by the caller */
    int32_t n_layers;
    uint64_t model_hash, text_hash, seed;
    int64_t tokens;                               /* that were read */
    int32_t positions, context;                   /* sampled of each head; tokens of one chunk */
    int32_t sensitivity_context, reserved_too;    /* tokens that were read for sensitivities, 0: none */
    const char *architecture, *kvfold, *libllama; /* of the model; versions that made the file. "" when not told */
    const char
        *sensitivity; /* codec that keys or values of one layer alone were coded with, to find what that costs: mean KLD of keys
                                and of values, the array blk.N.sensitivity; "": not known */
    int64_t reserved[2];
} kvf_llama_calibration_info;

/* Reads a file that `kvfold calibrate` wrote. model NULL: any model's; else architecture and layers must be its own; heads and their sizes
 * are compared at attach. model_path NULL:
 * its weights are not compared; else their hash must be the file's. *calibration is NULL on failure: KVF_E_IO, KVF_E_NOMEM, KVF_E_DAMAGED
 * (not such a file, cut short, changed), KVF_E_MODEL (of another model; both values are named). */
KVF_API int kvf_llama_calibration_load(const char *path, const struct llama_model *model, const char *model_path,
                                       kvf_llama_calibration **calibration, char *error, size_t error_size);
KVF_API void kvf_llama_calibration_free(kvf_llama_calibration **calibration);
KVF_API int kvf_llama_calibration_about(const kvf_llama_calibration *calibration, kvf_llama_calibration_info *info);
/* What is known of layer il of the model, for as long as the calibration lives; NULL: nothing, or no such layer. */
KVF_API const kvf_calibrated_layer *kvf_llama_calibration_layer(const kvf_llama_calibration *calibration, int32_t il);
/* Any other array of the file, as "blk.3.rank.q": n numbers, NULL when there is none. */
KVF_API const float *kvf_llama_calibration_array(const kvf_llama_calibration *calibration, const char *name, int64_t *n);

KVF_API const char *kvf_llama_error(const kvf_llama *h);

/* The context may then be freed or used plainly (its memory is cleared: it does not hold the history). */
KVF_API void kvf_llama_detach(kvf_llama *h);
KVF_API void kvf_llama_free(kvf_llama **h);

#ifdef __cplusplus
}
#endif
#endif
