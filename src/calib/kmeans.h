/* SPDX-License-Identifier: MIT
 * Codebooks of product codes by k-means: Lloyd's iteration (1957) from the seeds of Arthur and Vassilvitskii, "k-means++", 2007.
 * Deterministic: random numbers are a function of the seed, sums are doubles in the order of the rows, ties go to the first. The same
 * bytes on every target. */
#ifndef KVFI_KMEANS_H
#define KVFI_KMEANS_H

#include "kvfold.h"

enum {
    KVFI_KMEANS_ITERATIONS = 30, /* as VecInfer trains */
    KVFI_CENTROIDS_MOST = 4096,
    KVFI_SUB_MOST = 8
};

/* centroids[k][dim] of x[n][dim], dim 2, 4 or 8, k 1 to KVFI_CENTROIDS_MOST, at most `iterations` rounds (0: the seeds alone). A centroid
 * that no row is nearest to moves to the row that is farthest from its own. With fewer different rows than centroids, the centroids left
 * over repeat earlier ones; without any row all are zero. `power` is that of the distances whose sum is made small: 2, k-means proper, or 4,
 * by rounds of means in which a row counts as its squared distance: rows far out draw centroids to them. (Such a round may raise the sum, and
 * is the last then.) Allocates and releases 6 bytes a row and up to 112 a centroid. KVF_E_ARG,
 * KVF_E_NONFINITE (a number that is not finite or above 1e18), KVF_E_NOMEM: centroids are undefined. */
int kvfi_kmeans(const float *x, int64_t n, int32_t dim, int32_t k, int32_t power, uint64_t seed, int32_t iterations,
                float *centroids, const kvf_allocator *a);

/* Rows of one head that share a centre: x[n][dim] as they are cached, after RoPE. */
typedef struct kvfi_training_rows {
    const float *x;
    int64_t n;
    const float *centre; /* [dim] subtracted from keys; NULL: zeros. (One for each 512 positions where keys are rotated) */
    const float *lambda; /* [dim] divides keys; NULL: ones */
} kvfi_training_rows;

/* What a codebook of keys is trained on and what the codec codes, in place: (x - centre) / lambda, then the Hadamard transform in blocks
 * of the largest power of two that divides dim. Queries are multiplied by lambda and transformed, so that products are those of q and
 * x - centre. VecInfer, Yao et al., arXiv 2510.06175. */
void kvfi_transform_keys(float *x, int64_t n, int32_t dim, const float *centre, const float *lambda);

/* A codebook, centroids[2^bits][sub], for the sub-vectors of all rows of `sets`: of transformed keys, of values as they are; the last
 * sub-vector of a row is filled with zeros. Of more than KVFI_TRAINING_MOST sub-vectors (twice as many from 11 bits on) that many are
 * drawn, evenly spread: memory is bounded. Keys make the sum of fourth powers small, values that of squares: few keys are long, but those
 * are found by what looks for them, and a code that cannot follow them loses them. Centroids are rounded to what fits bytes (codec/shared/entries.h) unless that adds 2 % to the
 * error.  sub 2, 4 or 8; bits 1 to 12; dim 1 to 1024. Errors as kvfi_kmeans. */
enum { KVFI_TRAINING_MOST = 1 << 16 };
int kvfi_train_codebook(kvf_side side, int32_t dim, int32_t sub, int32_t bits, const kvfi_training_rows *sets, int32_t n_sets,
                        uint64_t seed, float *centroids, const kvf_allocator *a);

#endif
