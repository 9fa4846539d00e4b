/* SPDX-License-Identifier: MIT
 * Orthonormal Walsh-Hadamard transform in Sylvester order. Additions and one last multiplication, in a fixed order: the same
 * bits on every target. */
#ifndef KVFI_KERNELS_HADAMARD_H
#define KVFI_KERNELS_HADAMARD_H

#ifndef KVF_FN
#include "gpu/compat/c.h"
#endif

/* Both operands are read before either is written: on a device the two belong to different threads, with a barrier between. */
KVF_FN void kvfi_butterfly(KVF_PRIVATE float *a, KVF_PRIVATE float *b)
{
    float x = *a, y = *b;
    *a = KVF_ADD(x, y);
    *b = KVF_SUB(x, y);
}

/* The f32 nearest to 1/sqrt(block), block a power of two. */
KVF_FN float kvfi_hadamard_norm(int block)
{
    float norm = 1.0f;
    for (; block >= 4; block /= 4) norm = KVF_MUL(norm, 0.5f);
    return block == 2 ? KVF_MUL(norm, 0.70710678118654752f) : norm;
}

KVF_FN void kvfi_hadamard_block(KVF_PRIVATE float *x, int block)
{
    for (int stride = 1; stride < block; stride *= 2)
        for (int i = 0; i < block; i += 2 * stride)
            for (int j = i; j < i + stride; j++) kvfi_butterfly(x + j, x + j + stride);
    float norm = kvfi_hadamard_norm(block);
    for (int i = 0; i < block; i++) x[i] = KVF_MUL(x[i], norm);
}

#endif
