/* SPDX-License-Identifier: MIT
 * Random numbers of the instrument: seeded, the same everywhere. */
#ifndef KVFOLD_CLI_MEASURE_RANDOM_H
#define KVFOLD_CLI_MEASURE_RANDOM_H

#include <stdint.h>

static inline uint64_t measure_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u); /* splitmix64, Steele, Lea and Flood 2014 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline int measure_below(uint64_t *state, int n)
{
    return (int)((measure_next(state) >> 32) * (uint64_t)n >> 32);
}

static inline void measure_shuffle(int *order, int n, uint64_t *state)
{
    for (int i = n - 1; i > 0; i--) {
        int j = measure_below(state, i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

#endif
