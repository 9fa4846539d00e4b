/* SPDX-License-Identifier: MIT
 * Where a code lies inside a record: the formula that codec/shared/layout.h explains. Shared by every target. */
#ifndef KVFI_KERNELS_ADDRESS_H
#define KVFI_KERNELS_ADDRESS_H

#ifndef KVF_FN
#include "gpu/compat/c.h"
#endif

/* Planes of a code width, the low bits of the code first; each row ends with 0. */
KVF_TABLE uint8_t kvfi_plane_width[9][4] = {{0}, {1}, {2}, {2, 1}, {4}, {4, 1}, {4, 2}, {4, 2, 1}, {8}};

typedef struct kvfi_where {
    size_t byte; /* from the start of the codes */
    int shift;
} kvfi_where;

/* Place of the plane `p` (index into kvfi_plane_width[bits]) of code (r, lane). The 16 lanes that share lane / 16 share the
 * shift and lie 4 bytes apart. */
KVF_FN kvfi_where kvfi_code_at(int bits, int reduction, int lanes, int r, int lane, int p)
{
    int chunk = lane / 64, groups = (lanes - chunk * 64 < 64 ? lanes - chunk * 64 : 64) / 16;
    size_t byte = (size_t)chunk * 64 * (size_t)reduction / 8 * (size_t)bits;
    for (int i = 0; i < p; i++) byte += (size_t)groups * 16 * (size_t)reduction / 8 * kvfi_plane_width[bits][i];
    int width = kvfi_plane_width[bits][p], per = 8 / width, field = r / 4 * groups + lane % 64 / 16;
    kvfi_where at;
    at.byte = byte + (size_t)(field / per) * 64 + (size_t)(lane % 16) * 4 + (size_t)(r % 4);
    at.shift = width * (field % per);
    return at;
}

#endif
