/* SPDX-License-Identifier: MIT
 * KVF_KIND_SUM: each code matrix is a record of its own with one scale a token; queries and sums go through its map. Maps that do
 * not depend on the record are applied once, in prepare. */
#include "codec/shared/sum.h"
#include "cpu/scalar/scalar.h"

#include <string.h>

/* Is A_i q kept with the prepared queries? */
static int kept(const kvf_part *part, int32_t i)
{
    return part->matrix[i].map == KVF_MAP_SKETCH && !kvfi_sum_chosen(part, i);
}

/* q[n][dim_pad], then for each kept map [n][width]. */
static size_t prepared_bytes(const kvf_part *part, int32_t n)
{
    size_t floats = (size_t)part->dim_pad;
    for (int32_t i = 0; i < part->n_matrices; i++)
        if (kept(part, i)) floats += (size_t)part->matrix[i].width;
    return kvfi_align64((size_t)n * floats * sizeof(float));
}

/* y[v] = A_i q_v, ready to meet decoded coordinates. */
static void map_queries(const kvf_part *part, int32_t i, const void *record, const float *q, size_t stride, int32_t n, float *y)
{
    const int32_t width = part->matrix[i].width, step = kvfi_sum_step(part, i);
    const float factor = kvfi_sum_factor(part, i);
    for (int32_t first = 0; first < width; first += step)
        kvfi_sum_apply(part, i, record, q, stride, n, first, width - first < step ? width - first : step, y + first,
                       (size_t)width);
    for (int32_t j = 0; j < n * width; j++) y[j] *= factor;
}

static void prepare(const kvf_part *part, const float *q, size_t stride, int32_t n, void *prepared)
{
    float *at = prepared;
    for (int32_t v = 0; v < n; v++, at += part->dim_pad) memcpy(at, q + (size_t)v * stride, (size_t)part->dim_pad * sizeof *at);
    for (int32_t i = 0; i < part->n_matrices; i++)
        if (kept(part, i)) {
            map_queries(part, i, NULL, q, stride, n, at);
            at += (size_t)n * (size_t)part->matrix[i].width;
        }
}

/* Vectors whose coordinates fit `room`. */
static int32_t at_once(int32_t n, int32_t width)
{
    const int32_t most = KVFI_SUM_ROOM / width < KVFI_TILE ? KVFI_SUM_ROOM / width : KVFI_TILE;
    return n < most ? n : most;
}

/* Adds the scores of matrix i. ready: its mapped queries, or NULL. */
static void score_matrix(const kvf_part *part, int32_t i, const uint8_t *record, const float *q, const float *ready, int32_t n,
                         float *out)
{
    const kvfi_shape s = kvfi_sum_shape(part, i);
    const size_t width = (size_t)s.dim_pad, dim = (size_t)part->dim_pad;
    float y[KVFI_SUM_ROOM], scores[KVFI_TILE * KVF_BLOCK];
    for (int32_t v = 0, nv; v < n; v += nv) {
        nv = at_once(n - v, s.dim_pad);
        if (!ready) map_queries(part, i, record, q + (size_t)v * dim, dim, nv, y);
        kvfi_scalar_token_score(&s, record + part->matrix[i].codes_offset, ready ? ready + (size_t)v * width : y, NULL, nv,
                                scores);
        for (int32_t j = 0; j < nv * KVF_BLOCK; j++) out[v * KVF_BLOCK + j] += scores[j];
    }
}

static void score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *out)
{
    const float *q = prepared, *ready = q + (size_t)n * (size_t)part->dim_pad;
    memset(out, 0, (size_t)n * KVF_BLOCK * sizeof *out);
    for (int32_t i = 0; i < part->n_matrices; i++) {
        score_matrix(part, i, record, q, kept(part, i) ? ready : NULL, n, out);
        if (kept(part, i)) ready += (size_t)n * (size_t)part->matrix[i].width;
    }
}

static void mix_matrix(const kvf_part *part, int32_t i, const uint8_t *record, const float *w, int32_t n, float *acc,
                       size_t stride)
{
    const kvfi_shape s = kvfi_sum_shape(part, i);
    const int32_t step = kvfi_sum_step(part, i);
    const float factor = kvfi_sum_factor(part, i);
    float y[KVFI_SUM_ROOM];
    memset(y, 0, (size_t)(n * s.dim_pad) * sizeof *y);
    kvfi_scalar_mix(&s, record + part->matrix[i].codes_offset, w, n, y, (size_t)s.dim_pad, kvfi_scalar_token_mix);
    for (int32_t j = 0; j < n * s.dim_pad; j++) y[j] *= factor;
    for (int32_t first = 0; first < s.dim_pad; first += step)
        kvfi_sum_return(part, i, record, y + first, (size_t)s.dim_pad, n, first,
                        s.dim_pad - first < step ? s.dim_pad - first : step, acc, stride, 1);
}

static void mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    for (int32_t i = 0; i < part->n_matrices; i++)
        for (int32_t v = 0, nv; v < n; v += nv) {
            nv = at_once(n - v, part->matrix[i].width);
            mix_matrix(part, i, record, w + v * KVF_BLOCK, nv, acc + (size_t)v * stride, stride);
        }
}

/* y[t - from][j - first]: decoded coordinates, factor included; from and n are multiples of 16. */
static void decode(const kvf_part *part, int32_t i, const uint8_t *record, int32_t from, int32_t n, int32_t first, int32_t count,
                   float *y, size_t stride)
{
    const kvfi_shape s = kvfi_sum_shape(part, i);
    const uint8_t *codes = record + part->matrix[i].codes_offset;
    const float factor = kvfi_sum_factor(part, i);
    uint8_t row[KVFI_DIM_MAX];
    float scale[KVF_BLOCK];
    for (int32_t t = 0; t < n; t++) scale[t] = kvfi_section(codes, s.scale_offset, from + t);
    for (int32_t j = 0; j < count && s.keys; j++) {
        kvfi_codes_get_row(codes, s.bits, kvfi_reduction(&s), kvfi_lanes(&s), first + j, from, n, row);
        for (int32_t t = 0; t < n; t++) y[(size_t)t * stride + (size_t)j] = kvfi_level(&s, row[t]) * scale[t] * factor;
    }
    for (int32_t t = 0; t < n && !s.keys; t++) {
        kvfi_codes_get_row(codes, s.bits, kvfi_reduction(&s), kvfi_lanes(&s), from + t, first, count, row);
        for (int32_t j = 0; j < count; j++) y[(size_t)t * stride + (size_t)j] = kvfi_level(&s, row[j]) * scale[t] * factor;
    }
}

static void unfold(const kvf_part *part, const void *record, float *tile)
{
    const int keys = part->side == KVF_K;
    const size_t vector = keys ? 1 : (size_t)part->dim_pad, channel = keys ? KVF_BLOCK : 1;
    float y[KVFI_SUM_ROOM];
    memset(tile, 0, (size_t)part->dim_pad * KVF_BLOCK * sizeof *tile);
    for (int32_t i = 0; i < part->n_matrices; i++) {
        const int32_t width = part->matrix[i].width, step = kvfi_sum_step(part, i), batch = kvfi_sum_batch(step);
        for (int32_t first = 0; first < width; first += step)
            for (int32_t t = 0; t < KVF_BLOCK; t += batch) {
                const int32_t count = width - first < step ? width - first : step;
                decode(part, i, record, t, batch, first, count, y, (size_t)step);
                kvfi_sum_return(part, i, record, y, (size_t)step, batch, first, count, tile + (size_t)t * vector, vector,
                                channel);
            }
    }
}

void kvfi_scalar_sum(kvfi_kind_ops *ops)
{
    *ops = (kvfi_kind_ops){.prepared_bytes = prepared_bytes, .prepare = prepare, .score = score, .mix = mix, .unfold = unfold};
}
