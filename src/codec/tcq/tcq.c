/* SPDX-License-Identifier: MIT
 * tcq: trellis-coded quantisation (Marcellin and Fischer, IEEE Trans. Communications 38, 1990) of the vectors of turbo: rotated,
 * centred, scaled to unit deviation. Each channel still has its own code of 1 to 4 bits, but a code means one of 2^bits levels out of
 * 256, and which ones is told by the codes before it: a bit-shift trellis (Tseng et al., arXiv 2406.11235), decoded by a shift and a
 * table. Coding looks for the best path (viterbi.h), which is what it costs: `kvfold bench ops` has
 * the time beside that of turbo. */
#include "codec/shared/stages.h"

#include "base/text.h"
#include "codec/tcq/viterbi.h"
#include "cpu/scalar/scalar.h"

#include <math.h>
#include <stdio.h>

/* Levels of a normal variable: the best that Lloyd's iteration over paths found. Of state 255 - s: the negative. */
static const struct levels {
    float unit;
    int8_t entry[KVFI_TRELLIS_STATES / 2];
} fitted[] = {
#define KVFI_TRELLIS(bits, unit, ...) [bits] = {unit, {__VA_ARGS__}},
#include "codec/tcq/levels.def"
#undef KVFI_TRELLIS
};

static void make_table(kvf_part *part)
{
    const struct levels *from = &fitted[part->bits];
    part->unit = from->unit;
    for (int s = 0; s < KVFI_TRELLIS_STATES / 2; s++) {
        part->table[s] = from->entry[s];
        part->table[KVFI_TRELLIS_STATES - 1 - s] = (int16_t)-from->entry[s];
    }
}

static int setup(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t size)
{
    static const char *const options[] = {KVFI_ROTATED_OPTIONS, NULL};
    if (spec->bits < 1 || spec->bits > 4) {
        kvfi_sentence(error, size, "codec 'tcq' has 1 to 4 bits: tcq1 tcq2 tcq3 tcq4");
        return KVF_E_SPEC;
    }
    int rc = kvfi_spec_rotated(spec, options, dim, part, error, size);
    if (rc) return rc;
    const int32_t least = (KVFI_TRELLIS_LEAST_BITS + spec->bits - 1) / spec->bits;
    if (dim < least) {
        kvfi_sentence(error, size, "codec 'tcq%d' needs heads of at least %d channels, not %d", (int)spec->bits, (int)least,
                      (int)dim);
        return KVF_E_UNSUPPORTED;
    }
    part->kind = KVF_KIND_TRELLIS;
    part->bits = spec->bits;
    part->t_group = 1;
    kvfi_part_layout(part, dim);
    make_table(part);
    snprintf(part->canonical, sizeof part->canonical, "tcq%d:norm=n%d,", (int)part->bits, (int)part->norm);
    kvfi_stages_canonical(part);
    return KVF_OK;
}

/* y[d][i] = x[i][d] in units of a vector whose root mean square is 1, which goes to plain[i]. */
static void measure(const kvf_part *part, const float *x, float (*y)[KVFI_TRELLIS_LANES], float *plain)
{
    for (int i = 0; i < KVFI_TRELLIS_LANES; i++, x += part->dim) {
        plain[i] = sqrtf(KVFI_EXACT(part, dot16)(x, x, part->dim) / (float)part->dim);
        const float unit = plain[i] * part->unit, inverse = unit > 0.0f ? 1.0f / unit : 0.0f;
        for (int32_t d = 0; d < part->dim; d++) y[d][i] = x[d] * inverse;
    }
}

static void encode_tokens(const kvf_part *part, const float *x, uint8_t *codes, float *decoded, float *plain, const void *with)
{
    (void)with;
    float level[KVFI_TRELLIS_STATES], (*y)[KVFI_TRELLIS_LANES] = (float(*)[KVFI_TRELLIS_LANES])decoded; /* until it is filled */
    uint8_t state[KVFI_DIM_MAX][KVFI_TRELLIS_LANES];
    for (int s = 0; s < KVFI_TRELLIS_STATES; s++) level[s] = (float)part->table[s];
    measure(part, x, y, plain);
    kvfi_trellis_paths(KVFI_EXACT(part, paths), part->bits, level, part->dim, (const float(*)[KVFI_TRELLIS_LANES])y, state);
    for (int i = 0; i < KVFI_TRELLIS_LANES; i++)
        for (int32_t d = 0; d < part->dim; d++) {
            codes[i * part->dim_pad + d] = (uint8_t)(state[d][i] & ((1 << part->bits) - 1));
            decoded[i * part->dim + d] = level[state[d][i]] * part->unit;
        }
}

static void encode(const kvf_part *part, float *x, void *record)
{
    kvfi_encode_tokens(part, x, record, KVFI_TRELLIS_LANES, encode_tokens, NULL);
}

const kvf_codec kvfi_codec_tcq = {
    .name = "tcq",
    .summary = "1 to 4-bit trellis codes after a rotation, one scale a token: the best at 2 and 3 bits, slower to encode",
    .examples = "tcq3 tcq2 tcq1 tcq4 tcq2:norm=n0",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .setup = setup,
    .encode = encode,
};
