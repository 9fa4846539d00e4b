/* SPDX-License-Identifier: MIT
 * Small things of the AVX-512 folder (F, BW, DQ, VL, VNNI). Everything is static, so that no copy compiled with these flags can be
 * linked elsewhere. */
#ifndef KVFI_AVX512_SIMD_H
#define KVFI_AVX512_SIMD_H

#include "cpu/kernels.h"

#include <immintrin.h>
#include <string.h>

#define KVFI_INLINE static inline __attribute__((always_inline))
#define KVFI_UNROLL _Pragma("GCC unroll 16")

KVFI_INLINE __m512 half16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* Starts fetching a line that will be wanted soon; any address will do. */
KVFI_INLINE void fetch(uintptr_t address)
{
    _mm_prefetch((const char *)address, _MM_HINT_T0);
}

/* The first n lanes: none below 1, all from 16 on. */
KVFI_INLINE __mmask16 first_lanes(int n)
{
    return (__mmask16)(n >= 16 ? 0xffff : n > 0 ? (1 << n) - 1 : 0);
}

void kvfi_avx512_coded(kvfi_kernels *k);
void kvfi_avx512_softmax(kvfi_kernels *k);

#endif
