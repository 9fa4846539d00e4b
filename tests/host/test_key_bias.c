/* SPDX-License-Identifier: MIT
 * Keys that are nearly a constant. Rotated codecs without a centre must fail on such a model and say so; those that take the centre
 * from the prompt must lose no more than on the same model without the constant, and so must KIVI, which has a minimum a channel. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lockstep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 768, POSITIONS = 383, CENTRED = 3, ARMS = 5 };

/* Plain libllama; codecs that cope; codecs that do not. */
static const char *const K[ARMS] = {NULL, "uni4", "kivi4", "q4_0:rot=h", "turbo4:centre=none,scale=none"};
static const char *const V[ARMS] = {NULL, "uni4", "kivi4", "q4_0:rot=h", "turbo4"};

typedef struct said {
    int n;
    char text[320];
} said;

static void listen(void *user, kvf_log_level level, const char *text)
{
    said *s = user;
    if (level != KVF_LOG_WARN) return;
    s->n++;
    snprintf(s->text, sizeof s->text, "%s", text);
}

static void measure(real_model which, tally *tallies, said *warnings)
{
    struct llama_model *model = real_load(which, true);
    llama_token *tokens = real_tokens(model, &SLICE_A, TOKENS);
    arm arms[ARMS];
    for (int i = 0; i < ARMS; i++) {
        arm_options o;
        arm_options_init(&o, TOKENS, K[i], V[i]);
        o.log = listen, o.log_user = &warnings[i];
        assert_int_equal(arm_open(&arms[i], model, &o), 0);
    }
    lockstep(arms, tallies, ARMS, tokens, TOKENS, TOKENS - 1 - POSITIONS);
    for (int i = 0; i < ARMS; i++) arm_close(&arms[i]);
    free(tokens);
    llama_model_free(model);
}

static void test_key_bias(void **state)
{
    (void)state;
    tally plain[ARMS], biased[ARMS];
    said calm[ARMS] = {{0, ""}}, warned[ARMS] = {{0, ""}};
    measure(REAL_SMOLLM2, plain, calm);
    measure(REAL_KEY_BIAS, biased, warned);
    for (int i = 1; i < ARMS; i++) {
        double was = plain[i].sum / POSITIONS, is = biased[i].sum / POSITIONS;
        print_message("%s/%s: mean KLD %.5f, with the constant %.5f\n", K[i], V[i], was, is);
        assert_true(was < 0.01);
        if (i < CENTRED)
            assert_true(is < 1.3 * was);
        else
            assert_true(is > 1);
        assert_int_equal(calm[i].n, 0);
        assert_int_equal(warned[i].n, i >= CENTRED);
        if (warned[i].n) assert_non_null(strstr(warned[i].text, "layers 0-29 (30 in all)"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_key_bias)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
