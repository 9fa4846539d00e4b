/* SPDX-License-Identifier: MIT
 * KVF_KIND_HALF on any overlay: rows of f16 lanes, the 64 tokens of a channel (keys) or the channels of a token (values).
 * The including file defines before it, static:
 *   rows_dots_of(rows, row, n, nv, m, stride, out, out_stride, ahead)      force-inlined, nv <= 4
 *       out[v][i] += sum over n rows r of m[v][r] * rows[r * row + i] for 16 lanes i; every four rows fetch some of `ahead`
 *   widen(from, n, to)       n halves to f32, n a multiple of 16 */
#ifndef KVFI_OVERLAY_HALF_H
#define KVFI_OVERLAY_HALF_H

#include "cpu/overlay/panel.h"

static void rows_dots(const uint16_t *rows, size_t row, int n, int nv, const float *m, size_t stride, float *out,
                      size_t out_stride, ahead *next)
{
    switch (nv) {
    case 1: rows_dots_of(rows, row, n, 1, m, stride, out, out_stride, next); break;
    case 2: rows_dots_of(rows, row, n, 2, m, stride, out, out_stride, next); break;
    case 3: rows_dots_of(rows, row, n, 3, m, stride, out, out_stride, next); break;
    case 4: rows_dots_of(rows, row, n, 4, m, stride, out, out_stride, next); break;
    }
}

/* All lanes, all vectors; lanes is a multiple of 16. */
static void half_product(const kvf_part *part, const uint16_t *record, int n, int lanes, const float *m, size_t stride, int nv,
                         float *out, size_t out_stride)
{
    const size_t steps = (size_t)(n / 4 + 1) * (size_t)(lanes / 16);
    ahead next = {(uintptr_t)record + (uintptr_t)part->next_offset, part->next_bytes ? part->next_bytes / steps + 1 : 0};
    for (int v = 0, take; v < nv; v += take, next.step = 0) {
        take = take_vectors(nv - v, 4);
        for (int lane = 0; lane < lanes; lane += 16)
            rows_dots(record + lane, (size_t)lanes, n, take, m + (size_t)v * stride, stride, out + (size_t)v * out_stride + lane,
                      out_stride, &next);
    }
}

static size_t half_prepared_bytes(const kvf_part *part, int32_t n)
{
    return ((size_t)n * (size_t)part->dim_pad * sizeof(float) + 63) / 64 * 64;
}

static void half_prepare(const kvf_part *part, const float *q, size_t stride, int32_t n, void *prepared)
{
    const size_t dim = (size_t)part->dim_pad;
    for (int v = 0; v < n; v++) memcpy((float *)prepared + (size_t)v * dim, q + (size_t)v * stride, dim * sizeof *q);
}

/* Rows of padded channels are left out rather than multiplied by zero: nothing says that they are finite. */
static void half_score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *s)
{
    memset(s, 0, (size_t)n * KVF_BLOCK * sizeof *s);
    half_product(part, record, part->dim, KVF_BLOCK, prepared, (size_t)part->dim_pad, n, s, KVF_BLOCK);
}

static void half_mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    half_product(part, record, KVF_BLOCK, part->dim_pad, w, KVF_BLOCK, n, acc, stride);
}

static void half_unfold(const kvf_part *part, const void *record, float *tile)
{
    const size_t dim = (size_t)part->dim, pad = (size_t)part->dim_pad;
    widen(record, (int)pad * KVF_BLOCK, tile);
    if (part->side == KVF_K)
        memset(tile + dim * KVF_BLOCK, 0, (pad - dim) * KVF_BLOCK * sizeof *tile);
    else
        for (size_t t = 0; t < KVF_BLOCK; t++) memset(tile + t * pad + dim, 0, (pad - dim) * sizeof *tile);
}

static const kvfi_kind_ops half_ops = {half_prepared_bytes, half_prepare, half_score, half_mix, half_unfold, 0, 0};

#endif
