/* SPDX-License-Identifier: MIT
 * Codes of a trellis (codec/tcq) become the states that they stand for: the newest 8 bits of the codes up to a channel, its own lowest. No
 * state waits for the one before it, as the codes alone are shifted together. On chunks that are spread to bytes (overlay/panel.h):
 * keys have four channels of a token in a word, the ones before them in the word of the quad before; values have one channel of four
 * tokens, and the channel before it in the word before. Before channel 0 comes the last one, dim - 1. What padding becomes counts
 * nowhere: padded channels of a query are zero, those of a result are not looked at. */
#ifndef KVFI_OVERLAY_STATES_H
#define KVFI_OVERLAY_STATES_H

#include "cpu/overlay/record.h"

enum { STATE_BITS = 8, STATES_BEFORE = 8 }; /* channels before the first that a state may know: 7, at one bit */

typedef uint32_t __attribute__((may_alias)) four_codes;

/* What a code that is `back` channels old leaves in a state, in each of four bytes. */
KVFI_INLINE uint32_t aged(uint32_t codes, int bits, int back)
{
    return codes << (back * bits) & 0x01010101u * ((255u << (back * bits)) & 255u);
}

/* ---- keys ------------------------------------------------------------------------------------------------------------------ */

/* The codes `back` channels before those of `now`; `last` and `older` are the quads before it. */
KVFI_INLINE uint32_t codes_back(uint32_t now, uint32_t last, uint32_t older, int back)
{
    const uint32_t newer = back < 4 ? now : last, before = back < 4 ? last : older;
    return back % 4 ? newer << 8 * (back % 4) | before >> (32 - 8 * (back % 4)) : newer;
}

KVFI_INLINE void quad_states(int bits, const four_codes *older, const four_codes *last, four_codes *now)
{
    for (int i = 0; i < KVF_BLOCK; i++) {
        uint32_t state = now[i];
        KVFI_UNROLL
        for (int back = 1; back * bits < STATE_BITS; back++)
            state |= aged(codes_back(now[i], last[i], older[i], back), bits, back);
        now[i] = state;
    }
}

/* Backwards, so that the quads before still are codes. */
KVFI_INLINE void key_states_of(int bits, int quads, four_codes (*round)[KVF_BLOCK], four_codes *codes)
{
    for (int q = quads - 1; q >= 0; q--) {
        four_codes *now = codes + (size_t)q * KVF_BLOCK;
        quad_states(bits, q > 1 ? now - 2 * KVF_BLOCK : round[q], q ? now - KVF_BLOCK : round[1], now);
    }
}

/* The last eight channels, as the two quads before channel 0. */
static void key_round(int dim, const uint8_t *byte, four_codes (*round)[KVF_BLOCK])
{
    uint8_t *to = (uint8_t *)round;
    for (int j = 0; j < STATES_BEFORE; j++) {
        const int c = ((j - STATES_BEFORE) % dim + dim) % dim;
        for (int t = 0; t < KVF_BLOCK; t++) to[(j / 4 * KVF_BLOCK + t) * 4 + j % 4] = byte[(c / 4 * KVF_BLOCK + t) * 4 + c % 4];
    }
}

static void key_states(const matrix *x, int quads, uint8_t *byte)
{
    four_codes round[2][KVF_BLOCK], *codes = (four_codes *)(void *)byte;
    const int dim = x->part->dim;
    if (dim % 4 || dim < STATES_BEFORE)
        key_round(dim, byte, round);
    else
        memcpy(round, codes + (size_t)(dim / 4 - 2) * KVF_BLOCK, sizeof round);
    switch (x->part->bits) {
    case 1: key_states_of(1, quads, round, codes); break;
    case 2: key_states_of(2, quads, round, codes); break;
    case 3: key_states_of(3, quads, round, codes); break;
    case 4: key_states_of(4, quads, round, codes); break;
    }
}

/* ---- values ---------------------------------------------------------------------------------------------------------------- */

/* Four tokens of 16 channels, from the record. */
static void read_field(const matrix *x, int q, int group, four_codes *to)
{
    const int bits = x->part->bits;
    uint64_t sum[8] = {0}, word[8];
    for (int plane = 0, low = 0; kvfi_plane_width[bits][plane]; low += kvfi_plane_width[bits][plane++]) {
        const kvfi_where at = kvfi_code_at(bits, x->reduction, x->lanes, 4 * q, 16 * group, plane);
        const uint64_t mask = 0x0101010101010101u * ((1u << kvfi_plane_width[bits][plane]) - 1);
        memcpy(word, x->codes + at.byte, sizeof word);
        for (int i = 0; i < 8; i++) sum[i] |= (word[i] >> at.shift & mask) << low;
    }
    memcpy(to, sum, sizeof sum);
}

/* The channels before `first`, the one just before it last. */
static void channels_before(const matrix *x, int q, int first, four_codes *before)
{
    const int dim = x->part->dim, end = first ? first : dim, group = (end - 1) / 16;
    four_codes field[2][16];
    if (end % 16 == 0) {
        read_field(x, q, group, field[1]);
        memcpy(before, field[1] + 16 - STATES_BEFORE, STATES_BEFORE * sizeof *before);
        return;
    }
    if (group && end - 16 * group < STATES_BEFORE) read_field(x, q, group - 1, field[0]);
    read_field(x, q, group, field[1]);
    for (int i = 1; i <= STATES_BEFORE; i++) {
        const int c = (end - i % dim) % dim; /* of a head of few channels the round is shorter, and so is what a state knows */
        before[STATES_BEFORE - i] = field[c / 16 == group][c % 16];
    }
}

/* 16 channels, those before them in the words before them. */
KVFI_INLINE void group_states(int bits, const four_codes *codes, four_codes *to)
{
    four_codes state[16];
    for (int i = 0; i < 16; i++) {
        state[i] = codes[i];
        KVFI_UNROLL
        for (int back = 1; back * bits < STATE_BITS; back++) state[i] |= aged(codes[i - back], bits, back);
    }
    memcpy(to, state, sizeof state);
}

/* Four tokens; backwards, so that the groups before still are codes. */
KVFI_INLINE void value_states_of(int bits, const matrix *x, int q, int first, int groups, four_codes *codes)
{
    four_codes some[STATES_BEFORE + 16];
    for (int g = groups - 1; g > 0; g--) group_states(bits, codes + 16 * g, codes + 16 * g);
    channels_before(x, q, first, some);
    memcpy(some + STATES_BEFORE, codes, 16 * sizeof *codes);
    group_states(bits, some + STATES_BEFORE, codes);
}

static void value_states(const matrix *x, int chunk, int groups, uint8_t *byte)
{
    four_codes *codes = (four_codes *)(void *)byte;
    for (int q = 0; q < KVF_BLOCK / 4; q++, codes += 16 * groups) switch (x->part->bits) {
        case 1: value_states_of(1, x, q, 64 * chunk, groups, codes); break;
        case 2: value_states_of(2, x, q, 64 * chunk, groups, codes); break;
        case 3: value_states_of(3, x, q, 64 * chunk, groups, codes); break;
        case 4: value_states_of(4, x, q, 64 * chunk, groups, codes); break;
        }
}

/* Chunk `chunk` of a record, spread to bytes. */
static void make_states(const matrix *x, int chunk, int groups, uint8_t *byte)
{
    if (x->part->side == KVF_K)
        key_states(x, x->reduction / 4, byte);
    else
        value_states(x, chunk, groups, byte);
}

#endif
