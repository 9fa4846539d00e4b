/* SPDX-License-Identifier: MIT
 * Q-Filters (Godey et al., arXiv 2503.02812): the queries of a head have a main direction u, and on average <q, k> grows with <k, u>.
 * The keys that reach furthest along it stay. u comes from a calibration, as an estimate from keys has no sign; queries are taken after
 * RoPE, as keys are cached. Scores of one head are compared only with each other, so the length of u does not matter. */
#include "base/half.h"
#include "codec/shared/stages.h"
#include "evict/policy.h"

static const char *const options[] = {NULL};

/* f16 numbers in the order of their values: negative ones have theirs reversed. */
static uint16_t score(const kvfi_scored *row)
{
    const uint16_t half = kvfi_half_saturated(kvfi_dot16(row->key, row->direction, row->dim));
    return (uint16_t)(half ^ (half & 0x8000u ? 0xffffu : 0x8000u));
}

const kvfi_policy kvfi_policy_qfilters = {
    .name = "qfilters",
    .summary = "keeps the keys along the main direction of the queries (Q-Filters; needs a calibration)",
    .examples = "qfilters:budget=1024",
    .options = options,
    .score = score,
    .needs_direction = 1,
};
