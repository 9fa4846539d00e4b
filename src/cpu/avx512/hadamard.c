/* SPDX-License-Identifier: MIT
 * Hadamard transform with AVX-512. Blocks of up to 256 channels stay in registers. */
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

static int whole_block(float *x, int32_t block)
{
    switch (block) {
    case 32: block_of(x, 2); return 1;
    case 64: block_of(x, 4); return 1;
    case 128: block_of(x, 8); return 1;
    case 256: block_of(x, 16); return 1;
    default: return 0;
    }
}

#include "cpu/overlay/hadamard.h"

void kvfi_avx512_hadamard(kvfi_kernels *k)
{
    k->hadamard = hadamard;
}
