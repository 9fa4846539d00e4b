/* SPDX-License-Identifier: MIT
 * Coding with a table of integers: value = entry * unit * scale, one scale a vector. Exact arithmetic. */
#ifndef KVFI_TABLE_H
#define KVFI_TABLE_H

#include "codec/shared/part.h"
#include "cpu/kernels.h"

/* The largest magnitude of an entry: an int8 up to 5 bits, an int16 from 6 on. */
static inline int32_t kvfi_table_top(int32_t bits)
{
    return bits <= 5 ? 127 : 16383;
}

/* Rounds levels (the positive half, ascending; see codebook.h) to 2^bits ascending entries and returns the unit. */
float kvfi_table_fill(int16_t *entry, int32_t bits, const double *levels);

/* Bounds midway between ascending entries, in units, so that ties go down; levels are entry * unit. */
void kvfi_table_ranks(const int16_t *entry, int32_t bits, float unit, kvfi_ranks *r);

/* Codes x[n], measured in units of a vector whose root mean square is 1: codes, and decoded[i] before scaling. Returns that root
 * mean square, the scale of norm rule n0. */
float kvfi_table_code(const kvf_part *part, const kvfi_ranks *r, float unit, const float *x, int32_t n, uint8_t *codes,
                      float *decoded);

#endif
