/* SPDX-License-Identifier: MIT
 * Steps of coding a vector with AVX-512. */
#include "cpu/avx512/simd.h"

KVFI_INLINE floats widen_lanes(const uint16_t *half)
{
    return half16(half);
}

KVFI_INLINE void narrow_lanes(floats x, uint16_t *half)
{
    _mm256_storeu_si256((__m256i *)half, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

/* The second operand is what remains of a NaN. */
KVFI_INLINE floats saturated(floats x)
{
    return _mm512_max_ps(_mm512_set1_ps(-65504.0f), _mm512_min_ps(_mm512_set1_ps(65504.0f), x));
}

KVFI_INLINE floats pick(const float *p, ints i)
{
    return _mm512_permutexvar_ps(i, _mm512_loadu_ps(p));
}

KVFI_INLINE floats fetch_lanes(const float *p, ints i)
{
    return _mm512_i32gather_ps(i, p, sizeof *p);
}

KVFI_INLINE ints add_ints(ints k, int step)
{
    return _mm512_add_epi32(k, _mm512_set1_epi32(step));
}

KVFI_INLINE ints double_ints(ints k, int n)
{
    return _mm512_sll_epi32(k, _mm_cvtsi32_si128(n));
}

KVFI_INLINE ints step_up(ints k, floats y, floats b, int step)
{
    return _mm512_mask_add_epi32(k, _mm512_cmp_ps_mask(y, b, _CMP_GT_OQ), k, _mm512_set1_epi32(step));
}

KVFI_INLINE void store_bytes(uint8_t *p, ints k)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(k));
}

#include "cpu/overlay/coding.h"

void kvfi_avx512_coding(kvfi_kernels *k)
{
    put_coding(k);
}
