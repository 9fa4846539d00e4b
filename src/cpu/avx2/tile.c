/* SPDX-License-Identifier: MIT
 * Dense tiles with AVX2: out[v][lane] += sum_r m[v][r] * tile[r][lane], six vectors by sixteen lanes in registers. */
#include "cpu/avx2/simd.h"

/* n rows of a tile, 16 lanes, nv vectors; set: overwrite the output. */
KVFI_INLINE void tile_product_of(const float *tile, size_t row, int n, int nv, const float *m, size_t stride, float *out,
                                 size_t out_stride, int set)
{
    __m256 acc[6][2];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) acc[v][0] = acc[v][1] = _mm256_setzero_ps();
    for (int r = 0; r < n; r++) {
        const __m256 x = _mm256_loadu_ps(tile + (size_t)r * row), y = _mm256_loadu_ps(tile + (size_t)r * row + 8);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            const __m256 k = _mm256_broadcast_ss(m + (size_t)v * stride + r);
            acc[v][0] = _mm256_fmadd_ps(x, k, acc[v][0]);
            acc[v][1] = _mm256_fmadd_ps(y, k, acc[v][1]);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < 2; h++) {
            float *o = out + (size_t)v * out_stride + 8 * h;
            _mm256_storeu_ps(o, set ? acc[v][h] : _mm256_add_ps(_mm256_loadu_ps(o), acc[v][h]));
        }
    }
}

#include "cpu/overlay/tile.h"

#include "cpu/overlay/trellis.h"

void kvfi_avx2_tile(kvfi_kernels *k)
{
    k->tile_score = tile_score;
    k->tile_mix = tile_mix;
    k->kind[KVF_KIND_TRELLIS].unfold = trellis_unfold;
}
