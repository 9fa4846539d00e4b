/* SPDX-License-Identifier: MIT
 * Ladder: scores of 4-bit keys, one block of 64 tokens by 128 channels against the four query heads of a group. Each step is
 * checked against double precision, then all are timed in turn. The winner is src/cpu/avx512/coded.c.
 *
 *   cc -O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni lab/score_uni4.c -lm -o score_uni4 && ./score_uni4
 *
 * The record (docs/FORMAT.md): quad q of group g, that is channels 4q..4q+3 of tokens 16g..16g+15, is a nibble of line 2q + g/2,
 * the upper one for odd g; byte 4 * (token mod 16) + channel mod 4.
 *
 * Cycles of the time stamp counter for one block, least of many (gcc 12, Sapphire Rapids at 2.6 GHz nominal, all in L1) are in
 * the table of `steps`; what was tried and lost stays there. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 128, TOKENS = 64, HEADS = 4, QUADS = DIM / 4, LINES = 2 * QUADS, BLOCKS = 8, SAMPLES = 4000, REPEATS = 4 };
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef struct query {
    float plain[HEADS][DIM];
    float unit[HEADS], sum[HEADS];             /* of the integers below */
    _Alignas(64) uint64_t two[HEADS][QUADS];   /* a quad: four hi bytes, four lo bytes; i = 256 hi + lo */
    _Alignas(64) uint64_t words[HEADS][QUADS]; /* the same as int16, order 0, 2, 1, 3 */
    float coarse_unit[HEADS], coarse_sum[HEADS];
    _Alignas(64) int32_t one[HEADS][QUADS]; /* one plane of int8 */
} query;

typedef struct block {
    _Alignas(64) uint8_t line[LINES][64];
} block;

typedef void step_fn(const block *b, const query *q, float *s); /* s[HEADS][TOKENS], without the tokens' scales */

static int code_at(const block *b, int c, int t)
{
    const int g = t / 16;
    return b->line[2 * (c / 4) + g / 2][4 * (t % 16) + c % 4] >> 4 * (g % 2) & 15;
}

/* 0: the definition. */
static void plain(const block *b, const query *q, float *s)
{
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < TOKENS; t++) {
            float sum = 0;
            for (int c = 0; c < DIM; c++) sum += q->plain[h][c] * (float)(code_at(b, c, t) - 8);
            s[h * TOKENS + t] = sum;
        }
}

/* 1: a byte of each lane to f32, one fused multiplication for each head. */
static void floats(const block *b, const query *q, float *s)
{
    for (int g = 0; g < 4; g++) {
        __m512 sum[HEADS];
        UNROLL for (int h = 0; h < HEADS; h++) sum[h] = _mm512_setzero_ps();
        for (int i = 0; i < QUADS; i++) {
            const __m512i x = _mm512_srli_epi32(_mm512_load_si512(b->line[2 * i + g / 2]), 4 * (g & 1));
            UNROLL for (int j = 0; j < 4; j++)
            {
                const __m512i byte = _mm512_and_si512(_mm512_srli_epi32(x, 8 * j), _mm512_set1_epi32(15));
                const __m512 code = _mm512_sub_ps(_mm512_cvtepi32_ps(byte), _mm512_set1_ps(8));
                UNROLL for (int h = 0; h < HEADS; h++) sum[h] =
                    _mm512_fmadd_ps(code, _mm512_set1_ps(q->plain[h][4 * i + j]), sum[h]);
            }
        }
        UNROLL for (int h = 0; h < HEADS; h++) _mm512_storeu_ps(s + h * TOKENS + 16 * g, sum[h]);
    }
}

INLINE __m512i broadcast(const void *p)
{
    int32_t x;
    memcpy(&x, p, 4);
    return _mm512_set1_epi32(x);
}

INLINE __m512i dot(__m512i sum, __m512i codes, __m512i m, int assembly)
{
    if (!assembly) return _mm512_dpbusd_epi32(sum, codes, m);
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(m));
    return sum;
}

INLINE __m512 scores(__m512i sum, float sum_of_m, float unit)
{
    return _mm512_mul_ps(_mm512_sub_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(8 * sum_of_m)), _mm512_set1_ps(unit));
}

/* Two groups at a time. nested: the upper nibble is not shifted down; codes of the even group lie 16 times lower in the same bytes,
 * so 16 times the odd group's sum is what is left when the even one is taken off. */
INLINE void bytes_of(const block *b, const query *q, float *s, int planes, int nested, int assembly)
{
    for (int pair = 0; pair < 2; pair++) {
        __m512i sum[HEADS][2][2];
        UNROLL for (int i = 0; i < HEADS * 4; i++) sum[i / 4][i / 2 % 2][i % 2] = _mm512_setzero_si512();
        for (int i = 0; i < QUADS; i++) {
            const __m512i x = _mm512_load_si512(b->line[2 * i + pair]), low = _mm512_set1_epi8(15);
            const __m512i even = _mm512_and_si512(x, low), odd = nested ? x : _mm512_and_si512(_mm512_srli_epi32(x, 4), low);
            UNROLL for (int h = 0; h < HEADS; h++) UNROLL for (int p = 0; p < planes; p++)
            {
                const __m512i m = planes == 1 ? broadcast(&q->one[h][i]) : broadcast((const char *)&q->two[h][i] + 4 * p);
                sum[h][0][p] = dot(sum[h][0][p], even, m, assembly);
                sum[h][1][p] = dot(sum[h][1][p], odd, m, assembly);
            }
        }
        UNROLL for (int h = 0; h < HEADS; h++)
        {
            __m512i t[2];
            UNROLL for (int g = 0; g < 2; g++) t[g] =
                planes == 1 ? sum[h][g][0] : _mm512_add_epi32(_mm512_slli_epi32(sum[h][g][0], 8), sum[h][g][1]);
            if (nested) t[1] = _mm512_srai_epi32(_mm512_sub_epi32(t[1], t[0]), 4); /* a multiple of 16 */
            UNROLL for (int g = 0; g < 2; g++) _mm512_storeu_ps(s + h * TOKENS + 32 * pair + 16 * g,
                                                                planes == 1 ? scores(t[g], q->coarse_sum[h], q->coarse_unit[h])
                                                                            : scores(t[g], q->sum[h], q->unit[h]));
        }
    }
}

static void one_plane(const block *b, const query *q, float *s)
{
    bytes_of(b, q, s, 1, 0, 0);
}
static void two_planes(const block *b, const query *q, float *s)
{
    bytes_of(b, q, s, 2, 0, 0);
}
static void with_assembly(const block *b, const query *q, float *s)
{
    bytes_of(b, q, s, 2, 0, 1);
}
static void nested(const block *b, const query *q, float *s)
{
    bytes_of(b, q, s, 2, 1, 1);
}

/* All four groups at once, one plane after the other: half the broadcasts, but the record is unpacked twice. */
static void plane_by_plane(const block *b, const query *q, float *s)
{
    __m512i sum[HEADS][4];
    UNROLL for (int i = 0; i < HEADS * 4; i++) sum[i / 4][i % 4] = _mm512_setzero_si512();
    UNROLL for (int p = 0; p < 2; p++)
    {
        if (p) UNROLL for (int i = 0; i < HEADS * 4; i++) sum[i / 4][i % 4] = _mm512_slli_epi32(sum[i / 4][i % 4], 8);
        for (int i = 0; i < QUADS; i++) {
            __m512i c[4];
            UNROLL for (int g = 0; g < 4; g++)
            {
                c[g] = _mm512_load_si512(b->line[2 * i + g / 2]);
                if (g % 2 == 0) c[g] = _mm512_and_si512(c[g], _mm512_set1_epi8(15));
            }
            UNROLL for (int h = 0; h < HEADS; h++)
            {
                const __m512i m = broadcast((const char *)&q->two[h][i] + 4 * p);
                UNROLL for (int g = 0; g < 4; g++) sum[h][g] = dot(sum[h][g], c[g], m, 1);
            }
        }
    }
    UNROLL for (int h = 0; h < HEADS; h++) UNROLL for (int g = 0; g < 4; g++)
    {
        const __m512i t = g % 2 ? _mm512_srai_epi32(_mm512_sub_epi32(sum[h][g], sum[h][g - 1]), 4) : sum[h][g];
        _mm512_storeu_ps(s + h * TOKENS + 16 * g, scores(t, q->sum[h], q->unit[h]));
    }
}

/* One plane of 16 bits and pairs of 16-bit codes: as many dot products as two planes of bytes, more work to unpack. */
static void words(const block *b, const query *q, float *s)
{
    for (int pair = 0; pair < 2; pair++) {
        __m512i sum[HEADS][2];
        UNROLL for (int i = 0; i < HEADS * 2; i++) sum[i / 2][i % 2] = _mm512_setzero_si512();
        for (int i = 0; i < QUADS; i++) {
            const __m512i x = _mm512_load_si512(b->line[2 * i + pair]), y = _mm512_srli_epi32(x, 4), z = _mm512_srli_epi32(x, 8);
            const __m512i mask = _mm512_set1_epi32(0x000f000f),
                          c[2][2] = {{_mm512_and_si512(x, mask), _mm512_and_si512(z, mask)},
                                     {_mm512_and_si512(y, mask), _mm512_and_si512(_mm512_srli_epi32(z, 4), mask)}};
            UNROLL for (int h = 0; h < HEADS; h++) UNROLL for (int p = 0; p < 2; p++)
            {
                const __m512i m = broadcast((const char *)&q->words[h][i] + 4 * p);
                UNROLL for (int g = 0; g < 2; g++) __asm__("vpdpwssd %2, %1, %0" : "+v"(sum[h][g]) : "v"(c[g][p]), "v"(m));
            }
        }
        UNROLL for (int h = 0; h < HEADS; h++) UNROLL for (int g = 0; g < 2; g++)
            _mm512_storeu_ps(s + h * TOKENS + 32 * pair + 16 * g, scores(sum[h][g], q->sum[h], q->unit[h]));
    }
}

static const struct {
    step_fn *run;
    double limit; /* of the error, relative to the norm of the scores */
    const char *text, *seen;
} steps[] = {
    {plain, 1e-6, "0 plain", "95,400"},
    {floats, 1e-6, "1 bytes to f32, FMA", "1,590"},
    {one_plane, 3e-2, "2 dpbusd, query in one int8 plane", "334, but an error of 0.7 %: too coarse"},
    {two_planes, 1e-4, "3 two planes", "593"},
    {with_assembly, 1e-4, "4 dpbusd as inline assembly", "507"},
    {nested, 1e-4, "5 upper nibble not shifted (the winner)", "463"},
    {plane_by_plane, 1e-4, "6 plane by plane, four groups at once",
     "470: nothing lost, but values with scales by channel groups need other multipliers for each pair"},
    {words, 1e-4, "7 pairs of 16 bits (vpdpwssd)", "592: two more shifts and two more ANDs a line"},
};
enum { STEPS = sizeof steps / sizeof *steps };

static float gauss(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += (float)rand() / (float)RAND_MAX;
    return sum - 6;
}

static void quantise(query *q, int h)
{
    static const int order[4] = {0, 2, 1, 3};
    float top = 0;
    for (int c = 0; c < DIM; c++) top = fmaxf(top, fabsf(q->plain[h][c]));
    q->unit[h] = top / 32639, q->coarse_unit[h] = top / 127, q->sum[h] = q->coarse_sum[h] = 0;
    for (int c = 0; c < DIM; c++) {
        const int i = (int)lrintf(q->plain[h][c] / q->unit[h]), hi = (i + 128) >> 8,
                  one = (int)lrintf(q->plain[h][c] / q->coarse_unit[h]);
        ((int8_t *)&q->two[h][c / 4])[c % 4] = (int8_t)hi, ((int8_t *)&q->two[h][c / 4])[4 + c % 4] = (int8_t)(i - 256 * hi);
        ((int8_t *)&q->one[h][c / 4])[c % 4] = (int8_t)one;
        for (int j = 0; j < 4; j++)
            if (order[j] == c % 4) ((int16_t *)&q->words[h][c / 4])[j] = (int16_t)i;
        q->sum[h] += (float)i, q->coarse_sum[h] += (float)one;
    }
}

static double error_of(const block *b, const query *q, const float *s)
{
    double e = 0, r = 0;
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < TOKENS; t++) {
            double want = 0;
            for (int c = 0; c < DIM; c++) want += (double)q->plain[h][c] * (code_at(b, c, t) - 8);
            e += (s[h * TOKENS + t] - want) * (s[h * TOKENS + t] - want), r += want * want;
        }
    return sqrt(e / r);
}

int main(void)
{
    static block b[BLOCKS];
    static query q;
    static float s[HEADS * TOKENS];
    double best[STEPS], error[STEPS];
    for (size_t i = 0; i < sizeof b; i++) ((uint8_t *)b)[i] = (uint8_t)(rand() >> 8);
    for (int h = 0; h < HEADS; h++) {
        for (int c = 0; c < DIM; c++) q.plain[h][c] = gauss();
        quantise(&q, h);
    }
    for (int k = 0; k < STEPS; k++) {
        double worst = 0;
        for (int i = 0; i < BLOCKS; i++) steps[k].run(&b[i], &q, s), worst = fmax(worst, error_of(&b[i], &q, s));
        if (!(worst <= steps[k].limit)) {
            fprintf(stderr, "%s: error %g, at most %g is right\n", steps[k].text, worst, steps[k].limit);
            return 1;
        }
        best[k] = 1e30, error[k] = worst;
    }
    for (int n = 0; n < SAMPLES; n++)
        for (int k = 0; k < STEPS; k++) {
            if (k == 0 && n > 20) continue;
            const uint64_t start = __rdtsc();
            for (int i = 0; i < REPEATS; i++) steps[k].run(&b[(n + i) % BLOCKS], &q, s);
            best[k] = fmin(best[k], (double)(__rdtsc() - start) / REPEATS);
        }
    for (int k = 0; k < STEPS; k++)
        printf("%-42s %8.0f cycles %6.2f times the step before, error %.0e   (noted: %s)\n", steps[k].text, best[k],
               k ? best[k - 1] / best[k] : 1.0, error[k], steps[k].seen);
    return 0;
}
