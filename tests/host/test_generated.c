/* SPDX-License-Identifier: MIT
 * Every generated model: does the adapter find out what its layers are, and does a folded run say what plain libllama says? */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture.h"

static void open_folded(arm *a, const fixture *f, int32_t n_ctx, const char *k, const char *v, int32_t sink, int32_t recent)
{
    arm_options o;
    arm_options_init(&o, n_ctx, k, v);
    o.sink = sink;
    o.recent = recent;
    fixture_open(a, f, &o);
}

static void expect_close(const fixture *f, const char *what, const float *x, const float *y, int32_t from, int32_t to,
                         double bound)
{
    int32_t row = -1;
    double worst = arm_worst(x, y, from, to, f->n_vocab, &row);
    print_message("%s: %s: worst relative error %.2e at position %d, bound %.0e\n", f->spec->name, what, worst, (int)row, bound);
    if (!(worst <= bound))
        fail_msg("%s: %s: relative error %.3e at position %d is above %.0e", f->spec->name, what, worst, (int)row, bound);
}

/* ---- what the adapter reports --------------------------------------------------------------------------------------------- */

static void check_rope(const gen_model *m, int32_t il, const gen_layer *want, const kvf_llama_layer_t *got)
{
    bool window_base = want->window && m->rope_base_window > 0;
    assert_int_equal(got->rope_dims, want->rope_dims);
    if (!want->rope_dims) return;
    float base = window_base ? m->rope_base_window : m->rope_base;
    float scale = m->rope_factor > 0 ? 1 / m->rope_factor : 1;
    if (got->rope_base != base || got->rope_scale != scale)
        fail_msg("%s: layer %d: RoPE base %g and scale %g instead of %g and %g", m->name, (int)il, (double)got->rope_base,
                 (double)got->rope_scale, (double)base, (double)scale);
}

static void check_layer(const gen_model *m, int32_t il, const kvf_llama_layer_t *got, const char *codec)
{
    gen_layer want;
    gen_model_layer(m, il, &want);
    print_message("%s: layer %d: attention %d, %d/%d heads of %d/%d, window %d, shares %d, rope %d, %s/%s%s\n", m->name, (int)il,
                  got->attention, got->q_heads, got->kv_heads, got->k_dim, got->v_dim, got->window, got->share, got->rope_dims,
                  got->k, got->v, got->reason);
    assert_int_equal(got->attention, want.attention);
    assert_int_equal(got->folded, want.attention);
    if (!want.attention) {
        assert_string_not_equal(got->reason, "");
        return;
    }
    assert_string_equal(got->reason, "");
    assert_int_equal(got->q_heads, want.q_heads);
    assert_int_equal(got->kv_heads, want.kv_heads);
    assert_int_equal(got->k_dim, want.k_dim);
    assert_int_equal(got->v_dim, want.v_dim);
    assert_int_equal(got->window, want.window);
    assert_int_equal(got->share, want.share);
    assert_memory_equal(got->k, codec, strlen(codec));
    if (want.share < 0) check_rope(m, il, &want, got);
}

/* Latent attention folds with f16 and q8_0 only. */
static const char *best_codec(const gen_model *m)
{
    return m->latent ? "q8_0" : "kivi4";
}

static void test_layers(void **state)
{
    fixture *f = fixture_get(*state);
    const char *codec = best_codec(f->spec);
    int32_t attention = 0;
    arm a;
    open_folded(&a, f, 1024, codec, codec, -1, -1);
    kvf_llama_layer_t info = {.size = sizeof info};
    for (int32_t il = 0; il < f->spec->layers; il++) {
        assert_int_equal(kvf_llama_layer(a.fold, il, &info), KVF_OK);
        check_layer(f->spec, il, &info, codec);
        attention += info.attention;
    }
    assert_int_equal(kvf_llama_layer(a.fold, f->spec->layers, &info), KVF_E_ARG);
    assert_int_equal(kvf_llama_layer(a.fold, -1, &info), KVF_E_ARG);
    kvf_llama_stats_t s = {.size = sizeof s};
    assert_int_equal(kvf_llama_stats(a.fold, &s), KVF_OK);
    assert_int_equal(s.layers_total, f->spec->layers);
    assert_int_equal(s.layers_attention, attention);
    assert_int_equal(s.layers_folded, attention);
    assert_int_equal(kvf_llama_n_ctx(a.fold), 1024);
    assert_true(s.host_cells < 1024);
    arm_close(&a);
}

/* ---- what it computes ----------------------------------------------------------------------------------------------------- */

/* Prefill in uneven chunks, single steps, and chunks again until blocks have left every window. */
static void test_identity(void **state)
{
    static const int32_t chunks[] = {100, 137, 63};
    fixture *f = fixture_get(*state);
    float *logits = fixture_logits(f->n_vocab, TEXT_TOKENS);
    int32_t pos = 0;
    arm a;
    open_folded(&a, f, 1024, "f16", "f16", -1, -1);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; pos += chunks[i++]) fixture_feed(&a, f, pos, chunks[i], logits);
    assert_int_equal(pos, PREFILL_TOKENS);
    for (; pos < PREFILL_TOKENS + DECODE_TOKENS; pos++) fixture_feed(&a, f, pos, 1, logits);
    for (; pos < TEXT_TOKENS; pos += 91) fixture_feed(&a, f, pos, 91, logits);
    assert_int_equal(pos, TEXT_TOKENS);
    assert_int_equal(kvf_llama_pos_max(a.fold, 0), TEXT_TOKENS - 1);
    arm_close(&a);
    expect_close(f, "prefill", logits, f->wide, 0, PREFILL_TOKENS, AGAINST_WIDE);
    expect_close(f, "decode", logits, f->wide, PREFILL_TOKENS, PREFILL_TOKENS + DECODE_TOKENS, AGAINST_WIDE);
    expect_close(f, "decode against single steps", logits, f->single, PREFILL_TOKENS, PREFILL_TOKENS + DECODE_TOKENS,
                 AGAINST_SINGLE);
    expect_close(f, "after the windows", logits, f->wide, PREFILL_TOKENS + DECODE_TOKENS, TEXT_TOKENS, AGAINST_WIDE);
    free(logits);
}

/* The control: without history the same token must mean something else, and the same as for plain libllama without history. */
static void test_history_matters(void **state)
{
    fixture *f = fixture_get(*state);
    float *with = fixture_logits(f->n_vocab, 1), *without = fixture_logits(f->n_vocab, 1), *plain = fixture_logits(f->n_vocab, 1);
    const llama_token *text = f->text;
    int32_t pos = PREFILL_TOKENS;
    arm_options o;
    arm a;
    open_folded(&a, f, 1024, "f16", "f16", -1, -1);
    fixture_feed(&a, f, 0, 200, NULL);
    fixture_feed(&a, f, 200, pos - 200, NULL);
    assert_int_equal(arm_feed(&a, text, pos, 1, 0, with), 0);
    assert_int_equal(arm_cut(&a, 0, 0), KVF_OK);
    assert_int_equal(kvf_llama_pos_max(a.fold, 0), -1);
    assert_int_equal(arm_feed(&a, text, pos, 1, 0, without), 0);
    arm_close(&a);
    arm_options_init(&o, 1024, NULL, NULL);
    assert_int_equal(arm_open(&a, f->model, &o), KVF_OK);
    assert_int_equal(arm_feed(&a, text, pos, 1, 0, plain), 0);
    arm_close(&a);
    double change = arm_distance(without, with, f->n_vocab);
    print_message("%s: dropping the history moves the logits by %.2f\n", f->spec->name, change);
    assert_true(change > 0.05);
    assert_true(arm_distance(without, plain, f->n_vocab) <= AGAINST_SINGLE);
    free(with);
    free(without);
    free(plain);
}

/* A batch longer than n_batch is split; its logits are those of the parts. */
static void test_split_batch(void **state)
{
    fixture *f = fixture_get(*state);
    float *whole = fixture_logits(f->n_vocab, PREFILL_TOKENS), *parts = fixture_logits(f->n_vocab, PREFILL_TOKENS);
    kvf_llama_stats_t s = {.size = sizeof s};
    arm a;
    open_folded(&a, f, 1024, "f16", "f16", -1, -1);
    assert_int_equal(kvf_llama_stats(a.fold, &s), KVF_OK);
    assert_in_range(s.n_batch, 1, PREFILL_TOKENS - 1);
    fixture_feed(&a, f, 0, PREFILL_TOKENS, whole);
    assert_memory_equal(kvf_llama_logits_ith(a.fold, -1), whole + (size_t)(PREFILL_TOKENS - 1) * (size_t)f->n_vocab,
                        (size_t)f->n_vocab * sizeof *whole);
    assert_null(kvf_llama_logits_ith(a.fold, PREFILL_TOKENS));
    arm_close(&a);
    open_folded(&a, f, 1024, "f16", "f16", -1, -1);
    fixture_feed(&a, f, 0, s.n_batch, parts);
    fixture_feed(&a, f, s.n_batch, PREFILL_TOKENS - s.n_batch, parts);
    arm_close(&a);
    expect_close(f, "split batch", whole, f->wide, 0, PREFILL_TOKENS, AGAINST_WIDE);
    expect_close(f, "split by hand", parts, f->wide, 0, PREFILL_TOKENS, AGAINST_WIDE);
    if (!f->spec->attention_every) /* with state the order of rows in a part may be the adapter's own */
        assert_memory_equal(whole, parts, (size_t)f->n_vocab * PREFILL_TOKENS * sizeof *whole);
    free(whole);
    free(parts);
}

/* More threads than most of the models have KV heads. */
static void test_threads(void **state)
{
    fixture *f = fixture_get(*state);
    float *logits = fixture_logits(f->n_vocab, 128);
    arm_options o;
    arm a;
    arm_options_init(&o, 1024, "f16", "f16");
    o.threads = 3;
    fixture_open(&a, f, &o);
    fixture_feed(&a, f, 0, 120, logits);
    for (int32_t pos = 120; pos < 128; pos++) fixture_feed(&a, f, pos, 1, logits);
    arm_close(&a);
    expect_close(f, "three threads", logits, f->wide, 0, 128, AGAINST_WIDE);
    free(logits);
}

/* Layers of which K and V stay f16 are not counted as folded. */
static void test_some_layers(void **state)
{
    fixture *f = fixture_get(*state);
    kvf_llama_stats_t s = {.size = sizeof s};
    kvf_llama_layer_t info = {.size = sizeof info};
    arm_options o;
    arm a;
    arm_options_init(&o, 512, "kivi4", "kivi4");
    o.kv_layer = "0,2=f16";
    fixture_open(&a, f, &o);
    assert_int_equal(kvf_llama_stats(a.fold, &s), KVF_OK);
    assert_int_equal(s.layers_total, f->spec->layers);
    assert_int_equal(s.layers_folded, f->spec->layers - 2);
    for (int32_t il = 0; il < f->spec->layers; il++) {
        assert_int_equal(kvf_llama_layer(a.fold, il, &info), KVF_OK);
        assert_memory_equal(info.k, il == 0 || il == 2 ? "f16" : "kivi4", 3);
    }
    arm_close(&a);
}

/* Mean relative error of the logits over the rows that meet coded history. */
static double coded_error(fixture *f, const char *codec)
{
    float *logits = fixture_logits(f->n_vocab, TEXT_TOKENS);
    double sum = 0;
    int32_t from = 128, to = PREFILL_TOKENS + DECODE_TOKENS;
    arm a;
    open_folded(&a, f, 1024, codec, codec, 0, 0);
    for (int32_t pos = 0; pos < PREFILL_TOKENS; pos += 100) fixture_feed(&a, f, pos, 100, logits);
    for (int32_t pos = PREFILL_TOKENS; pos < to; pos++) fixture_feed(&a, f, pos, 1, logits);
    arm_close(&a);
    for (int32_t i = 0; i < to; i++) {
        size_t at = (size_t)i * (size_t)f->n_vocab;
        double d = arm_distance(logits + at, f->wide + at, f->n_vocab);
        if (!isfinite(d)) fail_msg("%s, %s: logits at position %d are not finite", f->spec->name, codec, (int)i);
        sum += i >= from ? d : 0;
    }
    free(logits);
    return sum / (to - from);
}

/* Random weights make no model: an error of the cache is not forgiven as it is by a trained one. So the bounds are wide, but eight
 * bits must be far better than four, and four must not be exact. */
static void test_coded(void **state)
{
    fixture *f = fixture_get(*state);
    if (f->spec->latent) {
        double e8 = coded_error(f, "q8_0");
        print_message("%s: mean relative error q8_0 %.2e\n", f->spec->name, e8);
        assert_true(e8 > 1e-4 && e8 < 0.05);
        return;
    }
    double e4 = coded_error(f, "kivi4"), e8 = coded_error(f, "kivi8");
    print_message("%s: mean relative error kivi4 %.3f, kivi8 %.4f\n", f->spec->name, e4, e8);
    assert_true(e4 > 0.005 && e4 < 0.5);
    assert_true(e8 > 2e-4 && e8 < e4 / 6);
}

/* Latent attention keeps its rotated channels beside the latent ones in one record: most codecs would mix them. */
static void test_latent_codecs(void **state)
{
    static const char *const refused[] = {"kivi4", "q4_0"};
    fixture *f = fixture_get(*state);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        arm_options o;
        arm a;
        arm_options_init(&o, 1024, refused[i], refused[i]);
        int rc = arm_open(&a, f->model, &o);
        print_message("%s: %s: %s\n", f->spec->name, refused[i], a.error);
        assert_int_equal(rc, KVF_E_UNSUPPORTED);
        assert_non_null(strstr(a.error, refused[i]));
        arm_close(&a);
    }
}

static void test_refused(void **state)
{
    fixture *f = fixture_get(*state);
    arm_options o;
    arm a;
    arm_options_init(&o, 1024, "f16", "f16");
    int rc = arm_open(&a, f->model, &o);
    print_message("%s: %d %s\n", f->spec->name, rc, a.error);
    assert_true(rc == KVF_E_MODEL || rc == KVF_E_UNSUPPORTED);
    assert_true(strlen(a.error) > 20);
    arm_close(&a);
}

/* LongRoPE takes other factors above the original context: which ones is decided by the folded context, not by the host's cells. */
static void test_longrope_contexts(void **state)
{
    fixture *f = fixture_get(*state);
    int32_t n = f->spec->original_context / 2;
    float *folded = fixture_logits(f->n_vocab, n), *plain = fixture_logits(f->n_vocab, n);
    arm_options o;
    arm a;
    open_folded(&a, f, f->spec->original_context, "f16", "f16", -1, -1);
    fixture_feed(&a, f, 0, 100, folded);
    fixture_feed(&a, f, 100, n - 100, folded);
    arm_close(&a);
    arm_options_init(&o, f->spec->original_context, NULL, NULL);
    assert_int_equal(arm_open(&a, f->model, &o), KVF_OK);
    assert_int_equal(arm_feed(&a, f->text, 0, n, 0, plain), 0);
    arm_close(&a);
    expect_close(f, "short factors", folded, plain, 0, n, AGAINST_WIDE);
    assert_true(arm_worst(folded, f->wide, 0, n, f->n_vocab, NULL) > 0.05);
    free(folded);
    free(plain);
}

/* ---- the list ------------------------------------------------------------------------------------------------------------- */

#define TESTS_MAX 512

static struct CMUnitTest tests[TESTS_MAX];
static char names[TESTS_MAX][64];
static char models[TESTS_MAX][32];
static int32_t n_tests;

static void add(const gen_model *m, const char *what, CMUnitTestFunction test)
{
    snprintf(names[n_tests], sizeof names[0], "%s: %s", m->name, what);
    snprintf(models[n_tests], sizeof models[0], "%s", m->name);
    tests[n_tests] = (struct CMUnitTest){names[n_tests], test, NULL, NULL, models[n_tests]};
    n_tests++;
}

static void add_all(const gen_model *m)
{
    if (m->refused) {
        add(m, "refused", test_refused);
        return;
    }
    add(m, "layers", test_layers);
    add(m, "identity", test_identity);
    add(m, "history matters", test_history_matters);
    add(m, "split batch", test_split_batch);
    add(m, "threads", test_threads);
    add(m, "coded", test_coded);
    if (!strcmp(m->name, "llama-64")) add(m, "some layers", test_some_layers);
    if (m->latent) add(m, "other codecs refused", test_latent_codecs);
    if (m->rope_factors == GEN_FACTORS_LONG_SHORT) add(m, "short and long factors", test_longrope_contexts);
}

/* Without arguments: every model. Else those named. */
int main(int argc, char **argv)
{
    for (int32_t i = 0; gen_model_at(i); i++) {
        bool wanted = argc < 2;
        for (int j = 1; j < argc; j++) wanted |= !strcmp(argv[j], gen_model_at(i)->name);
        if (wanted) add_all(gen_model_at(i));
    }
    return cmocka_run_group_tests(tests, NULL, fixture_free);
}
