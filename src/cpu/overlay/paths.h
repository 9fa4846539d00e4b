/* SPDX-License-Identifier: MIT
 * Steps through the bit-shift trellis on any overlay of 4 or 8 lanes. A register holds one state of LANES vectors, so that the cheapest
 * state before a group is a minimum of whole registers and its cost is where all states of the group want it: nothing moves between
 * lanes, as it must where lanes are states (best costs are spread over 2^bits lanes each), which took 1.2 to 1.4 times as long with AVX2.
 *
 * The including file has a simd.h with floats, ints, LANES, load_lanes(p), store_lanes(p, x), set_lanes(f), set_ints(i), store_ints(p, x),
 * add_lanes, sub_lanes and mul_lanes, and defines before it, static and force-inlined:
 *   lower(a, b)        ints: all ones where a < b
 *   least_of(a, b)     a where a < b, else b
 *   either(m, a, b)    ints: a where m, else b
 *   append(x, m)       ints: 2 x, and 1 more where m */
#ifndef KVFI_OVERLAY_PATHS_H
#define KVFI_OVERLAY_PATHS_H

#include "cpu/kernels.h"

#include <string.h>

enum { STATES = KVFI_TRELLIS_STATES };

typedef float costs[KVFI_TRELLIS_LANES];

/* The least of 2^bits costs, a 2^bits-th of the states apart; bit j of its number is appended to number[j]. Winners of pairs meet
 * again; the first of a pair, the lower number, wins a draw. */
KVFI_INLINE floats cheapest(int bits, const costs *cost, ints *number)
{
    floats best[16];
    ints bit[4][8];
    const int n = 1 << bits;
    KVFI_UNROLL
    for (int k = 0; k < n; k++) best[k] = load_lanes(cost[k << (8 - bits)]);
    KVFI_UNROLL
    for (int j = 0; j < bits; j++) {
        const int pairs = n >> (j + 1);
        KVFI_UNROLL
        for (int k = 0; k < pairs; k++) {
            const ints second = lower(best[2 * k + 1], best[2 * k]);
            best[k] = least_of(best[2 * k + 1], best[2 * k]);
            KVFI_UNROLL
            for (int i = 0; i < j; i++) bit[i][k] = either(second, bit[i][2 * k + 1], bit[i][2 * k]);
            bit[j][k] = second;
        }
    }
    KVFI_UNROLL
    for (int j = 0; j < bits; j++) number[j] = append(number[j], bit[j][0]);
    return best[0];
}

/* The groups whose choices share words, h to h + 31 or all there are, backwards: what is appended last is bit 0. */
KVFI_INLINE void some_groups(int bits, const float *level, floats y, const costs *cost, costs *next, int h, kvfi_came_from from)
{
    const int n = STATES >> bits < 32 ? STATES >> bits : 32, codes = 1 << bits;
    ints number[4];
    KVFI_UNROLL
    for (int j = 0; j < bits; j++) number[j] = set_ints(0);
    for (int g = h + n - 1; g >= h; g--) {
        const floats best = cheapest(bits, cost + g, number);
        const float *to = level + (g << bits);
        costs *out = next + (g << bits);
        KVFI_UNROLL
        for (int code = 0; code < codes; code++) {
            const floats miss = sub_lanes(y, set_lanes(to[code]));
            store_lanes(out[code], add_lanes(best, mul_lanes(miss, miss)));
        }
    }
    KVFI_UNROLL
    for (int j = 0; j < bits; j++) store_ints((int32_t *)from[h / 32 * bits + j], number[j]);
}

KVFI_INLINE void paths_step(int bits, const float *level, const float *y, const costs *cost, costs *next, kvfi_came_from from)
{
    for (int i = 0; i < KVFI_TRELLIS_LANES; i += LANES)
        for (int h = 0; h < STATES >> bits; h += 32)
            some_groups(bits, level, load_lanes(y + i), (const costs *)(cost[0] + i), (costs *)(next[0] + i), h,
                        (uint32_t(*)[KVFI_TRELLIS_LANES])(from[0] + i));
}

KVFI_INLINE void paths_of(int bits, const float *level, int32_t n, const costs *y, costs *cost, kvfi_came_from *from)
{
    costs other[STATES], *now = cost, *next = other;
    for (int32_t d = 0; d < n; d++) {
        paths_step(bits, level, y[d], (const costs *)now, next, from[d]);
        costs *was = now;
        now = next, next = was;
    }
    if (now != cost) memcpy(cost, now, sizeof other);
}

/* A function each, so that each has the registers to itself. */
#define PATHS_OF(bits)                                                                                                           \
    static void paths_##bits(const float *level, int32_t n, const costs *y, costs *cost, kvfi_came_from *from)                   \
    {                                                                                                                            \
        paths_of(bits, level, n, y, cost, from);                                                                                 \
    }
PATHS_OF(1)
PATHS_OF(2)
PATHS_OF(3)
PATHS_OF(4)
#undef PATHS_OF

static void paths(int32_t bits, const float *level, int32_t n, const costs *y, costs *cost, kvfi_came_from *from)
{
    (bits == 1 ? paths_1 : bits == 2 ? paths_2 : bits == 3 ? paths_3 : paths_4)(level, n, y, cost, from);
}

#endif
