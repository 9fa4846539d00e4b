/* SPDX-License-Identifier: MIT
 * Parts of a plan run by several threads in any order give the serial result bit for bit; caches are independent. */
#define _POSIX_C_SOURCE 200809L
#include "support.h"
#include "cache/cache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

typedef struct crew {
    const kvf_plan *plan;
    const int32_t *order;
    atomic_int next;
} crew;

static void *work(void *arg)
{
    crew *w = arg;
    for (int i; (i = atomic_fetch_add(&w->next, 1)) < w->plan->parts;) kvf_attend_part(w->plan, w->order[i]);
    return NULL;
}

/* Parts in random order, taken by `threads` threads. */
static void attend_with(kvf_cache *c, ts_batch *b, int layer, int threads, ts_random *r)
{
    kvf_attention a;
    kvf_plan plan;
    pthread_t id[8];
    ts_batch_request(b, layer, &a, b->out[layer], b->lse[layer]);
    ts_ok(kvf_attend_begin(c, &a, &plan));
    int32_t *order = calloc((size_t)plan.parts, sizeof *order);
    assert_non_null(order);
    for (int i = 0; i < plan.parts; i++) {
        int j = (int)ts_next(r, (uint32_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    crew w = {.plan = &plan, .order = order};
    for (int i = 0; i < threads; i++) assert_int_equal(pthread_create(&id[i], NULL, work, &w), 0);
    for (int i = 0; i < threads; i++) pthread_join(id[i], NULL);
    ts_ok(kvf_attend_end(&plan));
    free(order);
}

static const float sinks[] = {1, 2, 3, 4, 5, 6, 7, 8};

static void test_parts_in_any_order(void **state)
{
    static const char *const codecs[] = {"f16", "kivi4", "q4_0:rot=h", "kivi1"};
    static const int lengths[] = {0, 100, 1700}, rows_of[] = {1, 4, 70}, hints[] = {1, 4, 8};
    (void)state;
    ts_random r = {3};
    for (int i = 0; i < COUNT(codecs) * COUNT(lengths) * COUNT(hints); i++) {
        ts_model m;
        ts_row rows[73];
        ts_model_init(&m, 2, 8, 2, 64, 80, codecs[i % 4], codecs[(i + 1) % 4]);
        m.layers[1].window = 90;
        m.params.threads = hints[i / 12];
        kvf_cache *c = ts_create(&m);
        if (lengths[i / 4 % 3]) ts_grow(c, &m, 0, 1, lengths[i / 4 % 3], 500);
        ts_grow(c, &m, 1, 2, 130, 130);
        for (int j = 0; j < COUNT(rows_of); j++) {
            ts_how how = {.sinks = j == 1 ? sinks : NULL, .mask = j == 2 ? KVF_F16 : 0};
            ts_rows(rows, rows_of[j], 0, 1, lengths[i / 4 % 3]);
            ts_rows(rows + rows_of[j], 3, 1, 2, 130);
            ts_batch *serial = ts_batch_new(&m, rows, rows_of[j] + 3, &how), *b = ts_batch_new(&m, rows, rows_of[j] + 3, &how);
            ts_begin(c, b);
            for (int layer = 0; layer < 2; layer++) {
                ts_ok(ts_batch_attend(c, serial, layer));
                for (int threads = 2; threads <= (hints[i / 12] < 4 ? 2 : 8); threads *= 4) {
                    memset(b->out[layer], 0xAA, (size_t)b->n * 8 * 80 * sizeof(float));
                    attend_with(c, b, layer, threads, &r);
                    assert_memory_equal(b->out[layer], serial->out[layer], (size_t)b->n * 8 * 80 * sizeof(float));
                    assert_memory_equal(b->lse[layer], serial->lse[layer], (size_t)b->n * 8 * sizeof(float));
                }
            }
            ts_ok(kvf_batch_abort(c));
            ts_batch_free(serial);
            ts_batch_free(b);
        }
        kvf_cache_free(&c);
    }
}

/* A hint of more threads gives more parts where there is work to share. */
static void test_work_is_split(void **state)
{
    (void)state;
    ts_model m;
    ts_row row = {0, 4000, 1};
    kvf_attention a;
    kvf_plan plan;
    ts_model_init(&m, 1, 4, 1, 64, 64, "kivi4", "kivi4");
    m.params.threads = 4;
    kvf_cache *c = ts_create(&m);
    ts_grow(c, &m, 0, 1, 4000, 500);
    ts_batch *b = ts_batch_new(&m, &row, 1, NULL);
    ts_begin(c, b);
    ts_batch_request(b, 0, &a, b->out[0], b->lse[0]);
    ts_ok(kvf_attend_begin(c, &a, &plan));
    assert_true(plan.parts >= 4);
    for (int i = plan.parts - 1; i >= 0; i--) kvf_attend_part(&plan, i);
    ts_ok(kvf_attend_end(&plan));
    ts_ok(kvf_batch_abort(c));
    ts_batch_free(b);
    kvf_cache_free(&c);
}

/* Parts that sum up attention need the results of others, yet may come before them. */
static void test_masses_in_any_order(void **state)
{
    static const char *const policies[] = {"h2o:budget=700", "snapkv:budget=700"};
    static const int rows_of[] = {1, 1, 30, 1, 130}; /* as single rows, in tiles, several items a head */
    (void)state;
    ts_random r = {5};
    for (int i = 0; i < COUNT(policies); i++) {
        kvf_cache *c[2];
        ts_model m;
        ts_model_init(&m, 1, 4, 2, 32, 32, "turbo4", "q4_0");
        m.params.evict = policies[i], m.params.max_batch = 200;
        for (int j = 0; j < 2; j++) m.params.threads = 1 + 7 * j, c[j] = ts_create(&m);
        for (int pos = 0, k = 0; pos < 1500; pos += rows_of[k++ % COUNT(rows_of)]) {
            ts_row rows[130];
            const int n = rows_of[k % COUNT(rows_of)];
            ts_rows(rows, n, 0, 1, pos);
            for (int j = 0; j < 2; j++) {
                ts_batch *b = ts_batch_new(&m, rows, n, NULL);
                ts_begin(c[j], b);
                if (j)
                    attend_with(c[j], b, 0, 1 + 3 * (k % 2), &r);
                else
                    ts_attend_all(c[j], b);
                ts_append_all(c[j], b);
                ts_ok(kvf_batch_commit(c[j]));
                ts_batch_free(b);
            }
        }
        if (kvfi_cache_hash(c[0], 0) != kvfi_cache_hash(c[1], 0)) fail_msg("%s: threads keep other rows, or masses", policies[i]);
        for (int j = 0; j < 2; j++) kvf_cache_free(&c[j]);
    }
}

typedef struct life {
    ts_model m;
    uint64_t hash;
    uint64_t tag;
} life;

/* One cache from creation to the end, by calls that do not report through the test framework. */
static void *live(void *arg)
{
    life *l = arg;
    kvf_cache *c = NULL;
    ts_row rows[40];
    l->m.params.layers = l->m.layers;
    if (kvf_cache_create(&c, &l->m.params) != KVF_OK) return NULL;
    for (int t = 0; t < 400; t += 40) {
        ts_rows(rows, 40, 0, l->tag, t);
        ts_batch *b = ts_batch_new(&l->m, rows, 40, NULL);
        int code = ts_batch_begin(c, b);
        if (code == KVF_OK) code = ts_batch_attend(c, b, 0);
        if (code == KVF_OK) code = ts_batch_append(c, b, 0);
        if (code == KVF_OK) code = kvf_batch_commit(c);
        ts_batch_free(b);
        if (code != KVF_OK) break;
    }
    l->hash = kvfi_cache_hash(c, 0);
    kvf_cache_free(&c);
    return arg;
}

static void test_caches_are_independent(void **state)
{
    static const char *const codecs[] = {"kivi4", "q4_0:rot=h", "kivi2", "q8_0"};
    life together[4], alone[4];
    pthread_t id[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        ts_model_init(&together[i].m, 1, 4, 2, 64, 64, codecs[i], codecs[3 - i]);
        together[i].tag = (uint64_t)i + 1;
        together[i].hash = 0;
        alone[i] = together[i];
        assert_non_null(live(&alone[i]));
    }
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&id[i], NULL, live, &together[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(id[i], NULL);
    for (int i = 0; i < 4; i++) assert_true(together[i].hash != 0 && together[i].hash == alone[i].hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_in_any_order),
        cmocka_unit_test(test_work_is_split),
        cmocka_unit_test(test_masses_in_any_order),
        cmocka_unit_test(test_caches_are_independent),
    };
    return ts_on_every_cpu("threads", tests, sizeof tests / sizeof *tests);
}
