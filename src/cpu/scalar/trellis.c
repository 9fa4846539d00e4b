/* SPDX-License-Identifier: MIT
 * KVF_KIND_TRELLIS: states are carried from channel to channel. */
#include "codec/shared/part.h"
#include "cpu/scalar/scalar.h"
#include "gpu/kernels/trellis.h"

#include <string.h>

static uint8_t next_state(const kvfi_shape *s, int state, int code)
{
    return (uint8_t)(state << s->bits | code);
}

/* Goes through the channels of 64 keys. */
typedef struct keys {
    const kvfi_shape *s;
    const uint8_t *record;
    int c; /* the next channel */
    uint8_t state[KVF_BLOCK];
} keys;

static keys open_keys(const kvfi_shape *s, const uint8_t *record)
{
    keys k = {.s = s, .record = record};
    for (int t = 0; t < KVF_BLOCK; t++) k.state[t] = (uint8_t)kvfi_state_of(s, record, t, s->dim - 1);
    return k;
}

/* row[t]: what the next channel stands for before its scale. */
static void next_row(keys *k, float *row)
{
    uint8_t codes[KVF_BLOCK];
    kvfi_codes_get_row(k->record, k->s->bits, kvfi_reduction(k->s), kvfi_lanes(k->s), k->c++, 0, KVF_BLOCK, codes);
    for (int t = 0; t < KVF_BLOCK; t++) row[t] = kvfi_level(k->s, k->state[t] = next_state(k->s, k->state[t], codes[t]));
}

static void score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *out)
{
    const kvfi_shape s = kvfi_shape_of(part);
    const size_t stride = (size_t)s.dim_pad;
    const float *q = prepared;
    float sum[KVFI_TILE][KVFI_CHUNK], row[KVFI_CHUNK];
    for (int32_t v = 0; v < n; v += KVFI_TILE) {
        const int32_t nv = n - v < KVFI_TILE ? n - v : KVFI_TILE;
        keys k = open_keys(&s, record);
        memset(sum, 0, sizeof sum);
        for (int c = 0; c < s.dim; c++) {
            next_row(&k, row);
            kvfi_scalar_add(sum, q + (size_t)v * stride + (size_t)c, stride, nv, row);
        }
        for (int32_t i = 0; i < nv * KVF_BLOCK; i++)
            out[v * KVF_BLOCK + i] = kvfi_section(record, s.scale_offset, i % KVF_BLOCK) * sum[i / KVF_BLOCK][i % KVF_BLOCK];
    }
}

/* row[i]: what channel first + i of value t stands for before its scale; first is a multiple of 16. */
static void value_row(const kvfi_shape *s, const uint8_t *record, int t, int first, int count, float *row)
{
    uint8_t codes[KVFI_DIM_MAX];
    int state = kvfi_state_of(s, record, t, (first ? first : s->dim) - 1);
    kvfi_codes_get_row(record, s->bits, kvfi_reduction(s), kvfi_lanes(s), t, first, (count + 15) / 16 * 16, codes);
    for (int i = 0; i < count; i++) row[i] = kvfi_level(s, state = next_state(s, state, codes[i]));
}

static void mix_tile(const kvfi_shape *s, const uint8_t *record, const float *w, int32_t n, int first, int count, float *acc,
                     size_t stride)
{
    float sum[KVFI_TILE][KVFI_CHUNK] = {{0}}, row[KVFI_CHUNK];
    for (int t = 0; t < KVF_BLOCK; t++) {
        const float scale = kvfi_section(record, s->scale_offset, t);
        value_row(s, record, t, first, count, row);
        for (int32_t v = 0; v < n; v++)
            for (int i = 0; i < count; i++) sum[v][i] += w[v * KVF_BLOCK + t] * scale * row[i];
    }
    for (int32_t v = 0; v < n; v++)
        for (int i = 0; i < count; i++) acc[(size_t)v * stride + (size_t)(first + i)] += sum[v][i];
}

static void mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    const kvfi_shape s = kvfi_shape_of(part);
    kvfi_scalar_mix(&s, record, w, n, acc, stride, mix_tile);
}

static void unfold_keys(const kvfi_shape *s, const uint8_t *record, float *tile)
{
    keys k = open_keys(s, record);
    for (int c = 0; c < s->dim; c++, tile += KVF_BLOCK) {
        next_row(&k, tile);
        for (int t = 0; t < KVF_BLOCK; t++) tile[t] *= kvfi_section(record, s->scale_offset, t);
    }
    memset(tile, 0, (size_t)(s->dim_pad - s->dim) * KVF_BLOCK * sizeof *tile);
}

static void unfold_values(const kvfi_shape *s, const uint8_t *record, float *tile)
{
    for (int t = 0; t < KVF_BLOCK; t++, tile += s->dim_pad) {
        const float scale = kvfi_section(record, s->scale_offset, t);
        value_row(s, record, t, 0, s->dim, tile);
        for (int c = 0; c < s->dim; c++) tile[c] *= scale;
        memset(tile + s->dim, 0, (size_t)(s->dim_pad - s->dim) * sizeof *tile);
    }
}

static void unfold(const kvf_part *part, const void *record, float *tile)
{
    const kvfi_shape s = kvfi_shape_of(part);
    if (s.keys)
        unfold_keys(&s, record, tile);
    else
        unfold_values(&s, record, tile);
}

void kvfi_scalar_trellis(kvfi_kind_ops *ops)
{
    *ops = (kvfi_kind_ops){kvfi_scalar_prepared_bytes, kvfi_scalar_prepare, score, mix, unfold, 0, 0};
}
