/* SPDX-License-Identifier: MIT
 * Windowed layers: memory stops growing, steps back within what is kept are right, deeper ones are refused before any change. */
#include "../oracle/pair.h"
#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

enum { TABLE_ROW = 32 }; /* bytes: position, block id, validity of one head */

static const int aims[] = {0, 1, 98, 99, 100, 101, 63, 64, -1};
static const ts_how aimed = {.point_at = aims};

static int64_t accounted(kvf_cache *c)
{
    kvf_stats_t s = {.size = sizeof s};
    ts_ok(kvf_stats(c, &s));
    return s.accounted;
}

/* Lengths that are equal modulo 64 cost the same beyond W + keep, but for the words of the block table. */
static void test_memory_is_constant(void **state)
{
    static const int keeps[] = {0, 16, 256};
    (void)state;
    for (int i = 0; i < COUNT(keeps); i++) {
        ts_model m;
        ts_model_init(&m, 1, 2, 1, 64, 64, "kivi4", "kivi4");
        m.layers[0].window = 100;
        m.params.window_keep = keeps[i];
        kvf_cache *c = ts_create(&m);
        ts_grow(c, &m, 0, 1, 640, 100);
        for (int n = 704; n <= 1600; n += 64) {
            int64_t before = accounted(c);
            ts_grow(c, &m, 0, 1, 64, 30);
            assert_true(accounted(c) >= before && accounted(c) - before <= TABLE_ROW);
            assert_int_equal(accounted(c), ts_bytes(&m, n));
        }
        ts_model full = m;
        full.layers[0].window = 0;
        assert_true(accounted(c) < ts_bytes(&full, 1600));
        kvf_cache_free(&c);
    }
}

/* What is freed serves again: the mapped bytes stay as well. */
static void test_mapped_memory_is_bounded(void **state)
{
    (void)state;
    ts_model m;
    ts_heap heap;
    ts_heap_init(&heap);
    ts_model_init(&m, 2, 2, 1, 64, 64, "kivi4", "kivi4");
    m.layers[0].window = m.layers[1].window = 100;
    m.params.allocator = &heap.hooks;
    kvf_cache *c = ts_create(&m);
    ts_grow(c, &m, 0, 1, 1000, 50);
    size_t bytes = heap.bytes;
    ts_grow(c, &m, 0, 1, 4000, 50);
    /* block tables may grow by a few words a block, records may not */
    if (heap.bytes > bytes + 4000 / 64 * 2 * 64)
        fail_msg("mapped %zu bytes after 1000 rows and %zu after 5000", bytes, heap.bytes);
    kvf_cache_free(&c);
    assert_int_equal(heap.live, 0);
}

/* For every cut of a copy: kvf_can tells what rm then does, a refusal changes nothing, and what is left answers right. */
static void cuts(int keep, int full_layer, int n)
{
    pair p = {0};
    int refused = 0, allowed = 0;
    ts_model_init(&p.m, full_layer ? 2 : 1, 4, 2, 64, 64, "kivi4", "kivi4");
    p.m.layers[0].window = 100;
    p.m.params.window_keep = keep;
    pair_open(&p);
    pair_grow(&p, 0, 1, n, 90);
    for (int back = 1; back < n; back += back < keep + 140 ? 1 + back / 7 : 97) {
        int pos = n - back;
        pair_cp(&p, 0, 1);
        ts_snapshot before = ts_snapshot_take(p.c, &p.m);
        int can = kvf_can(p.c, KVF_CAN_RM, 1, pos), code = kvf_seq_rm(p.c, 1, pos, -1);
        if (can != (code == KVF_OK)) fail_msg("cut at %d of %d: kvf_can says %d, kvf_seq_rm %d", pos, n, can, code);
        if (back <= keep && !can) fail_msg("a step back by %d of %d kept rows is refused", back, keep);
        if (can) {
            allowed++;
            oracle_rm(p.o, 1, pos, -1);
            pair_next(&p, 1, 1, 3, &aimed);
            pair_next(&p, 1, 2, 3, &aimed);
        } else {
            refused++;
            assert_true(strlen(kvf_cache_error(p.c)) > 10);
            ts_unchanged(p.c, &p.m, &before);
        }
        ts_snapshot_free(&before);
        pair_rm(&p, 1, 0, -1); /* the whole of a sequence can always go */
    }
    if (n > 100 + keep + 64 && !refused) fail_msg("no cut was refused");
    assert_true(allowed >= (keep ? 1 : 0));
    pair_next(&p, 0, 1, 3, &aimed);
    pair_close(&p);
}

static void test_cuts(void **state)
{
    static const int keeps[] = {0, 10, 64, 256}, lengths[] = {90, 200, 450, 700, 731};
    (void)state;
    for (int i = 0; i < COUNT(keeps); i++)
        for (int j = 0; j < COUNT(lengths); j++) cuts(keeps[i], j % 2, lengths[j]);
    for (int i = 0; i < COUNT(keeps); i++) /* one row before a block leaves, then as it leaves */
        for (int more = 0; more < 2; more++) cuts(keeps[i], 0, keeps[i] + 100 + 62 + 3 * 64 + more);
}

/* Cut, go on, cut again: the second cut may need rows that the first run has freed. */
static void test_cut_twice(void **state)
{
    (void)state;
    pair p = {0};
    ts_model_init(&p.m, 2, 4, 2, 64, 64, "f16", "f16");
    p.m.layers[0].window = 100;
    p.m.params.window_keep = 50;
    pair_open(&p);
    pair_grow(&p, 0, 1, 600, 90);
    for (int round = 0; round < 12; round++) {
        int pos = oracle_pos_max(p.o, 0) + 1 - 45;
        int can = kvf_can(p.c, KVF_CAN_RM, 0, pos), code = kvf_seq_rm(p.c, 0, pos, -1);
        assert_int_equal(can, code == KVF_OK);
        if (code == KVF_OK) oracle_rm(p.o, 0, pos, -1);
        pair_next(&p, 0, 2, 3, &aimed);
        if (round % 3 == 2) pair_grow(&p, 0, (uint64_t)round + 10, 100, 20);
        pair_next(&p, 0, 2, 3, &aimed);
    }
    pair_close(&p);
}

/* Removing from the middle or the start of what has left the window. */
static void test_ranges_before_the_window(void **state)
{
    static const int ranges[][2] = {{0, 100}, {0, 400}, {0, 450}, {200, 300}, {420, 470}, {480, 490}};
    (void)state;
    for (int i = 0; i < COUNT(ranges); i++)
        for (int codec = 0; codec < 2; codec++) {
            pair p = {0};
            ts_model_init(&p.m, 2, 4, 2, 64, 64, codec ? "kivi4" : "f16", codec ? "kivi4" : "f16");
            p.m.layers[0].window = 100;
            p.m.params.window_keep = 20;
            pair_open(&p);
            pair_grow(&p, 0, 1, 500, 90);
            pair_rm(&p, 0, ranges[i][0], ranges[i][1]);
            assert_int_equal(kvf_seq_pos_max(p.c, 0), 499);
            pair_next(&p, 0, 1, 3, &aimed);
            pair_grow(&p, 0, 1, 60, 20);
            pair_next(&p, 0, 1, 3, &aimed);
            pair_close(&p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_constant), cmocka_unit_test(test_mapped_memory_is_bounded), cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_cut_twice),          cmocka_unit_test(test_ranges_before_the_window),
    };
    return ts_on_every_cpu("cache_window", tests, sizeof tests / sizeof *tests);
}
