/* SPDX-License-Identifier: MIT
 * q8_0 and q4_0: the codes and scales that ggml's reference quantiser makes for groups of 32 channels of a token, in our
 * arrangement. The last group of a head may be short. rot=h transforms the channels first, as llama.cpp does; the other stages of
 * rotated codecs (codec/shared/stages.h) are off unless asked for. */
#include "codec/shared/pack.h"
#include "codec/shared/rotation.h"
#include "codec/shared/stages.h"
#include "gpu/kernels/quant.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { GROUP = 32 };

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

/* kvfi_group_peak of adjacent channels: order matters only where the least is minus the largest. */
static float peak(const float *x, int n)
{
    float low, high;
    kvfi_range(x, n, &low, &high);
    if (fabsf(low) == fabsf(high)) return kvfi_group_peak(x, 1, n);
    return fabsf(low) > fabsf(high) ? low : high;
}

/* kvfi_q8_0_code and kvfi_q4_0_code of a group. */
static void code_8(const float *x, int n, float inverse, uint8_t *codes)
{
    for (int i = 0; i < n; i++) codes[i] = (uint8_t)((int32_t)kvfi_round_away(x[i] * inverse) + 128);
}

static void code_4(const float *x, int n, float inverse, uint8_t *codes)
{
    for (int i = 0; i < n; i++) {
        const int32_t code = (int32_t)(x[i] * inverse + 8.5f);
        codes[i] = (uint8_t)(code > 15 ? 15 : code);
    }
}

/* Codes of token t, and the scales of its groups. */
static void encode_token(const kvf_part *part, const float *x, int t, uint16_t *scales, uint8_t *codes)
{
    for (int g = 0; g < part->n_cg; g++) {
        const int first = g * GROUP, n = part->dim - first < GROUP ? part->dim - first : GROUP;
        const float top = peak(x + first, n), scale = part->bits == 8 ? kvfi_q8_0_scale(top) : kvfi_q4_0_scale(top);
        (part->bits == 8 ? code_8 : code_4)(x + first, n, kvfi_inverse_scale(scale), codes + first);
        scales[g * KVF_BLOCK + t] = kvfi_half_saturated(scale);
    }
}

static void encode(const kvf_part *part, float *x, void *record)
{
    const kvfi_packing packing = kvfi_packing_of(part, record);
    const int dim = part->dim, pad = part->dim_pad;
    uint8_t codes[KVFI_PACKED_TOKENS * KVFI_DIM_MAX];
    memset(record, 0, part->bytes);
    memset(codes, 0, (size_t)KVFI_PACKED_TOKENS * (size_t)pad); /* so is the padding */
    kvfi_rotate_block(part, x);
    if (part->block_mean) kvfi_take_mean(part, x, record);
    for (int t = 0; t < KVF_BLOCK; t += KVFI_PACKED_TOKENS) {
        for (int i = 0; i < KVFI_PACKED_TOKENS; i++)
            encode_token(part, x + (t + i) * dim, t + i, kvfi_halves(record, part->scale_offset), codes + i * pad);
        kvfi_pack(&packing, t, 0, pad, codes, (size_t)pad);
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
