/* SPDX-License-Identifier: MIT
 * Quantising one group by each rule. Exact arithmetic: no step is contracted or reordered, comparisons decide ties one way.
 * Inputs are finite. x[i * stride], i < n, is the group. */
#ifndef KVFI_KERNELS_QUANT_H
#define KVFI_KERNELS_QUANT_H

#ifndef KVF_FN
#include "gpu/compat/c.h"
#endif

/* ---- KIVI (Liu et al., arXiv 2402.02750): asymmetric uniform codes -------------------------------------------------------- */

KVF_FN void kvfi_group_range(const KVF_GLOBAL float *x, size_t stride, int n, KVF_PRIVATE float *low, KVF_PRIVATE float *high)
{
    *low = *high = x[0];
    for (int i = 1; i < n; i++) {
        float v = x[(size_t)i * stride];
        if (v < *low) *low = v;
        if (v > *high) *high = v;
    }
    if (*low == 0.0f) *low = 0.0f; /* a minimum of -0 is stored as +0, whichever came first */
}

/* Step of the grid in f32, never below 1e-8. */
KVF_FN float kvfi_kivi_scale(float low, float high, int bits)
{
    float scale = KVF_DIV(KVF_SUB(high, low), (float)((1 << bits) - 1));
    return scale < 1e-8f ? 1e-8f : scale;
}

/* The step as a record stores it, the nearest f16 but for three cases. A constant group has 0: every code then means the minimum.
 * Among subnormals rounding is coarse: where the last code would end more than half a step below the maximum, or the step would
 * vanish, it is the next f16 up. A step above 65504 (1 bit, range above that) is 65504. */
KVF_FN uint16_t kvfi_kivi_scale_half(float low, float high, int bits)
{
    if (!(high > low)) return 0;
    uint16_t h = KVF_HALF_SATURATED(kvfi_kivi_scale(low, high, bits));
    float reach = KVF_MUL((float)((1 << bits) - 1) + 0.5f, KVF_HALF_TO_FLOAT(h));
    if (h < 0x7bff && reach < KVF_SUB(high, low)) h = (uint16_t)(h + 1);
    return h;
}

/* scale and min as they are stored, that is after rounding. */
KVF_FN int kvfi_kivi_code(float x, float scale, float min, int bits)
{
    float top = (float)((1 << bits) - 1);
    if (!(scale > 0.0f)) return 0;
    float code = KVF_RINT(KVF_DIV(KVF_SUB(x, min), scale));
    return (int)(code < 0.0f ? 0.0f : code > top ? top : code);
}

/* ---- q8_0 and q4_0: the rules of ggml's reference quantiser ---------------------------------------------------------------- */

/* The element of largest magnitude, with its sign; of equals the first. */
KVF_FN float kvfi_group_peak(const KVF_GLOBAL float *x, size_t stride, int n)
{
    float peak = 0.0f;
    for (int i = 0; i < n; i++) {
        float v = x[(size_t)i * stride];
        if (KVF_FABS(v) > KVF_FABS(peak)) peak = v;
    }
    return peak;
}

/* Step of the grid in f32. A record stores it in f16 (saturated), but codes are made with 1 / step before that rounding. */
KVF_FN float kvfi_q8_0_scale(float peak)
{
    return KVF_DIV(KVF_FABS(peak), 127.0f);
}

KVF_FN float kvfi_q4_0_scale(float peak)
{
    return KVF_DIV(peak, -8.0f);
}

KVF_FN float kvfi_inverse_scale(float scale)
{
    return scale != 0.0f ? KVF_DIV(1.0f, scale) : 0.0f;
}

/* -127 .. 127, stored with 128 added. */
KVF_FN int kvfi_q8_0_code(float x, float inverse)
{
    return (int)KVF_ROUND(KVF_MUL(x, inverse)) + 128;
}

/* -8 .. 7, stored with 8 added. */
KVF_FN int kvfi_q4_0_code(float x, float inverse)
{
    int code = (int)KVF_ADD(KVF_MUL(x, inverse), 8.5f);
    return code > 15 ? 15 : code;
}

#endif
