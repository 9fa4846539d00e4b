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
    model(&m, codec, spec);
    m.params.window_keep = keep, m.params.max_sequences = 1;
    snprintf(spec, sizeof spec, "%s:budget=300", policy);
    const int kib = (int)(ts_bytes(&m, 100000) >> 10) + 48;
    snprintf(spec, sizeof spec, "%s:budget=%dKiB,recent=%d", policy, kib, 64 + more);
    kvf_cache *c = ts_create(&m);
    ts_random r = {(uint64_t)keep + 1};
    int64_t dropped = 0;
    for (int i = 0; i < 80; i++) { /* in the end more rows than the budget has */
        if (i >= 70) {
            ts_grow(c, &m, 0, (uint64_t)i, 131, 131);
        } else if (i < 40) {
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
        for (int j = i; j < COUNT(codecs) - i; j++) budget_in_bytes(policies[i], codecs[j], j == 2 ? 1000 : 250, 100 * (j == 1));
}

/* ---- what was reserved -------------------------------------------------------------------------------------------------------------- */

static int64_t most_kept(const kvf_cache *c)
{
    int64_t most = 0;
    for (int i = 0; i < 3; i++)
        if (evicted(c, i).kept > most) most = evicted(c, i).kept;
    return most;
}

/* n rows of both sequences in one batch. */
static void grow_both(kvf_cache *c, const ts_model *m, int n, uint64_t tag)
{
    ts_row rows[256];
    for (int seq = 0; seq < 2; seq++) ts_rows(rows + seq * n, n, seq, tag + (uint64_t)seq, kvf_seq_pos_max(c, seq) + 1);
    ts_feed(c, m, rows, 2 * n, 2 * n, NULL);
}

/* Whatever was done before: as long as what is held and the batch are within the reserve, batches and copies succeed, and nothing is
 * allocated. */
static void reserve_suffices(const char *policy, const char *codec, int tokens, int holes)
{
    enum { BATCH = 120 };
    ts_model m;
    ts_heap heap;
    int grown = 0, copied = 0;
    ts_heap_init(&heap);
    model(&m, codec, policy);
    m.params.window_keep = 100, m.params.allocator = &heap.hooks, m.params.max_batch = BATCH, m.params.max_sequences = 2;
    kvf_cache *c = ts_create(&m);
    ts_ok(kvf_reserve(c, tokens, 2, BATCH));
    const long calls = heap.calls;
    ts_random r = {7};
    for (int i = 0; i < 120; i++) {
        const int seq = (int)ts_next(&r, 2), last = kvf_seq_pos_max(c, seq), what = (int)ts_next(&r, 16);
        const int n = 1 + (int)ts_next(&r, BATCH);
        if (what < 6 && most_kept(c) + n <= tokens)
            ts_grow(c, &m, seq, (uint64_t)i, n, n), grown++;
        else if (what < 10 && most_kept(c) + BATCH <= tokens)
            grow_both(c, &m, BATCH / 2, (uint64_t)i), grown++;
        else if (what < 12 && last > 20)
            cut(c, seq, last - (int)ts_next(&r, last < 160 ? 20 : 150));
        else if (what < 14 && holes && last > 300)
            ts_ok(kvf_seq_rm(c, seq, last - 300 + (int)ts_next(&r, 200), last - 50));
        else if (what == 14) {
            kvf_evicted_t before = evicted(c, 0);
            ts_ok(kvf_seq_rm(c, 1 - seq, 0, -1));
            if (2 * most_kept(c) <= tokens) ts_ok(kvf_seq_cp(c, seq, 1 - seq)), copied += before.kept > 100;
        }
        if (heap.calls != calls) fail_msg("%s, %s, step %d: memory was asked for", policy, codec, i);
    }
    if (grown < 30 || !copied) fail_msg("%s, %s: %d batches, %d copies", policy, codec, grown, copied);
    kvf_cache_free(&c);
}

static void test_reserve_suffices(void **state)
{
    (void)state;
    reserve_suffices("window:budget=400", "q4_0", 1100, 0);
    reserve_suffices("knorm:budget=400", "turbo4", 1100, 1);
    reserve_suffices("knorm:budget=700", "kivi4", 900, 1);
    reserve_suffices("random:budget=60%", "q4_0", 900, 1);
    reserve_suffices("snapkv:budget=300", "kivi4", 900, 1);
}

/* One layer of one head, room for n rows. */
static kvf_cache *small(ts_model *m, const char *codec, const char *policy, int n, int sequences)
{
    ts_model_init(m, 1, 1, 1, 32, 16, codec, "q4_0");
    m->params.evict = policy, m->params.max_sequences = sequences, m->params.max_batch = 256;
    kvf_cache *c = ts_create(m);
    ts_ok(kvf_reserve(c, n, sequences, 256));
    return c;
}

/* Both copies of a long sequence grow in one batch: each takes blocks of its own, and no block counts twice. */
static void test_copies_part_in_one_batch(void **state)
{
    (void)state;
    ts_model m;
    kvf_cache *c = small(&m, "q4_0", "knorm:budget=2000", 2 * 2064 + 256, 2);
    ts_grow(c, &m, 0, 1, 2300, 250);
    ts_ok(kvf_seq_cp(c, 0, 1));
    for (int i = 0; i < 3; i++) grow_both(c, &m, 100, (uint64_t)i + 2);
    kvf_cache_free(&c);
}

/* A copy whose rows could not move is refused at once; the sequence itself goes on. */
static void test_copy_beyond_the_reserve(void **state)
{
    static const char *const policies[] = {"knorm:budget=2500", "window:budget=2500"};
    (void)state;
    for (int i = 0; i < COUNT(policies); i++) {
        ts_model m;
        kvf_cache *c = small(&m, "q4_0", policies[i], 3000, 2);
        ts_grow(c, &m, 0, 1, 3000, 250);
        ts_snapshot before = ts_snapshot_take(c, &m);
        assert_int_equal(kvf_seq_cp(c, 0, 1), KVF_E_FULL);
        ts_unchanged(c, &m, &before);
        ts_snapshot_free(&before);
        ts_grow(c, &m, 0, 1, 500, 250);
        kvf_cache_free(&c);
    }
}

/* Bins of a codec that codes rows again may be half full, in a stream of any length. */
static void test_half_full_bins_fit(void **state)
{
    (void)state;
    ts_model m;
    kvf_cache *c = small(&m, "kivi4", "random:budget=3000", 3000 + 63 + 250, 1);
    ts_grow(c, &m, 0, 1, 9000, 250);
    assert_true(c->pools[0].in_use > 3313 / 64 + KVFI_SPARE_BLOCKS); /* rows alone would not have told */
    kvf_cache_free(&c);
}

/* What was removed from one sequence is there for others at once. */
static void test_removed_rows_make_room(void **state)
{
    (void)state;
    ts_model m;
    kvf_cache *c = small(&m, "q4_0", "knorm:budget=5000", 3000, 2);
    ts_grow(c, &m, 0, 1, 2900, 250);
    for (int pos = 64; pos < 2750; pos += 64) ts_ok(kvf_seq_rm(c, 0, pos, pos + 60));
    assert_true(evicted(c, 0).kept < 500);
    ts_grow(c, &m, 1, 1, 2500, 250);
    kvf_cache_free(&c);
}

/* ---- what counts as held ------------------------------------------------------------------------------------------------------------ */

/* Rows of a head that can be read. */
static int64_t readable(kvf_cache *c, int layer, int head)
{
    float x[64];
    int64_t rows = 0;
    for (int pos = 0; pos <= kvf_seq_pos_max(c, 0); pos++) rows += kvf_seq_read(c, 0, layer, KVF_K, head, pos, x) == KVF_OK;
    return rows;
}

/* Bytes in f16 are those of rows that live, and no head is behind the number of rows kept. */
static void living_rows(kvf_cache *c, const ts_model *m)
{
    int64_t values = 0;
    for (int layer = 0; layer < 3; layer++) {
        int64_t most = 0;
        for (int head = 0; head < 2; head++) {
            const int64_t rows = readable(c, layer, head);
            values += rows * (m->layers[layer].k_dim + m->layers[layer].v_dim);
            if (rows > most) most = rows;
        }
        assert_int_equal(evicted(c, layer).kept, most);
    }
    assert_int_equal(stats(c).f16, 2 * values);
}

static void test_only_living_rows_count(void **state)
{
    static const char *const policies[] = {"none", "window:budget=200", "knorm:budget=200"};
    (void)state;
    for (int i = 0; i < COUNT(policies); i++) {
        ts_model m;
        model(&m, "q4_0", policies[i]);
        kvf_cache *c = ts_create(&m);
        ts_grow(c, &m, 0, 1, 450, 450);
        living_rows(c, &m);
        ts_ok(kvf_seq_rm(c, 0, 400, 440)); /* of the newest, */
        living_rows(c, &m);
        ts_ok(kvf_seq_rm(c, 0, 330, 350)); /* coded ones, */
        ts_ok(kvf_seq_rm(c, 0, 1, 3));     /* and of the sink */
        living_rows(c, &m);
        ts_grow(c, &m, 0, 1, 50, 50);
        ts_ok(kvf_seq_rm(c, 0, 460, 490)); /* of those that are the newest of the next choice, at 512 rows: it drops nothing */
        const int64_t before = evicted(c, 0).kept;
        ts_grow(c, &m, 0, 1, 12, 12);
        assert_int_equal(evicted(c, 0).kept, before + 12);
        living_rows(c, &m);
        kvf_cache_free(&c);
    }
}

/* With layers that keep everything `tokens` are theirs; without, those of the layer that holds most; windows never. */
static void test_tokens_of_protected_layers(void **state)
{
    static const struct {
        int64_t budget[3]; /* kvf_layer.evict_budget */
        int64_t tokens, evicted;
    } cases[] = {{{0, 0, 0}, 100, 412}, {{-1, 0, 0}, 512, 412}, {{0, 0, -1}, 512, 412}, {{80, 0, 300}, 300, 432}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        ts_model m;
        model(&m, "q4_0", i % 2 ? "window:budget=100" : "knorm:budget=100");
        for (int layer = 0; layer < 3; layer++) m.layers[layer].evict_budget = cases[i].budget[layer];
        m.params.window_keep = 0;
        kvf_cache *c = ts_create(&m);
        ts_grow(c, &m, 0, 1, 512, 512);
        const kvf_stats_t s = stats(c);
        assert_int_equal(s.tokens, cases[i].tokens);
        assert_int_equal(s.tokens_sink + s.tokens_body + s.tokens_window, s.tokens);
        assert_int_equal(s.tokens_evicted, cases[i].evicted);
        kvf_cache_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budgets_in_bytes_hold),    cmocka_unit_test(test_reserve_suffices),
        cmocka_unit_test(test_copies_part_in_one_batch), cmocka_unit_test(test_copy_beyond_the_reserve),
        cmocka_unit_test(test_half_full_bins_fit),       cmocka_unit_test(test_removed_rows_make_room),
        cmocka_unit_test(test_only_living_rows_count),   cmocka_unit_test(test_tokens_of_protected_layers),
    };
    return cmocka_run_group_tests_name("evict_cuts", tests, NULL, NULL);
}
