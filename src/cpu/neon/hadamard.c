/* SPDX-License-Identifier: MIT
 * Hadamard transform with NEON. The butterflies, their order and the last multiplication are those of the scalar code, without
 * fused operations: every bit is the same. */
#include "cpu/neon/simd.h"
#include "gpu/kernels/hadamard.h"

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

static void small_blocks(float *x, int32_t dim, int32_t block)
{
    const float norm = kvfi_hadamard_norm(block);
    int32_t c = 0;
    for (; c + 4 <= dim; c += 4) vst1q_f32(x + c, vmulq_n_f32(within(vld1q_f32(x + c), block), norm));
    for (; c < dim; c += block) kvfi_hadamard_block(x + c, block);
}

static void across(float *x, int32_t block, int32_t stride)
{
    for (int32_t i = 0; i < block; i += 2 * stride)
        for (int32_t j = i; j < i + stride; j += 4) {
            const float32x4_t a = vld1q_f32(x + j), b = vld1q_f32(x + j + stride);
            vst1q_f32(x + j, vaddq_f32(a, b));
            vst1q_f32(x + j + stride, vsubq_f32(a, b));
        }
}

static void large_block(float *x, int32_t block)
{
    const float norm = kvfi_hadamard_norm(block);
    for (int32_t i = 0; i < block; i += 4) vst1q_f32(x + i, within(vld1q_f32(x + i), block));
    for (int32_t stride = 4; stride < block; stride *= 2) across(x, block, stride);
    for (int32_t i = 0; i < block; i += 4) vst1q_f32(x + i, vmulq_n_f32(vld1q_f32(x + i), norm));
}

static void hadamard(float *x, size_t stride, int32_t n, int32_t dim, int32_t block)
{
    for (int32_t v = 0; v < n; v++, x += stride) {
        if (block <= 4) {
            small_blocks(x, dim, block);
            continue;
        }
        for (int32_t c = 0; c < dim; c += block) large_block(x + c, block);
    }
}

void kvfi_neon_hadamard(kvfi_kernels *k)
{
    k->hadamard = hadamard;
}
