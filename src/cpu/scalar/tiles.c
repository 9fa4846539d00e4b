/* SPDX-License-Identifier: MIT
 * Dense tiles: f32 scratch that was unfolded from a record or from exact rows, against many vectors. */
#include "cpu/scalar/scalar.h"

#include <string.h>

static void tile_score(const float *tile, int32_t dim_pad, const float *q, size_t q_stride, int32_t nv, float *s)
{
    float sum[KVFI_TILE][KVFI_CHUNK];
    for (int32_t v = 0; v < nv; v += KVFI_TILE) {
        int32_t n = nv - v < KVFI_TILE ? nv - v : KVFI_TILE;
        memset(sum, 0, sizeof sum);
        for (int c = 0; c < dim_pad; c++) kvfi_scalar_add(sum, q + (size_t)v * q_stride + c, q_stride, n, tile + c * KVF_BLOCK);
        memcpy(s + v * KVF_BLOCK, sum, (size_t)n * sizeof *sum);
    }
}

static void tile_mix(const float *tile, int32_t dim_pad, const float *w, int32_t nv, float *acc, size_t stride)
{
    float sum[KVFI_TILE][KVFI_CHUNK];
    for (int32_t v = 0; v < nv; v += KVFI_TILE)
        for (int c = 0; c < dim_pad; c += KVFI_CHUNK) {
            int32_t n = nv - v < KVFI_TILE ? nv - v : KVFI_TILE, count = dim_pad - c < KVFI_CHUNK ? dim_pad - c : KVFI_CHUNK;
            memset(sum, 0, sizeof sum);
            for (int t = 0; t < KVF_BLOCK; t++)
                for (int32_t j = 0; j < n; j++)
                    for (int i = 0; i < count; i++) sum[j][i] += w[(v + j) * KVF_BLOCK + t] * tile[t * dim_pad + c + i];
            for (int32_t j = 0; j < n; j++)
                for (int i = 0; i < count; i++) acc[(size_t)(v + j) * stride + (size_t)(c + i)] += sum[j][i];
        }
}

void kvfi_scalar_tiles(kvfi_kernels *k)
{
    k->tile_score = tile_score;
    k->tile_mix = tile_mix;
}
