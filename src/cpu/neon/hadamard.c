/* SPDX-License-Identifier: MIT
 * Hadamard transform with NEON. */
#include "cpu/neon/simd.h"

/* Butterflies inside a vector: `swapped` holds each lane's partner, `upper` is all ones in the second of each pair. */
KVFI_INLINE float32x4_t butterflies(float32x4_t x, float32x4_t swapped, uint32x4_t upper)
{
    return vbslq_f32(upper, vsubq_f32(swapped, x), vaddq_f32(x, swapped));
}

/* Strides 1 and 2, as far as the block reaches. */
KVFI_INLINE float32x4_t within(float32x4_t x, int32_t block)
{
    static const uint32_t odd[4] = {0, ~0u, 0, ~0u}, high[4] = {0, 0, ~0u, ~0u};
    if (block > 1) x = butterflies(x, vrev64q_f32(x), vld1q_u32(odd));
    if (block > 2) x = butterflies(x, vextq_f32(x, x, 2), vld1q_u32(high));
    return x;
}

static int whole_block(float *x, int32_t block)
{
    (void)x, (void)block;
    return 0;
}

#include "cpu/overlay/hadamard.h"

void kvfi_neon_hadamard(kvfi_kernels *k)
{
    k->hadamard = hadamard;
}
