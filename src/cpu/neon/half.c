/* SPDX-License-Identifier: MIT
 * KVF_KIND_HALF with NEON: rows of f16 lanes, 64 tokens of a channel (keys) or the channels of a token (values). */
#include "cpu/neon/simd.h"
#include "cpu/overlay/panel.h"

/* Row r of `n`, multiplied by element j of the multipliers in k. */
#define ROW_STEP(j)                                                                                                              \
    KVFI_UNROLL                                                                                                                  \
    for (int h = 0; h < 4; h++) {                                                                                                \
        const float32x4_t x = half4(rows + (size_t)(r + j) * row + 4 * h);                                                       \
        KVFI_UNROLL                                                                                                              \
        for (int v = 0; v < nv; v++) acc[v][j % sets][h] = vfmaq_laneq_f32(acc[v][j % sets][h], x, k[v], j);                     \
    }

/* out[v][i] += sum_r m[v][r] * rows[r][i] over n rows and 16 lanes; few vectors get several partial sums each, which covers the
 * latency of an addition. */
KVFI_INLINE void rows_dots_of(const uint16_t *rows, size_t row, int n, int nv, const float *m, size_t stride, float *out,
                              size_t out_stride, ahead *next)
{
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
    int r = 0;
    for (; r + 4 <= n; r += 4) {
        float32x4_t k[4];
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) k[v] = vld1q_f32(m + (size_t)v * stride + r);
        fetch(at);
        fetch(at + 64);
        at += step;
        ROW_STEP(0)
        ROW_STEP(1)
        ROW_STEP(2)
        ROW_STEP(3)
    }
    next->at = at;
    for (; r < n; r++) {
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) {
            const float32x4_t x = half4(rows + (size_t)r * row + 4 * h);
            KVFI_UNROLL
            for (int v = 0; v < nv; v++) acc[v][0][h] = vfmaq_n_f32(acc[v][0][h], x, m[(size_t)v * stride + (size_t)r]);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) {
            float *o = out + (size_t)v * out_stride + 4 * h;
            float32x4_t sum = acc[v][0][h];
            KVFI_UNROLL
            for (int s = 1; s < sets; s++) sum = vaddq_f32(sum, acc[v][s][h]);
            vst1q_f32(o, vaddq_f32(vld1q_f32(o), sum));
        }
    }
}

static void widen(const uint16_t *from, int n, float *to)
{
    for (int i = 0; i < n; i += 4) vst1q_f32(to + i, half4(from + i));
}

#include "cpu/overlay/half.h"

void kvfi_neon_half(kvfi_kernels *k)
{
    k->kind[KVF_KIND_HALF] = half_ops;
}
