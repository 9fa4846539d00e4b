/* SPDX-License-Identifier: MIT
 * KIVI on plain arrays of any shape. */
#include "gpu/kernels/quant.h"
#include "kvfold.h"

#include <float.h>

/* How groups lie in x[tokens][dim]: element i of the group is at first + i * stride. */
typedef struct group {
    int64_t first, stride, n, index;
} group;

static group next_group(int64_t tokens, int64_t dim, int64_t size, int32_t axis, int64_t line, int64_t g)
{
    int64_t length = axis ? dim : tokens, left = length - g * size, n = left < size ? left : size;
    if (axis) return (group){line * dim + g * size, 1, n, line * ((dim + size - 1) / size) + g};
    return (group){g * size * dim + line, dim, n, g * dim + line};
}

static int check(int64_t tokens, int64_t dim, int32_t size, int32_t axis)
{
    return tokens < 0 || dim < 1 || size < 1 || (axis != 0 && axis != 1) || tokens > INT64_MAX / 8 / dim;
}

static void quantise_group(const float *x, group g, int32_t bits, kvf_type stored, uint8_t *codes, float *scale, float *zero)
{
    float low, high;
    kvfi_group_range(x + g.first, (size_t)g.stride, (int)g.n, &low, &high);
    float step = kvfi_kivi_scale(low, high, bits), min = low;
    if (stored == KVF_F16) {
        step = kvfi_half_to_float(kvfi_kivi_scale_half(low, high, bits));
        min = kvfi_half_to_float(kvfi_half_saturated(low));
    }
    scale[g.index] = step;
    zero[g.index] = min;
    for (int64_t i = 0, at = g.first; i < g.n; i++, at += g.stride) codes[at] = (uint8_t)kvfi_kivi_code(x[at], step, min, bits);
}

int kvf_op_kivi_quantise(const float *x, int64_t tokens, int64_t dim, int32_t bits, int32_t group_size, int32_t axis,
                         kvf_type stored, uint8_t *codes, float *scale, float *zero)
{
    if (check(tokens, dim, group_size, axis) || bits < 1 || bits > 8 || (stored != KVF_F16 && stored != KVF_F32))
        return KVF_E_ARG;
    if (!tokens) return KVF_OK;
    if (!x || !codes || !scale || !zero) return KVF_E_ARG;
    for (int64_t i = 0; i < tokens * dim; i++)
        if (!(fabsf(x[i]) <= FLT_MAX / 2)) return KVF_E_NONFINITE; /* the range of a group must not overflow */
    int64_t lines = axis ? tokens : dim, length = axis ? dim : tokens;
    for (int64_t g = 0; g * group_size < length; g++)
        for (int64_t line = 0; line < lines; line++)
            quantise_group(x, next_group(tokens, dim, group_size, axis, line, g), bits, stored, codes, scale, zero);
    return KVF_OK;
}

int kvf_op_kivi_dequantise(const uint8_t *codes, const float *scale, const float *zero, int64_t tokens, int64_t dim,
                           int32_t group_size, int32_t axis, float *x)
{
    if (check(tokens, dim, group_size, axis) || (tokens && (!codes || !scale || !zero || !x))) return KVF_E_ARG;
    int64_t per_token = (dim + group_size - 1) / group_size;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t c = 0; c < dim; c++) {
            int64_t g = axis ? t * per_token + c / group_size : t / group_size * dim + c;
            x[t * dim + c] = KVF_ADD(KVF_MUL((float)codes[t * dim + c], scale[g]), zero[g]);
        }
    return KVF_OK;
}
