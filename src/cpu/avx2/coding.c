/* SPDX-License-Identifier: MIT
 * Steps of coding a vector with AVX2 and F16C. */
#include "cpu/avx2/simd.h"

KVFI_INLINE floats widen_lanes(const uint16_t *half)
{
    return half8(half);
}

KVFI_INLINE void narrow_lanes(floats x, uint16_t *half)
{
    _mm_storeu_si128((__m128i *)half, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

/* The second operand is what remains of a NaN. */
KVFI_INLINE floats saturated(floats x)
{
    return _mm256_max_ps(_mm256_set1_ps(-65504.0f), _mm256_min_ps(_mm256_set1_ps(65504.0f), x));
}

/* A shuffle sees the low three bits of an index; the fourth, moved to the sign, chooses between two. */
KVFI_INLINE floats pick(const float *p, ints i)
{
    const floats low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(p), i),
                 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(p + 8), i);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
}

KVFI_INLINE floats fetch_lanes(const float *p, ints i)
{
    return _mm256_i32gather_ps(p, i, sizeof *p);
}

KVFI_INLINE ints add_ints(ints k, int step)
{
    return _mm256_add_epi32(k, _mm256_set1_epi32(step));
}

KVFI_INLINE ints double_ints(ints k, int n)
{
    return _mm256_sll_epi32(k, _mm_cvtsi32_si128(n));
}

KVFI_INLINE ints step_up(ints k, floats y, floats b, int step)
{
    return _mm256_add_epi32(k, _mm256_and_si256(_mm256_castps_si256(_mm256_cmp_ps(y, b, _CMP_GT_OQ)), _mm256_set1_epi32(step)));
}

KVFI_INLINE void store_bytes(uint8_t *p, ints k)
{
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(k), _mm256_extracti128_si256(k, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
}

#include "cpu/overlay/coding.h"

void kvfi_avx2_coding(kvfi_kernels *k)
{
    put_coding(k);
}
