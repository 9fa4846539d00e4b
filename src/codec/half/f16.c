/* SPDX-License-Identifier: MIT
 * f16: the values themselves. */
#include "codec/shared/part.h"

#include <stdio.h>
#include <string.h>

static int setup(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t size)
{
    static const char *const options[] = {NULL};
    int rc = kvfi_spec_no_bits(spec, error, size);
    if (!rc) rc = kvfi_spec_only(spec, options, error, size);
    if (rc) return rc;
    part->kind = KVF_KIND_HALF;
    part->bits = 16;
    part->t_group = part->c_group = 1;
    kvfi_part_layout(part, dim);
    snprintf(part->canonical, sizeof part->canonical, "f16");
    return KVF_OK;
}

static void encode(const kvf_part *part, float *x, void *record)
{
    kvfi_shape s = kvfi_shape_of(part);
    uint16_t *out = record;
    memset(record, 0, part->bytes);
    for (int t = 0; t < KVF_BLOCK; t++)
        for (int c = 0; c < s.dim; c++) out[kvfi_half_index(&s, t, c)] = kvfi_half_saturated(x[t * s.dim + c]);
}

const kvf_codec kvfi_codec_f16 = {
    .name = "f16",
    .summary = "no codes: the values in half precision",
    .examples = "f16",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .flags = KVF_CODEC_LATENT,
    .setup = setup,
    .encode = encode,
};
