/* SPDX-License-Identifier: MIT
 * Online softmax of 64 scores with AVX2. */
#include "cpu/avx2/simd.h"

#include <math.h>

/* e^x for x <= 0. With n the integer nearest to x / ln 2 and f = x - n ln 2 (ln 2 in two parts, so that n times the first is
 * exact), e^x = 2^n e^f, |f| <= 0.35. The Taylor polynomial of degree 7 leaves 6e-9 there, so rounding dominates: relative error
 * below 2e-7. Results below the smallest normal number become 0, as for -inf: weights that small are far below the last bit of
 * any sum, and subnormal operands would slow the products that follow. */
KVFI_INLINE __m256 exp8(__m256 x)
{
    const __m256 least = _mm256_set1_ps(-0x1.5d589ep+6f); /* ln 2^-126, rounded up */
    const __m256 tiny = _mm256_cmp_ps(x, least, _CMP_LT_OQ);
    x = _mm256_max_ps(x, least);
    const __m256 n =
        _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e4p-1f), x);
    f = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.7f7d1cp-20f), f);
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(tiny, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

static float one_vector(float *s, float add, float *max, float *sum)
{
    __m256 x[8], top = _mm256_set1_ps(*max), total = _mm256_setzero_ps();
    KVFI_UNROLL
    for (int i = 0; i < 8; i++) {
        x[i] = _mm256_add_ps(_mm256_loadu_ps(s + 8 * i), _mm256_set1_ps(add));
        top = _mm256_max_ps(top, x[i]);
    }
    const float peak = max8(top), before = *max;
    if (peak == -INFINITY) {
        KVFI_UNROLL
        for (int i = 0; i < 8; i++) _mm256_storeu_ps(s + 8 * i, _mm256_setzero_ps());
        return 1.0f;
    }
    KVFI_UNROLL
    for (int i = 0; i < 8; i++) {
        x[i] = exp8(_mm256_sub_ps(x[i], _mm256_set1_ps(peak)));
        _mm256_storeu_ps(s + 8 * i, x[i]);
        total = _mm256_add_ps(total, x[i]);
    }
    const float factor = peak > before ? _mm256_cvtss_f32(exp8(_mm256_set1_ps(before - peak))) : 1.0f;
    *max = peak;
    *sum = *sum * factor + sum8(total);
    return factor;
}

static void softmax(float *s, const float *add, int32_t n, float *max, float *sum, float *factor)
{
    for (int32_t v = 0; v < n; v++, s += KVF_BLOCK) factor[v] = one_vector(s, add ? add[v] : 0, max + v, sum + v);
}

void kvfi_avx2_softmax(kvfi_kernels *k)
{
    k->softmax = softmax;
}
