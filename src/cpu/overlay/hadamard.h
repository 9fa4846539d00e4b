/* SPDX-License-Identifier: MIT
 * Hadamard transform on any overlay. The butterflies, their order and the last multiplication are those of the scalar code, without
 * fused operations: every bit is the same. The including file has a simd.h with floats, LANES, load_lanes, store_lanes, set_lanes,
 * add_lanes, sub_lanes and mul_lanes, and defines before it
 *   within(x, block)          strides below LANES inside a vector, as far as the block reaches
 *   whole_block(x, block)     transforms a block that registers hold, in place; 0: they do not */
#ifndef KVFI_OVERLAY_HADAMARD_H
#define KVFI_OVERLAY_HADAMARD_H

#include "gpu/kernels/hadamard.h"

static void small_blocks(float *x, int32_t dim, int32_t block)
{
    const floats norm = set_lanes(kvfi_hadamard_norm(block));
    int32_t c = 0;
    for (; c + LANES <= dim; c += LANES) store_lanes(x + c, mul_lanes(within(load_lanes(x + c), block), norm));
    for (; c < dim; c += block) kvfi_hadamard_block(x + c, block);
}

static void across(float *x, int32_t block, int32_t stride)
{
    for (int32_t i = 0; i < block; i += 2 * stride)
        for (int32_t j = i; j < i + stride; j += LANES) {
            const floats a = load_lanes(x + j), b = load_lanes(x + j + stride);
            store_lanes(x + j, add_lanes(a, b));
            store_lanes(x + j + stride, sub_lanes(a, b));
        }
}

static void large_block(float *x, int32_t block)
{
    const floats norm = set_lanes(kvfi_hadamard_norm(block));
    if (whole_block(x, block)) return;
    for (int32_t i = 0; i < block; i += LANES) store_lanes(x + i, within(load_lanes(x + i), block));
    for (int32_t stride = LANES; stride < block; stride *= 2) across(x, block, stride);
    for (int32_t i = 0; i < block; i += LANES) store_lanes(x + i, mul_lanes(load_lanes(x + i), norm));
}

static void hadamard(float *x, size_t stride, int32_t n, int32_t dim, int32_t block)
{
    for (int32_t v = 0; v < n; v++, x += stride) {
        if (block <= LANES) {
            small_blocks(x, dim, block);
            continue;
        }
        for (int32_t c = 0; c < dim; c += block) large_block(x + c, block);
    }
}

#endif
