/* SPDX-License-Identifier: MIT
 * KVF_KIND_VECTOR on any overlay: the search for centroids, and products that read them. The including file has a simd.h with floats,
 * ints, LANES, load_lanes(p), store_lanes(p, x), set_lanes(f), add_lanes, sub_lanes, mul_lanes(a, b), fma_lanes(a, b, c) = a * b + c,
 * set_ints(i) and store_ints(p, x), and defines before it, static and force-inlined:
 *   take_lower(d, k, least, index)    where d < *least: *least = d, *index = k
 *   from_quads(q)                     LANES channels, LANES / 4 times four from the addresses q[]
 *   sum_lanes4(x)                     writes the four sums of x[0..3] to out[0..3]
 *   transpose_quads(q, tile, stride)  tile[j * stride + i] = q[i][j], i and j below 4
 *   SEARCH_GROUPS(sub)                vectors of sub-vectors that the search keeps in registers, 1 to 4
 *   SCORE_VECTORS, MIX_VECTORS, MIX_UNITS     queries at a time, and channels by 16 at a time, that fit registers
 *
 * Scores and sums are floats, as scalar code has them but for the order: 16 channels of a token are put together from its centroids,
 * once for up to SCORE_VECTORS queries. (A table of partial products for each query and sub-vector, as VecInfer has it, takes as many
 * loads, does not stay in L1 and has to be filled first: docs/codecs/vecinfer.md.) Sub-vectors of 2 channels stay with scalar code. */
#ifndef KVFI_OVERLAY_VECTOR_H
#define KVFI_OVERLAY_VECTOR_H

#include "codec/shared/part.h"
#include "cpu/scalar/scalar.h"
#include "gpu/kernels/vector.h"

#include <math.h>

enum { UNIT = 16, UNIT_LANES = UNIT / LANES, TOKENS_AT_ONCE = 4 };

/* ---- search ---------------------------------------------------------------------------------------------------------------------- */

/* Lanes are sub-vectors: x[sub][groups * LANES]. The least distance and its index never leave the registers. */
KVFI_INLINE void nearest_of(int sub, int groups, const float *x, const float *centroids, int32_t k, uint16_t *index)
{
    floats at[16], least[4];
    ints best[4];
    int32_t found[4 * LANES];
    KVFI_UNROLL
    for (int i = 0; i < sub * groups; i++) at[i] = load_lanes(x + i * LANES);
    KVFI_UNROLL
    for (int g = 0; g < groups; g++) least[g] = set_lanes(INFINITY), best[g] = set_ints(0);
    for (int32_t j = 0; j < k; j++, centroids += sub) {
        floats distance[4];
        KVFI_UNROLL
        for (int c = 0; c < sub; c++) {
            const floats centroid = set_lanes(centroids[c]);
            KVFI_UNROLL
            for (int g = 0; g < groups; g++) {
                const floats miss = sub_lanes(at[c * groups + g], centroid), square = mul_lanes(miss, miss);
                distance[g] = c ? add_lanes(distance[g], square) : square;
            }
        }
        KVFI_UNROLL
        for (int g = 0; g < groups; g++) take_lower(distance[g], j, &least[g], &best[g]);
    }
    KVFI_UNROLL
    for (int g = 0; g < groups; g++) store_ints(found + g * LANES, best[g]);
    for (int i = 0; i < groups * LANES; i++) index[i] = (uint16_t)found[i];
}

enum { GROUPS_2 = SEARCH_GROUPS(2), GROUPS_4 = SEARCH_GROUPS(4), GROUPS_8 = SEARCH_GROUPS(8) };

static void nearest_2(const float *x, const float *centroids, int32_t k, uint16_t *index)
{
    nearest_of(2, GROUPS_2, x, centroids, k, index);
}

static void nearest_4(const float *x, const float *centroids, int32_t k, uint16_t *index)
{
    nearest_of(4, GROUPS_4, x, centroids, k, index);
}

static void nearest_8(const float *x, const float *centroids, int32_t k, uint16_t *index)
{
    nearest_of(8, GROUPS_8, x, centroids, k, index);
}

static void vector_nearest(const float *x, int64_t n, int32_t sub, const float *centroids, int32_t k, uint16_t *index)
{
    const int width = LANES * (sub == 2 ? GROUPS_2 : sub == 4 ? GROUPS_4 : GROUPS_8);
    float turned[8 * 4 * LANES] = {0};
    uint16_t found[4 * LANES];
    for (int64_t i = 0; i < n; i += width) {
        const int some = n - i < width ? (int)(n - i) : width;
        for (int j = 0; j < some; j++)
            for (int c = 0; c < sub; c++) turned[c * width + j] = x[(i + j) * sub + c];
        (sub == 2 ? nearest_2 : sub == 4 ? nearest_4 : nearest_8)(turned, centroids, k, found);
        memcpy(index + i, found, (size_t)some * sizeof *index);
    }
}

/* ---- where centroids are --------------------------------------------------------------------------------------------------------- */

/* Where the centroids of the 64 tokens of one sub-vector start, in floats. */
typedef uint16_t run_offsets[KVF_BLOCK];

static void bytes_to_offsets(const uint8_t *run, int sub, uint16_t *at)
{
    for (int t = 0; t < KVF_BLOCK; t++) at[t] = (uint16_t)(run[t] * sub);
}

static void bits_to_offsets(const uint8_t *run, int bits, int sub, uint16_t *at)
{
    uint8_t stream[96 + sizeof(uint32_t)] = {0}; /* the last index may be read with bytes that are not there */
    memcpy(stream, run, kvfi_run_bytes(bits));
    for (int t = 0; t < KVF_BLOCK; t++) {
        const uint8_t *from = stream + t * bits / 8;
        const uint32_t three = (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16;
        at[t] = (uint16_t)((three >> t * bits % 8 & ((1u << bits) - 1)) * (uint32_t)sub);
    }
}

static void offsets_of(const kvf_part *part, const uint8_t *record, int m, uint16_t *at)
{
    const uint8_t *run = record + (size_t)m * kvfi_run_bytes(part->bits);
    if (part->bits == 8)
        bytes_to_offsets(run, part->sub, at);
    else
        bits_to_offsets(run, part->bits, part->sub, at);
}

static const float no_channels[8]; /* what padding decodes to */

/* Where a record's centroids are: of the sub-vectors of `units` times 16 channels, and of `rest` times 4 more. */
typedef struct reading {
    const float *book;
    const run_offsets *at; /* [channels / sub] */
    int units, rest;
} reading;

static reading open_reading(const kvf_part *part, const uint8_t *record, int first, int channels, run_offsets *at)
{
    for (int m = 0; m < channels / part->sub; m++) offsets_of(part, record, first / part->sub + m, at[m]);
    return (reading){part->book, (const run_offsets *)at, channels / UNIT, channels % UNIT / 4};
}

/* The addresses of quads `first` to first + n - 1 of a unit, for one token; from `live` on there are none. */
KVFI_INLINE void quads_of(int sub, const float *book, const run_offsets *at, int live, int first, int n, int t, const float **q)
{
    KVFI_UNROLL
    for (int i = 0; i < n; i++) {
        const int channel = 4 * (first + i);
        q[i] = first + i < live ? book + at[channel / sub][t] + channel % sub : no_channels;
    }
}

/* Part p of a unit, LANES channels of one token. */
KVFI_INLINE floats channels_of(int sub, const float *book, const run_offsets *at, int live, int p, int t)
{
    const float *from[LANES / 4];
    quads_of(sub, book, at, live, p * (LANES / 4), LANES / 4, t, from);
    return from_quads(from);
}

/* ---- scores ---------------------------------------------------------------------------------------------------------------------- */

KVFI_INLINE void score_unit_of(int sub, int nv, const float *book, const run_offsets *at, int live, int t, const float *q,
                               size_t stride, floats sum[SCORE_VECTORS][TOKENS_AT_ONCE])
{
    KVFI_UNROLL
    for (int p = 0; p < UNIT_LANES; p++) {
        floats k[SCORE_VECTORS];
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) k[v] = load_lanes(q + (size_t)v * stride + p * LANES);
        KVFI_UNROLL
        for (int i = 0; i < TOKENS_AT_ONCE; i++) {
            const floats x = channels_of(sub, book, at, live, p, t + i);
            KVFI_UNROLL
            for (int v = 0; v < nv; v++) sum[v][i] = fma_lanes(x, k[v], sum[v][i]);
        }
    }
}

/* The 64 tokens for nv <= SCORE_VECTORS queries. */
KVFI_INLINE void score_of(int sub, int nv, const reading *r, const float *q, size_t stride, float *s)
{
    for (int t = 0; t < KVF_BLOCK; t += TOKENS_AT_ONCE) {
        floats sum[SCORE_VECTORS][TOKENS_AT_ONCE];
        KVFI_UNROLL
        for (int i = 0; i < nv * TOKENS_AT_ONCE; i++) sum[i / TOKENS_AT_ONCE][i % TOKENS_AT_ONCE] = set_lanes(0);
        const run_offsets *at = r->at;
        int u = 0;
        for (; u < r->units; u++, at += UNIT / sub) score_unit_of(sub, nv, r->book, at, 4, t, q + u * UNIT, stride, sum);
        if (r->rest) score_unit_of(sub, nv, r->book, at, r->rest, t, q + u * UNIT, stride, sum);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) sum_lanes4(sum[v], s + v * KVF_BLOCK + t);
    }
}

#define VECTOR_CASE(sub, nv, call)                                                                                               \
    case (sub)*16 + (nv):                                                                                                        \
        call;                                                                                                                    \
        break;
#define VECTOR_CASES(sub, call)                                                                                                  \
    VECTOR_CASE(sub, 1, call(sub, 1))                                                                                            \
    VECTOR_CASE(sub, 2, call(sub, 2)) VECTOR_CASE(sub, 3, call(sub, 3)) VECTOR_CASE(sub, 4, call(sub, 4))

static void score_some(int sub, int nv, const reading *r, const float *q, size_t stride, float *s)
{
#define SCORE(sub, nv) score_of(sub, nv <= SCORE_VECTORS ? nv : 1, r, q, stride, s)
    switch (sub * 16 + nv) {
        VECTOR_CASES(4, SCORE)
        VECTOR_CASES(8, SCORE)
    }
#undef SCORE
}

/* Shares of at most `most`, the last two alike. */
static int vector_take(int left, int most)
{
    return left <= most ? left : left < 2 * most ? (left + 1) / 2 : most;
}

static void vector_score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *s)
{
    run_offsets at[KVFI_DIM_MAX / 4];
    const float *q = prepared;
    const size_t stride = (size_t)part->dim_pad;
    if (part->sub < 4) {
        kvfi_scalar_vector_score(part, record, prepared, n, s);
        return;
    }
    const reading r = open_reading(part, record, 0, part->dim, at);
    for (int v = 0, take; v < n; v += take) {
        take = vector_take(n - v, SCORE_VECTORS);
        score_some(part->sub, take, &r, q + (size_t)v * stride, stride, s + v * KVF_BLOCK);
    }
}

/* ---- sums of values -------------------------------------------------------------------------------------------------------------- */

KVFI_INLINE void mix_unit_of(int sub, int units, int nv, const reading *r, const run_offsets *at, int live, const float *w,
                             float *acc, size_t stride)
{
    floats sum[MIX_VECTORS][MIX_UNITS * UNIT_LANES];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int p = 0; p < units * UNIT_LANES; p++) sum[v][p] = set_lanes(0);
    }
    for (int t = 0; t < KVF_BLOCK; t++) {
        floats k[MIX_VECTORS];
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) k[v] = set_lanes(w[v * KVF_BLOCK + t]);
        KVFI_UNROLL
        for (int p = 0; p < units * UNIT_LANES; p++) {
            const floats x = channels_of(sub, r->book, at, live, p, t);
            KVFI_UNROLL
            for (int v = 0; v < nv; v++) sum[v][p] = fma_lanes(x, k[v], sum[v][p]);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int p = 0; p < units * UNIT_LANES; p++) {
            float *o = acc + (size_t)v * stride + p * LANES;
            store_lanes(o, add_lanes(load_lanes(o), sum[v][p]));
        }
    }
}

/* All channels of nv <= MIX_VECTORS weights. */
KVFI_INLINE void mix_of(int sub, int nv, const reading *r, const float *w, float *acc, size_t stride)
{
    const run_offsets *at = r->at;
    int u = 0;
    for (; u + MIX_UNITS <= r->units; u += MIX_UNITS, at += MIX_UNITS * UNIT / sub)
        mix_unit_of(sub, MIX_UNITS, nv, r, at, 4 * MIX_UNITS, w, acc + u * UNIT, stride);
    for (; u < r->units; u++, at += UNIT / sub) mix_unit_of(sub, 1, nv, r, at, 4, w, acc + u * UNIT, stride);
    if (r->rest) mix_unit_of(sub, 1, nv, r, at, r->rest, w, acc + u * UNIT, stride);
}

static void mix_some(int sub, int nv, const reading *r, const float *w, float *acc, size_t stride)
{
#define MIX(sub, nv) mix_of(sub, nv <= MIX_VECTORS ? nv : 1, r, w, acc, stride)
    switch (sub * 16 + nv) {
        VECTOR_CASES(4, MIX)
        VECTOR_CASES(8, MIX)
    }
#undef MIX
}

static void vector_mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    run_offsets at[KVFI_DIM_MAX / 4];
    if (part->sub < 4) {
        kvfi_scalar_vector_mix(part, record, w, n, acc, stride);
        return;
    }
    const reading r = open_reading(part, record, 0, part->dim, at);
    for (int v = 0, take; v < n; v += take) {
        take = vector_take(n - v, MIX_VECTORS);
        mix_some(part->sub, take, &r, w + v * KVF_BLOCK, acc + (size_t)v * stride, stride);
    }
}

/* ---- tiles ------------------------------------------------------------------------------------------------------------------------- */

/* Sub-vector m of the keys: `sub` rows of 64 tokens. */
static void unfold_keys(const kvf_part *part, const uint16_t *at, float *tile)
{
    for (int j = 0; j < part->sub; j += 4)
        for (int t = 0; t < KVF_BLOCK; t += 4) {
            const float *from[4];
            for (int i = 0; i < 4; i++) from[i] = part->book + at[t + i] + j;
            transpose_quads(from, tile + j * KVF_BLOCK + t, KVF_BLOCK);
        }
}

static void unfold_values(const kvf_part *part, const uint16_t *at, float *tile)
{
    const size_t bytes = (size_t)part->sub * sizeof *tile;
    for (int t = 0; t < KVF_BLOCK; t++, tile += part->dim_pad) {
        if (part->sub == 4)
            memcpy(tile, part->book + at[t], 4 * sizeof *tile);
        else
            memcpy(tile, part->book + at[t], bytes);
    }
}

static void vector_unfold(const kvf_part *part, const void *record, float *tile)
{
    uint16_t at[KVF_BLOCK];
    if (part->sub < 4) {
        kvfi_scalar_vector_unfold(part, record, tile);
        return;
    }
    memset(tile, 0, part->dim < part->dim_pad ? (size_t)part->dim_pad * KVF_BLOCK * sizeof *tile : 0);
    for (int m = 0; m < part->dim / part->sub; m++) {
        offsets_of(part, record, m, at);
        if (part->side == KVF_K)
            unfold_keys(part, at, tile + m * part->sub * KVF_BLOCK);
        else
            unfold_values(part, at, tile + m * part->sub);
    }
}

static void vector_entries(kvfi_kernels *k)
{
    k->nearest = vector_nearest;
    k->kind[KVF_KIND_VECTOR].score = vector_score;
    k->kind[KVF_KIND_VECTOR].mix = vector_mix;
    k->kind[KVF_KIND_VECTOR].unfold = vector_unfold;
}

#endif
