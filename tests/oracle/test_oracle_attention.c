/* SPDX-License-Identifier: MIT
 * Attention over sink, packed body, window and tail against the oracle: codecs, lengths, head sizes, groups of query heads. */
#include "pair.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static const char *const codecs[][2] = {
    {"f16", "f16"},
    {"q8_0", "q8_0"},
    {"q4_0", "q4_0"},
    {"q4_0:rot=h", "q4_0:rot=h"},
    {"q8_0:rot=h", "q4_0"},
    {"kivi1", "kivi1"},
    {"kivi2", "kivi2"},
    {"kivi3", "kivi3"},
    {"kivi4", "kivi4"},
    {"kivi8", "kivi8"},
    {"q8_0", "kivi2"},
    {"f16", "kivi3"},
    {"kivi4", "f16"},
    {"kivi1", "q4_0:rot=h"},
    {"kivi2:group=16", "kivi3:group=64"},
    {"uni4:centre=block,scale=none", "turbo4:rot=h2,seed=3"},
    {"q4_0:rot=h1,centre=block", "uni6:rot=none"},
};

/* Distances at which something changes: the row itself, its neighbours, edges of blocks and windows. */
static const int aims[] = {0, 1, 2, 3, 63, 64, 65, 66, 127, 128, 129, 191, 192, -1};

/* Single rows and four rows at every length that is an edge of something, grown without attention in between. */
static void lengths_with(const char *k, const char *v, int sink, int recent, int exact_bits)
{
    static const int at[] = {0, 1, 3, 4, 5, 31, 63, 64, 65, 127, 128, 129, 191, 192, 193, 200, 255, 256, 1000};
    pair p = {0};
    ts_how aimed = {.point_at = aims}, random = {0};
    ts_model_init(&p.m, 2, 4, 2, 64, 64, k, v);
    p.m.params.sink = sink;
    p.m.params.recent = recent;
    p.m.params.exact_bits = exact_bits;
    pair_open(&p);
    for (int i = 0; i < COUNT(at); i++) {
        pair_grow(&p, 0, 1, at[i] - oracle_pos_max(p.o, 0) - 1, 512);
        pair_next(&p, 0, 1, 1, &aimed);
        pair_next(&p, 0, 1, 1, &random);
        pair_next(&p, 0, 1, 4, &aimed);
    }
    pair_close(&p);
}

static void lengths(const char *k, const char *v, int sink, int recent)
{
    lengths_with(k, v, sink, recent, 16);
}

/* Sink and window in q8_0. */
static void test_exact_rows_of_eight_bits(void **state)
{
    (void)state;
    lengths_with("q4_0", "kivi4", 4, 64, 8);
    lengths_with("f16", "f16", 3, 1, 8);
}

static void test_codecs_and_lengths(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) lengths(codecs[i][0], codecs[i][1], 4, 64);
}

/* Sums of code matrices, scored packed (few rows) and unfolded (many); centre and scale off, as they are in the oracle. */
static void test_sums_of_code_matrices(void **state)
{
    static const char *const pairs[][2] = {{"prod3:centre=none,scale=none", "prod2"},
                                           {"qjl:centre=none", "turbo2:outliers=16"},
                                           {"qjl:m=128,outliers=4,centre=none", "prod3:sketch=iid"},
                                           {"turbo3:outliers=32,centre=none,scale=none", "rvq4"}};
    (void)state;
    for (int i = 0; i < COUNT(pairs); i++)
        for (int big = 0; big < 2; big++) {
            pair p = {0};
            ts_how aimed = {.point_at = aims};
            ts_model_init(&p.m, 1, 6, 2, big ? 128 : 64, big ? 64 : 80, pairs[i][0], pairs[i][1]);
            pair_open(&p);
            pair_grow(&p, 0, 1, 330, 330);
            pair_next(&p, 0, 1, 1, &aimed);
            pair_next(&p, 0, 1, 30, &aimed);
            pair_close(&p);
        }
}

/* A rotation that is a matrix, one for keys and another for values, or one for both. */
static void test_matrices(void **state)
{
    (void)state;
    lengths("turbo3:rot=haar,centre=none,scale=none", "uni4:rot=haar,seed=5", 4, 64);
    lengths("uni5:rot=haar,centre=block,scale=none", "q8_0:rot=haar", 0, 64);
}

static void test_sinks_and_windows_of_all_sizes(void **state)
{
    static const int sizes[][2] = {{0, 0}, {64, 0}, {4, 0}, {0, 64}, {1, 63}, {5, 65}, {63, 1}, {64, 128}, {4, 300}};
    (void)state;
    for (int i = 0; i < COUNT(sizes); i++) {
        lengths("kivi2", "q4_0", sizes[i][0], sizes[i][1]);
        lengths("f16", "kivi3", sizes[i][0], sizes[i][1]);
    }
}

/* One head size with every codec that takes it; returns how many were refused. A refusal must name the size. */
static int head_size(int k_dim, int v_dim)
{
    int refused = 0;
    for (int i = 0; i < COUNT(codecs); i++) {
        pair p = {0};
        kvf_cache *c = NULL;
        ts_how aimed = {.point_at = aims};
        ts_model_init(&p.m, 1, 2, 1, k_dim, v_dim, codecs[i][0], codecs[i][1]);
        int code = ts_try(&p.m, &c);
        kvf_cache_free(&c);
        if (code != KVF_OK) {
            char number[2][16];
            snprintf(number[0], sizeof number[0], "%d", k_dim);
            snprintf(number[1], sizeof number[1], "%d", v_dim);
            if (!strstr(p.m.error, number[0]) && !strstr(p.m.error, number[1]))
                fail_msg("%s/%s with %d/%d channels: %d, \"%s\" does not name the size", codecs[i][0], codecs[i][1], k_dim, v_dim,
                         code, p.m.error);
            if (!strstr(codecs[i][0], "rot") && !strstr(codecs[i][1], "rot")) refused++;
            continue;
        }
        pair_open(&p);
        pair_grow(&p, 0, 1, 200, 200);
        pair_next(&p, 0, 1, 1, &aimed);
        pair_next(&p, 0, 1, 3, &aimed);
        pair_close(&p);
    }
    return refused;
}

static void test_head_sizes(void **state)
{
    static const int sizes[] = {64, 72, 80, 96, 112, 128, 192, 256, 512, 576};
    (void)state;
    for (int i = 0; i < COUNT(sizes); i++) assert_int_equal(head_size(sizes[i], sizes[i]), 0);
}

/* Scales of kivi keys are folded into the query, so a strong channel that a query looks at makes one multiplier as large as the whole
 * score; the many small ones beside it must be rounded as finely as ever. */
static void test_strong_channels(void **state)
{
    static const char *const keys[] = {"kivi1", "kivi2", "kivi3", "kivi4", "kivi8:group=16", "kivi4:group=64"};
    (void)state;
    for (int i = 0; i < COUNT(keys) * 2; i++) {
        pair p = {0};
        ts_how aimed = {.point_at = aims};
        ts_model_init(&p.m, 1, 4, 2, i % 2 ? 72 : 128, 64, keys[i / 2], "q8_0");
        p.m.strong = 40;
        pair_open(&p);
        p.bound = fmin(p.bound, 2e-4);
        pair_grow(&p, 0, 1, 400, 400);
        for (int n = 0; n < 6; n++) pair_next(&p, 0, 1, 3, &aimed);
        pair_close(&p);
    }
}

static void test_smallest_and_odd_head_sizes(void **state)
{
    static const int sizes[] = {1, 2, 3, 15, 17, 33, 63, 65, 1023, 1024};
    (void)state;
    for (int i = 0; i < COUNT(sizes); i++) {
        pair p = {0};
        ts_model_init(&p.m, 1, 3, 1, sizes[i], sizes[i], "f16", "f16");
        pair_open(&p); /* f16 takes every size */
        pair_close(&p);
        head_size(sizes[i], sizes[i]);
    }
}

static void test_key_and_value_sizes_that_differ(void **state)
{
    static const int sizes[][2] = {{64, 128}, {128, 64}, {192, 128}, {80, 96}, {576, 512}, {2, 64}, {64, 1}, {1, 3}};
    (void)state;
    for (int i = 0; i < COUNT(sizes); i++) head_size(sizes[i][0], sizes[i][1]);
}

static void test_groups_of_query_heads(void **state)
{
    static const int ratios[] = {1, 2, 3, 5, 7, 8, 16};
    (void)state;
    for (int i = 0; i < COUNT(ratios); i++)
        for (int j = 0; j < COUNT(codecs); j++) {
            pair p = {0};
            ts_how aimed = {.point_at = aims};
            int kv_heads = 1 + i % 3;
            ts_model_init(&p.m, 1, ratios[i] * kv_heads, kv_heads, 64, 80, codecs[j][0], codecs[j][1]);
            pair_open(&p);
            pair_grow(&p, 0, 1, 150, 150);
            pair_next(&p, 0, 1, 1, &aimed);
            pair_next(&p, 0, 1, 5, &aimed);
            pair_close(&p);
        }
}

/* Many rows at once, with and without history; each batch is compared before it is committed. */
static void test_prefill(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        pair p = {0};
        ts_row rows[330];
        ts_how aimed = {.point_at = aims};
        ts_model_init(&p.m, 1, 4, 2, 64, 64, codecs[i][0], codecs[i][1]);
        ts_rows(rows, 330, 0, 1, 0);
        pair_open(&p);
        pair_feed(&p, rows, 330, 110, &aimed, 1);
        pair_next(&p, 0, 1, 65, NULL);
        pair_close(&p);
    }
}

/* Speculative rows: four in one batch say what four single steps say. R = 64: rows 192.. are exact throughout. */
static void test_four_rows_equal_four_steps(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        pair p = {0};
        ts_row rows[4];
        ts_model_init(&p.m, 1, 6, 2, 64, 64, codecs[i][0], codecs[i][1]);
        pair_open(&p);
        pair_grow(&p, 0, 1, 200, 200);
        ts_rows(rows, 4, 0, 1, 200);
        ts_batch *four = ts_batch_new(&p.m, rows, 4, NULL);
        ts_begin(p.c, four);
        ts_attend_all(p.c, four);
        ts_ok(kvf_batch_abort(p.c));
        for (int t = 0; t < 4; t++) {
            ts_batch *one = ts_batch_new(&p.m, rows + t, 1, NULL);
            ts_begin(p.c, one);
            ts_attend_all(p.c, one);
            for (int c = 0; c < 6 * 64; c++) {
                double d = (double)one->out[0][c] - (double)four->out[0][t * 6 * 64 + c];
                if (d < -4 * p.bound || d > 4 * p.bound) fail_msg("%s: row %d, value %d differs by %g", codecs[i][0], t, c, d);
            }
            ts_append_all(p.c, one);
            ts_ok(kvf_batch_commit(p.c));
            ts_batch_free(one);
        }
        ts_batch_free(four);
        pair_close(&p);
    }
}

/* Rows of three sequences of different lengths, mixed in one batch; one of them is new. */
static void test_batch_of_several_sequences(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        pair p = {0};
        ts_how aimed = {.point_at = aims};
        ts_model_init(&p.m, 2, 4, 2, 64, 64, codecs[i][0], codecs[i][1]);
        pair_open(&p);
        pair_grow(&p, 0, 1, 300, 300);
        pair_grow(&p, 2, 2, 70, 70);
        ts_row rows[] = {{0, 300, 1}, {2, 70, 2}, {1, 17, 3}, {0, 301, 1}, {1, 18, 3}, {2, 71, 2}, {1, 19, 3}, {0, 302, 1}};
        pair_attend(&p, rows, COUNT(rows), &aimed);
        pair_feed(&p, rows, COUNT(rows), COUNT(rows), &aimed, 1);
        pair_next(&p, 0, 1, 2, &aimed);
        pair_next(&p, 1, 3, 2, &aimed);
        pair_next(&p, 2, 2, 2, &aimed);
        pair_close(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strong_channels),
        cmocka_unit_test(test_codecs_and_lengths),
        cmocka_unit_test(test_sums_of_code_matrices),
        cmocka_unit_test(test_exact_rows_of_eight_bits),
        cmocka_unit_test(test_matrices),
        cmocka_unit_test(test_sinks_and_windows_of_all_sizes),
        cmocka_unit_test(test_head_sizes),
        cmocka_unit_test(test_smallest_and_odd_head_sizes),
        cmocka_unit_test(test_key_and_value_sizes_that_differ),
        cmocka_unit_test(test_groups_of_query_heads),
        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_four_rows_equal_four_steps),
        cmocka_unit_test(test_batch_of_several_sequences),
    };
    return ts_on_every_cpu("oracle_attention", tests, sizeof tests / sizeof *tests);
}
