/* SPDX-License-Identifier: MIT
 * Physical memory goes back once nothing lies there: after removals, after commits that drop rows, with large batches; and decoding asks
 * the system for none of that. */
#define _GNU_SOURCE
#include "support.h"
#include "cache/chain.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static long returns; /* how often pages were given back */

/* In place of the library's: the same, counted. */
int madvise(void *memory, size_t size, int advice)
{
    returns += advice == MADV_DONTNEED;
    return (int)syscall(SYS_madvise, memory, size, advice);
}

static kvf_stats_t stats(const kvf_cache *c)
{
    kvf_stats_t s = {.size = sizeof s};
    ts_ok(kvf_stats(c, &s));
    return s;
}

/* One layer of two heads whose blocks are larger than a page, and of many queries, which leave much beside the chain. */
static void model(ts_model *m, const char *evict, int batch)
{
    ts_model_init(m, 1, 32, 2, 64, 64, "q8_0", "q8_0");
    m->params.evict = evict, m->params.max_batch = batch;
}

/* What is resident is what is in use, bookkeeping of blocks ever used, pages that a used block shares with a free one, and `warm` free
 * blocks with their links. */
static void check(const kvf_cache *c, int warm, const char *when)
{
    const kvf_stats_t s = stats(c);
    const kvfi_pool *p = &c->pools[0];
    const int64_t pages = 2 * ((int64_t)p->in_use + 8) * sysconf(_SC_PAGESIZE),
                  most = s.accounted + pages + (int64_t)(p->untouched * sizeof(kvfi_block)) +
                         warm * (int64_t)(p->block_bytes + c->g.chain_bytes + c->g.row_bytes);
    if (s.resident > most)
        fail_msg("%s, %s: %lld bytes resident, %lld in use, at most %lld were expected", c->g.evict.canonical, when,
                 (long long)s.resident, (long long)s.accounted, (long long)most);
}

/* Physical memory of an empty cache after n rows, of which the newest asked. */
static int64_t emptied(kvf_cache *c, const ts_model *m, int n)
{
    size_t n_probe;
    ts_grow(c, m, 0, 1, n, n < m->params.max_batch ? n : m->params.max_batch);
    free(ts_probe(c, m, 0, &n_probe));
    ts_ok(kvf_seq_rm(c, 0, 0, -1));
    return stats(c).resident;
}

static const char *const policies[] = {"none", "window:budget=5000", "knorm:budget=5000", "h2o:budget=5000",
                                       "snapkv:budget=5000"};

/* Of a reserved cache, whose memory stays mapped: holes in every block, the next choice, and all that is left. */
static void test_removed_rows(void **state)
{
    enum { N = 4000, BATCH = 250 };
    (void)state;
    for (int i = 0; i < COUNT(policies); i++) {
        ts_model m;
        model(&m, policies[i], BATCH);
        kvf_cache *c = ts_create(&m);
        ts_ok(kvf_reserve(c, N + 1000, 1, BATCH));
        const int64_t empty = emptied(c, &m, 250);
        ts_grow(c, &m, 0, 1, N, BATCH);
        const int64_t full = stats(c).resident;
        for (int pos = 64; pos < N - 500; pos += 64) ts_ok(kvf_seq_rm(c, 0, pos, pos + 60));
        check(c, 0, "rows removed");
        ts_grow(c, &m, 0, 1, 64, 64);
        check(c, 16, "64 rows more");
        if (i && full > 0) assert_true(stats(c).resident < full / 2);
        ts_ok(kvf_seq_rm(c, 0, 100, -1));
        check(c, 0, "cut at 100");
        ts_ok(kvf_seq_rm(c, 0, 0, -1));
        const int64_t again = emptied(c, &m, N); /* as after a few rows, but for bookkeeping of blocks */
        if (again > empty + 2 * sysconf(_SC_PAGESIZE))
            fail_msg("%s, cleared: %lld bytes resident, %lld after few rows", policies[i], (long long)again, (long long)empty);
        ts_grow(c, &m, 0, 1, N, BATCH);
        ts_ok(kvf_seq_keep(c, 1));
        check(c, 0, "another kept");
        kvf_cache_free(&c);
    }
}

/* Batches of many more rows than stay. */
static void test_large_batches(void **state)
{
    enum { N = 8192, BATCH = 4096 };
    static const char *const specs[] = {"knorm:budget=512", "window:budget=512", "h2o:budget=512", "none"};
    (void)state;
    for (int i = 0; i < COUNT(specs); i++) {
        ts_model m;
        model(&m, specs[i], BATCH);
        if (i == 3) m.layers[0].window = 512, m.params.window_keep = 0;
        kvf_cache *c = ts_create(&m);
        for (int n = 0; n < N; n += BATCH) {
            ts_grow(c, &m, 0, 1, BATCH, BATCH);
            check(c, 16, "a large batch");
        }
        kvf_cache_free(&c);
    }
}

/* Blocks that come and go with single rows keep their pages. */
static void test_decoding_returns_nothing(void **state)
{
    static const char *const specs[] = {"window:budget=300", "knorm:budget=300", "random:budget=300", "h2o:budget=300",
                                        "snapkv:budget=300"},
                             *const codecs[] = {"uni4", "kivi4"};
    (void)state;
    for (int i = 0; i < 2 * COUNT(specs) * COUNT(codecs); i++) {
        ts_model m;
        model(&m, specs[i / 4], i % 4 / 2 ? 512 : 1);
        m.params.k = codecs[i % 2];
        kvf_cache *c = ts_create(&m);
        ts_grow(c, &m, 0, 1, 600, i % 4 / 2 ? 100 : 1);
        const long before = returns;
        ts_grow(c, &m, 0, 1, 700, 1);
        if (returns != before) fail_msg("%s, %s: %ld times", specs[i / 4], codecs[i % 2], returns - before);
        kvf_cache_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_removed_rows),
        cmocka_unit_test(test_large_batches),
        cmocka_unit_test(test_decoding_returns_nothing),
    };
    return cmocka_run_group_tests_name("memory_back", tests, NULL, NULL);
}
