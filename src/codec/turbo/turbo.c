/* SPDX-License-Identifier: MIT
 * turbo: TurboQuant mse (Zandieh et al., arXiv 2504.19874, section 3.1): rotate, then the Lloyd-Max codebook of one coordinate of
 * a random unit vector, one f16 scale a token and head. The rotation is a Hadamard transform; the codebook is rounded to
 * integers times one unit (int8 up to 5 bits: mean-square error at 4 bits 0.00957 instead of 0.00954), by definition. */
#include "codec/shared/stages.h"

#include "base/text.h"
#include "codec/shared/codebook.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The integer table in ascending order of value: code = rank. */
static void make_table(kvf_part *part)
{
    double levels[128];
    const int32_t half = 1 << (part->bits - 1), top = part->bits <= 5 ? 127 : 16383;
    kvfi_lloyd_max(part->bits, part->dim < 2 ? 2 : part->dim, levels);
    part->unit = (float)(levels[half - 1] / top);
    for (int32_t i = 0; i < half; i++) {
        int16_t entry = (int16_t)floor(levels[i] / levels[half - 1] * top + 0.5);
        part->table[half + i] = entry;
        part->table[half - 1 - i] = (int16_t)-entry;
    }
}

static int setup(const kvf_spec *spec, kvf_side side, int32_t dim, kvf_part *part, char *error, size_t size)
{
    static const char *const options[] = {KVFI_STAGE_OPTIONS, "norm", NULL};
    (void)side; /* part->side */
    if (spec->bits < 1 || spec->bits > 8) {
        kvfi_sentence(error, size, "codec 'turbo' has 1 to 8 bits: turbo1 turbo2 turbo3 turbo4 turbo5 turbo6 turbo7 turbo8");
        return KVF_E_SPEC;
    }
    int rc = kvfi_spec_only(spec, options, error, size);
    if (!rc) rc = kvfi_spec_stages(spec, "h1", "prompt", dim, part, error, size);
    if (!rc) rc = kvfi_spec_norm(spec, part, error, size);
    if (rc) return rc;
    part->kind = KVF_KIND_TABLE;
    part->bits = spec->bits;
    part->t_group = 1;
    kvfi_part_layout(part, dim);
    make_table(part);
    snprintf(part->canonical, sizeof part->canonical, "turbo%d:norm=n%d,", (int)part->bits, (int)part->norm);
    kvfi_stages_canonical(part);
    return KVF_OK;
}

/* The number of midpoints strictly below x: ties go down. */
static int nearest(const kvf_part *part, float x)
{
    int low = 0, high = (1 << part->bits) - 1;
    while (low < high) {
        int mid = (low + high) / 2;
        float boundary = (float)(part->table[mid] + part->table[mid + 1]) * 0.5f;
        if (x > boundary) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* Coordinates are measured in table units of a vector whose root mean square is 1. */
static float encode_token(const kvf_part *part, const float *x, uint8_t *codes, float *decoded)
{
    const float rms = sqrtf(kvfi_dot16(x, x, part->dim) / (float)part->dim), unit = rms * part->unit;
    const float inverse = unit > 0.0f ? 1.0f / unit : 0.0f;
    for (int32_t d = 0; d < part->dim; d++) {
        codes[d] = (uint8_t)nearest(part, x[d] * inverse);
        decoded[d] = (float)part->table[codes[d]] * part->unit;
    }
    return rms;
}

static void encode(const kvf_part *part, float *x, void *record)
{
    kvfi_encode_tokens(part, x, record, encode_token);
}

const kvf_codec kvfi_codec_turbo = {
    .name = "turbo",
    .summary = "1 to 8-bit Lloyd-Max codes after a rotation, one scale a token (TurboQuant mse)",
    .examples = "turbo4 turbo3 turbo2 turbo1 turbo5 turbo6 turbo8 turbo4:norm=n0",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .setup = setup,
    .encode = encode,
};
