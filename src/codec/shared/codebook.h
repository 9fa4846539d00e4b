/* SPDX-License-Identifier: MIT
 * Scalar codebooks: the mean-square optimum (Lloyd 1957, Max 1960) for one coordinate of a random unit vector times sqrt(dim),
 *   f(t) ~ (1 - t^2 / dim)^((dim - 3) / 2),  |t| < sqrt(dim)          TurboQuant (arXiv 2504.19874), Lemma 1
 * which tends to N(0, 1). Exact arithmetic throughout: the same table on every target. */
#ifndef KVFI_CODEBOOK_H
#define KVFI_CODEBOOK_H

#include <stdint.h>

/* The positive half, ascending: levels[0 .. 2^(bits-1) - 1]; the other half is its mirror image. bits 1 to 8, dim 2 or more
 * (dims below 4 use the Gaussian limit, as the density has no interior maximum there). Returns the mean-square error. */
double kvfi_lloyd_max(int32_t bits, int32_t dim, double *levels);

/* A second stage for what a first one leaves: the mean-square optimum of 2^second_bits levels, symmetric, for t - (nearest level),
 * t of the density above and `levels` the positive half of a symmetric first stage of 2^bits levels. second_bits 1 to 4. */
void kvfi_lloyd_max_residual(int32_t bits, int32_t dim, const double *levels, int32_t second_bits, double *second);

/* The positive half of the optimum for the Laplace density exp(-|t|) cut off at `cut`. bits 1 to 4. */
void kvfi_laplace_max(int32_t bits, double cut, double *levels);

#endif
