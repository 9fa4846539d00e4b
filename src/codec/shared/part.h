/* SPDX-License-Identifier: MIT
 * What setup and encode functions of several families share. */
#ifndef KVFI_PART_H
#define KVFI_PART_H

#include "codec/codec.h"
#include "codec/shared/layout.h"
#include "gpu/kernels/shape.h"

#define KVFI_DIM_MAX 1024

/* Sections of a record and whole records start on a multiple of 64 bytes. */
static inline size_t kvfi_align64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Channels that are coded: those of the head and the zeros that its rotation needs. */
int32_t kvfi_part_dim(const kvf_part *part, int32_t head_dim);

/* Fills head_dim, dim, dim_pad, the numbers of groups, the offsets and the size from kind, bits, groups (c_group 0: all channels),
 * rotation and has_min, for KVF_KIND_SUM from matrices and n_out, which must be set. Order of sections: codes (or f16 values), scales, minima. */
void kvfi_part_layout(kvf_part *part, int32_t dim);

/* Is there one scale for a token and a group of channels? */
static inline int kvfi_part_by_token(const kvf_part *part)
{
    return part->kind == KVF_KIND_TOKEN || part->kind == KVF_KIND_TABLE || part->kind == KVF_KIND_TRELLIS;
}

/* The part as the kernels see it. */
static inline kvfi_shape kvfi_shape_of(const kvf_part *part)
{
    return (kvfi_shape){
        .keys = part->side == KVF_K,
        .dim = part->dim,
        .dim_pad = part->dim_pad,
        .bits = part->bits,
        .t_group = part->t_group,
        .c_group = part->c_group,
        .n_cg = part->n_cg,
        .n_tg = part->n_tg,
        .has_min = part->has_min,
        .zero = part->zero,
        .table = part->kind == KVF_KIND_TABLE || part->kind == KVF_KIND_TRELLIS ? part->table : NULL,
        .unit = part->unit,
        .sub = part->sub,
        .book = part->book,
        .scale_offset = (uint32_t)part->scale_offset,
        .min_offset = (uint32_t)part->min_offset,
    };
}

/* The part of one KV head: `part` itself where heads share everything, else *room, which is a copy with the head's own codebook and
 * error feedback. */
static inline const kvf_part *kvfi_part_of(const kvf_part *part, int32_t head, kvf_part *room)
{
    if (!part->book_stride && !part->feedback) return part;
    *room = *part;
    if (part->feedback) room->feedback += (size_t)head * part->feedback_stride;
    room->book += (size_t)head * part->book_stride;
    if (part->entries) room->entries += (size_t)head * part->book_stride;
    if (part->entries) room->unit = part->units[part->book_stride ? head : 0];
    return room;
}

/* An f16 section of a record. */
static inline uint16_t *kvfi_halves(void *record, size_t offset)
{
    return (uint16_t *)(void *)((char *)record + offset);
}

/* For codecs whose name says everything: refuses digits behind it. */
int kvfi_spec_no_bits(const kvf_spec *spec, char *error, size_t error_size);

/* rot=none|h|h1|h2|haar (`fallback` when not given) and seed=N. */
int kvfi_spec_rotation(const kvf_spec *spec, const char *fallback, int32_t dim, kvf_rotation *rot, char *error,
                       size_t error_size);

#endif
