/* SPDX-License-Identifier: MIT */
#include "codec/shared/table.h"

#include "cpu/scalar/scalar.h"

#include <math.h>

float kvfi_table_fill(int16_t *entry, int32_t bits, const double *levels)
{
    const int32_t half = 1 << (bits - 1), top = kvfi_table_top(bits);
    for (int32_t i = 0; i < half; i++) {
        const int16_t rounded = (int16_t)floor(levels[i] / levels[half - 1] * top + 0.5);
        entry[half + i] = rounded;
        entry[half - 1 - i] = (int16_t)-rounded;
    }
    return (float)(levels[half - 1] / top);
}

void kvfi_table_ranks(const int16_t *entry, int32_t bits, float unit, kvfi_ranks *r)
{
    r->bits = bits;
    for (int32_t i = 0; i < 1 << bits; i++) r->level[i] = (float)entry[i] * unit;
    for (int32_t i = 0; i + 1 < 1 << bits; i++) r->bound[i] = (float)(entry[i] + entry[i + 1]) * 0.5f;
}

float kvfi_table_code(const kvf_part *part, const kvfi_ranks *r, float unit, const float *x, int32_t n, uint8_t *codes,
                      float *decoded)
{
    const float rms = sqrtf(KVFI_EXACT(part, dot16)(x, x, n) / (float)n), step = rms * unit;
    KVFI_EXACT(part, rank)(r, x, step > 0.0f ? 1.0f / step : 0.0f, n, codes, decoded);
    return rms;
}
