/* SPDX-License-Identifier: MIT
 * Packed codes with the dot product of bytes: one instruction adds four products in each of four lanes, with multipliers of int8
 * taken from a register by lane. Both factors are signed. Codes of up to 7 bits are so as they are; of bytes 128 is taken, and
 * given back as 128 times the sum of the multipliers. */
#include "cpu/neon/codes.h"
#include "cpu/neondot/neondot.h"

/* Sums of vectors of lanes for the two planes. */
typedef struct sums {
    int32x4_t hi[VECTORS][4], lo[VECTORS][4];
} sums;

/* One quad of 4n lanes. */
KVFI_INLINE void dot(const int8x16_t codes[4], int n, const quad *m, int nv, sums *s)
{
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        const int8x8_t k = vld1_s8((const int8_t *)(const void *)(m + v * SECTION));
        KVFI_UNROLL
        for (int h = 0; h < n; h++) {
            s->hi[v][h] = vdotq_lane_s32(s->hi[v][h], codes[h], k, 0);
            s->lo[v][h] = vdotq_lane_s32(s->lo[v][h], codes[h], k, 1);
        }
    }
}

/* 128 times the sum of n quads of multipliers. */
KVFI_INLINE int32_t given_back(const quad *m, int n)
{
    const int8x8_t one = vdup_n_s8(1);
    int32x2_t sum = vdup_n_s32(0);
    for (int i = 0; i < n; i++) sum = vdot_s32(sum, vld1_s8((const int8_t *)(const void *)(m + i)), one);
    return 128 * (256 * vget_lane_s32(sum, 0) + vget_lane_s32(sum, 1));
}

/* n vectors of lanes of group g from h0 on. */
KVFI_INLINE void sum_some(const panel *p, int bits, int look, const uint8_t *entry, int g, int h0, int n, int nv,
                          const stretch *r, const int32_t base[VECTORS], float32x4_t t[VECTORS][4], ahead *next)
{
    const uint8x16x2_t table = open_lookup(look, entry, 128);
    const uint8x16_t flip = vdupq_n_u8(128);
    shifts shift = open_shifts(bits, g, r->q0);
    const quad *m = r->m;
    sums s;
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < n; h++) s.hi[v][h] = vdupq_n_s32(0), s.lo[v][h] = vdupq_n_s32(base[v]);
    }
    for (int q = r->q0; q < r->q0 + r->nq; q++, m++) {
        int8x16_t codes[4];
        if (next) fetch_step(bits, next);
        KVFI_UNROLL
        for (int h = 0; h < n; h++) {
            const uint8x16_t x = look_at(look, &table, code_bytes(p, bits, g, q, h0 + h, &shift));
            codes[h] = vreinterpretq_s8_u8(bits == 8 ? veorq_u8(x, flip) : x);
        }
        next_shifts(bits, &shift);
        dot(codes, n, m, nv, &s);
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < n; h++) t[v][h0 + h] = vcvtq_f32_s32(vaddq_s32(vshlq_n_s32(s.hi[v][h], 8), s.lo[v][h]));
    }
}

/* Sixteen sums fit the registers beside codes and multipliers: of three vectors or four, half the lanes at a time. */
KVFI_INLINE void sum_up(const panel *p, int bits, int look, const uint8_t *entry, int g, int nv, const stretch *r,
                        float32x4_t t[VECTORS][4], ahead *next)
{
    int32_t base[VECTORS];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) base[v] = bits == 8 || look ? given_back(r->m + v * SECTION, r->nq) : 0;
    if (nv <= 2) {
        sum_some(p, bits, look, entry, g, 0, 4, nv, r, base, t, next);
    } else {
        sum_some(p, bits, look, entry, g, 0, 2, nv, r, base, t, next);
        sum_some(p, bits, look, entry, g, 2, 2, nv, r, base, t, NULL);
    }
}

/* i = 256 hi + lo: hi rounded to nearest, lo the low byte. */
KVFI_INLINE void store_quads(int16x8_t eight, quad *to)
{
    const int32x2_t hi = vreinterpret_s32_s8(vrshrn_n_s16(eight, 8)), lo = vreinterpret_s32_s8(vmovn_s16(eight));
    vst1q_s32((int32_t *)(void *)to, vcombine_s32(vzip1_s32(hi, lo), vzip2_s32(hi, lo)));
}

#include "cpu/neon/planes.h"

void kvfi_neondot_coded(kvfi_kernels *k)
{
    planes_entries(k, 1);
}
