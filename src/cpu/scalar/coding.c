/* SPDX-License-Identifier: MIT
 * Steps of coding a vector. Inner loops have a constant length and nothing in them depends on what came before, so the compiler
 * vectorises them for any processor; NEON runs these. */
#include "base/half.h"
#include "cpu/scalar/scalar.h"

#include <string.h>

enum { LANES = 16 };
#define INLINE static inline __attribute__((always_inline))

float kvfi_scalar_dot16(const float *a, const float *b, int32_t n)
{
    float sum[LANES] = {0};
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int32_t j = 0; j < LANES; j++) sum[j] += a[i + j] * b[i + j];
    for (; i < n; i++) sum[i % LANES] += a[i] * b[i];
    for (int32_t half = LANES / 2; half; half /= 2)
        for (int32_t j = 0; j < half; j++) sum[j] += sum[j + half];
    return sum[0];
}

/* kvfi_half_to_float without branches. */
INLINE uint32_t widened(uint32_t h)
{
    const uint32_t sign = (h & 0x8000) << 16, a = (h & 0x7fff) << 13, normal = a + (112u << 23);
    const uint32_t special = (a + (224u << 23)) | (a > 31u << 23 ? 1u << 22 : 0); /* infinite, or a NaN, which becomes quiet */
    const uint32_t subnormal = kvfi_float_bits((float)(int32_t)(h & 0x3ff) * 0x1p-24f);
    return sign | (a >= 31u << 23 ? special : a < 1u << 23 ? subnormal : normal);
}

void kvfi_scalar_widen(const uint16_t *half, int32_t n, float *x)
{
    for (int32_t i = 0; i < n; i++) {
        const uint32_t bits = widened(half[i]);
        memcpy(x + i, &bits, sizeof bits);
    }
}

void kvfi_scalar_narrow(const float *x, int32_t n, uint16_t *half)
{
    for (int32_t i = 0; i < n; i++) half[i] = kvfi_half_saturated(x[i]);
}

/* Few bounds: each is compared with all lanes. */
INLINE void count(int bits, const float *bound, const float *y, int32_t *code)
{
    for (int j = 0; j < LANES; j++) code[j] = 0;
    for (int b = 0; b + 1 < 1 << bits; b++)
        for (int j = 0; j < LANES; j++) code[j] += y[j] > bound[b];
}

/* Many: halves of what is left, without a branch, as none would be foreseen. */
static void search(int bits, const float *bound, const float *y, int32_t *code)
{
    for (int j = 0; j < LANES; j++) {
        int32_t k = 0;
        for (int step = 1 << (bits - 1); step; step /= 2) k += y[j] > bound[k + step - 1] ? step : 0;
        code[j] = k;
    }
}

static void rank_some(const kvfi_ranks *r, const float *y, int32_t *code)
{
    switch (r->bits) {
    case 1: count(1, r->bound, y, code); break;
    case 2: count(2, r->bound, y, code); break;
    case 3: count(3, r->bound, y, code); break;
    case 4: count(4, r->bound, y, code); break;
    default: search(r->bits, r->bound, y, code);
    }
}

void kvfi_scalar_rank(const kvfi_ranks *r, const float *x, float factor, int32_t n, uint8_t *codes, float *decoded)
{
    float y[LANES] = {0};
    int32_t code[LANES];
    for (int32_t i = 0; i < n; i += LANES) {
        const int32_t some = n - i < LANES ? n - i : LANES;
        for (int32_t j = 0; j < some; j++) y[j] = x[i + j] * factor;
        rank_some(r, y, code);
        for (int32_t j = 0; j < some; j++) codes[i + j] = (uint8_t)code[j], decoded[i + j] = r->level[code[j]];
    }
}
