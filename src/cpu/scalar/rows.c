/* SPDX-License-Identifier: MIT
 * Exact rows: sink, window and tail. Elements may lie at any address that suits their type. */
#include "base/half.h"
#include "codec/shared/part.h"
#include "cpu/scalar/scalar.h"

#include <string.h>

enum { PARTIALS = 16 };

static const char *row_at(const kvfi_rows *rows, int32_t i)
{
    return rows->data + (rows->index ? rows->index[i] : i) * rows->stride;
}

/* Channels first .. first + count - 1 of a row as f32. */
static void load(kvf_type type, const char *row, int first, int count, float *x)
{
    if (type == KVF_F32) {
        memcpy(x, row + (size_t)first * sizeof(float), (size_t)count * sizeof(float));
        return;
    }
    for (int c = 0; c < count; c++) {
        uint16_t h;
        memcpy(&h, row + (size_t)(first + c) * sizeof h, sizeof h);
        x[c] = kvfi_half_to_float(h);
    }
}

/* Channel c goes to partial sum c % 16; the partial sums meet in a tree: i with i + 8, i + 4, i + 2, i + 1. */
static float dot(const float *a, const float *b, int n)
{
    float part[PARTIALS] = {0};
    int c = 0;
    for (; c + PARTIALS <= n; c += PARTIALS)
        for (int i = 0; i < PARTIALS; i++) part[i] += a[c + i] * b[c + i];
    for (int i = 0; c + i < n; i++) part[i] += a[c + i] * b[c + i];
    for (int half = PARTIALS / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

static void rows_score(const kvfi_rows *rows, int32_t n, int32_t dim, const float *q, size_t q_stride, int32_t nv, float *s)
{
    float row[KVFI_DIM_MAX];
    for (int32_t i = 0; i < n; i++) {
        load(rows->type, row_at(rows, i), 0, dim, row);
        for (int32_t v = 0; v < nv; v++) s[v * KVF_BLOCK + i] = dot(q + (size_t)v * q_stride, row, dim);
    }
}

static void rows_mix(const kvfi_rows *rows, int32_t n, int32_t dim, const float *w, int32_t nv, float *acc, size_t stride)
{
    float sum[KVFI_TILE][KVFI_CHUNK], row[KVFI_CHUNK] = {0};
    for (int32_t v = 0; v < nv; v += KVFI_TILE)
        for (int c = 0; c < dim; c += KVFI_CHUNK) {
            int32_t tile = nv - v < KVFI_TILE ? nv - v : KVFI_TILE;
            int count = dim - c < KVFI_CHUNK ? dim - c : KVFI_CHUNK;
            memset(sum, 0, sizeof sum);
            for (int32_t i = 0; i < n; i++) {
                load(rows->type, row_at(rows, i), c, count, row);
                kvfi_scalar_add(sum, w + v * KVF_BLOCK + i, KVF_BLOCK, tile, row);
            }
            for (int32_t j = 0; j < tile; j++)
                for (int i = 0; i < count; i++) acc[(size_t)(v + j) * stride + (size_t)(c + i)] += sum[j][i];
        }
}

static void rows_unfold_k(const kvfi_rows *rows, int32_t n, int32_t dim, int32_t dim_pad, float *tile)
{
    float row[KVFI_DIM_MAX];
    memset(tile, 0, (size_t)dim_pad * KVF_BLOCK * sizeof *tile);
    for (int32_t i = 0; i < n; i++) {
        load(rows->type, row_at(rows, i), 0, dim, row);
        for (int c = 0; c < dim; c++) tile[c * KVF_BLOCK + i] = row[c];
    }
}

static void rows_unfold_v(const kvfi_rows *rows, int32_t n, int32_t dim, int32_t dim_pad, float *tile)
{
    memset(tile, 0, (size_t)dim_pad * KVF_BLOCK * sizeof *tile);
    for (int32_t i = 0; i < n; i++) load(rows->type, row_at(rows, i), 0, dim, tile + i * dim_pad);
}

void kvfi_scalar_rows(kvfi_kernels *k)
{
    k->rows_score = rows_score;
    k->rows_mix = rows_mix;
    k->rows_unfold_k = rows_unfold_k;
    k->rows_unfold_v = rows_unfold_v;
}
