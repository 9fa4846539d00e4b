/* SPDX-License-Identifier: MIT
 * seal_each: a query sees the rows of its own batch coded. Compared with a plain cache that is given the decoded rows to attend to. */
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 64, HEADS = 2, BLOCK = 64 };

static ts_batch *batch(const ts_model *m, int first, int n)
{
    ts_row rows[256];
    ts_how how = {.type = KVF_F32};
    ts_rows(rows, n, 0, 1, first);
    return ts_batch_new(m, rows, n, &how);
}

/* The first `n` rows of one side of a batch of plain layout, block by block: what coding makes of them. */
static void decode_rows(ts_side *s, int n, const char *spec, kvf_side side)
{
    float *rows = (float *)(uintptr_t)s->view.data, *x = malloc(BLOCK * DIM * sizeof *x);
    kvf_spec_info info;
    assert_int_equal(kvf_spec_check(spec, side, DIM, &info, NULL, 0), KVF_OK);
    void *record = aligned_alloc(64, info.block_bytes);
    assert_int_equal(s->view.token_stride, HEADS * DIM * sizeof(float));
    for (int first = 0; first + BLOCK <= n; first += BLOCK)
        for (int h = 0; h < HEADS; h++) {
            for (int t = 0; t < BLOCK; t++) memcpy(x + t * DIM, rows + ((first + t) * HEADS + h) * DIM, DIM * sizeof *x);
            assert_int_equal(kvf_op_encode(spec, side, DIM, x, record), KVF_OK);
            assert_int_equal(kvf_op_decode(spec, side, DIM, record, x), KVF_OK);
            for (int t = 0; t < BLOCK; t++) memcpy(rows + ((first + t) * HEADS + h) * DIM, x + t * DIM, DIM * sizeof *x);
        }
    free(x), free(record);
}

/* Largest difference between the answers of two batches, as a share of the largest answer. */
static double difference(const ts_batch *a, const ts_batch *b)
{
    double most = 0, size = 0;
    for (int i = 0; i < a->n * 2 * HEADS * DIM; i++) {
        most = fmax(most, fabs((double)a->out[0][i] - (double)b->out[0][i]));
        size = fmax(size, fabs((double)a->out[0][i]));
    }
    return most / size;
}

/* After `history` rows, n more: seal_each against decoded rows and, to show that it does anything, against exact ones. */
static void compare(const char *k, const char *v, int history, int n, int coded)
{
    ts_model each, plain;
    ts_model_init(&each, 1, 2 * HEADS, HEADS, DIM, DIM, k, v);
    each.params.recent = 0, each.params.sink = 0;
    plain = each;
    plain.params.layers = plain.layers;
    each.params.seal_each = 1;
    each.params.layers = each.layers;
    kvf_cache *c = ts_create(&each), *d = ts_create(&plain);
    ts_row rows[256];
    ts_how how = {.type = KVF_F32};
    ts_rows(rows, history, 0, 1, 0);
    ts_feed(c, &each, rows, history, BLOCK, &how);
    ts_feed(d, &plain, rows, history, BLOCK, &how);
    ts_batch *a = batch(&each, history, n), *b = batch(&plain, history, n), *exact = batch(&plain, history, n);
    decode_rows(&b->k[0], coded, k, KVF_K);
    decode_rows(&b->v[0], coded, v, KVF_V);
    ts_begin(c, a), ts_attend_all(c, a);
    ts_begin(d, b), ts_attend_all(d, b);
    kvf_batch_abort(d);
    ts_begin(d, exact), ts_attend_all(d, exact);
    assert_true(difference(a, b) < 3e-5); /* as between two instruction sets */
    assert_int_equal(difference(a, exact) > 1e-3, coded > 0);
    ts_append_all(c, a);
    assert_int_equal(kvf_batch_commit(c), KVF_OK); /* the rows themselves are stored, not what was made of them */
    ts_append_all(d, exact);
    assert_int_equal(kvf_batch_commit(d), KVF_OK);
    float x[DIM], y[DIM];
    for (int side = 0; side < 2; side++)
        for (int pos = 0; pos < history + n; pos += 13) {
            assert_int_equal(kvf_seq_read(c, 0, 0, (kvf_side)side, 1, pos, x), KVF_OK);
            assert_int_equal(kvf_seq_read(d, 0, 0, (kvf_side)side, 1, pos, y), KVF_OK);
            assert_memory_equal(x, y, sizeof x);
        }
    ts_batch_free(a), ts_batch_free(b), ts_batch_free(exact);
    kvf_cache_free(&c), kvf_cache_free(&d);
}

static void own_rows_are_seen_coded(void **state)
{
    (void)state;
    compare("kivi2", "kivi2", 0, 64, 64);
    compare("kivi2", "q4_0", 128, 192, 192);
    compare("q4_0:rot=h1,centre=block", "turbo2", 64, 64, 64);
    compare("uni3:centre=none,scale=none", "uni3:rot=haar", 64, 128, 128);
}

static void rest_of_a_block_is_seen_exactly(void **state)
{
    (void)state;
    compare("kivi2", "kivi2", 64, 100, 64);
    compare("kivi2", "kivi2", 64, 3, 0);
    compare("kivi2", "kivi2", 10, 64, 0); /* no block of its own */
}

/* Estimates begin at 128 rows: before, everything is exact; after, the rows are coded around the centre. */
static void estimates_come_first(void **state)
{
    (void)state;
    compare("uni4", "f16", 0, 64, 0);
    compare("uni4", "f16", 64, 64, 0);
}

static void a_window_is_refused(void **state)
{
    (void)state;
    ts_model m;
    kvf_cache *c;
    ts_model_init(&m, 1, 2, 1, DIM, DIM, "kivi4", "kivi4");
    m.params.seal_each = 1;
    assert_int_equal(ts_try(&m, &c), KVF_E_ARG);
    assert_non_null(strstr(m.error, "seal_each is 1 with recent 64"));
    m.params.recent = 0, m.params.seal_each = 2;
    assert_int_equal(ts_try(&m, &c), KVF_E_ARG);
}

int main(void)
{
    const struct CMUnitTest on_every_cpu[] = {cmocka_unit_test(own_rows_are_seen_coded)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rest_of_a_block_is_seen_exactly),
        cmocka_unit_test(estimates_come_first),
        cmocka_unit_test(a_window_is_refused),
    };
    int failed = ts_on_every_cpu("seal_each", on_every_cpu, 1);
    return cmocka_run_group_tests(tests, NULL, NULL) + failed;
}
