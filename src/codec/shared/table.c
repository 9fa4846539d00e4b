/* SPDX-License-Identifier: MIT */
#include "codec/shared/table.h"

#include "codec/shared/stages.h"

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

int32_t kvfi_table_nearest(const int16_t *entry, int32_t bits, float x)
{
    int32_t low = 0, high = (1 << bits) - 1;
    while (low < high) {
        const int32_t mid = (low + high) / 2;
        const float boundary = (float)(entry[mid] + entry[mid + 1]) * 0.5f;
        if (x > boundary)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

float kvfi_table_code(const kvfi_table *table, const float *x, int32_t n, uint8_t *codes, float *decoded)
{
    const float rms = sqrtf(kvfi_dot16(x, x, n) / (float)n), unit = rms * table->unit;
    const float inverse = unit > 0.0f ? 1.0f / unit : 0.0f;
    for (int32_t i = 0; i < n; i++) {
        codes[i] = (uint8_t)kvfi_table_nearest(table->entry, table->bits, x[i] * inverse);
        decoded[i] = (float)table->entry[codes[i]] * table->unit;
    }
    return rms;
}
