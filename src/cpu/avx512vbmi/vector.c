/* SPDX-License-Identifier: MIT
 * KVF_KIND_VECTOR with permutations of bytes. A codebook of 256 centroids whose numbers are bytes is one table of 256 bytes a channel
 * of the sub-vector; four permutations look up 64 indices, and dpbusd multiplies four bytes of the reduction at once:
 *   keys    lane = token, its four bytes: the indices of four adjacent sub-vectors
 *   values  lane = sub-vector, its four bytes: the indices of four adjacent tokens
 * Multipliers become 16-bit fixed point in two planes, as in overlay/planes.h. Other books and widths stay with AVX-512's floats. */
#include "codec/shared/part.h"
#include "cpu/avx512/simd.h"
#include "cpu/avx512vbmi/avx512vbmi.h"
#include "cpu/scalar/scalar.h"
#include "gpu/kernels/vector.h"

enum { TOP = 32639, TABLE = 256, MOST_VECTORS = 4 };
#define NOTHING 0x1p-110f /* multipliers of which the largest is below count as zero */

/* Four multipliers of a lane, in two planes. */
typedef struct quad {
    int8_t hi[4], lo[4];
} quad;

/* Of one vector: what an integer stands for, and what the 128 added to table entries amounts to. */
typedef struct scale {
    float unit;
    int32_t hi, lo; /* -128 times the sums */
} scale;

/* n is a multiple of 16. */
static float unit_of(const float *x, int n, float *inverse)
{
    __m512 most = _mm512_setzero_ps();
    for (int i = 0; i < n; i += LANES) most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
    const float largest = _mm512_reduce_max_ps(most);
    *inverse = largest > NOTHING ? TOP / largest : 0;
    return largest > NOTHING ? largest / TOP : 0;
}

/* x rounded to integers: 256 hi + lo. n is a multiple of 16. */
static void split(const float *x, int n, float inverse, int8_t *hi, int8_t *lo, scale *s)
{
    __m512i high = _mm512_setzero_si512(), low = high;
    for (int i = 0; i < n; i += LANES) {
        const __m512i k = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse)));
        const __m512i h = _mm512_srai_epi32(_mm512_add_epi32(k, _mm512_set1_epi32(128)), 8);
        const __m512i l = _mm512_sub_epi32(k, _mm512_slli_epi32(h, 8));
        _mm_storeu_si128((__m128i *)(void *)(hi + i), _mm512_cvtepi32_epi8(h));
        _mm_storeu_si128((__m128i *)(void *)(lo + i), _mm512_cvtepi32_epi8(l));
        high = _mm512_add_epi32(high, h), low = _mm512_add_epi32(low, l);
    }
    s->hi = -128 * _mm512_reduce_add_epi32(high), s->lo = -128 * _mm512_reduce_add_epi32(low);
}

/* Inline assembly, because gcc 12 copies each accumulator around the intrinsic. */
KVFI_INLINE void dot(__m512i *sum, __m512i bytes, const int8_t four[4])
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(bytes), "m"(*(const int32_t *)(const void *)four));
}

/* 64 indices, and which of the four quarters of a table each is in. */
typedef struct indices {
    __m512i at;
    __mmask64 second, third, fourth;
} indices;

KVFI_INLINE indices open_indices(__m512i at)
{
    const __mmask64 upper = _mm512_movepi8_mask(at), odd = _mm512_movepi8_mask(_mm512_slli_epi16(at, 1));
    return (indices){at, odd & ~upper, upper & ~odd, upper & odd};
}

KVFI_INLINE __m512i look_up(const indices *i, const uint8_t *table)
{
    __m512i x = _mm512_permutexvar_epi8(i->at, _mm512_loadu_si512(table));
    x = _mm512_mask_permutexvar_epi8(x, i->second, i->at, _mm512_loadu_si512(table + 64));
    x = _mm512_mask_permutexvar_epi8(x, i->third, i->at, _mm512_loadu_si512(table + 128));
    return _mm512_mask_permutexvar_epi8(x, i->fourth, i->at, _mm512_loadu_si512(table + 192));
}

/* 256 hi + lo as floats; both are below 2^24. */
KVFI_INLINE __m512 joined(__m512i hi, __m512i lo, float unit)
{
    const __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(hi), _mm512_set1_ps(256), _mm512_cvtepi32_ps(lo));
    return _mm512_mul_ps(sum, _mm512_set1_ps(unit));
}

/* Indices of sub-vector m of the 64 tokens; zeros behind the last. */
KVFI_INLINE __m512i run_at(const uint8_t *record, int m, int subs)
{
    return m < subs ? _mm512_loadu_si512(record + (size_t)m * KVF_BLOCK) : _mm512_setzero_si512();
}

/* ---- scores ---------------------------------------------------------------------------------------------------------------------- */

/* Behind the floats that scalar code prepares: scales [n], then quads [n][sub][quads of sub-vectors]. */
static int quads_of(const kvf_part *part)
{
    return (part->dim / part->sub + 3) / 4;
}

static size_t vector_quads(const kvf_part *part)
{
    return (size_t)part->sub * (size_t)quads_of(part);
}

static size_t prepared_bytes(const kvf_part *part, int32_t n)
{
    const size_t plain = kvfi_scalar_prepared_bytes(part, n);
    return part->entries ? kvfi_align64(plain + (size_t)n * (sizeof(scale) + vector_quads(part) * sizeof(quad))) : plain;
}

static scale *scales_in(const kvf_part *part, void *prepared, int32_t n)
{
    return (scale *)(void *)((uint8_t *)prepared + kvfi_scalar_prepared_bytes(part, n));
}

/* Channel sub * m + j is multiplier m of table j. */
static void prepare_vector(const kvf_part *part, const float *q, scale *s, quad *to)
{
    int8_t hi[KVFI_DIM_MAX], lo[KVFI_DIM_MAX];
    float inverse;
    s->unit = unit_of(q, part->dim_pad, &inverse) * part->unit;
    split(q, part->dim_pad, inverse, hi, lo, s);
    memset(to, 0, vector_quads(part) * sizeof *to);
    for (int c = 0; c < part->dim; c++) {
        const int m = c / part->sub;
        quad *at = to + c % part->sub * quads_of(part) + m / 4;
        at->hi[m % 4] = hi[c], at->lo[m % 4] = lo[c];
    }
}

static void prepare(const kvf_part *part, const float *q, size_t stride, int32_t n, void *prepared)
{
    kvfi_scalar_prepare(part, q, stride, n, prepared);
    if (!part->entries) return;
    scale *s = scales_in(part, prepared, n);
    quad *to = (quad *)(void *)(s + n);
    for (int32_t v = 0; v < n; v++, to += vector_quads(part)) prepare_vector(part, q + (size_t)v * stride, s + v, to);
}

/* Sums over all channels for 32 of the 64 tokens: those in the lower (half 0) or upper halves of groups of 16; two vectors of 16 tokens,
 * 4 of every group. */
KVFI_INLINE void score_half_of(int sub, int nv, const kvf_part *part, const uint8_t *record, int half, const scale *s,
                               const quad *m, __m512 out[MOST_VECTORS][4])
{
    const int subs = part->dim / sub, quads = quads_of(part);
    const size_t each = (size_t)sub * (size_t)quads;
    __m512i hi[MOST_VECTORS][2], lo[MOST_VECTORS][2];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int k = 0; k < 2; k++) hi[v][k] = _mm512_set1_epi32(s[v].hi), lo[v][k] = _mm512_set1_epi32(s[v].lo);
    }
    for (int i = 0; i < quads; i++) {
        const __m512i a = run_at(record, 4 * i, subs), b = run_at(record, 4 * i + 1, subs);
        const __m512i c = run_at(record, 4 * i + 2, subs), d = run_at(record, 4 * i + 3, subs);
        const __m512i ab = half ? _mm512_unpackhi_epi8(a, b) : _mm512_unpacklo_epi8(a, b);
        const __m512i cd = half ? _mm512_unpackhi_epi8(c, d) : _mm512_unpacklo_epi8(c, d);
        const indices x[2] = {open_indices(_mm512_unpacklo_epi16(ab, cd)), open_indices(_mm512_unpackhi_epi16(ab, cd))};
        for (int j = 0; j < sub; j++) {
            KVFI_UNROLL
            for (int k = 0; k < 2; k++) {
                const __m512i bytes = look_up(&x[k], part->entries + j * TABLE);
                KVFI_UNROLL
                for (int v = 0; v < nv; v++) {
                    const quad *q = m + (size_t)v * each + (size_t)(j * quads + i);
                    dot(&hi[v][k], bytes, q->hi);
                    dot(&lo[v][k], bytes, q->lo);
                }
            }
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int k = 0; k < 2; k++) out[v][2 * half + k] = joined(hi[v][k], lo[v][k], s[v].unit);
    }
}

/* Quarter i of x[k] becomes quarter k of y[i]. */
static void exchange_quarters(const __m512 x[4], __m512 y[4])
{
    const __m512 a = _mm512_shuffle_f32x4(x[0], x[1], 0x44), b = _mm512_shuffle_f32x4(x[2], x[3], 0x44);
    const __m512 c = _mm512_shuffle_f32x4(x[0], x[1], 0xee), d = _mm512_shuffle_f32x4(x[2], x[3], 0xee);
    y[0] = _mm512_shuffle_f32x4(a, b, 0x88), y[1] = _mm512_shuffle_f32x4(a, b, 0xdd);
    y[2] = _mm512_shuffle_f32x4(c, d, 0x88), y[3] = _mm512_shuffle_f32x4(c, d, 0xdd);
}

/* Lane l of part k is token 16 (l / 4) + 4 k + l mod 4. */
static void store_scores(const __m512 part[4], float *s)
{
    __m512 x[4];
    exchange_quarters(part, x);
    for (int i = 0; i < 4; i++) _mm512_storeu_ps(s + i * LANES, x[i]);
}

KVFI_INLINE void score_of(int sub, int nv, const kvf_part *part, const uint8_t *record, const scale *s, const quad *m, float *out)
{
    __m512 sum[MOST_VECTORS][4];
    score_half_of(sub, nv, part, record, 0, s, m, sum);
    score_half_of(sub, nv, part, record, 1, s, m, sum);
    for (int v = 0; v < nv; v++) store_scores(sum[v], out + v * KVF_BLOCK);
}

#define CASES(sub, call)                                                                                                         \
    case (sub)*8 + 1: call(sub, 1); break;                                                                                       \
    case (sub)*8 + 2: call(sub, 2); break;                                                                                       \
    case (sub)*8 + 3: call(sub, 3); break;                                                                                       \
    case (sub)*8 + 4: call(sub, 4); break;

static void score_some(int nv, const kvf_part *part, const uint8_t *record, const scale *s, const quad *m, float *out)
{
#define SCORE(sub, nv) score_of(sub, nv, part, record, s, m, out)
    switch (part->sub * 8 + nv) {
        CASES(4, SCORE)
        CASES(8, SCORE)
    }
#undef SCORE
}

static void score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *out)
{
    if (!part->entries) {
        kvfi_avx512_vector_score(part, record, prepared, n, out);
        return;
    }
    const scale *s = scales_in(part, (void *)(uintptr_t)prepared, n);
    const quad *m = (const quad *)(const void *)(s + n);
    for (int v = 0, take; v < n; v += take) {
        take = n - v < MOST_VECTORS ? n - v : MOST_VECTORS;
        score_some(take, part, record, s + v, m + (size_t)v * vector_quads(part), out + v * KVF_BLOCK);
    }
}

/* ---- sums of values -------------------------------------------------------------------------------------------------------------- */

/* Weights of a record, by quads of tokens. */
typedef struct weights {
    scale s[MOST_VECTORS];
    quad m[MOST_VECTORS][KVF_BLOCK / 4];
} weights;

static void prepare_weights(const float *w, int nv, float unit, weights *to)
{
    for (int v = 0; v < nv; v++, w += KVF_BLOCK) {
        int8_t hi[KVF_BLOCK], lo[KVF_BLOCK];
        float inverse;
        to->s[v].unit = unit_of(w, KVF_BLOCK, &inverse) * unit;
        split(w, KVF_BLOCK, inverse, hi, lo, &to->s[v]);
        for (int i = 0; i < KVF_BLOCK / 4; i++) memcpy(to->m[v][i].hi, hi + 4 * i, 4), memcpy(to->m[v][i].lo, lo + 4 * i, 4);
    }
}

/* Rows of 16 dwords to columns: x[i] lane j becomes y[j] lane i. */
static void transpose(const __m512i x[16], __m512i y[16])
{
    __m512i a[16], b[16];
    KVFI_UNROLL
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    KVFI_UNROLL
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    KVFI_UNROLL
    for (int i = 0; i < 4; i++) { /* b[4 r + i]: column 4 g + i of rows 4 r.. in 128-bit lane g */
        const __m512i low = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88), high = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88);
        const __m512i low2 = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd), high2 = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
        y[i] = _mm512_shuffle_i32x4(low, high, 0x88), y[8 + i] = _mm512_shuffle_i32x4(low, high, 0xdd);
        y[4 + i] = _mm512_shuffle_i32x4(low2, high2, 0x88), y[12 + i] = _mm512_shuffle_i32x4(low2, high2, 0xdd);
    }
}

/* Channels j and j + 1 of 16 sub-vectors. */
KVFI_INLINE void mix_two_of(int nv, const kvf_part *part, const __m512i by_token[16], int j, const weights *w,
                            __m512 out[MOST_VECTORS][2])
{
    __m512i hi[MOST_VECTORS][2], lo[MOST_VECTORS][2];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int k = 0; k < 2; k++) hi[v][k] = _mm512_set1_epi32(w->s[v].hi), lo[v][k] = _mm512_set1_epi32(w->s[v].lo);
    }
    for (int t = 0; t < KVF_BLOCK / 4; t++) {
        const indices x = open_indices(by_token[t]);
        KVFI_UNROLL
        for (int k = 0; k < 2; k++) {
            const __m512i bytes = look_up(&x, part->entries + (j + k) * TABLE);
            KVFI_UNROLL
            for (int v = 0; v < nv; v++) {
                dot(&hi[v][k], bytes, w->m[v][t].hi);
                dot(&lo[v][k], bytes, w->m[v][t].lo);
            }
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int k = 0; k < 2; k++) out[v][k] = joined(hi[v][k], lo[v][k], w->s[v].unit);
    }
}

/* Four channels of n <= 16 sub-vectors, x[channel] lane sub-vector, are added to acc[sub-vector * sub]. */
static void add_channels(const __m512 x[4], int n, int sub, float *acc)
{
    const __m512 a = _mm512_unpacklo_ps(x[0], x[1]), b = _mm512_unpackhi_ps(x[0], x[1]);
    const __m512 c = _mm512_unpacklo_ps(x[2], x[3]), d = _mm512_unpackhi_ps(x[2], x[3]);
    const __m512 four[4] = {_mm512_shuffle_ps(a, c, 0x44), _mm512_shuffle_ps(a, c, 0xee), _mm512_shuffle_ps(b, d, 0x44),
                            _mm512_shuffle_ps(b, d, 0xee)};
    __m512 y[4]; /* quarter m mod 4 of y[m / 4]: sub-vector m */
    exchange_quarters(four, y);
    if (n == LANES && sub == 4) {
        for (int i = 0; i < 4; i++) _mm512_storeu_ps(acc + i * LANES, _mm512_add_ps(_mm512_loadu_ps(acc + i * LANES), y[i]));
        return;
    }
    float all[4 * LANES];
    for (int i = 0; i < 4; i++) _mm512_storeu_ps(all + i * LANES, y[i]);
    for (int m = 0; m < n; m++) {
        float *o = acc + m * sub;
        _mm_storeu_ps(o, _mm_add_ps(_mm_loadu_ps(o), _mm_loadu_ps(all + 4 * m)));
    }
}

KVFI_INLINE void mix_of(int nv, const kvf_part *part, const uint8_t *record, const weights *w, float *acc, size_t stride)
{
    const int subs = part->dim / part->sub;
    for (int first = 0; first < subs; first += LANES) {
        const int live = subs - first < LANES ? subs - first : LANES;
        __m512i rows[16], by_token[16];
        for (int i = 0; i < LANES; i++) rows[i] = run_at(record, first + i, subs);
        transpose(rows, by_token);
        for (int j = 0; j < part->sub; j += 4) {
            __m512 low[MOST_VECTORS][2], high[MOST_VECTORS][2];
            mix_two_of(nv, part, by_token, j, w, low);
            mix_two_of(nv, part, by_token, j + 2, w, high);
            for (int v = 0; v < nv; v++) {
                const __m512 x[4] = {low[v][0], low[v][1], high[v][0], high[v][1]};
                add_channels(x, live, part->sub, acc + (size_t)v * stride + first * part->sub + j);
            }
        }
    }
}

static void mix_some(int nv, const kvf_part *part, const uint8_t *record, const weights *w, float *acc, size_t stride)
{
    switch (nv) {
    case 1: mix_of(1, part, record, w, acc, stride); break;
    case 2: mix_of(2, part, record, w, acc, stride); break;
    case 3: mix_of(3, part, record, w, acc, stride); break;
    case 4: mix_of(4, part, record, w, acc, stride); break;
    }
}

static void mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    weights x;
    if (!part->entries) {
        kvfi_avx512_vector_mix(part, record, w, n, acc, stride);
        return;
    }
    for (int v = 0, take; v < n; v += take) {
        take = n - v < MOST_VECTORS ? n - v : MOST_VECTORS;
        prepare_weights(w + v * KVF_BLOCK, take, part->unit, &x);
        mix_some(take, part, record, &x, acc + (size_t)v * stride, stride);
    }
}

void kvfi_avx512vbmi_vector(kvfi_kernels *k)
{
    kvfi_kind_ops *ops = &k->kind[KVF_KIND_VECTOR];
    ops->prepared_bytes = prepared_bytes, ops->prepare = prepare;
    ops->score = score, ops->mix = mix;
    ops->fixed_point = TOP;
}
