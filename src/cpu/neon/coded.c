/* SPDX-License-Identifier: MIT
 * Packed codes with NEON. A line is four vectors of four lanes; a lane holds the codes of four adjacent elements of the
 * reduction for one output. Multipliers of a quad fill one register and are taken from it by lane, so nothing is broadcast. */
#include "cpu/neon/simd.h"
#include "cpu/overlay/panel.h"

static const float byte_weight[4] = {1, 0x1p-8f, 0x1p-16f, 1};

/* One byte a code: reduction 4q..4q+3 of lanes 4h..4h+3 of group g. */
KVFI_INLINE uint32x4_t code_bytes(const panel *p, int bits, int g, int q, int h)
{
    uint8x16_t sum = vdupq_n_u8(0);
    KVFI_UNROLL
    for (int i = 0, done = 0; i < 3; i++) {
        const int width = kvfi_plane_width[bits][i];
        if (!width) break;
        uint8x16_t x = vld1q_u8(plane_line(p, i, width, g, q) + 16 * h);
        if (width < 8) {
            x = vshlq_u8(x, vdupq_n_s8((int8_t)-plane_shift(width, g, q)));
            x = vandq_u8(x, vdupq_n_u8((uint8_t)((1 << width) - 1)));
        }
        sum = i ? vorrq_u8(sum, vshlq_u8(x, vdupq_n_s8((int8_t)done))) : x;
        done += width;
    }
    return vreinterpretq_u32_u8(sum);
}

/* Byte j of each lane, 256^j too large but for the last: smaller weights than 2^-16 would lose bits of small multipliers. */
KVFI_INLINE float32x4_t weighty_floats(uint32x4_t bytes, int j)
{
    return vcvtq_f32_u32(j == 3 ? vshrq_n_u32(bytes, 24) : vandq_u32(bytes, vdupq_n_u32(255u << 8 * j)));
}

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
KVFI_INLINE uint32x4_t byte_entries(int look, const table *x, uint32x4_t codes)
{
    if (look == 0 || look == 8) return codes;
    const uint8x16_t index = vreinterpretq_u8_u32(codes);
    return vreinterpretq_u32_s8(look == 5 ? vqtbl2q_s8(x->bytes, index) : vqtbl1q_s8(x->bytes.val[0], index));
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

/* Element j of a quad, against all vectors. A macro, because the lane of an instruction must be a literal. */
#define QUAD_STEP(j)                                                                                                             \
    KVFI_UNROLL                                                                                                                  \
    for (int h = 0; h < 4; h++) {                                                                                                \
        const float32x4_t x = look ? entry_floats(look, &entry, bytes[h], j) : weighty_floats(bytes[h], j);                      \
        KVFI_UNROLL                                                                                                              \
        for (int v = 0; v < nv; v++) acc[v][j % sets][h] = vfmaq_laneq_f32(acc[v][j % sets][h], x, k[v], j);                     \
    }

/* With one or two vectors there are too few sums to cover the latency of an addition, so each vector gets `sets` of them. */
KVFI_INLINE void dots_of(const panel *p, int bits, int look, const entries *e, int g, int q0, int nq, int nv, const float *m,
                         size_t stride, float t[][16], ahead *next)
{
    const table entry = open_table(look, e);
    const int sets = nv == 1 ? 4 : nv == 2 ? 2 : 1;
    float32x4_t acc[4][4][4];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int s = 0; s < sets; s++) {
            KVFI_UNROLL
            for (int h = 0; h < 4; h++) acc[v][s][h] = vdupq_n_f32(0);
        }
    }
    uintptr_t at = next->at;
    const size_t step = next->step;
    for (int q = q0; q < q0 + nq; q++, m += 4) {
        uint32x4_t bytes[4];
        float32x4_t k[4];
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) bytes[h] = byte_entries(look, &entry, code_bytes(p, bits, g, q, h));
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) k[v] = vld1q_f32(m + (size_t)v * stride);
        fetch(at);
        if (bits == 8) fetch(at + 64); /* a record of bytes has more lines than quads */
        at += step;
        QUAD_STEP(0)
        QUAD_STEP(1)
        QUAD_STEP(2)
        QUAD_STEP(3)
    }
    next->at = at;
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) {
            float32x4_t sum = acc[v][0][h];
            KVFI_UNROLL
            for (int s = 1; s < sets; s++) sum = vaddq_f32(sum, acc[v][s][h]);
            vst1q_f32(t[v] + 4 * h, sum);
        }
    }
}

/* Four halves of which those from `live` on do not exist. */
KVFI_INLINE float32x4_t live4(const uint16_t *p, int live)
{
    return row4(KVF_F16, (const char *)p, 0, live);
}

static void fold(const uint16_t *scale, const uint16_t *min, float zero, const float *weights, int live, int n, const float *m,
                 size_t stride, int nv, float *folded, size_t folded_stride, float *bias)
{
    const float32x4_t weight = vld1q_f32(weights);
    float32x4_t sum[4];
    for (int v = 0; v < nv; v++) sum[v] = vdupq_n_f32(0);
    for (int r = 0; r < n; r += 4) {
        const float32x4_t k = live4(scale + r, live - r);
        const float32x4_t z = min ? live4(min + r, live - r) : vmulq_n_f32(k, -zero);
        for (int v = 0; v < nv; v++) {
            const float32x4_t x = vld1q_f32(m + (size_t)v * stride + r);
            vst1q_f32(folded + (size_t)v * folded_stride + r, vmulq_f32(x, vmulq_f32(k, weight)));
            sum[v] = vfmaq_f32(sum[v], x, z);
        }
    }
    for (int v = 0; v < nv; v++) bias[v] = vaddvq_f32(sum[v]);
}

static void add_scaled(float t[][16], int nv, const uint16_t *scale, const uint16_t *min, float zero, const float *sums,
                       size_t sums_stride, float *out, size_t stride)
{
    for (int h = 0; h < 16; h += 4) {
        const float32x4_t k = half4(scale + h), z = min ? half4(min + h) : vmulq_n_f32(k, -zero);
        for (int v = 0; v < nv; v++) {
            float *o = out + (size_t)v * stride + h;
            const float32x4_t base = vfmaq_n_f32(vld1q_f32(o), z, sums[(size_t)v * sums_stride]);
            vst1q_f32(o, vfmaq_f32(base, k, vld1q_f32(t[v] + h)));
        }
    }
}

static void add_biased(float t[][16], int nv, const float *bias, float *out, size_t stride)
{
    for (int v = 0; v < nv; v++)
        for (int h = 0; h < 16; h += 4) {
            float *o = out + (size_t)v * stride + h;
            vst1q_f32(o, vaddq_f32(vld1q_f32(o), vaddq_f32(vld1q_f32(t[v] + h), vdupq_n_f32(bias[v]))));
        }
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
        for (int q = q0; q < q0 + nq; q++) {
            const uint32x4_t x = byte_entries(look, &entry, code_bytes(p, bits, g, q, h));
            KVFI_UNROLL
            for (int j = 0; j < 4; j++)
                vst1q_f32(tile + (size_t)(4 * q + j) * stride + 4 * h,
                          level_times(look, &entry, x, j, k, low, z, min != NULL));
        }
    }
}

KVFI_INLINE void tile_folded_of(const panel *p, int bits, int look, const entries *e, int g, int q0, int nq, const float *scale,
                                const float *min, float zero, float *tile, size_t stride)
{
    const table entry = open_table(look, e);
    const float32x4_t z = vdupq_n_f32(zero);
    for (int q = q0; q < q0 + nq; q++) {
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) {
            const uint32x4_t x = byte_entries(look, &entry, code_bytes(p, bits, g, q, h));
            KVFI_UNROLL
            for (int j = 0; j < 4; j++) {
                const int r = 4 * q + j;
                const float32x4_t k = vdupq_n_f32(scale[r]), low = min ? vdupq_n_f32(min[r]) : z;
                vst1q_f32(tile + (size_t)r * stride + 4 * h, level_times(look, &entry, x, j, k, low, z, min != NULL));
            }
        }
    }
}

static void widen(const uint16_t *from, int n, float *to)
{
    for (int i = 0; i < n; i += 4) vst1q_f32(to + i, half4(from + i));
}

#include "cpu/overlay/coded.h"

void kvfi_neon_coded(kvfi_kernels *k)
{
    k->kind[KVF_KIND_TOKEN] = k->kind[KVF_KIND_TABLE] = k->kind[KVF_KIND_CHANNEL] = coded_ops;
}
