/* SPDX-License-Identifier: MIT */
#include "evict/policy.h"

static const char *const options[] = {NULL};

const kvfi_policy kvfi_policy_none = {
    .name = "none",
    .summary = "keeps every token",
    .examples = "none",
    .options = options,
    .keeps_all = 1,
};
