/* SPDX-License-Identifier: MIT
 * Ladder: scores of 3-bit keys, one block of 64 tokens by 128 channels against the four query heads of a group. What differs from step
 * to step is how codes are unpacked; the products are those of score_uni4.c, whose best step is the last row here, for comparison.
 * Each step is checked against exact integers, then all are timed in turn. The winner is src/cpu/avx512vbmi/coded.c.
 *
 *   cc -O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mgfni lab/score_uni3.c -o score_uni3 && ./score_uni3
 *
 * The record (docs/FORMAT.md): 2-bit plane, line q has quad q of groups 0 to 3 at bits 0, 2, 4, 6 of each byte; 1-bit plane, line q / 2
 * has groups 0 to 3 of the even quad at bits 0 to 3 and of the odd one at bits 4 to 7. Byte 4 * (token mod 16) + channel mod 4.
 *
 * Cycles of the time stamp counter for one block, least of many (gcc 12, Sapphire Rapids), and instructions a quad of all four groups,
 * 32 of them products, are in the table of `steps`. When a neighbour has the other half of the core, step 4 takes 1.31 times as long as
 * 4 bits and not 1.19. Unpacking one quad ahead of the products made step 4 543 cycles here, but a whole attention step no faster and
 * with tables 4 % slower, so it is left out. */
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 128, TOKENS = 64, HEADS = 4, QUADS = DIM / 4, BLOCKS = 8, SAMPLES = 4000, REPEATS = 4 };
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef struct query {
    int plain[HEADS][DIM];
    _Alignas(64) uint64_t two[HEADS][QUADS]; /* a quad: four hi bytes, four lo bytes; 256 hi + lo */
} query;

typedef struct block {
    _Alignas(64) uint8_t two[QUADS][64], one[QUADS / 2][64], four[QUADS * 2][64]; /* four: 4-bit codes, in place of the planes */
} block;

typedef void step_fn(const block *b, const query *q, int32_t *s); /* s[HEADS][TOKENS], sums of multipliers times codes */

INLINE __m512i byte(int x)
{
    return _mm512_set1_epi8((char)x);
}

INLINE __m512i choose(__m512i mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

INLINE void dot(__m512i *sum, __m512i codes, const void *m)
{
    int32_t x;
    memcpy(&x, m, 4);
    const __m512i four = _mm512_set1_epi32(x);
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(codes), "v"(four));
}

/* ---- steps: c[h] are the codes of group 2 * pair + h of quad q -------------------------------------------------------------------- */

/* 1: every plane to bit 0, merged, masked. Shifts bring bits of neighbours in, which the mask takes away. */
INLINE void shifted(const block *b, int pair, int q, int odd, __m512i c[2])
{
    const __m512i x = _mm512_load_si512(b->two[q]), y = _mm512_load_si512(b->one[q / 2]);
    UNROLL for (int h = 0; h < 2; h++)
    {
        const int g = 2 * pair + h, left = 2 - g - 4 * odd;
        const __m512i up = left > 0 ? _mm512_slli_epi32(y, (unsigned)(left & 31)) : _mm512_srli_epi32(y, (unsigned)(-left & 31));
        c[h] = _mm512_and_si512(choose(byte(3), _mm512_srli_epi32(x, (unsigned)(2 * g)), up), byte(7));
    }
}

/* 2: single bits as a mask register, added where they are set. */
INLINE void masked(const block *b, int pair, int q, int odd, __m512i c[2])
{
    const __m512i x = _mm512_load_si512(b->two[q]), y = _mm512_load_si512(b->one[q / 2]);
    UNROLL for (int h = 0; h < 2; h++)
    {
        const int g = 2 * pair + h;
        const __mmask64 bit = _mm512_test_epi8_mask(y, byte(1 << (g + 4 * odd)));
        const __m512i low = _mm512_and_si512(_mm512_srli_epi32(x, (unsigned)(2 * g)), byte(3));
        c[h] = _mm512_mask_add_epi8(low, bit, low, byte(4));
    }
}

/* 3: six bits of a pair in one index, each code looked up by vpermb, which ignores the two bits above. What tables (turbo) need. */
INLINE void looked_up(const block *b, int pair, int q, int odd, __m512i c[2])
{
    static _Alignas(64) uint8_t code[2][64];
    if (!code[1][63])
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 64; i++) code[h][i] = (uint8_t)((i >> 2 * h & 3) | (i >> (4 + h) & 1) << 2);
    const __m512i x = _mm512_load_si512(b->two[q]), y = _mm512_load_si512(b->one[q / 2]);
    const int left = 4 - 2 * pair - 4 * odd;
    const __m512i up = left > 0   ? _mm512_slli_epi32(y, (unsigned)(left & 31))
                       : left < 0 ? _mm512_srli_epi32(y, (unsigned)(-left & 31))
                                  : y;
    const __m512i i = choose(byte(15), pair ? _mm512_srli_epi32(x, 4) : x, up);
    UNROLL for (int h = 0; h < 2; h++) c[h] = _mm512_permutexvar_epi8(i, _mm512_load_si512(code[h]));
}

/* 4: the six bits wherever they cost one merge, then a matrix over GF(2) makes both codes of them, one above the other; the product is
 * taken with and without the upper one. */
INLINE void two_in_a_byte(const block *b, int pair, int q, int odd, __m512i c[2])
{
    const __m512i x = _mm512_load_si512(b->two[q]), y = _mm512_load_si512(b->one[q / 2]);
    const __m512i u =
        pair ? choose(byte(15), odd ? _mm512_srli_epi32(y, 4) : y, x) : choose(byte(15), x, odd ? y : _mm512_slli_epi32(y, 4));
    /* output bit j takes input bit from[j]: pair 0: 0 1 4 2 3 5, pair 1: 4 5 2 6 7 3; rows are stored from output bit 7 down */
    const uint64_t m = pair ? 0x1020044080080000u : 0x0102100408200000u;
    c[1] = _mm512_gf2p8affine_epi64_epi8(u, _mm512_set1_epi64((long long)m), 0);
    c[0] = _mm512_and_si512(c[1], byte(7));
}

/* 5: 4-bit codes. */
INLINE void four_bits(const block *b, int pair, int q, int odd, __m512i c[2])
{
    (void)odd;
    c[1] = _mm512_load_si512(b->four[2 * q + pair]);
    c[0] = _mm512_and_si512(c[1], byte(15));
}

/* above: bits between the two codes of a byte; 0: c[1] is a code of its own. */
INLINE void score_of(void (*codes)(const block *, int, int, int, __m512i[2]), int above, const block *b, const query *q,
                     int32_t *s)
{
    UNROLL for (int pair = 0; pair < 2; pair++)
    {
        __m512i sum[HEADS][2][2];
        UNROLL for (int i = 0; i < HEADS * 4; i++) sum[i / 4][i / 2 % 2][i % 2] = _mm512_setzero_si512();
        for (int i = 0; i < QUADS; i += 2) UNROLL for (int odd = 0; odd < 2; odd++)
            {
                __m512i c[2];
                codes(b, pair, i + odd, odd, c);
                UNROLL for (int j = 0; j < HEADS * 4; j++)
                    dot(&sum[j / 4][j % 2][j / 2 % 2], c[j % 2], (const char *)&q->two[j / 4][i + odd] + 4 * (j / 2 % 2));
            }
        UNROLL for (int h = 0; h < HEADS; h++)
        {
            __m512i t[2];
            UNROLL for (int g = 0; g < 2; g++) t[g] = _mm512_add_epi32(_mm512_slli_epi32(sum[h][g][0], 8), sum[h][g][1]);
            if (above) t[1] = _mm512_srai_epi32(_mm512_sub_epi32(t[1], t[0]), (unsigned)above);
            UNROLL for (int g = 0; g < 2; g++) _mm512_storeu_si512(s + h * TOKENS + 32 * pair + 16 * g, t[g]);
        }
    }
}

#define STEP(codes, above)                                                                                                       \
    static void score_##codes(const block *b, const query *q, int32_t *s)                                                        \
    {                                                                                                                            \
        score_of(codes, above, b, q, s);                                                                                         \
    }
STEP(shifted, 0)
STEP(masked, 0)
STEP(looked_up, 0)
STEP(two_in_a_byte, 3)
STEP(four_bits, 4)

static const struct {
    step_fn *run;
    const char *text, *seen;
} steps[] = {
    {score_shifted, "1 planes shifted to bit 0, merged, masked", "644; 48 instructions"},
    {score_masked, "2 single bits in a mask register", "636; 48, and the masks take port 5"},
    {score_looked_up, "3 vpermb by six bits", "588; 40.5"},
    {score_two_in_a_byte, "4 GFNI, two codes in a byte (the winner)", "568; 39"},
    {score_four_bits, "4-bit codes", "476; 34"},
};
enum { STEPS = sizeof steps / sizeof *steps };

static int code_at(const block *b, int four, int c, int t)
{
    const int at = 4 * (t % 16) + c % 4, g = t / 16, q = c / 4;
    if (four) return b->four[2 * q + g / 2][at] >> 4 * (g % 2) & 15;
    return (b->two[q][at] >> 2 * g & 3) | (b->one[q / 2][at] >> (g + 4 * (q % 2)) & 1) << 2;
}

static int right(int k, const block *b, const query *q, const int32_t *s)
{
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < TOKENS; t++) {
            int32_t want = 0;
            for (int c = 0; c < DIM; c++) want += q->plain[h][c] * code_at(b, k == STEPS - 1, c, t);
            if (s[h * TOKENS + t] != want) return 0;
        }
    return 1;
}

int main(void)
{
    static block b[BLOCKS];
    static query q;
    static int32_t s[HEADS * TOKENS];
    double best[STEPS];
    for (size_t i = 0; i < sizeof b; i++) ((uint8_t *)b)[i] = (uint8_t)(rand() >> 8);
    for (int h = 0; h < HEADS; h++)
        for (int c = 0; c < DIM; c++) {
            const int i = q.plain[h][c] = rand() % 65279 - 32639, hi = (i + 32896) / 256 - 128;
            ((int8_t *)&q.two[h][c / 4])[c % 4] = (int8_t)hi, ((int8_t *)&q.two[h][c / 4])[4 + c % 4] = (int8_t)(i - 256 * hi);
        }
    for (int k = 0; k < STEPS; k++) {
        best[k] = 1e30;
        for (int i = 0; i < BLOCKS; i++) {
            steps[k].run(&b[i], &q, s);
            if (right(k, &b[i], &q, s)) continue;
            fprintf(stderr, "%s: wrong\n", steps[k].text);
            return 1;
        }
    }
    for (int n = 0; n < SAMPLES; n++)
        for (int k = 0; k < STEPS; k++) {
            const uint64_t start = __rdtsc();
            for (int i = 0; i < REPEATS; i++) steps[k].run(&b[(n + i) % BLOCKS], &q, s);
            const double cycles = (double)(__rdtsc() - start) / REPEATS;
            if (cycles < best[k]) best[k] = cycles;
        }
    for (int k = 0; k < STEPS; k++)
        printf("%-44s %8.0f cycles %6.2f of 4 bits   (noted: %s)\n", steps[k].text, best[k], best[k] / best[STEPS - 1],
               steps[k].seen);
    return 0;
}
