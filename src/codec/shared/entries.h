/* SPDX-License-Identifier: MIT
 * Centroids as bytes: books whose numbers are whole multiples, up to 127, of a power of two can be looked up by permutations of bytes.
 * Training rounds books to that form where it costs next to nothing; others are read as floats. */
#ifndef KVFI_ENTRIES_H
#define KVFI_ENTRIES_H

#include "kvfold_codec.h"

/* Geometries whose centroids kernels look up as bytes: an index of a byte, sub-vectors of a lane and more. */
static inline int kvfi_entries_fit(int32_t sub, int32_t bits)
{
    return bits == 8 && sub >= 4;
}

/* The smallest power of two of which 127 reach the largest of n magnitudes; 0 when all are 0 or the power is not normal. */
float kvfi_entry_unit(const float *x, size_t n);

/* Rounds n numbers to multiples of that unit, halves to even. */
void kvfi_round_to_entries(float *x, size_t n);

/* Floats of a part's book for `heads` heads, or for all of them together. */
size_t kvfi_book_floats(const kvf_part *part, int32_t heads);

/* Bytes of the tables of a part with a book of `heads` heads and of a unit for each; 0: it has no 8-bit book, or one of a head that is not
 * whole multiples of one unit. */
size_t kvfi_entries_bytes(const kvf_part *part, int32_t heads);

/* Fills entries[heads][sub][256], then a float a head, its unit: channel j of centroid i is (entries[j][i] - 128) * unit. Sets part->entries,
 * units, and unit to that of head 0; 64-byte aligned. */
void kvfi_entries_fill(kvf_part *part, int32_t heads, uint8_t *entries);

#endif
