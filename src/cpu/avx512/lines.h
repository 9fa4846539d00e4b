/* SPDX-License-Identifier: MIT
 * Lines of codes in registers, for whatever unpacks them. */
#ifndef KVFI_AVX512_LINES_H
#define KVFI_AVX512_LINES_H

#include "cpu/avx512/simd.h"
#include "cpu/overlay/record.h"

KVFI_INLINE __m512i line_at(const uint8_t *p)
{
    return _mm512_loadu_si512((const void *)p);
}

/* a where mask is set, else b */
KVFI_INLINE __m512i choose(__m512i mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

KVFI_INLINE __m512i low_bits(int n)
{
    return _mm512_set1_epi8((char)((1 << n) - 1));
}

#endif
