/* SPDX-License-Identifier: MIT
 * Small things of the AVX2 folder. Everything is static, so that no copy compiled with these flags can be linked elsewhere. */
#ifndef KVFI_AVX2_SIMD_H
#define KVFI_AVX2_SIMD_H

#include "cpu/kernels.h"

#include <immintrin.h>
#include <string.h>

#define KVFI_INLINE static inline __attribute__((always_inline))
#define KVFI_UNROLL _Pragma("GCC unroll 16")

KVFI_INLINE __m256 half8(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* Starts fetching a line that will be wanted soon; any address will do. */
KVFI_INLINE void fetch(uintptr_t address)
{
    _mm_prefetch((const char *)address, _MM_HINT_T0);
}

/* All ones in the first n lanes: none below 1, all from 8 on. */
KVFI_INLINE __m256i first_lanes(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

KVFI_INLINE float sum8(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

KVFI_INLINE float max8(__m256 x)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* The sums of four vectors. */
KVFI_INLINE __m128 sum8x4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

/* Elements c .. c+7 of a row of f16 or f32, of which those from c + count on do not exist and read as zero. */
KVFI_INLINE __m256 row8(kvf_type type, const char *row, int c, int count)
{
    if (type == KVF_F32) {
        const float *x = (const float *)(const void *)(row + (size_t)c * sizeof(float));
        return count >= 8 ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, first_lanes(count));
    }
    if (count >= 8) return half8(row + (size_t)c * sizeof(uint16_t));
    uint16_t some[8] = {0};
    memcpy(some, row + (size_t)c * sizeof(uint16_t), (size_t)(count > 0 ? count & 7 : 0) * sizeof some[0]);
    return half8(some);
}

void kvfi_avx2_coded(kvfi_kernels *k);
void kvfi_avx2_half(kvfi_kernels *k);
void kvfi_avx2_rows(kvfi_kernels *k);
void kvfi_avx2_tile(kvfi_kernels *k);
void kvfi_avx2_vector(kvfi_kernels *k);
void kvfi_avx2_paths(kvfi_kernels *k);
void kvfi_avx2_softmax(kvfi_kernels *k);
void kvfi_avx2_hadamard(kvfi_kernels *k);
void kvfi_avx2_coding(kvfi_kernels *k);

/* One vector and what templates of all sets (cpu/overlay) do with it. */
enum { LANES = 8 };
typedef __m256 floats;
typedef __m256i ints;

KVFI_INLINE floats load_lanes(const float *p)
{
    return _mm256_loadu_ps(p);
}

KVFI_INLINE void store_lanes(float *p, floats x)
{
    _mm256_storeu_ps(p, x);
}

KVFI_INLINE floats set_lanes(float x)
{
    return _mm256_set1_ps(x);
}

KVFI_INLINE floats add_lanes(floats a, floats b)
{
    return _mm256_add_ps(a, b);
}

KVFI_INLINE floats sub_lanes(floats a, floats b)
{
    return _mm256_sub_ps(a, b);
}

KVFI_INLINE floats mul_lanes(floats a, floats b)
{
    return _mm256_mul_ps(a, b);
}

KVFI_INLINE floats fma_lanes(floats a, floats b, floats c)
{
    return _mm256_fmadd_ps(a, b, c);
}

KVFI_INLINE ints set_ints(int32_t i)
{
    return _mm256_set1_epi32(i);
}

KVFI_INLINE void store_ints(int32_t *p, ints x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}

#endif
