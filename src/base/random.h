/* SPDX-License-Identifier: MIT
 * Random numbers by counter: entry `index` of stream `stream` of seed `seed` is a function of the three alone, so entries may be
 * made in any order, on any thread or device, and nothing has to be kept. Integer arithmetic, and for normal numbers the exact
 * functions of base/exact.h: the same bits on every target. Not for secrets.
 *
 *   mix(z)                       the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)
 *   start(seed, stream)          mix(mix(seed + G) + stream * G)          G = 0x9e3779b97f4a7c15, 2^64 over the golden ratio
 *   bits(seed, stream, index)    mix(start(seed, stream) + (index + 1) * G)
 */
#ifndef KVFI_RANDOM_H
#define KVFI_RANDOM_H

#include "base/exact.h"

#include <math.h>
#include <stdint.h>

/* Who draws from which stream. A user that needs several takes `first + i`; those are 2^16 apart. */
enum {
    KVFI_STREAM_ROTATION = 0,     /* signs of the rotation before coding */
    KVFI_STREAM_SKETCH = 1 << 16, /* sketches of signs: codec/shared/sketch.h */
    KVFI_STREAM_EVICT = 2 << 16,  /* the policy `random` */
    KVFI_STREAM_KMEANS = 3 << 16, /* codebooks: calib/kmeans.h */
};

#define KVFI_RANDOM_STEP 0x9e3779b97f4a7c15u

static inline uint64_t kvfi_random_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Where a stream starts: to be computed once when many entries are drawn. */
static inline uint64_t kvfi_random_start(uint64_t seed, uint32_t stream)
{
    return kvfi_random_mix(kvfi_random_mix(seed + KVFI_RANDOM_STEP) + stream * KVFI_RANDOM_STEP);
}

/* 64 random bits. */
static inline uint64_t kvfi_random_bits(uint64_t start, uint64_t index)
{
    return kvfi_random_mix(start + (index + 1) * KVFI_RANDOM_STEP);
}

/* Sign number `index`, 1 for minus: bit index % 64 of kvfi_random_bits(start, index / 64). */
static inline uint32_t kvfi_random_minus(uint64_t start, uint64_t index)
{
    return (uint32_t)(kvfi_random_bits(start, index / 64) >> index % 64 & 1);
}

/* Uniform in (0, 1): the middle of one of 2^53 equal cells, rounded to double. */
static inline double kvfi_random_uniform(uint64_t start, uint64_t index)
{
    return ((double)(kvfi_random_bits(start, index) >> 11) + 0.5) * 0x1p-53;
}

/* Normal numbers 2 * pair and 2 * pair + 1 (Box and Muller, 1958), from uniform numbers of the same indices. Independent, mean 0,
 * variance 1. */
static inline void kvfi_random_normals(uint64_t start, uint64_t pair, double normal[2])
{
    const double u = kvfi_random_uniform(start, 2 * pair), v = kvfi_random_uniform(start, 2 * pair + 1);
    const double radius = sqrt(-0x1.62e42fefa39efp+0 * kvfi_log2(u)); /* 2 ln 2 */
    double sine, cosine;
    kvfi_sincos(0x1.921fb54442d18p+2 * v, &sine, &cosine); /* 2 pi */
    normal[0] = radius * cosine, normal[1] = radius * sine;
}

#endif
