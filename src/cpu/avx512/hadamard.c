/* SPDX-License-Identifier: MIT
 * Hadamard transform with AVX-512. The butterflies, their order and the last multiplication are those of the scalar code, without
 * fused operations: every bit is the same. Blocks of up to 256 channels stay in registers. */
#include "cpu/avx512/simd.h"
#include "gpu/kernels/hadamard.h"

/* Butterflies inside a vector: `swapped` holds each lane's partner, `upper` marks the second of each pair. */
KVFI_INLINE __m512 lanes(__m512 x, __m512 swapped, __mmask16 upper)
{
    return _mm512_mask_sub_ps(_mm512_add_ps(x, swapped), upper, swapped, x);
}

/* Strides 1, 2, 4 and 8, as far as the block reaches. */
KVFI_INLINE __m512 within(__m512 x, int32_t block)
{
    if (block > 1) x = lanes(x, _mm512_permute_ps(x, 0xb1), 0xaaaa);
    if (block > 2) x = lanes(x, _mm512_permute_ps(x, 0x4e), 0xcccc);
    if (block > 4) x = lanes(x, _mm512_shuffle_f32x4(x, x, 0xb1), 0xf0f0);
    if (block > 8) x = lanes(x, _mm512_shuffle_f32x4(x, x, 0x4e), 0xff00);
    return x;
}

static void small_blocks(float *x, int32_t dim, int32_t block)
{
    const __m512 norm = _mm512_set1_ps(kvfi_hadamard_norm(block));
    int32_t c = 0;
    for (; c + 16 <= dim; c += 16) _mm512_storeu_ps(x + c, _mm512_mul_ps(within(_mm512_loadu_ps(x + c), block), norm));
    for (; c < dim; c += block) kvfi_hadamard_block(x + c, block);
}

/* n vectors of 16 channels, a power of two. */
KVFI_INLINE void block_of(float *x, int n)
{
    const __m512 norm = _mm512_set1_ps(kvfi_hadamard_norm(16 * n));
    __m512 y[16];
    KVFI_UNROLL
    for (int i = 0; i < n; i++) y[i] = within(_mm512_loadu_ps(x + 16 * i), 16);
    KVFI_UNROLL
    for (int stride = 1; stride < n; stride *= 2) {
        KVFI_UNROLL
        for (int i = 0; i < n; i++) {
            if (i & stride) continue;
            const __m512 a = y[i], b = y[i + stride];
            y[i] = _mm512_add_ps(a, b), y[i + stride] = _mm512_sub_ps(a, b);
        }
    }
    KVFI_UNROLL
    for (int i = 0; i < n; i++) _mm512_storeu_ps(x + 16 * i, _mm512_mul_ps(y[i], norm));
}

static void across(float *x, int32_t block, int32_t stride)
{
    for (int32_t i = 0; i < block; i += 2 * stride)
        for (int32_t j = i; j < i + stride; j += 16) {
            const __m512 a = _mm512_loadu_ps(x + j), b = _mm512_loadu_ps(x + j + stride);
            _mm512_storeu_ps(x + j, _mm512_add_ps(a, b));
            _mm512_storeu_ps(x + j + stride, _mm512_sub_ps(a, b));
        }
}

static void large_block(float *x, int32_t block)
{
    const __m512 norm = _mm512_set1_ps(kvfi_hadamard_norm(block));
    switch (block) {
    case 32: block_of(x, 2); return;
    case 64: block_of(x, 4); return;
    case 128: block_of(x, 8); return;
    case 256: block_of(x, 16); return;
    }
    for (int32_t i = 0; i < block; i += 16) _mm512_storeu_ps(x + i, within(_mm512_loadu_ps(x + i), 16));
    for (int32_t stride = 16; stride < block; stride *= 2) across(x, block, stride);
    for (int32_t i = 0; i < block; i += 16) _mm512_storeu_ps(x + i, _mm512_mul_ps(_mm512_loadu_ps(x + i), norm));
}

static void hadamard(float *x, size_t stride, int32_t n, int32_t dim, int32_t block)
{
    for (int32_t v = 0; v < n; v++, x += stride) {
        if (block <= 16) {
            small_blocks(x, dim, block);
            continue;
        }
        for (int32_t c = 0; c < dim; c += block) large_block(x + c, block);
    }
}

void kvfi_avx512_hadamard(kvfi_kernels *k)
{
    k->hadamard = hadamard;
}
