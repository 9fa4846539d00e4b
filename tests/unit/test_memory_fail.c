/* SPDX-License-Identifier: MIT
 * Every allocation may fail: an error, nothing changed, nothing leaked, and the cache goes on. */
#include "books.h"
#include "calibrated.h"
#include "support.h"
#include "cache/cache.h"

#include <stdlib.h>
#include <string.h>

static tb_known *known; /* of the model coded with centroids */

/* With all that codes by centroids need of a calibration. */
static void model_by_centroids(ts_model *m)
{
    static float moments[2 * 64 * 64];
    ts_model_init(m, 2, 4, 2, 64, 64, "vecinfer2", "vecinfer2");
    known = tb_know(m, 1);
    for (int i = 0; i < 2 * 64 * 64; i++) moments[i] = i % (64 * 64) % 65 ? 0 : 1;
    known->layers[0].q_moment = known->layers[1].q_moment = moments;
}

static const char *policy; /* of the model below */

/* Three layers, of which two are windowed. */
static void model(ts_model *m)
{
    ts_model_init(m, 3, 4, 2, 64, 72, "kivi4", "kivi4");
    m->params.evict = policy;
    m->layers[0].window = 100;
    m->layers[2].window = 7;
}

static void test_create_fails_cleanly(void **state)
{
    (void)state;
    for (int way = 0; way < 6; way++) {
        const int once = way % 2;
        for (long k = 1;; k++) {
            ts_model m;
            ts_heap heap;
            kvf_cache *c = (kvf_cache *)(void *)&heap;
            ts_heap_init(&heap);
            if (way / 2 == 1)
                model_by_centroids(&m);
            else
                model(&m);
            tc_calibration *directions = tc_new(&m, 1);
            if (way / 2 == 2) m.params.evict = "qfilters:budget=150", m.params.calibration = &directions->c;
            m.params.allocator = &heap.hooks;
            heap.fail_at = k;
            heap.once = once;
            int code = ts_try(&m, &c);
            tb_forget(known), known = NULL;
            tc_free(directions);
            if (code == KVF_OK) {
                assert_true(k > (way < 2 ? 1 : way < 4 ? 4 : 5)); /* the first failed: so all memory comes through the hooks */
                kvf_cache_free(&c);
                assert_int_equal(heap.live, 0);
                break;
            }
            assert_int_equal(code, KVF_E_NOMEM);
            assert_null(c);
            assert_true(strlen(m.error) > 10);
            assert_int_equal(heap.live, 0);
        }
    }
}

/* One call of each kind that may allocate, with everything it needs. */
typedef struct trial {
    kvf_cache *c;
    ts_model *m;
    ts_batch *b;
} trial;

static int try_reserve(trial *t)
{
    return kvf_reserve(t->c, 2000, 3, 200);
}

static int try_begin(trial *t)
{
    int code = ts_batch_begin(t->c, t->b);
    return code == KVF_OK ? kvf_batch_abort(t->c) : code;
}

static int try_cp(trial *t)
{
    return kvf_seq_cp(t->c, 0, 1);
}

static void grown(ts_model *m, ts_heap *heap, kvf_cache **c)
{
    ts_heap_init(heap);
    model(m);
    m->params.allocator = &heap->hooks;
    *c = ts_create(m);
    ts_grow(*c, m, 0, 1, policy ? 900 : 330, 64);
}

/* Fails each allocation in turn, of a call about rows of one sequence. After each failure all is as before; in the end the run equals one
 * without failures. */
static void fail_each(int (*call)(trial *), int seq)
{
    ts_row rows[300];
    for (int once = 0; once < 2; once++) {
        ts_model m, m_clean;
        ts_heap heap, heap_clean;
        kvf_cache *c, *clean;
        grown(&m, &heap, &c);
        grown(&m_clean, &heap_clean, &clean);
        ts_rows(rows, 300, seq, 3, kvf_seq_pos_max(c, seq) + 1);
        trial t = {c, &m, ts_batch_new(&m, rows, 300, NULL)};
        ts_snapshot before = ts_snapshot_take(c, &m);
        long k = 1;
        for (;; k++) {
            heap.fail_at = heap.calls + k;
            heap.once = once;
            int code = call(&t);
            int reached = heap.calls >= heap.fail_at;
            heap.fail_at = 0;
            if (code == KVF_OK) {
                if (reached && !once) fail_msg("succeeded without memory");
                break;
            }
            assert_int_equal(code, KVF_E_NOMEM);
            assert_true(reached);
            assert_true(strlen(kvf_cache_error(c)) > 10);
            ts_unchanged(c, &m, &before);
        }
        assert_true(k > 1);
        ts_feed(c, &m, rows, 300, 100, NULL);
        ts_grow(c, &m, 0, 1, 200, 100);
        ts_grow(clean, &m_clean, seq, 3, 300, 300);
        ts_grow(clean, &m_clean, 0, 1, 200, 200);
        ts_same_sequence(c, 0, clean, 0, &m);
        ts_same_sequence(c, 2, clean, 2, &m);
        ts_snapshot_free(&before);
        ts_batch_free(t.b);
        kvf_cache_free(&c);
        kvf_cache_free(&clean);
        assert_int_equal(heap.live, 0);
        assert_int_equal(heap.bytes, 0);
        assert_int_equal(heap_clean.live, 0);
    }
}

/* Rows of a sequence that is new, so that there is something to allocate; the same with a policy whose rows lie in chains. */
static void fail_each_way(int (*call)(trial *))
{
    fail_each(call, 2);
    policy = "h2o:budget=150";
    fail_each(call, 2);
    policy = NULL;
}

static void test_reserve_fails_cleanly(void **state)
{
    (void)state;
    fail_each_way(try_reserve);
}

static void test_begin_fails_cleanly(void **state)
{
    (void)state;
    fail_each_way(try_begin);
    policy = "h2o:budget=5000"; /* a chain that must grow, with what lies in it */
    fail_each(try_begin, 0);
    policy = NULL;
}

static void test_cp_fails_cleanly(void **state)
{
    (void)state;
    fail_each_way(try_cp);
}

/* The first attention of a batch: a failure leaves the batch open and the attention possible. */
static void test_attend_fails_cleanly(void **state)
{
    (void)state;
    ts_row rows[200];
    for (int once = 0; once < 2; once++)
        for (long k = 1, done = 0; !done; k++) {
            ts_model m;
            ts_heap heap;
            kvf_cache *c, *clean = NULL;
            grown(&m, &heap, &c);
            ts_rows(rows, 200, 0, 1, 330);
            ts_batch *b = ts_batch_new(&m, rows, 200, NULL);
            ts_begin(c, b);
            heap.fail_at = heap.calls + k;
            heap.once = once;
            int code = ts_batch_attend(c, b, 0);
            heap.fail_at = 0;
            if (code == KVF_OK)
                done = 1;
            else
                assert_int_equal(code, KVF_E_NOMEM);
            ts_ok(ts_batch_attend(c, b, 0));
            ts_model m_clean;
            ts_heap heap_clean;
            grown(&m_clean, &heap_clean, &clean);
            ts_batch *other = ts_batch_new(&m, rows, 200, NULL);
            ts_begin(clean, other);
            ts_ok(ts_batch_attend(clean, other, 0));
            assert_memory_equal(b->out[0], other->out[0], 200 * 4 * 72 * sizeof(float));
            ts_append_all(c, b);
            ts_append_all(clean, other);
            ts_ok(kvf_batch_commit(c));
            ts_ok(kvf_batch_commit(clean));
            ts_same_sequence(c, 0, clean, 0, &m);
            ts_batch_free(b);
            ts_batch_free(other);
            kvf_cache_free(&c);
            kvf_cache_free(&clean);
            assert_int_equal(heap.live, 0);
            assert_int_equal(heap_clean.live, 0);
        }
}

/* Memory runs out in the middle of a long run, at any moment: an error each time, and in the end the clean result. */
static void test_memory_that_comes_and_goes(void **state)
{
    (void)state;
    ts_model m, m_clean;
    ts_heap heap;
    ts_row rows[700];
    ts_random r = {42};
    int failures = 0;
    ts_heap_init(&heap);
    model(&m);
    m_clean = m;
    m.params.allocator = &heap.hooks;
    kvf_cache *c = ts_create(&m), *clean = ts_create(&m_clean);
    ts_rows(rows, 700, 0, 1, 0);
    for (int at = 0; at < 700;) {
        int n = 1 + (int)ts_next(&r, 60);
        if (n > 700 - at) n = 700 - at;
        ts_batch *b = ts_batch_new(&m, rows + at, n, NULL);
        heap.fail_at = heap.calls + 1 + (long)ts_next(&r, 7);
        heap.once = (int)ts_next(&r, 2);
        int code = ts_batch_begin(c, b);
        if (code == KVF_OK) {
            code = ts_batch_attend(c, b, 1);
            heap.fail_at = 0;
            if (code == KVF_OK) {
                ts_append_all(c, b);
                ts_ok(kvf_batch_commit(c));
                at += n;
            } else {
                ts_ok(kvf_batch_abort(c));
            }
        }
        heap.fail_at = 0;
        if (code != KVF_OK) {
            assert_int_equal(code, KVF_E_NOMEM);
            failures++;
        }
        ts_batch_free(b);
    }
    assert_true(failures > 0);
    ts_feed(clean, &m_clean, rows, 700, 500, NULL);
    ts_same_sequence(c, 0, clean, 0, &m);
    kvf_cache_free(&c);
    kvf_cache_free(&clean);
    assert_int_equal(heap.live, 0);
}

static void test_free_of_nothing(void **state)
{
    (void)state;
    kvf_cache *c = NULL;
    kvf_cache_free(&c);
    kvf_cache_free(NULL);
    ts_model m;
    model(&m);
    c = ts_create(&m);
    kvf_cache_free(&c);
    assert_null(c);
}

/* A cache may be freed with a batch and a plan open. */
static void test_free_in_the_middle(void **state)
{
    (void)state;
    ts_model m;
    ts_heap heap;
    ts_row rows[10];
    kvf_attention a;
    kvf_plan plan;
    kvf_cache *c;
    grown(&m, &heap, &c);
    ts_rows(rows, 10, 0, 1, 330);
    ts_batch *b = ts_batch_new(&m, rows, 10, NULL);
    ts_begin(c, b);
    ts_ok(ts_batch_append(c, b, 0));
    ts_batch_request(b, 0, &a, b->out[0], b->lse[0]);
    ts_ok(kvf_attend_begin(c, &a, &plan));
    kvf_cache_free(&c);
    assert_int_equal(heap.live, 0);
    ts_batch_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_fails_cleanly), cmocka_unit_test(test_reserve_fails_cleanly),
        cmocka_unit_test(test_begin_fails_cleanly),  cmocka_unit_test(test_cp_fails_cleanly),
        cmocka_unit_test(test_attend_fails_cleanly), cmocka_unit_test(test_memory_that_comes_and_goes),
        cmocka_unit_test(test_free_of_nothing),      cmocka_unit_test(test_free_in_the_middle),
    };
    return cmocka_run_group_tests_name("memory_fail", tests, NULL, NULL);
}
