/* SPDX-License-Identifier: MIT
 * Dense tiles on any overlay. The including file defines before it, force-inlined:
 *   tile_product_of(tile, row, n, nv, m, stride, out, out_stride, set)      nv <= 6
 *       out[v][i] += sum over n rows r of m[v][r] * tile[r * row + i] for 16 lanes i; set: = instead */
#ifndef KVFI_OVERLAY_TILE_H
#define KVFI_OVERLAY_TILE_H

#include "cpu/overlay/panel.h"

static void tile_product(const float *tile, size_t row, int n, int nv, const float *m, size_t stride, float *out,
                         size_t out_stride, int set)
{
    switch (nv) {
    case 1: tile_product_of(tile, row, n, 1, m, stride, out, out_stride, set); break;
    case 2: tile_product_of(tile, row, n, 2, m, stride, out, out_stride, set); break;
    case 3: tile_product_of(tile, row, n, 3, m, stride, out, out_stride, set); break;
    case 4: tile_product_of(tile, row, n, 4, m, stride, out, out_stride, set); break;
    case 5: tile_product_of(tile, row, n, 5, m, stride, out, out_stride, set); break;
    case 6: tile_product_of(tile, row, n, 6, m, stride, out, out_stride, set); break;
    }
}

static void tile_score(const float *tile, int32_t dim_pad, const float *q, size_t q_stride, int32_t nv, float *s)
{
    for (int32_t v = 0, take; v < nv; v += take) {
        take = take_vectors(nv - v, 6);
        for (int lane = 0; lane < KVF_BLOCK; lane += 16)
            tile_product(tile + lane, KVF_BLOCK, dim_pad, take, q + (size_t)v * q_stride, q_stride, s + v * KVF_BLOCK + lane,
                         KVF_BLOCK, 1);
    }
}

static void tile_mix(const float *tile, int32_t dim_pad, const float *w, int32_t nv, float *acc, size_t stride)
{
    for (int32_t v = 0, take; v < nv; v += take) {
        take = take_vectors(nv - v, 6);
        for (int lane = 0; lane < dim_pad; lane += 16)
            tile_product(tile + lane, (size_t)dim_pad, KVF_BLOCK, take, w + v * KVF_BLOCK, KVF_BLOCK,
                         acc + (size_t)v * stride + lane, stride, 0);
    }
}

#endif
