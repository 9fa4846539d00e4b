/* SPDX-License-Identifier: MIT */
#include "codec/shared/entries.h"

#include <math.h>

enum { TOP = 127, CENTROIDS = 256 };

float kvfi_entry_unit(const float *x, size_t n)
{
    float largest = 0;
    int exponent;
    for (size_t i = 0; i < n; i++) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    const float share = frexpf(largest / TOP, &exponent); /* in [1/2, 1) */
    if (!(largest > 0) || exponent < -100 || exponent > 100) return 0;
    return ldexpf(1, share == 0.5f ? exponent - 1 : exponent);
}

void kvfi_round_to_entries(float *x, size_t n)
{
    const float unit = kvfi_entry_unit(x, n);
    for (size_t i = 0; unit > 0 && i < n; i++) x[i] = rintf(x[i] / unit) * unit;
}

size_t kvfi_book_floats(const kvf_part *part, int32_t heads)
{
    return ((size_t)(part->book_stride ? heads : 1) * (size_t)part->sub) << part->bits;
}

size_t kvfi_entries_bytes(const kvf_part *part, int32_t heads)
{
    if (part->kind != KVF_KIND_VECTOR || !kvfi_entries_fit(part->sub, part->bits) || !part->book) return 0;
    const size_t n = kvfi_book_floats(part, heads);
    const float unit = kvfi_entry_unit(part->book, n);
    for (size_t i = 0; unit > 0 && i < n; i++)
        if (rintf(part->book[i] / unit) * unit != part->book[i]) return 0;
    return unit > 0 ? n : 0;
}

void kvfi_entries_fill(kvf_part *part, int32_t heads, uint8_t *entries)
{
    const size_t n = kvfi_book_floats(part, heads), table = (size_t)part->sub * CENTROIDS, sub = (size_t)part->sub;
    part->unit = kvfi_entry_unit(part->book, n);
    for (size_t i = 0; i < n; i++) {
        const size_t head = i / table, centroid = i % table / sub, channel = i % sub;
        entries[head * table + channel * CENTROIDS + centroid] = (uint8_t)((int)(part->book[i] / part->unit) + 128);
    }
}
