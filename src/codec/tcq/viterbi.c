/* SPDX-License-Identifier: MIT
 * Viterbi's algorithm. The 2^bits states that may follow a state are neighbours, and follow 2^bits states that are 256 / 2^bits
 * apart. All of them share the best of those, so a step takes 256 comparisons and 256 squared differences whatever the bits. Steps
 * are a kernel of each instruction set; the way back is here. */
#include "codec/tcq/viterbi.h"

#include "codec/shared/part.h"

#include <string.h>

enum { STATES = KVFI_TRELLIS_STATES, LANES = KVFI_TRELLIS_LANES, WRAP = KVFI_TRELLIS_WRAP };

#define BARRED 1e30f /* cost of a state that no path may start in: far above any, far below infinity */

typedef struct walk {
    kvfi_paths steps;
    int32_t bits;
    const float *level;
    float cost[STATES][LANES];
    kvfi_came_from from[KVFI_DIM_MAX];
} walk;

static void run(walk *w, int32_t n, const float (*y)[LANES])
{
    w->steps(w->bits, w->level, n, y, w->cost, w->from);
}

/* The states before state[] on the paths of all lanes. */
static inline __attribute__((always_inline)) void before_of(int bits, const uint32_t (*from)[LANES], const uint8_t *state,
                                                            uint8_t *back)
{
    for (int i = 0; i < LANES; i++) {
        const int h = state[i] >> bits;
        uint32_t which = 0;
        for (int j = 0; j < bits; j++) which |= (from[h / 32 * bits + j][i] >> h % 32 & 1) << j;
        back[i] = (uint8_t)(which << (8 - bits) | (uint32_t)h);
    }
}

static void before(int bits, const uint32_t (*from)[LANES], const uint8_t *state, uint8_t *back)
{
    switch (bits) {
    case 1: before_of(1, from, state, back); break;
    case 2: before_of(2, from, state, back); break;
    case 3: before_of(3, from, state, back); break;
    case 4: before_of(4, from, state, back); break;
    }
}

/* Of equals the lowest. */
static void cheapest(const float (*cost)[LANES], uint8_t *state)
{
    float least[LANES];
    memcpy(least, cost[0], sizeof least);
    memset(state, 0, LANES);
    for (int s = 1; s < STATES; s++)
        for (int i = 0; i < LANES; i++)
            if (cost[s][i] < least[i]) least[i] = cost[s][i], state[i] = (uint8_t)s;
}

/* The states between the last channel and the first, on the best way through the channels around that place. */
static void choose_ends(walk *w, int32_t dim, const float (*y)[LANES], uint8_t end[LANES])
{
    float around[2 * WRAP][LANES];
    for (int j = 0; j < 2 * WRAP; j++) memcpy(around[j], y[(j - WRAP + WRAP * dim) % dim], sizeof around[j]);
    memset(w->cost, 0, sizeof w->cost);
    run(w, WRAP, (const float(*)[LANES])around);
    run(w, WRAP, (const float(*)[LANES])around + WRAP);
    cheapest((const float(*)[LANES])w->cost, end);
    for (int j = WRAP; j--;) before(w->bits, w->from[j], end, end);
}

void kvfi_trellis_paths(kvfi_paths steps, int32_t bits, const float level[STATES], int32_t dim, const float (*y)[LANES],
                        uint8_t (*state)[LANES])
{
    walk w;
    uint8_t end[LANES];
    w.steps = steps, w.bits = bits, w.level = level;
    choose_ends(&w, dim, y, end);
    for (int s = 0; s < STATES; s++)
        for (int i = 0; i < LANES; i++) w.cost[s][i] = s == end[i] ? 0 : BARRED;
    run(&w, dim, y);
    memcpy(state[dim - 1], end, LANES);
    for (int32_t d = dim - 1; d; d--) before(bits, (const uint32_t(*)[LANES])w.from[d], state[d], state[d - 1]);
}
