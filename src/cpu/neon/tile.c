/* SPDX-License-Identifier: MIT
 * Dense tiles with NEON: out[v][lane] += sum_r m[v][r] * tile[r][lane], up to six vectors by sixteen lanes in registers. */
#include "cpu/neon/simd.h"

/* n rows of a tile, 16 lanes, nv vectors; set: overwrite the output. */
KVFI_INLINE void tile_product_of(const float *tile, size_t row, int n, int nv, const float *m, size_t stride, float *out,
                                 size_t out_stride, int set)
{
    float32x4_t acc[6][4];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) acc[v][h] = vdupq_n_f32(0);
    }
    for (int r = 0; r < n; r++) {
        float32x4_t x[4];
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) x[h] = vld1q_f32(tile + (size_t)r * row + 4 * h);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            const float k = m[(size_t)v * stride + (size_t)r];
            KVFI_UNROLL
            for (int h = 0; h < 4; h++) acc[v][h] = vfmaq_n_f32(acc[v][h], x[h], k);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) {
            float *o = out + (size_t)v * out_stride + 4 * h;
            vst1q_f32(o, set ? acc[v][h] : vaddq_f32(vld1q_f32(o), acc[v][h]));
        }
    }
}

#include "cpu/overlay/tile.h"

#include "cpu/overlay/trellis.h"

void kvfi_neon_tile(kvfi_kernels *k)
{
    k->tile_score = tile_score;
    k->tile_mix = tile_mix;
    k->kind[KVF_KIND_TRELLIS].unfold = trellis_unfold;
}
