/* SPDX-License-Identifier: MIT
 * Rows read back several at a time are those that are read one by one. */
#include "support.h"

#include <string.h>

enum { DIM = 64, ROWS = 700, MOST = ROWS + 8 };

/* Every head and side of every layer, from several first rows to the end. */
static void same_as_single(kvf_cache *c, const ts_model *m)
{
    static float many[ROWS * DIM];
    static const int firsts[] = {0, 1, 63, 64, 130, ROWS - 3};
    for (int i = 0; i < 2 * 2 * m->params.n_layers; i++) {
        const int side = i % 2, head = i / 2 % 2, layer = i / 4;
        for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++) {
            const int first = firsts[f], n = ROWS - first;
            memset(many, 0xff, sizeof many);
            assert_int_equal(kvf_seq_read_range(c, 0, layer, (kvf_side)side, head, first, n, many), KVF_OK);
            for (int t = 0; t < n; t++) {
                float one[DIM];
                assert_int_equal(kvf_seq_read(c, 0, layer, (kvf_side)side, head, first + t, one), KVF_OK);
                assert_memory_equal(many + t * DIM, one, sizeof one);
            }
        }
    }
}

static kvf_cache *filled(ts_model *m, const char *k, const char *v, const char *evict)
{
    ts_model_init(m, 2, 4, 2, DIM, DIM, k, v);
    m->params.evict = evict;
    kvf_cache *c = ts_create(m);
    ts_grow(c, m, 0, 1, ROWS, 100);
    return c;
}

/* Sink, blocks and window, with and without stages of the keys, and where a policy keeps each head's rows in places of their own. */
static void ranges_are_rows(void **state)
{
    (void)state;
    static const char *const kind[][3] = {
        {"f16", "f16", NULL}, {"uni4", "kivi2", NULL}, {"kivi2", "turbo2", NULL}, {"q4_0", "tcq2", "knorm:budget=5000"}};
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        ts_model m;
        kvf_cache *c = filled(&m, kind[i][0], kind[i][1], kind[i][2]);
        same_as_single(c, &m);
        kvf_cache_free(&c);
    }
}

/* A row that is not there ends the range: its position is named, and those before it have come. */
static void missing_rows_end_a_range(void **state)
{
    (void)state;
    static float many[MOST * DIM];
    ts_model m;
    kvf_cache *c = filled(&m, "uni4", "uni4", NULL);
    ts_ok(kvf_seq_rm(c, 0, 140, 150));
    float one[DIM];
    memset(many, 0xff, sizeof many);
    assert_int_equal(kvf_seq_read_range(c, 0, 1, KVF_V, 1, 130, 20, many), KVF_E_POSITION);
    assert_non_null(strstr(kvf_cache_error(c), "position 140 "));
    ts_ok(kvf_seq_read(c, 0, 1, KVF_V, 1, 139, one));
    assert_memory_equal(many + 9 * DIM, one, sizeof one);
    assert_int_equal(kvf_seq_read_range(c, 0, 1, KVF_V, 1, 600, ROWS - 600 + 1, many), KVF_E_POSITION);
    assert_int_equal(kvf_seq_read_range(c, 0, 1, KVF_V, 1, INT32_MAX, INT32_MAX, many), KVF_E_POSITION);
    assert_int_equal(kvf_seq_read_range(c, 0, 1, KVF_V, 1, -1, 2, many), KVF_E_POSITION);
    for (int n = -1; n < 1; n++) {
        assert_int_equal(kvf_seq_read_range(c, 0, 1, KVF_V, 1, 0, n, many), KVF_E_ARG);
        assert_non_null(strstr(kvf_cache_error(c), "1 or more"));
    }
    assert_int_equal(kvf_seq_read_range(NULL, 0, 1, KVF_V, 1, 0, 1, many), KVF_E_ARG);
    assert_int_equal(kvf_seq_read_range(c, 0, 1, KVF_V, 1, 0, 1, NULL), KVF_E_ARG);
    kvf_cache_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranges_are_rows), cmocka_unit_test(missing_rows_end_a_range)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
