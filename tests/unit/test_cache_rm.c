/* SPDX-License-Identifier: MIT
 * Removing rows: inside the exact window, deeper, in the middle, across the sink, all; and what the next position is then.
 * With S = 4 and R = 64, 200 rows are: sink 0..3, two sealed blocks up to row 127, window 128..199. */
#include "../oracle/pair.h"
#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static const char *const codecs[][2] = {{"f16", "f16"}, {"kivi4", "kivi4"}, {"kivi2", "q4_0:rot=h"}, {"q8_0", "kivi1"}};
static const int aims[] = {0, 1, 2, 3, 5, 20, 30, 63, 64, 65, 80, 100, 127, 128, 150, -1};
static const ts_how aimed = {.point_at = aims};

static void open_with(pair *p, int codec, int n)
{
    memset(p, 0, sizeof *p);
    ts_model_init(&p->m, 2, 4, 2, 64, 64, codecs[codec][0], codecs[codec][1]);
    pair_open(p);
    pair_grow(p, 0, 1, n, 64);
}

static kvf_cache *clean(ts_model *m, int n, uint64_t tag, int more)
{
    kvf_cache *c = ts_create(m);
    ts_grow(c, m, 0, 1, n, n);
    if (more) ts_grow(c, m, 0, tag, more, more);
    return c;
}

/* Cuts after which the sealed blocks are those of the shorter run: the same bytes at once, and later. */
static void test_cut_inside_the_window(void **state)
{
    static const int at[] = {199, 198, 195, 193, 192};
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++)
        for (int j = 0; j < COUNT(at); j++) {
            pair p;
            open_with(&p, i, 200);
            assert_int_equal(kvf_can(p.c, KVF_CAN_RM, 0, at[j]), 1);
            assert_int_equal(kvf_can(p.c, KVF_CAN_RM_EXACT, 0, at[j]), 1);
            pair_rm(&p, 0, at[j], -1);
            assert_int_equal(kvf_seq_pos_max(p.c, 0), at[j] - 1);
            kvf_cache *c = clean(&p.m, at[j], 2, 0);
            ts_same_sequence(p.c, 0, c, 0, &p.m);
            kvf_cache_free(&c);
            pair_next(&p, 0, 2, 3, &aimed);
            pair_grow(&p, 0, 2, 170, 50);
            c = clean(&p.m, at[j], 2, 170);
            ts_same_sequence(p.c, 0, c, 0, &p.m);
            kvf_cache_free(&c);
            kvf_stats_t s = {.size = sizeof s};
            ts_ok(kvf_stats(p.c, &s));
            assert_int_equal(s.accounted, ts_bytes(&p.m, at[j] + 170));
            pair_close(&p);
        }
}

/* Cuts that leave fewer than R exact rows: no coded row dies, and the bytes are those of the clean run once it has sealed as
 * many blocks. */
static void test_cut_that_shortens_the_window(void **state)
{
    static const int at[] = {191, 160, 129, 128};
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++)
        for (int j = 0; j < COUNT(at); j++) {
            pair p;
            open_with(&p, i, 200);
            assert_int_equal(kvf_can(p.c, KVF_CAN_RM, 0, at[j]), 1);
            assert_int_equal(kvf_can(p.c, KVF_CAN_RM_EXACT, 0, at[j]), 1);
            pair_rm(&p, 0, at[j], -1);
            assert_int_equal(kvf_seq_pos_max(p.c, 0), at[j] - 1);
            pair_next(&p, 0, 2, 3, &aimed);
            pair_grow(&p, 0, 2, 30, 30);
            pair_next(&p, 0, 2, 3, &aimed);
            pair_grow(&p, 0, 2, 120, 7);
            kvf_cache *c = clean(&p.m, at[j], 2, 150);
            ts_same_sequence(p.c, 0, c, 0, &p.m);
            kvf_cache_free(&c);
            pair_close(&p);
        }
}

/* Cuts among coded rows: those kept stay coded, the removed ones are never seen again, new rows open a block of their own. */
static void test_deep_cut(void **state)
{
    static const int at[] = {127, 126, 100, 65, 64, 63, 30, 5};
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++)
        for (int j = 0; j < COUNT(at); j++) {
            pair p;
            open_with(&p, i, 200);
            assert_int_equal(kvf_can(p.c, KVF_CAN_RM, 0, at[j]), 1);
            assert_int_equal(kvf_can(p.c, KVF_CAN_RM_EXACT, 0, at[j]), 0);
            assert_true(strlen(kvf_cache_error(p.c)) > 10);
            pair_rm(&p, 0, at[j], -1);
            assert_int_equal(kvf_seq_pos_max(p.c, 0), at[j] - 1);
            pair_next(&p, 0, 1, 3, &aimed); /* aimed at removed rows too: their content comes again */
            pair_next(&p, 0, 2, 3, &aimed);
            pair_grow(&p, 0, 2, 30, 7);
            pair_next(&p, 0, 2, 3, &aimed);
            pair_next(&p, 0, 1, 3, &aimed);
            pair_grow(&p, 0, 2, 300, 64); /* seals behind the cut */
            pair_next(&p, 0, 2, 3, &aimed);
            pair_rm(&p, 0, at[j] + 100, -1); /* and cut again */
            pair_next(&p, 0, 3, 3, &aimed);
            pair_grow(&p, 0, 3, 200, 200);
            pair_next(&p, 0, 3, 3, &aimed);
            pair_close(&p);
        }
}

/* A range in the middle: the rows after it stay, the next position stays. */
static void test_middle_range(void **state)
{
    static const int ranges[][2] = {{20, 40},   {60, 70}, {64, 128},  {100, 140}, {150, 160},
                                    {128, 199}, {4, 199}, {198, 199}, {70, 71}};
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++)
        for (int j = 0; j < COUNT(ranges); j++) {
            pair p;
            open_with(&p, i, 200);
            pair_rm(&p, 0, ranges[j][0], ranges[j][1]);
            assert_int_equal(kvf_seq_pos_max(p.c, 0), 199);
            kvf_stats_t s = {.size = sizeof s};
            ts_ok(kvf_stats(p.c, &s));
            assert_int_equal(s.tokens, 200 - (ranges[j][1] - ranges[j][0]));
            pair_next(&p, 0, 1, 3, &aimed);
            pair_grow(&p, 0, 1, 20, 7);
            pair_next(&p, 0, 1, 3, &aimed);
            if (i == 0) { /* f16: what is sealed with a hole in it is exact as well */
                pair_grow(&p, 0, 1, 300, 100);
                pair_next(&p, 0, 1, 3, &aimed);
            }
            pair_close(&p);
        }
}

static void test_across_the_sink(void **state)
{
    static const int ranges[][2] = {{0, 1}, {0, 4}, {2, 10}, {3, 4}, {0, 64}, {0, 128}, {0, 199}, {1, -1}, {2, -1}, {4, -1}};
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++)
        for (int j = 0; j < COUNT(ranges); j++) {
            pair p;
            int a = ranges[j][0], b = ranges[j][1];
            open_with(&p, i, 200);
            pair_rm(&p, 0, a, b);
            assert_int_equal(kvf_seq_pos_max(p.c, 0), b < 0 ? a - 1 : 199);
            kvf_stats_t s = {.size = sizeof s};
            ts_ok(kvf_stats(p.c, &s));
            assert_int_equal(s.tokens, b < 0 ? a : 200 - (b - a));
            pair_next(&p, 0, 1, 3, &aimed);
            pair_next(&p, 0, 2, 3, &aimed);
            pair_grow(&p, 0, 2, 30, 7);
            pair_next(&p, 0, 1, 3, &aimed);
            pair_next(&p, 0, 2, 3, &aimed);
            if (i == 0) {
                pair_grow(&p, 0, 2, 300, 100);
                pair_next(&p, 0, 2, 3, &aimed);
            }
            pair_close(&p);
        }
}

static void test_all(void **state)
{
    static const int ranges[][2] = {{0, -1}, {-5, -1}, {0, 200}, {0, 5000}, {-1, 200}};
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++)
        for (int j = 0; j < COUNT(ranges); j++) {
            pair p;
            open_with(&p, i, 200);
            assert_int_equal(kvf_can(p.c, KVF_CAN_RM, 0, 0), 1);
            ts_ok(kvf_seq_rm(p.c, 0, ranges[j][0], ranges[j][1]));
            assert_int_equal(kvf_seq_pos_max(p.c, 0), -1);
            kvf_stats_t s = {.size = sizeof s};
            ts_ok(kvf_stats(p.c, &s));
            assert_int_equal(s.tokens, 0);
            assert_int_equal(s.sequences, 0);
            assert_int_equal(s.accounted, ts_bytes(&p.m, 0));
            kvf_cache *c = clean(&p.m, 230, 0, 0);
            ts_grow(p.c, &p.m, 0, 1, 230, 33);
            ts_same_sequence(p.c, 0, c, 0, &p.m);
            kvf_cache_free(&c);
            pair_close(&p);
        }
}

/* Ranges that hold no row change nothing. */
static void test_nothing(void **state)
{
    static const int ranges[][2] = {{200, -1}, {5000, -1}, {200, 300}, {50, 50}};
    (void)state;
    pair p;
    open_with(&p, 1, 200);
    ts_snapshot before = ts_snapshot_take(p.c, &p.m);
    for (int j = 0; j < COUNT(ranges); j++) {
        ts_ok(kvf_seq_rm(p.c, 0, ranges[j][0], ranges[j][1]));
        ts_unchanged(p.c, &p.m, &before);
    }
    kvf_seq_rm(p.c, 0, 60, 50); /* refused or empty */
    ts_unchanged(p.c, &p.m, &before);
    ts_ok(kvf_seq_rm(p.c, 3, 0, -1)); /* an empty sequence */
    ts_unchanged(p.c, &p.m, &before);
    assert_int_equal(kvf_seq_rm(p.c, 4, 0, -1), KVF_E_ARG);
    assert_int_equal(kvf_seq_rm(p.c, -1, 0, -1), KVF_E_ARG);
    ts_unchanged(p.c, &p.m, &before);
    ts_snapshot_free(&before);
    pair_close(&p);
}

/* The next position is a stored number: a hole at the end of the kept rows does not lower it, a cut does. */
static void test_next_position(void **state)
{
    (void)state;
    pair p;
    open_with(&p, 1, 200);
    pair_rm(&p, 0, 180, 200); /* up to the end, said with a number */
    assert_int_equal(kvf_seq_pos_max(p.c, 0), 179);
    assert_int_equal(kvf_batch_begin(p.c, (kvf_token[]){{0, 200}}, 1), KVF_E_POSITION);
    pair_rm(&p, 0, 150, 179); /* row 179 stays */
    assert_int_equal(kvf_seq_pos_max(p.c, 0), 179);
    assert_int_equal(kvf_batch_begin(p.c, (kvf_token[]){{0, 150}}, 1), KVF_E_POSITION);
    pair_next(&p, 0, 1, 2, &aimed);
    pair_rm(&p, 0, 179, -1); /* rows up to 149 are left; positions go on at 179 */
    assert_int_equal(kvf_seq_pos_max(p.c, 0), 178);
    pair_next(&p, 0, 1, 2, &aimed);
    pair_grow(&p, 0, 1, 3, 3);
    assert_int_equal(kvf_seq_pos_max(p.c, 0), 181);
    pair_next(&p, 0, 1, 2, &aimed);
    pair_close(&p);
}

/* Three sequences, four hundred random steps; f16 codecs, so every answer is exact whatever was sealed when. */
static void test_random_operations(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        pair p = {0};
        ts_random r = {seed * 1000};
        ts_model_init(&p.m, 2, 2, 1, 16, 16, "f16", "f16");
        p.m.params.recent = (int)(seed - 1) * 40;
        p.m.params.sink = (int)(seed - 1) * 3;
        pair_open(&p);
        for (int step = 0; step < 400; step++) {
            int seq = (int)ts_next(&r, 3), last = oracle_pos_max(p.o, seq), what = (int)ts_next(&r, 12);
            if (what < 6 || last < 1 || !oracle_rows(p.o, seq))
                pair_grow(&p, seq, (uint64_t)step + 1, 1 + (int)ts_next(&r, what ? 60 : 300), 50);
            else if (what < 8)
                pair_rm(&p, seq, last - (int)ts_next(&r, (uint32_t)(last < 60 ? last : 60)), -1);
            else if (what < 9)
                pair_rm(&p, seq, (int)ts_next(&r, (uint32_t)last + 1), -1);
            else if (what < 11) {
                int a = (int)ts_next(&r, (uint32_t)last);
                pair_rm(&p, seq, a, a + 1 + (int)ts_next(&r, (uint32_t)(last - a)));
            } else {
                pair_rm(&p, (seq + 1) % 3, 0, -1);
                pair_cp(&p, seq, (seq + 1) % 3);
            }
            for (int s = 0; s < 3; s++) {
                if (oracle_rows(p.o, s)) assert_int_equal(kvf_seq_pos_max(p.c, s), oracle_pos_max(p.o, s));
                if (step % 4 == 0) pair_next(&p, s, 9999, 1, &aimed);
            }
        }
        kvf_stats_t s = {.size = sizeof s};
        ts_ok(kvf_stats(p.c, &s));
        assert_int_equal(s.tokens, oracle_rows(p.o, 0) + oracle_rows(p.o, 1) + oracle_rows(p.o, 2));
        for (int i = 0; i < 3; i++) ts_ok(kvf_seq_rm(p.c, i, 0, -1));
        ts_ok(kvf_stats(p.c, &s));
        assert_int_equal(s.accounted, ts_bytes(&p.m, 0)); /* no block was lost on the way */
        pair_close(&p);
    }
}

static void test_abilities(void **state)
{
    (void)state;
    pair p;
    open_with(&p, 1, 200);
    ts_snapshot before = ts_snapshot_take(p.c, &p.m);
    for (int pos = 0; pos < 200; pos += 25) {
        assert_int_equal(kvf_can(p.c, KVF_CAN_SHIFT, 0, pos), 0);
        assert_true(strlen(kvf_cache_error(p.c)) > 10);
        assert_int_equal(kvf_can(p.c, KVF_CAN_RM, 0, pos), 1);
    }
    assert_true(kvf_can(p.c, KVF_CAN_RM, 4, 0) < 0);
    assert_true(kvf_can(p.c, KVF_CAN_RM, -1, 0) < 0);
    assert_true(kvf_can(p.c, (kvf_ability)99, 0, 0) < 0);
    ts_unchanged(p.c, &p.m, &before);
    ts_snapshot_free(&before);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_inside_the_window),
        cmocka_unit_test(test_cut_that_shortens_the_window),
        cmocka_unit_test(test_deep_cut),
        cmocka_unit_test(test_middle_range),
        cmocka_unit_test(test_across_the_sink),
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_next_position),
        cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_abilities),
    };
    return ts_on_every_cpu("cache_rm", tests, sizeof tests / sizeof *tests);
}
