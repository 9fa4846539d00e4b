/* SPDX-License-Identifier: MIT
 * KIVI (Liu et al., arXiv 2402.02750): asymmetric uniform codes, keys with a scale and minimum per channel and group of tokens,
 * values with one per token and group of channels. Scale and minimum are rounded to f16 before coding. */
#include "base/text.h"
#include "codec/shared/pack.h"
#include "codec/shared/stages.h"
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

/* A group's step and smallest value, as they are stored; and as they code: of a constant group every code is 0. */
typedef struct range {
    uint16_t scale, min;
} range;

typedef struct grid {
    float step, min, top;
} grid;

static range range_of(const kvf_part *part, float low, float high)
{
    if (low == 0.0f) low = 0.0f; /* a minimum of -0 is stored as +0 */
    return (range){kvfi_kivi_scale_half(low, high, part->bits), kvfi_half_saturated(low)};
}

static grid grid_of(const kvf_part *part, range r)
{
    const float step = kvfi_half_to_float(r.scale), top = (float)((1 << part->bits) - 1);
    return (grid){step > 0 ? step : 1.0f, kvfi_half_to_float(r.min), step > 0 ? top : 0.0f};
}

/* kvfi_kivi_code; the ends are whole numbers, so that they may be held to before rounding. */
static inline uint8_t code_of(float x, float step, float min, float top)
{
    const float y = (x - min) / step, above = y < 0.0f ? 0.0f : y, inside = above > top ? top : above;
    return (uint8_t)(int32_t)kvfi_round_small(inside);
}

/* What codes of a group are off by, squared; x[i * stride], codes[i * stride]. */
static double lost_by(const float *x, size_t stride, int n, range r, const uint8_t *codes)
{
    const double scale = (double)kvfi_half_to_float(r.scale), min = (double)kvfi_half_to_float(r.min);
    double lost = 0;
    for (size_t i = 0; i < (size_t)n * stride; i += stride) {
        const double off = (double)x[i] - ((double)codes[i] * scale + min);
        lost += off * off;
    }
    return lost;
}

/* Tokens that a range was made for lie on its steps: a new one costs them, an old one costs those that come and lie beyond it, and the
 * cheaper is taken. */
static int old_is_better(const float *x, size_t stride, int n, range old, const uint8_t *old_codes, range r, const uint8_t *codes)
{
    return lost_by(x, stride, n, old, old_codes) <= lost_by(x, stride, n, r, codes);
}

static range old_range(const kvf_part *part, int at)
{
    range old;
    memcpy(&old.scale, part->like + part->scale_offset + (size_t)at * sizeof old.scale, sizeof old.scale);
    memcpy(&old.min, part->like + part->min_offset + (size_t)at * sizeof old.min, sizeof old.min);
    return old;
}

static void put_range(const kvf_part *part, void *record, int at, range r)
{
    kvfi_halves(record, part->scale_offset)[at] = r.scale;
    kvfi_halves(record, part->min_offset)[at] = r.min;
}

/* ---- keys: LANES channels side by side ----------------------------------------------------------------------------------------- */

enum { LANES = 16 };

static void find_ranges(const kvf_part *part, const float (*x)[LANES], range *r)
{
    float low[LANES], high[LANES];
    memcpy(low, x, sizeof low), memcpy(high, x, sizeof high);
    for (int t = 1; t < part->t_group; t++)
        for (int j = 0; j < LANES; j++) {
            low[j] = x[t][j] < low[j] ? x[t][j] : low[j];
            high[j] = x[t][j] > high[j] ? x[t][j] : high[j];
        }
    for (int j = 0; j < LANES; j++) r[j] = range_of(part, low[j], high[j]);
}

static void code_lanes(const kvf_part *part, const float (*x)[LANES], const range *r, uint8_t (*codes)[LANES])
{
    float step[LANES], min[LANES], top[LANES];
    for (int j = 0; j < LANES; j++) {
        const grid g = grid_of(part, r[j]);
        step[j] = g.step, min[j] = g.min, top[j] = g.top;
    }
    for (int t = 0; t < part->t_group; t++)
        for (int j = 0; j < LANES; j++) codes[t][j] = code_of(x[t][j], step[j], min[j], top[j]);
}

/* Groups of tokens whose ranges stand at [at], [at + 1], ...; the first n lanes are channels. */
static void encode_lanes(const kvf_part *part, const float (*x)[LANES], int n, void *record, int at, uint8_t (*codes)[LANES])
{
    range r[LANES], old[LANES];
    uint8_t old_codes[KVF_BLOCK][LANES];
    find_ranges(part, x, r);
    code_lanes(part, x, r, codes);
    if (part->like) {
        for (int j = 0; j < LANES; j++) old[j] = j < n ? old_range(part, at + j) : r[j];
        code_lanes(part, x, old, old_codes);
    }
    for (int j = 0; j < n; j++) {
        if (part->like && old_is_better(x[0] + j, LANES, part->t_group, old[j], old_codes[0] + j, r[j], codes[0] + j)) {
            for (int t = 0; t < part->t_group; t++) codes[t][j] = old_codes[t][j];
            r[j] = old[j];
        }
        put_range(part, record, at + j, r[j]);
    }
}

static void encode_keys(const kvf_part *part, const float *x, void *record)
{
    const kvfi_packing packing = kvfi_packing_of(part, record);
    float some[KVF_BLOCK][LANES] = {{0}};
    uint8_t codes[KVF_BLOCK][LANES];
    for (int c = 0; c < part->dim; c += LANES) {
        const int n = part->dim - c < LANES ? part->dim - c : LANES;
        for (int t = 0; t < KVF_BLOCK; t++) {
            if (n < LANES)
                memset(some[t], 0, sizeof some[t]); /* constant lanes: their codes are 0, as those of padding must be */
            memcpy(some[t], x + t * part->dim + c, (size_t)n * sizeof *x);
        }
        for (int g = 0; g < part->n_tg; g++)
            encode_lanes(part, (const float(*)[LANES])(some + g * part->t_group), n, record, g * part->dim_pad + c,
                         codes + g * part->t_group);
        for (int t = 0; t < KVF_BLOCK; t += KVFI_PACKED_TOKENS) kvfi_pack(&packing, t, c, LANES, codes[t], LANES);
    }
}

/* ---- values -------------------------------------------------------------------------------------------------------------------- */

static void code_run(const kvf_part *part, const float *x, int n, range r, uint8_t *codes)
{
    const grid g = grid_of(part, r);
    for (int i = 0; i < n; i++) codes[i] = code_of(x[i], g.step, g.min, g.top);
}

/* One group of channels of a token. */
static void encode_run(const kvf_part *part, const float *x, int n, void *record, int at, uint8_t *codes)
{
    float low, high;
    uint8_t old_codes[128]; /* the largest group */
    kvfi_range(x, n, &low, &high);
    range r = range_of(part, low, high);
    code_run(part, x, n, r, codes);
    if (part->like) {
        const range old = old_range(part, at);
        code_run(part, x, n, old, old_codes);
        if (old_is_better(x, 1, n, old, old_codes, r, codes)) memcpy(codes, old_codes, (size_t)n), r = old;
    }
    put_range(part, record, at, r);
}

/* The last group of a token has its live channels only: padding never widens its range. */
static void encode_values(const kvf_part *part, const float *x, void *record)
{
    const kvfi_packing packing = kvfi_packing_of(part, record);
    const int pad = part->dim_pad;
    uint8_t codes[KVFI_PACKED_TOKENS * KVFI_DIM_MAX];
    memset(codes, 0, (size_t)KVFI_PACKED_TOKENS * (size_t)pad);
    for (int t = 0; t < KVF_BLOCK; t++) {
        uint8_t *row = codes + t % KVFI_PACKED_TOKENS * pad;
        for (int g = 0, left = part->dim; g < part->n_cg; g++, left -= part->c_group)
            encode_run(part, x + t * part->dim + g * part->c_group, left < part->c_group ? left : part->c_group, record,
                       g * KVF_BLOCK + t, row + g * part->c_group);
        if ((t + 1) % KVFI_PACKED_TOKENS == 0) kvfi_pack(&packing, t + 1 - KVFI_PACKED_TOKENS, 0, pad, codes, (size_t)pad);
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
