/* SPDX-License-Identifier: MIT
 * Inputs of the codec tests: seeded, the same on every machine (no libm function but exact ones), every value an f16 number.
 * Nothing here comes from the library. */
#ifndef TESTS_CODEC_INPUTS_H
#define TESTS_CODEC_INPUTS_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvfold.h"

#define CI_TOKENS 64
#define CI_DIM_MAX 1024

/* Head sizes: those of models, odd ones, and the ends. */
static const int ci_dims[] = {1, 2, 8, 12, 24, 40, 64, 72, 80, 96, 112, 128, 192, 256, 512, 576};
enum { CI_DIMS = sizeof ci_dims / sizeof *ci_dims };

static inline uint64_t ci_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* In [-1, 1), a multiple of 2^-23. */
static inline double ci_uniform(uint64_t *state)
{
    return (double)(int32_t)(ci_next(state) >> 40) * 0x1p-23 - 1.0;
}

/* Nearly normal, deviation 1: the sum of twelve uniform numbers. */
static inline double ci_gauss(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += ci_uniform(state);
    return sum / 2;
}

/* Nearest binary16 number, ties to even, saturated at 65504: adding 1.5 * 2^52 units of its last place rounds to those. */
static inline double ci_half(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0x7ff0000000000000u; /* of the power of two at or below x; 1024 units reach from there to the next */
    if (bits < (uint64_t)(1023 - 14) << 52) bits = (uint64_t)(1023 - 14) << 52;
    if (bits > (uint64_t)(1023 + 15) << 52) bits = (uint64_t)(1023 + 15) << 52;
    double big;
    memcpy(&big, &bits, sizeof big);
    big *= 0x1.8p52 / 1024;
    const double y = (x + big) - big;
    return y == 0 ? copysign(y, x) : y > 65504 ? 65504 : y < -65504 ? -65504 : y;
}

/* The value of a binary16 pattern, from the standard's definition. */
static inline double ci_half_value(unsigned h)
{
    int e = (int)(h >> 10 & 31), f = (int)(h & 1023);
    double m = e == 31 ? (f ? NAN : INFINITY) : e ? ldexp(1024 + f, e - 25) : ldexp(f, -24);
    return h >> 15 ? -m : m;
}

#define CI_KINDS(X)                                                                                                              \
    X(GAUSS, "normal, deviation 1")                                                                                              \
    X(OUTLIER, "normal, one channel a thousand times larger")                                                                    \
    X(BIASED, "normal, a large constant added to every fifth channel")                                                           \
    X(ZERO_ROW, "normal, tokens 5 and 63 all zero")                                                                              \
    X(ZERO_CHANNEL, "normal, the first and the last channel all zero")                                                           \
    X(ZERO, "all zero")                                                                                                          \
    X(PLUS_100, "all 100")                                                                                                       \
    X(MINUS_100, "all -100")                                                                                                     \
    X(CLOSE, "100 and its upper neighbour 100.0625")                                                                             \
    X(TINY, "a few multiples of 2^-24")                                                                                          \
    X(SUBNORMAL, "multiples of 2^-24 up to 2^-15")                                                                               \
    X(LARGE, "65504 and -65504 by turns and at random")                                                                          \
    X(TIES, "small multiples of one half: many quotients end in exactly one half")                                               \
    X(SIGNED_ZERO, "+0 and -0")

typedef enum ci_kind {
#define CI_ENUM(name, text) CI_##name,
    CI_KINDS(CI_ENUM)
#undef CI_ENUM
        CI_KIND_COUNT
} ci_kind;

static const char *const ci_kind_name[] = {
#define CI_NAME(name, text) text,
    CI_KINDS(CI_NAME)
#undef CI_NAME
};

static inline double ci_value(ci_kind kind, int t, int c, int dim, uint64_t *state)
{
    double g = ci_gauss(state), u = ci_uniform(state);
    switch (kind) {
    case CI_OUTLIER: return c == dim / 3 ? 1000 * g : g;
    case CI_BIASED: return c % 5 == 0 ? g + 40 : g;
    case CI_ZERO_ROW: return t == 5 || t == 63 ? 0 : g;
    case CI_ZERO_CHANNEL: return c == 0 || c == dim - 1 ? 0 : g;
    case CI_ZERO: return 0;
    case CI_PLUS_100: return 100;
    case CI_MINUS_100: return -100;
    case CI_CLOSE: return u < 0 ? 100 : 100.0625;
    case CI_TINY: return nearbyint(u * 3) * 0x1p-24;
    case CI_SUBNORMAL: return nearbyint(u * 512) * 0x1p-24;
    case CI_LARGE: return (t + c) % 3 == 0 ? -65504 : u < 0.5 ? 65504 : u * 65504;
    case CI_TIES: return nearbyint(u * 30) / 2;
    case CI_SIGNED_ZERO: return u < 0 ? -0.0 : 0.0;
    default: return g;
    }
}

/* x[64][dim] */
static inline void ci_fill(float *x, int dim, ci_kind kind, uint64_t seed)
{
    uint64_t state = seed * 1000003 + (uint64_t)dim;
    for (int t = 0; t < CI_TOKENS; t++)
        for (int c = 0; c < dim; c++) x[t * dim + c] = (float)ci_half(ci_value(kind, t, c, dim, &state));
}

/* 64-byte aligned and zero; free() releases it. */
static inline void *ci_alloc(size_t bytes)
{
    size_t size = (bytes + 127) / 64 * 64;
    void *p = aligned_alloc(64, size);
    if (!p) abort();
    return memset(p, 0, size);
}

/* Copies the next word of *list into spec[64]; 0 when there is none. */
static inline int ci_word(const char **list, char spec[64])
{
    while (**list == ' ') ++*list;
    size_t n = strcspn(*list, " ");
    if (!n || n > 63) return 0;
    memcpy(spec, *list, n);
    spec[n] = '\0';
    *list += n;
    return 1;
}

/* Tests over every spec, head size and kind of input take a share of them, another for each spec: each size and each kind still meets
 * every spec. Under a sanitizer or an emulator, several times slower, the share is
 * smaller. */
#if defined(__SANITIZE_ADDRESS__) || defined(TESTS_EMULATED)
enum { CI_SHARE = 23 };
#else
enum { CI_SHARE = 4 };
#endif
static inline int ci_takes(const char *spec, kvf_side side, int d, int kind)
{
    unsigned n = (unsigned)side;
    for (const char *c = spec; *c; c++) n = n * 31 + (unsigned char)*c;
    return (n + (unsigned)d + (unsigned)kind) % CI_SHARE == 0;
}

/* Has the spec a meaning for that head size? rot=h wants an even one, outliers=N more than N channels, a trellis 8, product codes whole
 * sub-vectors. */
static inline int ci_fits(const char *spec, int dim)
{
    const char *outliers = strstr(spec, "outliers=");
    const char *rot = strstr(spec, "rot=h");
    if (rot && dim % 2 && (!rot[5] || rot[5] == ',')) return 0;
    if (!strncmp(spec, "tcq", 3) && (spec[3] - '0') * dim < 32) return 0;
    if (!strncmp(spec, "vecinfer", 8) && dim % (strstr(spec, "sub=2") ? 2 : !strncmp(spec, "vecinfer2", 9) ? 4 : 8)) return 0;
    return !outliers || atoi(outliers + 9) < dim;
}

/* Records that are a sum of code matrices (prod, qjl, outliers told apart): a value has no code of its own. */
static inline int ci_sum(const char *spec)
{
    return !strncmp(spec, "prod", 4) || !strncmp(spec, "qjl", 3) || strstr(spec, "outliers=");
}

/* Product codes: centroids come from a calibration, and a value has no code of its own. */
static inline int ci_product(const char *spec)
{
    return !strncmp(spec, "vecinfer", 8);
}

/* Calls fn for every example of every codec and each of its sides. */
static inline int ci_each_spec(void (*fn)(const char *spec, kvf_side side, void *user), void *user)
{
    int n = 0;
    kvf_codec_info info;
    for (int32_t i = 0; kvf_codec_list(i, &info) == KVF_OK; i++)
        for (int side = KVF_K; side <= KVF_V; side++) {
            const char *list = info.examples;
            char spec[64];
            while (info.sides >> side & 1 && ci_word(&list, spec)) {
                fn(spec, (kvf_side)side, user);
                n++;
            }
        }
    return n;
}

/* FNV-1a, 64 bits. */
static inline uint64_t ci_hash(const void *data, size_t n, uint64_t hash)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}
#define CI_HASH_START 0xcbf29ce484222325u

#endif
