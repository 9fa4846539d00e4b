/* SPDX-License-Identifier: MIT
 * KVF_KIND_HALF with AVX-512: sixteen outputs side by side, each f16 converted once for four vectors. */
#include "cpu/avx512/simd.h"
#include "cpu/overlay/panel.h"

/* out[v][i] += sum_r m[v][r] * rows[r][i] over n rows and 16 lanes. Rows go to several sums in turn, eight at least in all, which
 * covers the latency of an addition. */
KVFI_INLINE void rows_dots_of(const uint16_t *rows, size_t row, int n, int nv, const float *m, size_t stride, float *out,
                              size_t out_stride, ahead *next)
{
    enum { SETS = 4 };
    const int sets = nv > 2 ? 2 : SETS;
    __m512 acc[4][SETS];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int s = 0; s < sets; s++) acc[v][s] = _mm512_setzero_ps();
    }
    uintptr_t at = next->at;
    const size_t step = next->step;
    int r = 0;
    for (; r + 4 <= n; r += 4) {
        fetch(at);
        fetch(at + 64);
        at += step;
        KVFI_UNROLL
        for (int j = 0; j < 4; j++) {
            const __m512 x = half16(rows + (size_t)(r + j) * row);
            KVFI_UNROLL
            for (int v = 0; v < nv; v++)
                acc[v][j % sets] = _mm512_fmadd_ps(x, _mm512_set1_ps(m[(size_t)v * stride + (size_t)(r + j)]), acc[v][j % sets]);
        }
    }
    next->at = at;
    for (; r < n; r++) {
        const __m512 x = half16(rows + (size_t)r * row);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) acc[v][0] = _mm512_fmadd_ps(x, _mm512_set1_ps(m[(size_t)v * stride + (size_t)r]), acc[v][0]);
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        float *o = out + (size_t)v * out_stride;
        __m512 sum = _mm512_add_ps(acc[v][0], acc[v][1]);
        if (sets == 4) sum = _mm512_add_ps(sum, _mm512_add_ps(acc[v][2], acc[v][3]));
        _mm512_storeu_ps(o, _mm512_add_ps(_mm512_loadu_ps(o), sum));
    }
}

static void widen(const uint16_t *from, int n, float *to)
{
    for (int i = 0; i < n; i += 16) _mm512_storeu_ps(to + i, half16(from + i));
}

#include "cpu/overlay/half.h"

void kvfi_avx512_half(kvfi_kernels *k)
{
    k->kind[KVF_KIND_HALF] = half_ops;
}
