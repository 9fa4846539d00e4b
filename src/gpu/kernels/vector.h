/* SPDX-License-Identifier: MIT
 * KVF_KIND_VECTOR: a sub-vector of 2, 4 or 8 channels is the index of a centroid, 1 to 12 bits. The indices of the 64 tokens of a record
 * lie together, sub-vector after sub-vector: a run is one little-endian stream of bits, token after token, with none left over. */
#ifndef KVFI_KERNELS_VECTOR_H
#define KVFI_KERNELS_VECTOR_H

#include "gpu/kernels/shape.h"

/* Bytes of the indices of one sub-vector. */
KVF_FN size_t kvfi_run_bytes(int bits)
{
    return (size_t)bits * KVFI_TOKENS / 8;
}

KVF_FN int kvfi_index_get(const KVF_GLOBAL uint8_t *record, int bits, int m, int t)
{
    const KVF_GLOBAL uint8_t *run = record + (size_t)m * kvfi_run_bytes(bits);
    const int first = t * bits;
    int index = 0;
    for (int at = first / 8, got = -(first % 8); got < bits; at++, got += 8) index |= got < 0 ? run[at] >> -got : run[at] << got;
    return index & ((1 << bits) - 1);
}

/* Flips the bits of an index that are set in `bits_set`: in zeroed memory, stores it. Two threads must not store into the same byte at once. */
KVF_FN void kvfi_index_flip(KVF_GLOBAL uint8_t *record, int bits, int m, int t, int bits_set)
{
    KVF_GLOBAL uint8_t *run = record + (size_t)m * kvfi_run_bytes(bits);
    const int first = t * bits;
    for (int at = first / 8, got = -(first % 8); got < bits; at++, got += 8)
        run[at] = (uint8_t)(run[at] ^ (got < 0 ? bits_set << -got : bits_set >> got));
}

/* The centroid of sub-vector m of token t. */
KVF_FN const KVF_GLOBAL float *kvfi_centroid(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, int t, int m)
{
    return s->book + (size_t)kvfi_index_get(record, s->bits, m, t) * (size_t)s->sub;
}

KVF_FN float kvfi_value_vector(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, int t, int c)
{
    return c < s->dim ? kvfi_centroid(s, record, t, c / s->sub)[c % s->sub] : 0.0f;
}

KVF_FN float kvfi_score_vector(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, const KVF_GLOBAL float *q,
                               int t)
{
    float score = 0.0f;
    for (int c = 0; c < s->dim; c++) score += q[c] * kvfi_value_vector(s, record, t, c);
    return score;
}

/* What the 64 tokens of a record add to channel c < dim. */
KVF_FN float kvfi_mix_vector(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, const KVF_GLOBAL float *w, int c)
{
    float sum = 0.0f;
    for (int t = 0; t < KVFI_TOKENS; t++) sum += w[t] * kvfi_value_vector(s, record, t, c);
    return sum;
}

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
