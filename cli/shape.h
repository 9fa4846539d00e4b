/* SPDX-License-Identifier: MIT
 * The attention layers of a model as its header describes them, and the sizes that follow.
 */
#ifndef KVFOLD_CLI_SHAPE_H
#define KVFOLD_CLI_SHAPE_H

#include "kv.h"
#include "model_file.h"

#include <kvfold.h>
#include <kvfold_calibration.h>
#include <kvfold_llama.h>

typedef struct shape_layer {
    bool attention;
    int32_t q_heads, kv_heads, k_dim, v_dim;
    int32_t rope_dims; /* channels that RoPE turns; 0: none */
    int32_t window;    /* 0: full */
    int32_t share;     /* layer whose K/V it reads, -1: own */
    bool v_in_k;       /* latent attention: V is the first part of K */
} shape_layer;

typedef struct shape {
    int32_t n_layers;    /* of the model; prediction heads are not counted */
    int32_t n_attention; /* of those, with attention */
    int64_t context;     /* training length, 0 unknown */
    shape_layer *layer;  /* [n_layers] */
    char refused[160];   /* why the model as a whole cannot be folded, "" when it can */
} shape;

/* CLI_GO, or CLI_DAMAGED after a sentence when the header is impossible. */
int shape_read(shape *s, const model_file *m);
void shape_free(shape *s);

/* Parameters of a cache for those layers. *layers must be freed by the caller. p->error points at error. */
void shape_params(const shape *s, const kv_choice *kv, kvf_params *p, kvf_layer **layers, char *error, size_t error_size);

/* What is known (NULL: nothing) of those layers, in their order; layers that read the keys of others have nothing of their own. Becomes
 * p->calibration, by way of *all. To be freed by the caller, with what it points to kept by the calibration. */
kvf_calibrated_layer *shape_known(const shape *s, const kvf_llama_calibration *known, kvf_calibration *all, kvf_params *p);

/* Bytes of the cache that plain libllama keeps in f16 for a context, window caches included. */
int64_t shape_f16(const shape *s, int64_t context);
/* Bytes of the cells that libllama keeps for its batch beside a folded cache. */
int64_t shape_host(const shape *s);

#endif
