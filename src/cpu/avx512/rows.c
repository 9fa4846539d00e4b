/* SPDX-License-Identifier: MIT
 * Exact rows with AVX-512: sink, window, tail, for few vectors. Rows may be unaligned, strided, indexed and of any length; nothing
 * beyond the last element of a row or a query is read. Turning them into tiles stays with AVX2. */
#include "cpu/avx512/simd.h"

enum { VECTORS = 4 };

static const char *row_at(const kvfi_rows *rows, int32_t i)
{
    return rows->data + (rows->index ? rows->index[i] : i) * rows->stride;
}

/* Elements c .. c+15 of a row, of which those outside `lanes` do not exist and read as zero. */
KVFI_INLINE __m512 row16(kvf_type type, const char *row, int c, __mmask16 lanes)
{
    if (type == KVF_F32) return _mm512_maskz_loadu_ps(lanes, row + (size_t)c * sizeof(float));
    const char *at = row + (size_t)c * sizeof(uint16_t);
    return lanes == 0xffff ? half16(at) : _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, at));
}

KVFI_INLINE void score_step(kvf_type type, const char *const row[4], int c, __mmask16 lanes, const float *q, size_t stride,
                            int nv, __m512 acc[VECTORS][4])
{
    __m512 k[VECTORS];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) k[v] = _mm512_maskz_loadu_ps(lanes, q + (size_t)v * stride + c);
    KVFI_UNROLL
    for (int i = 0; i < 4; i++) {
        const __m512 x = row16(type, row[i], c, lanes);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) acc[v][i] = _mm512_fmadd_ps(x, k[v], acc[v][i]);
    }
}

/* Four rows, so that the sums across lanes are made four at once; those that are `live` go to s[nv][64]. */
KVFI_INLINE void score_of(kvf_type type, const char *const row[4], int32_t dim, const float *q, size_t stride, __mmask8 live,
                          int nv, float *s)
{
    __m512 acc[VECTORS][4];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int i = 0; i < 4; i++) acc[v][i] = _mm512_setzero_ps();
    }
    int32_t c = 0;
    for (; c + 16 <= dim; c += 16) score_step(type, row, c, 0xffff, q, stride, nv, acc);
    if (c < dim) score_step(type, row, c, first_lanes(dim - c), q, stride, nv, acc);
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) _mm_mask_storeu_ps(s + v * KVF_BLOCK, live, sum16x4(acc[v]));
}

/* of(..., nv, ...) compiled for every number of vectors and both types of rows */
#define CASES(of, type, ...)                                                                                                     \
    switch (take) {                                                                                                              \
    case 1: of(type, __VA_ARGS__, 1, some); break;                                                                               \
    case 2: of(type, __VA_ARGS__, 2, some); break;                                                                               \
    case 3: of(type, __VA_ARGS__, 3, some); break;                                                                               \
    case 4: of(type, __VA_ARGS__, 4, some); break;                                                                               \
    }

static int take_of(int left)
{
    return left <= VECTORS ? left : left < 2 * VECTORS ? (left + 1) / 2 : VECTORS;
}

static void rows_score(const kvfi_rows *rows, int32_t n, int32_t dim, const float *q, size_t q_stride, int32_t nv, float *s)
{
    for (int32_t i = 0; i < n; i += 4) {
        const int live = n - i < 4 ? n - i : 4;
        const __mmask8 mask = (__mmask8)((1 << live) - 1);
        const char *row[4];
        for (int j = 0; j < 4; j++) row[j] = row_at(rows, i + (j < live ? j : 0));
        for (int32_t v = 0, take; v < nv; v += take) {
            const float *from = q + (size_t)v * q_stride;
            float *some = s + v * KVF_BLOCK + i;
            take = take_of(nv - v);
            if (rows->type == KVF_F16) {
                CASES(score_of, KVF_F16, row, dim, from, q_stride, mask)
            } else {
                CASES(score_of, KVF_F32, row, dim, from, q_stride, mask)
            }
        }
    }
}

typedef struct mixed {
    float *acc;
    size_t stride;
} mixed;

/* 32 channels, whose weights are then broadcast once. */
KVFI_INLINE void mix_two_of(kvf_type type, const char *const *row, int32_t n, int c, const float *w, int nv, mixed to)
{
    __m512 sum[VECTORS][2];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) sum[v][0] = sum[v][1] = _mm512_setzero_ps();
    for (int32_t i = 0; i < n; i++) {
        const __m512 x = row16(type, row[i], c, 0xffff), y = row16(type, row[i], c + 16, 0xffff);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            const __m512 k = _mm512_set1_ps(w[v * KVF_BLOCK + i]);
            sum[v][0] = _mm512_fmadd_ps(x, k, sum[v][0]);
            sum[v][1] = _mm512_fmadd_ps(y, k, sum[v][1]);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        float *o = to.acc + (size_t)v * to.stride + c;
        _mm512_storeu_ps(o, _mm512_add_ps(_mm512_loadu_ps(o), sum[v][0]));
        _mm512_storeu_ps(o + 16, _mm512_add_ps(_mm512_loadu_ps(o + 16), sum[v][1]));
    }
}

/* Sixteen channels; rows go to two sums in turn. */
KVFI_INLINE void mix_of(kvf_type type, const char *const *row, int32_t n, int c, __mmask16 lanes, const float *w, int nv,
                        mixed to)
{
    __m512 sum[VECTORS][2];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) sum[v][0] = sum[v][1] = _mm512_setzero_ps();
    int32_t i = 0;
    for (; i + 2 <= n; i += 2) {
        KVFI_UNROLL
        for (int j = 0; j < 2; j++) {
            const __m512 x = row16(type, row[i + j], c, lanes);
            KVFI_UNROLL
            for (int v = 0; v < nv; v++) sum[v][j] = _mm512_fmadd_ps(x, _mm512_set1_ps(w[v * KVF_BLOCK + i + j]), sum[v][j]);
        }
    }
    if (i < n) {
        const __m512 x = row16(type, row[i], c, lanes);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) sum[v][0] = _mm512_fmadd_ps(x, _mm512_set1_ps(w[v * KVF_BLOCK + i]), sum[v][0]);
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        float *o = to.acc + (size_t)v * to.stride + c;
        const __m512 both = _mm512_add_ps(sum[v][0], sum[v][1]);
        _mm512_mask_storeu_ps(o, lanes, _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, o), both));
    }
}

static void rows_mix(const kvfi_rows *rows, int32_t n, int32_t dim, const float *w, int32_t nv, float *acc, size_t stride)
{
    const char *row[KVF_BLOCK];
    for (int32_t i = 0; i < n; i++) row[i] = row_at(rows, i);
    for (int32_t v = 0, take; v < nv; v += take) {
        const mixed some = {acc + (size_t)v * stride, stride};
        const float *m = w + v * KVF_BLOCK;
        take = take_of(nv - v);
        int32_t c = 0;
        for (; c + 32 <= dim; c += 32) {
            if (rows->type == KVF_F16) {
                CASES(mix_two_of, KVF_F16, row, n, c, m)
            } else {
                CASES(mix_two_of, KVF_F32, row, n, c, m)
            }
        }
        for (; c < dim; c += 16) {
            const __mmask16 lanes = first_lanes(dim - c);
            if (rows->type == KVF_F16) {
                CASES(mix_of, KVF_F16, row, n, c, lanes, m)
            } else {
                CASES(mix_of, KVF_F32, row, n, c, lanes, m)
            }
        }
    }
}

void kvfi_avx512_rows(kvfi_kernels *k)
{
    k->rows_score = rows_score;
    k->rows_mix = rows_mix;
}
