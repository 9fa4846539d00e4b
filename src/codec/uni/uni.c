/* SPDX-License-Identifier: MIT
 * uni: symmetric uniform integers after a Hadamard transform, one f16 scale per token and head, no table.
 *   value = (code - z) * step;  bits >= 4: z = 2^(bits-1), step by the largest magnitude;
 *   bits <= 3: z = (2^bits - 1) / 2, step optimal for a Gaussian (the peak would spend the few levels on outliers).
 * The step is corrected by the norm rule; keys are centred and channel-scaled from the prompt (codec/shared/stages.h). */
#include "codec/shared/stages.h"

#include "base/text.h"
#include "cpu/scalar/scalar.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Step of the mean-square optimal uniform quantiser of N(0, 1) with 2^bits levels (Max, 1960, table II). */
static const float gauss_step[4] = {0.0f, 1.596f, 0.9957f, 0.5860f};

static int setup(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t size)
{
    static const char *const options[] = {KVFI_ROTATED_OPTIONS, NULL};
    if (spec->bits < 2 || spec->bits > 8) {
        kvfi_sentence(error, size, "codec 'uni' has 2 to 8 bits: uni2 uni3 uni4 uni5 uni6 uni7 uni8");
        return KVF_E_SPEC;
    }
    int rc = kvfi_spec_rotated(spec, options, dim, part, error, size);
    if (rc) return rc;
    part->kind = KVF_KIND_TOKEN;
    part->bits = spec->bits;
    part->t_group = 1;
    part->zero = spec->bits >= 4 ? (float)(1 << (spec->bits - 1)) : (float)((1 << spec->bits) - 1) / 2;
    kvfi_part_layout(part, dim);
    snprintf(part->canonical, sizeof part->canonical, "uni%d:norm=n%d,", (int)part->bits, (int)part->norm);
    kvfi_stages_canonical(part);
    return KVF_OK;
}

static float peak(const float *x, int32_t n)
{
    float low, high;
    kvfi_range(x, n, &low, &high);
    return fabsf(low) > fabsf(high) ? fabsf(low) : fabsf(high);
}

static float first_step(const kvf_part *part, const float *x)
{
    if (part->bits >= 4) return peak(x, part->dim) / (float)((1 << (part->bits - 1)) - 1);
    return sqrtf(KVFI_EXACT(part, dot16)(x, x, part->dim) / (float)part->dim) * gauss_step[part->bits];
}

/* Levels of x * inverse, of which the lowest is 0. z in whole steps: the nearest one; z between two levels: that above the cell's floor.
 * The ends are whole numbers, so that they may be held to before rounding. */
static inline void find_levels(int whole, float inverse, float shift, float top, const float *x, int32_t n, float *level)
{
    for (int32_t d = 0; d < n; d++) {
        const float y = x[d] * inverse, above = y < -shift ? -shift : y, inside = above > top - shift ? top - shift : above;
        const float near = kvfi_round_small(inside);
        level[d] = (whole ? near : (float)((int32_t)near - (near > inside))) + shift;
    }
}

/* Codes of one token; decoded[d] = code - z; plain: the step. */
static void encode_token(const kvf_part *part, const float *x, uint8_t *codes, float *decoded, float *plain, const void *with)
{
    const float step = first_step(part, x), inverse = step > 0 ? 1.0f / step : 0.0f, zero = part->zero;
    const float top = (float)((1 << part->bits) - 1);
    const int32_t dim = part->dim;
    if (part->bits >= 4)
        find_levels(1, inverse, zero, top, x, dim, decoded);
    else
        find_levels(0, inverse, zero + 0.5f, top, x, dim, decoded);
    for (int32_t d = 0; d < dim; d++) codes[d] = (uint8_t)(int32_t)decoded[d];
    for (int32_t d = 0; d < dim; d++) decoded[d] -= zero;
    *plain = step;
    (void)with;
}

static void encode(const kvf_part *part, float *x, void *record)
{
    kvfi_encode_tokens(part, x, record, 1, encode_token, NULL);
}

const kvf_codec kvfi_codec_uni = {
    .name = "uni",
    .summary = "2 to 8-bit symmetric integers after a rotation, one scale a token: the fast default",
    .examples = "uni4 uni2 uni3 uni5 uni6 uni7 uni8 uni4:rot=none uni4:norm=n0 uni4:rot=h uni5:rot=h2,seed=7",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .setup = setup,
    .encode = encode,
};
