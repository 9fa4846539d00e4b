/* SPDX-License-Identifier: MIT
 * KVF_KIND_HALF. */
#include "codec/shared/part.h"
#include "cpu/scalar/scalar.h"
#include "gpu/kernels/value.h"

#include <string.h>

static void score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *out)
{
    const uint16_t *k = record;
    const float *q = prepared;
    size_t stride = (size_t)part->dim_pad;
    float sum[KVFI_TILE][KVFI_CHUNK], row[KVFI_CHUNK];
    for (int32_t v = 0; v < n; v += KVFI_TILE) {
        int32_t nv = n - v < KVFI_TILE ? n - v : KVFI_TILE;
        memset(sum, 0, sizeof sum);
        for (int c = 0; c < part->dim; c++) {
            for (int t = 0; t < KVF_BLOCK; t++) row[t] = kvfi_half_to_float(k[c * KVF_BLOCK + t]);
            kvfi_scalar_add(sum, q + (size_t)v * stride + c, stride, nv, row);
        }
        memcpy(out + (size_t)v * KVF_BLOCK, sum, (size_t)nv * sizeof *sum);
    }
}

static void mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    const uint16_t *values = record;
    float sum[KVFI_TILE][KVFI_CHUNK], row[KVFI_CHUNK] = {0};
    for (int32_t v = 0; v < n; v += KVFI_TILE)
        for (int c = 0; c < part->dim; c += KVFI_CHUNK) {
            int32_t nv = n - v < KVFI_TILE ? n - v : KVFI_TILE, nc = part->dim - c < KVFI_CHUNK ? part->dim - c : KVFI_CHUNK;
            memset(sum, 0, sizeof sum);
            for (int t = 0; t < KVF_BLOCK; t++) {
                for (int i = 0; i < nc; i++) row[i] = kvfi_half_to_float(values[t * part->dim_pad + c + i]);
                kvfi_scalar_add(sum, w + v * KVF_BLOCK + t, KVF_BLOCK, nv, row);
            }
            for (int32_t j = 0; j < nv; j++)
                for (int i = 0; i < nc; i++) acc[(size_t)(v + j) * stride + (size_t)(c + i)] += sum[j][i];
        }
}

static void unfold(const kvf_part *part, const void *record, float *tile)
{
    kvfi_shape s = kvfi_shape_of(part);
    for (int t = 0; t < KVF_BLOCK; t++)
        for (int c = 0; c < s.dim_pad; c++) tile[kvfi_half_index(&s, t, c)] = kvfi_value_half(&s, record, t, c);
}

void kvfi_scalar_half(kvfi_kind_ops *ops)
{
    *ops = (kvfi_kind_ops){kvfi_scalar_prepared_bytes, kvfi_scalar_prepare, score, mix, unfold, 0, 0};
}
