/* SPDX-License-Identifier: MIT
 * qjl: the signs of m random directions and the length of the key (Zandieh et al., arXiv 2406.03482); the query stays exact:
 *   <q, k> is about  sqrt(pi/2) / m * ||k|| * <S q, sign(S k)>
 * For keys only: a value has to come back as a vector, and a handful of signs says nothing of its channels. With outliers, the
 * channels of largest energy have a sketch and a length of their own. */
#include "codec/shared/sketch.h"
#include "codec/shared/stages.h"
#include "codec/shared/sum.h"

#include "base/text.h"

#include <stdio.h>

static int parse_rows(const kvf_spec *spec, int32_t dim_pad, int32_t *rows, char *error, size_t size)
{
    static const char range[] = "a multiple of 16 from 16 to four times the head size";
    int rc = kvfi_spec_int(spec, "m", dim_pad, range, rows, error, size);
    if (rc || (*rows >= 16 && *rows <= 4 * dim_pad && *rows % 16 == 0)) return rc;
    return kvfi_spec_refuse(spec, "m", range, error, size);
}

static int setup(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t size)
{
    static const char *const options[] = {KVFI_STAGE_OPTIONS, "m", "sketch", "outliers", NULL};
    int32_t rows;
    int rc = kvfi_spec_no_bits(spec, error, size);
    if (!rc) rc = kvfi_spec_only(spec, options, error, size);
    if (!rc) rc = kvfi_spec_stages(spec, "none", "prompt", dim, part, error, size);
    if (!rc) rc = parse_rows(spec, (dim + 15) / 16 * 16, &rows, error, size);
    if (!rc) rc = kvfi_spec_sketch(spec, part, error, size);
    if (!rc) rc = kvfi_spec_outliers(spec, dim, &part->n_out, error, size);
    if (rc) return rc;
    if (!kvfi_spec_get(spec, "scale", NULL)) part->scaled = 0;
    const int32_t coded = kvfi_part_dim(part, dim);
    part->bits = 1, part->kind = KVF_KIND_SUM;
    kvfi_sum_add_signs(part, coded, rows, part->n_out ? KVF_SELECT_REGULAR : KVF_SELECT_ALL);
    if (part->n_out) kvfi_sum_add_signs(part, coded, rows, KVF_SELECT_OUTLIERS);
    kvfi_part_layout(part, dim);
    snprintf(part->canonical, sizeof part->canonical, "qjl:m=%d,sketch=%s,outliers=%d,", (int)rows, part->iid ? "iid" : "orth",
             (int)part->n_out);
    kvfi_stages_canonical(part);
    return KVF_OK;
}

const kvf_codec kvfi_codec_qjl = {
    .name = "qjl",
    .summary = "signs of m random directions, for keys only: products with a query, never a key itself (QJL)",
    .examples = "qjl qjl:m=16 qjl:sketch=iid qjl:outliers=4",
    .sides = 1u << KVF_K,
    .setup = setup,
    .encode = kvfi_sum_encode,
};
