/* SPDX-License-Identifier: MIT
 * Unpacking codes with NEON. A line of 64 bytes is four vectors of four lanes; a lane holds the codes of four adjacent elements of
 * the reduction for one output. Shifts are by byte, so no bits of a neighbour come in. */
#ifndef KVFI_NEON_CODES_H
#define KVFI_NEON_CODES_H

#include "cpu/neon/simd.h"
#include "cpu/overlay/record.h"

/* By how much each plane is shifted to bit 0 (a negative number shifts right), for one quad; of single bits, which quads take in
 * turn, also the sum of both amounts. */
typedef struct shifts {
    int8x16_t now[3], both[3];
} shifts;

KVFI_INLINE shifts open_shifts(int bits, int g, int q)
{
    shifts s;
    KVFI_UNROLL
    for (int i = 0; i < 3; i++) {
        const int width = kvfi_plane_width[bits][i];
        s.now[i] = vdupq_n_s8((int8_t)-plane_shift(width, g, q));
        s.both[i] = vdupq_n_s8((int8_t)(-plane_shift(width, g, 0) - plane_shift(width, g, 1)));
    }
    return s;
}

KVFI_INLINE void next_shifts(int bits, shifts *s)
{
    KVFI_UNROLL
    for (int i = 0; i < 3; i++)
        if (kvfi_plane_width[bits][i] == 1) s->now[i] = vsubq_s8(s->both[i], s->now[i]);
}

/* The low `done` bits of c, and x above them. The instruction wants a literal. */
KVFI_INLINE uint8x16_t put_above(uint8x16_t c, uint8x16_t x, int done)
{
    return done == 2 ? vsliq_n_u8(c, x, 2) : done == 4 ? vsliq_n_u8(c, x, 4) : vsliq_n_u8(c, x, 6);
}

/* One byte a code: reduction 4q..4q+3 of lanes 4h..4h+3 of group g. */
KVFI_INLINE uint8x16_t code_bytes(const panel *p, int bits, int g, int q, int h, const shifts *s)
{
    int done = kvfi_plane_width[bits][0];
    uint8x16_t c = vld1q_u8(plane_line(p, 0, done, g, q) + 16 * h);
    if (bits == 8) return c;
    if (bits == 4) return g & 1 ? vshrq_n_u8(c, 4) : vandq_u8(c, vdupq_n_u8(15));
    c = vshlq_u8(c, s->now[0]);
    KVFI_UNROLL
    for (int i = 1; i < 3; i++) {
        const int width = kvfi_plane_width[bits][i];
        if (!width) break;
        c = put_above(c, vshlq_u8(vld1q_u8(plane_line(p, i, width, g, q) + 16 * h), s->now[i]), done);
        done += width;
    }
    return vandq_u8(c, vdupq_n_u8((uint8_t)((1 << bits) - 1)));
}

KVFI_INLINE void fetch_step(int bits, ahead *next)
{
    fetch(next->at);
    if (bits == 8) fetch(next->at + 64); /* a record of bytes has more lines than quads */
    next->at += next->step;
}

/* Entries as bytes, for tables of up to 16 and 32; `flip` is exclusive-or'ed into each. */
KVFI_INLINE uint8x16x2_t open_lookup(int look, const uint8_t *entry, uint8_t flip)
{
    uint8x16x2_t x = {{vdupq_n_u8(0), vdupq_n_u8(0)}};
    if (look) x.val[0] = veorq_u8(vld1q_u8(entry), vdupq_n_u8(flip));
    if (look == 5) x.val[1] = veorq_u8(vld1q_u8(entry + 16), vdupq_n_u8(flip));
    return x;
}

KVFI_INLINE uint8x16_t look_at(int look, const uint8x16x2_t *x, uint8x16_t codes)
{
    return look == 0 ? codes : look == 5 ? vqtbl2q_u8(*x, codes) : vqtbl1q_u8(x->val[0], codes);
}

#endif
