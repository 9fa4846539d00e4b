/* SPDX-License-Identifier: MIT
 * Encoding of KVF_KIND_SUM. */
#include "codec/shared/rotation.h"
#include "codec/shared/stages.h"
#include "codec/shared/sum.h"
#include "codec/shared/table.h"
#include "gpu/kernels/codes.h"

#include <math.h>
#include <string.h>

/* Sets the bits of the n_out channels of largest energy over the 64 tokens; of equals the lower channel. */
static void choose_outliers(const kvf_part *part, const float *x, uint8_t *set)
{
    float energy[KVFI_DIM_MAX] = {0};
    for (int32_t t = 0; t < KVF_BLOCK; t++)
        for (int32_t c = 0; c < part->dim; c++) energy[c] += x[t * part->dim + c] * x[t * part->dim + c];
    for (int32_t i = 0; i < part->n_out; i++) {
        int32_t best = 0;
        for (int32_t c = 1; c < part->dim; c++)
            if (energy[c] > energy[best]) best = c;
        set[best / 8] = (uint8_t)(set[best / 8] | 1 << best % 8);
        energy[best] = -1;
    }
}

static void put(const kvfi_shape *s, uint8_t *codes, int32_t t, int32_t coordinate, int code)
{
    kvfi_code_put(codes, s->bits, kvfi_reduction(s), kvfi_lanes(s), s->keys ? coordinate : t, s->keys ? t : coordinate, code);
}

/* Codes of a table, and for the next matrix what they leave. */
static void encode_table(const kvf_part *part, int32_t i, float *x, uint8_t *record)
{
    const kvf_matrix *m = &part->matrix[i];
    const kvfi_shape s = kvfi_sum_shape(part, i);
    const kvfi_table table = {part->table + m->table, m->bits, m->unit};
    uint16_t *scales = kvfi_halves(record, m->scale_offset);
    float y[KVFI_DIM_MAX], decoded[KVFI_DIM_MAX];
    uint8_t codes[KVFI_DIM_MAX];
    for (int32_t t = 0; t < KVF_BLOCK; t++) {
        float *row = x + t * part->dim;
        kvfi_sum_apply(part, i, record, row, 0, 1, 0, m->width, y, 0);
        const float plain = kvfi_table_code(&table, y, m->size, codes, decoded);
        scales[t] = kvfi_norm_scale(part->norm, y, decoded, m->size, plain);
        for (int32_t j = 0; j < m->size; j++) put(&s, record + m->codes_offset, t, j, codes[j]);
        const float scale = kvfi_half_to_float(scales[t]);
        for (int32_t c = 0; c < part->dim && m->map == KVF_MAP_SAME; c++) row[c] -= decoded[c] * scale;
    }
}

/* The length of what the map sees. */
static float length(const kvf_part *part, int32_t i, const uint8_t *record, const float *x)
{
    float kept[KVFI_DIM_MAX];
    const uint8_t *set = record + part->set_offset;
    const int outliers = part->matrix[i].select == KVF_SELECT_OUTLIERS;
    for (int32_t c = 0; c < part->dim; c++)
        kept[c] = kvfi_sum_chosen(part, i) && (set[c / 8] >> c % 8 & 1) != outliers ? 0.0f : x[c];
    return sqrtf(kvfi_dot16(kept, kept, part->dim));
}

/* sign(0) is plus. */
static void encode_signs(const kvf_part *part, int32_t i, const float *x, uint8_t *record)
{
    const kvf_matrix *m = &part->matrix[i];
    const kvfi_shape s = kvfi_sum_shape(part, i);
    const int32_t step = kvfi_sum_step(part, i), batch = kvfi_sum_batch(step);
    const size_t dim = (size_t)part->dim;
    float y[KVFI_SUM_ROOM];
    for (int32_t t = 0; t < KVF_BLOCK; t++)
        kvfi_halves(record, m->scale_offset)[t] = kvfi_half_saturated(length(part, i, record, x + (size_t)t * dim));
    for (int32_t first = 0; first < m->size; first += step)
        for (int32_t t = 0; t < KVF_BLOCK; t += batch) {
            const int32_t count = m->size - first < step ? m->size - first : step;
            kvfi_sum_apply(part, i, record, x + (size_t)t * dim, dim, batch, first, count, y, (size_t)step);
            for (int32_t v = 0; v < batch; v++)
                for (int32_t j = 0; j < count; j++) put(&s, record + m->codes_offset, t + v, first + j, y[v * step + j] >= 0.0f);
        }
}

void kvfi_sum_encode(const kvf_part *part, float *x, void *record)
{
    memset(record, 0, part->bytes);
    kvfi_rotate_block(part, x);
    if (part->block_mean) kvfi_take_mean(part, x, record);
    if (part->n_out && part->like)
        memcpy((uint8_t *)record + part->set_offset, part->like + part->set_offset, ((size_t)part->dim + 7) / 8);
    else if (part->n_out)
        choose_outliers(part, x, (uint8_t *)record + part->set_offset);
    for (int32_t i = 0; i < part->n_matrices; i++)
        if (part->matrix[i].table < 0)
            encode_signs(part, i, x, record);
        else
            encode_table(part, i, x, record);
}
