/* SPDX-License-Identifier: MIT
 * How the rows of sink and window are kept: f16, or q8_0 (groups of 32 channels: an f16 scale, then 32 int8 codes, by ggml's rule; the
 * last group is whole, its missing channels are zero). "Exact" rows are those that no codec touches. */
#ifndef KVFI_ROWS_H
#define KVFI_ROWS_H

#include <stddef.h>
#include <stdint.h>

enum { KVFI_ROW_GROUP = 32, KVFI_ROW_GROUP_BYTES = 34 };

/* bits: 16 or 8. */
size_t kvfi_row_bytes(int32_t bits, int32_t dim);
void kvfi_row_put(int32_t bits, const uint16_t *half, int32_t dim, uint8_t *row);
void kvfi_row_get(int32_t bits, const uint8_t *row, int32_t dim, float *x);

/* What a row of f16 becomes when it is kept and read again, as f16. */
void kvfi_row_round(int32_t bits, uint16_t *half, int32_t dim);

#endif
