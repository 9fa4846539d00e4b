/* SPDX-License-Identifier: MIT
 * Where a code lies inside a record. Both sides are a matrix codes[reduction][lane]:
 *   keys    reduction = channel (dim_pad of them), lane = token (64)
 *   values  reduction = token (64),                lane = channel (dim_pad)
 * so that one micro-kernel serves both: it multiplies four adjacent codes of the reduction, the four bytes of a 32-bit lane,
 * with four multipliers broadcast to all lanes (the shape of dpbusd, udot, dp4a) and needs no horizontal sum.
 *
 * Lanes come in chunks of up to 64, a chunk in groups of 16 (the last chunk may have 1 to 3 groups). A code of `bits` bits is
 * split into planes of 8, 4, 2 or 1 bits, the widest first in memory and holding the low bits: 3 = 2 + 1, 5 = 4 + 1, 6 = 4 + 2,
 * 7 = 4 + 2 + 1. Inside a plane of width w, `per = 8 / w` codes share a byte; quad q
 * (four adjacent of the reduction) of group g is field F = q * groups + g, found in line F / per (a line is 64 bytes), shifted
 * by w * (F % per); byte 4 * (lane % 16) + (reduction % 4) of that line. Sizes are exact: n * bits / 8 bytes, no padding.
 */
#ifndef KVFI_LAYOUT_H
#define KVFI_LAYOUT_H

#include "gpu/kernels/address.h" /* kvfi_plane_width, kvfi_code_at: the formula, as every target compiles it */

/* Bytes of a code matrix: reduction a multiple of 4, lanes a multiple of 16. */
static inline size_t kvfi_codes_bytes(int bits, int reduction, int lanes)
{
    return (size_t)reduction * (size_t)lanes / 8 * (size_t)bits;
}

#endif
