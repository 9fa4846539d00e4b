/* SPDX-License-Identifier: MIT
 * Exact rows with NEON: sink, window, tail. Rows may be unaligned, strided, indexed and of any length; nothing beyond the last
 * element of a row or a query is read. */
#include "cpu/neon/simd.h"

static const char *row_at(const kvfi_rows *rows, int32_t i)
{
    return rows->data + (rows->index ? rows->index[i] : i) * rows->stride;
}

/* ---- scores: four rows at a time, so that the sums across lanes are made four at once -------------------------------------- */

enum { SCORE_VECTORS = 4 };

/* One step of four channels, of which `count` exist. */
KVFI_INLINE void score_step(kvf_type type, const char *const row[4], int c, int count, const float *q, size_t stride, int nv,
                            float32x4_t acc[SCORE_VECTORS][4])
{
    float32x4_t k[SCORE_VECTORS];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) k[v] = row4(KVF_F32, (const char *)(q + (size_t)v * stride), c, count);
    KVFI_UNROLL
    for (int i = 0; i < 4; i++) {
        const float32x4_t x = row4(type, row[i], c, count);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) acc[v][i] = vfmaq_f32(acc[v][i], x, k[v]);
    }
}

KVFI_INLINE void score_of(kvf_type type, const char *const row[4], int32_t dim, const float *q, size_t stride, int nv,
                          float s[][4])
{
    float32x4_t acc[SCORE_VECTORS][4];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int i = 0; i < 4; i++) acc[v][i] = vdupq_n_f32(0);
    }
    int32_t c = 0;
    for (; c + 4 <= dim; c += 4) score_step(type, row, c, 4, q, stride, nv, acc);
    if (c < dim) score_step(type, row, c, dim - c, q, stride, nv, acc);
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) vst1q_f32(s[v], sum4x4(acc[v][0], acc[v][1], acc[v][2], acc[v][3]));
}

#define SCORE_CASES(type)                                                                                                        \
    switch (nv) {                                                                                                                \
    case 1: score_of(type, row, dim, q, stride, 1, s); break;                                                                    \
    case 2: score_of(type, row, dim, q, stride, 2, s); break;                                                                    \
    case 3: score_of(type, row, dim, q, stride, 3, s); break;                                                                    \
    case 4: score_of(type, row, dim, q, stride, 4, s); break;                                                                    \
    }

static void score_f16(const char *const row[4], int32_t dim, const float *q, size_t stride, int nv, float s[][4])
{
    SCORE_CASES(KVF_F16)
}

static void score_f32(const char *const row[4], int32_t dim, const float *q, size_t stride, int nv, float s[][4])
{
    SCORE_CASES(KVF_F32)
}

static void rows_score(const kvfi_rows *rows, int32_t n, int32_t dim, const float *q, size_t q_stride, int32_t nv, float *s)
{
    for (int32_t i = 0; i < n; i += 4) {
        const int live = n - i < 4 ? n - i : 4;
        const char *row[4];
        for (int j = 0; j < 4; j++) row[j] = row_at(rows, i + (j < live ? j : 0));
        for (int32_t v = 0, take; v < nv; v += take) {
            float some[SCORE_VECTORS][4];
            take = nv - v < SCORE_VECTORS ? nv - v : SCORE_VECTORS;
            if (rows->type == KVF_F16)
                score_f16(row, dim, q + (size_t)v * q_stride, q_stride, take, some);
            else
                score_f32(row, dim, q + (size_t)v * q_stride, q_stride, take, some);
            for (int j = 0; j < take; j++) memcpy(s + (v + j) * KVF_BLOCK + i, some[j], (size_t)live * sizeof some[j][0]);
        }
    }
}

/* ---- mix: sixteen channels at a time, four vectors ------------------------------------------------------------------------- */

enum { MIX_VECTORS = 4 };

KVFI_INLINE void mix_of(kvf_type type, const char *const *row, int32_t n, int c, const float *w, int nv, float *acc,
                        size_t stride)
{
    float32x4_t sum[MIX_VECTORS][4];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) sum[v][h] = vdupq_n_f32(0);
    }
    for (int32_t i = 0; i < n; i++) {
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) {
            const float32x4_t x = row4(type, row[i], c + 4 * h, 4);
            KVFI_UNROLL
            for (int v = 0; v < nv; v++) sum[v][h] = vfmaq_n_f32(sum[v][h], x, w[v * KVF_BLOCK + i]);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < 4; h++) {
            float *o = acc + (size_t)v * stride + c + 4 * h;
            vst1q_f32(o, vaddq_f32(vld1q_f32(o), sum[v][h]));
        }
    }
}

#define MIX_CASES(type)                                                                                                          \
    switch (nv) {                                                                                                                \
    case 1: mix_of(type, row, n, c, w, 1, acc, stride); break;                                                                   \
    case 2: mix_of(type, row, n, c, w, 2, acc, stride); break;                                                                   \
    case 3: mix_of(type, row, n, c, w, 3, acc, stride); break;                                                                   \
    case 4: mix_of(type, row, n, c, w, 4, acc, stride); break;                                                                   \
    }

static void mix_f16(const char *const *row, int32_t n, int c, const float *w, int nv, float *acc, size_t stride)
{
    MIX_CASES(KVF_F16)
}

static void mix_f32(const char *const *row, int32_t n, int c, const float *w, int nv, float *acc, size_t stride)
{
    MIX_CASES(KVF_F32)
}

/* The channels behind the last whole group of sixteen, up to four at a time. */
static void mix_few(kvf_type type, const char *const *row, int32_t n, int c, int count, const float *w, float *acc)
{
    float32x4_t sum = vdupq_n_f32(0);
    float few[4];
    for (int32_t i = 0; i < n; i++) sum = vfmaq_n_f32(sum, row4(type, row[i], c, count), w[i]);
    vst1q_f32(few, sum);
    for (int i = 0; i < count; i++) acc[c + i] += few[i];
}

static void rows_mix(const kvfi_rows *rows, int32_t n, int32_t dim, const float *w, int32_t nv, float *acc, size_t stride)
{
    const char *row[KVF_BLOCK];
    for (int32_t i = 0; i < n; i++) row[i] = row_at(rows, i);
    for (int32_t v = 0, take; v < nv; v += take) {
        const float *m = w + v * KVF_BLOCK;
        float *out = acc + (size_t)v * stride;
        take = nv - v < MIX_VECTORS ? nv - v : MIX_VECTORS;
        int32_t c = 0;
        for (; c + 16 <= dim; c += 16) {
            if (rows->type == KVF_F16)
                mix_f16(row, n, c, m, take, out, stride);
            else
                mix_f32(row, n, c, m, take, out, stride);
        }
        for (; c < dim; c += 4)
            for (int32_t j = 0; j < take; j++)
                mix_few(rows->type, row, n, c, dim - c < 4 ? dim - c : 4, m + j * KVF_BLOCK, out + (size_t)j * stride);
    }
}

void kvfi_neon_rows(kvfi_kernels *k)
{
    k->rows_score = rows_score;
    k->rows_mix = rows_mix;
}
