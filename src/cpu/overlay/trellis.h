/* SPDX-License-Identifier: MIT
 * KVF_KIND_TRELLIS to tiles on any overlay, 64 channels at a time. The state of a channel is put together from the codes before it, so
 * that neither tokens nor channels have to wait for each other. */
#ifndef KVFI_OVERLAY_TRELLIS_H
#define KVFI_OVERLAY_TRELLIS_H

#include "codec/shared/part.h"
#include "cpu/scalar/scalar.h"

enum { TRELLIS_CHANNELS = 64 };

typedef struct trellis {
    kvfi_shape s;
    const uint8_t *record;
    float level[256], scale[KVF_BLOCK];
} trellis;

static void open_trellis(const kvf_part *part, const void *record, trellis *x)
{
    x->s = kvfi_shape_of(part), x->record = record;
    for (int i = 0; i < 256; i++) x->level[i] = (float)part->table[i] * part->unit;
    for (int t = 0; t < KVF_BLOCK; t++) x->scale[t] = kvfi_section(record, x->s.scale_offset, t);
}

/* state[i] |= code[i] << got, eight bits. */
static inline void add_codes(uint8_t *state, const uint8_t *code, int n, int got)
{
    for (int i = 0; i < n; i++) state[i] = (uint8_t)(state[i] | code[i] << got);
}

/* Channels first .. first + count - 1 of the keys: tile[count][64]. */
static void trellis_keys(const trellis *x, int first, int count, float *tile)
{
    const kvfi_shape *s = &x->s;
    uint8_t codes[TRELLIS_CHANNELS + 8][KVF_BLOCK], state[KVF_BLOCK];
    const int live = s->dim - first < count ? s->dim - first : count;
    for (int c = -7; c < live; c++) /* 7: at one bit */
        kvfi_codes_get_row(x->record, s->bits, s->dim_pad, KVF_BLOCK, (first + c + s->dim) % s->dim, 0, KVF_BLOCK, codes[c + 7]);
    for (int c = 0; c < live; c++, tile += KVF_BLOCK) {
        memset(state, 0, sizeof state);
        for (int got = 0, back = 0; got < 8; got += s->bits, back++) add_codes(state, codes[c + 7 - back], KVF_BLOCK, got);
        for (int t = 0; t < KVF_BLOCK; t++) tile[t] = x->level[state[t]] * x->scale[t];
    }
    memset(tile, 0, (size_t)(count - live) * KVF_BLOCK * sizeof *tile);
}

/* The codes of value t from channel first - 8 on, first and count multiples of 16. */
static void codes_before(const trellis *x, int t, int first, int count, uint8_t *codes)
{
    const kvfi_shape *s = &x->s;
    uint8_t last[16];
    const int from = first ? first - 16 : (s->dim - 1) / 16 * 16;
    kvfi_codes_get_row(x->record, s->bits, KVF_BLOCK, s->dim_pad, t, first, count, codes + 8);
    kvfi_codes_get_row(x->record, s->bits, KVF_BLOCK, s->dim_pad, t, from, 16, last);
    if (first || s->dim % 16 == 0)
        memcpy(codes, last + 8, 8);
    else
        for (int i = 1; i <= 7; i++) codes[8 - i] = (uint8_t)kvfi_code_of(s, x->record, t, s->dim - i);
}

/* Channels first .. first + count - 1 of the values: tile[64][stride]. */
static void trellis_values(const trellis *x, int first, int count, float *tile, size_t stride)
{
    const kvfi_shape *s = &x->s;
    uint8_t codes[TRELLIS_CHANNELS + 8], state[TRELLIS_CHANNELS];
    const int live = s->dim - first < count ? s->dim - first : count;
    for (int t = 0; t < KVF_BLOCK; t++, tile += stride) {
        codes_before(x, t, first, count, codes);
        memset(state, 0, sizeof state);
        for (int got = 0, back = 0; got < 8; got += s->bits, back++) add_codes(state, codes + 8 - back, live, got);
        for (int i = 0; i < live; i++) tile[i] = x->level[state[i]] * x->scale[t];
        memset(tile + live, 0, (size_t)(count - live) * sizeof *tile);
    }
}

static inline int trellis_count(const trellis *x, int first)
{
    return x->s.dim_pad - first < TRELLIS_CHANNELS ? x->s.dim_pad - first : TRELLIS_CHANNELS;
}

static void trellis_unfold(const kvf_part *part, const void *record, float *tile)
{
    trellis x;
    open_trellis(part, record, &x);
    for (int first = 0; first < part->dim_pad; first += TRELLIS_CHANNELS)
        if (part->side == KVF_K)
            trellis_keys(&x, first, trellis_count(&x, first), tile + (size_t)first * KVF_BLOCK);
        else
            trellis_values(&x, first, trellis_count(&x, first), tile + first, (size_t)part->dim_pad);
}

#endif
