/* SPDX-License-Identifier: MIT
 * Copies that share blocks, keep, positions. */
#include "../oracle/pair.h"
#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static const char *const codecs[][2] = {{"f16", "f16"}, {"kivi4", "kivi4"}, {"q4_0:rot=h", "kivi2"}};
static const int aims[] = {0, 1, 3, 63, 64, 65, 100, 127, 128, 200, -1};

static void model(ts_model *m, int codec)
{
    ts_model_init(m, 2, 4, 2, 64, 64, codecs[codec][0], codecs[codec][1]);
    m->layers[1].window = 100;
}

static int64_t accounted(kvf_cache *c)
{
    kvf_stats_t s = {.size = sizeof s};
    ts_ok(kvf_stats(c, &s));
    return s.accounted;
}

/* Bytes of the records of `blocks` blocks of one layer. */
static int64_t record_bytes(const char *k, const char *v, int heads, int k_dim, int v_dim, int blocks)
{
    kvf_spec_info a, b;
    ts_ok(kvf_spec_check(k, KVF_K, k_dim, &a, NULL, 0));
    ts_ok(kvf_spec_check(v, KVF_V, v_dim, &b, NULL, 0));
    return (int64_t)(a.block_bytes + b.block_bytes) * heads * blocks;
}

static void test_copy_then_diverge(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        ts_model m;
        model(&m, i);
        kvf_cache *c = ts_create(&m), *solo[2] = {ts_create(&m), ts_create(&m)};
        ts_grow(c, &m, 0, 1, 300, 77);
        ts_ok(kvf_seq_cp(c, 0, 1));
        ts_same_sequence(c, 0, c, 1, &m);
        for (int s = 0; s < 2; s++) ts_grow(solo[s], &m, 0, 1, 300, 300);
        for (int step = 0; step < 200; step += 20) { /* in turns, so that each seals beside the other */
            ts_grow(c, &m, 0, 1, 20, 20);
            ts_grow(c, &m, 1, 2, 20, 10);
        }
        ts_grow(solo[0], &m, 0, 1, 200, 200);
        ts_grow(solo[1], &m, 0, 2, 200, 200);
        ts_same_sequence(c, 0, solo[0], 0, &m);
        ts_same_sequence(c, 1, solo[1], 0, &m);
        ts_ok(kvf_seq_rm(c, 0, 0, -1));
        assert_int_equal(kvf_seq_pos_max(c, 0), -1);
        ts_same_sequence(c, 1, solo[1], 0, &m);
        assert_int_equal(accounted(c), accounted(solo[1]));
        ts_ok(kvf_seq_rm(c, 1, 0, -1));
        assert_int_equal(accounted(c), ts_bytes(&m, 0));
        ts_grow(c, &m, 3, 1, 500, 100); /* blocks that were given back hold new rows as well */
        ts_same_sequence(c, 3, solo[0], 0, &m);
        kvf_cache_free(&c);
        kvf_cache_free(&solo[0]);
        kvf_cache_free(&solo[1]);
    }
}

/* A copy costs its sink and window and no records. */
static void test_copy_shares_memory(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        ts_model m;
        model(&m, i);
        m.layers[1].window = 0;
        kvf_cache *c = ts_create(&m);
        ts_grow(c, &m, 0, 1, 1000, 500);
        int64_t before = accounted(c), records = 2 * record_bytes(codecs[i][0], codecs[i][1], 2, 64, 64, 14);
        ts_ok(kvf_seq_cp(c, 0, 1));
        int64_t after = accounted(c), exact = 2 * 2 * (64 + 64) * 2; /* layers, heads, channels, bytes: one exact row */
        if (after - before > before - records) fail_msg("a copy costs %lld bytes", (long long)(after - before));
        if (after - before < exact * (1000 - 14 * 64)) fail_msg("a copy has no window of its own");
        kvf_stats_t s = {.size = sizeof s};
        ts_ok(kvf_stats(c, &s));
        assert_int_equal(s.sequences, 2);
        assert_int_equal(s.tokens, 2000);
        kvf_cache_free(&c);
    }
}

/* Rows removed from a copy are still there in the original: validity belongs to the sequence, not to the block. */
static void test_rm_in_a_copy(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        pair p = {0};
        ts_how how = {.point_at = aims};
        model(&p.m, i);
        pair_open(&p);
        pair_grow(&p, 0, 1, 260, 260);
        uint64_t hash = kvfi_cache_hash(p.c, 0);
        pair_cp(&p, 0, 2);
        pair_rm(&p, 2, 100, -1);
        assert_true(hash == kvfi_cache_hash(p.c, 0));
        assert_int_equal(kvf_seq_pos_max(p.c, 0), 259);
        assert_int_equal(kvf_seq_pos_max(p.c, 2), 99);
        pair_next(&p, 0, 1, 3, &how);
        pair_next(&p, 2, 1, 3, &how);
        pair_grow(&p, 2, 5, 40, 40);
        pair_cp(&p, 2, 1); /* dead rows and a short block travel with a copy */
        pair_next(&p, 1, 5, 3, &how);
        pair_next(&p, 2, 5, 3, &how);
        pair_rm(&p, 0, 0, -1);
        pair_next(&p, 1, 5, 3, &how);
        pair_close(&p);
    }
}

static void test_copy_refused(void **state)
{
    (void)state;
    ts_model m;
    model(&m, 1);
    kvf_cache *c = ts_create(&m);
    ts_grow(c, &m, 0, 1, 150, 150);
    ts_grow(c, &m, 1, 2, 10, 10);
    ts_snapshot before = ts_snapshot_take(c, &m);
    static const int wrong[][2] = {{0, 1}, {0, 0}, {0, 4}, {-1, 2}, {4, 2}, {0, -1}};
    for (int i = 0; i < COUNT(wrong); i++) {
        assert_true(kvf_seq_cp(c, wrong[i][0], wrong[i][1]) < 0);
        assert_true(strlen(kvf_cache_error(c)) > 10);
        ts_unchanged(c, &m, &before);
    }
    ts_row row = {2, 0, 1};
    ts_batch *b = ts_batch_new(&m, &row, 1, NULL);
    ts_begin(c, b);
    assert_int_equal(kvf_seq_cp(c, 0, 3), KVF_E_STATE);
    assert_int_equal(kvf_seq_rm(c, 0, 0, -1), KVF_E_STATE);
    assert_int_equal(kvf_seq_keep(c, 0), KVF_E_STATE);
    ts_ok(kvf_batch_abort(c));
    ts_unchanged(c, &m, &before);
    ts_snapshot_free(&before);
    ts_batch_free(b);
    kvf_cache_free(&c);
}

static void test_keep(void **state)
{
    (void)state;
    ts_model m;
    model(&m, 1);
    kvf_cache *c = ts_create(&m), *solo = ts_create(&m);
    ts_grow(c, &m, 0, 1, 200, 200);
    ts_ok(kvf_seq_cp(c, 0, 1));
    ts_grow(c, &m, 1, 2, 100, 100);
    ts_grow(c, &m, 3, 3, 20, 20);
    ts_ok(kvf_seq_keep(c, 1));
    ts_grow(solo, &m, 0, 1, 200, 200);
    ts_grow(solo, &m, 0, 2, 100, 100);
    ts_same_sequence(c, 1, solo, 0, &m);
    for (int s = 0; s < 4; s++) assert_int_equal(kvf_seq_pos_max(c, s), s == 1 ? 299 : -1);
    assert_int_equal(accounted(c), accounted(solo));
    assert_int_equal(kvf_seq_keep(c, 4), KVF_E_ARG);
    assert_int_equal(kvf_seq_keep(c, -1), KVF_E_ARG);
    ts_ok(kvf_seq_keep(c, 2)); /* an empty one: nothing is left */
    assert_int_equal(accounted(c), ts_bytes(&m, 0));
    kvf_cache_free(&c);
    kvf_cache_free(&solo);
}

/* Blocks follow the rows of a sequence and not its positions, which may start anywhere. */
static void test_positions_from_anywhere(void **state)
{
    static const int starts[] = {0, 1, 63, 1000, 100000};
    (void)state;
    for (int i = 0; i < COUNT(starts); i++) {
        pair p = {0};
        ts_how how = {.point_at = aims};
        ts_row rows[230];
        model(&p.m, 1);
        pair_open(&p);
        assert_int_equal(kvf_seq_pos_max(p.c, 0), -1);
        ts_rows(rows, 230, 0, 1, starts[i]);
        pair_feed(&p, rows, 230, 70, &how, 1);
        assert_int_equal(kvf_seq_pos_max(p.c, 0), starts[i] + 229);
        pair_next(&p, 0, 1, 4, &how);
        kvf_stats_t s = {.size = sizeof s};
        ts_ok(kvf_stats(p.c, &s));
        assert_int_equal(s.tokens, 230);
        assert_int_equal(s.tokens_body, 124);
        assert_int_equal(s.accounted, ts_bytes(&p.m, 230));
        pair_close(&p);
    }
}

/* Up to the end of what an int32 can say: the last positions are used or refused, never wrapped. */
static void test_last_positions(void **state)
{
    static const float slopes[] = {1e-3f, 1e-4f, 0, 1e-5f};
    (void)state;
    pair p = {0};
    ts_row rows[150];
    ts_how how = {.point_at = aims, .slopes = slopes};
    int32_t start = INT32_MAX - 160;
    model(&p.m, 1);
    pair_open(&p);
    ts_rows(rows, 150, 0, 1, start);
    pair_feed(&p, rows, 150, 50, &how, 1);
    pair_next(&p, 0, 1, 4, &how);
    for (int32_t pos = start + 150; pos < INT32_MAX; pos++) {
        if (kvf_batch_begin(p.c, (kvf_token[]){{0, pos}}, 1) != KVF_OK) break;
        ts_ok(kvf_batch_abort(p.c));
        pair_grow(&p, 0, 1, 1, 1);
    }
    assert_true(kvf_seq_pos_max(p.c, 0) >= INT32_MAX - 2);
    assert_int_equal(kvf_batch_begin(p.c, (kvf_token[]){{0, INT32_MIN}}, 1), KVF_E_POSITION);
    assert_int_equal(kvf_batch_begin(p.c, (kvf_token[]){{1, INT32_MAX}, {1, INT32_MIN}}, 2), KVF_E_POSITION);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy_then_diverge),
        cmocka_unit_test(test_copy_shares_memory),
        cmocka_unit_test(test_rm_in_a_copy),
        cmocka_unit_test(test_copy_refused),
        cmocka_unit_test(test_keep),
        cmocka_unit_test(test_positions_from_anywhere),
        cmocka_unit_test(test_last_positions),
    };
    return ts_on_every_cpu("cache_sequences", tests, sizeof tests / sizeof *tests);
}
