/* SPDX-License-Identifier: MIT
 * Policies: specs and refusals, which rows stay (by a definition written out here), that it does not depend on batches, and what
 * removal, copies, aborts and streams make of it. That attention sees just those rows is tests/oracle/test_oracle_evict.c. */
#include "calibrated.h"
#include "cache/cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

enum { S = 4, R = 64 };

static tc_calibration *directions; /* of the model below, for policies that need such */

/* Two full layers (one latent-free pair of heads each) and one with a window of its own, which the policy must leave alone. */
static void model(ts_model *m, const char *codec, const char *evict)
{
    ts_model_init(m, 3, 4, 2, 32, 32, codec, codec);
    m->layers[1].window = 50;
    m->layers[2].k_dim = 48;
    m->params.window_keep = 16;
    m->params.evict = evict;
    if (strncmp(evict, "qfilters", 8) != 0) return;
    if (!directions) directions = tc_new(m, 1);
    m->params.calibration = &directions->c;
}

static kvf_cache *fed(ts_model *m, int n, int chunk)
{
    kvf_cache *c = ts_create(m);
    ts_grow(c, m, 0, 1, n, chunk);
    return c;
}

static int held(kvf_cache *c, int seq, int layer, int head, int pos)
{
    float x[64];
    return kvf_seq_read(c, seq, layer, KVF_K, head, pos, x) == KVF_OK;
}

static kvf_evicted_t evicted(kvf_cache *c, int layer)
{
    kvf_evicted_t e = {.size = sizeof e};
    ts_ok(kvf_evicted(c, layer, &e));
    return e;
}

/* ---- specs -------------------------------------------------------------------------------------------------------------------- */

static void test_every_example_is_valid(void **state)
{
    (void)state;
    kvf_policy_info info;
    int n = 0;
    for (; kvf_policy_list(n, &info) == KVF_OK; n++) {
        char list[256], *spec = list;
        assert_true(strlen(info.summary) > 0 && strlen(info.examples) < sizeof list);
        strcpy(list, info.examples);
        for (char *end; spec; spec = end) {
            kvf_evict_info e, again;
            end = strchr(spec, ' ');
            if (end) *end++ = '\0';
            ts_ok(kvf_evict_check(spec, S, R, 100000, &e, NULL, 0));
            ts_ok(kvf_evict_check(e.canonical, S, R, 100000, &again, NULL, 0));
            assert_string_equal(e.canonical, again.canonical);
            assert_int_equal(e.budget, again.budget);
            assert_int_equal(e.evicts, strcmp(info.name, "none") != 0);
        }
    }
    assert_int_equal(n, 7);
    assert_int_equal(kvf_policy_list(-1, &info), KVF_E_ARG);
}

static void test_budgets(void **state)
{
    static const struct {
        const char *spec;
        int tokens, budget;
    } cases[] = {{"none", 500, 500},
                 {"window:budget=100", 500, 100},
                 {"window:budget=100", 60, 60},
                 {"knorm:budget=25%", 1000, 250},
                 {"knorm:budget=12.5%", 1000, 125},
                 {"knorm:budget=0.1%", 100000, 100},
                 {"knorm:budget=100%", 1000, 1000},
                 {"knorm:budget=25%,recent=256,sink=16", 1000, 272}, /* never fewer than are protected */
                 {"knorm:budget=68,protect=0-1+29", 1000, 68},
                 {"random:budget=999999999,recent=50000,sink=99999,protect=0-11+22-33+44,layers=12-21:200000", 1000, 1000},
                 {"knorm:budget=64MiB", 1000, 1000}}; /* what fits only a cache can tell */
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        kvf_evict_info e;
        ts_ok(kvf_evict_check(cases[i].spec, S, R, cases[i].tokens, &e, NULL, 0));
        if (e.budget != cases[i].budget) fail_msg("%s of %d: %d", cases[i].spec, cases[i].tokens, (int)e.budget);
    }
}

static void test_refusals(void **state)
{
    static const char *const cases[][2] = {
        {"", "the policy spec has no name; there are: none window:budget=1024"},
        {"lru:budget=10", "policy 'lru' does not exist; there are: none"},
        {"window1024", "policy 'window1024' does not exist"},
        {"knorm", "needs a budget"},
        {"knorm:", "nothing follows a ':'"},
        {"knorm:recent=100", "needs a budget"},
        {"knorm:budget=0", "budget is '0'; allowed are 1 to"},
        {"knorm:budget=-5", "budget is '-5'"},
        {"knorm:budget=1e3", "budget is '1e3'"},
        {"knorm:budget=01024", "budget is '01024'"},
        {"knorm:budget=9999999999", "budget is '9999999999'"},
        {"knorm:budget=0%", "budget is '0%'"},
        {"knorm:budget=0.0%", "budget is '0.0%'"},
        {"knorm:budget=101%", "budget is '101%'"},
        {"knorm:budget=100.1%", "budget is '100.1%'"},
        {"knorm:budget=12.55%", "budget is '12.55%'"},
        {"knorm:budget=12.%", "budget is '12.%'"},
        {"knorm:budget=.5%", "budget is '.5%'"},
        {"knorm:budget=%", "budget is '%'"},
        {"knorm:budget=64MB", "budget is '64MB'; allowed are 1 to 999999999 tokens, 0.1% to 100%, or a size in KiB, MiB or GiB"},
        {"knorm:budget=0MiB", "budget is '0MiB'"},
        {"knorm:budget=1.5MiB", "budget is '1.5MiB'"},
        {"knorm:budget=99,protect=1-", "protect is '1-', but must list layers, as 0-1+29"},
        {"knorm:budget=99,protect=3-1", "protect is '3-1'"},
        {"knorm:budget=99,protect=1+", "protect is '1+'"},
        {"knorm:budget=99,protect=last", "protect is 'last'"},
        {"knorm:budget=99,protect=4294967296", "protect is '4294967296'"},
        {"knorm:budget=99,protect=0-2147483648", "protect is '0-2147483648'"},
        {"knorm:budget=12\x1b[m", "option 'budget=12?[m' holds a character that no option has"},
        {"knorm:budget=67", "a budget of 67 tokens is less than the 68 that are protected: the first 4 and the newest 64"},
        {"window:budget=300,recent=256,sink=64", "less than the 320 that are protected"},
        {"knorm:budget=1024,budget=5", "option 'budget' is given twice"},
        {"knorm:budget=1024,keep=5", "policy 'knorm' has no option 'keep'; it has: budget sink recent protect layers"},
        {"window:budget=1024,seed=5", "policy 'window' has no option 'seed'"},
        {"random:budget=1024,seed=x", "policy 'random': seed is 'x', but may be a whole number"},
        {"knorm:budget=1024,sink=-1", "policy 'knorm': sink is '-1', but may be a number of tokens"},
        {"knorm:budget=99,layers=1", "layers is '1', but must list layers with their tokens, as 0-1:512+29:256"},
        {"knorm:budget=99,layers=1:", "layers is '1:'"},
        {"knorm:budget=99,layers=1:0", "layers is '1:0'"},
        {"knorm:budget=99,layers=1:200+", "layers is '1:200+'"},
        {"knorm:budget=99,layers=3-1:200", "layers is '3-1:200'"},
        {"knorm:budget=99,layers=1:25%", "layers is '1:25%'"},
        {"knorm:budget=99,layers=0-3:200+2-7:300", "layers gives layer 2 two budgets"},
        {"knorm:budget=99,layers=4:200+0-9:300", "layers gives layer 4 two budgets"},
        {"knorm:budget=99,layers=2-5:200,protect=0+4-9", "layer 4 is protected, and layers gives it a budget"},
        {"knorm:budget=99,layers=0-1:200+5:67", "layer 5: a budget of 67 tokens is less than the 68 that are protected"},
        {"none:layers=1:200", "policy 'none' has no option 'layers', nor any other"},
        {"none:budget=1024", "policy 'none' has no option 'budget', nor any other"},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        ts_model m;
        kvf_cache *c = NULL;
        char error[320] = "";
        model(&m, "f16", cases[i][0]);
        assert_int_equal(kvf_evict_check(cases[i][0], S, R, 1000, NULL, error, sizeof error), KVF_E_SPEC);
        if (!strstr(error, cases[i][1])) fail_msg("'%s': %s", cases[i][0], error);
        assert_int_equal(ts_try(&m, &c), KVF_E_SPEC);
        assert_null(c);
        assert_string_equal(m.error, error);
        assert_int_equal(kvf_bytes(&m.params, 100), KVF_E_SPEC);
    }
}

/* ---- which rows stay -------------------------------------------------------------------------------------------------------------- */

/* Root mean square of a key, to f16: what knorm compares. */
static uint16_t length(const float *k, int dim)
{
    double sum = 0;
    for (int d = 0; d < dim; d++) sum += (double)k[d] * (double)k[d];
    return ts_half((float)sqrt(sum / dim));
}

/* The definition: for every block b, as soon as 64(b+1) + R rows are there, drop what is too much. */
static void define(int *alive, const uint16_t *goodness, int n, int budget, int share, int sink, int recent)
{
    for (int i = 0; i < n; i++) alive[i] = 1;
    for (int rows = 64 + R; rows <= n; rows += 64) {
        int keep = share ? rows * share / 1000 : budget, have = 0;
        if (keep < sink + recent) keep = sink + recent;
        for (int i = 0; i < rows; i++) have += alive[i];
        for (; have > keep; have--) {
            int worst = -1;
            for (int i = sink; i < rows - recent; i++)
                if (alive[i] && (worst < 0 || goodness[i] < goodness[worst])) worst = i;
            assert_true(worst >= 0);
            alive[worst] = 0;
        }
    }
}

/* Projection of a key on channel 3, as qfilters keeps it. */
static uint16_t reach(const float *k, int dim)
{
    const uint16_t half = ts_half((float)(1 / sqrt(dim)) * k[3]);
    return (uint16_t)(half >> 15 ? ~half : half | 0x8000);
}

enum { OLDEST, SHORTEST, FURTHEST };

static uint16_t goodness_of(int by, const float *k, int dim)
{
    return by == SHORTEST ? (uint16_t)(65535 - length(k, dim)) : by == FURTHEST ? reach(k, dim) : 0;
}

/* Every query goes along channel 3, however far. */
static tc_calibration *along_channel_3(ts_model *m)
{
    tc_calibration *t = tc_new(m, 1);
    for (int i = 0; i < m->params.n_layers; i++)
        for (int j = 0; j < m->layers[i].kv_heads * m->layers[i].k_dim; j++)
            ((float *)(uintptr_t)t->layers[i].q_direction)[j] = j % m->layers[i].k_dim == 3 ? 17.0f : 0.0f;
    m->params.calibration = &t->c;
    return t;
}

static void check_kept(const char *spec, int by, int budget, int share, int sink, int recent)
{
    enum { N = 700 };
    ts_model m;
    ts_row rows[N];
    int alive[N], some_differ = 0;
    uint16_t goodness[N];
    model(&m, "q4_0", spec);
    tc_calibration *t = along_channel_3(&m);
    kvf_cache *c = fed(&m, N, 90);
    ts_rows(rows, N, 0, 1, 0);
    ts_batch *b = ts_batch_new(&m, rows, N, NULL);
    for (int layer = 0; layer < 3; layer += 2)
        for (int head = 0; head < 2; head++) {
            int dim = m.layers[layer].k_dim, kept = 0;
            for (int i = 0; i < N; i++)
                goodness[i] = goodness_of(by, b->k[layer].plain + (size_t)(2 * i + head) * (size_t)dim, dim);
            define(alive, goodness, N, budget, share, sink, recent);
            for (int i = 0; i < N; i++) {
                if (held(c, 0, layer, head, i) != alive[i])
                    fail_msg("%s, layer %d, head %d: position %d is %s", spec, layer, head, i, alive[i] ? "missing" : "held");
                kept += alive[i];
                some_differ += held(c, 0, layer, 0, i) != held(c, 0, layer, 1, i);
            }
            assert_int_equal(evicted(c, layer).kept, kept);
            assert_int_equal(evicted(c, layer).evicted, N - kept);
        }
    assert_int_equal(some_differ > 0, by != OLDEST); /* every head has a set of its own */
    assert_int_equal(evicted(c, 1).pruned, 0);
    assert_int_equal(evicted(c, 1).evicted, 0);
    for (int i = N - 50; i < N; i++) assert_true(held(c, 0, 1, 0, i));
    assert_int_equal(kvf_seq_pos_max(c, 0), N - 1); /* a position, not a count */
    ts_batch_free(b);
    kvf_cache_free(&c);
    tc_free(t);
}

static void test_kept_rows_follow_the_definition(void **state)
{
    (void)state;
    check_kept("window:budget=200", OLDEST, 200, 0, S, R);
    check_kept("window:budget=200,sink=80", OLDEST, 200, 0, 80, R);
    check_kept("window:budget=68", OLDEST, 68, 0, S, R);
    check_kept("window:budget=30%", OLDEST, 0, 300, S, R);
    check_kept("knorm:budget=200", SHORTEST, 200, 0, S, R);
    check_kept("knorm:budget=300,recent=150,sink=10", SHORTEST, 300, 0, 10, 150);
    check_kept("knorm:budget=40%,recent=100", SHORTEST, 0, 400, S, 100);
    check_kept("qfilters:budget=200", FURTHEST, 200, 0, S, R);
    check_kept("qfilters:budget=40%,recent=100,sink=9", FURTHEST, 0, 400, 9, 100);
}

/* All keys alike: the lowest positions go, as in a window. */
static void test_ties_go_by_position(void **state)
{
    enum { N = 500 };
    (void)state;
    ts_model m;
    model(&m, "f16", "knorm:budget=150");
    kvf_cache *c = ts_create(&m);
    static float same[64 * 2];
    for (int i = 0; i < COUNT(same); i++) same[i] = 1;
    for (int pos = 0; pos < N; pos++) {
        kvf_token t = {0, pos};
        ts_ok(kvf_batch_begin(c, &t, 1));
        for (int layer = 0; layer < 3; layer++) {
            kvf_view k = {.data = same, .type = KVF_F32, .token_stride = 0, .head_stride = 0}, v = k;
            ts_ok(kvf_batch_append(c, layer, &k, &v, NULL));
        }
        ts_ok(kvf_batch_commit(c));
    }
    for (int pos = 0, last = 64 * ((N - R) / 64) + R; pos < N; pos++)
        assert_int_equal(held(c, 0, 2, 1, pos), pos < S || pos >= last - (150 - S));
    kvf_cache_free(&c);
}

/* Attention over rows of equal keys is the mean of the values that stay, the new row's included. */
static void test_equal_scores(void **state)
{
    enum { N = 400, DIM = 16 };
    (void)state;
    ts_model m;
    ts_model_init(&m, 1, 1, 1, DIM, DIM, "f16", "f16");
    m.params.evict = "knorm:budget=100";
    kvf_cache *c = ts_create(&m);
    static float keys[DIM], value[DIM], query[DIM], out[DIM];
    kvf_view k = {.data = keys, .type = KVF_F32}, v = {.data = value, .type = KVF_F32}, q = {.data = query, .type = KVF_F32};
    for (int d = 0; d < DIM; d++) keys[d] = 1, query[d] = (float)d;
    for (int pos = 0; pos <= N; pos++) {
        kvf_token t = {0, pos};
        kvf_attention a;
        kvf_attention_init(&a);
        a.q = q, a.k = k, a.v = v, a.scale = 1, a.out = out;
        for (int d = 0; d < DIM; d++) value[d] = (float)(pos % 50 + d);
        ts_ok(kvf_batch_begin(c, &t, 1));
        ts_ok(kvf_attend(c, &a));
        double sum = pos % 50, n = 1;
        for (int p = 0; pos == N && p < N; p++)
            if (held(c, 0, 0, 0, p)) sum += p % 50, n++;
        if (pos == N) assert_true(fabs((double)out[0] - sum / n) < 1e-3 && n >= 100 && n <= 164);
        ts_ok(kvf_batch_append(c, 0, &k, &v, NULL));
        ts_ok(kvf_batch_commit(c));
    }
    kvf_cache_free(&c);
}

/* ---- budgets of layers and of the whole cache ------------------------------------------------------------------------------------ */

static void test_layers_have_budgets(void **state)
{
    (void)state;
    ts_model m;
    ts_model_init(&m, 5, 4, 2, 32, 32, "uni4", "q4_0");
    m.params.evict = "random:budget=200,protect=1+3-4";
    m.layers[2].evict_budget = 120, m.layers[4].evict_budget = 70;
    kvf_cache *c = fed(&m, 640 + R, 100);
    static const int budget[] = {200, 0, 120, 0, 0};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(evicted(c, i).pruned, budget[i] > 0);
        assert_int_equal(evicted(c, i).budget, budget[i]);
        assert_int_equal(evicted(c, i).kept, budget[i] ? budget[i] : 640 + R);
    }
    kvf_cache_free(&c);
    m.params.evict = "window:budget=200,layers=0-1:300+4:250", m.layers[0].evict_budget = -1; /* a layer's own parameter holds */
    c = fed(&m, 640 + R, 100);
    assert_int_equal(evicted(c, 0).kept, 640 + R);
    assert_int_equal(evicted(c, 1).kept, 300);
    assert_int_equal(evicted(c, 3).kept, 200);
    assert_int_equal(evicted(c, 4).kept, 70);
    kvf_cache_free(&c);
}

static void test_refused_budgets(void **state)
{
    static const struct {
        const char *evict;
        int64_t budget; /* of layer 1 */
        int window, code;
        const char *says;
    } cases[] = {
        {"knorm:budget=200,protect=0-7", 0, 0, KVF_E_ARG, "policy 'knorm' protects layer 7; there are 0 to 2"},
        {"knorm:budget=200,layers=1-3:300", 0, 0, KVF_E_ARG, "policy 'knorm' gives layer 3 a budget; there are 0 to 2"},
        {"knorm:budget=200,layers=1:300", 0, 64, KVF_E_ARG, "layer 1 has a budget of 300 tokens, but a window of its own"},
        {"knorm:budget=200", -2, 0, KVF_E_ARG, "layer 1: evict_budget is -2; allowed are -1 (all), 0"},
        {"knorm:budget=200", 67, 0, KVF_E_ARG, "layer 1: a budget of 67 tokens is less than the 68 that are protected"},
        {"none", 500, 0, KVF_E_ARG, "layer 1 has a budget of 500 tokens, but there is no policy"},
        {"knorm:budget=200", 500, 64, KVF_E_ARG, "layer 1 has a budget of 500 tokens, but a window of its own"},
        {"qfilters:budget=200", 0, 0, KVF_E_UNSUPPORTED, "policy 'qfilters' needs the direction of the queries of layer 0"},
        {"qfilters:budget=200", 0, 0, KVF_E_UNSUPPORTED, "kvfold calibrate"},
        {"knorm:budget=64KiB", 0, 0, KVF_E_SPEC,
         "a budget of 65536 bytes is too small: the 68 tokens that are protected may take"},
        {"knorm:budget=64MiB,protect=0", 0, 0, KVF_E_UNSUPPORTED, "layer 0 keeps everything and grows without end"},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        ts_model m;
        kvf_cache *c = NULL;
        ts_model_init(&m, 3, 4, 2, 32, 32, "uni4", "q4_0");
        m.params.evict = cases[i].evict, m.layers[1].evict_budget = cases[i].budget, m.layers[1].window = cases[i].window;
        assert_int_equal(ts_try(&m, &c), cases[i].code);
        assert_null(c);
        if (!strstr(m.error, cases[i].says)) fail_msg("%s: %s", cases[i].evict, m.error);
    }
}

/* A budget in bytes holds at every length, and the tokens that it becomes are as many as fit. */
static void test_budgets_in_bytes(void **state)
{
    static const char *const names[] = {"window", "knorm", "random"};
    (void)state;
    for (int i = 0; i < 2 * COUNT(names); i++) {
        ts_model m;
        char spec[64];
        model(&m, i % 2 ? "uni4" : "kivi4", "none");
        m.params.max_sequences = 1;                           /* each of several would get a part */
        const int kib = (int)(ts_bytes(&m, 300) >> 10) + 128; /* and the scratch of a policy */
        snprintf(spec, sizeof spec, "%s:budget=%dKiB,recent=70", names[i / 2], kib);
        m.params.evict = spec;
        kvf_cache *c = ts_create(&m);
        const int budget = (int)evicted(c, 0).budget;
        for (int n = 1; n <= 1500; n++) {
            kvf_stats_t s = {.size = sizeof s};
            ts_grow(c, &m, 0, 1, 1, 1);
            ts_ok(kvf_stats(c, &s));
            if (s.accounted > 1024 * kib) fail_msg("%s, %d rows: %lld bytes", spec, n, (long long)s.accounted);
        }
        assert_true(evicted(c, 2).evicted > 0);
        kvf_cache_free(&c);
        for (int more = 0; more < 2; more++) {
            snprintf(spec, sizeof spec, "%s:budget=%d,recent=70", names[i / 2], budget + more);
            int64_t most = 0;
            for (int n = 100000; n < 100064; n++) most = ts_bytes(&m, n) > most ? ts_bytes(&m, n) : most;
            assert_int_equal(most > 1024 * kib, more);
        }
    }
}

static const char *const policies[] = {"window:budget=150", "random:budget=200,seed=3", "knorm:budget=200",
                                       "knorm:budget=40%,recent=100", "qfilters:budget=200"};

static void test_batches_of_any_size(void **state)
{
    static const char *const codecs[] = {"kivi2", "uni4", "turbo4"};
    static const int chunks[] = {7, 1, 64, 65, 200};
    (void)state;
    for (int i = 0; i < COUNT(policies); i++)
        for (int j = 0; j < COUNT(codecs); j++) {
            ts_model m;
            model(&m, codecs[j], policies[i]);
            kvf_cache *whole = fed(&m, 450, 450);
            assert_true(evicted(whole, 0).evicted > 0);
            for (int k = 0; k < (j ? 2 : COUNT(chunks)); k++) {
                kvf_cache *pieces = fed(&m, 450, chunks[k]);
                ts_same_sequence(whole, 0, pieces, 0, &m);
                assert_int_equal(evicted(whole, 0).evicted, evicted(pieces, 0).evicted);
                kvf_cache_free(&pieces);
            }
            kvf_cache_free(&whole);
        }
}

/* The hash that the test above relies on tells policies apart. */
static void test_hash_sees_the_kept_set(void **state)
{
    (void)state;
    uint64_t hash[COUNT(policies)];
    for (int i = 0; i < COUNT(policies); i++) {
        ts_model m;
        model(&m, "q4_0", policies[i]);
        kvf_cache *c = fed(&m, 450, 450);
        hash[i] = kvfi_cache_hash(c, 0);
        for (int j = 0; j < i; j++) assert_int_not_equal(hash[i], hash[j]);
        kvf_cache_free(&c);
    }
}

/* Every row that one holds the other does, byte for byte, and attention gives the same bits. Chains hash as what they are. */
static void same_rows(kvf_cache *a, kvf_cache *b, const ts_model *m, int n)
{
    for (int i = 0; i < 2 * 2 * 3 * n; i++) {
        float x[64] = {0}, y[64] = {0};
        const int layer = i / n % 3, head = i / n / 3 % 2, side = i / n / 6;
        assert_int_equal(kvf_seq_read(a, 0, layer, (kvf_side)side, head, i % n, x),
                         kvf_seq_read(b, 0, layer, (kvf_side)side, head, i % n, y));
        assert_memory_equal(x, y, sizeof x);
    }
    size_t n_a, n_b;
    float *x = ts_probe(a, m, 0, &n_a), *y = ts_probe(b, m, 0, &n_b);
    assert_int_equal(n_a, n_b);
    assert_memory_equal(x, y, n_a * sizeof *x);
    free(x), free(y);
}

/* A budget that never binds changes nothing. */
static void test_large_budget_is_none(void **state)
{
    static const char *const specs[] = {"window:budget=450",    "random:budget=450",  "knorm:budget=5000",
                                        "qfilters:budget=100%", "snapkv:budget=5000", "h2o:budget=450"};
    static const char *const codecs[] = {"kivi4", "uni4", "q4_0"};
    (void)state;
    for (int i = 0; i < COUNT(codecs) * COUNT(specs); i++) {
        ts_model m, n;
        model(&m, codecs[i % 3], "none");
        model(&n, codecs[i % 3], specs[i / 3]);
        tc_calibration *t = along_channel_3(&n); /* both stage their keys alike */
        m.params.calibration = n.params.calibration;
        kvf_cache *none = fed(&m, 450, 100), *policy = fed(&n, 450, 100);
        same_rows(none, policy, &m, 450);
        if (i < 3) ts_same_sequence(none, 0, policy, 0, &m);
        assert_int_equal(evicted(policy, 0).evicted, 0);
        kvf_cache_free(&none), kvf_cache_free(&policy);
        tc_free(t);
    }
}

/* Sequences that begin at positions of their own, fed in the same batches: each keeps its own first rows. */
static void test_each_sequence_has_a_sink(void **state)
{
    enum { N = 320, CHUNK = 40, BEGIN = 1000 };
    (void)state;
    for (int i = 0; i < 2; i++) {
        ts_model m;
        model(&m, "uni4", i ? "knorm:budget=150,sink=20" : "window:budget=150,sink=20");
        kvf_cache *c = ts_create(&m);
        for (int n = 0; n < N; n += CHUNK) {
            ts_row rows[2 * CHUNK];
            for (int s = 0; s < 2; s++) ts_rows(rows + s * CHUNK, CHUNK, s, 1, s * BEGIN + n);
            ts_feed(c, &m, rows, 2 * CHUNK, 2 * CHUNK, NULL);
        }
        for (int s = 0; s < 2; s++) {
            int kept = 0;
            for (int n = 0; n < N; n++) kept += held(c, s, 0, 1, s * BEGIN + n);
            assert_int_equal(kept, 150);
            for (int n = 0; n < 20; n++) assert_true(held(c, s, 0, 1, s * BEGIN + n));
            for (int n = N - R; n < N; n++) assert_true(held(c, s, 0, 1, s * BEGIN + n));
        }
        kvf_cache_free(&c);
    }
}

/* ---- removal, copies, aborts -------------------------------------------------------------------------------------------------- */

static void test_removal_after_eviction(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(policies); i++) {
        ts_model m;
        model(&m, "q4_0", policies[i]);
        m.params.window_keep = 1000;
        kvf_cache *c = fed(&m, 450, 60), *clean = fed(&m, 448, 448); /* the last choice knew of 448 rows */
        assert_int_equal(kvf_can(c, KVF_CAN_RM_EXACT, 0, 448), 1);
        assert_int_equal(kvf_can(c, KVF_CAN_RM_EXACT, 0, 447), 0);
        assert_non_null(strstr(kvf_cache_error(c), "the policy has dropped rows"));
        assert_int_equal(kvf_can(c, KVF_CAN_RM, 0, 447), 1);
        ts_ok(kvf_seq_rm(c, 0, 448, -1));
        ts_same_sequence(c, 0, clean, 0, &m);
        /* a deep cut: what the policy dropped stays away, the next position is the cut's */
        int was[420];
        for (int pos = 0; pos < 420; pos++) was[pos] = held(c, 0, 0, 1, pos);
        ts_ok(kvf_seq_rm(c, 0, 300, -1));
        assert_int_equal(kvf_seq_pos_max(c, 0), 299);
        for (int layer = 0; layer < 3; layer += 2) { /* what has gone beyond the cut is not missed any more */
            assert_int_equal(evicted(c, layer).kept + evicted(c, layer).evicted, 300);
            assert_true(evicted(c, layer).kept > 0 && evicted(c, layer).evicted > 0);
        }
        for (int pos = 0; pos < 420; pos++) assert_int_equal(held(c, 0, 0, 1, pos), pos < 300 && was[pos]);
        /* a removed row in the middle is not counted as held, and growing goes on within the budget */
        ts_ok(kvf_seq_rm(c, 0, 2, 3));
        ts_grow(c, &m, 0, 2, 500, 33);
        assert_int_equal(kvf_seq_pos_max(c, 0), 799);
        kvf_evict_info e;
        ts_ok(kvf_evict_check(policies[i], S, R, 800, &e, NULL, 0));
        assert_true(evicted(c, 2).kept <= e.budget + 63);
        assert_false(held(c, 0, 2, 0, 2));
        ts_ok(kvf_seq_rm(c, 0, 0, -1));
        ts_grow(c, &m, 0, 1, 448, 448);
        ts_same_sequence(c, 0, clean, 0, &m);
        kvf_cache_free(&c), kvf_cache_free(&clean);
    }
}

/* A copy shares blocks; each drops rows of its own, and the other does not notice. */
static void test_copies_evict_apart(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(policies); i++) {
        ts_model m;
        model(&m, "kivi2", policies[i]);
        kvf_cache *c = fed(&m, 300, 300), *solo[2];
        ts_ok(kvf_seq_cp(c, 0, 1));
        ts_same_sequence(c, 0, c, 1, &m);
        ts_grow(c, &m, 0, 5, 200, 50);
        ts_grow(c, &m, 1, 6, 200, 70);
        for (int s = 0; s < 2; s++) {
            solo[s] = fed(&m, 300, 300);
            ts_grow(solo[s], &m, 0, s ? 6 : 5, 200, 200);
            ts_same_sequence(c, s, solo[s], 0, &m);
            kvf_cache_free(&solo[s]);
        }
        ts_ok(kvf_seq_rm(c, 0, -1, -1));
        ts_ok(kvf_seq_rm(c, 1, -1, -1));
        kvf_stats_t now = {.size = sizeof now};
        ts_ok(kvf_stats(c, &now));
        assert_int_equal(now.accounted, ts_bytes(&m, 0)); /* every block went back */
        kvf_cache_free(&c);
    }
}

static void test_abort_evicts_nothing(void **state)
{
    (void)state;
    ts_model m;
    ts_row rows[200];
    model(&m, "q4_0", "knorm:budget=200");
    kvf_cache *c = fed(&m, 400, 400);
    ts_snapshot before = ts_snapshot_take(c, &m);
    ts_rows(rows, 200, 0, 9, 400);
    ts_batch *b = ts_batch_new(&m, rows, 200, NULL);
    ts_begin(c, b);
    ts_attend_all(c, b);
    ts_append_all(c, b);
    ts_ok(kvf_batch_abort(c));
    ts_unchanged(c, &m, &before);
    ts_batch_free(b);
    ts_snapshot_free(&before);
    kvf_cache_free(&c);
}

/* ---- memory ------------------------------------------------------------------------------------------------------------------- */

/* A window frees whole blocks: the formula is exact at every length, also with a protected stretch longer than the sink. */
static void test_window_bytes_are_the_formula(void **state)
{
    static const char *const specs[] = {"window:budget=150", "window:budget=300,sink=130", "window:budget=68",
                                        "window:budget=25%"};
    (void)state;
    for (int i = 0; i < COUNT(specs); i++) {
        ts_model m;
        model(&m, "turbo4", specs[i]);
        kvf_cache *c = ts_create(&m);
        for (int n = 1; n < 700; n++) {
            ts_grow(c, &m, 0, 1, 1, 1);
            const kvf_stats_t s = ts_bytes_are(c, &m, n, specs[i]);
            assert_int_equal(s.tokens + s.tokens_evicted, n);
        }
        kvf_cache_free(&c);
    }
}

/* A stream of 20,000 rows in a cache that was reserved for 1,000: nothing grows and nothing is allocated. */
static void test_stream_does_not_grow(void **state)
{
    (void)state;
    ts_model m;
    ts_heap heap;
    ts_heap_init(&heap);
    ts_model_init(&m, 1, 1, 1, 16, 16, "q4_0", "q4_0");
    m.params.max_batch = 255;
    m.params.evict = "window:budget=512,sink=4";
    m.params.allocator = &heap.hooks;
    kvf_cache *c = ts_create(&m);
    ts_ok(kvf_reserve(c, 1000, 1, 255));
    long calls = heap.calls;
    int64_t most = 0;
    for (int n = 0; n + 255 <= 20000; n += 255) {
        kvf_stats_t s = {.size = sizeof s};
        ts_grow(c, &m, 0, 1, 255, 255);
        ts_ok(kvf_stats(c, &s));
        assert_true(s.tokens <= 512 + 63);
        if (n < 2550) most = s.accounted > most ? s.accounted : most;
        assert_true(s.accounted <= most);
    }
    assert_int_equal(heap.calls, calls);
    assert_true(kvf_seq_pos_max(c, 0) > 19000);
    kvf_cache_free(&c);
}

/* A row costs 6 bytes for each head, position and score, and a bin of 64 another 24; a link 8. */
static void test_score_bytes(void **state)
{
    (void)state;
    ts_model m, n;
    model(&m, "q4_0", "none");
    model(&n, "q4_0", "knorm:budget=5000");
    kvf_cache *c = fed(&n, 450, 450);
    kvf_stats_t s = {.size = sizeof s};
    ts_ok(kvf_stats(c, &s));
    const int64_t blocks = (450 - R) / 64, row = 24 + 8 * 6; /* of the table, which has nothing left to describe */
    assert_int_equal(ts_bytes(&n, 450) - ts_bytes(&n, 0) - (ts_bytes(&m, 450) - ts_bytes(&m, 0)),
                     blocks * (2 * 8 + 4 * (24 + 6 * 64)) - blocks * row);
    assert_int_equal(s.accounted, ts_bytes(&n, 450));
    kvf_cache_free(&c);
    model(&n, "q4_0", "knorm:budget=100");
    c = fed(&n, 1000, 200);
    ts_ok(kvf_stats(c, &s));
    assert_true(s.accounted <= ts_bytes(&n, 1000));
    kvf_cache_free(&c);
}

/* A layer that keeps everything keeps every table row, but not the scores of rows that others have dropped: what a policy without any
 * grows by. */
static void test_scores_go_with_their_rows(void **state)
{
    static const char *const specs[] = {"window:budget=150,protect=0", "knorm:budget=150,protect=0",
                                        "random:budget=150,protect=0", "qfilters:budget=150,protect=0",
                                        "h2o:budget=150,protect=0"};
    (void)state;
    int64_t growth[COUNT(specs)];
    for (int i = 0; i < COUNT(specs); i++) {
        ts_model m;
        ts_model_init(&m, 2, 4, 2, 32, 32, "q4_0", "q4_0");
        tc_calibration *t = along_channel_3(&m);
        m.params.evict = specs[i];
        growth[i] = ts_bytes(&m, 64 * 200) - ts_bytes(&m, 64 * 100);
        if (growth[i] != growth[0])
            fail_msg("%s: %lld bytes for 6,400 rows, %lld without scores", specs[i], (long long)growth[i], (long long)growth[0]);
        kvf_cache *c = ts_create(&m);
        for (int n = 1; n <= 500; n++) {
            ts_grow(c, &m, 0, 1, 1, 1);
            ts_bytes_are(c, &m, n, specs[i]);
        }
        kvf_cache_free(&c);
        tc_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_example_is_valid),
        cmocka_unit_test(test_budgets),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_kept_rows_follow_the_definition),
        cmocka_unit_test(test_ties_go_by_position),
        cmocka_unit_test(test_equal_scores),
        cmocka_unit_test(test_layers_have_budgets),
        cmocka_unit_test(test_refused_budgets),
        cmocka_unit_test(test_budgets_in_bytes),
        cmocka_unit_test(test_batches_of_any_size),
        cmocka_unit_test(test_hash_sees_the_kept_set),
        cmocka_unit_test(test_large_budget_is_none),
        cmocka_unit_test(test_each_sequence_has_a_sink),
        cmocka_unit_test(test_removal_after_eviction),
        cmocka_unit_test(test_copies_evict_apart),
        cmocka_unit_test(test_abort_evicts_nothing),
        cmocka_unit_test(test_window_bytes_are_the_formula),
        cmocka_unit_test(test_stream_does_not_grow),
        cmocka_unit_test(test_score_bytes),
        cmocka_unit_test(test_scores_go_with_their_rows),
    };
    const int failed = cmocka_run_group_tests_name("evict", tests, NULL, NULL);
    tc_free(directions);
    return failed;
}
