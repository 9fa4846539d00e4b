/* SPDX-License-Identifier: MIT
 * Codes into a record, 16 tokens at a time: the arrangement of layout.h, whole lines of 64 bytes and not code by code. */
#ifndef KVFI_PACK_H
#define KVFI_PACK_H

#include "kvfold_codec.h"

enum { KVFI_PACKED_TOKENS = 16 };

/* Where codes go: a matrix of one side, its bits, its width (a multiple of 16), its bytes, which are zero before. */
typedef struct kvfi_packing {
    kvf_side side;
    int32_t bits, width;
    uint8_t *to;
} kvfi_packing;

/* Stores codes[16][stride] of the tokens t to t + 15 (t a multiple of 16) and of `channels` channels from c on, both multiples of 16. */
void kvfi_pack(const kvfi_packing *p, int32_t t, int32_t c, int32_t channels, const uint8_t *codes, size_t stride);

/* The codes of a record that is one matrix. */
static inline kvfi_packing kvfi_packing_of(const kvf_part *part, void *record)
{
    return (kvfi_packing){part->side, part->bits, part->dim_pad, record};
}

#endif
