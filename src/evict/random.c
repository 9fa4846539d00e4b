/* SPDX-License-Identifier: MIT
 * A control for measurements: what any choice must beat. The score of a row is a function of seed, layer, head and position alone. */
#include "evict/policy.h"
#include "base/random.h"

static const char *const options[] = {"seed", NULL};

static uint16_t score(const kvfi_scored *row)
{
    const uint32_t head = (uint32_t)row->layer * 4096 + (uint32_t)row->head; /* at most 4096 heads a layer */
    const uint64_t start = kvfi_random_start((uint64_t)row->evict->seed, KVFI_STREAM_EVICT);
    return (uint16_t)(kvfi_random_bits(kvfi_random_mix(start + head), (uint64_t)row->pos) >> 48);
}

const kvfi_policy kvfi_policy_random = {
    .name = "random",
    .summary = "keeps tokens by lot (a control)",
    .examples = "random:budget=1024 random:budget=50%,seed=7",
    .options = options,
    .score = score,
};
