/* SPDX-License-Identifier: MIT
 * Packed codes with AVX-512 F, BW, DQ, VL and VNNI: how they are unpacked. */
#include "cpu/avx512/lines.h"

/* Codes of one plane stay where they stand in their byte, and their sum comes out 2^shift too large; an index of a table, or a
 * code of several planes, must begin at bit 0. [h] is for group 2 * pair + h. */
typedef struct unpack {
    __m512i mask[2];         /* codes of 2 bits and 1 in place */
    __m512i down[2];         /* of the first plane, where it must be shifted */
    __m512i rotate[2][2][2]; /* [plane - 1][odd quad][h]: brings a bit of a further plane above the ones before it */
    __m512i table[2];        /* entries 0 .. 15 and 16 .. 31, in every 16 bytes */
    __m512 factor[2];        /* of the sums */
} unpack;

KVFI_INLINE unpack open_unpack(int bits, int look, int pair, const uint8_t *table)
{
    unpack u;
    const int width = kvfi_plane_width[bits][0], in_place = width == bits && !look;
    KVFI_UNROLL
    for (int h = 0; h < 2; h++) {
        const int shift = width == 8 ? 0 : plane_shift(width, 2 * pair + h, 0);
        u.mask[h] = _mm512_set1_epi8((char)(((1 << width) - 1) << shift));
        u.down[h] = _mm512_set1_epi32(shift);
        u.factor[h] = _mm512_set1_ps(in_place ? 1.0f / (float)(1 << shift) : 1.0f);
        int done = width;
        KVFI_UNROLL
        for (int i = 1; i < 3; i++) {
            const int w = kvfi_plane_width[bits][i];
            KVFI_UNROLL
            for (int odd = 0; odd < 2; odd++)
                u.rotate[i - 1][odd][h] = _mm512_set1_epi32((plane_shift(w, 2 * pair + h, odd) - done) & 31);
            done += w;
        }
    }
    if (look) u.table[0] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table));
    if (look == 5) u.table[1] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)(table + 16)));
    return u;
}

/* One plane, no table: in place. Of 4 bits the second group keeps the first one below it, which `finish` takes off. */
KVFI_INLINE void codes_in_place(const panel *p, int bits, const unpack *u, int pair, int q, int odd, __m512i c[2])
{
    if (bits == 8) {
        c[0] = line_at(plane_line(p, 0, 8, 2 * pair, q));
        c[1] = line_at(plane_line(p, 0, 8, 2 * pair, q) + 64);
        return;
    }
    __m512i x = line_at(plane_line(p, 0, bits, 2 * pair, q));
    if (bits == 1 && odd) x = _mm512_srli_epi32(x, 4);
    c[0] = _mm512_and_si512(x, bits == 4 ? low_bits(4) : u->mask[0]);
    c[1] = bits == 4 ? x : _mm512_and_si512(x, u->mask[1]);
}

/* Any planes, at bit 0. A shift moves bits of the neighbouring byte in, above those that the mask keeps. */
KVFI_INLINE void codes_at_zero(const panel *p, int bits, const unpack *u, int pair, int q, int odd, __m512i c[2])
{
    const int width = kvfi_plane_width[bits][0];
    const __m512i x = line_at(plane_line(p, 0, width, 2 * pair, q));
    __m512i y[2];
    KVFI_UNROLL
    for (int i = 1; i < 3; i++)
        if (kvfi_plane_width[bits][i]) y[i - 1] = line_at(plane_line(p, i, kvfi_plane_width[bits][i], 2 * pair, q));
    KVFI_UNROLL
    for (int h = 0; h < 2; h++) {
        if (width == 4)
            c[h] = h ? _mm512_srli_epi32(x, 4) : x;
        else
            c[h] = _mm512_srlv_epi32(x, width == 1 && odd ? _mm512_add_epi32(u->down[h], _mm512_set1_epi32(4)) : u->down[h]);
        int done = width;
        KVFI_UNROLL
        for (int i = 1; i < 3; i++) {
            if (!kvfi_plane_width[bits][i]) break;
            c[h] = choose(low_bits(done), c[h], _mm512_rorv_epi32(y[i - 1], u->rotate[i - 1][odd][h]));
            done += kvfi_plane_width[bits][i];
        }
        c[h] = _mm512_and_si512(c[h], low_bits(bits));
    }
}

/* The shuffle looks at four bits of an index. */
KVFI_INLINE __m512i entries_of(int look, const unpack *u, __m512i codes)
{
    const __m512i low = _mm512_shuffle_epi8(u->table[0], codes);
    if (look != 5) return low;
    return _mm512_mask_shuffle_epi8(low, _mm512_test_epi8_mask(codes, _mm512_set1_epi8(16)), u->table[1], codes);
}

KVFI_INLINE void code_bytes(const panel *p, int bits, int look, const unpack *u, int pair, int q, int odd, __m512i c[2])
{
    if (!look && kvfi_plane_width[bits][0] == bits) {
        codes_in_place(p, bits, u, pair, q, odd, c);
        return;
    }
    codes_at_zero(p, bits, u, pair, q, odd, c);
    if (look) c[0] = entries_of(look, u, c[0]), c[1] = entries_of(look, u, c[1]);
}

KVFI_INLINE int nested(int bits, int look)
{
    return bits == 4 && !look;
}

/* Sixteen entries at a time; lanes whose index lies in another sixteen are left alone. */
static inline void look_up(const uint8_t *table, int bits, int n, uint8_t *bytes)
{
    for (int i = 0; i < n; i += 64) {
        const __m512i codes = line_at(bytes + i), high = _mm512_andnot_si512(low_bits(4), codes);
        const __m512i low = _mm512_and_si512(codes, low_bits(4)); /* a shuffle gives 0 for an index of 128 and more */
        __m512i x = _mm512_setzero_si512();
        for (int part = 0; part == 0 || part * 16 < 1 << bits; part++) {
            const __mmask64 here = _mm512_cmpeq_epi8_mask(high, _mm512_set1_epi8((char)(part * 16)));
            const __m512i sixteen = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)(table + part * 16)));
            x = _mm512_mask_shuffle_epi8(x, here, sixteen, low);
        }
        _mm512_storeu_si512(bytes + i, x);
    }
}

static inline void look_up_states(const uint8_t *table, int n, uint8_t *bytes)
{
    look_up(table, 8, n, bytes);
}

enum { PAIRS_APART = 0 };

#include "cpu/avx512/products.h"

void kvfi_avx512_coded(kvfi_kernels *k)
{
    coded_entries(k);
}
