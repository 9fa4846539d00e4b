/* SPDX-License-Identifier: MIT
 * Online softmax of 64 scores with AVX-512. */
#include "cpu/avx512/simd.h"

#include <math.h>

/* e^x for x <= 0, as in the AVX2 file: 2^n e^f with |f| <= 0.35 and a Taylor polynomial, which leaves 2e-7. Results below the
 * smallest normal number become 0. */
KVFI_INLINE __m512 exp16(__m512 x)
{
    const __m512 least = _mm512_set1_ps(-0x1.5d589ep+6f); /* ln 2^-126, rounded up */
    const __mmask16 normal = _mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ);
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    __m512 f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e4p-1f), x);
    f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20f), f);
    __m512 p = _mm512_set1_ps(1.0f / 5040);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f / 720));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(normal, p, n);
}

static float softmax(float *s, float *max, float *sum)
{
    __m512 x[4];
    KVFI_UNROLL
    for (int i = 0; i < 4; i++) x[i] = _mm512_loadu_ps(s + 16 * i);
    const __m512 top = _mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3]));
    const float before = *max, new = _mm512_reduce_max_ps(top), peak = new > before ? new : before;
    if (peak == -INFINITY) {
        KVFI_UNROLL
        for (int i = 0; i < 4; i++) _mm512_storeu_ps(s + 16 * i, _mm512_setzero_ps());
        return 1.0f;
    }
    KVFI_UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = exp16(_mm512_sub_ps(x[i], _mm512_set1_ps(peak)));
        _mm512_storeu_ps(s + 16 * i, x[i]);
    }
    const float total = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3])));
    const float factor = peak > before ? _mm512_cvtss_f32(exp16(_mm512_set1_ps(before - peak))) : 1.0f;
    *max = peak;
    *sum = *sum * factor + total;
    return factor;
}

void kvfi_avx512_softmax(kvfi_kernels *k)
{
    k->softmax = softmax;
}
