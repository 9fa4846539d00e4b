/* SPDX-License-Identifier: MIT
 * What a kernel must know of a record: the plan of one side of one layer without anything that belongs to the host. */
#ifndef KVFI_KERNELS_SHAPE_H
#define KVFI_KERNELS_SHAPE_H

#include "gpu/kernels/codes.h"

#define KVFI_TOKENS 64 /* of a record */

typedef struct kvfi_shape {
    int32_t keys;    /* 1: keys (reduction = channel), 0: values (reduction = token) */
    int32_t dim;     /* live channels */
    int32_t dim_pad; /* channels inside the record */
    int32_t bits;
    int32_t t_group; /* tokens that share a scale */
    int32_t c_group; /* channels that share a scale */
    int32_t n_cg, n_tg;
    int32_t has_min;
    float zero;
    const KVF_GLOBAL int16_t *table;   /* NULL: uniform codes */
    float unit;                        /* of a table entry */
    int32_t sub;                       /* channels of a sub-vector, and the centroids of those: vector.h */
    const KVF_GLOBAL float *book;      /* [2^bits][sub] */
    uint32_t scale_offset, min_offset; /* bytes from the start of the record */
} kvfi_shape;

KVF_FN int kvfi_reduction(const KVF_PRIVATE kvfi_shape *s)
{
    return s->keys ? s->dim_pad : KVFI_TOKENS;
}

KVF_FN int kvfi_lanes(const KVF_PRIVATE kvfi_shape *s)
{
    return s->keys ? KVFI_TOKENS : s->dim_pad;
}

/* The code of channel c of token t. */
KVF_FN int kvfi_code_of(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, int t, int c)
{
    return kvfi_code_get(record, s->bits, kvfi_reduction(s), kvfi_lanes(s), s->keys ? c : t, s->keys ? t : c);
}

/* What a code stands for before its scale: a step of a uniform quantiser, or an entry of the table. */
KVF_FN float kvfi_level(const KVF_PRIVATE kvfi_shape *s, int code)
{
    return s->table ? KVF_MUL((float)s->table[code], s->unit) : KVF_SUB((float)code, s->zero);
}

/* Element i of the f16 section that starts at `offset`. */
KVF_FN float kvfi_section(const KVF_GLOBAL uint8_t *record, uint32_t offset, int i)
{
    return KVF_HALF_TO_FLOAT(((const KVF_GLOBAL uint16_t *)(const KVF_GLOBAL void *)(record + offset))[i]);
}

/* Index of the scale of channel c of token t: [n_cg][64], or [n_tg][dim_pad]. */
KVF_FN int kvfi_scale_index_token(const KVF_PRIVATE kvfi_shape *s, int t, int c)
{
    return c / s->c_group * KVFI_TOKENS + t;
}

KVF_FN int kvfi_scale_index_channel(const KVF_PRIVATE kvfi_shape *s, int t, int c)
{
    return t / s->t_group * s->dim_pad + c;
}

/* Index of an element of KVF_KIND_HALF: keys [dim_pad][64], values [64][dim_pad]. */
KVF_FN int kvfi_half_index(const KVF_PRIVATE kvfi_shape *s, int t, int c)
{
    return s->keys ? c * KVFI_TOKENS + t : t * s->dim_pad + c;
}

#endif
