/* SPDX-License-Identifier: MIT
 * Steps of coding a vector on overlays that have a shuffle of floats by 16 indices: the sums and comparisons of the scalar code, in its
 * order, nothing fused, so every bit is the same.
 *
 * The including file has a simd.h with floats, ints, LANES (8 or 16), load_lanes, store_lanes, set_lanes, add_lanes, mul_lanes, set_ints,
 * and defines before it, static and force-inlined:
 *   widen_lanes(half), narrow_lanes(x, half)     LANES numbers from and to f16, to nearest even
 *   saturated(x)                                 magnitudes above 65504 become 65504, a NaN stays
 *   pick(p, i)                                   p[i] of 16 floats at p, i < 16
 *   fetch_lanes(p, i)                            p[i]
 *   step_up(k, y, b, step)                       ints: k + step where y > b, else k
 *   add_ints(k, step), double_ints(k, n)         k + step; k << n
 *   store_bytes(p, k)                            the lowest byte of each lane */
#ifndef KVFI_OVERLAY_CODING_H
#define KVFI_OVERLAY_CODING_H

#include "base/half.h"
#include "cpu/kernels.h"

#include <string.h>

enum { PARTS = 16 / LANES, PICKED_BITS = 4 };

/* Partial sum i % 16; what is missing at the end counts as 0, which changes no partial sum: none is ever -0. */
static float dot16(const float *a, const float *b, int32_t n)
{
    floats sum[PARTS];
    float last[2][16] = {{0}}, part[16];
    int32_t i = 0;
    KVFI_UNROLL
    for (int p = 0; p < PARTS; p++) sum[p] = set_lanes(0);
    for (; i + 16 <= n; i += 16) {
        KVFI_UNROLL
        for (int p = 0; p < PARTS; p++)
            sum[p] = add_lanes(sum[p], mul_lanes(load_lanes(a + i + p * LANES), load_lanes(b + i + p * LANES)));
    }
    if (i < n) {
        memcpy(last[0], a + i, (size_t)(n - i) * sizeof *a);
        memcpy(last[1], b + i, (size_t)(n - i) * sizeof *b);
        KVFI_UNROLL
        for (int p = 0; p < PARTS; p++)
            sum[p] = add_lanes(sum[p], mul_lanes(load_lanes(last[0] + p * LANES), load_lanes(last[1] + p * LANES)));
    }
    KVFI_UNROLL
    for (int p = 0; p < PARTS; p++) store_lanes(part + p * LANES, sum[p]);
    KVFI_UNROLL
    for (int half = 8; half; half /= 2) {
        KVFI_UNROLL
        for (int j = 0; j < half; j++) part[j] += part[j + half];
    }
    return part[0];
}

static void widen_halves(const uint16_t *half, int32_t n, float *x)
{
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) store_lanes(x + i, widen_lanes(half + i));
    for (; i < n; i++) x[i] = kvfi_half_to_float(half[i]);
}

static void narrow_halves(const float *x, int32_t n, uint16_t *half)
{
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) narrow_lanes(saturated(load_lanes(x + i)), half + i);
    for (; i < n; i++) half[i] = kvfi_half_saturated(x[i]);
}

/* Every 2^(bits - 4)-th bound stays in registers for the first four steps; those between are fetched. */
KVFI_INLINE ints rank_lanes(int bits, const float *coarse, const float *bound, floats y)
{
    const int picked = bits < PICKED_BITS ? bits : PICKED_BITS, rest = bits - picked;
    ints k = set_ints(0);
    KVFI_UNROLL
    for (int step = 1 << (picked - 1); step; step /= 2) k = step_up(k, y, pick(coarse, add_ints(k, step - 1)), step);
    k = double_ints(k, rest);
    for (int step = 1 << rest >> 1; step; step /= 2) k = step_up(k, y, fetch_lanes(bound, add_ints(k, step - 1)), step);
    return k;
}

KVFI_INLINE void rank_some(int bits, const float *coarse, const kvfi_ranks *r, floats y, uint8_t *codes, float *decoded)
{
    const ints k = rank_lanes(bits, coarse, r->bound, y);
    store_bytes(codes, k);
    store_lanes(decoded, bits <= PICKED_BITS ? pick(r->level, k) : fetch_lanes(r->level, k));
}

KVFI_INLINE void rank_of(int bits, const kvfi_ranks *r, const float *x, float factor, int32_t n, uint8_t *codes, float *decoded)
{
    const int apart = bits < PICKED_BITS ? 1 : 1 << (bits - PICKED_BITS);
    float coarse[16] = {0}, last[LANES] = {0}, level[LANES];
    uint8_t code[LANES];
    int32_t i = 0;
    for (int j = 0; j < 16 && (j + 1) * apart < 1 << bits; j++) coarse[j] = r->bound[(j + 1) * apart - 1];
    for (; i + LANES <= n; i += LANES)
        rank_some(bits, coarse, r, mul_lanes(load_lanes(x + i), set_lanes(factor)), codes + i, decoded + i);
    if (i == n) return;
    memcpy(last, x + i, (size_t)(n - i) * sizeof *x);
    rank_some(bits, coarse, r, mul_lanes(load_lanes(last), set_lanes(factor)), code, level);
    memcpy(codes + i, code, (size_t)(n - i));
    memcpy(decoded + i, level, (size_t)(n - i) * sizeof *level);
}

static void rank(const kvfi_ranks *r, const float *x, float factor, int32_t n, uint8_t *codes, float *decoded)
{
    switch (r->bits) {
    case 1: rank_of(1, r, x, factor, n, codes, decoded); break;
    case 2: rank_of(2, r, x, factor, n, codes, decoded); break;
    case 3: rank_of(3, r, x, factor, n, codes, decoded); break;
    case 4: rank_of(4, r, x, factor, n, codes, decoded); break;
    default: rank_of(r->bits, r, x, factor, n, codes, decoded);
    }
}

static void put_coding(kvfi_kernels *k)
{
    k->dot16 = dot16, k->widen = widen_halves, k->narrow = narrow_halves, k->rank = rank;
}

#endif
