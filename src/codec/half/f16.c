/* SPDX-License-Identifier: MIT
 * f16: the values themselves. */
#include "codec/shared/part.h"
#include "cpu/scalar/scalar.h"

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

enum { SOME = 16 }; /* tokens that are turned to channels together: half a line of each */

static void encode(const kvf_part *part, float *x, void *record)
{
    const int dim = part->dim, pad = part->dim_pad;
    uint16_t *out = record, some[SOME * KVFI_DIM_MAX];
    memset(record, 0, part->bytes);
    for (int t = 0; t < KVF_BLOCK; t += SOME) {
        for (int i = 0; i < SOME; i++)
            KVFI_EXACT(part, narrow)(x + (t + i) * dim, dim, part->side == KVF_K ? some + i * dim : out + (t + i) * pad);
        for (int c = 0; part->side == KVF_K && c < dim; c++)
            for (int i = 0; i < SOME; i++) out[c * KVF_BLOCK + t + i] = some[i * dim + c];
    }
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
