/* SPDX-License-Identifier: MIT
 * Hadamard transform with AVX2. The butterflies, their order and the last multiplication are those of the scalar code, without
 * fused operations: every bit is the same. */
#include "cpu/avx2/simd.h"
#include "gpu/kernels/hadamard.h"

/* Butterflies inside a vector: `swapped` holds each lane's partner, `upper` marks the second of each pair. */
#define LANES(x, swapped, upper) _mm256_blend_ps(_mm256_add_ps(x, swapped), _mm256_sub_ps(swapped, x), upper)

/* Strides 1, 2 and 4, as far as the block reaches. */
KVFI_INLINE __m256 within(__m256 x, int32_t block)
{
    if (block > 1) x = LANES(x, _mm256_permute_ps(x, 0xb1), 0xaa);
    if (block > 2) x = LANES(x, _mm256_permute_ps(x, 0x4e), 0xcc);
    if (block > 4) x = LANES(x, _mm256_permute2f128_ps(x, x, 0x01), 0xf0);
    return x;
}

static void small_blocks(float *x, int32_t dim, int32_t block)
{
    const __m256 norm = _mm256_set1_ps(kvfi_hadamard_norm(block));
    int32_t c = 0;
    for (; c + 8 <= dim; c += 8) _mm256_storeu_ps(x + c, _mm256_mul_ps(within(_mm256_loadu_ps(x + c), block), norm));
    for (; c < dim; c += block) kvfi_hadamard_block(x + c, block);
}

static void across(float *x, int32_t block, int32_t stride)
{
    for (int32_t i = 0; i < block; i += 2 * stride)
        for (int32_t j = i; j < i + stride; j += 8) {
            const __m256 a = _mm256_loadu_ps(x + j), b = _mm256_loadu_ps(x + j + stride);
            _mm256_storeu_ps(x + j, _mm256_add_ps(a, b));
            _mm256_storeu_ps(x + j + stride, _mm256_sub_ps(a, b));
        }
}

static void large_block(float *x, int32_t block)
{
    const __m256 norm = _mm256_set1_ps(kvfi_hadamard_norm(block));
    for (int32_t i = 0; i < block; i += 8) _mm256_storeu_ps(x + i, within(_mm256_loadu_ps(x + i), block));
    for (int32_t stride = 8; stride < block; stride *= 2) across(x, block, stride);
    for (int32_t i = 0; i < block; i += 8) _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), norm));
}

static void hadamard(float *x, size_t stride, int32_t n, int32_t dim, int32_t block)
{
    for (int32_t v = 0; v < n; v++, x += stride) {
        if (block <= 8) {
            small_blocks(x, dim, block);
            continue;
        }
        for (int32_t c = 0; c < dim; c += block) large_block(x + c, block);
    }
}

void kvfi_avx2_hadamard(kvfi_kernels *k)
{
    k->hadamard = hadamard;
}
