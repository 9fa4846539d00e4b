/* SPDX-License-Identifier: MIT
 * Calibration for rows of the bench whose codec needs codebooks: centroids are sub-vectors of the bench's own data. */
#ifndef KVFOLD_CLI_BENCH_BOOKS_H
#define KVFOLD_CLI_BENCH_BOOKS_H

#include "bench.h"

#include <kvfold_calibration.h>

typedef struct bench_books {
    kvf_calibration calibration;
    kvf_calibrated_layer *layers; /* all alike */
    kvf_codebook book[2];
    float *floats;
} bench_books;

/* For a cache of so many layers; *known is what kvf_params.calibration should be, NULL when neither side needs codebooks. 0, or -1 when
 * memory is short. */
int bench_books_make(bench_books *b, const kv_choice *choice, const bench_data *d, int layers, const kvf_calibration **known);
void bench_books_free(bench_books *b);

/* A layer with uniform centroids for that spec, static until the next call; NULL: it needs none. */
const kvf_calibrated_layer *bench_books_layer(const char *spec, kvf_side side, int dim);

#endif
