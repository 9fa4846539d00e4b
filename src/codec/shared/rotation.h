/* SPDX-License-Identifier: MIT
 * Orthogonal transforms of the channels of a head. All work in place on vectors of rot->size floats; every operation has a fixed
 * order, so the bits are the same on every target.
 *
 *   h      Hadamard in blocks: the largest power of two that divides the head size, as llama.cpp does it
 *   h1     random signs, then one Hadamard of the whole head: H S. Sizes that have no Hadamard matrix here are padded with zeros
 *   h2     the same twice, with other signs: H S' H S
 *   haar   a dense matrix, uniformly distributed among the orthogonal ones: to compare
 * A Hadamard matrix of size m 2^k, m = 12, 20 or 28, is that of size m (Paley, 1933) times Sylvester's, as a Kronecker product. */
#ifndef KVFI_ROTATION_H
#define KVFI_ROTATION_H

#include "codec/codec.h"

/* The kernel that transforms Sylvester blocks: kvfi_kernels.hadamard of any set. */
typedef void (*kvfi_hadamard)(float *x, size_t stride, int32_t n, int32_t dim, int32_t block);

/* The smallest size of at least dim for which there is a Hadamard matrix here: 2^k, 12 2^k, 20 2^k or 28 2^k. *odd becomes 1, 12,
 * 20 or 28. dim 1 to 1024. */
int32_t kvfi_hadamard_size(int32_t dim, int32_t *odd);

/* Sets the transform up from its name, 0 when `name` is not one of those above; `seed` draws signs or matrix. */
int kvfi_rotation_init(kvf_rotation *rot, const char *name, uint32_t seed, int32_t dim);
const char *kvfi_rotation_name(const kvf_rotation *rot);

/* Floats of the matrix that the owner of the part provides (haar), 0 for the others; and its contents, made in `work` of as many
 * doubles: normal numbers, rows made orthonormal one after the other. */
size_t kvfi_rotation_floats(const kvf_rotation *rot);
void kvfi_rotation_fill(const kvf_rotation *rot, double *work, float *matrix);

/* x[n][stride] -> R x, and R' x. What was padded must be zero before the first, and is to be ignored after the second. */
void kvfi_rotate(const kvf_rotation *rot, kvfi_hadamard hadamard, float *x, size_t stride, int32_t n);
void kvfi_rotate_back(const kvf_rotation *rot, kvfi_hadamard hadamard, float *x, size_t stride, int32_t n);

/* A block that is to be coded, x[64][head_dim] -> R x as [64][dim]. */
void kvfi_rotate_block(const kvf_part *part, float *x);

#endif
