/* SPDX-License-Identifier: MIT
 * Hadamard transform with AVX2. */
#include "cpu/avx2/simd.h"

/* Butterflies inside a vector: `swapped` holds each lane's partner, `upper` marks the second of each pair. */
#define BUTTERFLIES(x, swapped, upper) _mm256_blend_ps(_mm256_add_ps(x, swapped), _mm256_sub_ps(swapped, x), upper)

/* Strides 1, 2 and 4, as far as the block reaches. */
KVFI_INLINE __m256 within(__m256 x, int32_t block)
{
    if (block > 1) x = BUTTERFLIES(x, _mm256_permute_ps(x, 0xb1), 0xaa);
    if (block > 2) x = BUTTERFLIES(x, _mm256_permute_ps(x, 0x4e), 0xcc);
    if (block > 4) x = BUTTERFLIES(x, _mm256_permute2f128_ps(x, x, 0x01), 0xf0);
    return x;
}

static int whole_block(float *x, int32_t block)
{
    (void)x, (void)block;
    return 0;
}

#include "cpu/overlay/hadamard.h"

void kvfi_avx2_hadamard(kvfi_kernels *k)
{
    k->hadamard = hadamard;
}
