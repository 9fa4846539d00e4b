/* SPDX-License-Identifier: MIT
 * Fetching and storing codes of 1 to 8 bits in the arrangement of address.h. */
#ifndef KVFI_KERNELS_CODES_H
#define KVFI_KERNELS_CODES_H

#include "gpu/kernels/address.h"

KVF_FN int kvfi_code_get(const KVF_GLOBAL uint8_t *codes, int bits, int reduction, int lanes, int r, int lane)
{
    int code = 0, low = 0;
    for (int p = 0; kvfi_plane_width[bits][p]; p++) {
        kvfi_where at = kvfi_code_at(bits, reduction, lanes, r, lane, p);
        int width = kvfi_plane_width[bits][p];
        code |= (codes[at.byte] >> at.shift & ((1 << width) - 1)) << low;
        low += width;
    }
    return code;
}

/* ORs a code into zeroed memory. Two threads must not store into the same byte at once. */
KVF_FN void kvfi_code_put(KVF_GLOBAL uint8_t *codes, int bits, int reduction, int lanes, int r, int lane, int code)
{
    int low = 0;
    for (int p = 0; kvfi_plane_width[bits][p]; p++) {
        kvfi_where at = kvfi_code_at(bits, reduction, lanes, r, lane, p);
        int width = kvfi_plane_width[bits][p];
        codes[at.byte] = (uint8_t)(codes[at.byte] | (code >> low & ((1 << width) - 1)) << at.shift);
        low += width;
    }
}

/* row[i] = code (r, first + i) for i < count; first and count are multiples of 16. */
KVF_FN void kvfi_codes_get_row(const KVF_GLOBAL uint8_t *codes, int bits, int reduction, int lanes, int r, int first, int count,
                               KVF_PRIVATE uint8_t *row)
{
    for (int g = 0; g < count; g += 16) {
        int low = 0;
        for (int i = 0; i < 16; i++) row[g + i] = 0;
        for (int p = 0; kvfi_plane_width[bits][p]; p++) {
            kvfi_where at = kvfi_code_at(bits, reduction, lanes, r, first + g, p);
            int width = kvfi_plane_width[bits][p], mask = (1 << width) - 1;
            for (int i = 0; i < 16; i++)
                row[g + i] = (uint8_t)(row[g + i] | (codes[at.byte + (size_t)i * 4] >> at.shift & mask) << low);
            low += width;
        }
    }
}

#endif
