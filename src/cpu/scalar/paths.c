/* SPDX-License-Identifier: MIT
 * Steps through the bit-shift trellis, one choice after the other. */
#include "cpu/scalar/scalar.h"

#include <string.h>

enum { STATES = KVFI_TRELLIS_STATES, LANES = KVFI_TRELLIS_LANES, SOME = 4 };

/* Bits are a constant, SOME lanes fill a register of the least processor, and states are numbered by sums, not by bits: so the compiler
 * vectorises it at -O2. */
#define INLINE static inline __attribute__((always_inline))

/* The cheapest state before group h, and its number in *from, for lanes first to first + SOME - 1. */
INLINE void choose(int bits, const float (*cost)[LANES], int h, int first, float *best, uint32_t (*from)[LANES])
{
    uint32_t number[SOME];
    for (int i = 0; i < SOME; i++) {
        float least = cost[h][first + i];
        uint32_t which = 0;
        for (int k = 1; k < 1 << bits; k++) {
            const float other = cost[k * (STATES >> bits) + h][first + i];
            which = other < least ? (uint32_t)k : which;
            least = other < least ? other : least;
        }
        best[i] = least;
        number[i] = which;
    }
    for (int j = 0; j < bits; j++)
        for (int i = 0; i < SOME; i++) from[h / 32 * bits + j][first + i] |= (number[i] >> j & 1) << h % 32;
}

INLINE void step_of(int bits, const float *level, const float *y, int first, const float (*cost)[LANES], float (*next)[LANES],
                    uint32_t (*from)[LANES])
{
    for (int h = 0; h < STATES >> bits; h++) {
        float best[SOME];
        choose(bits, cost, h, first, best, from);
        for (int s = h << bits; s < (h + 1) << bits; s++)
            for (int i = 0; i < SOME; i++) {
                const float miss = y[first + i] - level[s];
                next[s][first + i] = best[i] + miss * miss;
            }
    }
}

static void step(int bits, const float *level, const float *y, const float (*cost)[LANES], float (*next)[LANES],
                 uint32_t (*from)[LANES])
{
    memset(from, 0, sizeof(kvfi_came_from));
    for (int first = 0; first < LANES; first += SOME) switch (bits) {
        case 1: step_of(1, level, y, first, cost, next, from); break;
        case 2: step_of(2, level, y, first, cost, next, from); break;
        case 3: step_of(3, level, y, first, cost, next, from); break;
        case 4: step_of(4, level, y, first, cost, next, from); break;
        }
}

void kvfi_scalar_paths(int32_t bits, const float level[STATES], int32_t n, const float (*y)[LANES], float (*cost)[LANES],
                       kvfi_came_from *from)
{
    float next[STATES][LANES];
    for (int32_t d = 0; d < n; d++) {
        step(bits, level, y[d], (const float(*)[LANES])cost, next, from[d]);
        memcpy(cost, next, sizeof next);
    }
}
