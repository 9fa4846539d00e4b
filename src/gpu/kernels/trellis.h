/* SPDX-License-Identifier: MIT
 * KVF_KIND_TRELLIS: a value is table[state] * unit * scale, the state of a channel being the newest 8 bits of the codes up to it, its
 * own code lowest; before the first channel comes the last. */
#ifndef KVFI_KERNELS_TRELLIS_H
#define KVFI_KERNELS_TRELLIS_H

#include "gpu/kernels/shape.h"

KVF_FN int kvfi_state_of(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, int t, int c)
{
    int state = 0;
    for (int got = 0; got < 8; got += s->bits) {
        state |= kvfi_code_of(s, record, t, c) << got;
        c = (c ? c : s->dim) - 1;
    }
    return state & 255;
}

KVF_FN float kvfi_value_trellis(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, int t, int c)
{
    if (c >= s->dim) return 0.0f;
    return KVF_MUL(kvfi_level(s, kvfi_state_of(s, record, t, c)), kvfi_section(record, s->scale_offset, t));
}

KVF_FN float kvfi_score_trellis(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, const KVF_GLOBAL float *q,
                                int t)
{
    float score = 0.0f;
    for (int c = 0; c < s->dim; c++) score += q[c] * kvfi_level(s, kvfi_state_of(s, record, t, c));
    return kvfi_section(record, s->scale_offset, t) * score;
}

/* What the 64 tokens of a record add to channel c < dim. */
KVF_FN float kvfi_mix_trellis(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, const KVF_GLOBAL float *w, int c)
{
    float sum = 0.0f;
    for (int t = 0; t < KVFI_TOKENS; t++)
        sum += w[t] * kvfi_section(record, s->scale_offset, t) * kvfi_level(s, kvfi_state_of(s, record, t, c));
    return sum;
}

#endif
