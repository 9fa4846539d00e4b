/* SPDX-License-Identifier: MIT
 * The first check of quality: how far the next-token distribution moves when the cache is folded, on two real models and two fixed
 * slices of English text. Weights are f32 and the reference is plain libllama, f16 cache. The arms run as lockstep.h says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lockstep.h"

#include <math.h>
#include <stdlib.h>

enum { PLAIN, F16, KIVI4, UNI4, ARMS };
static const char *const CODEC[ARMS] = {NULL, "f16", "kivi4:group=32", "uni4"};

/* Mean Kullback-Leibler divergence in nats. A coded arm that reads less than the least was not coded. */
static const double F16_MOST = 1e-5, CODED_MOST = 0.004, CODED_LEAST = 2e-4;

typedef struct measured {
    struct llama_model *model;
    arm arm[ARMS];
    tally tally[ARMS];
} measured;

/* ---- one slice ------------------------------------------------------------------------------------------------------------ */

static void open_arms(measured *m, int32_t n_ctx)
{
    for (int i = 0; i < ARMS; i++) real_open(&m->arm[i], m->model, n_ctx, CODEC[i], CODEC[i]);
}

static void close_arms(measured *m)
{
    for (int i = 0; i < ARMS; i++) arm_close(&m->arm[i]);
}

static void print_tally(const char *model, const char *text, const char *codec, const tally *t)
{
    print_message("%s, slice %s, %d positions, %s/%s: mean KLD %.2e, largest %.2e, same top %.1f %%\n", model, text, (int)t->n,
                  codec, codec, t->sum / t->n, t->most, 100.0 * t->same_top / t->n);
}

/* It was the cache that the figures are stated for: 4 sinks, a window of 64, 5 bits a value (4, and 32 more for each group of 32). */
static void check_cache(measured *m, int32_t n)
{
    kvf_stats_t s = {.size = sizeof s};
    assert_int_equal(kvf_stats(kvf_llama_cache(m->arm[KIVI4].fold), &s), KVF_OK);
    assert_int_equal(s.tokens, n);
    assert_int_equal(s.tokens_sink, 4);
    assert_int_equal(s.tokens_window, 64);
    assert_int_equal(s.tokens_body, n - 68);
    assert_int_equal(s.layers_folded, s.layers);
    assert_true(fabs(s.bits_code - 5) < 1e-9);
}

static void check_slice(measured *m, const char *model, const slice *s, int32_t n, int32_t positions)
{
    llama_token *tokens = real_tokens(m->model, s, n);
    open_arms(m, n);
    lockstep(m->arm, m->tally, ARMS, tokens, n, n - 1 - positions);
    free(tokens);
    check_cache(m, n);
    for (int i = F16; i < ARMS; i++) print_tally(model, s->name, CODEC[i], &m->tally[i]);
    for (int i = F16; i < ARMS; i++) assert_int_equal(m->tally[i].n, positions);
    close_arms(m);
    assert_true(m->tally[F16].sum / positions < F16_MOST);
    for (int i = KIVI4; i < ARMS; i++) {
        assert_true(m->tally[i].sum / positions < CODED_MOST);
        assert_true(m->tally[i].sum / positions > CODED_LEAST);
    }
    assert_true(m->tally[F16].same_top >= positions - positions / 100);
}

/* A slice each: docs/MEASUREMENTS.md has both of both models. */
static void check_model(real_model which, const char *name, const slice *s, int32_t n, int32_t positions)
{
    measured m = {.model = real_load(which, true)};
    check_slice(&m, name, s, n, positions);
    llama_model_free(m.model);
}

static void test_smollm2(void **state)
{
    (void)state;
    check_model(REAL_SMOLLM2, "SmolLM2", &SLICE_A, 2048, 1023);
}

static void test_gemma(void **state)
{
    (void)state;
    check_model(REAL_GEMMA, "Gemma 3", &SLICE_B, 1024, 255);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_gemma),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
