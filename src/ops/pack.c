/* SPDX-License-Identifier: MIT
 * Codes as one little-endian bit stream: code i occupies bits i * bits and up, low bits first, across bytes where need be. */
#include "kvfold.h"

#include <string.h>

static int wrong(const void *a, const void *b, size_t n, int32_t bits)
{
    return bits < 1 || bits > 8 || (n && (!a || !b)) || n > SIZE_MAX / 8;
}

size_t kvf_op_packed_bytes(size_t n, int32_t bits)
{
    if (bits < 1 || bits > 8) return 0;
    return n / 8 * (size_t)bits + (n % 8 * (size_t)bits + 7) / 8;
}

int kvf_op_pack(const uint8_t *codes, size_t n, int32_t bits, uint8_t *packed)
{
    if (wrong(codes, packed, n, bits)) return KVF_E_ARG;
    for (size_t i = 0; i < n; i++)
        if (codes[i] >> bits) return KVF_E_ARG;
    if (n) memset(packed, 0, kvf_op_packed_bytes(n, bits));
    for (size_t i = 0; i < n; i++) {
        size_t at = i * (size_t)bits, byte = at / 8, shift = at % 8;
        packed[byte] = (uint8_t)(packed[byte] | codes[i] << shift);
        if (shift + (size_t)bits > 8) packed[byte + 1] = (uint8_t)(codes[i] >> (8 - shift));
    }
    return KVF_OK;
}

int kvf_op_unpack(const uint8_t *packed, size_t n, int32_t bits, uint8_t *codes)
{
    if (wrong(packed, codes, n, bits)) return KVF_E_ARG;
    for (size_t i = 0; i < n; i++) {
        size_t at = i * (size_t)bits, byte = at / 8, shift = at % 8;
        unsigned both = packed[byte];
        if (shift + (size_t)bits > 8) both |= (unsigned)packed[byte + 1] << 8;
        codes[i] = (uint8_t)(both >> shift & ((1u << bits) - 1));
    }
    return KVF_OK;
}
