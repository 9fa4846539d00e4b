/* SPDX-License-Identifier: MIT
 * KVF_KIND_TOKEN: a scale (and minimum) per token and group of channels. */
#include "codec/shared/part.h"
#include "cpu/scalar/scalar.h"
#include "gpu/kernels/attend.h"
#include "gpu/kernels/value.h"

#include <string.h>

void kvfi_scalar_token_score(const kvfi_shape *s, const uint8_t *record, const float *q, const float *sums, int32_t n, float *out)
{
    float part[KVFI_TILE][KVFI_CHUNK], row[KVFI_CHUNK];
    memset(out, 0, (size_t)n * sizeof *part);
    for (int g = 0; g < s->n_cg; g++) {
        int first = g * s->c_group, end = first + kvfi_group_size(s, g);
        memset(part, 0, sizeof part);
        for (int c = first; c < end; c++) {
            kvfi_scalar_code_row(s, record, c, 0, KVF_BLOCK, row);
            kvfi_scalar_add(part, q + c, (size_t)s->dim_pad, n, row);
        }
        for (int t = 0; t < KVF_BLOCK; t++) {
            float scale = kvfi_section(record, s->scale_offset, g * KVF_BLOCK + t);
            float min = s->has_min ? kvfi_section(record, s->min_offset, g * KVF_BLOCK + t) : 0.0f;
            for (int32_t v = 0; v < n; v++) {
                out[v * KVF_BLOCK + t] += scale * part[v][t];
                if (s->has_min) out[v * KVF_BLOCK + t] += min * sums[v * s->n_cg + g];
            }
        }
    }
}

static void score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *out)
{
    kvfi_shape s = kvfi_shape_of(part);
    const float *q = prepared, *sums = q + (size_t)n * (size_t)s.dim_pad;
    for (int32_t v = 0; v < n; v += KVFI_TILE)
        kvfi_scalar_token_score(&s, record, q + (size_t)v * (size_t)s.dim_pad, sums + v * s.n_cg,
                                n - v < KVFI_TILE ? n - v : KVFI_TILE, out + v * KVF_BLOCK);
}

/* scale[i] and min[i] of channel first + i of token t. */
static void scale_row(const kvfi_shape *s, const uint8_t *record, int t, int first, int count, float *scale, float *min)
{
    for (int i = 0; i < count; i++) {
        int at = kvfi_scale_index_token(s, t, first + i);
        scale[i] = kvfi_section(record, s->scale_offset, at);
        min[i] = s->has_min ? kvfi_section(record, s->min_offset, at) : 0.0f;
    }
}

/* Channels first .. first + count - 1 of n <= KVFI_TILE vectors. */
void kvfi_scalar_token_mix(const kvfi_shape *s, const uint8_t *record, const float *w, int32_t n, int first, int count,
                           float *acc, size_t stride)
{
    float sum[KVFI_TILE][KVFI_CHUNK] = {{0}}, bias[KVFI_TILE][KVFI_CHUNK] = {{0}};
    float row[KVFI_CHUNK], scale[KVFI_CHUNK], min[KVFI_CHUNK];
    for (int t = 0; t < KVF_BLOCK; t++) {
        kvfi_scalar_code_row(s, record, t, first, (count + 15) / 16 * 16, row);
        scale_row(s, record, t, first, count, scale, min);
        for (int32_t v = 0; v < n; v++)
            for (int i = 0; i < count; i++) {
                sum[v][i] += w[v * KVF_BLOCK + t] * scale[i] * row[i];
                bias[v][i] += w[v * KVF_BLOCK + t] * min[i];
            }
    }
    for (int32_t v = 0; v < n; v++)
        for (int i = 0; i < count; i++) acc[(size_t)v * stride + (size_t)(first + i)] += sum[v][i] + bias[v][i];
}

static void mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    const kvfi_shape s = kvfi_shape_of(part);
    kvfi_scalar_mix(&s, record, w, n, acc, stride, kvfi_scalar_token_mix);
}

static void unfold(const kvf_part *part, const void *record, float *tile)
{
    kvfi_scalar_unfold(part, record, tile, kvfi_scale_index_token);
}

void kvfi_scalar_token(kvfi_kind_ops *ops)
{
    *ops = (kvfi_kind_ops){kvfi_scalar_prepared_bytes, kvfi_scalar_prepare, score, mix, unfold, 0, 0};
}
