/* SPDX-License-Identifier: MIT
 * Online softmax of 64 scores with NEON. */
#include "cpu/neon/simd.h"

#include <math.h>

/* e^x for x <= 0. With n the integer nearest to x / ln 2 and f = x - n ln 2 (ln 2 in two parts, so that n times the first is
 * exact), e^x = 2^n e^f, |f| <= 0.35. The Taylor polynomial of degree 7 leaves 6e-9 there, so rounding dominates: relative error
 * below 3e-7. Results below the smallest normal number become 0, as for -inf: weights that small are far below the last bit of
 * any sum, and subnormal operands would slow the products that follow. */
KVFI_INLINE float32x4_t exp4(float32x4_t x)
{
    const float32x4_t least = vdupq_n_f32(-0x1.5d589ep+6f); /* ln 2^-126, rounded up */
    const uint32x4_t tiny = vcltq_f32(x, least);
    x = vmaxq_f32(x, least);
    const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504f));
    float32x4_t f = vfmsq_n_f32(x, n, 0x1.62e4p-1f);
    f = vfmsq_n_f32(f, n, 0x1.7f7d1cp-20f);
    float32x4_t p = vdupq_n_f32(1.0f / 5040);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 720), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 120), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 24), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 6), p, f);
    p = vfmaq_f32(vdupq_n_f32(0.5f), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, f);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, f);
    const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    p = vmulq_f32(p, vreinterpretq_f32_s32(power));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(p), tiny));
}

static float one_vector(float *s, float add, float *max, float *sum)
{
    float32x4_t x[16], top = vdupq_n_f32(*max), total = vdupq_n_f32(0);
    KVFI_UNROLL
    for (int i = 0; i < 16; i++) {
        x[i] = vaddq_f32(vld1q_f32(s + 4 * i), vdupq_n_f32(add));
        top = vmaxq_f32(top, x[i]);
    }
    const float peak = vmaxvq_f32(top), before = *max;
    if (peak == -INFINITY) {
        KVFI_UNROLL
        for (int i = 0; i < 16; i++) vst1q_f32(s + 4 * i, vdupq_n_f32(0));
        return 1.0f;
    }
    KVFI_UNROLL
    for (int i = 0; i < 16; i++) {
        x[i] = exp4(vsubq_f32(x[i], vdupq_n_f32(peak)));
        vst1q_f32(s + 4 * i, x[i]);
        total = vaddq_f32(total, x[i]);
    }
    const float factor = peak > before ? vgetq_lane_f32(exp4(vdupq_n_f32(before - peak)), 0) : 1.0f;
    *max = peak;
    *sum = *sum * factor + vaddvq_f32(total);
    return factor;
}

static void softmax(float *s, const float *add, int32_t n, float *max, float *sum, float *factor)
{
    for (int32_t v = 0; v < n; v++, s += KVF_BLOCK) factor[v] = one_vector(s, add ? add[v] : 0, max + v, sum + v);
}

void kvfi_neon_softmax(kvfi_kernels *k)
{
    k->softmax = softmax;
}
