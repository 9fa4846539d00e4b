/* SPDX-License-Identifier: MIT
 * turbo: TurboQuant mse (Zandieh et al., arXiv 2504.19874, section 3.1): rotate, then the Lloyd-Max codebook of one coordinate of
 * a random unit vector, one f16 scale a token and head. The rotation is a Hadamard transform; the codebook is rounded to
 * integers times one unit (int8 up to 5 bits: mean-square error at 4 bits 0.00957 instead of 0.00954), by definition. */
#include "codec/shared/stages.h"

#include "base/text.h"
#include "codec/shared/codebook.h"
#include "codec/shared/sum.h"
#include "codec/shared/table.h"

enum { SPLIT_BITS = 6 }; /* with these and one more, both tables have room */

/* The integer table in ascending order of value: code = rank. */
static void make_table(kvf_part *part)
{
    double levels[128];
    kvfi_lloyd_max(part->bits, part->dim < 2 ? 2 : part->dim, levels);
    part->unit = kvfi_table_fill(part->table, part->bits, levels);
}

/* Two tables: the regular channels, and those of largest energy with one bit more; each a vector of its own, with its own
 * transform, its own scale, and the codebook of its own size. */
static int setup_split(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t size)
{
    const int32_t sizes[2] = {dim - part->n_out, part->n_out};
    if (spec->bits > SPLIT_BITS) {
        kvfi_sentence(error, size, "codec 'turbo%d' has no outliers=N: turbo1 to turbo%d have", (int)spec->bits, SPLIT_BITS);
        return KVF_E_SPEC;
    }
    for (int32_t i = 0; i < 2; i++) {
        kvfi_sum_add_table(part, KVF_MAP_CHANNELS, i ? KVF_SELECT_OUTLIERS : KVF_SELECT_REGULAR, sizes[i], spec->bits + i);
        if (part->rot) part->matrix[i].rot = sizes[i] & -sizes[i];
    }
    kvfi_stages_canonical(part, "turbo");
    kvfi_canonical_add(part, ",outliers=%d", (int)part->n_out);
    part->rot = 0; /* the parts are turned apart */
    kvfi_sum_layout(part, dim);
    return KVF_OK;
}

static int setup(const kvf_spec *spec, kvf_side side, int32_t dim, kvf_part *part, char *error, size_t size)
{
    static const char *const options[] = {"rot", "norm", "centre", "scale", "outliers", NULL};
    if (spec->bits < 1 || spec->bits > 8) {
        kvfi_sentence(error, size, "codec 'turbo' has 1 to 8 bits: turbo1 turbo2 turbo3 turbo4 turbo5 turbo6 turbo7 turbo8");
        return KVF_E_SPEC;
    }
    int rc = kvfi_spec_only(spec, options, error, size);
    if (!rc) rc = kvfi_spec_stages(spec, side, dim, part, error, size);
    if (!rc) rc = kvfi_spec_outliers(spec, dim, &part->n_out, error, size);
    if (rc) return rc;
    part->bits = spec->bits;
    if (part->n_out) return setup_split(spec, dim, part, error, size);
    part->kind = KVF_KIND_TABLE;
    part->t_group = 1, part->c_group = dim;
    kvfi_part_layout(part, dim);
    make_table(part);
    kvfi_stages_canonical(part, "turbo");
    return KVF_OK;
}

static float encode_token(const kvf_part *part, const float *x, uint8_t *codes, float *decoded)
{
    return kvfi_table_code(&(kvfi_table){part->table, part->bits, part->unit}, x, part->dim, codes, decoded);
}

static void encode(const kvf_part *part, float *x, void *record)
{
    if (part->kind == KVF_KIND_SUM)
        kvfi_sum_encode(part, x, record);
    else
        kvfi_encode_tokens(part, x, record, encode_token);
}

const kvf_codec kvfi_codec_turbo = {
    .name = "turbo",
    .summary = "1 to 8-bit Lloyd-Max codes after a rotation, one scale a token (TurboQuant mse)",
    .examples = "turbo4 turbo3 turbo2 turbo1 turbo5 turbo6 turbo8 turbo4:norm=n0 turbo2:outliers=32 turbo3:outliers=8",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .setup = setup,
    .encode = encode,
};
