/* SPDX-License-Identifier: MIT
 * Viterbi's algorithm. The 2^bits states that may follow a state are neighbours, and follow 2^bits states that are 256 / 2^bits
 * apart. All of them share the best of those, so a step takes 256 comparisons and 256 squared differences whatever the bits. */
#include "codec/tcq/viterbi.h"

#include "codec/shared/part.h"

#include <string.h>

enum { STATES = KVFI_TRELLIS_STATES, LANES = KVFI_TRELLIS_LANES, WRAP = KVFI_TRELLIS_WRAP, WORDS = 4 };

#define BARRED 1e30f /* cost of a state that no path may start in: far above any, far below infinity */

/* Which of the 2^bits states came before, for each group of states that follow the same ones: packed, a word a lane. */
typedef uint32_t came_from[WORDS][LANES];

typedef struct walk {
    int32_t bits;
    const float *level;
    float cost[2][STATES][LANES];
    int now; /* of the two */
    came_from from[KVFI_DIM_MAX];
} walk;

static inline __attribute__((always_inline)) int width_of(int bits)
{
    return bits == 3 ? 4 : bits;
}

/* The best state before group h, and its number in *from, already in place. */
static inline __attribute__((always_inline)) void choose(int bits, const float (*cost)[LANES], int h, float *best, uint32_t *from)
{
    const int groups = STATES >> bits, shift = h * width_of(bits) % 32;
    for (int i = 0; i < LANES; i++) {
        float least = cost[h][i];
        uint32_t which = 0;
        for (int k = 1; k < 1 << bits; k++) {
            const float other = cost[k * groups + h][i];
            which = other < least ? (uint32_t)k : which;
            least = other < least ? other : least;
        }
        best[i] = least;
        from[i] |= which << shift;
    }
}

static inline __attribute__((always_inline)) void step_of(int bits, const float *level, const float (*cost)[LANES],
                                                          const float *y, float (*next)[LANES], came_from from)
{
    const int groups = STATES >> bits, per = 32 / width_of(bits);
    memset(from, 0, sizeof(came_from));
    for (int h = 0; h < groups; h++) {
        float best[LANES];
        choose(bits, cost, h, best, from[h / per]);
        for (int s = h << bits; s < (h + 1) << bits; s++)
            for (int i = 0; i < LANES; i++) {
                const float miss = y[i] - level[s];
                next[s][i] = best[i] + miss * miss;
            }
    }
}

static void step(walk *w, const float *y, came_from from)
{
    const float(*cost)[LANES] = (const float(*)[LANES])w->cost[w->now];
    float(*next)[LANES] = w->cost[!w->now];
    switch (w->bits) {
    case 1: step_of(1, w->level, cost, y, next, from); break;
    case 2: step_of(2, w->level, cost, y, next, from); break;
    case 3: step_of(3, w->level, cost, y, next, from); break;
    case 4: step_of(4, w->level, cost, y, next, from); break;
    }
    w->now = !w->now;
}

/* The state before `state` on the path of lane i. */
static int before(const walk *w, came_from from, int state, int i)
{
    const int h = state >> w->bits, width = width_of(w->bits), per = 32 / width;
    const int which = (int)(from[h / per][i] >> h % per * width & ((1u << w->bits) - 1));
    return which << (8 - w->bits) | h;
}

static int cheapest(const walk *w, int i)
{
    int best = 0;
    for (int s = 1; s < STATES; s++)
        if (w->cost[w->now][s][i] < w->cost[w->now][best][i]) best = s;
    return best;
}

/* The states between the last channel and the first, on the best way through the channels around that place. */
static void choose_ends(walk *w, int32_t dim, const float (*y)[LANES], uint8_t end[LANES])
{
    memset(w->cost[w->now], 0, sizeof w->cost[0]);
    for (int j = 0; j < 2 * WRAP; j++) step(w, y[(j - WRAP + WRAP * dim) % dim], w->from[j < WRAP ? 0 : j - WRAP]);
    for (int i = 0; i < LANES; i++) {
        int s = cheapest(w, i);
        for (int j = WRAP; j--;) s = before(w, w->from[j], s, i);
        end[i] = (uint8_t)s;
    }
}

void kvfi_trellis_paths(int32_t bits, const float level[STATES], int32_t dim, const float (*y)[LANES], uint8_t (*state)[LANES])
{
    walk w;
    uint8_t end[LANES];
    w.bits = bits, w.level = level, w.now = 0;
    choose_ends(&w, dim, y, end);
    for (int s = 0; s < STATES; s++)
        for (int i = 0; i < LANES; i++) w.cost[w.now][s][i] = s == end[i] ? 0 : BARRED;
    for (int d = 0; d < dim; d++) step(&w, y[d], w.from[d]);
    for (int i = 0; i < LANES; i++)
        for (int d = dim, s = end[i]; d--; s = before(&w, w.from[d], s, i)) state[d][i] = (uint8_t)s;
}
