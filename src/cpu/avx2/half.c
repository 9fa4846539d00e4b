/* SPDX-License-Identifier: MIT
 * KVF_KIND_HALF with AVX2: rows of f16 lanes, 64 tokens of a channel (keys) or the channels of a token (values). The same shape
 * as for codes: sixteen outputs side by side, one broadcast multiplier a vector, each f16 converted once for four vectors. */
#include "cpu/avx2/simd.h"
#include "cpu/overlay/panel.h"

/* out[v][i] += sum_r m[v][r] * rows[r][i] over n rows and 16 lanes; few vectors get several partial sums each, which covers the
 * latency of an addition. */
KVFI_INLINE void rows_dots_of(const uint16_t *rows, size_t row, int n, int nv, const float *m, size_t stride, float *out,
                              size_t out_stride, ahead *next)
{
    const int sets = nv == 1 ? 4 : nv == 2 ? 2 : 1;
    __m256 acc[4][4][2];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int s = 0; s < sets; s++) acc[v][s][0] = acc[v][s][1] = _mm256_setzero_ps();
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
            const uint16_t *from = rows + (size_t)(r + j) * row;
            const __m256 x = half8(from), y = half8(from + 8);
            KVFI_UNROLL
            for (int v = 0; v < nv; v++) {
                const __m256 k = _mm256_broadcast_ss(m + (size_t)v * stride + r + j);
                acc[v][j % sets][0] = _mm256_fmadd_ps(x, k, acc[v][j % sets][0]);
                acc[v][j % sets][1] = _mm256_fmadd_ps(y, k, acc[v][j % sets][1]);
            }
        }
    }
    next->at = at;
    for (; r < n; r++) {
        const __m256 x = half8(rows + (size_t)r * row), y = half8(rows + (size_t)r * row + 8);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            const __m256 k = _mm256_broadcast_ss(m + (size_t)v * stride + r);
            acc[v][0][0] = _mm256_fmadd_ps(x, k, acc[v][0][0]);
            acc[v][0][1] = _mm256_fmadd_ps(y, k, acc[v][0][1]);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < 2; h++) {
            float *o = out + (size_t)v * out_stride + 8 * h;
            __m256 sum = acc[v][0][h];
            if (sets == 2) sum = _mm256_add_ps(sum, acc[v][1][h]);
            if (sets == 4) sum = _mm256_add_ps(_mm256_add_ps(sum, acc[v][1][h]), _mm256_add_ps(acc[v][2][h], acc[v][3][h]));
            _mm256_storeu_ps(o, _mm256_add_ps(_mm256_loadu_ps(o), sum));
        }
    }
}

static void widen(const uint16_t *from, int n, float *to)
{
    for (int i = 0; i < n; i += 8) _mm256_storeu_ps(to + i, half8(from + i));
}

#include "cpu/overlay/half.h"

void kvfi_avx2_half(kvfi_kernels *k)
{
    k->kind[KVF_KIND_HALF] = half_ops;
}
