/* SPDX-License-Identifier: MIT */
#include "cache/rows.h"

#include "base/half.h"
#include "gpu/kernels/quant.h"

#include <string.h>

size_t kvfi_row_bytes(int32_t bits, int32_t dim)
{
    if (bits == 16) return 2 * (size_t)dim;
    return (size_t)(dim + KVFI_ROW_GROUP - 1) / KVFI_ROW_GROUP * KVFI_ROW_GROUP_BYTES;
}

static void put_group(const uint16_t *half, int32_t n, uint8_t *group)
{
    float x[KVFI_ROW_GROUP] = {0};
    for (int32_t i = 0; i < n; i++) x[i] = kvfi_half_to_float(half[i]);
    const float scale = kvfi_q8_0_scale(kvfi_group_peak(x, 1, KVFI_ROW_GROUP)), inverse = kvfi_inverse_scale(scale);
    const uint16_t stored = kvfi_half_saturated(scale);
    memcpy(group, &stored, sizeof stored);
    for (int32_t i = 0; i < KVFI_ROW_GROUP; i++) group[2 + i] = (uint8_t)(kvfi_q8_0_code(x[i], inverse) - 128);
}

void kvfi_row_put(int32_t bits, const uint16_t *half, int32_t dim, uint8_t *row)
{
    if (bits == 16) {
        memcpy(row, half, 2 * (size_t)dim);
        return;
    }
    for (int32_t c = 0; c < dim; c += KVFI_ROW_GROUP, row += KVFI_ROW_GROUP_BYTES)
        put_group(half + c, dim - c < KVFI_ROW_GROUP ? dim - c : KVFI_ROW_GROUP, row);
}

void kvfi_row_get(int32_t bits, const uint8_t *row, int32_t dim, float *x)
{
    if (bits == 16) {
        kvfi_load_row((const char *)row, 0, dim, x);
        return;
    }
    for (int32_t c = 0; c < dim; c++) {
        const uint8_t *group = row + c / KVFI_ROW_GROUP * KVFI_ROW_GROUP_BYTES;
        uint16_t scale;
        memcpy(&scale, group, sizeof scale);
        x[c] = (float)(int8_t)group[2 + c % KVFI_ROW_GROUP] * kvfi_half_to_float(scale);
    }
}

void kvfi_row_round(int32_t bits, uint16_t *half, int32_t dim)
{
    uint8_t row[1024 / KVFI_ROW_GROUP * KVFI_ROW_GROUP_BYTES];
    float x[1024];
    if (bits == 16) return;
    kvfi_row_put(bits, half, dim, row);
    kvfi_row_get(bits, row, dim, x);
    for (int32_t c = 0; c < dim; c++) half[c] = kvfi_half_saturated(x[c]);
}
