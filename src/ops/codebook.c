/* SPDX-License-Identifier: MIT
 * Scalar codebooks, alone and as one step from a vector to packed codes. */
#include "codec/shared/codebook.h"
#include "codec/shared/stages.h"
#include "ops/rotate.h"

#include <float.h>
#include <math.h>
#include <string.h>

int kvf_op_codebook(int32_t bits, int32_t dim, float *levels, double *error)
{
    double half[128];
    if (bits < 1 || bits > 8 || dim < 0 || dim > 1 << 20 || !levels) return KVF_E_ARG;
    const int32_t n = 1 << (bits - 1);
    const double least = kvfi_lloyd_max(bits, dim < 2 ? 2 : dim, half);
    for (int32_t i = 0; i < n; i++) levels[n + i] = (float)half[i], levels[n - 1 - i] = -(float)half[i];
    if (error) *error = least;
    return KVF_OK;
}

/* Boundaries above each level; n_levels - 1 of them. */
static int make_boundaries(const float *levels, int32_t n_levels, float boundary[256])
{
    for (int32_t i = 0; i < n_levels; i++) {
        if (!(fabsf(levels[i]) <= FLT_MAX / 2)) return KVF_E_NONFINITE;
        if (i && levels[i] < levels[i - 1]) return KVF_E_ARG;
        if (i) boundary[i - 1] = (levels[i - 1] + levels[i]) * 0.5f;
    }
    return KVF_OK;
}

static uint8_t nearest(const float *boundary, int32_t n_levels, float x)
{
    int32_t low = 0, high = n_levels - 1;
    while (low < high) {
        const int32_t mid = (low + high) / 2;
        if (x > boundary[mid])
            low = mid + 1;
        else
            high = mid;
    }
    return (uint8_t)low;
}

int kvf_op_codebook_quantise(const float *x, size_t n, const float *levels, int32_t n_levels, uint8_t *codes)
{
    float boundary[256];
    if (n_levels < 1 || n_levels > 256 || !levels || (n && (!x || !codes))) return KVF_E_ARG;
    const int rc = make_boundaries(levels, n_levels, boundary);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++) {
        if (x[i] != x[i]) return KVF_E_NONFINITE;
        codes[i] = nearest(boundary, n_levels, x[i]);
    }
    return KVF_OK;
}

int kvf_op_codebook_dequantise(const uint8_t *codes, size_t n, const float *levels, int32_t n_levels, float *x)
{
    if (n_levels < 1 || n_levels > 256 || !levels || (n && (!x || !codes))) return KVF_E_ARG;
    for (size_t i = 0; i < n; i++)
        if (codes[i] >= n_levels) return KVF_E_ARG;
    for (size_t i = 0; i < n; i++) x[i] = levels[codes[i]];
    return KVF_OK;
}

/* ORs a code into zeroed memory: bits from i * bits on. */
static void put(uint8_t *packed, int32_t i, int32_t bits, uint8_t code)
{
    const int32_t byte = i * bits / 8, shift = i * bits % 8;
    packed[byte] = (uint8_t)(packed[byte] | code << shift);
    if (shift + bits > 8) packed[byte + 1] = (uint8_t)(code >> (8 - shift));
}

int kvf_op_rotate_quantise_pack(const char *rot, uint32_t seed, const float *x, int64_t n, int32_t dim, const float *levels,
                                int32_t bits, uint8_t *packed, float *norm)
{
    float boundary[256], y[KVFI_DIM_MAX];
    kvf_rotation r;
    if (!kvfi_op_rotation(rot, seed, dim, &r) || n < 0 || bits < 1 || bits > 8 || !levels || (n && (!x || !packed || !norm)))
        return KVF_E_ARG;
    const int rc = make_boundaries(levels, 1 << bits, boundary);
    if (rc) return rc;
    const size_t stride = kvf_op_packed_bytes((size_t)r.size, bits);
    for (int64_t v = 0; v < n; v++, x += dim, packed += stride) {
        const float length = sqrtf(kvfi_dot16(x, x, dim));
        if (!isfinite(length)) return KVF_E_NONFINITE;
        norm[v] = length;
        const float inverse = norm[v] > 0.0f ? sqrtf((float)r.size) / norm[v] : 0.0f;
        kvfi_op_turn(&r, x, dim, y);
        memset(packed, 0, stride);
        for (int32_t i = 0; i < r.size; i++)
            put(packed, i, bits, nearest(boundary, 1 << bits, norm[v] > 0.0f ? y[i] * inverse : 0.0f));
    }
    return KVF_OK;
}

int kvf_op_unpack_dequantise_rotate(const char *rot, uint32_t seed, const uint8_t *packed, const float *norm, int64_t n,
                                    int32_t dim, const float *levels, int32_t bits, float *x)
{
    uint8_t codes[KVFI_DIM_MAX];
    float y[KVFI_DIM_MAX];
    kvf_rotation r;
    if (!kvfi_op_rotation(rot, seed, dim, &r) || n < 0 || bits < 1 || bits > 8 || !levels || (n && (!x || !packed || !norm)))
        return KVF_E_ARG;
    const size_t stride = kvf_op_packed_bytes((size_t)r.size, bits);
    for (int64_t v = 0; v < n; v++, x += dim, packed += stride) {
        const float scale = norm[v] / sqrtf((float)r.size);
        kvf_op_unpack(packed, (size_t)r.size, bits, codes);
        for (int32_t i = 0; i < r.size; i++) y[i] = levels[codes[i]] * scale;
        kvfi_op_turn_back(&r, y, dim, x);
    }
    return KVF_OK;
}
