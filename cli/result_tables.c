/* SPDX-License-Identifier: MIT
 * THE list of result kinds: which columns people see. A saved result has more fields. */
#include "result.h"

#include <string.h>

static const result_column attend[] = {
    {"name", "K/V", RESULT_TEXT, 0},
    {"us_median", "us median", RESULT_NUMBER, 1},
    {"us_min", "min", RESULT_NUMBER, 1},
    {"us_max", "max", RESULT_NUMBER, 1},
    {"noise", "noise", RESULT_PERCENT, 1},
    {"bytes", "MiB read", RESULT_MIB, 2},
    {"gb_per_s", "GB/s", RESULT_NUMBER, 1},
    {"of_limit", "limit", RESULT_PERCENT, 0},
    {"ratio", "times the speed of the baseline", RESULT_RATIO, 0},
    {"ceiling", "ceiling", RESULT_CEILING, 0},
    {"error", "error", RESULT_TINY, 1},
    {"cpu", "set", RESULT_TEXT, 0},
    {"wrong", "wrong", RESULT_TEXT, 0},
    {0},
};

static const result_column ops[] = {
    {"name", "operation", RESULT_TEXT, 0},
    {"us_median", "us median", RESULT_NUMBER, 2},
    {"us_min", "min", RESULT_NUMBER, 2},
    {"us_max", "max", RESULT_NUMBER, 2},
    {"noise", "noise", RESULT_PERCENT, 1},
    {"noise_floor", "floor", RESULT_PERCENT, 1},
    {"ns_per_value", "ns a value", RESULT_NUMBER, 3},
    {"gb_per_s", "GB/s", RESULT_NUMBER, 1},
    {"ratio", "times the speed of its plain form", RESULT_RATIO, 0},
    {"ceiling", "ceiling", RESULT_CEILING, 0},
    {"error", "error", RESULT_TINY, 1},
    {"wrong", "wrong", RESULT_TEXT, 0},
    {0},
};

static const result_column e2e[] = {
    {"name", "arm", RESULT_TEXT, 0},
    {"tokens_per_s", "tokens/s", RESULT_NUMBER, 1},
    {"tokens_per_s_min", "min", RESULT_NUMBER, 1},
    {"tokens_per_s_max", "max", RESULT_NUMBER, 1},
    {"noise", "noise", RESULT_PERCENT, 1},
    {"ratio", "times the speed of the baseline", RESULT_RATIO, 0},
    {"ceiling", "ceiling", RESULT_CEILING, 0},
    {"first_ms", "first ms", RESULT_NUMBER, 0},
    {"first_noise", "±", RESULT_PERCENT, 0},
    {"accounted", "cache MiB", RESULT_MIB, 1},
    {"host", "host", RESULT_MIB, 1},
    {"anonymous", "anonymous", RESULT_MIB, 1},
    {"peak", "peak", RESULT_MIB, 1},
    {"memory_verdict", "peak against the baseline", RESULT_TEXT, 0},
    {"text_verdict", "text", RESULT_TEXT, 0},
    {"wrong", "WRONG", RESULT_TEXT, 0},
    {0},
};

static const result_column compare[] = {
    {"name", "row", RESULT_TEXT, 0},
    {"ratio_a", "A", RESULT_NUMBER, 3},
    {"ratio_b", "B", RESULT_NUMBER, 3},
    {"ratio", "B over A", RESULT_RATIO, 0},
    {"us_a", "us in A", RESULT_NUMBER, 1},
    {"us_b", "us in B", RESULT_NUMBER, 1},
    {"phase", "phase", RESULT_TEXT, 0},
    {"kld_a", "KLD in A", RESULT_TINY, 2},
    {"kld_b", "KLD in B", RESULT_TINY, 2},
    {"kld_apart", "B - A", RESULT_TINY, 1},
    {"kld_apart_error", "± (99 %)", RESULT_TINY, 1},
    {"loss", "B against A", RESULT_TEXT, 0},
    {"ppl_ratio_a", "PPL ratio A", RESULT_NUMBER, 4},
    {"ppl_ratio_b", "PPL ratio B", RESULT_NUMBER, 4},
    {0},
};

static const result_column quality[] = {
    {"name", "K/V", RESULT_TEXT, 0},
    {"exact", "S/R", RESULT_TEXT, 0},
    {"bits_code", "bits", RESULT_NUMBER, 3},
    {"bits_per_value", "all-in", RESULT_NUMBER, 3},
    {"with_host", "with host", RESULT_NUMBER, 3},
    {"positions", "n", RESULT_NUMBER, 0},
    {"ppl", "PPL", RESULT_NUMBER, 4},
    {"ppl_error", "±", RESULT_NUMBER, 4},
    {"ppl_ratio", "PPL ratio", RESULT_NUMBER, 4},
    {"ppl_ratio_error", "±", RESULT_NUMBER, 4},
    {"kld_mean", "KLD mean", RESULT_TINY, 2},
    {"kld_error", "±", RESULT_TINY, 1},
    {"kld_median", "median", RESULT_TINY, 1},
    {"kld_p99", "99 %", RESULT_TINY, 1},
    {"kld_p99_9", "99.9 %", RESULT_TINY, 1},
    {"kld_max", "max", RESULT_TINY, 1},
    {"same_top", "same top", RESULT_PERCENT, 1},
    {"same_top_error", "±", RESULT_PERCENT, 1},
    {"same_tokens", "same text", RESULT_TEXT, 0},
    {"recall", "facts", RESULT_TEXT, 0},
    {"arithmetic", "sums", RESULT_TEXT, 0},
    {"structure", "JSON", RESULT_TEXT, 0},
    {"remark", "", RESULT_TEXT, 0},
    {0},
};

static const result_column parts[] = {{"name", "K/V", RESULT_TEXT, 0},
                                      {"part", "part", RESULT_TEXT, 0},
                                      {"positions", "n", RESULT_NUMBER, 0},
                                      {"kld_mean", "KLD mean", RESULT_TINY, 2},
                                      {"kld_error", "±", RESULT_TINY, 1},
                                      {"same_top", "same top", RESULT_PERCENT, 1},
                                      {"same_top_error", "±", RESULT_PERCENT, 1},
                                      {0}};

static const result_column worst[] = {{"name", "K/V", RESULT_TEXT, 0},
                                      {"chunk", "chunk", RESULT_NUMBER, 0},
                                      {"position", "position", RESULT_NUMBER, 0},
                                      {"kld", "KLD", RESULT_TINY, 1},
                                      {"text", "text before", RESULT_TEXT, 0},
                                      {"next", "next", RESULT_TEXT, 0},
                                      {"p_reference", "p", RESULT_NUMBER, 3},
                                      {"p", "p then", RESULT_NUMBER, 3},
                                      {"top_reference", "likeliest", RESULT_TEXT, 0},
                                      {"top", "likeliest then", RESULT_TEXT, 0},
                                      {0}};

const result_more result_mores[] = {{"parts", "By depth and text", parts}, {"worst", "Worst positions", worst}, {0}};

static const result_column sensitivity[] = {
    {"name", "side", RESULT_TEXT, 0}, {"layer", "layer", RESULT_NUMBER, 0}, {"kld_mean", "KLD mean", RESULT_TINY, 1}, {0}};

static const result_column needle[] = {
    {"name", "K/V", RESULT_TEXT, 0},       {"context", "tokens", RESULT_NUMBER, 0}, {"position", "position", RESULT_PERCENT, 0},
    {"found", "found", RESULT_PERCENT, 0}, {"asked", "texts", RESULT_NUMBER, 0},    {0}};

static const result_table tables[] = {
    {"quality", quality,
     "S/R: first and newest tokens that stay exact. bits: of the codes; all-in: of the folded cache at this context; with host: "
     "and "
     "the\n"
     "cells that libllama keeps beside it. n: positions. KLD: divergence of the next-token distribution from libllama's f16 "
     "cache, in\n"
     "nats; PPL ratio: to its perplexity. ±: one standard error, of runs of 8 neighbours. at the floor: no more than libllama's "
     "own\n"
     "difference between batch sizes."},
    {"sensitivity", sensitivity, NULL},
    {"needle", needle, NULL},
    {"attend", attend,
     "limit: bytes of K and V over time, as a share of what memory gives. ceiling: the speed-up if only memory limited. error: "
     "against\n"
     "double precision over the keys and values that the row really holds. Ratios outside of one run mean nothing."},
    {"ops", ops,
     "Each operation on one thread beside a plain C loop, or beside what a cache without codes does (f16 rows). ceiling: the "
     "speed-up\n"
     "if only memory limited. error: of the result, relative to the plain form or to what was encoded."},
    {"e2e", e2e,
     "Each arm is a process of its own. ceiling: Amdahl, if attention to the history took no time; memory, if weights and cache "
     "were\n"
     "read at the speed of memory. cache and host: as counted; anonymous, peak (with weights): of the process, "
     "measured."},
    {"compare", compare,
     "Of speed, A and B: over the baseline of the same run; only these can be compared, times of different runs stand there for\n"
     "information. Of loss: differences of means, with the errors of both."},
};

const result_table *result_table_of(const char *kind)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strcmp(tables[i].kind, kind) == 0) return &tables[i];
    return NULL;
}
