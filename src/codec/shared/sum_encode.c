/* SPDX-License-Identifier: MIT
 * Encoding of KVF_KIND_SUM. */
#include "codec/shared/pack.h"
#include "codec/shared/rotation.h"
#include "codec/shared/stages.h"
#include "codec/shared/sum.h"
#include "codec/shared/table.h"

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

static kvfi_packing packing_of(const kvf_part *part, int32_t i, uint8_t *record)
{
    const kvf_matrix *m = &part->matrix[i];
    return (kvfi_packing){part->side, m->bits, m->width, record + m->codes_offset};
}

/* Codes of a table, and for the next matrix what they leave. */
static void encode_table(const kvf_part *part, int32_t i, float *x, uint8_t *record)
{
    const kvf_matrix *m = &part->matrix[i];
    const kvfi_packing packing = packing_of(part, i, record);
    uint16_t *scales = kvfi_halves(record, m->scale_offset);
    float y[KVFI_DIM_MAX], decoded[KVFI_DIM_MAX];
    uint8_t codes[KVFI_PACKED_TOKENS * KVFI_DIM_MAX] = {0};
    kvfi_ranks ranks;
    kvfi_table_ranks(part->table + m->table, m->bits, m->unit, &ranks);
    for (int32_t t = 0; t < KVF_BLOCK; t++) {
        float *row = x + t * part->dim;
        kvfi_sum_apply(part, i, record, row, 0, 1, 0, m->width, y, 0);
        const float plain =
            kvfi_table_code(part, &ranks, m->unit, y, m->size, codes + t % KVFI_PACKED_TOKENS * m->width, decoded);
        scales[t] = kvfi_norm_scale(part, y, decoded, m->size, plain);
        if ((t + 1) % KVFI_PACKED_TOKENS == 0)
            kvfi_pack(&packing, t + 1 - KVFI_PACKED_TOKENS, 0, m->width, codes, (size_t)m->width);
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

/* Those of y[16][stride], count of them. sign(0) is plus. */
static void pack_signs(const kvfi_packing *to, int32_t t, int32_t first, int32_t count, const float *y, int32_t stride)
{
    uint8_t codes[KVFI_PACKED_TOKENS * KVFI_DIM_MAX] = {0};
    const int32_t pad = (count + 15) / 16 * 16;
    for (int32_t v = 0; v < KVFI_PACKED_TOKENS; v++)
        for (int32_t j = 0; j < count; j++) codes[v * pad + j] = y[v * stride + j] >= 0.0f;
    kvfi_pack(to, t, first, pad, codes, (size_t)pad);
}

static void encode_signs(const kvf_part *part, int32_t i, const float *x, uint8_t *record)
{
    const kvf_matrix *m = &part->matrix[i];
    const kvfi_packing packing = packing_of(part, i, record);
    const int32_t step = kvfi_sum_step(part, i), batch = kvfi_sum_batch(step);
    const size_t dim = (size_t)part->dim;
    float y[KVFI_SUM_ROOM];
    for (int32_t t = 0; t < KVF_BLOCK; t++)
        kvfi_halves(record, m->scale_offset)[t] = kvfi_half_saturated(length(part, i, record, x + (size_t)t * dim));
    for (int32_t first = 0; first < m->size; first += step)
        for (int32_t t = 0; t < KVF_BLOCK; t += batch) {
            const int32_t count = m->size - first < step ? m->size - first : step;
            kvfi_sum_apply(part, i, record, x + (size_t)t * dim, dim, batch, first, count, y, (size_t)step);
            for (int32_t v = 0; v < batch; v += KVFI_PACKED_TOKENS) pack_signs(&packing, t + v, first, count, y + v * step, step);
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
