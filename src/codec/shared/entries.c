/* SPDX-License-Identifier: MIT */
#include "codec/shared/entries.h"
#include "base/memory.h"

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

static size_t tables_of(const kvf_part *part, int32_t heads)
{
    return part->book_stride ? (size_t)heads : 1;
}

/* Whole multiples of a power of two? */
static int fits(const float *x, size_t n)
{
    const float unit = kvfi_entry_unit(x, n);
    for (size_t i = 0; unit > 0 && i < n; i++)
        if (rintf(x[i] / unit) * unit != x[i]) return 0;
    return unit > 0;
}

size_t kvfi_entries_bytes(const kvf_part *part, int32_t heads)
{
    if (part->kind != KVF_KIND_VECTOR || !kvfi_entries_fit(part->sub, part->bits) || !part->book) return 0;
    const size_t table = (size_t)part->sub * CENTROIDS, tables = tables_of(part, heads);
    for (size_t i = 0; i < tables; i++)
        if (!fits(part->book + i * table, table)) return 0;
    return tables * table + kvfi_round_up(tables * sizeof(float), 64);
}

void kvfi_entries_fill(kvf_part *part, int32_t heads, uint8_t *entries)
{
    const size_t sub = (size_t)part->sub, table = sub * CENTROIDS, tables = tables_of(part, heads);
    float *units = (float *)(void *)(entries + tables * table);
    for (size_t t = 0; t < tables; t++) {
        const float *book = part->book + t * table;
        units[t] = kvfi_entry_unit(book, table);
        for (size_t i = 0; i < table; i++)
            entries[t * table + i % sub * CENTROIDS + i / sub] = (uint8_t)((int)(book[i] / units[t]) + 128);
    }
    part->entries = entries, part->units = units, part->unit = units[0];
}
