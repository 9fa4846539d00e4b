/* SPDX-License-Identifier: MIT
 * KVF_KIND_VECTOR with AVX2. */
#include "cpu/avx2/simd.h"

enum { SCORE_VECTORS = 3, MIX_VECTORS = 4, MIX_UNITS = 1 };
#define SEARCH_GROUPS(sub) ((sub) == 8 ? 1 : 2)

KVFI_INLINE void take_lower(floats d, int32_t k, floats *least, ints *index)
{
    const __m256 lower = _mm256_cmp_ps(d, *least, _CMP_LT_OQ);
    *least = _mm256_min_ps(d, *least);
    *index = _mm256_blendv_epi8(*index, _mm256_set1_epi32(k), _mm256_castps_si256(lower));
}

KVFI_INLINE floats from_quads(const float *const q[2])
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(q[0])), _mm_loadu_ps(q[1]), 1);
}

KVFI_INLINE void sum_lanes4(const floats x[4], float *out)
{
    _mm_storeu_ps(out, sum8x4(x[0], x[1], x[2], x[3]));
}

KVFI_INLINE void transpose_quads(const float *const q[4], float *tile, size_t stride)
{
    __m128 a = _mm_loadu_ps(q[0]), b = _mm_loadu_ps(q[1]), c = _mm_loadu_ps(q[2]), d = _mm_loadu_ps(q[3]);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(tile, a), _mm_storeu_ps(tile + stride, b);
    _mm_storeu_ps(tile + 2 * stride, c), _mm_storeu_ps(tile + 3 * stride, d);
}

#include "cpu/overlay/vector.h"

void kvfi_avx2_vector(kvfi_kernels *k)
{
    vector_entries(k);
}
