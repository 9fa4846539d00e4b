/* SPDX-License-Identifier: MIT
 * Decoding one value. Exact: the same bits on every target. Channels from dim on are padding and decode to +0. */
#ifndef KVFI_KERNELS_VALUE_H
#define KVFI_KERNELS_VALUE_H

#include "gpu/kernels/shape.h"

/* Multiplication and addition are rounded apart: contracted, one value in some thousands differs in its last bit. */
KVF_FN float kvfi_dequantise(const KVF_PRIVATE kvfi_shape *s, int code, float scale, float min)
{
    return s->has_min ? KVF_ADD(KVF_MUL((float)code, scale), min) : KVF_MUL(kvfi_level(s, code), scale);
}

KVF_FN float kvfi_value_token(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, int t, int c)
{
    if (c >= s->dim) return 0.0f;
    int i = kvfi_scale_index_token(s, t, c);
    return kvfi_dequantise(s, kvfi_code_of(s, record, t, c), kvfi_section(record, s->scale_offset, i),
                           s->has_min ? kvfi_section(record, s->min_offset, i) : 0.0f);
}

KVF_FN float kvfi_value_channel(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, int t, int c)
{
    if (c >= s->dim) return 0.0f;
    int i = kvfi_scale_index_channel(s, t, c);
    return kvfi_dequantise(s, kvfi_code_of(s, record, t, c), kvfi_section(record, s->scale_offset, i),
                           s->has_min ? kvfi_section(record, s->min_offset, i) : 0.0f);
}

KVF_FN float kvfi_value_half(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, int t, int c)
{
    return c < s->dim ? kvfi_section(record, 0, kvfi_half_index(s, t, c)) : 0.0f;
}

#endif
