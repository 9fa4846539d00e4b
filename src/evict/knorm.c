/* SPDX-License-Identifier: MIT
 * Keys of small length are attended to more (Devoto et al., arXiv 2406.11430): the smallest L2 norms stay. Norms of one head are
 * compared only with each other, so the root mean square does as well, and always fits the range of f16. */
#include "base/half.h"
#include "codec/shared/stages.h"
#include "evict/policy.h"

#include <math.h>

static const char *const options[] = {NULL};

/* f16 numbers that are not negative are ordered as their bits. */
static uint16_t score(const kvfi_scored *row)
{
    const float mean = kvfi_dot16(row->key, row->key, row->dim) / (float)row->dim;
    return (uint16_t)(UINT16_MAX - kvfi_half_saturated(sqrtf(mean)));
}

const kvfi_policy kvfi_policy_knorm = {
    .name = "knorm",
    .summary = "keeps the keys with the smallest L2 norm",
    .examples = "knorm:budget=1024 knorm:budget=12.5%,recent=256,sink=16",
    .options = options,
    .score = score,
};
