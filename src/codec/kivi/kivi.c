/* SPDX-License-Identifier: MIT
 * KIVI (Liu et al., arXiv 2402.02750): asymmetric uniform codes, keys with a scale and minimum per channel and group of tokens,
 * values with one per token and group of channels. Scale and minimum are rounded to f16 before coding. */
#include "base/text.h"
#include "codec/shared/part.h"
#include "gpu/kernels/quant.h"

#include <stdio.h>
#include <string.h>

static int check_bits(const kvf_spec *spec, char *error, size_t size)
{
    int32_t b = spec->bits;
    if (b == 1 || b == 2 || b == 3 || b == 4 || b == 8) return KVF_OK;
    if (b < 0)
        kvfi_sentence(error, size, "codec 'kivi' needs its number of bits: kivi1 kivi2 kivi3 kivi4 kivi8");
    else
        kvfi_sentence(error, size, "codec 'kivi%d' does not exist: kivi has 1, 2, 3, 4 or 8 bits", (int)b);
    return KVF_E_SPEC;
}

static int parse_group(const kvf_spec *spec, kvf_side side, int32_t *group, char *error, size_t size)
{
    const char *range = side == KVF_K ? "16, 32 or 64 tokens for keys" : "16, 32, 64 or 128 channels for values";
    int rc = kvfi_spec_int(spec, "group", 32, range, group, error, size);
    if (rc || *group == 16 || *group == 32 || *group == 64 || (*group == 128 && side == KVF_V)) return rc;
    return kvfi_spec_refuse(spec, "group", range, error, size);
}

static int setup(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t size)
{
    static const char *const options[] = {"group", NULL};
    const kvf_side side = part->side;
    int32_t group;
    int rc = check_bits(spec, error, size);
    if (!rc) rc = kvfi_spec_only(spec, options, error, size);
    if (!rc) rc = parse_group(spec, side, &group, error, size);
    if (rc) return rc;
    part->kind = side == KVF_K ? KVF_KIND_CHANNEL : KVF_KIND_TOKEN;
    part->bits = spec->bits;
    part->t_group = side == KVF_K ? group : 1;
    part->c_group = side == KVF_K ? 1 : group;
    part->has_min = 1;
    kvfi_part_layout(part, dim);
    snprintf(part->canonical, sizeof part->canonical, "kivi%d:group=%d", (int)part->bits, (int)group);
    return KVF_OK;
}

/* A group's step and smallest value, as they are stored. */
typedef struct range {
    uint16_t scale, min;
} range;

/* Codes x[i * stride]. */
static void code_group(const kvf_part *part, const float *x, size_t stride, int n, range r, uint8_t *codes)
{
    const float scale = kvfi_half_to_float(r.scale), min = kvfi_half_to_float(r.min);
    for (int i = 0; i < n; i++) codes[i] = (uint8_t)kvfi_kivi_code(x[(size_t)i * stride], scale, min, part->bits);
}

/* What those codes are off by, squared. */
static double lost_by(const float *x, size_t stride, int n, range r, const uint8_t *codes)
{
    const double scale = (double)kvfi_half_to_float(r.scale), min = (double)kvfi_half_to_float(r.min);
    double lost = 0;
    for (int i = 0; i < n; i++) {
        const double off = (double)x[(size_t)i * stride] - ((double)codes[i] * scale + min);
        lost += off * off;
    }
    return lost;
}

/* Codes one group and stores its range at [at]. Tokens that a range was made for lie on its steps: a new one costs them, an old one costs
 * those that come and lie beyond it, and the cheaper is taken. */
static void encode_group(const kvf_part *part, const float *x, size_t stride, int n, void *record, int at, uint8_t *codes)
{
    float low, high;
    uint8_t old_codes[KVF_BLOCK];
    kvfi_group_range(x, stride, n, &low, &high);
    range r = {kvfi_kivi_scale_half(low, high, part->bits), kvfi_half_saturated(low)};
    code_group(part, x, stride, n, r, codes);
    if (part->like) {
        range old;
        memcpy(&old.scale, part->like + part->scale_offset + (size_t)at * sizeof old.scale, sizeof old.scale);
        memcpy(&old.min, part->like + part->min_offset + (size_t)at * sizeof old.min, sizeof old.min);
        code_group(part, x, stride, n, old, old_codes);
        if (lost_by(x, stride, n, old, old_codes) <= lost_by(x, stride, n, r, codes))
            memcpy(codes, old_codes, (size_t)n), r = old;
    }
    kvfi_halves(record, part->scale_offset)[at] = r.scale;
    kvfi_halves(record, part->min_offset)[at] = r.min;
}

static void encode_keys(const kvf_part *part, const float *x, void *record)
{
    uint8_t row[KVF_BLOCK];
    for (int c = 0; c < part->dim; c++) {
        for (int g = 0; g < part->n_tg; g++) {
            int first = g * part->t_group;
            encode_group(part, x + (size_t)first * (size_t)part->dim + c, (size_t)part->dim, part->t_group, record,
                         g * part->dim_pad + c, row + first);
        }
        kvfi_codes_put_row(record, part->bits, part->dim_pad, KVF_BLOCK, c, row);
    }
}

/* The last group of a token has its live channels only: padding never widens its range. */
static void encode_values(const kvf_part *part, const float *x, void *record)
{
    uint8_t row[KVFI_DIM_MAX] = {0};
    for (int t = 0; t < KVF_BLOCK; t++) {
        for (int g = 0; g < part->n_cg; g++) {
            int first = g * part->c_group, left = part->dim - first;
            encode_group(part, x + (size_t)t * (size_t)part->dim + first, 1, left < part->c_group ? left : part->c_group, record,
                         g * KVF_BLOCK + t, row + first);
        }
        kvfi_codes_put_row(record, part->bits, KVF_BLOCK, part->dim_pad, t, row);
    }
}

static void encode(const kvf_part *part, float *x, void *record)
{
    memset(record, 0, part->bytes);
    if (part->side == KVF_K)
        encode_keys(part, x, record);
    else
        encode_values(part, x, record);
}

const kvf_codec kvfi_codec_kivi = {
    .name = "kivi",
    .summary = "1, 2, 3, 4 or 8-bit codes with scale and minimum: keys per channel, values per token",
    .examples = "kivi4 kivi3 kivi2 kivi1 kivi8 kivi4:group=16 kivi2:group=64",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .setup = setup,
    .encode = encode,
};
