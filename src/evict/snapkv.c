/* SPDX-License-Identifier: MIT
 * SnapKV (Li et al., arXiv 2404.14469): tokens that the newest queries attend to stay, judged anew for every block of 64 tokens. Those are
 * the queries since the choice before (64 token by token, whole batches up to 126; R + 64 before the first), and of a batch of 64 rows or
 * more its newest 64 alone. The attention that a row gets is summed over those queries and the query heads of its group, then averaged with that of the two living
 * rows before it and the two behind it (the paper pools over five neighbours), so that what stays is not torn to single tokens. As with h2o, batches matter. */
#include "evict/policy.h"

static const char *const options[] = {NULL};

const kvfi_policy kvfi_policy_snapkv = {
    .name = "snapkv",
    .summary = "keeps the tokens that the newest queries attend to, about 64 (SnapKV)",
    .examples = "snapkv:budget=1024",
    .options = options,
    .mass = KVFI_MASS_NEWEST,
};
