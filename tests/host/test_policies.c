/* SPDX-License-Identifier: MIT
 * Policies through libllama: each keeps the rows that its definition says, directions reach their own layers, and contexts, copies,
 * cuts and budgets in bytes hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gguf.h"
#include "watch.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define KEY "kvfold.calibration."

/* ---- a calibration file ------------------------------------------------------------------------------------------------------ */

static float directions[WATCH_LAYERS][WATCH_HEADS * WATCH_DIM];

static void make_directions(void)
{
    uint32_t state = 7;
    for (int32_t il = 0; il < WATCH_LAYERS; il++)
        for (int32_t i = 0; i < WATCH_HEADS * WATCH_DIM; i++) {
            state = state * 1664525u + 1013904223u;
            directions[il][i] = (float)(int32_t)(state >> 8) / (1 << 23) - 1;
        }
}

static void add_shapes(struct gguf_context *g, const gen_model *m)
{
    static const char *const key[] = {KEY "kv_heads", KEY "k_dim", KEY "v_dim"};
    for (int i = 0; i < 3; i++) {
        int32_t n[WATCH_LAYERS];
        for (int32_t il = 0; il < m->layers; il++) {
            gen_layer l;
            gen_model_layer(m, il, &l);
            n[il] = !l.attention ? 0 : i == 0 ? l.kv_heads : i == 1 ? l.k_dim : l.v_dim;
        }
        gguf_set_arr_data(g, key[i], GGUF_TYPE_INT32, n, (size_t)m->layers);
    }
}

static void add_directions(struct gguf_context *g, struct ggml_context *tensors, const gen_model *m)
{
    for (int32_t il = 0; il < m->layers; il++) {
        gen_layer l;
        gen_model_layer(m, il, &l);
        if (!l.attention) continue;
        struct ggml_tensor *t = ggml_new_tensor_2d(tensors, GGML_TYPE_F32, l.k_dim, l.kv_heads);
        ggml_format_name(t, "blk.%d.q_direction", (int)il);
        memcpy(t->data, directions[il], ggml_nbytes(t));
        gguf_add_tensor(g, t);
    }
}

/* The checksum is the value of the first key, and of all bytes but its own. */
static void put_sum(const char *path)
{
    static char bytes[1 << 20];
    const size_t at = 24 + 8 + strlen(KEY "checksum") + 4 + 8;
    char digits[17];
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    assert_true(n > at + 16 && n < sizeof bytes);
    XXH64_state_t state;
    XXH64_reset(&state, 0);
    XXH64_update(&state, bytes, at);
    XXH64_update(&state, bytes + at + 16, n - at - 16);
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)XXH64_digest(&state));
    assert_true(fseek(f, (long)at, SEEK_SET) == 0 && fwrite(digits, 1, 16, f) == 16 && fclose(f) == 0);
}

/* Random directions, another one for each layer and head. */
static kvf_llama_calibration *calibrate(const fixture *f)
{
    char path[512], error[512] = "";
    kvf_llama_calibration *c = NULL;
    struct gguf_context *g = gguf_init_empty();
    struct ggml_context *tensors = ggml_init((struct ggml_init_params){.mem_size = 1 << 20});
    make_directions();
    gguf_set_val_str(g, KEY "checksum", "................");
    gguf_set_val_str(g, "general.architecture", "kvfold-calibration");
    gguf_set_val_str(g, KEY "model.architecture", f->spec->arch);
    gguf_set_val_u64(g, KEY "layers", (uint64_t)f->spec->layers);
    add_shapes(g, f->spec);
    add_directions(g, tensors, f->spec);
    snprintf(path, sizeof path, "%s/calibration.gguf", fixture_folder());
    assert_true(gguf_write_to_file(g, path, false));
    gguf_free(g);
    ggml_free(tensors);
    put_sum(path);
    const int rc = kvf_llama_calibration_load(path, f->model, NULL, &c, error, sizeof error);
    remove(path);
    if (rc) fail_msg("%s", error);
    return c;
}

/* ---- what stays -------------------------------------------------------------------------------------------------------------- */

static void prepare(watch *w, const fixture *f, watch_rule rule, int32_t budget)
{
    gen_layer l;
    *w = (watch){.rule = rule, .budget = budget, .n_layers = f->spec->layers};
    w->layer = calloc(WATCH_LAYERS, sizeof *w->layer);
    assert_non_null(w->layer);
    for (int32_t il = 0, index = 0; il < w->n_layers; il++) {
        gen_model_layer(f->spec, il, &l);
        w->layer[il].index = l.attention ? index++ : -1;
        w->direction[il] = directions[il];
        if (l.attention) w->q_heads = l.q_heads, w->kv_heads = l.kv_heads, w->dim = l.k_dim;
    }
}

/* Batches that seal no more than one block in which the budget binds: the first one seals two. 64 rows and more, fewer, and one. */
static const int32_t batches[] = {200, 64, 50, 50, 27, 1, 1, 64, 3, 60, 40, 1, 64, 30, 30};

static void keeps(const char *model, watch_rule rule, const char *name)
{
    fixture *f = fixture_get(model);
    kvf_llama_calibration *c = calibrate(f);
    char evict[64];
    watch w;
    arm_options o;
    arm a;
    prepare(&w, f, rule, 150);
    snprintf(evict, sizeof evict, "%s:budget=%d", name, (int)w.budget);
    arm_options_init(&o, 1024, "f16", "f16");
    o.evict = evict, o.calibration = c, o.observe = watch_rows, o.observe_user = &w;
    fixture_open(&a, f, &o);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        fixture_feed(&a, f, w.next, batches[i], NULL);
        watch_check(&w, kvf_llama_cache(a.fold), batches[i]);
    }
    print_message("%s, %s: %d choices, %d rows dropped\n", model, name, (int)w.choices, (int)w.dropped);
    assert_true(w.choices >= 12 && w.dropped >= 64 * w.choices / 2);
    arm_close(&a);
    kvf_llama_calibration_free(&c);
    free(w.layer);
}

static void test_window(void **state)
{
    keeps(*state, WATCH_WINDOW, "window");
}

static void test_knorm(void **state)
{
    keeps(*state, WATCH_KNORM, "knorm");
}

static void test_qfilters(void **state)
{
    keeps(*state, WATCH_QFILTERS, "qfilters");
}

static void test_h2o(void **state)
{
    keeps(*state, WATCH_H2O, "h2o");
}

static void test_snapkv(void **state)
{
    keeps(*state, WATCH_SNAPKV, "snapkv");
}

/* ---- how far a sequence may go ------------------------------------------------------------------------------------------------ */

static void open_policy(arm *a, fixture *f, int32_t n_ctx, int32_t n_seq, const char *evict)
{
    arm_options o;
    arm_options_init(&o, n_ctx, "q8_0", "q8_0");
    o.evict = evict, o.n_seq = n_seq;
    fixture_open(a, f, &o);
}

static kvf_stats_t stats(const arm *a)
{
    kvf_stats_t s = {.size = sizeof s};
    assert_int_equal(kvf_stats(kvf_llama_cache(a->fold), &s), KVF_OK);
    return s;
}

/* No more than n_ctx rows stay, in whatever layer; a share of 25 % of 1,603 tokens is 400. */
static void test_positions(void **state)
{
    fixture *f = fixture_get(*state);
    const int32_t trained = llama_model_n_ctx_train(f->model);
    const struct {
        const char *evict;
        int32_t n_seq, positions;
    } cases[] = {
        {NULL, 1, 400},
        {"knorm:budget=400", 1, trained},
        {"knorm:budget=401", 1, 400},
        {"knorm:budget=200,layers=1:400", 1, trained},
        {"knorm:budget=200,layers=1:401", 1, 400},
        {"knorm:budget=200,layers=0-2:100+3:401", 1, 400},
        {"knorm:budget=900,layers=0-3:100", 1, trained},
        {"knorm:budget=200,protect=2", 1, 400},
        {"knorm:budget=25%", 1, 1603},
        {"window:budget=12.5%", 1, 3207},
        {"knorm:budget=25%,layers=1:300", 1, 1603},
        {"knorm:budget=25%,layers=1:401", 1, 400},
        {"knorm:budget=90%", 1, 445},
        {"knorm:budget=512KiB", 1, trained}, /* 256 tokens or so */
        {"knorm:budget=4MiB", 1, 400},       /* some thousand */
        {"knorm:budget=200", 2, trained},
        {"knorm:budget=201", 2, 400},
        {"knorm:budget=25%", 2, 803},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        arm a;
        open_policy(&a, f, 400, cases[i].n_seq, cases[i].evict);
        if (kvf_llama_n_positions(a.fold) != cases[i].positions)
            fail_msg("%s, %d sequences: %lld positions, not %d", cases[i].evict, (int)cases[i].n_seq,
                     (long long)kvf_llama_n_positions(a.fold), (int)cases[i].positions);
        arm_close(&a);
    }
}

/* With the largest budget that goes on past the context, nothing is mapped beyond what attach did. */
static void test_reserve_is_enough(void **state)
{
    static const char *const policies[] = {"window:budget=256", "knorm:budget=256", "h2o:budget=100,layers=2:256",
                                           "knorm:budget=40%"};
    fixture *f = fixture_get(*state);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        arm a;
        open_policy(&a, f, 256, 1, policies[i]);
        const int64_t reserved = stats(&a).reserved_bytes, end = kvf_llama_n_positions(a.fold);
        const int32_t n = end < TEXT_TOKENS ? (int32_t)end : TEXT_TOKENS;
        assert_true(n > 600);
        for (int32_t pos = 0; pos < n; pos += 100) fixture_feed(&a, f, pos, n - pos < 100 ? n - pos : 100, NULL);
        assert_int_equal(stats(&a).reserved_bytes, reserved);
        arm_close(&a);
    }
}

/* A layer that keeps everything, and cuts that leave its blocks with a row each: the reserve grows, and no decode is refused. */
static void test_cuts_grow_the_reserve(void **state)
{
    fixture *f = fixture_get(*state);
    arm a;
    open_policy(&a, f, 400, 1, "knorm:budget=100,protect=1");
    const int64_t reserved = stats(&a).reserved_bytes;
    fixture_feed(&a, f, 0, 130, NULL);
    for (int32_t i = 1; i < 60; i++) {
        assert_int_equal(arm_cut(&a, 0, i), KVF_OK);
        fixture_feed(&a, f, i, 192, NULL);
    }
    assert_true(stats(&a).reserved_bytes > reserved);
    arm_close(&a);
}

/* Positions from .. to - 1, the text over and over; logits: those of the last batch. */
static void feed_long(arm *a, const fixture *f, int32_t from, int32_t to, int32_t seq, float *logits)
{
    arm_row rows[100];
    for (int32_t pos = from, n; pos < to; pos += n) {
        n = to - pos < 100 ? to - pos : 100;
        for (int32_t i = 0; i < n; i++)
            rows[i] = (arm_row){.token = f->text[(pos + i) % TEXT_TOKENS], .pos = pos + i, .seq = seq};
        const int rc = arm_decode(a, rows, n, logits);
        if (rc) fail_msg("positions %d to %d return %d: %s", (int)pos, (int)(pos + n - 1), rc, kvf_llama_error(a->fold));
    }
}

/* A copy counts in full: room is made for it, and it goes on as the sequence itself would have. */
static void test_copy_grows_the_reserve(void **state)
{
    fixture *f = fixture_get(*state);
    float *logits[2] = {fixture_logits(f->n_vocab, 10), fixture_logits(f->n_vocab, 10)};
    for (int32_t copies = 0; copies < 2; copies++) {
        arm a;
        open_policy(&a, f, 2048, 2, "knorm:budget=1900");
        feed_long(&a, f, 0, 2030, 0, NULL);
        const int64_t reserved = stats(&a).reserved_bytes;
        if (copies) {
            assert_int_equal(kvf_llama_seq_cp(a.fold, 0, 1), KVF_OK);
            assert_true(stats(&a).reserved_bytes > reserved);
            assert_int_equal(arm_cut(&a, 0, 0), KVF_OK);
        }
        feed_long(&a, f, 2030, 2040, copies, logits[copies]);
        assert_true(stats(&a).tokens_evicted > 0);
        arm_close(&a);
    }
    fixture_expect_same(f, "copy", logits[1], logits[0], 0, 10);
    free(logits[0]), free(logits[1]);
}

/* ---- bytes -------------------------------------------------------------------------------------------------------------------- */

/* A budget in bytes is of the whole cache, all its sequences, and most of it is used. */
static void test_bytes_of_three_sequences(void **state)
{
    static const char *const policies[] = {"window:budget=1MiB", "knorm:budget=1MiB", "h2o:budget=2MiB"};
    fixture *f = fixture_get(*state);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        const int64_t budget = (int64_t)(strchr(policies[i], '=')[1] - '0') << 20;
        arm a;
        open_policy(&a, f, 1024, 3, policies[i]);
        for (int32_t pos = 0; pos < 600; pos += 60)
            for (int32_t s = 0; s < 3; s++) {
                assert_int_equal(arm_feed(&a, f->text, pos, 60, s, NULL), KVF_OK);
                if (stats(&a).accounted > budget)
                    fail_msg("%s: %lld bytes, %d tokens in %d sequences", policies[i], (long long)stats(&a).accounted,
                             (int)pos + 60, (int)s + 1);
            }
        print_message("%s: %lld bytes\n", policies[i], (long long)stats(&a).accounted);
        assert_true(stats(&a).tokens_evicted > 600 && stats(&a).accounted > budget / 10 * 7);
        arm_close(&a);
    }
}

int main(void)
{
#define POLICY_TEST(test, model)                                                                                                 \
    {                                                                                                                            \
#test "/" model, test, NULL, NULL, model                                                                                 \
    }
    const struct CMUnitTest tests[] = {
        POLICY_TEST(test_window, "llama-64"),
        POLICY_TEST(test_knorm, "llama-64"),
        POLICY_TEST(test_qfilters, "llama-64"),
        POLICY_TEST(test_h2o, "llama-64"),
        POLICY_TEST(test_snapkv, "llama-64"),
        POLICY_TEST(test_positions, "llama-64"),
        POLICY_TEST(test_reserve_is_enough, "llama-64"),
        POLICY_TEST(test_cuts_grow_the_reserve, "llama-64"),
        POLICY_TEST(test_copy_grows_the_reserve, "llama-64"),
        POLICY_TEST(test_bytes_of_three_sequences, "llama-64"),
        POLICY_TEST(test_qfilters, "lfm2"), /* layers of the cache have other numbers than those of the model */
    };
    return cmocka_run_group_tests_name("policies", tests, NULL, fixture_free);
}
