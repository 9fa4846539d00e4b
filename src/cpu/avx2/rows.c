/* SPDX-License-Identifier: MIT
 * Exact rows with AVX2: sink, window, tail. Rows may be unaligned, strided, indexed and of any length; nothing beyond the last
 * element of a row or a query is read. */
#include "cpu/avx2/simd.h"

static const char *row_at(const kvfi_rows *rows, int32_t i)
{
    return rows->data + (rows->index ? rows->index[i] : i) * rows->stride;
}

/* ---- scores: four rows at a time, so that the sums across lanes are made four at once -------------------------------------- */

enum { SCORE_VECTORS = 3 };

/* One step of eight channels, of which `count` exist. */
KVFI_INLINE void score_step(kvf_type type, const char *const row[4], int c, int count, const float *q, size_t stride, int nv,
                            __m256 acc[SCORE_VECTORS][4])
{
    __m256 k[SCORE_VECTORS];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) k[v] = row8(KVF_F32, (const char *)(q + (size_t)v * stride), c, count);
    KVFI_UNROLL
    for (int i = 0; i < 4; i++) {
        const __m256 x = row8(type, row[i], c, count);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) acc[v][i] = _mm256_fmadd_ps(x, k[v], acc[v][i]);
    }
}

KVFI_INLINE void score_of(kvf_type type, const char *const row[4], int32_t dim, const float *q, size_t stride, int nv,
                          float s[][4])
{
    __m256 acc[SCORE_VECTORS][4];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int i = 0; i < 4; i++) acc[v][i] = _mm256_setzero_ps();
    }
    int32_t c = 0;
    for (; c + 8 <= dim; c += 8) score_step(type, row, c, 8, q, stride, nv, acc);
    if (c < dim) score_step(type, row, c, dim - c, q, stride, nv, acc);
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) _mm_storeu_ps(s[v], sum8x4(acc[v][0], acc[v][1], acc[v][2], acc[v][3]));
}

#define SCORE_CASES(type)                                                                                                        \
    switch (nv) {                                                                                                                \
    case 1: score_of(type, row, dim, q, stride, 1, s); break;                                                                    \
    case 2: score_of(type, row, dim, q, stride, 2, s); break;                                                                    \
    case 3: score_of(type, row, dim, q, stride, 3, s); break;                                                                    \
    }

static void score_f16(const char *const row[4], int32_t dim, const float *q, size_t stride, int nv, float s[][4])
{
    SCORE_CASES(KVF_F16)
}

static void score_f32(const char *const row[4], int32_t dim, const float *q, size_t stride, int nv, float s[][4])
{
    SCORE_CASES(KVF_F32)
}

static int score_take(int left)
{
    return left == 4 ? 2 : left < SCORE_VECTORS ? left : SCORE_VECTORS;
}

static void rows_score(const kvfi_rows *rows, int32_t n, int32_t dim, const float *q, size_t q_stride, int32_t nv, float *s)
{
    for (int32_t i = 0; i < n; i += 4) {
        const int live = n - i < 4 ? n - i : 4;
        const char *row[4];
        for (int j = 0; j < 4; j++) row[j] = row_at(rows, i + (j < live ? j : 0));
        for (int32_t v = 0, take; v < nv; v += take) {
            float some[SCORE_VECTORS][4];
            take = score_take(nv - v);
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

KVFI_INLINE void mix_of(kvf_type type, const char *const *row, int32_t n, int c, int count, const float *w, int nv, float *acc,
                        size_t stride)
{
    const __m256i low = first_lanes(count), high = first_lanes(count - 8);
    __m256 sum[MIX_VECTORS][2];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) sum[v][0] = sum[v][1] = _mm256_setzero_ps();
    for (int32_t i = 0; i < n; i++) {
        const __m256 x = row8(type, row[i], c, count), y = row8(type, row[i], c + 8, count - 8);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            const __m256 k = _mm256_broadcast_ss(w + v * KVF_BLOCK + i);
            sum[v][0] = _mm256_fmadd_ps(x, k, sum[v][0]);
            sum[v][1] = _mm256_fmadd_ps(y, k, sum[v][1]);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        float *o = acc + (size_t)v * stride + c;
        _mm256_maskstore_ps(o, low, _mm256_add_ps(_mm256_maskload_ps(o, low), sum[v][0]));
        if (count > 8) _mm256_maskstore_ps(o + 8, high, _mm256_add_ps(_mm256_maskload_ps(o + 8, high), sum[v][1]));
    }
}

/* `some` is compiled apart from whole groups of sixteen, which need no masks. */
#define MIX_CASES(type, count)                                                                                                   \
    switch (nv) {                                                                                                                \
    case 1: mix_of(type, row, n, c, count, w, 1, acc, stride); break;                                                            \
    case 2: mix_of(type, row, n, c, count, w, 2, acc, stride); break;                                                            \
    case 3: mix_of(type, row, n, c, count, w, 3, acc, stride); break;                                                            \
    case 4: mix_of(type, row, n, c, count, w, 4, acc, stride); break;                                                            \
    }

static void mix_whole_f16(const char *const *row, int32_t n, int c, const float *w, int nv, float *acc, size_t stride)
{
    MIX_CASES(KVF_F16, 16)
}

static void mix_whole_f32(const char *const *row, int32_t n, int c, const float *w, int nv, float *acc, size_t stride)
{
    MIX_CASES(KVF_F32, 16)
}

static void mix_some(kvf_type type, const char *const *row, int32_t n, int c, int count, const float *w, int nv, float *acc,
                     size_t stride)
{
    for (int v = 0; v < nv; v++) mix_of(type, row, n, c, count, w + v * KVF_BLOCK, 1, acc + (size_t)v * stride, stride);
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
                mix_whole_f16(row, n, c, m, take, out, stride);
            else
                mix_whole_f32(row, n, c, m, take, out, stride);
        }
        if (c < dim) mix_some(rows->type, row, n, c, dim - c, m, take, out, stride);
    }
}

/* ---- tiles ----------------------------------------------------------------------------------------------------------------- */

/* Eight rows of eight channels to eight channels of eight rows. */
KVFI_INLINE void transpose(__m256 x[8])
{
    __m256 a[8], b[8];
    KVFI_UNROLL
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    KVFI_UNROLL
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    KVFI_UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

static void rows_unfold_k(const kvfi_rows *rows, int32_t n, int32_t dim, int32_t dim_pad, float *tile)
{
    for (int32_t i = 0; i < KVF_BLOCK; i += 8)
        for (int32_t c = 0; c < dim_pad; c += 8) {
            __m256 x[8];
            for (int j = 0; j < 8; j++)
                x[j] = i + j < n ? row8(rows->type, row_at(rows, i + j), c, dim - c) : _mm256_setzero_ps();
            transpose(x);
            for (int j = 0; j < 8; j++) _mm256_storeu_ps(tile + (c + j) * KVF_BLOCK + i, x[j]);
        }
}

static void rows_unfold_v(const kvfi_rows *rows, int32_t n, int32_t dim, int32_t dim_pad, float *tile)
{
    for (int32_t i = 0; i < KVF_BLOCK; i++) {
        const char *row = i < n ? row_at(rows, i) : NULL;
        for (int32_t c = 0; c < dim_pad; c += 8)
            _mm256_storeu_ps(tile + i * dim_pad + c, row ? row8(rows->type, row, c, dim - c) : _mm256_setzero_ps());
    }
}

void kvfi_avx2_rows(kvfi_kernels *k)
{
    k->rows_score = rows_score;
    k->rows_mix = rows_mix;
    k->rows_unfold_k = rows_unfold_k;
    k->rows_unfold_v = rows_unfold_v;
}
