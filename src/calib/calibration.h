/* SPDX-License-Identifier: MIT
 * The cache's own copy of what the caller knows of the model (kvfold_calibration.h): checked, in one piece of memory. */
#ifndef KVFI_CALIBRATION_H
#define KVFI_CALIBRATION_H

#include "base/memory.h"
#include "kvfold_calibration.h"

typedef struct kvfi_calibration {
    kvf_calibrated_layer *layers; /* [kvf_params.n_layers], at the start of `memory`; NULL: none was given */
    void *memory;
    size_t bytes;
} kvfi_calibration;

/* Checks p->calibration against the layers (sizes, finite numbers, sides and shapes of codebooks) and copies it with the arrays of
 * KVF_CALIBRATED_ARRAYS. Codebooks and moments are large, and few of them are used: the copy points to the caller's until they are let go. KVF_E_ARG, KVF_E_VERSION, KVF_E_NONFINITE or KVF_E_NOMEM with a sentence; *c is empty then, and when there is none. Layers of p are checked
 * before. */
int kvfi_calibration_copy(kvfi_calibration *c, const kvf_params *p, const kvf_allocator *a, char *error, size_t error_size);
void kvfi_calibration_let_go(kvfi_calibration *c, int32_t n_layers);
void kvfi_calibration_free(kvfi_calibration *c, const kvf_allocator *a);

/* Of a layer that is given to an operation alone: its size, and what stands of codebooks. NULL is fine. */
int kvfi_known_check(const kvf_calibrated_layer *known, char *error, size_t size);

/* What is known of layer i; NULL when nothing is. */
const kvf_calibrated_layer *kvfi_calibration_layer(const kvfi_calibration *c, int32_t i);

#endif
