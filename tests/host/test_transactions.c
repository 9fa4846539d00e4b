/* SPDX-License-Identifier: MIT
 * Through libllama: a decode that fails loses nothing, the caller's own callback sees what it asked for, and after detach the context
 * is an ordinary one. On generated models, one for each kind of memory that libllama has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture.h"

/* ---- failures ------------------------------------------------------------------------------------------------------------- */

/* Ends a graph at one of its nodes: by libllama's abort callback, asked before each node, or by the caller's evaluation callback,
 * whose false after a node means stop. */
typedef struct injector {
    int64_t calls, fail_at; /* fail_at 0: never */
    enum ggml_op op;
} injector;

static bool hit(injector *in)
{
    return ++in->calls == in->fail_at;
}

static bool on_abort(void *user)
{
    return hit(user);
}

static bool on_eval(struct ggml_tensor *t, bool ask, void *user)
{
    injector *in = user;
    return ask ? t->op == in->op : !hit(in);
}

typedef enum injection { BY_ABORT, AT_PRODUCT, AT_ATTENTION } injection;

static void inject(arm_options *o, injection how, injector *in)
{
    memset(in, 0, sizeof *in);
    in->op = how == AT_ATTENTION ? GGML_OP_FLASH_ATTN_EXT : GGML_OP_MUL_MAT;
    if (how == BY_ABORT) {
        o->abort = on_abort;
        o->abort_user = in;
    } else {
        o->cb_eval = on_eval;
        o->cb_user = in;
    }
}

#define STEPS 24
#define FIRST 150
#define SECOND 90
#define RUN (FIRST + SECOND + STEPS)

/* One decode that must fail at call `at` and leave everything as it was. */
static void fail_once(arm *a, const fixture *f, injector *in, int64_t at, int32_t pos, int32_t n)
{
    kvf_stats_t before = {.size = sizeof before}, after = {.size = sizeof after};
    float *lost = fixture_logits(f->n_vocab, n);
    assert_int_equal(kvf_stats(kvf_llama_cache(a->fold), &before), KVF_OK);
    in->calls = 0;
    in->fail_at = at;
    arm_hide_errors(true);
    int rc = arm_feed(a, f->text, pos, n, 0, lost);
    arm_hide_errors(false);
    in->fail_at = 0;
    if (rc >= 0)
        fail_msg("%s: a decode of %d rows that was stopped at call %lld returns %d", f->spec->name, (int)n, (long long)at, rc);
    assert_string_not_equal(kvf_llama_error(a->fold), "");
    assert_int_equal(kvf_llama_pos_max(a->fold, 0), pos - 1);
    assert_int_equal(kvf_stats(kvf_llama_cache(a->fold), &after), KVF_OK);
    assert_int_equal(after.tokens, before.tokens);
    assert_int_equal(after.accounted, before.accounted);
    free(lost);
}

static int64_t calls_of(arm *a, const fixture *f, injector *in, int32_t pos, int32_t n, float *logits)
{
    in->calls = 0;
    fixture_feed(a, f, pos, n, logits);
    return in->calls;
}

/* The clean run, and how many calls its second chunk and its steps make. */
static void run_clean(fixture *f, arm_options *o, injector *in, float *logits, int64_t *chunk_calls, int64_t *step_calls)
{
    arm a;
    fixture_open(&a, f, o);
    fixture_feed(&a, f, 0, FIRST, logits);
    *chunk_calls = calls_of(&a, f, in, FIRST, SECOND, logits);
    for (int32_t i = 0; i < STEPS; i++) *step_calls = calls_of(&a, f, in, FIRST + SECOND + i, 1, logits);
    arm_close(&a);
}

static void run_failing(fixture *f, arm_options *o, injector *in, const float *clean, int64_t chunk_calls, int64_t step_calls)
{
    float *logits = fixture_logits(f->n_vocab, RUN);
    arm a;
    fixture_open(&a, f, o);
    fail_once(&a, f, in, chunk_calls / 2, 0, SECOND); /* of an empty sequence */
    fixture_feed(&a, f, 0, FIRST, logits);
    fail_once(&a, f, in, 1, FIRST, SECOND);
    fail_once(&a, f, in, chunk_calls / 2, FIRST, SECOND);
    fail_once(&a, f, in, chunk_calls * 9 / 10, FIRST, SECOND);
    fixture_feed(&a, f, FIRST, SECOND, logits);
    fixture_expect_same(f, "chunk after failures", logits, clean, 0, FIRST + SECOND);
    for (int32_t i = 0; i < STEPS; i++) {
        if (i % 5 == 2) fail_once(&a, f, in, 1 + (step_calls - 1) * i / STEPS, FIRST + SECOND + i, 1);
        fixture_feed(&a, f, FIRST + SECOND + i, 1, logits);
    }
    fixture_expect_same(f, "steps after failures", logits, clean, FIRST + SECOND, RUN);
    arm_close(&a);
    free(logits);
}

static void check_failures(const char *name, const char *codec)
{
    static const injection ways[] = {BY_ABORT, AT_PRODUCT, AT_ATTENTION};
    fixture *f = fixture_get(name);
    float *clean = fixture_logits(f->n_vocab, RUN);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        injector in;
        arm_options o;
        int64_t chunk_calls = 0, step_calls = 0;
        arm_options_init(&o, 512, codec, codec);
        o.recent = 0;
        inject(&o, ways[i], &in);
        run_clean(f, &o, &in, clean, &chunk_calls, &step_calls);
        print_message("%s: way %d: %lld calls a chunk, %lld a step\n", name, (int)i, (long long)chunk_calls,
                      (long long)step_calls);
        assert_true(chunk_calls >= 2 && step_calls >= 2);
        run_failing(f, &o, &in, clean, chunk_calls, step_calls);
    }
    free(clean);
}

static void test_failures(void **state)
{
    check_failures(*state, "q8_0");
}

static void test_failures_kivi(void **state)
{
    check_failures(*state, "kivi4");
}

/* ---- the caller's callback ------------------------------------------------------------------------------------------------ */

typedef struct observer {
    enum ggml_op op;
    int64_t asked, seen;
    float *first; /* the first node seen of a decode */
    int64_t n;
} observer;

static bool observe(struct ggml_tensor *t, bool ask, void *user)
{
    observer *ob = user;
    if (ask) {
        ob->asked += t->op == ob->op;
        return t->op == ob->op;
    }
    if (ob->seen++ == 0) {
        ob->n = ggml_nelements(t);
        ob->first = realloc(ob->first, ggml_nbytes(t));
        memcpy(ob->first, t->data, ggml_nbytes(t));
    }
    return true;
}

static void run_observed(fixture *f, observer *ob, const char *codec)
{
    arm_options o;
    arm a;
    arm_options_init(&o, 512, codec, codec);
    o.cb_eval = observe;
    o.cb_user = ob;
    fixture_open(&a, f, &o);
    fixture_feed(&a, f, 0, 100, NULL);
    ob->asked = ob->seen = 0;
    fixture_feed(&a, f, 100, 80, NULL);
    arm_close(&a);
}

/* The caller sees every node that it asked for, once, and where attention is folded it sees our result. */
static void test_observer(void **state)
{
    static const enum ggml_op ops[] = {GGML_OP_RMS_NORM, GGML_OP_FLASH_ATTN_EXT};
    fixture *f = fixture_get(*state);
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        observer plain = {.op = ops[i]}, folded = {.op = ops[i]};
        run_observed(f, &plain, NULL);
        run_observed(f, &folded, "f16");
        assert_true(plain.seen > 0);
        assert_int_equal(folded.seen, plain.seen);
        assert_int_equal(folded.n, plain.n);
        assert_true(arm_distance(folded.first, plain.first, (int32_t)plain.n) <= AGAINST_WIDE);
        free(plain.first);
        free(folded.first);
    }
}

/* After detach the context is an ordinary one again: empty, and with libllama's own attention. Both decodes have the same shape, so
 * that libllama uses the graph of the first again. */
static void test_detach(void **state)
{
    fixture *f = fixture_get(*state);
    float *logits = fixture_logits(f->n_vocab, 120);
    struct llama_batch b = llama_batch_init(120, 0, 1);
    arm_options o;
    arm a;
    arm_options_init(&o, 512, "f16", "f16");
    fixture_open(&a, f, &o);
    fixture_feed(&a, f, 0, 120, logits);
    kvf_llama_detach(a.fold);
    assert_int_equal(llama_memory_seq_pos_max(llama_get_memory(a.ctx), 0), -1);
    for (int32_t i = 0; i < 120; i++) {
        b.token[i] = f->text[i];
        b.pos[i] = i;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = 1;
    }
    b.n_tokens = 120;
    assert_int_equal(llama_decode(a.ctx, b), 0);
    for (int32_t i = 0; i < 120; i++)
        memcpy(logits + (size_t)i * (size_t)f->n_vocab, llama_get_logits_ith(a.ctx, i), (size_t)f->n_vocab * sizeof *logits);
    assert_true(arm_worst(logits, f->wide, 0, 120, f->n_vocab, NULL) <= AGAINST_WIDE);
    assert_true(kvf_llama_decode(a.fold, b) < 0);
    llama_batch_free(b);
    arm_close(&a);
    free(logits);
}

#define TEST(what, model)                                                                                                        \
    {                                                                                                                            \
#what ", " model, what, NULL, NULL, model                                                                                \
    }

/* clang-format off */
static const struct CMUnitTest tests[] = {
    TEST(test_failures, "llama-64"),
    TEST(test_failures_kivi, "llama-64"),
    TEST(test_observer, "llama-64"),
    TEST(test_detach, "llama-64"),
    TEST(test_failures_kivi, "gemma2"),
    TEST(test_observer, "gemma2"),
    TEST(test_failures_kivi, "gpt-oss"),
    TEST(test_failures_kivi, "gemma3n"),
    TEST(test_failures, "deepseek2"),
    TEST(test_failures, "lfm2"),
    TEST(test_failures_kivi, "lfm2"),
    TEST(test_observer, "lfm2"),
    TEST(test_detach, "lfm2"),
};
/* clang-format on */

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, fixture_free);
}
