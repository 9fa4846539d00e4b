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

#endif
