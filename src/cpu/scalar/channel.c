/* SPDX-License-Identifier: MIT
 * KVF_KIND_CHANNEL: a scale (and minimum) per channel and group of tokens. */
#include "codec/shared/part.h"
#include "cpu/scalar/scalar.h"
#include "gpu/kernels/attend.h"
#include "gpu/kernels/value.h"

#include <string.h>

/* What channel c adds to the scores of n <= KVFI_TILE vectors: its scale times the query multiplies the codes, its minimum times
 * the query goes to a bias of the token group. */
static void score_channel(const kvfi_shape *s, const uint8_t *record, const float *q, int32_t n, int c, float sum[][KVFI_CHUNK],
                          float bias[][KVFI_CHUNK])
{
    float row[KVFI_CHUNK];
    kvfi_scalar_code_row(s, record, c, 0, KVF_BLOCK, row);
    for (int g = 0; g < s->n_tg; g++) {
        float scale = kvfi_section(record, s->scale_offset, g * s->dim_pad + c);
        float min = s->has_min ? kvfi_section(record, s->min_offset, g * s->dim_pad + c) : 0.0f;
        for (int32_t v = 0; v < n; v++) {
            float folded = q[v * s->dim_pad + c] * scale;
            for (int t = g * s->t_group; t < (g + 1) * s->t_group; t++) sum[v][t] += folded * row[t];
            bias[v][g] += q[v * s->dim_pad + c] * min;
        }
    }
}

static void score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *out)
{
    kvfi_shape s = kvfi_shape_of(part);
    const float *q = prepared;
    for (int32_t v = 0; v < n; v += KVFI_TILE) {
        int32_t nv = n - v < KVFI_TILE ? n - v : KVFI_TILE;
        float sum[KVFI_TILE][KVFI_CHUNK] = {{0}}, bias[KVFI_TILE][KVFI_CHUNK] = {{0}};
        for (int c = 0; c < s.dim; c++) score_channel(&s, record, q + v * s.dim_pad, nv, c, sum, bias);
        for (int32_t j = 0; j < nv; j++)
            for (int t = 0; t < KVF_BLOCK; t++) out[(v + j) * KVF_BLOCK + t] = sum[j][t] + bias[j][t / s.t_group];
    }
}

/* Channels first .. first + count - 1 of n <= KVFI_TILE vectors. */
static void mix_tile(const kvfi_shape *s, const uint8_t *record, const float *w, int32_t n, int first, int count, float *acc,
                     size_t stride)
{
    float sum[KVFI_TILE][KVFI_CHUNK] = {{0}}, part[KVFI_TILE][KVFI_CHUNK], row[KVFI_CHUNK] = {0};
    for (int g = 0; g < s->n_tg; g++) {
        memset(part, 0, sizeof part);
        for (int t = g * s->t_group; t < (g + 1) * s->t_group; t++) {
            kvfi_scalar_code_row(s, record, t, first, (count + 15) / 16 * 16, row);
            kvfi_scalar_add(part, w + t, KVF_BLOCK, n, row);
        }
        for (int32_t v = 0; v < n; v++) {
            float weight = kvfi_group_sum(w + v * KVF_BLOCK, g * s->t_group, s->t_group);
            for (int i = 0; i < count; i++) {
                sum[v][i] += kvfi_section(record, s->scale_offset, g * s->dim_pad + first + i) * part[v][i];
                if (s->has_min) sum[v][i] += kvfi_section(record, s->min_offset, g * s->dim_pad + first + i) * weight;
            }
        }
    }
    for (int32_t v = 0; v < n; v++)
        for (int i = 0; i < count; i++) acc[(size_t)v * stride + (size_t)(first + i)] += sum[v][i];
}

static void mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    const kvfi_shape s = kvfi_shape_of(part);
    kvfi_scalar_mix(&s, record, w, n, acc, stride, mix_tile);
}

static void unfold(const kvf_part *part, const void *record, float *tile)
{
    kvfi_scalar_unfold(part, record, tile, kvfi_scale_index_channel);
}

void kvfi_scalar_channel(kvfi_kind_ops *ops)
{
    *ops = (kvfi_kind_ops){kvfi_scalar_prepared_bytes, kvfi_scalar_prepare, score, mix, unfold, 0, 0};
}
