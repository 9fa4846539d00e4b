/* SPDX-License-Identifier: MIT
 * A batch happens whole or not at all; calls out of turn are refused and change nothing. */
#include "support.h"
#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static const char *const codecs[][2] = {{"f16", "f16"}, {"kivi3", "kivi4"}, {"q4_0:rot=h", "q8_0"}};

/* Four layers: full, windowed, sharing the first, full. */
static void model(ts_model *m, int codec)
{
    ts_model_init(m, 4, 4, 2, 64, 64, codecs[codec][0], codecs[codec][1]);
    m->layers[1].window = 40;
    m->layers[2].share = 0;
    m->params.window_keep = 10;
}

static const int owners[] = {0, 1, 3}; /* layers that are appended */

/* Aborted after 0 to 3 layers, with and without attention, on short, long and empty sequences, by batches that would have
 * sealed blocks: as if nothing had been. */
static void test_abort(void **state)
{
    static const int lengths[] = {0, 60, 256}, batches[] = {1, 5, 140};
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++)
        for (int j = 0; j < COUNT(lengths); j++) {
            ts_model m;
            ts_row rows[141];
            model(&m, i);
            kvf_cache *c = ts_create(&m);
            if (lengths[j]) ts_grow(c, &m, 0, 1, lengths[j], 64);
            ts_grow(c, &m, 2, 3, 70, 70);
            ts_snapshot before = ts_snapshot_take(c, &m);
            for (int k = 0; k < COUNT(batches) * 8; k++) {
                int n = batches[k / 8], layers = k % 4, attend = k / 4 % 2 && layers % 3 == 0;
                ts_rows(rows, n, 0, 2, lengths[j]);
                rows[n] = (ts_row){2, 70, 3};
                ts_batch *b = ts_batch_new(&m, rows, n + 1, NULL);
                ts_begin(c, b);
                if (attend) ts_attend_all(c, b);
                for (int l = 0; l < layers; l++) ts_ok(ts_batch_append(c, b, owners[l]));
                if (attend) ts_attend_all(c, b);
                ts_ok(kvf_batch_abort(c));
                ts_batch_free(b);
                assert_true(kvfi_cache_hash(c, 0) == before.hash[0] && kvfi_cache_hash(c, 2) == before.hash[2]);
                if (k % 8 == 7) ts_unchanged(c, &m, &before);
            }
            ts_snapshot_free(&before);
            kvf_cache_free(&c);
        }
}

/* A run with an aborted attempt before every batch equals one without. */
static void test_abort_then_commit(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        ts_model m;
        ts_row rows[50];
        model(&m, i);
        kvf_cache *a = ts_create(&m), *b = ts_create(&m);
        for (int t = 0; t < 400; t += 50) {
            ts_rows(rows, 50, 1, 7, t);
            ts_batch *lost = ts_batch_new(&m, rows, 50, NULL);
            ts_begin(a, lost);
            ts_append_all(a, lost);
            ts_ok(kvf_batch_abort(a));
            ts_batch_free(lost);
            ts_rows(rows, 50, 1, 1, t);
            ts_feed(a, &m, rows, 50, 50, NULL);
            ts_feed(b, &m, rows, 50, 50, NULL);
            assert_true(kvfi_cache_hash(a, 1) == kvfi_cache_hash(b, 1));
        }
        ts_same_sequence(a, 1, b, 1, &m);
        kvf_cache_free(&a);
        kvf_cache_free(&b);
    }
}

static void test_calls_without_a_batch(void **state)
{
    (void)state;
    ts_model m;
    ts_row row = {0, 30, 1};
    model(&m, 1);
    kvf_cache *c = ts_create(&m);
    ts_grow(c, &m, 0, 1, 30, 30);
    ts_snapshot before = ts_snapshot_take(c, &m);
    ts_batch *b = ts_batch_new(&m, &row, 1, NULL);
    assert_int_equal(kvf_batch_commit(c), KVF_E_STATE);
    assert_true(strlen(kvf_cache_error(c)) > 10);
    assert_int_equal(kvf_batch_abort(c), KVF_E_STATE);
    assert_int_equal(ts_batch_append(c, b, 0), KVF_E_STATE);
    assert_int_equal(ts_batch_attend(c, b, 0), KVF_E_STATE);
    ts_unchanged(c, &m, &before);
    ts_snapshot_free(&before);
    ts_batch_free(b);
    kvf_cache_free(&c);
}

typedef struct refusal {
    kvf_token tokens[4];
    int n, code;
} refusal;

/* Sequence 0 has 30 rows, sequence 1 none. */
static void test_batches_refused(void **state)
{
    static const refusal wrong[] = {
        {{{0, 31}}, 1, KVF_E_POSITION},
        {{{0, 29}}, 1, KVF_E_POSITION},
        {{{0, 0}}, 1, KVF_E_POSITION},
        {{{0, 30}, {0, 32}}, 2, KVF_E_POSITION},
        {{{0, 30}, {0, 30}}, 2, KVF_E_POSITION},
        {{{0, 31}, {0, 30}}, 2, KVF_E_POSITION},
        {{{0, 30}, {1, 0}, {0, 31}, {1, 2}}, 4, KVF_E_POSITION},
        {{{1, 5}, {1, 5}}, 2, KVF_E_POSITION},
        {{{4, 0}}, 1, KVF_E_ARG},
        {{{-1, 0}}, 1, KVF_E_ARG},
        {{{0, 30}, {77, 0}}, 2, KVF_E_ARG},
        {{{0, 30}}, 0, KVF_E_ARG},
        {{{0, 30}}, -1, KVF_E_ARG},
    };
    (void)state;
    ts_model m;
    model(&m, 1);
    kvf_cache *c = ts_create(&m);
    ts_grow(c, &m, 0, 1, 30, 30);
    ts_snapshot before = ts_snapshot_take(c, &m);
    for (int i = 0; i < COUNT(wrong); i++) {
        int code = kvf_batch_begin(c, wrong[i].tokens, wrong[i].n);
        if (code != wrong[i].code) fail_msg("case %d: %d (%s), expected %d", i, code, kvf_cache_error(c), wrong[i].code);
        assert_true(strlen(kvf_cache_error(c)) > 10);
        ts_unchanged(c, &m, &before);
    }
    assert_int_equal(kvf_batch_begin(c, (kvf_token[]){{0, 31}}, 1), KVF_E_POSITION);
    assert_non_null(strstr(kvf_cache_error(c), "31"));
    assert_non_null(strstr(kvf_cache_error(c), "30"));
    int code = kvf_batch_begin(c, (kvf_token[]){{1, -1}}, 1);
    assert_true(code == KVF_E_POSITION || code == KVF_E_ARG);
    assert_int_equal(kvf_batch_begin(c, NULL, 1), KVF_E_ARG);
    ts_unchanged(c, &m, &before);
    ts_snapshot_free(&before);
    kvf_cache_free(&c);
}

static void test_batch_too_large(void **state)
{
    (void)state;
    ts_model m;
    kvf_token tokens[513];
    model(&m, 1);
    for (int i = 0; i < 513; i++) tokens[i] = (kvf_token){0, i};
    for (int most = 1; most <= 512; most += 511) {
        m.params.max_batch = most;
        kvf_cache *c = ts_create(&m);
        int code = kvf_batch_begin(c, tokens, most + 1);
        assert_true(code == KVF_E_ARG || code == KVF_E_FULL);
        ts_ok(kvf_batch_begin(c, tokens, most));
        ts_ok(kvf_batch_abort(c));
        kvf_cache_free(&c);
    }
}

/* Each refusal leaves the batch open; in the end it commits and equals the clean run. */
static void test_calls_out_of_turn(void **state)
{
    (void)state;
    ts_model m;
    ts_row rows[130];
    kvf_plan plan, second;
    kvf_attention a;
    model(&m, 1);
    kvf_cache *c = ts_create(&m), *clean = ts_create(&m);
    ts_rows(rows, 130, 0, 1, 0);
    ts_feed(clean, &m, rows, 130, 130, NULL);
    ts_batch *b = ts_batch_new(&m, rows, 130, NULL);
    ts_begin(c, b);
    assert_int_equal(ts_batch_begin(c, b), KVF_E_STATE);
    assert_int_equal(kvf_batch_commit(c), KVF_E_STATE);
    ts_ok(ts_batch_append(c, b, 3));
    assert_int_equal(ts_batch_append(c, b, 3), KVF_E_STATE); /* twice */
    assert_true(ts_names(kvf_cache_error(c), "layer", 3));
    assert_true(ts_batch_append(c, b, 2) < 0); /* shares */
    assert_int_equal(kvf_batch_append(c, 4, &b->k[0].view, &b->v[0].view, NULL), KVF_E_ARG);
    assert_int_equal(kvf_batch_append(c, -1, &b->k[0].view, &b->v[0].view, NULL), KVF_E_ARG);
    ts_ok(ts_batch_append(c, b, 0));
    assert_int_equal(kvf_batch_commit(c), KVF_E_STATE);
    assert_true(ts_names(kvf_cache_error(c), "layer", 1));
    assert_int_equal(kvf_seq_pos_max(c, 0), -1);
    assert_int_equal(kvf_seq_rm(c, 0, 0, -1), KVF_E_STATE);
    ts_batch_request(b, 0, &a, b->out[0], b->lse[0]);
    ts_ok(kvf_attend_begin(c, &a, &plan));
    assert_int_equal(kvf_attend_begin(c, &a, &second), KVF_E_STATE);
    for (int i = 0; i < plan.parts; i++) kvf_attend_part(&plan, i);
    ts_ok(kvf_attend_end(&plan));
    ts_ok(ts_batch_append(c, b, 1));
    ts_ok(kvf_batch_commit(c));
    assert_int_equal(kvf_batch_commit(c), KVF_E_STATE);
    ts_same_sequence(c, 0, clean, 0, &m);
    ts_batch_free(b);
    kvf_cache_free(&c);
    kvf_cache_free(&clean);
}

/* A part left out is noticed, the plan stays open, and the part can be done after all. */
static void test_part_not_done(void **state)
{
    (void)state;
    ts_model m;
    ts_row rows[4];
    kvf_plan plan;
    kvf_attention a;
    model(&m, 1);
    m.params.threads = 4;
    kvf_cache *c = ts_create(&m);
    ts_grow(c, &m, 0, 1, 500, 500);
    ts_rows(rows, 4, 0, 1, 500);
    ts_batch *b = ts_batch_new(&m, rows, 4, NULL), *serial = ts_batch_new(&m, rows, 4, NULL);
    ts_begin(c, b);
    ts_attend_all(c, serial);
    ts_batch_request(b, 0, &a, b->out[0], b->lse[0]);
    ts_ok(kvf_attend_begin(c, &a, &plan));
    assert_true(plan.parts >= 1);
    for (int left = 0; left < plan.parts; left++) {
        if (left) ts_ok(kvf_attend_begin(c, &a, &plan));
        for (int i = 0; i < plan.parts; i++)
            if (i != left) kvf_attend_part(&plan, i);
        assert_int_equal(kvf_attend_end(&plan), KVF_E_STATE);
        kvf_attend_part(&plan, left);
        ts_ok(kvf_attend_end(&plan));
        assert_memory_equal(b->out[0], serial->out[0], 4 * 4 * 64 * sizeof(float));
        memset(b->out[0], 0, 4 * 4 * 64 * sizeof(float));
    }
    ts_ok(kvf_batch_abort(c));
    ts_batch_free(b);
    ts_batch_free(serial);
    kvf_cache_free(&c);
}

/* The log-sum-exp is not asked for: the output is the same. */
static void test_without_lse(void **state)
{
    (void)state;
    ts_model m;
    ts_row rows[4];
    kvf_attention a;
    model(&m, 1);
    kvf_cache *c = ts_create(&m);
    ts_grow(c, &m, 0, 1, 300, 300);
    ts_rows(rows, 4, 0, 1, 300);
    ts_batch *b = ts_batch_new(&m, rows, 4, NULL), *with = ts_batch_new(&m, rows, 4, NULL);
    ts_begin(c, b);
    ts_attend_all(c, with);
    ts_batch_request(b, 0, &a, b->out[0], NULL);
    ts_ok(kvf_attend(c, &a));
    assert_memory_equal(b->out[0], with->out[0], 4 * 4 * 64 * sizeof(float));
    ts_ok(kvf_batch_abort(c));
    ts_batch_free(b);
    ts_batch_free(with);
    kvf_cache_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_abort),           cmocka_unit_test(test_abort_then_commit),
        cmocka_unit_test(test_batches_refused), cmocka_unit_test(test_calls_without_a_batch),
        cmocka_unit_test(test_batch_too_large), cmocka_unit_test(test_calls_out_of_turn),
        cmocka_unit_test(test_part_not_done),   cmocka_unit_test(test_without_lse),
    };
    return ts_on_every_cpu("cache_transaction", tests, sizeof tests / sizeof *tests);
}
