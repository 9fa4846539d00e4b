/* SPDX-License-Identifier: MIT
 * Through libllama: sequences do not meet, rows can be taken back as far as windows and state allow, and what cannot be decoded is
 * refused before anything runs. On generated models, one for each kind of memory that libllama has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture.h"

/* ---- sequences ------------------------------------------------------------------------------------------------------------ */

/* Three texts: shifted windows on the fixture's. */
static const int32_t offsets[] = {0, 200, 400};

static int32_t add_rows(arm_row *rows, int32_t n, const fixture *f, int32_t seq, int32_t pos, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        rows[n++] = (arm_row){.token = f->text[offsets[seq] + pos + i], .pos = pos + i, .seq = seq};
    return n;
}

/* Positions of each sequence in each decode: long and short stretches, one that rests, then steps of one row each. */
typedef struct schedule {
    int32_t count[3];
} schedule;

static const schedule schedules[] = {{{90, 64, 70}}, {{5, 80, 0}}, {{70, 1, 66}}, {{1, 1, 1}},
                                     {{1, 1, 1}},    {{1, 0, 1}},  {{1, 1, 0}},   {{0, 3, 2}}};
#define SCHEDULES ((int32_t)(sizeof schedules / sizeof schedules[0]))

/* Writes the logits of sequence s, position p to row s * 200 + p. */
static void run_mixed(arm *a, const fixture *f, float *logits, int32_t n_seq)
{
    int32_t pos[3] = {0};
    float *batch = fixture_logits(f->n_vocab, 256);
    for (int32_t i = 0; i < SCHEDULES; i++) {
        arm_row rows[256];
        int32_t n = 0;
        for (int32_t s = 0; s < n_seq; s++) n = add_rows(rows, n, f, s, pos[s], schedules[i].count[s]);
        if (!n) continue;
        int rc = arm_decode(a, rows, n, batch);
        if (rc) fail_msg("%s: batch %d returns %d: %s", f->spec->name, (int)i, rc, a->fold ? kvf_llama_error(a->fold) : "");
        for (int32_t r = 0; r < n; r++)
            memcpy(logits + (size_t)(rows[r].seq * 200 + rows[r].pos) * (size_t)f->n_vocab,
                   batch + (size_t)r * (size_t)f->n_vocab, (size_t)f->n_vocab * sizeof *batch);
        for (int32_t s = 0; s < n_seq; s++) pos[s] += schedules[i].count[s];
    }
    free(batch);
}

/* Each sequence alone, in one batch of at least 64 rows. */
static void run_alone(const fixture *f, int32_t seq, int32_t n, float *logits)
{
    arm_options o;
    arm a;
    arm_options_init(&o, 512, NULL, NULL);
    fixture_open(&a, f, &o);
    arm_row rows[256];
    add_rows(rows, 0, f, seq, 0, n);
    for (int32_t i = 0; i < n; i++) rows[i].seq = 0;
    assert_int_equal(arm_decode(&a, rows, n, logits), 0);
    arm_close(&a);
}

static int32_t length_of(int32_t seq)
{
    int32_t n = 0;
    for (int32_t i = 0; i < SCHEDULES; i++) n += schedules[i].count[seq];
    return n;
}

static void check_mixed(fixture *f, arm *a, int32_t n_seq)
{
    float *logits = fixture_logits(f->n_vocab, 600), *alone = fixture_logits(f->n_vocab, 256);
    run_mixed(a, f, logits, n_seq);
    for (int32_t s = 0; s < n_seq; s++) {
        int32_t n = length_of(s), row = -1;
        run_alone(f, s, n, alone);
        double worst = arm_worst(logits + (size_t)(s * 200) * (size_t)f->n_vocab, alone, 0, n, f->n_vocab, &row);
        print_message("%s: sequence %d: worst relative error %.2e at position %d\n", f->spec->name, (int)s, worst, (int)row);
        assert_int_equal(kvf_llama_pos_max(a->fold, s), n - 1);
        assert_true(worst <= AGAINST_WIDE);
    }
    free(logits);
    free(alone);
}

/* Of these, libllama would reorder the rows of a model with recurrent state. */
static void test_mixed_sequences(void **state)
{
    fixture *f = fixture_get(*state);
    arm_options o;
    arm a;
    arm_options_init(&o, 1024, "f16", "f16");
    o.n_seq = 3;
    fixture_open(&a, f, &o);
    check_mixed(f, &a, 3);
    arm_close(&a);
}

/* A copied sequence goes its own way; so does the first one; keep leaves one. */
static void test_copy_and_keep(void **state)
{
    fixture *f = fixture_get(*state);
    float *first = fixture_logits(f->n_vocab, 64), *second = fixture_logits(f->n_vocab, 64),
          *plain = fixture_logits(f->n_vocab, 256);
    llama_token other[320];
    arm_options o;
    arm a;
    memcpy(other, f->text, sizeof other);
    for (int32_t i = 190; i < 320; i++) other[i] = f->text[i + 300];
    arm_options_init(&o, 1024, "f16", "f16");
    o.n_seq = 2;
    fixture_open(&a, f, &o);
    fixture_feed(&a, f, 0, 190, NULL);
    assert_int_equal(kvf_llama_seq_cp(a.fold, 0, 1), KVF_OK);
    assert_int_equal(kvf_llama_pos_max(a.fold, 1), 189);
    assert_int_equal(arm_feed(&a, f->text, 190, 64, 0, first), 0);
    assert_int_equal(arm_feed(&a, other, 190, 64, 1, second), 0);
    assert_true(arm_worst(first, f->wide + (size_t)190 * (size_t)f->n_vocab, 0, 64, f->n_vocab, NULL) <= AGAINST_WIDE);
    assert_int_equal(kvf_llama_seq_keep(a.fold, 1), KVF_OK);
    assert_int_equal(kvf_llama_pos_max(a.fold, 0), -1);
    assert_int_equal(kvf_llama_pos_max(a.fold, 1), 253);
    assert_int_equal(arm_feed(&a, other, 254, 1, 1, first), 0); /* row 254 of the second sequence */
    arm_close(&a);
    arm_options_init(&o, 512, NULL, NULL);
    fixture_open(&a, f, &o);
    assert_int_equal(arm_feed(&a, other, 0, 255, 0, plain), 0);
    arm_close(&a);
    assert_true(arm_worst(second, plain + (size_t)190 * (size_t)f->n_vocab, 0, 64, f->n_vocab, NULL) <= AGAINST_WIDE);
    assert_true(arm_distance(first, plain + (size_t)254 * (size_t)f->n_vocab, f->n_vocab) <= AGAINST_WIDE);
    free(first);
    free(second);
    free(plain);
}

/* ---- taking rows back ----------------------------------------------------------------------------------------------------- */

#define LONG_RUN 616
#define TAKEN_BACK 100

static void feed_long(arm *a, const fixture *f, float *logits)
{
    for (int32_t pos = 0; pos < LONG_RUN; pos += 88) fixture_feed(a, f, pos, 88, logits);
}

/* Within what windowed layers keep beyond their window, rows can be taken back and others put in their place. */
static void test_take_back(void **state)
{
    fixture *f = fixture_get(*state);
    float *logits = fixture_logits(f->n_vocab, TEXT_TOKENS);
    int32_t pos = LONG_RUN - TAKEN_BACK, row = -1;
    llama_token wrong[TEXT_TOKENS];
    arm_options o;
    arm a;
    for (int32_t i = 0; i < TEXT_TOKENS; i++) wrong[i] = i < pos ? f->text[i] : (f->text[i] + 1) % f->n_vocab;
    arm_options_init(&o, 1024, "f16", "f16");
    fixture_open(&a, f, &o);
    fixture_feed(&a, f, 0, 250, NULL);
    fixture_feed(&a, f, 250, pos - 250, NULL);
    assert_int_equal(arm_feed(&a, wrong, pos, TAKEN_BACK, 0, logits), 0);
    assert_true(arm_worst(logits, f->wide + (size_t)pos * (size_t)f->n_vocab, 0, 1, f->n_vocab, NULL) > 0.05);
    assert_int_equal(kvf_llama_can(a.fold, KVF_CAN_RM, 0, pos), 1);
    assert_int_equal(arm_cut(&a, 0, pos), KVF_OK);
    assert_int_equal(kvf_llama_pos_max(a.fold, 0), pos - 1);
    fixture_feed(&a, f, pos, TAKEN_BACK, logits);
    double worst = arm_worst(logits, f->wide, pos, LONG_RUN, f->n_vocab, &row);
    print_message("%s: after taking back %d rows: worst relative error %.2e at position %d\n", f->spec->name, TAKEN_BACK, worst,
                  (int)row);
    assert_true(worst <= AGAINST_WIDE);
    arm_close(&a);
    free(logits);
}

/* What a window has let go cannot come back: the call says so and changes nothing. */
static void test_too_far_back(void **state)
{
    fixture *f = fixture_get(*state);
    float *clean = fixture_logits(f->n_vocab, TEXT_TOKENS), *logits = fixture_logits(f->n_vocab, TEXT_TOKENS);
    arm_options o;
    arm a;
    arm_options_init(&o, 1024, "f16", "f16");
    fixture_open(&a, f, &o);
    feed_long(&a, f, NULL);
    fixture_feed(&a, f, LONG_RUN, 88, clean);
    arm_close(&a);
    fixture_open(&a, f, &o);
    feed_long(&a, f, NULL);
    assert_int_equal(kvf_llama_can(a.fold, KVF_CAN_RM, 0, 60), 0);
    assert_true(arm_cut(&a, 0, 60) < 0);
    print_message("%s: %s\n", f->spec->name, kvf_llama_error(a.fold));
    assert_true(strlen(kvf_llama_error(a.fold)) > 20);
    assert_int_equal(kvf_llama_pos_max(a.fold, 0), LONG_RUN - 1);
    fixture_feed(&a, f, LONG_RUN, 88, logits);
    fixture_expect_same(f, "after a refused removal", logits, clean, LONG_RUN, TEXT_TOKENS);
    arm_close(&a);
    free(clean);
    free(logits);
}

/* State cannot be taken back by a few rows: refused before any change; the whole sequence may always go. */
static void test_take_back_state(void **state)
{
    fixture *f = fixture_get(*state);
    float *clean = fixture_logits(f->n_vocab, 300), *logits = fixture_logits(f->n_vocab, 300);
    arm_options o;
    arm a;
    arm_options_init(&o, 512, "f16", "f16");
    fixture_open(&a, f, &o);
    fixture_feed(&a, f, 0, 120, clean);
    fixture_feed(&a, f, 120, 80, clean);
    arm_close(&a);
    fixture_open(&a, f, &o);
    fixture_feed(&a, f, 0, 120, logits);
    int can = kvf_llama_can(a.fold, KVF_CAN_RM, 0, 110);
    assert_int_equal(can, 0);
    assert_true(arm_cut(&a, 0, 110) < 0);
    print_message("%s: %s\n", f->spec->name, kvf_llama_error(a.fold));
    assert_int_equal(kvf_llama_pos_max(a.fold, 0), 119);
    fixture_feed(&a, f, 120, 80, logits);
    fixture_expect_same(f, "after a refused removal", logits, clean, 120, 200);
    assert_int_equal(arm_cut(&a, 0, 0), KVF_OK);
    fixture_feed(&a, f, 0, 120, logits);
    fixture_expect_same(f, "from the start again", logits, clean, 0, 120);
    arm_close(&a);
    free(clean);
    free(logits);
}

/* ---- what is refused before anything runs --------------------------------------------------------------------------------- */

static void expect_refused(arm *a, int rc, int code, int32_t pos_max, const char *what)
{
    print_message("%s: %d %s\n", what, rc, kvf_llama_error(a->fold));
    assert_int_equal(rc, code);
    assert_true(strlen(kvf_llama_error(a->fold)) > 15);
    assert_int_equal(kvf_llama_pos_max(a->fold, 0), pos_max);
}

static void test_wrong_batches(void **state)
{
    fixture *f = fixture_get(*state);
    float embeddings[256] = {0};
    float *clean = fixture_logits(f->n_vocab, 300), *logits = fixture_logits(f->n_vocab, 300);
    arm_options o;
    arm a;
    arm_options_init(&o, 512, "f16", "f16");
    fixture_open(&a, f, &o);
    fixture_feed(&a, f, 0, 100, clean);
    fixture_feed(&a, f, 100, 50, clean);
    arm_close(&a);
    fixture_open(&a, f, &o);
    fixture_feed(&a, f, 0, 100, logits);
    expect_refused(&a, arm_feed(&a, f->text, 102, 10, 0, NULL), KVF_E_POSITION, 99, "a gap");
    expect_refused(&a, arm_feed(&a, f->text, 90, 10, 0, NULL), KVF_E_POSITION, 99, "positions again");
    assert_true(arm_feed(&a, f->text, 0, 10, 1, NULL) < 0);
    assert_true(arm_feed(&a, f->text, 100, 500, 0, NULL) < 0);
    print_message("beyond the context: %s\n", kvf_llama_error(a.fold));
    int32_t held = kvf_llama_pos_max(a.fold, 0);
    assert_true(held >= 99 && held < 512);
    if (held > 99) assert_int_equal(arm_cut(&a, 0, 100), KVF_OK);
    struct llama_batch b = llama_batch_init(1, 256, 1);
    memcpy(b.embd, embeddings, sizeof embeddings);
    b.n_tokens = 1;
    b.pos[0] = 100;
    b.n_seq_id[0] = 1;
    b.seq_id[0][0] = 0;
    b.logits[0] = 1;
    assert_true(kvf_llama_decode(a.fold, b) < 0);
    print_message("embeddings: %s\n", kvf_llama_error(a.fold));
    llama_batch_free(b);
    fixture_feed(&a, f, 100, 50, logits);
    fixture_expect_same(f, "after refused batches", logits, clean, 100, 150);
    arm_close(&a);
    free(clean);
    free(logits);
}

#define TEST(what, model)                                                                                                        \
    {                                                                                                                            \
#what ", " model, what, NULL, NULL, model                                                                                \
    }

/* clang-format off */
static const struct CMUnitTest tests[] = {
    TEST(test_mixed_sequences, "llama-64"),
    TEST(test_wrong_batches, "llama-64"),
    TEST(test_copy_and_keep, "llama-64"),
    TEST(test_take_back, "llama-64"),
    TEST(test_mixed_sequences, "gemma2"),
    TEST(test_copy_and_keep, "gemma2"),
    TEST(test_take_back, "gemma2"),
    TEST(test_too_far_back, "gemma2"),
    TEST(test_take_back, "gemma3"),
    TEST(test_too_far_back, "gemma3"),
    TEST(test_take_back, "gpt-oss"),
    TEST(test_too_far_back, "gpt-oss"),
    TEST(test_mixed_sequences, "gpt-oss"),
    TEST(test_mixed_sequences, "gemma3n"),
    TEST(test_take_back, "gemma4"),
    TEST(test_mixed_sequences, "mpt"),
    TEST(test_mixed_sequences, "deepseek2"),
    TEST(test_copy_and_keep, "lfm2"),
    TEST(test_mixed_sequences, "lfm2"),
    TEST(test_take_back_state, "lfm2"),
};
/* clang-format on */

int main(void)
{
    return cmocka_run_group_tests(tests, NULL, fixture_free);
}
