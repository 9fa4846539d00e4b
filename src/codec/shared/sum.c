/* SPDX-License-Identifier: MIT
 * Plans and maps of KVF_KIND_SUM. */
#include "codec/shared/sum.h"

#include "base/text.h"
#include "codec/shared/codebook.h"
#include "codec/shared/rotation.h"
#include "codec/shared/sketch.h"
#include "codec/shared/table.h"
#include "cpu/scalar/scalar.h"

#include <stdio.h>
#include <string.h>

void kvfi_sum_add_signs(kvf_part *part, int32_t dim, int32_t rows, kvf_select select)
{
    const kvfi_sketch s = {dim, rows, part->iid, (int32_t)part->rot.seed, part->n_matrices};
    part->matrix[part->n_matrices++] = (kvf_matrix){.map = KVF_MAP_SKETCH,
                                                    .select = select,
                                                    .size = rows,
                                                    .width = (rows + 15) / 16 * 16,
                                                    .bits = 1,
                                                    .table = -1,
                                                    .unit = (float)(2 * kvfi_sketch_unit(&s))};
}

void kvfi_sum_add_table(kvf_part *part, kvf_map map, kvf_select select, int32_t size, int32_t bits)
{
    double levels[128];
    kvf_matrix *m = &part->matrix[part->n_matrices];
    const int32_t at = part->n_matrices ? m[-1].table + (1 << m[-1].bits) : 0;
    kvfi_lloyd_max(bits, size < 2 ? 2 : size, levels);
    *m = (kvf_matrix){.map = map, .select = select, .size = size, .width = (size + 15) / 16 * 16, .bits = bits, .table = at};
    m->unit = kvfi_table_fill(part->table + at, bits, levels);
    part->n_matrices++;
}

kvfi_shape kvfi_sum_shape(const kvf_part *part, int32_t i)
{
    const kvf_matrix *m = &part->matrix[i];
    return (kvfi_shape){
        .keys = part->side == KVF_K,
        .dim = m->size,
        .dim_pad = m->width,
        .bits = m->bits,
        .t_group = 1,
        .c_group = m->size,
        .n_cg = 1,
        .zero = 0.5f,
        .table = m->table < 0 ? NULL : part->table + m->table,
        .unit = m->unit,
        .scale_offset = (uint32_t)(m->scale_offset - m->codes_offset),
    };
}

static kvfi_sketch sketch_of(const kvf_part *part, int32_t i)
{
    return (kvfi_sketch){part->dim, part->matrix[i].size, part->iid, (int32_t)part->rot.seed, i};
}

int32_t kvfi_sum_step(const kvf_part *part, int32_t i)
{
    if (part->matrix[i].map != KVF_MAP_SKETCH) return part->matrix[i].width;
    const kvfi_sketch s = sketch_of(part, i);
    return kvfi_sketch_step(&s);
}

/* One byte a channel from the record's set; NULL when all are selected. */
static const uint8_t *selected(const kvf_part *part, int32_t i, const void *record, uint8_t keep[KVFI_DIM_MAX])
{
    if (!kvfi_sum_chosen(part, i)) return NULL;
    const uint8_t *set = (const uint8_t *)record + part->set_offset;
    for (int32_t c = 0; c < part->dim; c++)
        keep[c] = (set[c / 8] >> c % 8 & 1) == (part->matrix[i].select == KVF_SELECT_OUTLIERS);
    return keep;
}

/* Selected channels side by side, zeros behind them, turned. */
static void gather(const kvf_part *part, const kvf_matrix *m, const uint8_t *keep, const float *x, float *y)
{
    int32_t j = 0;
    for (int32_t c = 0; c < part->dim; c++)
        if (!keep || keep[c]) y[j++] = x[c];
    memset(y + j, 0, (size_t)(m->width - j) * sizeof *y);
    kvfi_rotate(&m->rot, kvfi_scalar_hadamard, y, 0, 1);
}

static void scatter(const kvf_part *part, const kvf_matrix *m, const uint8_t *keep, float *y, float *x, size_t channel)
{
    kvfi_rotate_back(&m->rot, kvfi_scalar_hadamard, y, 0, 1);
    for (int32_t c = 0, j = 0; c < part->dim; c++)
        if (!keep || keep[c]) x[(size_t)c * channel] += y[j++];
}

void kvfi_sum_apply(const kvf_part *part, int32_t i, const void *record, const float *x, size_t stride, int32_t n, int32_t first,
                    int32_t count, float *y, size_t y_stride)
{
    uint8_t room[KVFI_DIM_MAX];
    const kvf_matrix *m = &part->matrix[i];
    const uint8_t *keep = selected(part, i, record, room);
    if (m->map == KVF_MAP_SKETCH) {
        const kvfi_sketch s = sketch_of(part, i);
        const int32_t live = m->size - first < count ? m->size - first : count;
        kvfi_sketch_apply(&s, keep, x, stride, n, first, live, y, y_stride);
        for (int32_t v = 0; v < n; v++) memset(y + (size_t)v * y_stride + live, 0, (size_t)(count - live) * sizeof *y);
        return;
    }
    for (int32_t v = 0; v < n; v++) gather(part, m, keep, x + (size_t)v * stride, y + (size_t)v * y_stride);
}

void kvfi_sum_return(const kvf_part *part, int32_t i, const void *record, float *y, size_t y_stride, int32_t n, int32_t first,
                     int32_t count, float *x, size_t vector, size_t channel)
{
    uint8_t room[KVFI_DIM_MAX];
    const kvf_matrix *m = &part->matrix[i];
    const uint8_t *keep = selected(part, i, record, room);
    if (m->map == KVF_MAP_SKETCH) {
        const kvfi_sketch s = sketch_of(part, i);
        const int32_t live = m->size - first < count ? m->size - first : count;
        kvfi_sketch_return(&s, keep, y, y_stride, n, first, live, x, vector, channel);
        return;
    }
    for (int32_t v = 0; v < n; v++) scatter(part, m, keep, y + (size_t)v * y_stride, x + (size_t)v * vector, channel);
}

int kvfi_spec_sketch(const kvf_spec *spec, kvf_part *part, char *error, size_t size)
{
    const char *sketch = kvfi_spec_get(spec, "sketch", "orth");
    part->iid = !strcmp(sketch, "iid");
    if (part->iid || !strcmp(sketch, "orth")) return KVF_OK;
    kvfi_sentence(error, size,
                  "codec '%s': sketch is '%s', but may be 'orth' (orthogonal directions) or 'iid' (independent ones)", spec->name,
                  sketch);
    return KVF_E_SPEC;
}

int kvfi_spec_outliers(const kvf_spec *spec, int32_t dim, int32_t *n, char *error, size_t size)
{
    char range[80];
    snprintf(range, sizeof range, "0 to %d: fewer than the %d channels of the head", (int)dim - 1, (int)dim);
    int rc = kvfi_spec_int(spec, "outliers", 0, range, n, error, size);
    if (rc || *n < dim) return rc;
    kvfi_spec_refuse(spec, "outliers", range, error, size);
    return KVF_E_UNSUPPORTED; /* of this head size, not of any */
}
