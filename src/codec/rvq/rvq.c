/* SPDX-License-Identifier: MIT
 * rvq: residual quantisation in two scalar stages: the Lloyd-Max codebook of turbo, then a second one for what is left of each
 * coordinate. A code is the first stage's in its low bits and the second's above; with 3 bits (2 + 1) those are the two planes of
 * the record, so that the finer plane can be left unread. Decoding needs no second lookup: the table holds the sums.
 *
 * tuned=fit: the second codebook is the optimum for the residual as it is. tuned=paper: as an earlier implementation had it, for a
 * Laplace density of deviation (sqrt(3 pi) / 2) 4^-bits, which is a bound of the residual's variance; kept to compare with. */
#include "codec/shared/stages.h"

#include "base/text.h"
#include "codec/shared/codebook.h"
#include "codec/shared/table.h"
#include "cpu/scalar/scalar.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STAGE_BITS = 4 };

static int parse_stages(const kvf_spec *spec, int32_t *first, char *error, size_t size)
{
    const char *stages = kvfi_spec_get(spec, "stages", NULL);
    if (spec->bits < 2 || spec->bits > 2 * STAGE_BITS) {
        kvfi_sentence(error, size, "codec 'rvq' has 2 to 8 bits in two stages: rvq2 rvq3 rvq4 rvq5 rvq6 rvq7 rvq8");
        return KVF_E_SPEC;
    }
    *first = (spec->bits + 1) / 2;
    if (!stages) return KVF_OK;
    *first = stages[0] - '0';
    if (strlen(stages) == 3 && stages[1] == '+' && *first >= 1 && *first <= STAGE_BITS && stages[2] >= '1' &&
        stages[2] <= '0' + STAGE_BITS && *first + stages[2] - '0' == spec->bits)
        return KVF_OK;
    kvfi_sentence(error, size, "codec 'rvq%d': stages is '%s', but must be two numbers of 1 to %d bits that sum to %d, as %d+%d",
                  (int)spec->bits, stages, STAGE_BITS, (int)spec->bits, (int)(spec->bits + 1) / 2, (int)spec->bits / 2);
    return KVF_E_SPEC;
}

static int parse_tuned(const kvf_spec *spec, int *earlier, char *error, size_t size)
{
    const char *tuned = kvfi_spec_get(spec, "tuned", "fit");
    *earlier = !strcmp(tuned, "paper");
    if (*earlier || !strcmp(tuned, "fit")) return KVF_OK;
    kvfi_sentence(error, size, "codec 'rvq': tuned is '%s', but may be 'fit' or 'paper'", tuned);
    return KVF_E_SPEC;
}

static void second_levels(int32_t bits, int32_t dim, const double *levels, int32_t second_bits, int earlier, double *second)
{
    if (!earlier) {
        kvfi_lloyd_max_residual(bits, dim, levels, second_bits, second);
        return;
    }
    const double deviation = 1.5349900619197327 / (double)(1 << 2 * bits); /* sqrt(3 pi) / 2 */
    kvfi_laplace_max(second_bits, 8, second);
    for (int32_t i = 0; i < 1 << (second_bits - 1); i++)
        second[i] *= deviation * 0.70710678118654752; /* parameter of the density */
}

/* Entry of half a symmetric stage, in units. */
static int16_t entry_of(const double *levels, int32_t bits, int32_t code, double unit)
{
    const int32_t half = 1 << (bits - 1);
    const double level = code < half ? -levels[half - 1 - code] : levels[code - half];
    return (int16_t)floor(level / unit + 0.5);
}

static void make_table(kvf_part *part, int32_t first, int earlier)
{
    double levels[8], second[8];
    const int32_t rest = part->bits - first, dim = part->dim < 2 ? 2 : part->dim;
    kvfi_lloyd_max(first, dim, levels);
    second_levels(first, dim, levels, rest, earlier, second);
    const double unit = (levels[(1 << first) / 2 - 1] + second[(1 << rest) / 2 - 1]) / (kvfi_table_top(part->bits) - 0.5);
    part->unit = (float)unit;
    part->stage = first;
    for (int32_t code = 0; code < 1 << part->bits; code++)
        part->table[code] =
            (int16_t)(entry_of(levels, first, code & ((1 << first) - 1), unit) + entry_of(second, rest, code >> first, unit));
}

static int setup(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t size)
{
    static const char *const options[] = {KVFI_ROTATED_OPTIONS, "stages", "tuned", NULL};
    int32_t first;
    int earlier;
    int rc = parse_stages(spec, &first, error, size);
    if (!rc) rc = kvfi_spec_rotated(spec, options, dim, part, error, size);
    if (!rc) rc = parse_tuned(spec, &earlier, error, size);
    if (rc) return rc;
    part->kind = KVF_KIND_TABLE;
    part->bits = spec->bits;
    part->t_group = 1;
    kvfi_part_layout(part, dim);
    make_table(part, first, earlier);
    snprintf(part->canonical, sizeof part->canonical, "rvq%d:norm=n%d,stages=%d+%d,tuned=%s,", (int)part->bits, (int)part->norm,
             (int)first, (int)(part->bits - first), earlier ? "paper" : "fit");
    kvfi_stages_canonical(part);
    return KVF_OK;
}

/* The two stages, in units, and what they add up to. */
typedef struct stages {
    kvfi_ranks first, second;
    float level[256];
} stages;

/* Taken apart again: the sum over both signs of the second is twice the first. */
static void split(const kvf_part *part, stages *s)
{
    const int32_t bits = part->stage, rest = part->bits - part->stage, last = (1 << rest) - 1;
    int16_t first[1 << STAGE_BITS], second[1 << STAGE_BITS];
    for (int32_t i = 0; i < 1 << bits; i++) first[i] = (int16_t)((part->table[i] + part->table[i | last << bits]) / 2);
    for (int32_t i = 0; i <= last; i++) second[i] = (int16_t)(part->table[i << bits] - first[0]);
    kvfi_table_ranks(first, bits, 1, &s->first);
    kvfi_table_ranks(second, rest, 1, &s->second);
    for (int32_t i = 0; i < 1 << part->bits; i++) s->level[i] = (float)part->table[i] * part->unit;
}

static void encode_token(const kvf_part *part, const float *x, uint8_t *codes, float *decoded, float *plain, const void *with)
{
    const stages *s = with;
    uint8_t second[KVFI_DIM_MAX];
    float left[KVFI_DIM_MAX];
    const float rms = sqrtf(KVFI_EXACT(part, dot16)(x, x, part->dim) / (float)part->dim), unit = rms * part->unit;
    const float inverse = unit > 0.0f ? 1.0f / unit : 0.0f;
    KVFI_EXACT(part, rank)(&s->first, x, inverse, part->dim, codes, decoded);
    for (int32_t d = 0; d < part->dim; d++) left[d] = x[d] * inverse - decoded[d];
    KVFI_EXACT(part, rank)(&s->second, left, 1, part->dim, second, decoded);
    for (int32_t d = 0; d < part->dim; d++) {
        codes[d] = (uint8_t)(codes[d] | second[d] << part->stage);
        decoded[d] = s->level[codes[d]];
    }
    *plain = rms;
}

static void encode(const kvf_part *part, float *x, void *record)
{
    stages s;
    split(part, &s);
    kvfi_encode_tokens(part, x, record, 1, encode_token, &s);
}

const kvf_codec kvfi_codec_rvq = {
    .name = "rvq",
    .summary = "2 to 8 bits in two Lloyd-Max stages, the second for what the first leaves",
    .examples = "rvq2 rvq3 rvq4 rvq3:stages=1+2 rvq2:tuned=paper rvq4:tuned=paper rvq6",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .setup = setup,
    .encode = encode,
};
