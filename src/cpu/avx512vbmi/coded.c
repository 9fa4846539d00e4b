/* SPDX-License-Identifier: MIT
 * Packed codes with AVX-512 VBMI and GFNI beside VNNI: how they are unpacked. A matrix over GF(2) moves the bits of a byte to any
 * other places in one instruction, and vpermb looks up 64 entries by the low six bits of an index, whatever stands above them.
 *
 * Two codes of 3 bits fit a byte. One line of each plane is merged so that it has the six bits of a pair of groups somewhere,
 *   pair 0   2-bit plane in bits 0 to 3, single bits in 4 and 5        pair 1   2-bit plane in bits 4 to 7, single bits in 2 and 3
 * and a matrix puts the second code above the first one. dpbusd takes that byte as it is: its sum is that of the first code and
 * eight times that of the second, from which the first is taken off. So 128 codes cost three or four instructions. */
#include "cpu/avx512/lines.h"
#include "cpu/avx512vbmi/avx512vbmi.h"

typedef struct unpack {
    __m512i table[2][2]; /* [odd quad][h]: the entry of an index that holds the code of group 2 * pair + h, see index_of */
    __m512 factor[2];
} unpack;

/* A matrix whose output bits 7 .. 0 are these bits of the input; NONE: zero. */
enum { NONE = 8 };
#define ROW(from, to) ((uint64_t)((1u << (from)) & 255u) << 8 * (7 - (to)))
#define MATRIX(b7, b6, b5, b4, b3, b2, b1, b0)                                                                                   \
    (ROW(b7, 7) | ROW(b6, 6) | ROW(b5, 5) | ROW(b4, 4) | ROW(b3, 3) | ROW(b2, 2) | ROW(b1, 1) | ROW(b0, 0))

KVFI_INLINE __m512i bits_moved(__m512i x, uint64_t m)
{
    return _mm512_gf2p8affine_epi64_epi8(x, _mm512_set1_epi64((long long)m), 0);
}

/* `width` bits from bit `from` on go to bit `to`, all others become zero. */
KVFI_INLINE uint64_t field_matrix(int from, int width, int to)
{
    uint64_t m = 0;
    KVFI_UNROLL
    for (int i = 0; i < width; i++) m |= ROW(from + i, to + i);
    return m;
}

/* y shifted inside its 32 bits, up by a positive n: bytes get bits of their neighbours at the other end. */
KVFI_INLINE __m512i moved_up(__m512i y, int n)
{
    return n > 0 ? _mm512_slli_epi32(y, (unsigned)n) : n < 0 ? _mm512_srli_epi32(y, (unsigned)-n) : y;
}

/* ---- tables ---------------------------------------------------------------------------------------------------------------- */

/* The code of group 2 * pair + h in six bits of an index as `indices` makes it. */
KVFI_INLINE uint64_t index_matrix(int bits, int pair, int odd, int h)
{
    const int g = 2 * pair + h;
    if (bits == 1) return field_matrix(odd && pair ? g + 2 : g + 4 * odd, 1, 0);
    if (bits == 2) return field_matrix(g < 3 ? 2 * g : 4, 2, 0);
    if (bits == 3) return field_matrix(2 * h, 2, 0) | field_matrix(4 + h, 1, 2);
    return field_matrix(0, 4, 0) | (bits == 5 ? field_matrix(4 + h, 1, 4) : 0);
}

KVFI_INLINE void indices(const panel *p, int bits, int pair, int q, int odd, __m512i c[2])
{
    const __m512i x = line_at(plane_line(p, 0, kvfi_plane_width[bits][0], 2 * pair, q));
    c[0] = c[1] = x;
    if (bits == 1 && odd && pair) c[0] = c[1] = _mm512_srli_epi32(x, 2);
    if (bits == 2 && pair) c[1] = _mm512_srli_epi32(x, 2);
    if (bits >= 4) c[1] = _mm512_srli_epi32(x, 4);
    if (bits != 3 && bits != 5) return;
    const __m512i y = moved_up(line_at(plane_line(p, 1, 1, 2 * pair, q)), 4 - 2 * pair - 4 * odd);
    if (bits == 3 && pair) c[0] = _mm512_srli_epi32(x, 4);
    c[0] = choose(low_bits(4), c[0], y);
    c[1] = bits == 3 ? c[0] : choose(low_bits(4), c[1], y);
}

KVFI_INLINE __m512i numbers(void)
{
    static const _Alignas(64)
        uint8_t n[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                         22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
                         44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    return line_at(n);
}

/* ---- numbers --------------------------------------------------------------------------------------------------------------- */

KVFI_INLINE void three_bits(const panel *p, int pair, int q, int odd, __m512i c[2])
{
    const __m512i x = line_at(plane_line(p, 0, 2, 2 * pair, q)), y = line_at(plane_line(p, 1, 1, 2 * pair, q));
    if (pair)
        c[1] = bits_moved(choose(low_bits(4), moved_up(y, -4 * odd), x), MATRIX(NONE, NONE, 3, 7, 6, 2, 5, 4));
    else
        c[1] = bits_moved(choose(low_bits(4), x, moved_up(y, 4 - 4 * odd)), MATRIX(NONE, NONE, 5, 3, 2, 4, 1, 0));
    c[0] = _mm512_and_si512(c[1], low_bits(3));
}

/* A plane of 4 bits and further ones: 5, 6 and 7 bits. */
KVFI_INLINE void many_bits(const panel *p, int bits, int pair, int q, int odd, __m512i c[2])
{
    const __m512i x = line_at(plane_line(p, 0, 4, 2 * pair, q));
    KVFI_UNROLL
    for (int h = 0; h < 2; h++) {
        __m512i above = _mm512_setzero_si512();
        int done = 4;
        KVFI_UNROLL
        for (int i = 1; i < 3; i++) {
            const int w = kvfi_plane_width[bits][i];
            if (!w) break;
            const uint64_t m = field_matrix(plane_shift(w, 2 * pair + h, odd), w, done);
            above = _mm512_or_si512(above, bits_moved(line_at(plane_line(p, i, w, 2 * pair, q)), m));
            done += w;
        }
        const __m512i low = h ? _mm512_srli_epi32(x, 4) : x;
        c[h] = _mm512_ternarylogic_epi32(low_bits(4), low, above, 0xea); /* (mask & low) | above */
    }
}

/* One plane, in place. */
KVFI_INLINE void one_plane(const panel *p, int bits, int pair, int q, int odd, __m512i c[2])
{
    __m512i x = line_at(plane_line(p, 0, bits, 2 * pair, q));
    if (bits == 8) {
        c[0] = x, c[1] = line_at(plane_line(p, 0, 8, 2 * pair, q) + 64);
        return;
    }
    if (bits == 1 && odd) x = _mm512_srli_epi32(x, 4);
    KVFI_UNROLL
    for (int h = 0; h < 2; h++) {
        const int mask = ((1 << bits) - 1) << plane_shift(bits, 2 * pair + h, 0);
        c[h] = bits == 4 && h ? x : _mm512_and_si512(x, _mm512_set1_epi8((char)mask));
    }
}

KVFI_INLINE void code_bytes(const panel *p, int bits, int look, const unpack *u, int pair, int q, int odd, __m512i c[2])
{
    if (look) {
        indices(p, bits, pair, q, odd, c);
        c[0] = _mm512_permutexvar_epi8(c[0], u->table[odd][0]), c[1] = _mm512_permutexvar_epi8(c[1], u->table[odd][1]);
    } else if (bits == 3) {
        three_bits(p, pair, q, odd, c);
    } else if (kvfi_plane_width[bits][0] == bits) {
        one_plane(p, bits, pair, q, odd, c);
    } else {
        many_bits(p, bits, pair, q, odd, c);
    }
}

KVFI_INLINE int nested(int bits, int look)
{
    return (bits == 4 || bits == 3) && !look;
}

KVFI_INLINE unpack open_unpack(int bits, int look, int pair, const uint8_t *table)
{
    unpack u;
    KVFI_UNROLL
    for (int h = 0; h < 2; h++) {
        const int shift = bits == 3 ? 3 * h : kvfi_plane_width[bits][0] == bits ? plane_shift(bits, 2 * pair + h, 0) : 0;
        u.factor[h] = _mm512_set1_ps(look ? 1.0f : 1.0f / (float)(1 << shift));
        KVFI_UNROLL
        for (int odd = 0; odd < 2 && look; odd++)
            u.table[odd][h] = _mm512_permutexvar_epi8(bits_moved(numbers(), index_matrix(bits, pair, odd, h)), line_at(table));
    }
    return u;
}

/* 128 entries at a time; what is beyond the table is never asked for. */
static inline void look_up(const uint8_t *table, int bits, int n, uint8_t *bytes)
{
    const __m512i a = line_at(table), b = line_at(table + 64), c = line_at(table + 128), d = line_at(table + 192);
    for (int i = 0; i < n; i += 64) {
        const __m512i codes = line_at(bytes + i);
        __m512i x = _mm512_permutex2var_epi8(a, codes, b);
        if (bits == 8) x = _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), x, _mm512_permutex2var_epi8(c, codes, d));
        _mm512_storeu_si512(bytes + i, x);
    }
}

static inline void look_up_states(const uint8_t *table, int n, uint8_t *bytes)
{
    look_up(table, 8, n, bytes);
}

enum { PAIRS_APART = 1 };

#include "cpu/avx512/products.h"

void kvfi_avx512vbmi_coded(kvfi_kernels *k)
{
    coded_entries(k);
}
