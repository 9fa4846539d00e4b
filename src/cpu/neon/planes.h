/* SPDX-License-Identifier: MIT
 * What overlay/planes.h wants, for NEON with and without the dot product of bytes. Included by one file of each folder, which
 * defines before it (static, force-inlined):
 *   sum_up(panel, bits, look, entry, g, nv, stretch, t, ahead)
 *       t[v][h] = sum over the quads of the stretch of multipliers times codes or entries, for lanes 4h..4h+3 of group g; each quad
 *       also fetches the next bytes of `ahead`, unless that is NULL
 *   store_quads(eight, quads)           two quads from eight multipliers */
#ifndef KVFI_NEON_PLANES_H
#define KVFI_NEON_PLANES_H

#include "cpu/neon/codes.h"

/* Sixteen lanes from `lane` of the product on. */
KVFI_INLINE void add_scaled(const product *x, const stretch *r, int lane, int nv, float32x4_t t[VECTORS][4])
{
    const float32x4_t zero = vdupq_n_f32(x->zero);
    KVFI_UNROLL
    for (int h = 0; h < 4; h++) {
        const int at = x->lane + lane + 4 * h;
        const float32x4_t k = half4(r->scale + at);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            float *o = x->out + (size_t)v * x->out_stride + lane + 4 * h;
            const float32x4_t y = vfmsq_n_f32(t[v][h], zero, r->sum[(size_t)v * x->sum_stride]);
            float32x4_t z = vfmaq_f32(vld1q_f32(o), y, vmulq_n_f32(k, x->unit[v]));
            if (r->min) z = vfmaq_n_f32(z, vfmaq_f32(half4(r->min + at), k, zero), r->total[(size_t)v * x->sum_stride]);
            vst1q_f32(o, z);
        }
    }
}

/* The bias belongs to the first stretch. */
KVFI_INLINE void add_biased(const product *x, int first, int lane, int nv, float32x4_t t[VECTORS][4])
{
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        const float32x4_t bias = vdupq_n_f32(first ? x->bias[v] : 0);
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) {
            float *o = x->out + (size_t)v * x->out_stride + lane + 4 * h;
            vst1q_f32(o, vaddq_f32(vld1q_f32(o), vfmaq_n_f32(bias, t[v][h], x->unit[v])));
        }
    }
}

/* The groups of a pair apart, so that whether one is odd is a constant: codes of 4 bits are masked or shifted, not both. */
KVFI_INLINE void product_of(const panel *p, int bits, int look, const uint8_t *entry, int nv, const product *x, ahead *next)
{
    for (int pair = 0; pair < x->pairs; pair++) {
        KVFI_UNROLL
        for (int odd = 0; odd < 2; odd++) {
            const int lane = 32 * pair + 16 * odd;
            if (lane >= x->lanes) break;
            for (int i = 0; i < x->runs; i++) {
                float32x4_t t[VECTORS][4];
                sum_up(p, bits, look, entry, 2 * (x->pair + pair) + odd, nv, x->run + i, t, odd ? NULL : next);
                if (x->run[i].scale)
                    add_scaled(x, x->run + i, lane, nv, t);
                else
                    add_biased(x, i == 0, lane, nv, t);
            }
        }
    }
}

/* Sixty-four entries at a time; an index beyond them gives zero. */
static inline void look_up(const uint8_t *entry, int bits, int n, uint8_t *bytes)
{
    for (int i = 0; i < n; i += 16) {
        uint8x16_t codes = vld1q_u8(bytes + i), x = vdupq_n_u8(0);
        for (int part = 0; part < 1 << bits; part += 64) {
            x = vorrq_u8(x, vqtbl4q_u8(vld1q_u8_x4(entry + part), codes));
            codes = vsubq_u8(codes, vdupq_n_u8(64));
        }
        vst1q_u8(bytes + i, x);
    }
}

static inline void look_up_states(const uint8_t *entry, int n, uint8_t *bytes)
{
    look_up(entry, 8, n, bytes);
}

static float limits(const float *x, int n)
{
    float32x4_t top = vdupq_n_f32(0);
    for (int i = 0; i < n; i += 4) top = vmaxq_f32(top, vabsq_f32(vld1q_f32(x + i)));
    return vmaxvq_f32(top);
}

KVFI_INLINE uint32_t above_of(const float *x, float limit)
{
    static const uint32_t bit[4] = {1, 2, 4, 8};
    uint32_t above = 0;
    for (int i = 0; i < 4; i++)
        above |= vaddvq_u32(vandq_u32(vcagtq_f32(vld1q_f32(x + 4 * i), vdupq_n_f32(limit)), vld1q_u32(bit))) << 4 * i;
    return above;
}

static float to_quads(const float *x, int n, float inverse, quad *m)
{
    int32x4_t sum = vdupq_n_s32(0);
    int r = 0;
    for (; r + 8 <= n; r += 8) {
        const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + r), inverse));
        const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + r + 4), inverse));
        sum = vaddq_s32(sum, vaddq_s32(a, b));
        store_quads(vcombine_s16(vmovn_s32(a), vmovn_s32(b)), m + r / 4);
    }
    if (r < n) {
        const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + r), inverse));
        quad two[2];
        sum = vaddq_s32(sum, a);
        store_quads(vcombine_s16(vmovn_s32(a), vdup_n_s16(0)), two);
        m[r / 4] = two[0];
    }
    return (float)vaddvq_s32(sum);
}

/* Four halves of which those from `live` on do not exist. */
KVFI_INLINE float32x4_t live4(const uint16_t *p, int live)
{
    return row4(KVF_F16, (const char *)p, 0, live);
}

KVFI_INLINE void fold_of(const uint16_t *scale, const uint16_t *min, float zero, int live, int n, const float *m, size_t stride,
                         int nv, float *x, size_t x_stride, float *bias)
{
    float32x4_t sum[VECTORS];
    for (int v = 0; v < nv; v++) sum[v] = vdupq_n_f32(0);
    for (int r = 0; r < n; r += 4) {
        const float32x4_t k = live4(scale + r, live - r), z = min ? vfmaq_n_f32(live4(min + r, live - r), k, zero) : k;
        for (int v = 0; v < nv; v++) {
            const float32x4_t y = vld1q_f32(m + (size_t)v * stride + r);
            vst1q_f32(x + (size_t)v * x_stride + r, vmulq_f32(y, k));
            sum[v] = vfmaq_f32(sum[v], y, z);
        }
    }
    for (int v = 0; v < nv; v++) bias[v] = min ? vaddvq_f32(sum[v]) : 0;
}

/* Products with scales stay in L1 until their largest is known. */
KVFI_INLINE void fold_quads_of(const uint16_t *scale, const uint16_t *min, float zero, int n, const float *m, size_t stride,
                               int nv, quad *quads, float *unit, float *bias, float *mean)
{
    float x[VECTORS][4 * SECTION];
    float32x4_t top[VECTORS], low[VECTORS], all[VECTORS];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) top[v] = low[v] = all[v] = vdupq_n_f32(0);
    for (int r = 0; r < n; r += 4) {
        const float32x4_t k = half4(scale + r), z = min ? vfmaq_n_f32(half4(min + r), k, zero) : k;
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            const float32x4_t y = vld1q_f32(m + (size_t)v * stride + r), yk = vmulq_f32(y, k);
            vst1q_f32(x[v] + r, yk);
            top[v] = vmaxq_f32(top[v], vabsq_f32(yk));
            if (mean) all[v] = vaddq_f32(all[v], vabsq_f32(yk));
            if (min) low[v] = vfmaq_f32(low[v], y, z);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        const float largest = vmaxvq_f32(top[v]), some = largest > NOTHING ? largest : 0;
        unit[v] = some / TOP;
        if (mean) mean[v] = vaddvq_f32(all[v]) / (float)n;
        bias[v] =
            (min ? vaddvq_f32(low[v]) : 0) - unit[v] * zero * to_quads(x[v], n, some > 0 ? TOP / some : 0, quads + v * SECTION);
    }
}

#include "cpu/overlay/planes.h"

#endif
