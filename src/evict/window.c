/* SPDX-License-Identifier: MIT
 * The first tokens and the newest (StreamingLLM: Xiao et al., arXiv 2309.17453), with their own positions: nothing is renumbered. All
 * scores are equal, so the oldest of what is not protected goes. */
#include "evict/policy.h"

static const char *const options[] = {NULL};

const kvfi_policy kvfi_policy_window = {
    .name = "window",
    .summary = "keeps the first tokens and the newest (StreamingLLM)",
    .examples = "window:budget=1024",
    .options = options,
};
