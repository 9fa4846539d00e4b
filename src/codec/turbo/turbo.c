/* SPDX-License-Identifier: MIT
 * turbo: TurboQuant mse (Zandieh et al., arXiv 2504.19874, section 3.1): rotate, then the Lloyd-Max codebook of one coordinate of
 * a random unit vector, one f16 scale a token and head. The rotation is a Hadamard transform; the codebook is rounded to
 * integers times one unit (int8 up to 5 bits: mean-square error at 4 bits 0.00957 instead of 0.00954), by definition. */
#include "codec/shared/stages.h"

#include "base/text.h"
#include "codec/shared/codebook.h"
#include "codec/shared/sum.h"
#include "codec/shared/table.h"

#include <stdio.h>

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
    const int32_t channels[2] = {dim - part->n_out, part->n_out};
    if (spec->bits > SPLIT_BITS || part->rot.kind == KVF_ROT_HAAR) {
        kvfi_sentence(error, size, "codec 'turbo%d' has no outliers=N here: turbo1 to turbo%d have, with rot=none, h, h1 or h2",
                      (int)spec->bits, SPLIT_BITS);
        return KVF_E_SPEC;
    }
    if (part->rot.kind == KVF_ROT_H && (channels[0] % 2 || channels[1] % 2)) {
        kvfi_sentence(
            error, size,
            "codec 'turbo%d': rot=h needs parts of even size, and %d outliers of %d channels leave %d; h1 has zeros added",
            (int)spec->bits, (int)part->n_out, (int)dim, (int)channels[0]);
        return KVF_E_UNSUPPORTED;
    }
    for (int32_t i = 0; i < 2; i++) {
        kvf_rotation rot;
        int rc = kvfi_spec_rotation(spec, "h1", channels[i], &rot, error, size);
        if (rc) return rc;
        kvfi_sum_add_table(part, KVF_MAP_CHANNELS, i ? KVF_SELECT_OUTLIERS : KVF_SELECT_REGULAR, rot.size, spec->bits + i);
        part->matrix[i].rot = rot;
    }
    snprintf(part->canonical, sizeof part->canonical, "turbo%d:norm=n%d,outliers=%d,", (int)part->bits, (int)part->norm,
             (int)part->n_out);
    kvfi_stages_canonical(part);
    part->rot.kind = KVF_ROT_NONE; /* the parts are turned apart */
    part->kind = KVF_KIND_SUM;
    kvfi_part_layout(part, dim);
    return KVF_OK;
}

static int setup(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t size)
{
    static const char *const options[] = {KVFI_ROTATED_OPTIONS, "outliers", NULL};
    if (spec->bits < 1 || spec->bits > 8) {
        kvfi_sentence(error, size, "codec 'turbo' has 1 to 8 bits: turbo1 turbo2 turbo3 turbo4 turbo5 turbo6 turbo7 turbo8");
        return KVF_E_SPEC;
    }
    int rc = kvfi_spec_rotated(spec, options, dim, part, error, size);
    if (!rc) rc = kvfi_spec_outliers(spec, dim, &part->n_out, error, size);
    if (rc) return rc;
    part->bits = spec->bits;
    if (part->n_out) return setup_split(spec, dim, part, error, size);
    part->kind = KVF_KIND_TABLE;
    part->t_group = 1;
    kvfi_part_layout(part, dim);
    make_table(part);
    snprintf(part->canonical, sizeof part->canonical, "turbo%d:norm=n%d,", (int)part->bits, (int)part->norm);
    kvfi_stages_canonical(part);
    return KVF_OK;
}

static void encode_token(const kvf_part *part, const float *x, uint8_t *codes, float *decoded, float *plain, const void *ranks)
{
    *plain = kvfi_table_code(part, ranks, part->unit, x, part->dim, codes, decoded);
}

static void encode(const kvf_part *part, float *x, void *record)
{
    kvfi_ranks ranks;
    if (part->kind == KVF_KIND_SUM) {
        kvfi_sum_encode(part, x, record);
        return;
    }
    kvfi_table_ranks(part->table, part->bits, part->unit, &ranks);
    kvfi_encode_tokens(part, x, record, 1, encode_token, &ranks);
}

const kvf_codec kvfi_codec_turbo = {
    .name = "turbo",
    .summary = "1 to 8-bit Lloyd-Max codes after a rotation, one scale a token (TurboQuant mse)",
    .examples = "turbo4 turbo3 turbo2 turbo1 turbo5 turbo6 turbo8 turbo4:norm=n0 turbo2:outliers=32 turbo3:outliers=8",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .setup = setup,
    .encode = encode,
};
