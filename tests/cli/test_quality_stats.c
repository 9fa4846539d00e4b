/* SPDX-License-Identifier: MIT
 * The statistics of `quality`, on distributions whose answers are known without them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/measure.h"
#include "cli/measure_random.h"
#include "cli/quality_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void assert_close(double x, double expected, double most)
{
    if (!(fabs(x - expected) <= most)) fail_msg("%.17g is not %.17g within %g", x, expected, most);
}

/* Uniform on [0, 1). */
static double uniform(uint64_t *seed)
{
    return (double)(measure_next(seed) >> 11) * 0x1p-53;
}

static double normal(uint64_t *seed)
{
    double u = 1 - uniform(seed), v = uniform(seed);
    return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979323846 * v);
}

/* ---- one position --------------------------------------------------------------------------------------------------------- */

static quality_point compare(const float *p, const float *q, int32_t n, int32_t next)
{
    double *share = malloc((size_t)n * sizeof *share);
    quality_reference r = {.n = n, .p = share};
    quality_point point;
    assert_non_null(share);
    quality_reference_set(&r, p);
    quality_compare(&r, q, next, &point);
    free(share);
    return point;
}

/* p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): 1/2 log 2 + 0 - 1/4 log 2. Adding a constant to logits changes nothing. */
static void test_by_hand(void **state)
{
    (void)state;
    float l2 = logf(2);
    float p[3] = {l2, 0, 0}, q[3] = {7, 7, 7 + l2};
    quality_point point = compare(p, q, 3, 2);
    assert_close(point.kld, 0.25 * log(2), 1e-7);
    assert_close(point.p, 0.5, 1e-7);
    assert_close(point.p_reference, 0.25, 1e-7);
    assert_close(point.nll, log(2), 1e-7);
    assert_int_equal(point.top, 2);
    assert_false(point.same_top);
    point = compare(q, p, 3, 0); /* not symmetric in general, but it is for this pair */
    assert_close(point.kld, 0.25 * log(2), 1e-7);
}

/* KL(p || q) is not KL(q || p): which one it is must be seen somewhere. p = (0.9, 0.1), q = (0.5, 0.5). */
static void test_direction(void **state)
{
    (void)state;
    float p[2] = {logf(9), 0}, q[2] = {0, 0};
    assert_close(compare(p, q, 2, 0).kld, 0.9 * log(1.8) + 0.1 * log(0.2), 1e-7);
    assert_close(compare(q, p, 2, 0).kld, 0.5 * log(0.5 / 0.9) + 0.5 * log(0.5 / 0.1), 1e-7);
}

/* The sum written down with log p and log q, in long double; large logits must not overflow. */
static double plain(const float *p, const float *q, int32_t n)
{
    long double most = 0, sp = 0, sq = 0, kld = 0;
    for (int32_t i = 0; i < n; i++) most = fmaxl(most, fmaxl(p[i], q[i]));
    for (int32_t i = 0; i < n; i++) sp += expl(p[i] - most), sq += expl(q[i] - most);
    for (int32_t i = 0; i < n; i++) kld += expl(p[i] - most) / sp * ((p[i] - logl(sp)) - (q[i] - logl(sq)));
    return (double)kld;
}

static void test_random_logits(void **state)
{
    (void)state;
    enum { N = 5000 };
    static float p[N], q[N];
    uint64_t seed = 3;
    for (int round = 0; round < 20; round++) {
        double scale = round % 2 ? 1 : 0.001, shift = round * 400;
        for (int i = 0; i < N; i++) {
            p[i] = (float)(4 * normal(&seed) + shift);
            q[i] = (float)(p[i] + scale * normal(&seed));
        }
        double expected = plain(p, q, N);
        assert_true(expected > 0);
        assert_close(compare(p, q, N, 0).kld, expected, 1e-12 + 1e-9 * expected);
    }
}

static void test_equal_is_exactly_zero(void **state)
{
    (void)state;
    enum { N = 4096 };
    static float p[N];
    uint64_t seed = 5;
    for (int i = 0; i < N; i++) p[i] = (float)(30 * normal(&seed));
    quality_point point = compare(p, p, N, 77);
    assert_true(point.kld == 0);
    assert_true(point.p == point.p_reference);
    assert_true(point.same_top);
}

static void test_not_finite_is_seen(void **state)
{
    (void)state;
    float good[3] = {1, 2, 3};
    for (int i = 0; i < 3; i++) {
        float bad[3] = {1, 2, 3};
        bad[i] = NAN;
        assert_false(isfinite(compare(good, bad, 3, 0).kld));
        assert_false(isfinite(compare(bad, good, 3, 0).kld));
        bad[i] = INFINITY;
        assert_false(isfinite(compare(good, bad, 3, 0).kld));
        assert_false(isfinite(compare(bad, good, 3, 0).kld));
    }
}

/* ---- means and percentiles ------------------------------------------------------------------------------------------------ */

static void test_mean(void **state)
{
    (void)state;
    double x[4] = {1, 2, 4, 9};
    quality_mean m = quality_mean_of(x, 4); /* squares of deviations: 9 + 4 + 0 + 25 = 38 */
    assert_close(m.mean, 4, 0);
    assert_close(m.error, sqrt(38.0 / 3 / 4), 1e-15);
    quality_mean e = quality_exp_of((quality_mean){log(20), 0.01});
    assert_close(e.mean, 20, 1e-13);
    assert_close(e.error, 0.2, 1e-13);
    assert_true(isnan(quality_mean_of(x, 0).mean));
    assert_true(isnan(quality_mean_of(x, 1).error));
}

/* Blocks 0, 0, 1, 1, 1: sums 3 and 15, mean 3.6; deviations 3 - 7.2 and 15 - 10.8. */
static void test_blocked_by_hand(void **state)
{
    (void)state;
    double x[5] = {1, 2, 4, 5, 6};
    int64_t block[5] = {0, 0, 1, 1, 1};
    quality_series s = {x, block, 5};
    quality_mean m = quality_blocked(&s);
    assert_int_equal(quality_blocks_of(&s), 2);
    assert_close(m.mean, 3.6, 1e-15);
    assert_close(m.error, sqrt(2.0 / 1 * (4.2 * 4.2 + 4.2 * 4.2)) / 5, 1e-14);
    s.n = 2;
    assert_true(isnan(quality_blocked(&s).error) && quality_blocked(&s).mean == 1.5);
    s.n = 0;
    assert_true(isnan(quality_blocked(&s).mean));
}

/* Hits and misses, each a block of its own: the error of independent ones; all hits: Wilson's interval, never 0. */
static quality_mean share(int hits, int n)
{
    double x[100];
    int64_t block[100];
    for (int i = 0; i < n; i++) x[i] = i < hits, block[i] = i;
    return quality_share_of(&(quality_series){x, block, n});
}

static void test_share(void **state)
{
    (void)state;
    assert_close(share(90, 100).mean, 0.9, 1e-15);
    assert_close(share(90, 100).error, sqrt(0.09 / 99), 1e-15);
    assert_close(share(100, 100).error, 0.5 / 101, 1e-15); /* half of the interval from 100 / 101 to 1 */
    assert_close(share(0, 100).error, 0.5 / 101, 1e-15);
    assert_true(isnan(share(0, 0).mean));
}

/* Of neighbours that are alike, errors of single positions are too small by the root of the block's length. */
static void test_blocked_error_is_what_means_scatter_by(void **state)
{
    (void)state;
    enum { N = 400, ROUNDS = 300 };
    static double x[N], mean[ROUNDS];
    static int64_t block[N];
    double stated = 0, alone = 0;
    uint64_t seed = 31;
    for (int r = 0; r < ROUNDS; r++) {
        double common = 0;
        for (int i = 0; i < N; i++) {
            if (i % 8 == 0) common = normal(&seed);
            x[i] = common + 0.3 * normal(&seed);
            block[i] = i / 8;
        }
        quality_mean m = quality_blocked(&(quality_series){x, block, N});
        mean[r] = m.mean;
        stated += m.error / ROUNDS;
        alone += quality_mean_of(x, N).error / ROUNDS;
    }
    double found = quality_mean_of(mean, ROUNDS).error * sqrt(ROUNDS);
    assert_close(stated / found, 1, 0.15);
    assert_true(alone < 0.5 * found);
}

/* The standard error is what the mean of a sample of that size really scatters by. */
static void test_error_of_a_known_distribution(void **state)
{
    (void)state;
    enum { N = 200, ROUNDS = 400 };
    double x[N], mean[ROUNDS], stated = 0;
    uint64_t seed = 11;
    for (int r = 0; r < ROUNDS; r++) {
        for (int i = 0; i < N; i++) x[i] = -log(1 - uniform(&seed)); /* exponential: mean 1, deviation 1 */
        quality_mean m = quality_mean_of(x, N);
        mean[r] = m.mean;
        stated += m.error / ROUNDS;
    }
    double found = quality_mean_of(mean, ROUNDS).error * sqrt(ROUNDS);
    assert_close(stated, 1 / sqrt(N), 0.002);
    assert_close(found, 1 / sqrt(N), 0.008); /* deviation of 400 draws: 3.5 % of 0.0707, three times that */
}

static void test_percentiles(void **state)
{
    (void)state;
    double x[5] = {5, 1, 4, 2, 3};
    measure_sort(x, 5);
    assert_close(quality_percentile(x, 5, 0), 1, 0);
    assert_close(quality_percentile(x, 5, 0.5), 3, 0);
    assert_close(quality_percentile(x, 5, 0.9), 4.6, 1e-15);
    assert_close(quality_percentile(x, 5, 1), 5, 0);
    assert_close(quality_percentile(x, 1, 0.999), 1, 0);
    assert_true(isnan(quality_percentile(x, 0, 0.5)));
    static double many[500];
    assert_true(isnan(quality_percentile_known(many, 499, 0.99)) && quality_percentile_known(many, 500, 0.99) == 0);
    assert_true(isnan(quality_percentile_known(many, 499, 0.01)) && quality_percentile_known(many, 500, 0.01) == 0);
    assert_true(isnan(quality_percentile_known(many, 9, 0.5)) && quality_percentile_known(many, 10, 0.5) == 0);
}

/* ---- differences ---------------------------------------------------------------------------------------------------------- */

static quality_interval paired(const double *a, const double *b, int64_t n, int64_t length, double confidence, uint64_t seed)
{
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    int64_t *block = malloc((size_t)(n + 1) * sizeof *block);
    assert_true(x && block);
    for (int64_t i = 0; i < n; i++) x[i] = a[i] - b[i], block[i] = i / length;
    quality_interval interval = quality_bootstrap(&(quality_series){x, block, n}, confidence, seed);
    free(x);
    free(block);
    return interval;
}

static void test_bootstrap_is_seeded(void **state)
{
    (void)state;
    enum { N = 100 };
    double a[N], b[N];
    uint64_t seed = 17;
    for (int i = 0; i < N; i++) a[i] = normal(&seed), b[i] = normal(&seed);
    quality_interval x = paired(a, b, N, 8, 0.99, 1), y = paired(a, b, N, 8, 0.99, 1);
    quality_interval z = paired(a, b, N, 8, 0.99, 2);
    assert_memory_equal(&x, &y, sizeof x);
    assert_true(x.low != z.low);
    assert_true(x.low < x.mean && x.mean < x.high);
    assert_true(isnan(paired(a, b, 0, 8, 0.99, 1).mean));
}

/* Pairing removes what both have in common: a shift of 0.1 is found under a common part that scatters by 10. */
static void test_bootstrap_is_paired(void **state)
{
    (void)state;
    enum { N = 400 };
    double a[N], b[N];
    uint64_t seed = 19;
    for (int i = 0; i < N; i++) {
        b[i] = 10 * normal(&seed);
        a[i] = b[i] + 0.1 + 0.2 * normal(&seed);
    }
    quality_interval x = paired(a, b, N, 8, 0.99, 1);
    assert_true(x.low > 0 && x.high < 0.2);
}

/* How often an interval misses a difference that is there not: rarely, also when neighbours are alike; and single positions, which
 * neighbours are not, would miss far more often. */
static int misses(int64_t block)
{
    enum { N = 512, ROUNDS = 200 };
    static double a[N], b[N];
    uint64_t seed = 23;
    int missed = 0;
    for (int r = 0; r < ROUNDS; r++) {
        double common = 0;
        for (int i = 0; i < N; i++) {
            if (i % 8 == 0) common = normal(&seed);
            a[i] = common + 0.3 * normal(&seed);
            b[i] = 0;
        }
        quality_interval x = paired(a, b, N, block, 0.99, (uint64_t)r + 1);
        missed += x.low > 0 || x.high < 0;
    }
    return missed;
}

static void test_bootstrap_keeps_neighbours_together(void **state)
{
    (void)state;
    int in_blocks = misses(8), alone = misses(1);
    print_message("of 200 intervals at 99 %%: %d miss in blocks of 8, %d without blocks\n", in_blocks, alone);
    assert_true(in_blocks <= 8);
    assert_true(alone >= 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_direction),
        cmocka_unit_test(test_random_logits),
        cmocka_unit_test(test_equal_is_exactly_zero),
        cmocka_unit_test(test_not_finite_is_seen),
        cmocka_unit_test(test_mean),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_blocked_by_hand),
        cmocka_unit_test(test_blocked_error_is_what_means_scatter_by),
        cmocka_unit_test(test_error_of_a_known_distribution),
        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_bootstrap_is_seeded),
        cmocka_unit_test(test_bootstrap_is_paired),
        cmocka_unit_test(test_bootstrap_keeps_neighbours_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
