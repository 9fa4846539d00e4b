/* SPDX-License-Identifier: MIT
 * Packed codes with NEON that every AArch64 has: multipliers of 16 bits, taken from a register by lane, times codes widened to 16
 * bits, four products an instruction. The dot product of bytes is in another folder, neondot. */
#include "cpu/neon/codes.h"

/* ---- products: neon/planes.h ------------------------------------------------------------------------------------------------- */

/* Element j of a quad for eight lanes, against all vectors. A macro, because the lane of an instruction must be a literal. */
#define ELEMENT(j, codes)                                                                                                        \
    KVFI_UNROLL                                                                                                                  \
    for (int v = 0; v < nv; v++) {                                                                                               \
        const int16x8_t c = vreinterpretq_s16_u16(codes);                                                                        \
        sum[v][h] = vmlal_lane_s16(sum[v][h], vget_low_s16(c), k[v], j);                                                         \
        sum[v][h + 1] = vmlal_high_lane_s16(sum[v][h + 1], c, k[v], j);                                                          \
    }

/* One quad of sixteen lanes. */
KVFI_INLINE void dot(const uint8x16_t bytes[4], const quad *m, int nv, int32x4_t sum[VECTORS][4])
{
    int16x4_t k[VECTORS];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) k[v] = vld1_s16((const int16_t *)(const void *)(m + v * SECTION));
    KVFI_UNROLL
    for (int h = 0; h < 4; h += 2) {
        const uint16x8_t a = vreinterpretq_u16_u8(bytes[h]), b = vreinterpretq_u16_u8(bytes[h + 1]);
        const uint16x8_t first = vuzp1q_u16(a, b), second = vuzp2q_u16(a, b), low = vdupq_n_u16(255);
        ELEMENT(0, vandq_u16(first, low))
        ELEMENT(1, vshrq_n_u16(first, 8))
        ELEMENT(2, vandq_u16(second, low))
        ELEMENT(3, vshrq_n_u16(second, 8))
    }
}

KVFI_INLINE void sum_up(const panel *p, int bits, int look, const uint8_t *entry, int g, int nv, const stretch *r,
                        float32x4_t t[VECTORS][4], ahead *next)
{
    const uint8x16x2_t table = open_lookup(look, entry, 0);
    shifts shift = open_shifts(bits, g, r->q0);
    int32x4_t sum[VECTORS][4];
    const quad *m = r->m;
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) sum[v][h] = vdupq_n_s32(0);
    }
    for (int q = r->q0; q < r->q0 + r->nq; q++, m++) {
        uint8x16_t bytes[4];
        if (next) fetch_step(bits, next);
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) bytes[h] = look_at(look, &table, code_bytes(p, bits, g, q, h, &shift));
        next_shifts(bits, &shift);
        dot(bytes, m, nv, sum);
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) t[v][h] = vcvtq_f32_s32(sum[v][h]);
    }
}

KVFI_INLINE void store_quads(int16x8_t eight, quad *to)
{
    vst1q_s16((int16_t *)(void *)to, eight);
}

#include "cpu/neon/planes.h"

/* ---- tiles: overlay/unfold.h ------------------------------------------------------------------------------------------------- */

/* The codes themselves. */
KVFI_INLINE float32x4_t code_floats(uint32x4_t bytes, int j)
{
    return vcvtq_f32_u32(vandq_u32(vshlq_u32(bytes, vdupq_n_s32(-8 * j)), vdupq_n_u32(255)));
}

/* The table in registers. Bytes are looked up before a lane is taken apart; larger entries are loaded one by one. */
typedef struct table {
    int8x16x2_t bytes;
    const float *wide;
    float unit;
} table;

KVFI_INLINE table open_table(int look, const entries *e)
{
    table x = {.wide = e->wide};
    if (look) x.unit = e->unit;
    if (look && look != 8) x.bytes.val[0] = vld1q_s8(e->byte);
    if (look == 5) x.bytes.val[1] = vld1q_s8(e->byte + 16);
    return x;
}

/* Codes to entries of one byte, or as they were. */
KVFI_INLINE uint32x4_t byte_entries(int look, const table *x, uint8x16_t codes)
{
    if (look == 0 || look == 8) return vreinterpretq_u32_u8(codes);
    return vreinterpretq_u32_s8(look == 5 ? vqtbl2q_s8(x->bytes, codes) : vqtbl1q_s8(x->bytes.val[0], codes));
}

/* Entry j of each lane, from what byte_entries gave. */
KVFI_INLINE float32x4_t entry_floats(int look, const table *x, uint32x4_t bytes, int j)
{
    if (look != 8) {
        const int32x4_t up = vshlq_s32(vreinterpretq_s32_u32(bytes), vdupq_n_s32(24 - 8 * j));
        return vcvtq_f32_s32(vshrq_n_s32(up, 24));
    }
    uint8_t code[16];
    vst1q_u8(code, vreinterpretq_u8_u32(bytes));
    const float four[4] = {x->wide[code[j]], x->wide[code[4 + j]], x->wide[code[8 + j]], x->wide[code[12 + j]]};
    return vld1q_f32(four);
}

/* value = code * scale + min, or (code - zero) * scale: rounded step by step, so that tiles equal scalar ones bit for bit. */
KVFI_INLINE float32x4_t decoded(float32x4_t code, float32x4_t scale, float32x4_t min, float32x4_t zero, int has_min)
{
    if (has_min) return vaddq_f32(vmulq_f32(code, scale), min);
    return vmulq_f32(vsubq_f32(code, zero), scale);
}

KVFI_INLINE float32x4_t level_times(int look, const table *entry, uint32x4_t bytes, int j, float32x4_t scale, float32x4_t min,
                                    float32x4_t zero, int has_min)
{
    if (look) return vmulq_f32(vmulq_n_f32(entry_floats(look, entry, bytes, j), entry->unit), scale);
    return decoded(code_floats(bytes, j), scale, min, zero, has_min);
}

KVFI_INLINE void tile_scaled_of(const panel *p, int bits, int look, const entries *e, int g, int q0, int nq,
                                const uint16_t *scale, const uint16_t *min, float zero, float *tile, size_t stride)
{
    const table entry = open_table(look, e);
    const float32x4_t z = vdupq_n_f32(zero);
    for (int h = 0; h < 4; h++) {
        const float32x4_t k = half4(scale + 4 * h), low = min ? half4(min + 4 * h) : z;
        shifts shift = open_shifts(bits, g, q0);
        for (int q = q0; q < q0 + nq; q++) {
            const uint32x4_t x = byte_entries(look, &entry, code_bytes(p, bits, g, q, h, &shift));
            KVFI_UNROLL
            for (int j = 0; j < 4; j++)
                vst1q_f32(tile + (size_t)(4 * q + j) * stride + 4 * h, level_times(look, &entry, x, j, k, low, z, min != NULL));
            next_shifts(bits, &shift);
        }
    }
}

KVFI_INLINE void tile_folded_of(const panel *p, int bits, int look, const entries *e, int g, int q0, int nq, const float *scale,
                                const float *min, float zero, float *tile, size_t stride)
{
    const table entry = open_table(look, e);
    const float32x4_t z = vdupq_n_f32(zero);
    shifts shift = open_shifts(bits, g, q0);
    for (int q = q0; q < q0 + nq; q++) {
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) {
            const uint32x4_t x = byte_entries(look, &entry, code_bytes(p, bits, g, q, h, &shift));
            KVFI_UNROLL
            for (int j = 0; j < 4; j++) {
                const int r = 4 * q + j;
                const float32x4_t k = vdupq_n_f32(scale[r]), low = min ? vdupq_n_f32(min[r]) : z;
                vst1q_f32(tile + (size_t)r * stride + 4 * h, level_times(look, &entry, x, j, k, low, z, min != NULL));
            }
        }
        next_shifts(bits, &shift);
    }
}

static void widen(const uint16_t *from, int n, float *to)
{
    for (int i = 0; i < n; i += 4) vst1q_f32(to + i, half4(from + i));
}

#include "cpu/overlay/unfold.h"

void kvfi_neon_coded(kvfi_kernels *k)
{
    static const kvf_kind kinds[] = {KVF_KIND_TOKEN, KVF_KIND_TABLE, KVF_KIND_CHANNEL};
    planes_entries(k, 0);
    for (int i = 0; i < 3; i++) k->kind[kinds[i]].unfold = coded_unfold;
}
