/* SPDX-License-Identifier: MIT
 * uni: symmetric uniform integers after a Hadamard transform, one f16 scale per token and head, no table.
 *   value = (code - z) * step;  bits >= 4: z = 2^(bits-1), step by the largest magnitude;
 *   bits <= 3: z = (2^bits - 1) / 2, step optimal for a Gaussian (the peak would spend the few levels on outliers).
 * The step is corrected by the norm rule; keys are centred and channel-scaled from the prompt (codec/shared/stages.h). */
#include "codec/shared/stages.h"

#include "base/text.h"
#include "gpu/kernels/quant.h"

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

static float first_step(const kvf_part *part, const float *x)
{
    if (part->bits >= 4) return fabsf(kvfi_group_peak(x, 1, part->dim)) / (float)((1 << (part->bits - 1)) - 1);
    return sqrtf(kvfi_dot16(x, x, part->dim) / (float)part->dim) * gauss_step[part->bits];
}

/* Codes of one token; decoded[d] = code - z; plain: the step. */
static void encode_token(const kvf_part *part, const float *x, uint8_t *codes, float *decoded, float *plain)
{
    const float step = first_step(part, x), inverse = step > 0 ? 1.0f / step : 0.0f, top = (float)((1 << part->bits) - 1);
    for (int32_t d = 0; d < part->dim; d++) {
        /* z in whole steps: round to the nearest level; z between two levels: the level above the cell's floor */
        float level = part->bits >= 4 ? rintf(x[d] * inverse) + part->zero : floorf(x[d] * inverse) + part->zero + 0.5f;
        level = level < 0.0f ? 0.0f : level > top ? top : level;
        codes[d] = (uint8_t)level;
        decoded[d] = level - part->zero;
    }
    *plain = step;
}

static void encode(const kvf_part *part, float *x, void *record)
{
    kvfi_encode_tokens(part, x, record, 1, encode_token);
}

const kvf_codec kvfi_codec_uni = {
    .name = "uni",
    .summary = "2 to 8-bit symmetric integers after a rotation, one scale a token: the fast default",
    .examples = "uni4 uni2 uni3 uni5 uni6 uni7 uni8 uni4:rot=none uni4:norm=n0 uni4:rot=h uni5:rot=h2,seed=7",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .setup = setup,
    .encode = encode,
};
