/* SPDX-License-Identifier: MIT
 * Online softmax of 64 scores with AVX-512, four vectors side by side: the sums and maxima across lanes are made four at once, and
 * the chains of one vector run in the shadow of the others. */
#include "cpu/avx512/simd.h"

#include <math.h>

enum { VECTORS = 4, PARTS = KVF_BLOCK / 16 };

/* e^x for x <= 0: 2^y with y = x / ln 2, as 2^floor(y) times a polynomial of degree 5 in y - floor(y). Its relative error is 1e-7;
 * rounding y, at most 126, leaves 2.7e-6. A result below the smallest normal number becomes 0, as for -inf: weights that small are
 * far below the last bit of any sum, and subnormal operands would slow the products that follow. */
KVFI_INLINE __m512 exp16(__m512 x)
{
    const __m512 y = _mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f));
    const __mmask16 normal = _mm512_cmp_ps_mask(y, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    const __m512 f = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(0x1.e974fap-10f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.277856p-7f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c91ce6p-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebdb56p-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e4bap-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(normal, p, y);
}

/* nv <= VECTORS vectors. Lanes of absent vectors are those of vector 0. */
KVFI_INLINE void softmax_of(float *s, const float *add, int nv, float *max, float *sum, float *factor)
{
    __m512 x[VECTORS][PARTS], some[VECTORS];
    const __mmask8 live = (__mmask8)((1 << nv) - 1);
    KVFI_UNROLL
    for (int v = 0; v < VECTORS; v++) {
        if (v >= nv) {
            some[v] = some[0];
            continue;
        }
        const __m512 offset = add ? _mm512_set1_ps(add[v]) : _mm512_setzero_ps();
        KVFI_UNROLL
        for (int i = 0; i < PARTS; i++) x[v][i] = _mm512_add_ps(_mm512_loadu_ps(s + v * KVF_BLOCK + 16 * i), offset);
        some[v] = _mm512_max_ps(_mm512_max_ps(x[v][0], x[v][1]), _mm512_max_ps(x[v][2], x[v][3]));
    }
    const __m128 before = _mm_maskz_loadu_ps(live, max), peak = _mm_max_ps(max16x4(some), before);
    const __mmask8 seen = _mm_cmp_ps_mask(peak, _mm_set1_ps(-INFINITY), _CMP_NEQ_UQ);
    /* subtracted from the scores: 0 where nothing was seen, as -inf less -inf is no number */
    float base[VECTORS];
    _mm_storeu_ps(base, _mm_maskz_mov_ps(seen, peak));
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        const __m512 k = _mm512_set1_ps(base[v]);
        KVFI_UNROLL
        for (int i = 0; i < PARTS; i++) {
            x[v][i] = exp16(_mm512_sub_ps(x[v][i], k));
            _mm512_storeu_ps(s + v * KVF_BLOCK + 16 * i, x[v][i]);
        }
        some[v] = _mm512_add_ps(_mm512_add_ps(x[v][0], x[v][1]), _mm512_add_ps(x[v][2], x[v][3]));
    }
    const __mmask8 raised = _mm_cmp_ps_mask(peak, before, _CMP_GT_OQ);
    __m128 f = _mm_set1_ps(1);
    if (raised) f = _mm_mask_mov_ps(f, raised, _mm512_castps512_ps128(exp16(_mm512_castps128_ps512(_mm_sub_ps(before, peak)))));
    _mm_mask_storeu_ps(factor, live, f);
    _mm_mask_storeu_ps(max, live, peak);
    _mm_mask_storeu_ps(sum, live, _mm_fmadd_ps(_mm_maskz_loadu_ps(live, sum), f, sum16x4(some)));
}

static void softmax(float *s, const float *add, int32_t n, float *max, float *sum, float *factor)
{
    for (int32_t v = 0; v < n; v += VECTORS, s += VECTORS * KVF_BLOCK) {
        const float *some = add ? add + v : NULL;
        switch (n - v) {
        case 1: softmax_of(s, some, 1, max + v, sum + v, factor + v); break;
        case 2: softmax_of(s, some, 2, max + v, sum + v, factor + v); break;
        case 3: softmax_of(s, some, 3, max + v, sum + v, factor + v); break;
        default: softmax_of(s, some, VECTORS, max + v, sum + v, factor + v); break;
        }
    }
}

void kvfi_avx512_softmax(kvfi_kernels *k)
{
    k->softmax = softmax;
}
