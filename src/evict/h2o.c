/* SPDX-License-Identifier: MIT
 * Heavy hitters (H2O: Zhang et al., arXiv 2306.14048): tokens that have been attended to most stay. The attention that a row has
 * received is summed over all queries of the group since the row came, and divided by how many came after it, as rows that have been there
 * for long have had more of them. What queries saw depends on what had been dropped before, so the kept set does on how rows were batched. */
#include "evict/policy.h"

static const char *const options[] = {NULL};

const kvfi_policy kvfi_policy_h2o = {
    .name = "h2o",
    .summary = "keeps the tokens that were attended to most (heavy hitters)",
    .examples = "h2o:budget=1024",
    .options = options,
    .mass = KVFI_MASS_ALL,
};
