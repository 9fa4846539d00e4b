/* SPDX-License-Identifier: MIT
 * prod: TurboQuant prod (Zandieh et al., arXiv 2504.19874, section 3.2): the codes of turbo with one bit less, then one bit a
 * channel for what they leave, the signs of a sketch of the residual, with its length. Inner products with anything are right on
 * average over sketches, whatever the first stage does. */
#include "codec/shared/stages.h"
#include "codec/shared/sum.h"

#include "base/text.h"

#include <stdio.h>

static int setup(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t size)
{
    static const char *const options[] = {KVFI_ROTATED_OPTIONS, "sketch", NULL};
    if (spec->bits < 2 || spec->bits > 5) {
        kvfi_sentence(error, size, "codec 'prod' has 2 to 5 bits: prod2 prod3 prod4 prod5 (one bit alone is qjl)");
        return KVF_E_SPEC;
    }
    int rc = kvfi_spec_rotated(spec, options, dim, part, error, size);
    if (!rc) rc = kvfi_spec_sketch(spec, part, error, size);
    if (rc) return rc;
    if (!kvfi_spec_get(spec, "norm", NULL)) part->norm = KVFI_NORM_LEAST; /* leaves the shortest residual */
    const int32_t coded = kvfi_part_dim(part, dim);
    part->bits = spec->bits, part->kind = KVF_KIND_SUM;
    kvfi_sum_add_table(part, KVF_MAP_SAME, KVF_SELECT_ALL, coded, spec->bits - 1);
    kvfi_sum_add_signs(part, coded, (coded + 15) / 16 * 16, KVF_SELECT_ALL);
    kvfi_part_layout(part, dim);
    snprintf(part->canonical, sizeof part->canonical, "prod%d:norm=n%d,sketch=%s,", (int)part->bits, (int)part->norm,
             part->iid ? "iid" : "orth");
    kvfi_stages_canonical(part);
    return KVF_OK;
}

const kvf_codec kvfi_codec_prod = {
    .name = "prod",
    .summary = "turbo with one bit less, and one bit a channel that makes products unbiased (TurboQuant prod)",
    .examples = "prod2 prod3 prod4 prod5 prod3:sketch=iid",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .setup = setup,
    .encode = kvfi_sum_encode,
};
