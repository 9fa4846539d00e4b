/* SPDX-License-Identifier: MIT */
#include "codec/shared/move.h"
#include "codec/shared/part.h"

#include "gpu/kernels/vector.h"

#include <string.h>

int kvfi_part_moves(const kvf_part *part)
{
    if (part->block_mean) return 0;
    return part->kind == KVF_KIND_HALF || part->kind == KVF_KIND_VECTOR || kvfi_part_by_token(part) ||
           (part->kind == KVF_KIND_SUM && !part->n_out);
}

/* A code matrix of `width` channels (a multiple of 16) and 64 tokens. */
typedef struct matrix {
    int32_t keys, bits, width;
} matrix;

static kvfi_where place(const matrix *m, int32_t t, int32_t c, int plane)
{
    return m->keys ? kvfi_code_at(m->bits, m->width, KVF_BLOCK, c, t, plane)
                   : kvfi_code_at(m->bits, KVF_BLOCK, m->width, t, c, plane);
}

/* Codes of a token, four channels at a time: those of a quad of keys are adjacent bytes, those of values lie 4 bytes apart, and either
 * way they share the shift. */
static void move_codes(const matrix *m, const uint8_t *from, int32_t t, uint8_t *to, int32_t u)
{
    const size_t step = m->keys ? 1 : 4;
    for (int p = 0; kvfi_plane_width[m->bits][p]; p++) {
        const unsigned mask = (1u << kvfi_plane_width[m->bits][p]) - 1;
        for (int32_t c = 0; c < m->width; c += 4) {
            const kvfi_where a = place(m, t, c, p), b = place(m, u, c, p);
            for (size_t i = 0; i < 4; i++) {
                const unsigned code = from[a.byte + i * step] >> a.shift & mask,
                               rest = to[b.byte + i * step] & ~(mask << b.shift);
                to[b.byte + i * step] = (uint8_t)(rest | code << b.shift);
            }
        }
    }
}

/* Element t of n rows of 64 f16. */
static void move_halves(int32_t n, const uint8_t *from, int32_t t, uint8_t *to, int32_t u)
{
    for (int32_t i = 0; i < n; i++) memcpy(to + 2 * (i * KVF_BLOCK + u), from + 2 * (i * KVF_BLOCK + t), 2);
}

static void move_half_kind(const kvf_part *part, const uint8_t *from, int32_t t, uint8_t *to, int32_t u)
{
    const size_t row = 2 * (size_t)part->dim_pad;
    if (part->side == KVF_K)
        move_halves(part->dim_pad, from, t, to, u);
    else
        memcpy(to + (size_t)u * row, from + (size_t)t * row, row);
}

static void move_sum_kind(const kvf_part *part, const uint8_t *from, int32_t t, uint8_t *to, int32_t u)
{
    for (int32_t i = 0; i < part->n_matrices; i++) {
        const kvf_matrix *k = &part->matrix[i];
        const matrix m = {part->side == KVF_K, k->bits, k->width};
        move_codes(&m, from + k->codes_offset, t, to + k->codes_offset, u);
        move_halves(1, from + k->scale_offset, t, to + k->scale_offset, u);
    }
}

static void move_vector_kind(const kvf_part *part, const uint8_t *from, int32_t t, uint8_t *to, int32_t u)
{
    for (int32_t m = 0; m < part->dim / part->sub; m++) {
        const int old = kvfi_index_get(to, part->bits, m, u), now = kvfi_index_get(from, part->bits, m, t);
        kvfi_index_flip(to, part->bits, m, u, old ^ now);
    }
}

void kvfi_part_move(const kvf_part *part, const void *from, int32_t t, void *to, int32_t u)
{
    const uint8_t *a = from;
    uint8_t *b = to;
    if (part->kind == KVF_KIND_HALF) {
        move_half_kind(part, a, t, b, u);
    } else if (part->kind == KVF_KIND_SUM) {
        move_sum_kind(part, a, t, b, u);
    } else if (part->kind == KVF_KIND_VECTOR) {
        move_vector_kind(part, a, t, b, u);
    } else {
        const matrix m = {part->side == KVF_K, part->bits, part->dim_pad};
        move_codes(&m, a, t, b, u);
        move_halves(part->n_cg, a + part->scale_offset, t, b + part->scale_offset, u);
        if (part->has_min) move_halves(part->n_cg, a + part->min_offset, t, b + part->min_offset, u);
    }
}
