/* SPDX-License-Identifier: MIT */
#include "cpu/scalar/scalar.h"
#include "gpu/kernels/hadamard.h"

#include <math.h>
#include <string.h>

static float softmax(float *s, float add, float *max, float *sum)
{
    float top = *max, total = 0.0f;
    for (int i = 0; i < KVF_BLOCK; i++) {
        s[i] += add;
        if (s[i] > top) top = s[i];
    }
    if (top == -INFINITY) { /* nothing seen yet: -inf minus -inf must not arise */
        memset(s, 0, KVF_BLOCK * sizeof *s);
        return 1.0f;
    }
    float factor = top > *max ? expf(*max - top) : 1.0f;
    for (int i = 0; i < KVF_BLOCK; i++) {
        s[i] = expf(s[i] - top);
        total += s[i];
    }
    *max = top;
    *sum = *sum * factor + total;
    return factor;
}

void kvfi_scalar_softmax(float *s, const float *add, int32_t n, float *max, float *sum, float *factor)
{
    for (int32_t v = 0; v < n; v++, s += KVF_BLOCK) factor[v] = softmax(s, add ? add[v] : 0, max + v, sum + v);
}

void kvfi_scalar_hadamard(float *x, size_t stride, int32_t n, int32_t dim, int32_t block)
{
    for (int32_t v = 0; v < n; v++)
        for (int32_t c = 0; c < dim; c += block) kvfi_hadamard_block(x + (size_t)v * stride + c, block);
}
