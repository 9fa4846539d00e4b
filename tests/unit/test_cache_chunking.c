/* SPDX-License-Identifier: MIT
 * What a sequence holds depends on its rows, not on how they came: batches of any size, any memory layout, other sequences in
 * between, attention in between. */
#include "support.h"
#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static const char *const codecs[][2] = {{"f16", "f16"},     {"q8_0", "q8_0"},   {"q4_0", "q4_0"},   {"q4_0:rot=h", "q4_0:rot=h"},
                                        {"kivi1", "kivi1"}, {"kivi2", "kivi2"}, {"kivi3", "kivi3"}, {"kivi4", "kivi4"},
                                        {"kivi8", "kivi8"}, {"f16", "kivi2"}};

/* Two layers, of which one is windowed and has heads of another size. */
static void model(ts_model *m, int codec)
{
    ts_model_init(m, 2, 4, 2, 64, 64, codecs[codec][0], codecs[codec][1]);
    m->layers[1].window = 50;
    m->layers[1].k_dim = 80;
    m->params.window_keep = 16;
}

static kvf_cache *fed(ts_model *m, int n, int chunk, const ts_how *how)
{
    kvf_cache *c = ts_create(m);
    ts_row *rows = calloc((size_t)n, sizeof *rows);
    assert_non_null(rows);
    ts_rows(rows, n, 0, 1, 0);
    ts_feed(c, m, rows, n, chunk, how);
    free(rows);
    return c;
}

/* Same bytes, same attention, same numbers. */
static void same(kvf_cache *a, kvf_cache *b, const ts_model *m)
{
    ts_same_sequence(a, 0, b, 0, m);
    ts_snapshot x = ts_snapshot_take(a, m), y = ts_snapshot_take(b, m);
    ts_snapshot_equal(&x, &y);
    ts_snapshot_free(&x);
    ts_snapshot_free(&y);
}

static void batches_of_any_size(int codec, int exact_bits)
{
    static const int lengths[] = {200, 127, 128, 129, 333}, chunks[] = {7, 1, 63, 64, 65};
    for (int j = 0; j < COUNT(lengths); j++) {
        ts_model m;
        model(&m, codec);
        m.params.exact_bits = exact_bits;
        kvf_cache *whole = fed(&m, lengths[j], lengths[j], NULL);
        for (int k = 0; k < (j ? 2 : COUNT(chunks)); k++) {
            kvf_cache *pieces = fed(&m, lengths[j], chunks[k], NULL);
            same(whole, pieces, &m);
            kvf_cache_free(&pieces);
        }
        kvf_cache_free(&whole);
    }
}

static void test_batches_of_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) batches_of_any_size(i, 16);
}

/* Rows that are kept in 8 bits are rounded alike whether they were kept or coded at once. */
static void test_rows_of_eight_bits(void **state)
{
    (void)state;
    batches_of_any_size(0, 8);
    batches_of_any_size(2, 8);
    batches_of_any_size(7, 8);
}

static void test_small_windows_and_sinks(void **state)
{
    static const int sizes[][2] = {{0, 0}, {64, 0}, {4, 32}, {0, 1}, {63, 65}};
    (void)state;
    for (int i = 0; i < COUNT(sizes); i++) {
        ts_model m;
        model(&m, 5);
        m.params.sink = sizes[i][0];
        m.params.recent = sizes[i][1];
        kvf_cache *whole = fed(&m, 300, 300, NULL), *sevens = fed(&m, 300, 7, NULL), *single = fed(&m, 300, 1, NULL);
        same(whole, sevens, &m);
        same(whole, single, &m);
        kvf_cache_free(&whole);
        kvf_cache_free(&sevens);
        kvf_cache_free(&single);
    }
}

/* The hash is worth something: it sees another row wherever it lies, a missing one, and other positions. */
static void test_hash_sees_differences(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        ts_model m;
        ts_row rows[300];
        model(&m, i);
        kvf_cache *a = fed(&m, 300, 300, NULL);
        for (int other = 0; other < 5; other++) {
            ts_rows(rows, 300, 0, 1, other == 4 ? 1 : 0);
            if (other < 3) rows[(int[]){2, 260, 299}[other]].tag = 2; /* a sink row, a window row, the last one */
            kvf_cache *b = ts_create(&m);
            ts_feed(b, &m, rows, other == 3 ? 299 : 300, 300, NULL);
            assert_int_not_equal(kvfi_cache_hash(a, 0), kvfi_cache_hash(b, 0));
            kvf_cache_free(&b);
        }
        kvf_cache_free(&a);
    }
}

/* A body row moves the hash too (every value changes, so even one bit a value shows). */
static void test_hash_sees_the_body(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        ts_model m;
        ts_row rows[300];
        model(&m, i);
        m.layers[1].window = 0;
        kvf_cache *a = fed(&m, 300, 300, NULL), *b = ts_create(&m);
        ts_rows(rows, 300, 0, 1, 0);
        rows[70].tag = 2;
        ts_feed(b, &m, rows, 300, 300, NULL);
        assert_int_not_equal(kvfi_cache_hash(a, 0), kvfi_cache_hash(b, 0));
        kvf_cache_free(&a);
        kvf_cache_free(&b);
    }
}

static void test_layouts_do_not_matter(void **state)
{
    (void)state;
    ts_model m;
    model(&m, 7);
    kvf_cache *plain = fed(&m, 200, 200, NULL);
    for (int layout = 0; layout < TS_LAYOUTS; layout++)
        for (int i = 0; i < 4; i++) {
            ts_how how = {.layout = (ts_layout)layout, .type = i & 1 ? KVF_F32 : KVF_F16, .scatter = i >> 1};
            kvf_cache *c = fed(&m, 200, 90, &how);
            same(plain, c, &m);
            kvf_cache_free(&c);
        }
    kvf_cache_free(&plain);
}

/* f32 rows with more digits than f16 are rounded to nearest, ties to even: the same bytes as rows rounded beforehand. */
static void test_rounding_to_f16(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        ts_model m;
        model(&m, i);
        ts_how whole = {.type = KVF_F32, .whole_f32 = 1};
        kvf_cache *a = fed(&m, 200, 50, NULL), *b = fed(&m, 200, 50, &whole);
        same(a, b, &m);
        kvf_cache_free(&a);
        kvf_cache_free(&b);
    }
}

static void test_attention_leaves_no_trace(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        ts_model m;
        ts_row rows[200];
        model(&m, i);
        kvf_cache *quiet = fed(&m, 200, 40, NULL), *busy = ts_create(&m);
        ts_rows(rows, 200, 0, 1, 0);
        for (int t = 0; t < 200; t += 40) {
            ts_batch *b = ts_batch_new(&m, rows + t, 40, NULL);
            ts_begin(busy, b);
            ts_attend_all(busy, b);
            ts_append_all(busy, b);
            ts_ok(kvf_batch_commit(busy));
            ts_batch_free(b);
        }
        same(quiet, busy, &m);
        kvf_cache_free(&quiet);
        kvf_cache_free(&busy);
    }
}

/* Layers may be appended in any order, and attended to before or after that. */
static void test_order_inside_a_batch(void **state)
{
    (void)state;
    ts_model m;
    ts_row rows[150];
    model(&m, 7);
    ts_rows(rows, 150, 0, 1, 0);
    kvf_cache *a = fed(&m, 150, 150, NULL), *b = ts_create(&m);
    ts_batch *batch = ts_batch_new(&m, rows, 150, NULL);
    ts_begin(b, batch);
    ts_ok(ts_batch_append(b, batch, 1));
    ts_attend_all(b, batch);
    ts_ok(ts_batch_append(b, batch, 0));
    size_t bytes = 150 * 4 * 64 * sizeof(float);
    float *before = malloc(bytes);
    assert_non_null(before);
    memcpy(before, batch->out[0], bytes);
    ts_attend_all(b, batch);
    assert_memory_equal(before, batch->out[0], bytes);
    ts_ok(kvf_batch_commit(b));
    same(a, b, &m);
    free(before);
    ts_batch_free(batch);
    kvf_cache_free(&a);
    kvf_cache_free(&b);
}

/* Two sequences token by token, in single rows and in pairs of rows, equal their solo runs. */
static void test_interleaved_sequences(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++)
        for (int together = 0; together < 2; together++) {
            ts_model m;
            ts_row rows[400];
            model(&m, i);
            kvf_cache *both = ts_create(&m), *solo[2];
            for (int t = 0; t < 400; t++) rows[t] = (ts_row){t % 2 * 2, t / 2, 1 + (uint64_t)(t % 2)};
            ts_feed(both, &m, rows, 400, 1 + together * 5, NULL);
            for (int s = 0; s < 2; s++) {
                solo[s] = ts_create(&m);
                ts_grow(solo[s], &m, 0, 1 + (uint64_t)s, 200, 200);
                ts_same_sequence(both, s * 2, solo[s], 0, &m);
                kvf_cache_free(&solo[s]);
            }
            kvf_cache_free(&both);
        }
}

/* R = 32, groups of 32: whole blocks only, and at most R + 63 rows beside them. */
static void test_residual_of_kivi(void **state)
{
    static const int at[] = {31, 32, 33, 63, 64, 65, 95, 96, 97, 159, 160, 161, 224};
    (void)state;
    ts_model m;
    ts_model_init(&m, 1, 2, 1, 64, 64, "kivi2:group=32", "kivi2:group=32");
    m.params.recent = 32;
    kvf_cache *c = ts_create(&m);
    for (int i = 0, n = 0; i < COUNT(at); i++) {
        for (; n < at[i]; n++) ts_grow(c, &m, 0, 1, 1, 1);
        kvf_stats_t s = {.size = sizeof s};
        ts_ok(kvf_stats(c, &s));
        int sealed = n < 32 ? 0 : (n - 32) / 64;
        assert_int_equal(s.tokens, n);
        assert_int_equal(s.tokens_body, sealed ? sealed * 64 - 4 : 0);
        assert_int_equal(s.tokens_sink + s.tokens_window, n - s.tokens_body);
        assert_true(s.tokens_window <= 32 + 63);
        assert_int_equal(s.accounted, ts_bytes(&m, n));
    }
    kvf_cache_free(&c);
}

/* The first S rows are the sink from the start, sealed or not. */
static void test_sink_rows_are_counted(void **state)
{
    (void)state;
    ts_model m;
    ts_model_init(&m, 1, 2, 1, 64, 64, "kivi4", "kivi4");
    kvf_cache *c = ts_create(&m);
    for (int n = 1; n <= 200; n++) {
        ts_grow(c, &m, 0, 1, 1, 1);
        kvf_stats_t s = {.size = sizeof s};
        ts_ok(kvf_stats(c, &s));
        if (s.tokens_sink != (n < 4 ? n : 4)) fail_msg("%d rows, of which %d are counted as sink", n, (int)s.tokens_sink);
    }
    kvf_cache_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batches_of_any_size),     cmocka_unit_test(test_rows_of_eight_bits),
        cmocka_unit_test(test_small_windows_and_sinks), cmocka_unit_test(test_hash_sees_differences),
        cmocka_unit_test(test_hash_sees_the_body),      cmocka_unit_test(test_layouts_do_not_matter),
        cmocka_unit_test(test_rounding_to_f16),         cmocka_unit_test(test_attention_leaves_no_trace),
        cmocka_unit_test(test_order_inside_a_batch),    cmocka_unit_test(test_interleaved_sequences),
        cmocka_unit_test(test_residual_of_kivi),        cmocka_unit_test(test_sink_rows_are_counted),
    };
    return ts_on_every_cpu("cache_chunking", tests, sizeof tests / sizeof *tests);
}
