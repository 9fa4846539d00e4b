/* SPDX-License-Identifier: MIT
 * Calibration: what was learnt of a model's keys, queries and values from text, layer by layer, in memory. `kvfold calibrate` writes it
 * to a GGUF file and kvf_llama_calibration_load reads that; a program without libllama may fill the structs itself.
 *
 * Everything is optional: a NULL array means "not known", and a codec or policy that needs it refuses by name. Arrays belong to the
 * caller and are copied by kvf_cache_create, of the codebooks those that a layer codes with. All numbers are finite. */
#ifndef KVFOLD_CALIBRATION_H
#define KVFOLD_CALIBRATION_H

#include "kvfold.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Centroids of product codes (Jegou et al., "Product quantization for nearest neighbor search", 2011): a vector is cut into
 * sub-vectors of `sub` channels, which divides the channels of a head, each coded as the index of the nearest of 2^bits centroids. Those of
 * keys belong to transformed keys: centred, divided by k_lambda, turned by the Hadamard transform (VecInfer, Yao et al., arXiv
 * 2510.06175); those of values to values as they are. */
typedef struct kvf_codebook {
    int32_t side;           /* kvf_side */
    int32_t sub;            /* channels of a sub-vector: 2, 4 or 8 */
    int32_t bits;           /* 1 to 12 */
    int32_t heads;          /* 1: one table for all KV heads of the layer; kv_heads: one for each */
    const float *centroids; /* [heads][2^bits][sub] */
} kvf_codebook;

/* Codebooks of one layer, at most. */
#define KVF_CODEBOOKS_MOST 64

/* Arrays [kv_heads][k_dim] of a calibrated layer: X(field, smallest value allowed, whether that value itself is). Needs math.h. */
#define KVF_CALIBRATED_ARRAYS(X)                                                                                                 \
    X(k_mean, -HUGE_VAL, 1)                                                                                                      \
    X(k_rms, 0, 1)                                                                                                               \
    X(q_rms, 0, 1)                                                                                                               \
    X(k_lambda, 0, 0)                                                                                                            \
    X(q_direction, -HUGE_VAL, 1)

/* One layer that owns its K/V. */
typedef struct kvf_calibrated_layer {
    uint32_t size;                  /* sizeof(kvf_calibrated_layer) */
    int32_t kv_heads, k_dim, v_dim; /* those of the layer: others are refused, naming both */
    const float *k_mean;            /* [kv_heads][k_dim] mean of the keys before RoPE */
    const float *k_rms;             /* [kv_heads][k_dim] root mean square of key less centre, after RoPE */
    const float *q_rms;             /* [kv_heads][k_dim] root mean square of the group's queries, after RoPE */
    const float *k_lambda;    /* [kv_heads][k_dim] VecInfer's smoothing factor: sqrt(max |key less centre|) after RoPE, equal
                                        within a RoPE pair, above 0 */
    const float *q_direction; /* [kv_heads][k_dim] mean over the group of the first right singular vector of each head's
                                        queries, uncentred, signed so that they project positively (Q-Filters, arXiv 2503.02812) */
    int32_t n_codebooks;      /* 0 to KVF_CODEBOOKS_MOST */
    const kvf_codebook *codebooks;
    const float *q_moment; /* [kv_heads][k_dim][k_dim] mean of q q^T over the group's queries, after RoPE; symmetric, no negative
                              eigenvalues. Not copied: what codecs need of it is worked out at creation */
    int64_t reserved[3];
} kvf_calibrated_layer;

typedef struct kvf_calibration {
    uint32_t size;                      /* sizeof(kvf_calibration) */
    int32_t n_layers;                   /* kvf_params.n_layers */
    const kvf_calibrated_layer *layers; /* [n_layers]; those of layers that share or do not attend are left at 0 but for size */
    int64_t reserved[4];
} kvf_calibration;

/* kvf_spec_check for a layer of which something is known: key stages default to the file's, canonical says so. known NULL: nothing is.
 * KVF_E_VERSION: its size is another one; KVF_E_ARG: its codebooks cannot be, with a sentence. */
KVF_API int kvf_spec_check_calibrated(const char *spec, kvf_side side, int32_t head_dim, const kvf_calibrated_layer *known,
                                      kvf_spec_info *info, char *error, size_t error_size);

/* ---- learning it ------------------------------------------------------------------------------------------------------------ */

/* What attention saw of one layer at n positions, all KV heads at the same ones. Positions below the exact sink are better left out:
 * their keys are unlike all others, and are never coded. */
typedef struct kvf_samples {
    uint32_t size;           /* sizeof(kvf_samples) */
    int32_t kv_heads, group; /* group: query heads of each KV head, those of layers that share these keys included */
    int32_t k_dim, v_dim;
    int32_t rope_dims, rope_style; /* as in kvf_layer; KVF_ROPE_UNKNOWN: k_mean is the plain mean, and turns is 0 */
    const double *rope_freq;       /* [rope_dims / 2] */
    int64_t n;                     /* 1 or more */
    const int32_t *pos;            /* [n] */
    const float *q;                /* [kv_heads][group][n][k_dim], after RoPE */
    const float *k;                /* [kv_heads][n][k_dim], after RoPE */
    const float *v;                /* [kv_heads][n][v_dim] */
    int64_t reserved[4];
} kvf_samples;

/* Where results go: arrays [kv_heads][k_dim] of the caller, NULL where not wanted. The first five are what kvf_calibrated_layer
 * holds; k_max is max |key less centre| of each channel, k_direction the first right singular vector of the keys, signed so that they project
 * positively: what one would take for q_direction without queries, and what does not work (tests/unit/test_calibrate). */
typedef struct kvf_learnt {
    uint32_t size; /* sizeof(kvf_learnt) */
    int32_t turns; /* set: 1 when un-rotating concentrates the mean as it must, 0 when it does not: do not use k_mean then */
    float *k_mean, *k_rms, *q_rms, *k_lambda, *q_direction, *k_max, *k_direction;
    float *
        one_sided; /* [kv_heads] share of queries that project positively on the direction of their own head: 0.5 for none, 1 for all */
    float *
        q_moment; /* [kv_heads][k_dim][k_dim] mean of q q^T over the group's queries: takes k_dim / 2 products for each number sampled */
    int64_t reserved[3];
} kvf_learnt;

/* Fills the arrays. Sums are doubles in the order of the samples: the same bits on every target. Allocates and releases k_dim^2 doubles.
 * A channel that is always 0 gets a k_lambda of 1; heads whose queries are all 0 a direction of zeros. KVF_E_ARG, KVF_E_VERSION,
 * KVF_E_NONFINITE, KVF_E_NOMEM with a sentence in error, which may be NULL; the arrays are undefined then. */
KVF_API int kvf_calibrate_layer(const kvf_samples *samples, kvf_learnt *learnt, char *error, size_t error_size);

/* Centroids of one codebook by k-means (k-means++ seeds, 30 rounds; fourth powers of distances for keys, squares for values),
 * centroids[heads][2^bits][sub]; book->centroids is not read. For keys, k_mean and k_lambda [kv_heads][k_dim] as above; k_lambda NULL: ones;
 * k_mean NULL: zeros, or with KVF_ROPE_UNKNOWN the plain mean, since a cache then codes keys less the mean of their block. Fewer different
 * sub-vectors than centroids repeat some. KVF_E_UNSUPPORTED: `sub` does not divide the channels of a head; KVF_E_ARG, KVF_E_VERSION,
 * KVF_E_NONFINITE, KVF_E_NOMEM; all with a sentence in error, which may be NULL; the centroids are undefined then. */
KVF_API int kvf_calibrate_codebook(const kvf_samples *samples, const kvf_codebook *book, const float *k_mean,
                                   const float *k_lambda, uint64_t seed, float *centroids, char *error, size_t error_size);

#ifdef __cplusplus
}
#endif
#endif
