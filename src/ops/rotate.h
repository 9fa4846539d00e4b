/* SPDX-License-Identifier: MIT
 * Rotations as operations of their own: those that need no memory. */
#ifndef KVFI_OPS_ROTATE_H
#define KVFI_OPS_ROTATE_H

#include "codec/shared/rotation.h"

/* 1, or 0 when there is no such rotation of this size. */
int kvfi_op_rotation(const char *name, uint32_t seed, int32_t dim, kvf_rotation *rot);

/* One vector: y[size] from x[dim], and x[dim] from y[size], which is overwritten. */
void kvfi_op_turn(const kvf_rotation *rot, const float *x, int32_t dim, float *y);
void kvfi_op_turn_back(const kvf_rotation *rot, float *y, int32_t dim, float *x);

#endif
