/* SPDX-License-Identifier: MIT
 * A calibrated layer with random codebooks of every geometry that a codec's examples name, for tests that walk over codecs. Nothing here
 * comes from the library. */
#ifndef TESTS_BOOKS_H
#define TESTS_BOOKS_H

#include "kvfold.h"
#include "kvfold_calibration.h"
#include "support.h"

enum { TB_HEADS = 8, TB_BOOKS = 20 };

/* Static; TB_HEADS KV heads. Keys and values have tables of their own; centroids are normal, deviation 1. */
const kvf_calibrated_layer *tb_layer(void);

/* kvf_op_encode and kvf_op_decode for head 1 of that layer; a spec with feedback=query finds moments of queries there. */
int tb_encode(const char *spec, kvf_side side, int32_t dim, const float *x, void *record);
int tb_decode(const char *spec, kvf_side side, int32_t dim, const void *record, float *x);

/* The centroids of that geometry, [2^bits][sub]; head -1: of all heads. NULL: there are none. */
const float *tb_book(kvf_side side, int32_t sub, int32_t bits, int32_t head);

/* What a model of tests may know: those codebooks in every layer, and key stages that do nothing (mean 0, lambda 1) or, staged, random
 * ones. k_rms is not known, so other codecs go on estimating. */
typedef struct tb_known {
    kvf_calibration calibration;
    kvf_calibrated_layer layers[TS_LAYERS];
    kvf_codebook books[TS_LAYERS][TB_BOOKS];
    float *floats;
} tb_known;

/* Becomes params.calibration of m; at most TB_HEADS KV heads a layer. */
tb_known *tb_know(ts_model *m, int staged);
void tb_forget(tb_known *k);

#endif
