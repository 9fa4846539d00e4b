/* SPDX-License-Identifier: MIT
 * Packed codes with AVX-512 VNNI. A line holds, in each 32-bit lane, four codes of the reduction for one output, and dpbusd adds
 * their products with four multipliers of int8 to that lane: 64 products an instruction, no sum across lanes. Two groups of lanes
 * by four vectors by the two planes of multipliers fill sixteen accumulators; each code is unpacked once for all of them.
 *
 * How codes are unpacked is what the including files differ in. Each defines before it, force-inlined:
 *   unpack                                         constants of a pair of groups, with `__m512 factor[2]` of its sums
 *   open_unpack(bits, look, pair, table)
 *   code_bytes(panel, bits, look, unpack, pair, q, odd, c)      the codes, or entries, of quad q: c[h] of group 2 * pair + h
 *   nested(bits, look)                             1: c[1] still has the codes of c[0] below its own
 *   look_up(table, bits, n, bytes)                 see overlay/planes.h
 *   PAIRS_APART                                    1: `pair` is a constant in these, at the price of twice the code */
#ifndef KVFI_AVX512_PRODUCTS_H
#define KVFI_AVX512_PRODUCTS_H

/* Inline assembly, because gcc 12 copies each accumulator around the intrinsic, which halves the speed. */
KVFI_INLINE void dot(__m512i *sum, __m512i codes, __m512i multipliers)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(codes), "v"(multipliers));
}

KVFI_INLINE __m512i broadcast4(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

/* ---- dot products ---------------------------------------------------------------------------------------------------------- */

/* [set][vector][group][plane]: with one vector or two there are too few sums to cover the latency of an addition, so quads go to
 * several sets in turn. */
typedef struct sums {
    __m512i of[4][VECTORS][2][2];
} sums;

KVFI_INLINE int sets_of(int nv)
{
    return nv == 1 ? 4 : nv == 2 ? 2 : 1;
}

KVFI_INLINE void step(const panel *p, int bits, int look, const unpack *u, int pair, int q, int odd, int nv, const quad *m,
                      __m512i sum[VECTORS][2][2])
{
    __m512i c[2];
    code_bytes(p, bits, look, u, pair, q, odd, c);
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        const char *at = (const char *)(m + v * SECTION);
        const __m512i hi = broadcast4(at), lo = broadcast4(at + 4);
        dot(&sum[v][0][0], c[0], hi);
        dot(&sum[v][1][0], c[1], hi);
        dot(&sum[v][0][1], c[0], lo);
        dot(&sum[v][1][1], c[1], lo);
    }
}

/* Sets and planes meet, 256 hi + lo, and become floats: t = sum of multipliers times codes. */
KVFI_INLINE void finish(int bits, int look, const unpack *u, int nv, const sums *s, __m512 t[VECTORS][2])
{
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        __m512i both[2];
        KVFI_UNROLL
        for (int h = 0; h < 2; h++) {
            __m512i plane[2];
            KVFI_UNROLL
            for (int i = 0; i < 2; i++) {
                plane[i] = s->of[0][v][h][i];
                KVFI_UNROLL
                for (int k = 1; k < sets_of(nv); k++) plane[i] = _mm512_add_epi32(plane[i], s->of[k][v][h][i]);
            }
            both[h] = _mm512_add_epi32(_mm512_slli_epi32(plane[0], 8), plane[1]);
        }
        if (nested(bits, look)) both[1] = _mm512_sub_epi32(both[1], both[0]);
        KVFI_UNROLL
        for (int h = 0; h < 2; h++) {
            t[v][h] = _mm512_cvtepi32_ps(both[h]);
            if (bits < 8 && !look) t[v][h] = _mm512_mul_ps(t[v][h], u->factor[h]);
        }
    }
}

/* 32 lanes from `lane` of the product on. */
KVFI_INLINE void add_scaled(const product *x, const stretch *r, int lane, int nv, __m512 t[VECTORS][2])
{
    const __m512 zero = _mm512_set1_ps(x->zero);
    KVFI_UNROLL
    for (int h = 0; h < 2; h++) {
        if (lane + 16 * h >= x->lanes) break;
        const int at = x->lane + lane + 16 * h;
        const __m512 k = half16(r->scale + at);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            float *o = x->out + (size_t)v * x->out_stride + lane + 16 * h;
            const __m512 sum = _mm512_set1_ps(r->sum[(size_t)v * x->sum_stride]);
            const __m512 y = _mm512_fnmadd_ps(zero, sum, t[v][h]), ku = _mm512_mul_ps(k, _mm512_set1_ps(x->unit[v]));
            __m512 z = _mm512_fmadd_ps(y, ku, _mm512_loadu_ps(o));
            if (r->min)
                z = _mm512_fmadd_ps(_mm512_fmadd_ps(k, zero, half16(r->min + at)),
                                    _mm512_set1_ps(r->total[(size_t)v * x->sum_stride]), z);
            _mm512_storeu_ps(o, z);
        }
    }
}

/* The bias belongs to the first stretch. */
KVFI_INLINE void add_biased(const product *x, int first, int lane, int nv, __m512 t[VECTORS][2])
{
    KVFI_UNROLL
    for (int h = 0; h < 2; h++) {
        if (lane + 16 * h >= x->lanes) break;
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            float *o = x->out + (size_t)v * x->out_stride + lane + 16 * h;
            const __m512 bias = _mm512_set1_ps(first ? x->bias[v] : 0);
            const __m512 y = _mm512_fmadd_ps(t[v][h], _mm512_set1_ps(x->unit[v]), bias);
            _mm512_storeu_ps(o, _mm512_add_ps(_mm512_loadu_ps(o), y));
        }
    }
}

KVFI_INLINE void fetch_step(int bits, uintptr_t at)
{
    fetch(at);
    if (bits == 8) fetch(at + 64); /* a record of bytes has two lines a step */
}

KVFI_INLINE void clear(int nv, sums *s)
{
    KVFI_UNROLL
    for (int k = 0; k < sets_of(nv); k++) {
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            KVFI_UNROLL
            for (int i = 0; i < 4; i++) s->of[k][v][i / 2][i % 2] = _mm512_setzero_si512();
        }
    }
}

/* The quads of one stretch. */
KVFI_INLINE void sum_up(const panel *p, int bits, int look, const unpack *u, int pair, int nv, const stretch *r, sums *s,
                        ahead *next)
{
    const int end = r->q0 + r->nq;
    const size_t ahead_step = next->step;
    const quad *m = r->m;
    uintptr_t at = next->at;
    for (int q = r->q0; q < end;) {
        if (q % 4 == 0 && q + 4 <= end) {
            KVFI_UNROLL
            for (int k = 0; k < 4; k++) {
                fetch_step(bits, at);
                at += ahead_step;
                step(p, bits, look, u, pair, q + k, k & 1, nv, m + k, s->of[k % sets_of(nv)]);
            }
            q += 4, m += 4;
        } else {
            step(p, bits, look, u, pair, q, q & 1, nv, m, s->of[0]);
            at += ahead_step, q++, m++;
        }
    }
    next->at = at;
}

/* Pair `pair` of the panel, which is at `lane` of the product. */
KVFI_INLINE void pair_of(const panel *p, int bits, int look, const uint8_t *table, int pair, int lane, int nv, const product *x,
                         ahead *next)
{
    const unpack u = open_unpack(bits, look, pair, table);
    for (int i = 0; i < x->runs; i++) {
        sums s;
        __m512 t[VECTORS][2];
        clear(nv, &s);
        sum_up(p, bits, look, &u, pair, nv, x->run + i, &s, next);
        finish(bits, look, &u, nv, &s, t);
        if (x->run[i].scale)
            add_scaled(x, x->run + i, lane, nv, t);
        else
            add_biased(x, i == 0, lane, nv, t);
    }
}

KVFI_INLINE void product_of(const panel *p, int bits, int look, const uint8_t *table, int nv, const product *x, ahead *next)
{
    for (int pair = 0; pair < x->pairs; pair++)
        if (!PAIRS_APART)
            pair_of(p, bits, look, table, x->pair + pair, 32 * pair, nv, x, next);
        else if (x->pair + pair)
            pair_of(p, bits, look, table, 1, 32 * pair, nv, x, next);
        else
            pair_of(p, bits, look, table, 0, 32 * pair, nv, x, next);
}

/* ---- everything around them ------------------------------------------------------------------------------------------------ */

static float limits(const float *x, int n)
{
    __m512 top = _mm512_setzero_ps();
    for (int i = 0; i < n; i += 16) top = _mm512_max_ps(top, _mm512_abs_ps(_mm512_maskz_loadu_ps(first_lanes(n - i), x + i)));
    return _mm512_reduce_max_ps(top);
}

KVFI_INLINE uint32_t above_of(const float *x, float limit)
{
    return _mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_loadu_ps(x)), _mm512_set1_ps(limit), _CMP_GT_OQ);
}

/* Multipliers are made with 128 added: then byte 1 is the hi plane, and byte 0 the lo plane but for its top bit. The largest, 32767,
 * just fits 16 bits. Eight quads from 32 integers. */
KVFI_INLINE __m512i eight_quads(__m512i low, __m512i high)
{
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(1, 3, 5, 7, 0, 2, 4, 6, 9, 11, 13, 15, 8, 10, 12, 14));
    const __m512i both = _mm512_shuffle_epi8(_mm512_packs_epi32(low, high), bytes);
    const __m512i planes = _mm512_xor_si512(both, _mm512_set1_epi64((long long)0x8080808000000000u));
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), planes);
}

KVFI_INLINE __m512i rounded(__m512 x, __m512 inverse)
{
    return _mm512_cvtps_epi32(_mm512_fmadd_ps(x, inverse, _mm512_set1_ps(128)));
}

static float to_quads(const float *x, int n, float inverse, quad *m)
{
    const __m512 k = _mm512_set1_ps(inverse);
    __m512i sum = _mm512_setzero_si512();
    for (int r = 0; r < n; r += 32) {
        const __m512i a = rounded(_mm512_maskz_loadu_ps(first_lanes(n - r), x + r), k);
        const __m512i b = rounded(_mm512_maskz_loadu_ps(first_lanes(n - r - 16), x + r + 16), k);
        const int quads = (n - r) / 4;
        sum = _mm512_add_epi32(sum, _mm512_add_epi32(a, b));
        _mm512_mask_storeu_epi64(m + r / 4, (__mmask8)(quads >= 8 ? 255 : (1 << quads) - 1), eight_quads(a, b));
    }
    return (float)(_mm512_reduce_add_epi32(sum) - 128 * ((n + 31) & ~31));
}

KVFI_INLINE void fold_of(const uint16_t *scale, const uint16_t *min, float zero, int live, int n, const float *m, size_t stride,
                         int nv, float *x, size_t x_stride, float *bias)
{
    __m512 sum[VECTORS];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) sum[v] = _mm512_setzero_ps();
    for (int r = 0; r < n; r += 16) {
        const __mmask16 lanes = first_lanes(live - r);
        const __m512 k = _mm512_maskz_mov_ps(lanes, half16(scale + r));
        const __m512 low = min ? _mm512_maskz_mov_ps(lanes, half16(min + r)) : _mm512_setzero_ps();
        const __m512 z = min ? _mm512_fmadd_ps(k, _mm512_set1_ps(zero), low) : low;
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            const __m512 y = _mm512_loadu_ps(m + (size_t)v * stride + r);
            _mm512_storeu_ps(x + (size_t)v * x_stride + r, _mm512_mul_ps(y, k));
            sum[v] = _mm512_fmadd_ps(y, z, sum[v]);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) bias[v] = min ? _mm512_reduce_add_ps(sum[v]) : 0;
}

/* Products with scales stay in registers, or at least in L1, until their largest is known. */
KVFI_INLINE void fold_quads_of(const uint16_t *scale, const uint16_t *min, float zero, int n, const float *m, size_t stride,
                               int nv, quad *quads, float *unit, float *bias, float *mean)
{
    __m512 x[VECTORS][4 * SECTION / 16], top[4], low[4], sum[4], all[4];
    float inverse[4], units[4], biases[4];
    KVFI_UNROLL
    for (int v = 0; v < 4; v++) top[v] = low[v] = sum[v] = all[v] = _mm512_setzero_ps();
    KVFI_UNROLL
    for (int i = 0; i < n / 16; i++) {
        const __m512 k = half16(scale + 16 * i);
        const __m512 z = min ? _mm512_fmadd_ps(k, _mm512_set1_ps(zero), half16(min + 16 * i)) : k;
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            const __m512 y = _mm512_loadu_ps(m + (size_t)v * stride + 16 * i);
            x[v][i] = _mm512_mul_ps(y, k);
            top[v] = _mm512_max_ps(top[v], _mm512_abs_ps(x[v][i]));
            if (mean) all[v] = _mm512_add_ps(all[v], _mm512_abs_ps(x[v][i]));
            if (min) low[v] = _mm512_fmadd_ps(y, z, low[v]);
        }
    }
    const __m128 largest = max16x4(top), some = _mm_cmpgt_ps(largest, _mm_set1_ps(NOTHING));
    const __m128 u = _mm_and_ps(some, _mm_mul_ps(largest, _mm_set1_ps(1 / TOP)));
    _mm_storeu_ps(inverse, _mm_and_ps(some, _mm_div_ps(_mm_set1_ps(TOP), largest)));
    _mm_storeu_ps(units, u);
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        const __m512 k = _mm512_set1_ps(inverse[v]);
        __m512i total = _mm512_set1_epi32(-8 * n);
        KVFI_UNROLL
        for (int i = 0; i < n / 16; i += 2) {
            const __m512i a = rounded(x[v][i], k), b = i + 1 < n / 16 ? rounded(x[v][i + 1], k) : _mm512_setzero_si512();
            total = _mm512_add_epi32(total, _mm512_add_epi32(a, b));
            _mm512_storeu_si512((void *)(quads + v * SECTION + 4 * i), eight_quads(a, b));
        }
        sum[v] = _mm512_cvtepi32_ps(total);
    }
    const __m128 base = min ? sum16x4(low) : _mm_setzero_ps();
    _mm_storeu_ps(biases, _mm_fnmadd_ps(_mm_mul_ps(u, _mm_set1_ps(zero)), sum16x4(sum), base));
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) unit[v] = units[v], bias[v] = biases[v];
    if (mean) _mm_mask_storeu_ps(mean, (__mmask8)((1 << nv) - 1), _mm_mul_ps(sum16x4(all), _mm_set1_ps(1.0f / (float)n)));
}

#include "cpu/overlay/planes.h"

static void coded_entries(kvfi_kernels *k)
{
    planes_entries(k, 1);
}

#endif
