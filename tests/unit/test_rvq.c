/* SPDX-License-Identifier: MIT
 * Two stages: the error of the fitted second one and of the earlier tuning, and what each stage is worth. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "codec/codec.h"
#include "codec/shared/codebook.h"
#include "codec_inputs.h"
#include "statistics.h"

/* Levels of the second stage for a normal variable, to the three digits in which independent calculations agree; the oracle's are
 * compared more narrowly through the tables. */
static void levels_of_the_second_stage(void **state)
{
    (void)state;
    static const struct {
        int first, second;
        double level[2];
    } known[] = {{1, 1, {0.4826}}, {2, 1, {0.2753}}, {2, 2, {0.1499, 0.4511}}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        double c[128], d[8];
        kvfi_lloyd_max(known[i].first, 2, c);
        kvfi_lloyd_max_residual(known[i].first, 2, c, known[i].second, d);
        for (int j = 0; j < known[i].second; j++)
            if (fabs(d[j] - known[i].level[j]) > 2.5e-4)
                fail_msg("level %d of %d+%d is %.6f", j, known[i].first, known[i].second, d[j]);
    }
}

/* The Laplace quantiser of one bit has its level at the mean magnitude: 1, less what the cut takes. Of two bits: 0.420 and 1.834
 * without a cut (Paez and Glisson, 1972, for a deviation of 1: times the square root of 2). */
static void levels_of_the_laplace_density(void **state)
{
    (void)state;
    double d[8];
    kvfi_laplace_max(1, 8, d);
    assert_true(fabs(d[0] - (1 - 9 * exp(-8)) / (1 - exp(-8))) < 1e-12);
    kvfi_laplace_max(2, 30, d);
    assert_true(fabs(d[0] - 0.420 * sqrt(2)) < 1e-3 && fabs(d[1] - 1.834 * sqrt(2)) < 1e-3);
}

/* Error of two stages for the density of codebook.h, from the definition. */
static double exact_error(int dim, int n, const double *c, int m, const double *d)
{
    enum { STEPS = 200000 };
    double error = 0, mass = 0;
    for (int k = 0; k < STEPS; k++) {
        double t = (k + 0.5) * fmin(sqrt(dim), 9) / STEPS, f = pow(1 - t * t / dim, (dim - 3) / 2.0), r;
        int i = 0, j = 0;
        while (i + 1 < n && t > (c[i] + c[i + 1]) / 2) i++;
        r = fabs(t - c[i]);
        while (j + 1 < m && r > (d[j] + d[j + 1]) / 2) j++;
        error += f * (r - d[j]) * (r - d[j]), mass += f;
    }
    return error / mass;
}

/* At 128 channels, plain norm. `told`: what is said of these codes elsewhere, measured with 400 vectors; the true figures lie within
 * three standard errors of such a sample. Rounding levels to integers adds at most half a unit squared, 5e-5 and 1.2e-4. */
static void errors_at_128_channels(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        int bits, earlier;
        double told;
    } known[] = {{"rvq2:norm=n0", 1, 0, 0.1275},
                 {"rvq4:norm=n0", 2, 0, 0.0180},
                 {"rvq2:norm=n0,tuned=paper", 1, 1, 0.172},
                 {"rvq4:norm=n0,tuned=paper", 2, 1, 0.0466}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const int n = known[i].bits;
        double c[128], d[8];
        kvfi_lloyd_max(n, 128, c);
        kvfi_lloyd_max_residual(n, 128, c, n, d);
        if (known[i].earlier) kvfi_laplace_max(n, 8, d);
        for (int j = 0; j < n && known[i].earlier; j++) d[j] *= sqrt(3 * acos(-1)) / 2 * ldexp(1, -2 * n) / sqrt(2);
        const double want = exact_error(128, n, c, n, d), unit = (c[n - 1] + d[n - 1]) / 126.5;
        mean m = sphere_error(known[i].spec, 128, 24);
        print_message("%-26s error %.5f +- %.5f, exact %.5f, told %.4f\n", known[i].spec, mean_of(&m), standard_error(&m), want,
                      known[i].told);
        assert_true(fabs(mean_of(&m) - want) < ERRORS * standard_error(&m) + unit * unit / 2);
        assert_true(fabs(known[i].told - want) < 3 * standard_error(&m) * sqrt((double)m.n / 400) + 5e-5);
    }
}

/* A second stage is worth its bits, but less than the same bits in one stage; fitting it beats the earlier tuning. */
static void what_a_stage_is_worth(void **state)
{
    (void)state;
    static const char *const worse_to_better[][2] = {
        {"turbo1:norm=n0", "rvq2:norm=n0"},
        {"rvq2:norm=n0", "turbo2:norm=n0"},
        {"turbo2:norm=n0", "rvq3:norm=n0"},
        {"rvq3:norm=n0", "turbo3:norm=n0"},
        {"rvq3:norm=n0,stages=1+2", "rvq3:norm=n0"},
        {"rvq4:norm=n0", "turbo4:norm=n0"},
        {"rvq2:norm=n0,tuned=paper", "rvq2:norm=n0"},
        {"rvq4:norm=n0,tuned=paper", "rvq4:norm=n0"},
        {"rvq4:norm=n0", "rvq6:norm=n0"},
    };
    for (size_t i = 0; i < sizeof worse_to_better / sizeof *worse_to_better; i++) {
        mean a = sphere_error(worse_to_better[i][0], 64, 8), b = sphere_error(worse_to_better[i][1], 64, 8);
        if (mean_of(&a) - mean_of(&b) < ERRORS * hypot(standard_error(&a), standard_error(&b)))
            fail_msg("%s has error %.5f, %s %.5f", worse_to_better[i][0], mean_of(&a), worse_to_better[i][1], mean_of(&b));
    }
}

static void what_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"rvq",
                                      "rvq1",
                                      "rvq9",
                                      "rvq3:stages=3",
                                      "rvq3:stages=2+2",
                                      "rvq3:stages=3+0",
                                      "rvq6:stages=5+1",
                                      "rvq3:stages=2-1",
                                      "rvq2:tuned=x",
                                      "rvq2:group=32"};
    char error[256];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(kvf_spec_check(bad[i], KVF_K, 64, NULL, error, sizeof error), KVF_E_SPEC);
    kvf_spec_info info;
    assert_int_equal(kvf_spec_check("rvq3:stages=1+2", KVF_K, 64, &info, NULL, 0), KVF_OK);
    assert_string_equal(info.canonical, "rvq3:norm=n1,stages=1+2,tuned=fit,rot=h1,seed=0,centre=prompt,scale=prompt");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_of_the_second_stage),
        cmocka_unit_test(levels_of_the_laplace_density),
        cmocka_unit_test(errors_at_128_channels),
        cmocka_unit_test(what_a_stage_is_worth),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
