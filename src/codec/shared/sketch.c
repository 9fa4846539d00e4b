/* SPDX-License-Identifier: MIT */
#include "codec/shared/sketch.h"

#include "base/random.h"
#include "codec/shared/stages.h"
#include "gpu/kernels/hadamard.h"

#include <string.h>

enum { IID_STEP = 64, STREAMS = 1024 }; /* streams of one sketch: two a block, and one of normal numbers */

static int32_t block_size(const kvfi_sketch *s)
{
    int32_t block = 16;
    while (block < s->dim) block *= 2;
    return block;
}

int32_t kvfi_sketch_step(const kvfi_sketch *s)
{
    return s->iid ? IID_STEP : block_size(s);
}

double kvfi_sketch_unit(const kvfi_sketch *s)
{
    double mean = 0.63661977236758134; /* of |u_1| in 2 dimensions: 2 / pi; from n to n + 2 it falls by n / (n + 1) */
    if (s->iid) return 1.2533141373155003 / s->rows;
    for (int32_t n = 2; n < block_size(s); n += 2) mean *= (double)n / (n + 1);
    return 1 / (s->rows * mean);
}

static uint64_t stream_of(const kvfi_sketch *s, int32_t i)
{
    return kvfi_random_start((uint64_t)s->seed, (uint32_t)(KVFI_STREAM_SKETCH + s->which * STREAMS + i));
}

static void flip(uint64_t start, float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i += 16) {
        const uint64_t bits = kvfi_random_bits(start, (uint64_t)i / 64) >> i % 64;
        for (int32_t j = 0; j < 16; j++)
            if (bits >> j & 1) x[i + j] = -x[i + j];
    }
}

/* The signs of block `b` before the first and the second transform. */
static uint64_t signs(const kvfi_sketch *s, int32_t b, int second)
{
    return stream_of(s, 2 * b + second);
}

static void load(const uint8_t *keep, const float *x, int32_t n, int32_t padded, float *out)
{
    memset(out, 0, (size_t)padded * sizeof *out);
    for (int32_t c = 0; c < n; c++)
        if (!keep || keep[c]) out[c] = x[c];
}

static void apply_block(const kvfi_sketch *s, const uint8_t *keep, const float *x, int32_t b, int32_t count, float *y)
{
    float turned[1024];
    const int32_t block = block_size(s);
    load(keep, x, s->dim, block, turned);
    flip(signs(s, b, 0), turned, block);
    kvfi_hadamard_block(turned, block);
    flip(signs(s, b, 1), turned, block);
    kvfi_hadamard_block(turned, block);
    memcpy(y, turned, (size_t)count * sizeof *y);
}

static void return_block(const kvfi_sketch *s, const uint8_t *keep, const float *y, int32_t b, int32_t count, float *x,
                         size_t channel)
{
    float turned[1024];
    const int32_t block = block_size(s);
    load(NULL, y, count, block, turned);
    kvfi_hadamard_block(turned, block);
    flip(signs(s, b, 1), turned, block);
    kvfi_hadamard_block(turned, block);
    flip(signs(s, b, 0), turned, block);
    for (int32_t c = 0; c < s->dim; c++)
        if (!keep || keep[c]) x[(size_t)c * channel] += turned[c];
}

static void normal_row(const kvfi_sketch *s, const uint8_t *keep, int32_t row, float *out)
{
    const uint64_t start = stream_of(s, STREAMS - 1);
    const int32_t pairs = (s->dim + 1) / 2;
    for (int32_t c = 0; c < s->dim; c += 2) {
        double normal[2];
        kvfi_random_normals(start, (uint64_t)row * (uint64_t)pairs + (uint64_t)c / 2, normal);
        out[c] = keep && !keep[c] ? 0.0f : (float)normal[0];
        if (c + 1 < s->dim) out[c + 1] = keep && !keep[c + 1] ? 0.0f : (float)normal[1];
    }
}

void kvfi_sketch_apply(const kvfi_sketch *s, const uint8_t *keep, const float *x, size_t stride, int32_t n, int32_t first,
                       int32_t count, float *y, size_t y_stride)
{
    float row[1024];
    for (int32_t v = 0; v < n && !s->iid; v++)
        apply_block(s, keep, x + (size_t)v * stride, first / block_size(s), count, y + (size_t)v * y_stride);
    for (int32_t i = 0; i < count && s->iid; i++) {
        normal_row(s, keep, first + i, row);
        for (int32_t v = 0; v < n; v++) y[(size_t)v * y_stride + (size_t)i] = kvfi_dot16(row, x + (size_t)v * stride, s->dim);
    }
}

void kvfi_sketch_return(const kvfi_sketch *s, const uint8_t *keep, const float *y, size_t y_stride, int32_t n, int32_t first,
                        int32_t count, float *x, size_t vector, size_t channel)
{
    float row[1024];
    for (int32_t v = 0; v < n && !s->iid; v++)
        return_block(s, keep, y + (size_t)v * y_stride, first / block_size(s), count, x + (size_t)v * vector, channel);
    for (int32_t i = 0; i < count && s->iid; i++) {
        normal_row(s, keep, first + i, row);
        for (int32_t v = 0; v < n; v++)
            for (int32_t c = 0; c < s->dim; c++)
                x[(size_t)v * vector + (size_t)c * channel] += row[c] * y[(size_t)v * y_stride + (size_t)i];
    }
}
