/* SPDX-License-Identifier: MIT */
#include "codec/shared/part.h"

#include "base/text.h"
#include "codec/shared/rotation.h"
#include "gpu/kernels/vector.h"

#include <string.h>

/* Code matrices one after the other, each with 64 scales, then the set of outliers. */
static void layout_matrices(kvf_part *part)
{
    size_t at = 0;
    for (int32_t i = 0; i < part->n_matrices; i++) {
        kvf_matrix *m = &part->matrix[i];
        m->codes_offset = at;
        m->scale_offset = at + kvfi_align64(kvfi_codes_bytes(m->bits, KVF_BLOCK, m->width));
        at = m->scale_offset + kvfi_align64(2 * KVF_BLOCK);
        if (i == 0) part->scale_offset = m->scale_offset, part->min_offset = at;
    }
    part->set_offset = at;
    part->bytes = at + (part->n_out ? kvfi_align64(((size_t)part->dim + 7) / 8) : 0);
}

/* f16 scales of a record that is one code matrix; none in KVF_KIND_HALF. */
static size_t scales_of(const kvf_part *part)
{
    return (size_t)part->n_cg * KVF_BLOCK + (size_t)part->n_tg * (size_t)part->dim_pad;
}

static void layout_codes(kvf_part *part)
{
    size_t codes = kvfi_codes_bytes(part->bits, KVF_BLOCK, part->dim_pad);
    size_t scales = sizeof(uint16_t) * scales_of(part);
    part->scale_offset = kvfi_align64(codes);
    part->min_offset = part->scale_offset + kvfi_align64(scales);
    part->bytes = part->min_offset + (part->has_min ? kvfi_align64(scales) : 0);
}

int32_t kvfi_part_dim(const kvf_part *part, int32_t head_dim)
{
    return part->rot.kind ? part->rot.size : head_dim;
}

void kvfi_part_layout(kvf_part *part, int32_t dim)
{
    part->head_dim = dim;
    part->dim = dim = kvfi_part_dim(part, dim);
    part->dim_pad = (dim + 15) / 16 * 16;
    if (!part->c_group) part->c_group = dim;
    part->n_cg = kvfi_part_by_token(part) ? (dim + part->c_group - 1) / part->c_group : 0;
    part->n_tg = part->kind == KVF_KIND_CHANNEL ? KVF_BLOCK / part->t_group : 0;
    if (part->kind == KVF_KIND_SUM)
        layout_matrices(part);
    else if (part->kind == KVF_KIND_VECTOR)
        part->scale_offset = part->min_offset = part->bytes =
            kvfi_align64((size_t)(dim / part->sub) * kvfi_run_bytes(part->bits));
    else
        layout_codes(part);
    if (!part->block_mean) return;
    part->mean_offset = part->bytes;
    part->bytes += kvfi_align64((size_t)part->dim_pad + sizeof(uint16_t));
}

double kvfi_part_bits(const kvf_part *part)
{
    return 8.0 * (double)part->bytes / ((double)KVF_BLOCK * part->head_dim);
}

static int32_t count_largest(const void *record, size_t offset, size_t n)
{
    const uint16_t *half = (const uint16_t *)(const void *)((const char *)record + offset);
    int32_t found = 0;
    for (size_t i = 0; i < n; i++) found += (half[i] & 0x7fff) == 0x7bff;
    return found;
}

int32_t kvfi_part_saturated(const kvf_part *part, const void *record)
{
    int32_t found = 0;
    if (part->kind != KVF_KIND_SUM) return count_largest(record, part->scale_offset, scales_of(part));
    for (int32_t i = 0; i < part->n_matrices; i++) found += count_largest(record, part->matrix[i].scale_offset, KVF_BLOCK);
    return found;
}

static int draws(const kvf_rotation *rot)
{
    return rot->kind != KVF_ROT_NONE && rot->kind != KVF_ROT_H;
}

int kvfi_part_draws(const kvf_part *part)
{
    int found = draws(&part->rot);
    for (int32_t i = 0; i < part->n_matrices; i++)
        found = found || part->matrix[i].map == KVF_MAP_SKETCH || draws(&part->matrix[i].rot);
    return found;
}

int kvfi_spec_no_bits(const kvf_spec *spec, char *error, size_t error_size)
{
    if (!spec->number[0]) return KVF_OK;
    kvfi_sentence(error, error_size, "codec '%s%s' does not exist: '%s' takes no number behind its name", spec->name,
                  spec->number, spec->name);
    return KVF_E_SPEC;
}

int kvfi_spec_rotation(const kvf_spec *spec, const char *fallback, int32_t dim, kvf_rotation *rot, char *error, size_t error_size)
{
    const char *name = kvfi_spec_get(spec, "rot", fallback);
    int32_t seed;
    int rc = kvfi_spec_int(spec, "seed", 0, "a whole number from 0 to 999999", &seed, error, error_size);
    if (rc) return rc;
    if (!kvfi_rotation_init(rot, name, (uint32_t)seed, dim))
        return kvfi_spec_refuse(spec, "rot", "none, h, h1, h2 or haar", error, error_size);
    if (rot->kind != KVF_ROT_H || rot->block > 1) return KVF_OK;
    kvfi_sentence(error, error_size, "codec '%s': rot=h needs an even head size, not %d; h1 has zeros added", spec->name,
                  (int)dim);
    return KVF_E_UNSUPPORTED;
}
