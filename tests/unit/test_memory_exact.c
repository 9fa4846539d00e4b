/* SPDX-License-Identifier: MIT
 * Bytes in use equal the formula; after a reserve nothing allocates and its limits hold. */
#include "support.h"
#include "cache/cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static const char *const codecs[][2] = {{"f16", "f16"},     {"q8_0", "q8_0"},   {"q4_0:rot=h", "q4_0"}, {"kivi1", "kivi1"},
                                        {"kivi3", "kivi2"}, {"kivi4", "kivi4"}, {"kivi8", "f16"}};

static kvf_stats_t stats(const kvf_cache *c)
{
    kvf_stats_t s = {.size = sizeof s};
    ts_ok(kvf_stats(c, &s));
    return s;
}

static void near(double a, double b)
{
    if (fabs(a - b) > 1e-9 * (1 + fabs(b))) fail_msg("%.12g is not %.12g", a, b);
}

/* ---- the formula ---- */

enum { PLAIN, NO_RECENT, NO_SINK, NEITHER, ALL_SINK, WINDOWS, NO_KEEP, SHARING, LATENT, MIXED, MANY_HEADS, KINDS };

static void model(ts_model *m, int kind, int codec)
{
    ts_model_init(m, 3, 4, 2, 64, 72, codecs[codec][0], codecs[codec][1]);
    if (kind == NO_RECENT || kind == NEITHER) m->params.recent = 0;
    if (kind == NO_SINK || kind == NEITHER) m->params.sink = 0;
    if (kind == ALL_SINK) m->params.sink = 64, m->params.recent = 0;
    if (kind == WINDOWS || kind == NO_KEEP) m->layers[0].window = 100, m->layers[2].window = 7;
    if (kind == NO_KEEP) m->params.window_keep = 0, m->params.recent = 10;
    if (kind == SHARING) m->layers[2].share = 1;
    if (kind == LATENT) {
        m->layers[1].v_in_k = 1;
        m->layers[1].k_dim = 80;
        m->layers[1].k = "q8_0";
    }
    if (kind == MIXED) {
        m->layers[0].k = "q8_0";
        m->layers[1].v = "kivi2:group=64";
        m->layers[2].k = "f16";
        m->layers[2].v = "f16";
        m->layers[2].k_dim = 33;
    }
    if (kind == MANY_HEADS) m->layers[0].kv_heads = m->layers[0].q_heads = 16, m->layers[1].k_dim = 2;
}

static void test_accounted_is_the_formula(void **state)
{
    static const int at[] = {0, 1, 3, 4, 5, 63, 64, 65, 127, 128, 129, 191, 192, 200, 333, 448, 1000};
    (void)state;
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < COUNT(codecs); i++) {
            ts_model m;
            model(&m, kind, i);
            kvf_cache *c = ts_create(&m);
            for (int j = 0; j < COUNT(at); j++) {
                int n = kvf_seq_pos_max(c, 1) + 1;
                if (at[j] > n) ts_grow(c, &m, 1, 1, at[j] - n, 37);
                int64_t formula = ts_bytes(&m, at[j]), in_use = stats(c).accounted;
                if (formula != in_use)
                    fail_msg("kind %d, %s/%s, %d rows: %lld bytes, the formula says %lld", kind, codecs[i][0], codecs[i][1],
                             at[j], (long long)in_use, (long long)formula);
            }
            ts_ok(kvf_seq_rm(c, 1, 0, -1));
            assert_int_equal(stats(c).accounted, ts_bytes(&m, 0));
            kvf_cache_free(&c);
        }
}

/* Row by row across several blocks, so that each moment at which a block is sealed or leaves its window is met. */
static void test_formula_at_every_length(void **state)
{
    static const int kinds[] = {PLAIN, NEITHER, WINDOWS, NO_KEEP};
    (void)state;
    for (int i = 0; i < COUNT(kinds); i++) {
        ts_model m;
        model(&m, kinds[i], 5);
        kvf_cache *c = ts_create(&m);
        for (int n = 1; n <= 560; n++) {
            ts_grow(c, &m, 0, 1, 1, 1);
            if (stats(c).accounted != ts_bytes(&m, n))
                fail_msg("kind %d, %d rows: %lld bytes, the formula says %lld", kinds[i], n, (long long)stats(c).accounted,
                         (long long)ts_bytes(&m, n));
        }
        kvf_cache_free(&c);
    }
}

/* Records and exact rows, counted here from the sizes of records: at least that much, and only tables on top. */
static void test_formula_is_plausible(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        ts_model m;
        kvf_spec_info k, v;
        model(&m, PLAIN, i);
        ts_ok(kvf_spec_check(codecs[i][0], KVF_K, 64, &k, NULL, 0));
        ts_ok(kvf_spec_check(codecs[i][1], KVF_V, 72, &v, NULL, 0));
        int64_t block = 3 * 2 * (int64_t)(k.block_bytes + v.block_bytes), row = 3 * 2 * (64 + 72) * 2;
        int64_t step = ts_bytes(&m, 64 * 64 + 64) - ts_bytes(&m, 64 * 32 + 64);
        assert_true(step >= 32 * block && step <= 32 * (block + 3 * (16 + 2 * 16)));
        int64_t held = ts_bytes(&m, 1000) - ts_bytes(&m, 0); /* 14 blocks, the sink, a window with room for R + 63 rows */
        assert_true(held >= 14 * block + (1000 - 14 * 64 + 4) * row);
        assert_true(held <= 14 * (block + 3 * (16 + 2 * 16)) + (64 + 64 + 4) * row + 3 * 4 * 64);
        for (int n = 1; n < 300; n++) assert_true(ts_bytes(&m, n) > 0);
    }
}

static void test_numbers(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        ts_model m;
        kvf_spec_info k, v;
        model(&m, PLAIN, i);
        ts_ok(kvf_spec_check(codecs[i][0], KVF_K, 64, &k, NULL, 0));
        ts_ok(kvf_spec_check(codecs[i][1], KVF_V, 72, &v, NULL, 0));
        kvf_cache *c = ts_create(&m);
        kvf_stats_t s = stats(c);
        assert_int_equal(s.tokens, 0);
        assert_int_equal(s.sequences, 0);
        assert_true(s.bits_per_value == 0);
        ts_grow(c, &m, 0, 1, 1000, 500);
        s = stats(c);
        assert_int_equal(s.layers, 3);
        assert_int_equal(s.layers_folded, i ? 3 : 0);
        assert_int_equal(s.sequences, 1);
        assert_int_equal(s.tokens, 1000);
        assert_int_equal(s.tokens_sink, 4);
        assert_int_equal(s.tokens_body, 14 * 64 - 4);
        assert_int_equal(s.tokens_window, 1000 - 14 * 64);
        assert_int_equal(s.f16, 1000 * 3 * 2 * (64 + 72) * 2);
        assert_int_equal(s.saturated, 0);
        near(s.bits_code_k, k.bits_code);
        near(s.bits_code_v, v.bits_code);
        near(s.bits_code, (k.bits_code * 64 + v.bits_code * 72) / (64 + 72));
        near(s.bits_code_k, 8.0 * (double)k.block_bytes / (64 * 64));
        near(s.bits_per_value, 8.0 * (double)s.accounted / (1000 * 3 * 2 * (64 + 72)));
        assert_true(s.reserved_bytes >= s.accounted);
        assert_non_null(s.cpu);
        if (ts_cpu) assert_string_equal(s.cpu, ts_cpu);
        kvf_cache_free(&c);
    }
}

static void test_layers_folded(void **state)
{
    (void)state;
    ts_model m;
    ts_model_init(&m, 4, 2, 1, 64, 64, "f16", "f16");
    m.layers[1].v = "kivi4";
    m.layers[2].share = 1;
    m.layers[3].share = 0;
    kvf_cache *c = ts_create(&m);
    assert_int_equal(stats(c).layers, 4);
    assert_int_equal(stats(c).layers_folded, 2); /* 1, and 2 which reads it */
    kvf_cache_free(&c);
}

/* Mapping is not touching: a large reserve leaves the process small. */
static void test_reserve_touches_nothing(void **state)
{
    (void)state;
    ts_model m;
    model(&m, PLAIN, 5);
    kvf_cache *c = ts_create(&m);
    ts_ok(kvf_reserve(c, 200000, 1, 64));
    kvf_stats_t s = stats(c);
    assert_true(s.reserved_bytes >= ts_bytes(&m, 200000));
    assert_int_equal(s.accounted, ts_bytes(&m, 0));
    if (s.resident >= 0) {
        assert_true(s.resident < s.reserved_bytes / 20);
        ts_grow(c, &m, 0, 1, 20000, 64);
        s = stats(c);
        assert_true(s.resident >= s.accounted - s.accounted / 10);
        assert_true(s.resident <= s.accounted + s.accounted / 10 + (1 << 20));
    }
    kvf_cache_free(&c);
}

/* Bytes of the process in memory, -1 where that cannot be told. */
static long process_resident(void)
{
    long pages = -1;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*d %ld", &pages) != 1) pages = -1;
    if (f) fclose(f);
    return pages < 0 ? -1 : pages * sysconf(_SC_PAGESIZE);
}

/* Nor does the bookkeeping of blocks touch anything before they are used: 16 bytes for each of 3 million. */
static void test_a_large_reserve_costs_the_process_nothing(void **state)
{
    (void)state;
    ts_model m;
    ts_model_init(&m, 3, 1, 1, 64, 64, "turbo2", "turbo2");
    kvf_cache *c = ts_create(&m);
    const long before = process_resident();
    ts_ok(kvf_reserve(c, 60000000, 1, 64));
    if (before >= 0) assert_true(process_resident() - before < 4 << 20);
    kvf_cache_free(&c);
}

/* Blocks may be smaller than a page: pages on which no block lives any more go back all the same. */
static void test_removed_rows_give_their_pages_back(void **state)
{
    (void)state;
    static const int kept[] = {10000, 1000, 0};
    ts_model m;
    ts_model_init(&m, 3, 1, 1, 64, 64, "turbo2", "turbo2");
    kvf_cache *c = ts_create(&m);
    assert_true(c->pools[0].block_bytes < 4096);
    for (int again = 0; again < 2; again++) {
        ts_grow(c, &m, 0, again ? 3 : 1, 20000, 64);
        const int64_t full = stats(c).resident;
        for (int i = 0; i < 3; i++) {
            ts_ok(kvf_seq_rm(c, 0, kept[i], -1));
            const kvf_stats_t s = stats(c);
            if (s.resident < 0) continue;
            assert_true(s.resident < full &&
                        s.resident <= s.accounted + 10 * 4096 * 3 + 20000 / 64 * 3 * (int64_t)sizeof(kvfi_block));
        }
    }
    kvf_cache_free(&c);
}

/* ---- after a reserve ---- */

static const float slopes[] = {0.5f, 0.25f, 0.125f, 0.0f}, logits[] = {1, 2, 3, 4};

/* Every kind of request at once. */
static void attend_each_way(kvf_cache *c, const ts_model *m, int32_t seq, int n)
{
    static const ts_how ways[] = {{.type = 0},
                                  {.type = KVF_F32, .q_type = KVF_F16, .layout = TS_STRIDED, .scatter = 1},
                                  {.mask = KVF_F16, .slopes = slopes},
                                  {.mask = KVF_F32, .sinks = logits, .softcap = 5.0f, .shuffle_parts = 1}};
    ts_row rows[128];
    ts_rows(rows, n, seq, 1, kvf_seq_pos_max(c, seq) + 1);
    for (int i = 0; i < COUNT(ways); i++) {
        ts_batch *b = ts_batch_new(m, rows, n, &ways[i]);
        ts_begin(c, b);
        ts_attend_all(c, b);
        ts_append_all(c, b);
        ts_ok(kvf_batch_abort(c));
        ts_batch_free(b);
    }
}

static void test_nothing_allocates_after_reserve(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        ts_model m;
        ts_heap heap;
        ts_heap_init(&heap);
        model(&m, kind, 5);
        if (kind == MANY_HEADS) m.layers[0].q_heads = 4, m.layers[0].kv_heads = 4;
        m.params.allocator = &heap.hooks;
        m.params.threads = 4;
        kvf_cache *c = ts_create(&m);
        ts_ok(kvf_reserve(c, 1000, 2, 128));
        long calls = heap.calls;
        assert_true(stats(c).reserved_bytes <= (int64_t)heap.bytes);
        attend_each_way(c, &m, 0, 128);
        ts_grow(c, &m, 0, 1, 400, 128);
        attend_each_way(c, &m, 0, 1);
        attend_each_way(c, &m, 0, 128);
        ts_ok(kvf_seq_cp(c, 0, 1));
        ts_grow(c, &m, 0, 1, 100, 33);
        ts_grow(c, &m, 1, 2, 90, 128);
        attend_each_way(c, &m, 1, 10);
        if (calls != heap.calls) fail_msg("kind %d: %ld allocations after the reserve", kind, heap.calls - calls);
        kvf_cache_free(&c);
        assert_int_equal(heap.live, 0);
        assert_int_equal(heap.bytes, 0);
    }
}

static void full(kvf_cache *c, const ts_model *m, const kvf_token *tokens, int n)
{
    ts_snapshot before = ts_snapshot_take(c, m);
    int code = kvf_batch_begin(c, tokens, n);
    if (code != KVF_E_FULL) fail_msg("a batch of %d rows beyond the reserve: %d (%s)", n, code, kvf_cache_error(c));
    assert_true(strlen(kvf_cache_error(c)) > 10);
    ts_unchanged(c, m, &before);
    ts_snapshot_free(&before);
}

/* Exactly what was reserved fits, one row or one sequence more does not. */
static void test_limits_of_a_reserve(void **state)
{
    (void)state;
    ts_model m;
    ts_heap heap;
    kvf_token tokens[101];
    ts_heap_init(&heap);
    model(&m, WINDOWS, 5);
    m.params.allocator = &heap.hooks;
    kvf_cache *c = ts_create(&m);
    ts_ok(kvf_reserve(c, 700, 2, 100));
    long calls = heap.calls;
    ts_grow(c, &m, 0, 1, 300, 100);
    for (int i = 0; i < 101; i++) tokens[i] = (kvf_token){0, 300 + i};
    ts_grow(c, &m, 1, 1, 340, 90);
    full(c, &m, tokens, 61);
    full(c, &m, (kvf_token[]){{2, 0}}, 1); /* a third sequence */
    ts_snapshot before = ts_snapshot_take(c, &m);
    assert_int_equal(kvf_seq_cp(c, 0, 2), KVF_E_FULL);
    ts_unchanged(c, &m, &before);
    ts_snapshot_free(&before);
    ts_grow(c, &m, 0, 1, 59, 59);
    ts_grow(c, &m, 0, 1, 1, 1); /* row 700 */
    assert_int_equal(kvf_batch_begin(c, (kvf_token[]){{0, 360}}, 1), KVF_E_FULL);
    assert_int_equal(kvf_batch_begin(c, (kvf_token[]){{1, 340}}, 1), KVF_E_FULL);
    assert_int_equal(calls, heap.calls);
    ts_ok(kvf_reserve(c, 1500, 3, 101));
    calls = heap.calls;
    ts_grow(c, &m, 0, 1, 200, 101);
    ts_ok(kvf_seq_cp(c, 1, 2));
    ts_grow(c, &m, 2, 1, 220, 101);
    assert_int_equal(calls, heap.calls);
    kvf_cache *clean = ts_create(&m); /* grows on its own */
    ts_grow(clean, &m, 0, 1, 560, 500);
    ts_same_sequence(c, 0, clean, 0, &m);
    ts_same_sequence(c, 2, clean, 0, &m);
    kvf_cache_free(&clean);
    kvf_cache_free(&c);
    assert_int_equal(heap.live, 0);
}

/* max_batch allows 512 rows, the reserve 100. */
static void test_batch_beyond_a_reserve(void **state)
{
    (void)state;
    ts_model m;
    kvf_token tokens[101];
    model(&m, PLAIN, 5);
    kvf_cache *c = ts_create(&m);
    ts_ok(kvf_reserve(c, 700, 2, 100));
    for (int i = 0; i < 101; i++) tokens[i] = (kvf_token){0, i};
    full(c, &m, tokens, 101);
    ts_grow(c, &m, 0, 1, 100, 100);
    kvf_cache_free(&c);
}

/* A copy needs room for its window at least: 400 rows are 320 sealed ones, which are shared, and 80 exact ones. */
static void test_copy_beyond_a_reserve(void **state)
{
    (void)state;
    ts_model m;
    model(&m, PLAIN, 5);
    kvf_cache *c = ts_create(&m);
    ts_ok(kvf_reserve(c, 440, 3, 100));
    ts_grow(c, &m, 0, 1, 400, 100);
    ts_snapshot before = ts_snapshot_take(c, &m);
    assert_int_equal(kvf_seq_cp(c, 0, 1), KVF_E_FULL);
    assert_true(strlen(kvf_cache_error(c)) > 10);
    ts_unchanged(c, &m, &before);
    ts_ok(kvf_reserve(c, 800, 3, 100));
    ts_ok(kvf_seq_cp(c, 0, 1));
    ts_same_sequence(c, 0, c, 1, &m);
    ts_snapshot_free(&before);
    kvf_cache_free(&c);
}

/* Two of four sequence ids at a time, in every combination: stores are handed on without an allocation. */
static void test_sequence_ids_take_turns(void **state)
{
    (void)state;
    ts_model m;
    ts_heap heap;
    ts_heap_init(&heap);
    model(&m, WINDOWS, 5);
    m.params.allocator = &heap.hooks;
    kvf_cache *c = ts_create(&m), *clean = ts_create(&m);
    ts_ok(kvf_reserve(c, 500, 2, 100));
    ts_grow(clean, &m, 0, 1, 240, 100);
    long calls = heap.calls;
    int held[2] = {0, 1};
    ts_random r = {1};
    for (int round = 0; round < 40; round++) {
        int out = (int)ts_next(&r, 2), into = (int)ts_next(&r, 4);
        if (into == held[1 - out]) continue;
        ts_ok(kvf_seq_rm(c, held[out], 0, -1));
        held[out] = into;
        if (kvf_seq_pos_max(c, held[1 - out]) >= 0 && round % 3 == 0)
            ts_ok(kvf_seq_cp(c, held[1 - out], into));
        else
            ts_grow(c, &m, into, 1, 240, 100);
        ts_same_sequence(c, into, clean, 0, &m);
    }
    assert_int_equal(calls, heap.calls);
    kvf_cache_free(&c);
    kvf_cache_free(&clean);
    assert_int_equal(heap.live, 0);
}

/* New sequences of one batch take different stores, whichever ids had them before. */
static void test_new_sequences_of_one_batch(void **state)
{
    static const int pairs[][2] = {{0, 1}, {2, 3}, {0, 1}, {1, 2}, {0, 3}, {3, 1}, {0, 2}, {0, 1}};
    (void)state;
    ts_model m;
    ts_row rows[100];
    model(&m, PLAIN, 5);
    kvf_cache *c = ts_create(&m), *clean = ts_create(&m);
    ts_ok(kvf_reserve(c, 500, 2, 100));
    ts_grow(clean, &m, 0, 1, 50, 50);
    ts_grow(clean, &m, 1, 2, 50, 50);
    for (int i = 0; i < COUNT(pairs); i++) {
        for (int t = 0; t < 100; t++) rows[t] = (ts_row){pairs[i][t % 2], t / 2, 1 + (uint64_t)(t % 2)};
        ts_feed(c, &m, rows, 100, 100, NULL);
        ts_same_sequence(c, pairs[i][0], clean, 0, &m);
        ts_same_sequence(c, pairs[i][1], clean, 1, &m);
        for (int s = 0; s < 2; s++) ts_ok(kvf_seq_rm(c, pairs[i][s], 0, -1));
        full(c, &m, (kvf_token[]){{0, 0}, {1, 0}, {3, 0}}, 3);
    }
    kvf_cache_free(&c);
    kvf_cache_free(&clean);
}

/* Removing and refilling within the limits, again and again: no allocation and no damage. */
static void test_refilling_within_a_reserve(void **state)
{
    (void)state;
    ts_model m;
    ts_heap heap;
    ts_heap_init(&heap);
    model(&m, PLAIN, 5);
    m.params.allocator = &heap.hooks;
    kvf_cache *c = ts_create(&m);
    ts_ok(kvf_reserve(c, 648, 1, 100)); /* a few more, for the rows that the comparison asks with */
    ts_grow(c, &m, 0, 1, 640, 100);
    long calls = heap.calls;
    for (int round = 0; round < 30; round++) { /* whole refills, deep cuts, short cuts */
        int n = kvf_seq_pos_max(c, 0) + 1, to = round % 3 == 0 ? 0 : round % 3 == 1 ? n - 100 : n - 20;
        ts_ok(kvf_seq_rm(c, 0, to, -1));
        ts_grow(c, &m, 0, (uint64_t)round + 2, 640 - to, 100);
    }
    assert_int_equal(calls, heap.calls);
    ts_ok(kvf_seq_rm(c, 0, 0, -1));
    ts_grow(c, &m, 0, 1, 640, 100);
    kvf_cache *clean = ts_create(&m);
    ts_grow(clean, &m, 0, 1, 640, 100);
    ts_same_sequence(c, 0, clean, 0, &m);
    kvf_cache_free(&clean);
    kvf_cache_free(&c);
    assert_int_equal(heap.live, 0);
}

static void test_reserve_refused(void **state)
{
    (void)state;
    ts_model m;
    model(&m, PLAIN, 5);
    kvf_cache *c = ts_create(&m);
    ts_grow(c, &m, 0, 1, 100, 100);
    ts_snapshot before = ts_snapshot_take(c, &m);
    assert_int_equal(kvf_reserve(c, -1, 1, 1), KVF_E_ARG);
    assert_int_equal(kvf_reserve(c, 1000, 5, 1), KVF_E_ARG);
    assert_int_equal(kvf_reserve(c, 1000, -1, 1), KVF_E_ARG);
    assert_int_equal(kvf_reserve(c, 1000, 1, 513), KVF_E_ARG);
    assert_int_equal(kvf_reserve(c, 1000, 1, -1), KVF_E_ARG);
    int code = kvf_reserve(c, INT64_MAX, 1, 1);
    assert_true(code == KVF_E_ARG || code == KVF_E_NOMEM || code == KVF_E_FULL);
    code = kvf_reserve(c, INT64_C(1) << 50, 1, 1);
    assert_true(code == KVF_E_ARG || code == KVF_E_NOMEM || code == KVF_E_FULL);
    ts_unchanged(c, &m, &before);
    ts_grow(c, &m, 0, 1, 100, 100);
    ts_snapshot_free(&before);
    kvf_cache_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accounted_is_the_formula),
        cmocka_unit_test(test_formula_at_every_length),
        cmocka_unit_test(test_formula_is_plausible),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_layers_folded),
        cmocka_unit_test(test_reserve_touches_nothing),
        cmocka_unit_test(test_a_large_reserve_costs_the_process_nothing),
        cmocka_unit_test(test_removed_rows_give_their_pages_back),
        cmocka_unit_test(test_nothing_allocates_after_reserve),
        cmocka_unit_test(test_limits_of_a_reserve),
        cmocka_unit_test(test_batch_beyond_a_reserve),
        cmocka_unit_test(test_copy_beyond_a_reserve),
        cmocka_unit_test(test_sequence_ids_take_turns),
        cmocka_unit_test(test_new_sequences_of_one_batch),
        cmocka_unit_test(test_refilling_within_a_reserve),
        cmocka_unit_test(test_reserve_refused),
    };
    return cmocka_run_group_tests_name("memory_exact", tests, NULL, NULL);
}
