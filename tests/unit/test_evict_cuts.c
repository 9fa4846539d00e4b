/* SPDX-License-Identifier: MIT
 * Policies in sequences from which rows are removed and that are copied: budgets hold, what was reserved suffices, and only living rows
 * count. */
#include "support.h"
#include "cache/cache.h"

#include <stdio.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

/* Two full layers and one with a window of its own. */
static void model(ts_model *m, const char *codec, const char *evict)
{
    ts_model_init(m, 3, 4, 2, 32, 32, codec, codec);
    m->layers[1].window = 50;
    m->params.window_keep = 1000;
    m->params.evict = evict;
}

static kvf_stats_t stats(const kvf_cache *c)
{
    kvf_stats_t s = {.size = sizeof s};
    ts_ok(kvf_stats(c, &s));
    return s;
}

static kvf_evicted_t evicted(const kvf_cache *c, int layer)
{
    kvf_evicted_t e = {.size = sizeof e};
    ts_ok(kvf_evicted(c, layer, &e));
    return e;
}

/* Where no layer with a window has freed what would be needed. */
static void cut(kvf_cache *c, int seq, int pos)
{
    if (kvf_can(c, KVF_CAN_RM, seq, pos)) ts_ok(kvf_seq_rm(c, seq, pos, -1));
}

/* One random step of a sequence: rows come, the end is cut off, or a range in the middle goes. */
static void step(kvf_cache *c, const ts_model *m, int seq, ts_random *r, int most)
{
    const int last = kvf_seq_pos_max(c, seq), what = (int)ts_next(r, 8);
    if (what < 4 || last < 10) {
        ts_grow(c, m, seq, ts_next(r, 1000), 1 + (int)ts_next(r, (uint32_t)most), most);
    } else if (what < 7) {
        const int depth = 1 + (int)ts_next(r, (uint32_t)most);
        cut(c, seq, last < depth + 5 ? 5 : last - depth);
    } else {
        const int from = 5 + (int)ts_next(r, (uint32_t)last - 5);
        ts_ok(kvf_seq_rm(c, seq, from, from + 1 + (int)ts_next(r, 100)));
    }
}

/* ---- budgets ------------------------------------------------------------------------------------------------------------------------ */

/* Cuts that leave one row of a block each, then any. */
static void budget_in_bytes(const char *policy, const char *codec, int keep, int more)
{
    ts_model m;
    char spec[64];
    model(&m, codec, "none");
    m.params.window_keep = keep;
    const int kib = (int)(ts_bytes(&m, 250) >> 10) + 128; /* and the scratch of a policy */
    snprintf(spec, sizeof spec, "%s:budget=%dKiB,recent=%d", policy, kib, 64 + more);
    m.params.evict = spec;
    kvf_cache *c = ts_create(&m);
    ts_random r = {(uint64_t)keep + 1};
    int64_t dropped = 0;
    for (int i = 0; i < 90; i++) {
        if (i < 45) {
            if (i) cut(c, 0, 3 * i);
            ts_grow(c, &m, 0, (uint64_t)i, 128 + 3, 131);
        } else {
            step(c, &m, 0, &r, 200);
        }
        dropped += evicted(c, 2).evicted;
        if (stats(c).accounted > 1024 * kib)
            fail_msg("%s of %s, step %d: %lld bytes", spec, codec, i, (long long)stats(c).accounted);
    }
    assert_true(dropped > 0);
    kvf_cache_free(&c);
}

static void test_budgets_in_bytes_hold(void **state)
{
    static const char *const policies[] = {"window", "knorm"}, *const codecs[] = {"turbo4", "kivi4", "q4_0"};
    (void)state;
    for (int i = 0; i < COUNT(policies); i++)
        for (int j = i; j < COUNT(codecs); j++) budget_in_bytes(policies[i], codecs[j], j == 2 ? 1000 : 250, 100 * (j == 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budgets_in_bytes_hold),
    };
    return cmocka_run_group_tests_name("evict_cuts", tests, NULL, NULL);
}
