/* SPDX-License-Identifier: MIT */
#include "ops/rotate.h"

#include "codec/shared/part.h"
#include "cpu/scalar/scalar.h"

#include <string.h>

int kvfi_op_rotation(const char *name, uint32_t seed, int32_t dim, kvf_rotation *rot)
{
    if (!name || dim < 1 || dim > KVFI_DIM_MAX || !kvfi_rotation_init(rot, name, seed, dim)) return 0;
    return !kvfi_rotation_floats(rot);
}

void kvfi_op_turn(const kvf_rotation *rot, const float *x, int32_t dim, float *y)
{
    memcpy(y, x, (size_t)dim * sizeof *y);
    memset(y + dim, 0, (size_t)(rot->size - dim) * sizeof *y);
    kvfi_rotate(rot, kvfi_scalar_hadamard, y, 0, 1);
}

void kvfi_op_turn_back(const kvf_rotation *rot, float *y, int32_t dim, float *x)
{
    kvfi_rotate_back(rot, kvfi_scalar_hadamard, y, 0, 1);
    memcpy(x, y, (size_t)dim * sizeof *x);
}

int32_t kvf_op_rotated_size(const char *rot, int32_t dim)
{
    kvf_rotation r;
    return kvfi_op_rotation(rot, 0, dim, &r) ? r.size : KVF_E_ARG;
}

int kvf_op_rotate(const char *rot, uint32_t seed, const float *x, int64_t n, int32_t dim, float *y)
{
    kvf_rotation r;
    if (!kvfi_op_rotation(rot, seed, dim, &r) || n < 0 || (n && (!x || !y))) return KVF_E_ARG;
    for (int64_t v = 0; v < n; v++, x += dim, y += r.size) kvfi_op_turn(&r, x, dim, y);
    return KVF_OK;
}

int kvf_op_rotate_back(const char *rot, uint32_t seed, const float *y, int64_t n, int32_t dim, float *x)
{
    float row[KVFI_DIM_MAX];
    kvf_rotation r;
    if (!kvfi_op_rotation(rot, seed, dim, &r) || n < 0 || (n && (!x || !y))) return KVF_E_ARG;
    for (int64_t v = 0; v < n; v++, x += dim, y += r.size) {
        memcpy(row, y, (size_t)r.size * sizeof *row);
        kvfi_op_turn_back(&r, row, dim, x);
    }
    return KVF_OK;
}
