/* SPDX-License-Identifier: MIT
 * Who gets the bits: the greedy rule against all choices there are, RateQuant's closed form by hand, and profiles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/measure_random.h"
#include "cli/profile.h"
#include "cli/tune.h"

#include <math.h>
#include <string.h>

enum { ITEMS = 6, LEVELS = 4 };

/* Convex losses, as those of codes are: each bit takes a factor of 3 to 5; sides of unlike size. */
static void make_items(tune_item *t, uint64_t *seed, bool equal_size)
{
    for (int i = 0; i < ITEMS; i++) {
        double loss = 1 + measure_below(seed, 1000);
        const int64_t unit = equal_size ? 64 : 64 * (1 + measure_below(seed, 4));
        t[i] = (tune_item){.layer = i / 2, .side = i % 2 ? KVF_V : KVF_K};
        for (int b = 0; b < LEVELS; b++, loss /= 3 + measure_below(seed, 2)) t[i].loss[b] = loss, t[i].bytes[b] = unit * (b + 1);
    }
}

static double best_of_all(tune_item *t, int64_t budget)
{
    double best = INFINITY;
    for (int code = 0; code < 4096; code++) {
        for (int i = 0, rest = code; i < ITEMS; i++, rest /= LEVELS) t[i].level = rest % LEVELS;
        if (tune_bytes(t, ITEMS) <= budget && tune_loss(t, ITEMS) < best) best = tune_loss(t, ITEMS);
    }
    return best;
}

static void test_greedy_against_all_choices(void **state)
{
    uint64_t seed = 7;
    tune_item t[ITEMS];
    (void)state;
    for (int round = 0; round < 30; round++) {
        const bool equal = round % 2 == 0;
        make_items(t, &seed, equal);
        for (int i = 0; i < ITEMS; i++) t[i].level = 0;
        const int64_t least = tune_bytes(t, ITEMS);
        for (int64_t budget = least; budget <= 4 * least; budget += least / 3) {
            const double best = best_of_all(t, budget);
            assert_true(tune_greedy(t, ITEMS, LEVELS, budget));
            assert_true(tune_bytes(t, ITEMS) <= budget);
            /* equal steps and convex losses: the best there is; else the last step that does not fit may be missed */
            if (equal ? tune_loss(t, ITEMS) > best * (1 + 1e-12) : tune_loss(t, ITEMS) > best * 1.6)
                fail_msg("round %d, budget %lld: loss %g, best %g", round, (long long)budget, tune_loss(t, ITEMS), best);
        }
        assert_false(tune_greedy(t, ITEMS, LEVELS, least - 1));
    }
}

/* A level that gains nothing by itself hides one that gains much. */
static void test_greedy_looks_beyond_one_step(void **state)
{
    tune_item t[2] = {{.bytes = {1, 2, 3}, .loss = {10, 10, 0}}, {.bytes = {1, 2, 3}, .loss = {1, 0.5, 0.4}}};
    (void)state;
    assert_true(tune_greedy(t, 2, 3, 4));
    assert_int_equal(t[0].level, 2);
    assert_int_equal(t[1].level, 0);
}

static void bits_are(const double *w, int n, double mean, double beta, const int *choices, int n_choices, const int *want)
{
    int bits[16];
    tune_ratequant(w, n, mean, beta, choices, n_choices, bits);
    for (int i = 0; i < n; i++)
        if (bits[i] != want[i]) fail_msg("mean %g: item %d has %d bits, not %d", mean, i, bits[i], want[i]);
}

static void test_ratequant_by_hand(void **state)
{
    static const int all[] = {1, 2, 3, 4}, gaps[] = {2, 4, 8};
    (void)state;
    /* ln w / ln 4 is -1, 0, 1: mean 2 gives exactly 1, 2, 3 */
    bits_are((double[]){0.25, 1, 4}, 3, 2, 4, all, 4, (int[]){1, 2, 3});
    /* -1, 2, 5 are cut to 1, 2, 4; of the two that can step down to meet the sum, 6, the middle one misses it less */
    bits_are((double[]){1.0 / 64, 1, 64}, 3, 2, 4, all, 4, (int[]){1, 1, 4});
    /* equal weights: half of them get the odd bit, the first ones */
    bits_are((double[]){1, 1, 1, 1}, 4, 2.5, 3.5, all, 4, (int[]){3, 3, 2, 2});
    /* steps of 2 overshoot 15 to 16: one goes down again, and there is no 15 */
    bits_are((double[]){1, 1, 1, 1, 1, 1}, 6, 2.5, 5, gaps, 3, (int[]){2, 4, 2, 2, 2, 2});
    /* a weight of 0 takes what is least */
    bits_are((double[]){0, 1, 1}, 3, 3, 2, all, 4, (int[]){1, 4, 4});
    /* so do all of them when nothing is known, up to the mean */
    bits_are((double[]){0, 0, 0}, 3, 2, 4, all, 4, (int[]){2, 2, 2});
    /* a mean outside the choices: the nearest end, for all */
    bits_are((double[]){0.25, 1, 4}, 3, 9, 4, all, 4, (int[]){4, 4, 4});
    bits_are((double[]){0.25, 1, 4}, 3, 0.5, 4, all, 4, (int[]){1, 1, 1});
    /* one item has the mean, whatever its weight */
    bits_are((double[]){7}, 1, 3, 4, all, 4, (int[]){3});
    bits_are((double[]){0}, 1, 3, 4, all, 4, (int[]){3});
}

static void test_ratequant_meets_its_sum(void **state)
{
    static const int all[] = {1, 2, 3, 4, 5, 6};
    uint64_t seed = 3;
    double w[16];
    int bits[16];
    (void)state;
    for (int round = 0; round < 200; round++) {
        const double mean = 1 + measure_below(&seed, 80) / 16.0;
        int sum = 0;
        for (int i = 0; i < 16; i++) w[i] = exp(measure_below(&seed, 1000) / 200.0);
        tune_ratequant(w, 16, mean, 3.5, all, 6, bits);
        for (int i = 0; i < 16; i++) sum += bits[i];
        assert_int_equal(sum, (int)nearbyint(16 * mean));
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 16; j++)
                if (w[i] > w[j] * 3.5) assert_true(bits[i] >= bits[j]);
    }
}

/* ---- profiles ---- */

static void test_profile_of_levels(void **state)
{
    static const char name[3][TUNE_NAME] = {"turbo1", "turbo2", "turbo3"};
    tune_item t[8] = {{.level = 2, .layer = 0}, {.level = 1, .layer = 0}, {.level = 0, .layer = 1}, {.level = 0, .layer = 1},
                      {.level = 2, .layer = 3}, {.level = 1, .layer = 3}, {.level = 1, .layer = 4}, {.level = 2, .layer = 4}};
    cli_text text = {0};
    profile p;
    (void)state;
    tune_profile(t, 8, name, &text);
    assert_string_equal(text.data, "# kvfold profile 1\nkv turbo1/turbo1\n0,3=turbo3/turbo2\n1=turbo1/turbo1\n4=turbo2/turbo3\n");
    assert_int_equal(profile_parse(&p, text.data, "here"), CLI_GO);
    assert_string_equal(p.kv, "turbo1/turbo1");
    assert_int_equal(p.n_layers, 3);
    assert_string_equal(p.layers[2], "4=turbo2/turbo3");
    assert_false(p.has_model);
    profile_free(&p);
    cli_text_free(&text);
}

static void test_profiles_that_are_read(void **state)
{
    profile p;
    (void)state;
    assert_int_equal(
        profile_parse(&p, "# kvfold profile 1\r\n\n# words\nmodel 00ff00ff00ff00ff  # of what\nkv f16/q8_0\t\n7=f16", "here"),
        CLI_GO);
    assert_true(p.has_model && p.model == 0x00ff00ff00ff00ffu);
    assert_string_equal(p.kv, "f16/q8_0");
    assert_string_equal(p.layers[0], "7=f16");
    assert_false(p.has_calibration); /* as all profiles were written once */
    profile_free(&p);
    assert_int_equal(profile_parse(&p, "# kvfold profile 1\nkv f16/f16\ncalibration 00000000000000ff\n", "here"), CLI_GO);
    assert_true(p.has_calibration && p.calibration == 0xff && !p.has_model);
    profile_free(&p);
}

static void test_profiles_that_are_refused(void **state)
{
    static const char *const bad[] = {"",
                                      "kv f16/f16\n",
                                      "# kvfold profile 1\n",
                                      "# kvfold profile 1\nkv f16/f16\nmodel 12\n",
                                      "# kvfold profile 1\nkv f16/f16\nmodel 00ff00ff00ff00fg\n",
                                      "# kvfold profile 1\nkv f16/f16\nsomething\n",
                                      "# kvfold profile 1\nkv f16/f16\n0,1\n",
                                      "# kvfold profile 1\nkv f16/f16\n=f16\n"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        profile p;
        if (profile_parse(&p, bad[i], "here") != CLI_DAMAGED) fail_msg("'%s' was taken", bad[i]);
        profile_free(&p);
    }
}

/* A budget of the fewest bits everywhere is met, whatever the number of items. */
static void test_ratequant_reaches_the_lowest(void **state)
{
    (void)state;
    for (int n = 2; n <= 120; n++) {
        tune_item item[120] = {{0}};
        tuner t = {.item = item, .n = n, .levels = LEVELS, .budget = 64 * n};
        for (int b = 0; b < LEVELS; b++) t.bits[b] = b + 1, t.ratio[0][b] = pow(0.25, b);
        for (int i = 0; i < n; i++) {
            item[i].sensitivity = 1 + i % 7;
            for (int b = 0; b < LEVELS; b++) item[i].bytes[b] = 64 * (b + 1);
        }
        if (!tune_choose(&t, "ratequant")) fail_msg("%d items", n);
        assert_int_equal(tune_bytes(item, n), 64 * n);
        t.budget--;
        assert_false(tune_choose(&t, "ratequant"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_against_all_choices), cmocka_unit_test(test_greedy_looks_beyond_one_step),
        cmocka_unit_test(test_ratequant_by_hand),          cmocka_unit_test(test_ratequant_meets_its_sum),
        cmocka_unit_test(test_profile_of_levels),          cmocka_unit_test(test_profiles_that_are_read),
        cmocka_unit_test(test_profiles_that_are_refused),  cmocka_unit_test(test_ratequant_reaches_the_lowest),
    };
    return cmocka_run_group_tests_name("tune", tests, NULL, NULL);
}
