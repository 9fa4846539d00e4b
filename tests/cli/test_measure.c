/* SPDX-License-Identifier: MIT
 * The instrument is measured first: on a simulated machine whose clock and load are ours, it must find what is there, find
 * nothing where nothing is, and not be fooled by neighbours. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/measure.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* ---- a machine of our own ------------------------------------------------------------------------------------------------- */

typedef struct machine {
    double now;
    measure_load load;
    int readings;                 /* of the load: two a round */
    int busy_from, busy_until;    /* rounds in which a neighbour runs, counted from 0 over all that are tried */
    double other, stolen, waited; /* seconds that he takes a second */
    double slowdown;              /* of our arms meanwhile */
    int stop_after;               /* readings, 0: never */
    int order[512], n_order;      /* which arm ran */
} machine;

typedef struct fake_arm {
    machine *m;
    int id, calls;
    double seconds; /* of one call */
} fake_arm;

static int busy(const machine *m)
{
    int round = (m->readings - 1) / 2;
    return m->readings > 0 && round >= m->busy_from && round < m->busy_until;
}

static void pass(machine *m, double seconds)
{
    double d = seconds * (busy(m) ? 1 : 0);
    m->now += seconds;
    m->load.other += d * m->other;
    m->load.stolen += d * m->stolen;
    m->load.waited += d * m->waited;
}

static double fake_now(void *user)
{
    return ((machine *)user)->now;
}

static void fake_load(void *user, measure_load *load)
{
    machine *m = user;
    *load = m->load;
    m->readings++;
}

static int fake_stop(void *user)
{
    const machine *m = user;
    return m->stop_after && m->readings >= m->stop_after;
}

static void fake_run(void *self)
{
    fake_arm *a = self;
    machine *m = a->m;
    if (m->readings > 0 && m->n_order < 512) m->order[m->n_order++] = a->id;
    pass(m, a->seconds * a->calls * (busy(m) ? m->slowdown : 1));
}

static machine quiet(void)
{
    return (machine){.slowdown = 1};
}

static void run(machine *m, fake_arm *arms, int n, int rounds, double us[][64], measure_rounds *result)
{
    measure_io io = {.now = fake_now, .load = fake_load, .stop = fake_stop, .user = m};
    measure_arm timed[8];
    for (int i = 0; i < n; i++) {
        arms[i].m = m;
        arms[i].id = i;
        timed[i] = (measure_arm){.run = fake_run, .arm = &arms[i], .calls = arms[i].calls, .us = us[i]};
    }
    assert_int_equal(measure_run(&io, timed, n, rounds, 2, 1, result), 0);
}

/* ---- rounds --------------------------------------------------------------------------------------------------------------- */

static void test_time_of_one_call(void **state)
{
    (void)state;
    machine m = quiet();
    fake_arm arms[2] = {{.calls = 7, .seconds = 2e-3}, {.calls = 1, .seconds = 0.2}};
    double us[2][64];
    measure_rounds r;
    run(&m, arms, 2, 9, us, &r);
    assert_int_equal(r.rounds, 9);
    assert_int_equal(r.marked, 0);
    assert_int_equal(r.repeated, 0);
    for (int i = 0; i < 9; i++) {
        assert_true(fabs(us[0][i] - 2000) < 1e-3);
        assert_true(fabs(us[1][i] - 200000) < 1e-3);
    }
}

/* Every arm once a round, and neither always first. */
static void test_order_is_shuffled(void **state)
{
    (void)state;
    machine m = quiet();
    fake_arm arms[3] = {{.calls = 1, .seconds = 0.1}, {.calls = 1, .seconds = 0.1}, {.calls = 1, .seconds = 0.1}};
    double us[3][64];
    measure_rounds r;
    run(&m, arms, 3, 60, us, &r);
    int first[3] = {0}, last[3] = {0};
    assert_int_equal(m.n_order, 180);
    for (int i = 0; i < 180; i += 3) {
        int seen = 1 << m.order[i] | 1 << m.order[i + 1] | 1 << m.order[i + 2];
        assert_int_equal(seen, 7);
        first[m.order[i]]++;
        last[m.order[i + 2]]++;
    }
    for (int a = 0; a < 3; a++) {
        assert_in_range(first[a], 8, 34);
        assert_in_range(last[a], 8, 34);
    }
}

static void check_neighbour(machine m)
{
    fake_arm arms[2] = {{.calls = 1, .seconds = 0.2}, {.calls = 1, .seconds = 0.3}};
    double us[2][64];
    measure_rounds r;
    m.busy_from = 4;
    m.busy_until = 9;
    m.slowdown = 20;
    run(&m, arms, 2, 15, us, &r);
    assert_int_equal(r.rounds, 15);
    assert_int_equal(r.repeated, 5);
    assert_int_equal(r.marked, 0);
    assert_true(r.worst < 0.05); /* of what was kept; the rounds with him are not */
    for (int i = 0; i < 15; i++) assert_true(us[0][i] < 200001 && us[1][i] < 300001);
}

/* Rounds with a neighbour are taken again, by whichever sign he is seen. */
static void test_neighbour(void **state)
{
    (void)state;
    machine m = quiet();
    m.other = 1;
    check_neighbour(m);
    m.other = 0, m.stolen = 0.5;
    check_neighbour(m);
    m.stolen = 0, m.waited = 0.4;
    check_neighbour(m);
    m.load = (measure_load){-1, -1, 0}; /* a system that tells only this */
    check_neighbour(m);
}

/* When he never leaves, the samples are kept and marked, and the work ends. */
static void test_neighbour_who_stays(void **state)
{
    (void)state;
    machine m = quiet();
    m.other = 1, m.busy_until = 1000, m.slowdown = 3;
    fake_arm arms[1] = {{.calls = 1, .seconds = 0.2}};
    double us[1][64];
    measure_rounds r;
    run(&m, arms, 1, 12, us, &r);
    assert_int_equal(r.rounds, 12);
    assert_int_equal(r.repeated, 12);
    assert_int_equal(r.marked, 12);
    assert_int_equal(r.busy, 12);
    assert_int_equal(r.slow, 0);
    assert_true(r.worst > 0.3 && r.worst <= 0.5); /* he takes one of the two processors that the arm has */
    for (int i = 0; i < 12; i++) assert_int_equal(r.mark[i], MEASURE_BUSY);
}

/* He leaves after the spare rounds are used up: which samples stand beside him can be told. */
static void test_marked_samples(void **state)
{
    (void)state;
    machine m = quiet();
    m.other = 1, m.busy_until = 12 + 5, m.slowdown = 3;
    fake_arm arms[1] = {{.calls = 1, .seconds = 0.2}};
    double us[1][64];
    measure_rounds r;
    run(&m, arms, 1, 12, us, &r);
    assert_int_equal(r.marked, 5);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(r.mark[i], i < 5 ? MEASURE_BUSY : 0);
        assert_int_equal(us[0][i] > 300000, i < 5);
    }
}

/* A counter that is not there is no counter that says 0. */
static void test_load_that_nobody_watches(void **state)
{
    (void)state;
    machine m = quiet();
    fake_arm arms[1] = {{.calls = 1, .seconds = 0.2}};
    double us[1][64];
    measure_rounds r;
    run(&m, arms, 1, 9, us, &r);
    assert_int_equal(r.unseen, 0);
    m.load = (measure_load){-1, 0, -1};
    run(&m, arms, 1, 9, us, &r);
    assert_int_equal(r.unseen, MEASURE_NO_OTHER | MEASURE_NO_WAITED);
    assert_int_equal(r.marked, 0);
}

/* A few per cent of others are the ordinary state of a machine, and a tick or two say nothing about a short round. */
static void test_what_is_no_neighbour(void **state)
{
    (void)state;
    machine m = quiet();
    m.other = 0.05, m.busy_until = 1000;
    fake_arm arms[1] = {{.calls = 1, .seconds = 2}};
    double us[1][64];
    measure_rounds r;
    run(&m, arms, 1, 12, us, &r);
    assert_int_equal(r.repeated + r.marked, 0);
    m = quiet();
    m.other = 0.2, m.busy_until = 1000;
    arms[0].seconds = 0.09;
    run(&m, arms, 1, 12, us, &r);
    assert_int_equal(r.repeated + r.marked, 0);
}

static void test_stop(void **state)
{
    (void)state;
    machine m = quiet();
    m.stop_after = 8;
    fake_arm arms[1] = {{.calls = 1, .seconds = 0.2}};
    double us[1][64];
    measure_rounds r;
    run(&m, arms, 1, 12, us, &r);
    assert_int_equal(r.rounds, 4);
    m = quiet();
    m.stop_after = 1; /* at once: one round is still taken */
    run(&m, arms, 1, 12, us, &r);
    assert_int_equal(r.rounds, 1);
}

/* ---- statistics ----------------------------------------------------------------------------------------------------------- */

static uint64_t seed_state = 88172645463325252u;

static double uniform(void)
{
    seed_state ^= seed_state << 13;
    seed_state ^= seed_state >> 7;
    seed_state ^= seed_state << 17;
    return (double)(seed_state >> 11) * 0x1p-53;
}

/* Around 1, skewed like timings: a floor and a tail. */
static double noisy(double spread)
{
    return 1 + spread * -log(1 - 0.999 * uniform());
}

static void test_summary(void **state)
{
    (void)state;
    double odd[9] = {5, 1, 9, 3, 7, 2, 8, 4, 6}, even[4] = {40, 10, 30, 20}, equal[9];
    measure_summary s;
    measure_summarise(odd, 9, &s);
    assert_true(s.median == 5 && s.min == 1 && s.max == 9);
    assert_true(s.noise > 0.2);
    measure_summarise(even, 4, &s);
    assert_true(s.median == 25 && s.min == 10 && s.max == 40);
    for (int i = 0; i < 9; i++) equal[i] = 3;
    measure_summarise(equal, 9, &s);
    assert_true(s.median == 3 && s.noise == 0);
}

/* From the binomial distribution: 2 (1/2)^9 = 0.4 %, with one more 3.9 %; 2 (1 + 15 + 105) / 2^15 = 0.7 %. */
static void test_order_statistics(void **state)
{
    (void)state;
    assert_int_equal(measure_order(3), 0);
    assert_int_equal(measure_order(9), 0);
    assert_int_equal(measure_order(15), 2);
    int missed = 0, trials = 4000;
    for (int t = 0; t < trials; t++) { /* the interval of the median of an exponential, whose median is log 2 */
        double x[11], sorted[11];
        for (int i = 0; i < 11; i++) x[i] = (noisy(1) - 1);
        memcpy(sorted, x, sizeof x);
        measure_sort(sorted, 11);
        int k = measure_order(11);
        missed += sorted[k] > 0.6927 || sorted[10 - k] < 0.6927; /* noisy leaves a thousandth of the tail out */
    }
    assert_true(missed <= trials * 2 / 100);
}

/* A faster thing is found, with the right sign and size, and a slower one too. */
static void test_difference_is_found(void **state)
{
    (void)state;
    int held = 0;
    for (int trial = 0; trial < 60; trial++) {
        double base[15], fast[15], slow[15];
        measure_ratio r;
        for (int i = 0; i < 15; i++) {
            double drift = 1 + 0.3 * i / 15; /* the machine slows down during the run: all arms alike */
            base[i] = 100 * drift * noisy(0.02);
            fast[i] = base[i] / 1.3 * noisy(0.02) / noisy(0.02);
            slow[i] = 130 * drift * noisy(0.02);
        }
        measure_compare(base, fast, 15, 0.05, 7, &r);
        assert_true(r.distinguishable && r.low > 1);
        held += r.low <= 1.3 && r.high >= 1.3;
        measure_compare(base, slow, 15, 0.05, 7, &r);
        assert_true(r.distinguishable && r.high < 1 && r.ratio > 0.6 && r.ratio < 0.9);
    }
    assert_true(held >= 55); /* a 99 % interval of few samples, leniently */
}

/* The same thing twice: a claim is made in at most 1 of 100 runs. */
static void test_nothing_is_found_where_nothing_is(void **state)
{
    (void)state;
    int claims = 0, trials = 300;
    for (int trial = 0; trial < trials; trial++) {
        double a[15], b[15], c[15];
        measure_ratio against_itself, r;
        for (int i = 0; i < 15; i++) a[i] = noisy(0.05), b[i] = noisy(0.05), c[i] = noisy(0.05);
        measure_compare(a, b, 15, 0, 7, &against_itself);
        measure_compare(a, c, 15, measure_floor(&against_itself), 7, &r);
        claims += r.distinguishable;
    }
    assert_true(claims <= trials / 100);
}

/* A steady difference smaller than what the baseline shows against itself is not claimed. */
static void test_floor(void **state)
{
    (void)state;
    double base[15], x[15];
    measure_ratio r;
    for (int i = 0; i < 15; i++) base[i] = 100, x[i] = 98;
    measure_compare(base, x, 15, 0, 7, &r);
    assert_true(r.distinguishable);
    measure_compare(base, x, 15, 0.03, 7, &r);
    assert_false(r.distinguishable);
    measure_compare(x, base, 15, 0.03, 7, &r);
    assert_false(r.distinguishable);
    measure_compare(x, base, 15, 0.01, 7, &r);
    assert_true(r.distinguishable);
    measure_ratio wide = {1.01, 0.9, 1.05, 0};
    assert_true(fabs(measure_floor(&wide) - (1 / 0.9 - 1)) < 1e-12);
}

/* The real machine answers: a clock that moves and counters that do not fall. */
static void test_system(void **state)
{
    (void)state;
    measure_load a, b;
    double t0 = measure_system.now(NULL), t1 = t0;
    measure_system.load(NULL, &a);
    while (t1 - t0 < 0.02) t1 = measure_system.now(NULL);
    measure_system.load(NULL, &b);
    assert_true(access("/proc/stat", R_OK) != 0 || (a.other >= 0 && a.stolen >= 0));
    assert_true(access("/proc/self/schedstat", R_OK) != 0 || a.waited >= 0);
    assert_true(b.stolen >= a.stolen);
    assert_true(b.waited >= a.waited);
    assert_true(a.other < 0 || b.other - a.other > -0.05); /* our exact time against ticks */
    long self = (long)getpid();
    assert_true(measure_system.mhz(NULL) == 0 || fabs(measure_system_mhz(&self, 1) / measure_system.mhz(NULL) - 1) < 1);
    assert_true(measure_system_mhz(&(long){-1}, 1) == 0); /* a process that is not there ran nowhere */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_of_one_call),
        cmocka_unit_test(test_order_is_shuffled),
        cmocka_unit_test(test_neighbour),
        cmocka_unit_test(test_neighbour_who_stays),
        cmocka_unit_test(test_marked_samples),
        cmocka_unit_test(test_load_that_nobody_watches),
        cmocka_unit_test(test_order_statistics),
        cmocka_unit_test(test_what_is_no_neighbour),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_difference_is_found),
        cmocka_unit_test(test_nothing_is_found_where_nothing_is),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
