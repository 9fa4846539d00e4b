/* SPDX-License-Identifier: MIT
 * KVF_KIND_VECTOR with AVX-512. */
#include "cpu/avx512/simd.h"

enum { SCORE_VECTORS = 4, MIX_VECTORS = 4, MIX_UNITS = 2 };
#define SEARCH_GROUPS(sub) ((sub) == 8 ? 2 : 4)

KVFI_INLINE void take_lower(floats d, int32_t k, floats *least, ints *index)
{
    const __mmask16 lower = _mm512_cmp_ps_mask(d, *least, _CMP_LT_OQ);
    *least = _mm512_min_ps(d, *least);
    *index = _mm512_mask_mov_epi32(*index, lower, _mm512_set1_epi32(k));
}

KVFI_INLINE floats from_quads(const float *const q[4])
{
    const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(q[0])), _mm_loadu_ps(q[1]), 1);
    const __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(q[2])), _mm_loadu_ps(q[3]), 1);
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

KVFI_INLINE void sum_lanes4(const floats x[4], float *out)
{
    _mm_storeu_ps(out, sum16x4(x));
}

KVFI_INLINE void transpose_quads(const float *const q[4], float *tile, size_t stride)
{
    __m128 a = _mm_loadu_ps(q[0]), b = _mm_loadu_ps(q[1]), c = _mm_loadu_ps(q[2]), d = _mm_loadu_ps(q[3]);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(tile, a), _mm_storeu_ps(tile + stride, b);
    _mm_storeu_ps(tile + 2 * stride, c), _mm_storeu_ps(tile + 3 * stride, d);
}

#include "cpu/overlay/vector.h"

void kvfi_avx512_vector_score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *s)
{
    vector_score(part, record, prepared, n, s);
}

void kvfi_avx512_vector_mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    vector_mix(part, record, w, n, acc, stride);
}

void kvfi_avx512_vector(kvfi_kernels *k)
{
    vector_entries(k);
}
