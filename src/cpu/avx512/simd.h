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

/* Starts fetching a line that will be wanted soon; any address will do. Into L2: fetches into L1 wait for its few fill buffers, and
 * what comes from L2 line after line is fetched into L1 by the processor itself. */
KVFI_INLINE void fetch(uintptr_t address)
{
    _mm_prefetch((const char *)address, _MM_HINT_T1);
}

/* The first n lanes: none below 1, all from 16 on. */
KVFI_INLINE __mmask16 first_lanes(int n)
{
    return (__mmask16)(n >= 16 ? 0xffff : n > 0 ? (1 << n) - 1 : 0);
}

/* The four sums, or greatest elements, of four vectors, by halves: eight shuffles and not forty. */
#define KVFI_REDUCE16X4(name, op)                                                                                                \
    KVFI_INLINE __m128 name(const __m512 x[4])                                                                                   \
    {                                                                                                                            \
        const __m512 a = _mm512_##op(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));                            \
        const __m512 b = _mm512_##op(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));                            \
        const __m512 c = _mm512_##op(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));                              \
        const __m256 d = _mm256_##op(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));                                   \
        return _mm_##op(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1));                                                 \
    }
KVFI_REDUCE16X4(sum16x4, add_ps)
KVFI_REDUCE16X4(max16x4, max_ps)

void kvfi_avx512_coded(kvfi_kernels *k);
void kvfi_avx512_half(kvfi_kernels *k);
void kvfi_avx512_rows(kvfi_kernels *k);
void kvfi_avx512_tile(kvfi_kernels *k);
void kvfi_avx512_vector(kvfi_kernels *k);

/* Product codes whose centroids are no bytes, for the set with VBMI. */
void kvfi_avx512_vector_score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *s);
void kvfi_avx512_vector_mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride);
void kvfi_avx512_softmax(kvfi_kernels *k);
void kvfi_avx512_hadamard(kvfi_kernels *k);
void kvfi_avx512_coding(kvfi_kernels *k);

/* One vector and what templates of all sets (cpu/overlay) do with it. */
enum { LANES = 16 };
typedef __m512 floats;
typedef __m512i ints;

KVFI_INLINE floats load_lanes(const float *p)
{
    return _mm512_loadu_ps(p);
}

KVFI_INLINE void store_lanes(float *p, floats x)
{
    _mm512_storeu_ps(p, x);
}

KVFI_INLINE floats set_lanes(float x)
{
    return _mm512_set1_ps(x);
}

KVFI_INLINE floats add_lanes(floats a, floats b)
{
    return _mm512_add_ps(a, b);
}

KVFI_INLINE floats sub_lanes(floats a, floats b)
{
    return _mm512_sub_ps(a, b);
}

KVFI_INLINE floats mul_lanes(floats a, floats b)
{
    return _mm512_mul_ps(a, b);
}

KVFI_INLINE floats fma_lanes(floats a, floats b, floats c)
{
    return _mm512_fmadd_ps(a, b, c);
}

KVFI_INLINE ints set_ints(int32_t i)
{
    return _mm512_set1_epi32(i);
}

KVFI_INLINE void store_ints(int32_t *p, ints x)
{
    _mm512_storeu_si512(p, x);
}

#endif
