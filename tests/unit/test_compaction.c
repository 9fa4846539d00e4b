/* SPDX-License-Identifier: MIT
 * Compaction: rows that stay are moved as they are, memory follows the budget for every policy, and neither streams nor copies change
 * that. Attention over compacted blocks is tests/oracle/test_oracle_evict.c. */
#include "support.h"
#include "cache/chain.h"
#include "books.h"
#include "calibrated.h"
#include "self_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

enum { R = 64 };

static kvf_stats_t stats(const kvf_cache *c)
{
    kvf_stats_t s = {.size = sizeof s};
    ts_ok(kvf_stats(c, &s));
    return s;
}

/* Feeds with attention, which codecs that estimate a channel scale listen to. */
static void feed(kvf_cache *c, const ts_model *m, int n, int chunk)
{
    ts_row *rows = calloc((size_t)chunk, sizeof *rows);
    assert_non_null(rows);
    for (int i = 0; i < n; i += chunk) {
        const int now = n - i < chunk ? n - i : chunk;
        ts_rows(rows, now, 0, 1, kvf_seq_pos_max(c, 0) + 1);
        ts_batch *b = ts_batch_new(m, rows, now, NULL);
        ts_begin(c, b);
        ts_attend_all(c, b);
        ts_append_all(c, b);
        ts_ok(kvf_batch_commit(c));
        ts_batch_free(b);
    }
    free(rows);
}

/* Rows of `packed` that are held are those of `all`, bit for bit or (coded again) nearly; how many there are of a head. */
static int compare_rows(kvf_cache *packed, kvf_cache *all, int layer, int head, int dim, int exact)
{
    int held = 0;
    for (int pos = 0; pos <= kvf_seq_pos_max(all, 0); pos++)
        for (int side = KVF_K; side <= KVF_V; side++) {
            float x[256], y[256];
            if (kvf_seq_read(packed, 0, layer, (kvf_side)side, head, pos, x) != KVF_OK) continue;
            ts_ok(kvf_seq_read(all, 0, layer, (kvf_side)side, head, pos, y));
            held += side == KVF_V;
            if (exact && memcmp(x, y, (size_t)dim * sizeof *x) != 0)
                fail_msg("layer %d, head %d, side %d: the row at position %d is another", layer, head, side, pos);
        }
    return held;
}

/* Every example of every codec, with its stages from the prompt, on head sizes with and without padding. */
static void one_codec(const char *spec, int sides, int dim)
{
    ts_model m;
    char error[256];
    tb_known *known = NULL;
    if (kvf_spec_check(spec, sides & 1 ? KVF_K : KVF_V, dim, NULL, error, sizeof error)) return; /* not at this head size */
    ts_model_init(&m, 1, 2, 2, dim, dim, sides & 1 ? spec : "q4_0", sides & 2 ? spec : "q4_0");
    if (!strncmp(spec, "vecinfer", 8)) known = tb_know(&m, 1);
    kvf_cache *all = ts_create(&m);
    m.params.evict = "random:budget=300";
    kvf_cache *packed = ts_create(&m);
    feed(all, &m, 1000, 125);
    feed(packed, &m, 1000, 125);
    const int moves = packed->g.stores[0].moves;
    for (int h = 0; h < 2; h++) {
        const int held = compare_rows(packed, all, 0, h, dim, moves);
        assert_in_range(held, 300, 300 + 63);
    }
    assert_int_equal(stats(packed).rows_recoded > 0, !moves);
    if (stats(packed).accounted > ts_bytes(&m, 1000))
        fail_msg("%s: %lld bytes, at most %lld were expected", spec, (long long)stats(packed).accounted,
                 (long long)ts_bytes(&m, 1000));
    kvf_cache_free(&all), kvf_cache_free(&packed);
    if (known) tb_forget(known);
}

static void test_rows_move_as_they_are(void **state)
{
    kvf_codec_info info;
    (void)state;
    for (int i = 0; !kvf_codec_list(i, &info); i++) {
        char list[256], *spec = list;
        strcpy(list, info.examples);
        for (char *end; spec; spec = end) {
            end = strchr(spec, ' ');
            if (end) *end++ = '\0';
            one_codec(spec, (int)info.sides, 32);
        }
        one_codec(info.name[0] == 'q' && info.name[1] == 'j' ? "qjl" : info.examples, (int)info.sides, 80);
    }
}

/* So do rows of latent layers, whose values are in their keys, and those that come from exact rows of 8 bits. */
static void test_other_rows_move_as_they_are(void **state)
{
    static const char *const specs[] = {"f16", "q8_0", "q4_0"};
    (void)state;
    for (int i = 0; i < 2 * COUNT(specs); i++) {
        ts_model m;
        const int latent = i % 2 && strcmp(specs[i / 2], "q4_0") != 0;
        ts_model_init(&m, 2, 2, 2, 32, 32, specs[i / 2], "q8_0");
        m.layers[1].share = 0;
        m.layers[0].v_in_k = m.layers[1].v_in_k = latent;
        m.params.exact_bits = latent && i < 2 ? 16 : 8;
        kvf_cache *all = ts_create(&m);
        m.params.evict = "random:budget=200";
        kvf_cache *packed = ts_create(&m);
        feed(all, &m, 600, 75);
        feed(packed, &m, 600, 75);
        for (int h = 0; h < 2; h++) assert_in_range(compare_rows(packed, all, 1, h, 32, 1), 200, 200 + 63);
        assert_int_equal(stats(packed).rows_recoded, 0);
        assert_int_equal(stats(packed).accounted, ts_bytes(&m, 600));
        kvf_cache_free(&all), kvf_cache_free(&packed);
    }
}

/* Error of the keys that are held, of their energy, against the same rows in a cache that dropped none. */
static double error_of_keys(kvf_cache *packed, kvf_cache *all, int layer, int head, int dim)
{
    double error = 0, energy = 0;
    for (int pos = 0; pos <= kvf_seq_pos_max(all, 0); pos++) {
        float x[256], y[256];
        if (kvf_seq_read(packed, 0, layer, KVF_K, head, pos, x) != KVF_OK) continue;
        ts_ok(kvf_seq_read(all, 0, layer, KVF_K, head, pos, y));
        for (int d = 0; d < dim; d++) error += ((double)x[d] - y[d]) * ((double)x[d] - y[d]), energy += (double)y[d] * y[d];
    }
    return sqrt(error / energy);
}

/* Rows that are coded again come out near what they were, with the tables of their own head. */
static void test_rows_coded_again_stay_near(void **state)
{
    (void)state;
    static const char *const specs[] = {"kivi4", "kivi2", "uni4:centre=block", "vecinfer:sub=4,bits=8,per=head"};
    for (int i = 0; i < COUNT(specs); i++) {
        ts_model m;
        tb_known *known = NULL;
        ts_model_init(&m, 1, 2, 2, 32, 32, specs[i], "f16");
        if (specs[i][0] == 'v') known = tb_know(&m, 1), m.layers[0].rope_style = KVF_ROPE_UNKNOWN;
        kvf_cache *all = ts_create(&m);
        m.params.evict = "random:budget=300";
        kvf_cache *packed = ts_create(&m);
        feed(all, &m, 1000, 125);
        feed(packed, &m, 1000, 125);
        assert_true(stats(packed).rows_recoded > 0);
        for (int h = 0; h < 2; h++) {
            const double error = error_of_keys(packed, all, 0, h, 32);
            if (!(error < 0.35)) fail_msg("%s, head %d: coded again, keys are off by %g of their length", specs[i], h, error);
        }
        kvf_cache_free(&all), kvf_cache_free(&packed);
        if (known) tb_forget(known);
    }
}

/* However many rows come and go: the longest keys stay, some of them from the beginning. Rows that stay keep their codes, so what stays long
 * is no worse than what came late. Were all coded again at each
 * merger, they would be off by 0.093, 0.178 and 7.2 of their length. */
static void test_rows_that_stay_do_not_rot(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        double most;
    } codecs[] = {{"kivi4", 0.087}, {"uni4:centre=block", 0.12}, {"qjl:outliers=4", 0.6}};
    for (int i = 0; i < COUNT(codecs); i++) {
        ts_model m;
        ts_model_init(&m, 1, 1, 1, 32, 32, codecs[i].spec, "f16");
        kvf_cache *all = ts_create(&m);
        m.params.evict = "knorm:budget=300";
        kvf_cache *packed = ts_create(&m);
        feed(all, &m, 16000, 125), feed(packed, &m, 16000, 125);
        const double error = error_of_keys(packed, all, 0, 0, 32);
        if (!(error < codecs[i].most)) fail_msg("%s: keys are off by %g of their length", codecs[i].spec, error);
        kvf_cache_free(&all), kvf_cache_free(&packed);
    }
}

/* So do those of a layer with a window of its own, once removals have torn it: the same rows in a cache whose policy keeps all and whose
 * blocks stay as they were coded. */
static void test_torn_windows_stay_near(void **state)
{
    (void)state;
    static const char *const specs[] = {"kivi4", "kivi2:group=16"};
    for (int i = 0; i < COUNT(specs); i++) {
        ts_model m;
        ts_model_init(&m, 2, 2, 2, 32, 32, specs[i], "q4_0");
        m.layers[1].window = 300;
        kvf_cache *all = ts_create(&m);
        m.params.evict = "window:budget=300";
        kvf_cache *packed = ts_create(&m), *both[] = {all, packed};
        for (int j = 0; j < 2; j++) {
            ts_grow(both[j], &m, 0, 1, 500, 50);
            for (int k = 0; k < 12; k++) {
                ts_ok(kvf_seq_rm(both[j], 0, 500 + 50 * k - 200, 500 + 50 * k - 165));
                ts_grow(both[j], &m, 0, 1, 50, 50);
            }
        }
        assert_true(stats(packed).rows_recoded > 0 && !stats(all).rows_recoded);
        for (int h = 0; h < 4; h++) {
            const double error = error_of_keys(packed, all, h / 2, h % 2, 32);
            if (!(error < 0.35)) fail_msg("%s, layer %d: keys are off by %g of their length", specs[i], h / 2, error);
        }
        assert_true(compare_rows(packed, all, 1, 0, 32, 0) > 100);
        kvf_cache_free(&all), kvf_cache_free(&packed);
    }
}

/* Which codecs may move at all is not left to chance. */
static void test_which_codecs_move(void **state)
{
    static const struct {
        const char *spec;
        int moves;
    } cases[] = {{"f16", 1},
                 {"q8_0", 1},
                 {"q4_0:rot=h", 1},
                 {"uni4", 1},
                 {"turbo3", 1},
                 {"rvq4", 1},
                 {"tcq2", 1},
                 {"prod3", 1},
                 {"kivi4", 0},
                 {"turbo2:outliers=8", 0},
                 {"uni4:centre=block", 0}};
    (void)state;
    for (int i = 0; i < COUNT(cases); i++) {
        ts_model m;
        ts_model_init(&m, 1, 2, 1, 32, 32, cases[i].spec, "q4_0");
        kvf_cache *c = ts_create(&m);
        assert_int_equal(c->g.stores[0].moves, cases[i].moves);
        kvf_cache_free(&c);
    }
}

/* Without estimates the formula is exact; with them a layer may have up to three blocks less. */
static void test_bytes_are_the_formula(void **state)
{
    static const char *const specs[] = {"knorm:budget=150", "random:budget=300,sink=130", "knorm:budget=68", "random:budget=25%",
                                        "knorm:budget=5000"};
    (void)state;
    for (int i = 0; i < COUNT(specs); i++) {
        ts_model m;
        ts_model_init(&m, 3, 4, 2, 32, 32, "turbo4:centre=none,scale=none", "q4_0");
        m.layers[1].window = 50;
        m.params.window_keep = 16, m.params.evict = specs[i];
        kvf_cache *c = ts_create(&m);
        for (int n = 1; n < 700; n++) {
            ts_grow(c, &m, 0, 1, 1, 1);
            if (stats(c).accounted != ts_bytes(&m, n))
                fail_msg("%s, %d rows: %lld bytes, formula %lld", specs[i], n, (long long)stats(c).accounted,
                         (long long)ts_bytes(&m, n));
        }
        kvf_cache_free(&c);
    }
}

/* 16,384 tokens through a budget of 2,048: bytes in use stop growing when it binds, and so does physical memory. */
static void test_memory_follows_the_budget(void **state)
{
    static const char *const codecs[][2] = {{"turbo4", "turbo4"}, {"kivi4", "kivi4"}};
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        ts_model m, none;
        ts_model_init(&m, 2, 4, 2, 64, 64, codecs[i][0], codecs[i][1]);
        none = m, none.params.layers = none.layers;
        m.params.evict = "knorm:budget=2048";
        kvf_cache *c = ts_create(&m);
        ts_ok(kvf_reserve(c, 16384, 1, 255));
        int64_t accounted = 0, resident = 0;
        for (int n = 0; n < 16384; n += 255) {
            feed(c, &m, n + 255 > 16384 ? 16384 - n : 255, 255);
            const kvf_stats_t s = stats(c);
            assert_true(s.accounted <= ts_bytes(&m, n + 255));
            if (n < 2 * 2048 + 255) { /* the budget binds, and a batch of blocks has come and gone */
                accounted = s.accounted > accounted ? s.accounted : accounted;
                resident = s.resident > resident ? s.resident : resident;
                continue;
            }
            assert_true(s.accounted <= accounted);
            if (s.resident > resident + (1 << 16))
                fail_msg("%lld bytes resident, %lld before", (long long)s.resident, (long long)resident);
        }
        assert_true(stats(c).tokens <= 2048 + 63);
        /* an eighth of the tokens, in at most a quarter of the bytes: a block a head and table set, and for kivi the half-full ones */
        assert_true(stats(c).accounted - ts_bytes(&m, 0) < (ts_bytes(&none, 16384) - ts_bytes(&none, 0)) / (i ? 3 : 5));
        kvf_cache_free(&c);
    }
}

/* A stream of 20,000 rows (scripts/stream.sh: 100,000) in a cache that was reserved for 1,500: nothing grows, nothing is allocated. Policies
 * that rank by attention are given some. */
static void stream(const char *spec, const char *codec, int attended)
{
    const int total = getenv("KVFOLD_STREAM") ? atoi(getenv("KVFOLD_STREAM")) : 20000;
    ts_model m;
    ts_heap heap;
    ts_heap_init(&heap);
    ts_model_init(&m, 1, 2, 2, 16, 16, codec, "q4_0");
    tc_calibration *known = tc_new(&m, 1);
    m.params.max_batch = 255;
    m.params.evict = spec;
    m.params.allocator = &heap.hooks;
    if (strncmp(spec, "qfilters", 8) == 0) m.params.calibration = &known->c;
    const int64_t bound = ts_bytes(&m, 5100);
    kvf_cache *c = ts_create(&m);
    ts_ok(kvf_reserve(c, 1500, 1, 255));
    const long calls = heap.calls;
    int64_t most = attended ? bound : 0; /* which rows those keep, and so how full blocks are, depends on the instruction set */
    for (int n = 0; n + 255 <= total; n += 255) {
        if (attended)
            feed(c, &m, 255, 255);
        else
            ts_grow(c, &m, 0, 1, 255, 255);
        const kvf_stats_t s = stats(c);
        assert_true(s.tokens <= 512 + 63);
        if (n < 5100) most = s.accounted > most ? s.accounted : most;
        if (s.accounted > most)
            fail_msg("%s, %d rows: %lld bytes, %lld before", spec, n + 255, (long long)s.accounted, (long long)most);
    }
    assert_int_equal(heap.calls, calls);
    kvf_cache_free(&c);
    tc_free(known);
}

static void test_stream_does_not_grow(void **state)
{
    (void)state;
    stream("window:budget=512", "kivi4", 0);
    stream("random:budget=300", "uni4", 0);
    stream("knorm:budget=512,sink=4", "kivi4", 0);
    stream("qfilters:budget=512", "turbo4", 0);
    stream("snapkv:budget=400", "uni4", 1);
    stream("h2o:budget=512", "kivi4", 1);
}

/* ---- keys with a centre ------------------------------------------------------------------------------------------------------ */

enum { FED = 1200, SW_DIM = 32, NEAR = 512 * 100, FAR = 512 * (KVFI_OFFSETS + 100) };

/* Softmax over the rows that a head holds, as they are read, some of them `apart` positions before, and those of the batch up to row
 * `to`. */
static void dense(const sw_world *w, kvf_cache *c, int apart, int layer, int q_head, int to, double *out)
{
    const int head = q_head / (sw_q_heads(layer) / SW_KV);
    const float *q = sw_query(w, 0, layer, to, q_head);
    double sum = 0;
    memset(out, 0, SW_V_DIM * sizeof *out);
    for (int row = 0; row <= to; row++) {
        float k[SW_DIM], v[SW_V_DIM];
        double score = 0;
        if (row >= FED) {
            memcpy(k, sw_key(w, 0, layer, row, head), sizeof k);
            memcpy(v, sw_value(w, 0, layer, row, head), sizeof v);
        } else {
            int pos = w->start + row;
            if (kvf_seq_read(c, 0, layer, KVF_K, head, pos, k) != KVF_OK) pos -= apart;
            if (pos < 0 || kvf_seq_read(c, 0, layer, KVF_K, head, pos, k) != KVF_OK) continue;
            ts_ok(kvf_seq_read(c, 0, layer, KVF_V, head, pos, v));
        }
        for (int d = 0; d < SW_DIM; d++) score += (double)q[d] * (double)k[d];
        const double weight = exp(0.25 / sqrt(SW_DIM) * score);
        sum += weight;
        for (int d = 0; d < SW_V_DIM; d++) out[d] += weight * (double)v[d];
    }
    for (int d = 0; d < SW_V_DIM; d++) out[d] /= sum;
}

/* As if some of the coded rows had come that many positions before: a third, or those with the centre of the segment before. Keys read so
 * are others, but what attention sees of them must be the same. */
static void set_apart(kvf_cache *c, int apart, int earlier)
{
    const kvfi_sequence *s = &c->sequences[0];
    for (int store = 0; store < c->g.n_stores; store++)
        for (int i = 0; i < s->n_links[store] * c->g.stores[store].kv_heads; i++) {
            const kvfi_store *st = &c->g.stores[store];
            kvfi_bin *bin = &kvfi_link_at(s, st, i / st->kv_heads)->bin[i % st->kv_heads];
            for (int t = 0; t < KVF_BLOCK; t++)
                if (earlier ? (int)(bin->earlier >> t & 1) : t % 3 == 0) bin->pos[t] -= apart;
        }
}

static void check_batch(const sw_world *w, kvf_cache *c, int apart, int rows, double bound)
{
    static float got[SW_ROWS * SW_PROBE];
    const float *at = got;
    sw_batch(w, c, &(sw_rows){0, 0, FED, FED + rows}, 1, SW_ATTEND | SW_ABORT, got);
    for (int layer = 0; layer < 2; layer++)
        for (int i = 0; i < rows; i++)
            for (int h = 0; h < sw_q_heads(layer); h++, at += SW_V_DIM) {
                double want[SW_V_DIM];
                dense(w, c, apart, layer, h, FED + i, want);
                for (int d = 0; d < SW_V_DIM; d++)
                    if (fabs((double)at[d] - want[d]) > bound)
                        fail_msg("%s, layer %d, row %d, head %d: %g, expected %g", w->params.k, layer, i, h, (double)at[d],
                                 want[d]);
            }
}

/* Rows of several segments of 512 lie mixed in every bin, and each adds its own centre's share; each moved row keeps its key. The
 * bound is that of products in 16-bit fixed point, tests/oracle/pair.c. */
static void test_centres_of_many_segments(void **state)
{
    static const char *const codecs[] = {"uni8", "turbo4", "tcq3", "f16", "turbo4", "uni8"};
    static const int starts[] = {5000, 5000, 5000, 5000, 512 * KVFI_OFFSETS - 700, FAR + 700};
    (void)state;
    for (int i = 0; i < COUNT(codecs); i++) {
        sw_world *w = malloc(sizeof *w);
        assert_non_null(w);
        sw_open(w, &(sw_options){.dim = SW_DIM, .rope_dims = SW_DIM, .neox = 1, .start = starts[i], .k = codecs[i]});
        kvf_cache *all = sw_create(w);
        w->params.evict = "random:budget=300";
        kvf_cache *c = sw_create(w);
        sw_feed(w, c, 0, 0, 0, FED, 60);
        sw_feed(w, all, 0, 0, 0, FED, 60);
        kvf_keys_t keys = {.size = sizeof keys};
        ts_ok(kvf_keys(c, 0, &keys));
        assert_int_equal(keys.rule, i != 3 ? KVF_KEYS_UNROTATED : KVF_KEYS_AS_THEY_ARE);
        int held = 0;
        for (int row = 0; row < FED; row++) {
            float x[SW_DIM], y[SW_DIM];
            if (kvf_seq_read(c, 0, 0, KVF_K, 1, w->start + row, x) != KVF_OK) continue;
            ts_ok(kvf_seq_read(all, 0, 0, KVF_K, 1, w->start + row, y));
            if (memcmp(x, y, sizeof x) != 0) fail_msg("%s: another key at position %d", codecs[i], w->start + row);
            held++;
        }
        assert_in_range(held, 300, 363);
        const int apart = i < 4 ? 0 : i == 4 ? NEAR : FAR; /* FAR: more than is remembered together */
        set_apart(c, apart, i == 4);
        check_batch(w, c, apart, 1, 5e-4);
        check_batch(w, c, apart, 20, 5e-4); /* unfolded */
        kvf_cache_free(&c), kvf_cache_free(&all);
        sw_close(w), free(w);
    }
}

/* ---- sequences ------------------------------------------------------------------------------------------------------------------ */

/* Copies share what neither has moved rows into; whoever does takes a block of its own, and in the end everything goes back. */
static void test_copies(void **state)
{
    (void)state;
    ts_model m;
    ts_model_init(&m, 1, 2, 2, 32, 32, "uni4", "q4_0");
    m.params.evict = "random:budget=400";
    kvf_cache *c = ts_create(&m);
    feed(c, &m, 700, 100);
    const uint32_t blocks = c->pools[0].in_use;
    ts_ok(kvf_seq_cp(c, 0, 1));
    assert_int_equal(c->pools[0].in_use, blocks);
    ts_same_sequence(c, 0, c, 1, &m);
    const uint64_t before = kvfi_cache_hash(c, 0);
    ts_grow(c, &m, 1, 7, 300, 60);
    assert_true(c->pools[0].in_use > blocks && c->pools[0].in_use <= 2 * blocks + 1);
    assert_true(kvfi_cache_hash(c, 0) == before);
    ts_ok(kvf_seq_rm(c, 1, 0, -1));
    assert_int_equal(c->pools[0].in_use, blocks);
    for (uint32_t i = 0; i < c->pools[0].untouched; i++) assert_true(c->pools[0].blocks[i].references <= 1);
    kvf_cache_free(&c);
}

/* What was reserved for two sequences is enough for two that were one and part. */
static void test_reserved_copies(void **state)
{
    (void)state;
    ts_model m;
    ts_heap heap;
    ts_heap_init(&heap);
    ts_model_init(&m, 1, 2, 2, 32, 32, "q4_0", "q4_0");
    m.params.evict = "knorm:budget=300", m.params.allocator = &heap.hooks;
    kvf_cache *c = ts_create(&m);
    ts_ok(kvf_reserve(c, 2000, 2, 64));
    const long calls = heap.calls;
    ts_grow(c, &m, 0, 1, 800, 64);
    ts_ok(kvf_seq_cp(c, 0, 1));
    for (int i = 0; i < 10; i++) ts_grow(c, &m, 0, 2, 64, 64), ts_grow(c, &m, 1, 3, 50, 50);
    assert_int_equal(heap.calls, calls);
    kvf_cache_free(&c);
}

/* Rows that were removed leave places; those that stay fill them, whether or not the budget binds. */
static void test_removal_leaves_no_holes(void **state)
{
    (void)state;
    ts_model m;
    ts_model_init(&m, 1, 2, 2, 32, 32, "q4_0", "q4_0");
    m.params.evict = "knorm:budget=5000";
    kvf_cache *c = ts_create(&m);
    ts_grow(c, &m, 0, 1, 64 * 20 + R, 64);
    for (int i = 0; i < 20; i++) ts_ok(kvf_seq_rm(c, 0, 64 * i + 10, 64 * i + 50));
    assert_int_equal(c->sequences[0].n_links[0], (20 * 24 - 4 + 63) / 64);
    ts_grow(c, &m, 0, 1, 64, 64);
    assert_int_equal(c->sequences[0].n_links[0], (20 * 24 - 4 + 64 + 63) / 64);
    for (int pos = 0; pos < 64 * 20; pos++) {
        float x[32];
        assert_int_equal(kvf_seq_read(c, 0, 0, KVF_K, 1, pos, x) == KVF_OK, pos % 64 < 10 || pos % 64 >= 50);
    }
    ts_ok(kvf_seq_rm(c, 0, 300, -1)); /* and a cut by position */
    assert_int_equal(kvf_seq_pos_max(c, 0), 299);
    ts_grow(c, &m, 0, 9, 500, 500);
    assert_int_equal(kvf_seq_pos_max(c, 0), 799);
    kvf_cache_free(&c);
}

/* Under sanitizers the first ones are left out: many rows, of every codec, through code that the others run, too. */
#ifdef TESTS_SANITIZED
enum { FIRST = 9 };
#else
enum { FIRST = 0 };
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_move_as_they_are),
        cmocka_unit_test(test_rows_coded_again_stay_near),
        cmocka_unit_test(test_rows_that_stay_do_not_rot),
        cmocka_unit_test(test_torn_windows_stay_near),
        cmocka_unit_test(test_which_codecs_move),
        cmocka_unit_test(test_bytes_are_the_formula),
        cmocka_unit_test(test_memory_follows_the_budget),
        cmocka_unit_test(test_stream_does_not_grow),
        cmocka_unit_test(test_centres_of_many_segments),
        cmocka_unit_test(test_other_rows_move_as_they_are),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_reserved_copies),
        cmocka_unit_test(test_removal_leaves_no_holes),
    };
    return _cmocka_run_group_tests("compaction", tests + FIRST, sizeof tests / sizeof *tests - FIRST, NULL, NULL);
}
