/* SPDX-License-Identifier: MIT
 * Calibration for tests: every array of every layer filled with numbers that depend on a seed. Nothing here comes from the library. */
#ifndef TESTS_CALIBRATED_H
#define TESTS_CALIBRATED_H

#include "kvfold_calibration.h"
#include "support.h"

typedef struct tc_calibration {
    kvf_calibration c;
    kvf_calibrated_layer layers[TS_LAYERS];
    kvf_codebook books[TS_LAYERS][2];
    float *floats; /* all arrays, one after the other */
    size_t n_floats;
} tc_calibration;

/* For the layers of m that own their K/V: 4 x 8 bits for keys (one table), 2 x 3 bits for values (one a head). */
tc_calibration *tc_new(const ts_model *m, uint64_t seed);
void tc_free(tc_calibration *t);

#endif
