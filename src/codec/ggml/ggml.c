/* SPDX-License-Identifier: MIT
 * q8_0 and q4_0: the codes and scales that ggml's reference quantiser makes for groups of 32 channels of a token, in our
 * arrangement. The last group of a head may be short. rot=h transforms the channels first, as llama.cpp does; the other stages of
 * rotated codecs (codec/shared/stages.h) are off unless asked for. */
#include "codec/shared/rotation.h"
#include "codec/shared/stages.h"
#include "gpu/kernels/quant.h"

#include <stdio.h>
#include <string.h>

enum { GROUP = 32, GROUPS_MAX = KVFI_DIM_MAX / GROUP };

static int setup_bits(const kvf_spec *spec, int32_t dim, int32_t bits, kvf_part *part, char *error, size_t size)
{
    static const char *const options[] = {KVFI_STAGE_OPTIONS, NULL};
    int rc = kvfi_spec_no_bits(spec, error, size);
    if (!rc) rc = kvfi_spec_only(spec, options, error, size);
    if (!rc) rc = kvfi_spec_stages(spec, "none", "none", dim, part, error, size);
    if (rc) return rc;
    part->kind = KVF_KIND_TOKEN;
    part->bits = bits;
    part->t_group = 1;
    part->c_group = GROUP;
    part->zero = (float)(1 << (bits - 1));
    kvfi_part_layout(part, dim);
    snprintf(part->canonical, sizeof part->canonical, "%s:", spec->name);
    kvfi_stages_canonical(part);
    return KVF_OK;
}

static int setup_q8_0(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t size)
{
    return setup_bits(spec, dim, 8, part, error, size);
}

static int setup_q4_0(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t size)
{
    return setup_bits(spec, dim, 4, part, error, size);
}

static int code(int bits, float x, float inverse)
{
    return bits == 8 ? kvfi_q8_0_code(x, inverse) : kvfi_q4_0_code(x, inverse);
}

/* Scales of all groups of all tokens; inverse[group][token] is what codes are made with. */
static void make_scales(const kvf_part *part, const float *x, uint16_t *scales, float inverse[][KVF_BLOCK])
{
    for (int g = 0; g < part->n_cg; g++)
        for (int t = 0; t < KVF_BLOCK; t++) {
            int first = g * GROUP, n = part->dim - first < GROUP ? part->dim - first : GROUP;
            float peak = kvfi_group_peak(x + t * part->dim + first, 1, n);
            float scale = part->bits == 8 ? kvfi_q8_0_scale(peak) : kvfi_q4_0_scale(peak);
            scales[g * KVF_BLOCK + t] = kvfi_half_saturated(scale);
            inverse[g][t] = kvfi_inverse_scale(scale);
        }
}

static void encode(const kvf_part *part, float *x, void *record)
{
    float inverse[GROUPS_MAX][KVF_BLOCK];
    uint8_t row[KVFI_DIM_MAX] = {0};
    int dim = part->dim, bits = part->bits;
    memset(record, 0, part->bytes);
    kvfi_rotate_block(part, x);
    if (part->block_mean) kvfi_take_mean(part, x, record);
    make_scales(part, x, kvfi_halves(record, part->scale_offset), inverse);
    if (part->side == KVF_K) {
        for (int c = 0; c < dim; c++) {
            for (int t = 0; t < KVF_BLOCK; t++) row[t] = (uint8_t)code(bits, x[t * dim + c], inverse[c / GROUP][t]);
            kvfi_codes_put_row(record, bits, part->dim_pad, KVF_BLOCK, c, row);
        }
    } else {
        for (int t = 0; t < KVF_BLOCK; t++) {
            for (int c = 0; c < dim; c++) row[c] = (uint8_t)code(bits, x[t * dim + c], inverse[c / GROUP][t]);
            kvfi_codes_put_row(record, bits, KVF_BLOCK, part->dim_pad, t, row);
        }
    }
}

const kvf_codec kvfi_codec_q8_0 = {
    .name = "q8_0",
    .summary = "8-bit codes, one scale for 32 channels of a token (ggml's rule)",
    .examples = "q8_0 q8_0:rot=h",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .flags = KVF_CODEC_LATENT,
    .setup = setup_q8_0,
    .encode = encode,
};

const kvf_codec kvfi_codec_q4_0 = {
    .name = "q4_0",
    .summary = "4-bit codes, one scale for 32 channels of a token (ggml's rule)",
    .examples = "q4_0 q4_0:rot=h",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .setup = setup_q4_0,
    .encode = encode,
};
