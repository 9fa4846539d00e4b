/* SPDX-License-Identifier: MIT
 * The direction of a cloud of vectors: the first right singular vector of the rows x[n][dim], not centred. */
#ifndef KVFI_DIRECTION_H
#define KVFI_DIRECTION_H

#include <stdint.h>

/* direction[dim] of length 1, signed so that the mean of the rows projects positively; zeros when all rows are. work[dim * dim + 2 * dim].
 * Returns the share of rows that project positively, 0.5 when there is no direction. */
double kvfi_direction(const float *x, int64_t n, int32_t dim, double *work, double *direction);

#endif
