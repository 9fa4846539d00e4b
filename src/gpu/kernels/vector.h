/* SPDX-License-Identifier: MIT
 * KVF_KIND_VECTOR: a sub-vector of 2, 4 or 8 channels is the index of a centroid. */
#ifndef KVFI_KERNELS_VECTOR_H
#define KVFI_KERNELS_VECTOR_H

#ifndef KVF_FN
#include "gpu/compat/c.h"
#endif

/* Squared distance of two sub-vectors, summed in the order of the channels; nothing is fused, so every target gets the same bits. */
KVF_FN float kvfi_sub_distance(const KVF_GLOBAL float *x, const KVF_GLOBAL float *centroid, int sub)
{
    float sum = 0.0f;
    for (int i = 0; i < sub; i++) {
        const float miss = KVF_SUB(x[i], centroid[i]);
        sum = i ? KVF_ADD(sum, KVF_MUL(miss, miss)) : KVF_MUL(miss, miss);
    }
    return sum;
}

/* The nearest of n centroids; of several equally near ones the first, and the first of all when no distance is finite. */
KVF_FN int kvfi_nearest_centroid(const KVF_GLOBAL float *x, const KVF_GLOBAL float *centroids, int n, int sub)
{
    int best = 0;
    float least = kvfi_sub_distance(x, centroids, sub);
    for (int k = 1; k < n; k++) {
        const float distance = kvfi_sub_distance(x, centroids + (size_t)k * (size_t)sub, sub);
        if (distance < least) least = distance, best = k;
    }
    return best;
}

#endif
