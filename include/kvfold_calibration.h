/* SPDX-License-Identifier: MIT
 * Calibration: what was learnt of a model's keys, queries and values from text, layer by layer, in memory. `kvfold calibrate` writes it
 * to a GGUF file and kvf_llama_calibration_load reads that; a program without libllama may fill the structs itself.
 *
 * Everything is optional: a NULL array means "not known", and a codec or policy that needs it refuses by name. Arrays belong to the
 * caller and are copied by kvf_cache_create. All numbers are finite. */
#ifndef KVFOLD_CALIBRATION_H
#define KVFOLD_CALIBRATION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Centroids of product codes (Jegou et al., "Product quantization for nearest neighbor search", 2011): a vector is cut into
 * sub-vectors of `sub` channels (the last one filled with zeros), each coded as the index of the nearest of 2^bits centroids. Those of
 * keys belong to transformed keys: centred, divided by k_lambda, turned by the Hadamard transform (VecInfer, Yao et al., arXiv
 * 2510.06175); those of values to values as they are. */
typedef struct kvf_codebook {
    int32_t side;           /* kvf_side */
    int32_t sub;            /* channels of a sub-vector: 2, 4 or 8 */
    int32_t bits;           /* 1 to 12 */
    int32_t heads;          /* 1: one table for all KV heads of the layer; kv_heads: one for each */
    const float *centroids; /* [heads][2^bits][sub] */
} kvf_codebook;

/* One layer that owns its K/V. */
typedef struct kvf_calibrated_layer {
    uint32_t size;                   /* sizeof(kvf_calibrated_layer) */
    int32_t kv_heads, k_dim, v_dim;  /* those of the layer: others are refused, naming both */
    const float *k_mean;             /* [kv_heads][k_dim] mean of the keys before RoPE */
    const float *k_rms;              /* [kv_heads][k_dim] root mean square of key less centre, after RoPE */
    const float *q_rms;              /* [kv_heads][k_dim] root mean square of the group's queries, after RoPE */
    const float *k_lambda;           /* [kv_heads][k_dim] VecInfer's smoothing factor: sqrt(max |key less centre|) after RoPE, equal
                                        within a RoPE pair, above 0 */
    const float *q_direction;        /* [kv_heads][k_dim] mean over the group of the first right singular vector of each head's
                                        queries, uncentred, signed so that they project positively (Q-Filters, arXiv 2503.02812) */
    int32_t n_codebooks;
    const kvf_codebook *codebooks;
    int64_t reserved[4];
} kvf_calibrated_layer;

typedef struct kvf_calibration {
    uint32_t size;    /* sizeof(kvf_calibration) */
    int32_t n_layers; /* kvf_params.n_layers */
    const kvf_calibrated_layer *layers; /* [n_layers]; those of layers that share or do not attend are left at 0 but for size */
    int64_t reserved[4];
} kvf_calibration;

#ifdef __cplusplus
}
#endif
#endif
