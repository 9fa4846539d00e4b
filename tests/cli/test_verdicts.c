/* SPDX-License-Identifier: MIT
 * What bench e2e says about two texts and about the memory of processes, and what bench compare says about two runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/bench_e2e.h"

#include <jansson.h>

#include <math.h>
#include <string.h>

static void test_text(void **state)
{
    (void)state;
    char verdict[E2E_VERDICT];
    assert_true(e2e_text_verdict("abc", "abc", true, verdict));
    assert_string_equal(verdict, "identical (3 bytes)");
    assert_false(e2e_text_verdict("abcdef", "abXdef", true, verdict));
    assert_string_equal(verdict, "DIFFERS after 2 of 6 bytes");
    assert_false(e2e_text_verdict("abcdef", "abXdef", false, verdict));
    assert_string_equal(verdict, "differs after 2 of 6 bytes");
    assert_false(e2e_text_verdict("abc", "abcd", true, verdict)); /* one more byte is a difference */
    assert_false(e2e_text_verdict("abcd", "abc", true, verdict));
}

static int difference(const char *a, const char *b, double *gap, bool *near)
{
    json_t *x = json_loads(a, 0, NULL), *y = json_loads(b, 0, NULL);
    assert_true(x && y);
    int at = e2e_first_difference(x, y, gap, near);
    json_decref(x);
    json_decref(y);
    return at;
}

/* Arithmetic may decide between two tokens that are nearly as likely, and between no others. */
static void test_near_ties(void **state)
{
    (void)state;
    static const char base[] = "{\"tokens\": [5, 6, 7], \"gaps\": [3.5, 0.02, 9]}";
    double gap;
    bool near;
    assert_int_equal(difference(base, base, &gap, &near), -1);
    assert_int_equal(difference(base, "{\"tokens\": [5, 8, 1]}", &gap, &near), 1);
    assert_true(near && gap == 0.02);
    assert_int_equal(difference(base, "{\"tokens\": [4, 6, 7]}", &gap, &near), 0);
    assert_true(!near && gap == 3.5);
    assert_int_equal(difference(base, "{\"tokens\": [5, 6]}", &gap, &near), 2); /* a list that ends is no tie */
    assert_false(near);
}

static void test_memory(void **state)
{
    (void)state;
    const double mib = 1048576;
    char verdict[E2E_VERDICT];
    measure_bytes m;
    double base[5] = {300 * mib, 310 * mib, 305 * mib, 302 * mib, 308 * mib}, less[5], alike[5];
    for (int i = 0; i < 5; i++) less[i] = base[i] - 100 * mib, alike[i] = base[(i + 1) % 5];
    e2e_memory_verdict(base, 5, less, 5, verdict, &m);
    assert_string_equal(verdict, "-100.0 MiB (-110.0 to -90.0)");
    e2e_memory_verdict(less, 5, base, 5, verdict, &m); /* more memory is said with the other sign */
    assert_string_equal(verdict, "+100.0 MiB (+90.0 to +110.0)");
    e2e_memory_verdict(base, 5, alike, 5, verdict, &m);
    assert_non_null(strstr(verdict, "not distinguishable"));
    e2e_memory_verdict(base, 2, less, 1, verdict, &m);
    assert_string_equal(verdict, "-105.0 MiB, no claim from 1 process");
    for (int i = 0; i < 5; i++) base[i] = 300 * mib, less[i] = 299 * mib; /* a third of a per cent, however steady */
    e2e_memory_verdict(base, 5, less, 5, verdict, &m);
    assert_non_null(strstr(verdict, "not distinguishable"));
}

/* ---- two runs ------------------------------------------------------------------------------------------------------------- */

static uint64_t seed = 99;

static double noisy(double x)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return x * (1 + 0.05 * (double)(seed >> 11) * 0x1p-53);
}

/* The second run is on a machine three times as slow: nothing is claimed for that, and 1.3 times as fast an arm is found. */
static void test_two_runs(void **state)
{
    (void)state;
    enum { N = 15, TRIALS = 200 };
    int claims = 0, found = 0;
    for (int t = 0; t < TRIALS; t++) {
        double base_a[N], x_a[N], base_b[N], x_b[N], fast_b[N];
        measure_ratio r;
        for (int i = 0; i < N; i++) {
            base_a[i] = noisy(100), x_a[i] = noisy(50);
            base_b[i] = noisy(300), x_b[i] = noisy(150), fast_b[i] = noisy(150 / 1.3);
        }
        measure_pair a = {base_a, x_a, N}, b = {base_b, x_b, N}, c = {base_b, fast_b, N};
        measure_compare_runs(&a, &b, 0.03, 1, &r);
        claims += r.distinguishable;
        measure_compare_runs(&a, &c, 0.03, 1, &r);
        found += r.distinguishable && r.ratio > 1.2 && r.ratio < 1.4 && r.low > 1;
        measure_compare_runs(&c, &a, 0.03, 1, &r);
        found += r.distinguishable && r.high < 1;
    }
    assert_true(claims <= TRIALS / 100);
    assert_int_equal(found, 2 * TRIALS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_near_ties),
        cmocka_unit_test(test_two_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
