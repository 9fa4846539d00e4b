/* SPDX-License-Identifier: MIT
 * IEEE 754 binary16 by integer arithmetic: the same bits on every target, whatever the rounding or flush modes of its floating
 * point unit are. */
#ifndef KVFI_HALF_H
#define KVFI_HALF_H

#include <stdint.h>
#include <string.h>

#define KVFI_HALF_MAX 65504.0f /* largest finite value */

static inline uint32_t kvfi_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float kvfi_bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Exact. A NaN keeps the high bits of its payload and becomes quiet. */
static inline float kvfi_half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3ff;
    if (exponent == 31) return kvfi_bits_float(sign | 0x7f800000 | (fraction ? 0x400000 | fraction << 13 : 0));
    if (exponent) return kvfi_bits_float(sign | (exponent + 112) << 23 | fraction << 13);
    return kvfi_bits_float(sign | kvfi_float_bits((float)fraction * 0x1p-24f)); /* subnormal or zero: a normal f32 */
}

/* Round to nearest, ties to even. From 65520 on the result is infinite. */
static inline uint16_t kvfi_half_from_float(float x)
{
    uint32_t u = kvfi_float_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (a >= 0x38800000) return (uint16_t)(sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
    uint32_t exponent = a >> 23;
    if (exponent < 102) return (uint16_t)sign; /* below half of the smallest subnormal */
    uint32_t mantissa = (a & 0x7fffff) | 0x800000, shift = 126 - exponent;
    uint32_t h = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), tie = 1u << (shift - 1);
    h += rest > tie || (rest == tie && (h & 1));
    return (uint16_t)(sign | h);
}

/* The same, but magnitudes above 65504 (infinity too) become 65504 of that sign. NaN stays NaN. */
static inline uint16_t kvfi_half_saturated(float x)
{
    if (x > KVFI_HALF_MAX) x = KVFI_HALF_MAX;
    if (x < -KVFI_HALF_MAX) x = -KVFI_HALF_MAX;
    return kvfi_half_from_float(x);
}

/* n elements of a row, f16 or f32 (is_f32), of any alignment, as floats. */
static inline void kvfi_load_row(const void *row, int is_f32, int32_t n, float *out)
{
    if (is_f32) {
        memcpy(out, row, (size_t)n * sizeof *out);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const char *)row + 2 * (size_t)i, 2);
        out[i] = kvfi_half_to_float(half);
    }
}

#endif
