/* SPDX-License-Identifier: MIT
 * The four lies that a benchmark tells most easily, each planted on purpose: a background load, a reused input, work outside of
 * the timed region, and what an allocator does. The instrument must catch each, and must stay silent about honest arms. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/trial.h"
#include "recorded.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- a machine of our own ------------------------------------------------------------------------------------------------- */

enum { INPUTS = 64 };

typedef struct machine {
    double now, faults, mhz;
    measure_load load;
    double load_from, load_until; /* seconds during which a neighbour takes half of the machine */
    int last_input;               /* of any arm: what the cache holds */
} machine;

static double now(void *user)
{
    return ((machine *)user)->now;
}

static void load(void *user, measure_load *l)
{
    *l = ((machine *)user)->load;
}

static double mhz(void *user)
{
    return ((machine *)user)->mhz;
}

static double faults(void *user)
{
    return ((machine *)user)->faults;
}

/* Time passes; while the neighbour runs, everything takes ten times as long and the counters say so. */
static void work(machine *m, double seconds)
{
    bool busy = m->now >= m->load_from && m->now < m->load_until;
    m->now += busy ? 10 * seconds : seconds;
    if (busy) m->load.other += 10 * seconds;
}

typedef struct arm {
    machine *m;
    double seconds; /* of a call */
    double put_off; /* seconds of a call that come only when somebody asks for the results */
    int reuse;      /* reads the same input in every call */
    int never;      /* does not compute anything: the results of the last sample stay */
    int fresh;      /* pages taken from the system in each call */
    int calls;
    double owed;
    uint64_t result[INPUTS];
    uint64_t promised[INPUTS];
} arm;

static void prepare(void *self)
{
    memset(((arm *)self)->result, 0xff, sizeof((arm *)self)->result);
}

static void run(void *self)
{
    arm *a = self;
    for (int i = 0; i < a->calls; i++) {
        int input = a->reuse ? 0 : i;
        work(a->m, input == a->m->last_input ? a->seconds / 3 : a->seconds); /* what the cache holds comes fast */
        a->m->last_input = input;
        a->m->faults += a->fresh;
        a->owed += a->put_off;
        a->promised[i] = 1000 + (uint64_t)input;
        if (!a->put_off && !a->never) a->result[i] = a->promised[i];
    }
}

static void settle(void *self)
{
    arm *a = self;
    work(a->m, a->owed);
    if (a->owed > 0) memcpy(a->result, a->promised, sizeof a->result);
    a->owed = 0;
}

static uint64_t digest(void *self, int call)
{
    return ((arm *)self)->result[call];
}

static machine quiet(void)
{
    return (machine){.mhz = 3000, .last_input = -1};
}

static measure_io io_of(machine *m)
{
    return (measure_io){.now = now, .load = load, .user = m, .mhz = mhz, .faults = faults};
}

/* A trial of a baseline and the arm under suspicion. */
static void try(machine *m, arm *base, arm *x, trial *t)
{
    arm *both[2] = {base, x};
    measure_io io = io_of(m);
    *t = (trial){.n_rows = 2, .threads = 2, .samples = 15};
    for (int i = 0; i < 2; i++) {
        both[i]->m = m;
        both[i]->calls = both[i]->calls ? both[i]->calls : 8;
        t->row[i].candidate = i == 0;
        t->row[i].arm = (measure_arm){.run = run,
                                      .arm = both[i],
                                      .calls = both[i]->calls,
                                      .prepare = prepare,
                                      .digest = digest,
                                      .settle = settle,
                                      .call_bytes = 1024,
                                      .pool = 8 * 1024};
    }
    strcpy(t->row[0].name, "base");
    strcpy(t->row[1].name, "x");
    assert_int_equal(trial_run(t, &io), 0);
}

static void doubts_are(const trial *t, int i, const char *expected)
{
    char text[TRIAL_DOUBTS];
    trial_doubts(t, i, text);
    if (!expected)
        assert_string_equal(text, "");
    else if (!strstr(text, expected))
        fail_msg("'%s' is not in '%s'", expected, text);
}

/* ---- honest arms ---------------------------------------------------------------------------------------------------------- */

static void test_honest(void **state)
{
    (void)state;
    machine m = quiet();
    arm base = {.seconds = 1.4e-2}, x = {.seconds = 1e-2};
    trial t;
    try(&m, &base, &x, &t);
    doubts_are(&t, 0, NULL);
    doubts_are(&t, 1, NULL);
    assert_true(fabs(t.row[1].ratio.ratio - 1.4) < 1e-6 && t.row[1].ratio.distinguishable);
    assert_int_equal(t.row[1].arm.found.judged, 15);
    assert_int_equal(t.row[1].arm.found.distinct, 8);
    trial_free(&t);
}

/* ---- work outside of the timed region ------------------------------------------------------------------------------------- */

/* A queue that is filled in no time and worked off later: looks thirty times as fast. */
static void test_work_put_off(void **state)
{
    (void)state;
    machine m = quiet();
    arm base = {.seconds = 1e-2}, lazy = {.seconds = 3e-4, .put_off = 1e-2};
    trial t;
    try(&m, &base, &lazy, &t);
    doubts_are(&t, 0, NULL);
    doubts_are(&t, 1, "results were not there");
    doubts_are(&t, 1, "put off");
    assert_int_equal(t.row[1].arm.found.late, 15);
    assert_true(t.row[1].arm.found.settling > 30 * t.row[1].arm.found.timed);
    /* And nobody else pays for it: what was put off ends before the next arm's timer starts. */
    assert_true(fabs(t.row[0].time.max - 1e4) < 1e-6);
    trial_free(&t);
}

/* The same when only a part is put off, and the results are there. */
static void test_cleaning_up_put_off(void **state)
{
    (void)state;
    machine m = quiet();
    arm base = {.seconds = 1e-2}, x = {.seconds = 9e-3, .put_off = 1e-3};
    trial t;
    try(&m, &base, &x, &t);
    doubts_are(&t, 1, "put off");
    trial_free(&t);
}

static void test_nothing_done(void **state)
{
    (void)state;
    machine m = quiet();
    arm base = {.seconds = 1e-2}, x = {.seconds = 1e-5, .never = 1};
    trial t;
    try(&m, &base, &x, &t);
    doubts_are(&t, 1, "results were not there");
    trial_free(&t);
}

/* ---- a reused input ------------------------------------------------------------------------------------------------------- */

static void test_reused_input(void **state)
{
    (void)state;
    machine m = quiet();
    arm base = {.seconds = 1e-2}, x = {.seconds = 1e-2, .reuse = 1};
    trial t;
    try(&m, &base, &x, &t);
    assert_true(t.row[1].ratio.ratio > 2); /* the same arm: the cache makes up the difference */
    doubts_are(&t, 0, NULL);
    doubts_are(&t, 1, "only 1 different inputs");
    trial_free(&t);
}

/* Different inputs, but few: together they fit into the cache. */
static void test_small_pool(void **state)
{
    (void)state;
    machine m = quiet();
    arm base = {.seconds = 1e-2}, x = {.seconds = 1e-2, .calls = 4};
    trial t;
    try(&m, &base, &x, &t);
    doubts_are(&t, 1, "only 4 different inputs");
    trial_free(&t);
}

static void read_all(void *self)
{
    machine *m = self;
    work(m, 1);
    m->last_input = -1;
}

/* However it is hidden: nothing is read faster than memory gives. */
static void test_faster_than_memory(void **state)
{
    (void)state;
    machine m = quiet();
    arm base = {.seconds = 1e-2}, x = {.seconds = 1e-3};
    measure_io io = io_of(&m);
    trial t;
    try(&m, &base, &x, &t);
    trial_free(&t);
    t.reader = (measure_arm){.run = read_all, .arm = &m, .calls = 1};
    t.read_bytes = 1e9;
    t.row[0].bytes = t.row[1].bytes = 2e6;
    assert_int_equal(trial_run(&t, &io), 0);
    doubts_are(&t, 0, NULL); /* 0.2 GB/s of 1 */
    doubts_are(&t, 1, "2.0 times what memory gives");
    assert_true(fabs(t.row[1].ceiling - 5) < 1e-6); /* 2 ms are the least, the baseline takes 10 */
    trial_free(&t);
}

/* ---- a background load ---------------------------------------------------------------------------------------------------- */

/* He comes during the rounds: they are taken again, and the ratio is what it is without him. */
static void test_background_load(void **state)
{
    (void)state;
    machine m = quiet();
    arm base = {.seconds = 1.4e-2}, x = {.seconds = 1e-2};
    trial t;
    m.load_from = 6, m.load_until = 14;
    try(&m, &base, &x, &t);
    assert_true(t.rounds.repeated > 0 && t.rounds.worst < 0.05);
    assert_int_equal(t.rounds.marked, 0);
    assert_true(fabs(t.row[1].ratio.ratio - 1.4) < 1e-6);
    trial_free(&t);
}

/* He stays: every sample is marked. */
static void test_load_that_stays(void **state)
{
    (void)state;
    machine m = quiet();
    arm base = {.seconds = 1.4e-2}, x = {.seconds = 1e-2};
    trial t;
    m.load_until = 1e9;
    try(&m, &base, &x, &t);
    assert_int_equal(t.rounds.marked, t.rounds.rounds);
    /* And no row is judged, though the difference is there in every sample. */
    json_t *row = trial_row_json(&t, 1), *run_of = trial_json(&t);
    assert_string_equal(json_string_value(json_object_get(row, "verdict")), "busy machine");
    assert_true(json_is_false(json_object_get(row, "distinguishable")));
    assert_int_equal(json_array_size(json_object_get(json_object_get(run_of, "other_load"), "busy_samples")), 15);
    assert_int_equal(json_array_size(json_object_get(json_object_get(run_of, "other_load"), "slow_samples")), 0);
    json_decref(row);
    json_decref(run_of);
    trial_free(&t);
}

/* He comes and goes from sample to sample and his counters are hidden: the baseline against itself shows what that is worth. */
static uint64_t seed = 7;

static void hit_or_miss(void *self)
{
    arm *a = self;
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    double slow = seed >> 63 ? 28 : 1;
    prepare(a);
    run(a);
    a->m->now += (slow - 1) * a->seconds * a->calls;
}

static void test_hidden_load(void **state)
{
    (void)state;
    machine m = quiet();
    measure_io io = io_of(&m);
    arm base = {.m = &m, .seconds = 1.4e-2, .calls = 1}, x = {.m = &m, .seconds = 1e-2, .calls = 1};
    int claims = 0, misses = 0;
    for (int trials = 0; trials < 50; trials++) {
        trial t = {.n_rows = 2, .threads = 2, .samples = 15};
        t.row[0] = (trial_row){.name = "base", .candidate = true, .arm = {.run = hit_or_miss, .arm = &base, .calls = 1}};
        t.row[1] = (trial_row){.name = "x", .arm = {.run = hit_or_miss, .arm = &x, .calls = 1}};
        assert_int_equal(trial_run(&t, &io), 0);
        const measure_ratio *r = &t.row[1].ratio; /* a median may be off by 28, the interval says so */
        claims += r->distinguishable;
        misses += r->low > 1.4 + 1e-9 || r->high < 1.4 - 1e-9;
        assert_true(t.floor > 0.5);
        trial_free(&t);
    }
    assert_true(misses <= 1);
    assert_true(claims <= 10);
}

/* The processor slows down half way. */
static int slow_after;

static double falling_mhz(void *user)
{
    return --slow_after > 0 ? mhz(user) : 2000;
}

/* Twelve rounds of one arm on a quiet machine whose clock reads as told. */
static void run_at(double (*read_mhz)(void *), int after, measure_rounds *r)
{
    machine m = quiet();
    measure_io io = io_of(&m);
    arm x = {.m = &m, .seconds = 1e-2, .calls = 1};
    double us[16];
    measure_arm timed = {.run = run, .arm = &x, .calls = 1, .us = us};
    io.mhz = read_mhz;
    slow_after = after;
    assert_int_equal(measure_run(&io, &timed, 1, 12, 1, 1, r), 0);
}

static void test_frequency(void **state)
{
    (void)state;
    measure_rounds r;
    run_at(falling_mhz, 10, &r);
    assert_int_equal(r.rounds, 12);
    assert_in_range(r.repeated, 9, 12); /* until most rounds that were tried are slow */
    assert_int_equal(r.marked, 3);      /* nine were taken before */
    assert_int_equal(r.slow, 3);
    assert_int_equal(r.busy, 0);
    assert_true(r.mark[8] == 0 && r.mark[9] == MEASURE_SLOW);
    assert_true(r.mhz_min == 2000 && r.mhz_max == 3000);
}

/* A burst at the start is no measure of the rest: the rounds after it are not slow. */
static double burst_mhz(void *user)
{
    (void)user;
    return --slow_after > 0 ? 4000 : 3000;
}

static void test_burst(void **state)
{
    (void)state;
    measure_rounds r;
    run_at(burst_mhz, 2, &r);
    assert_true(r.slow <= 1 && r.repeated <= 1);
}

/* ---- arms that fail ------------------------------------------------------------------------------------------------------- */

typedef struct mortal {
    arm a;
    int left; /* runs that it lives */
} mortal;

static void run_mortal(void *self)
{
    mortal *x = self;
    work(x->a.m, x->left > 0 ? x->a.seconds : 1e-6);
    x->left--;
}

static int is_dead(void *self)
{
    return ((mortal *)self)->left < 0;
}

static int mortal_twin(void *user, int i, measure_arm *twin)
{
    (void)i;
    twin->arm = user;
    return 0;
}

static void try_mortals(machine *m, mortal *x, int n, mortal *twin, trial *t)
{
    measure_io io = io_of(m);
    *t = (trial){.n_rows = n, .threads = 2, .samples = 9, .moves = true, .twin = mortal_twin, .user = twin};
    twin->a.m = m;
    for (int i = 0; i < n; i++) {
        x[i].a.m = m;
        t->row[i].candidate = i < 2;
        t->row[i].arm = (measure_arm){.run = run_mortal, .arm = &x[i], .calls = 1, .failed = is_dead};
    }
    assert_int_equal(trial_run(t, &io), 0);
}

/* One that dies answers at once, which looks fast. It is no baseline, and the others have all their samples. */
static void test_an_arm_that_dies(void **state)
{
    (void)state;
    machine m = quiet();
    mortal x[3] = {{{.seconds = 1e-2}, 1000}, {{.seconds = 2e-2}, 8}, {{.seconds = 5e-3}, 1000}},
           twin = {{.seconds = 1e-2}, 1000};
    trial t;
    try_mortals(&m, x, 3, &twin, &t);
    assert_true(t.row[1].failed && !t.row[0].failed && !t.row[2].failed);
    assert_int_equal(t.baseline, 0);
    assert_int_equal(t.rounds.rounds, 9);
    assert_true(fabs(t.row[2].ratio.ratio - 2) < 1e-6 && t.row[2].ratio.distinguishable);
    trial_free(&t);
}

/* Without a second baseline nobody knows the noise, and nothing is claimed. */
static void test_a_twin_that_dies(void **state)
{
    (void)state;
    machine m = quiet();
    mortal x[2] = {{{.seconds = 1e-2}, 1000}, {{.seconds = 5e-2}, 1000}}, twin = {{.seconds = 1e-2}, 5};
    trial t;
    try_mortals(&m, x, 2, &twin, &t);
    assert_true(isinf(t.floor) && !t.row[1].ratio.distinguishable && !t.row[1].failed);
    trial_free(&t);
}

/* ---- the allocator -------------------------------------------------------------------------------------------------------- */

static void test_memory_taken_while_timed(void **state)
{
    (void)state;
    machine m = quiet();
    arm base = {.seconds = 1e-2}, x = {.seconds = 1e-2, .fresh = 25};
    trial t;
    try(&m, &base, &x, &t);
    doubts_are(&t, 0, NULL);
    doubts_are(&t, 1, "25 page faults a call");
    trial_free(&t);
}

/* The same on this very machine: memory of its own in each call, and memory that is there. */
static void map_and_touch(void *unused)
{
    (void)unused;
    enum { PAGE = 4096, PAGES = 32 };
    char *p = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    for (int i = 0; i < PAGES; i++) p[i * PAGE] = 1;
    munmap(p, PAGES * PAGE);
}

static volatile char there[32 * 4096];

static void touch(void *unused)
{
    (void)unused;
    for (int i = 0; i < 32; i++) there[i * 4096] = 1;
}

static void test_real_page_faults(void **state)
{
    (void)state;
    double us[2][9];
    measure_arm arms[2] = {{.run = map_and_touch, .calls = 1, .us = us[0]}, {.run = touch, .calls = 1, .us = us[1]}};
    measure_rounds r;
    assert_int_equal(measure_run(&measure_system, arms, 2, 9, 1, 1, &r), 0);
    assert_true(arms[0].found.faults >= 1);
    assert_true(arms[1].found.faults == 0);
}

static double uniform(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53;
}

/* Peaks of processes that differ by 60 MB for no reason. Nothing is saved, and nothing is claimed. */
static void test_allocator_noise(void **state)
{
    (void)state;
    int claims = 0;
    for (int trial_no = 0; trial_no < 1000; trial_no++) {
        double a[5], b[5];
        measure_bytes m;
        for (int i = 0; i < 5; i++) a[i] = 1e9 + 6e7 * uniform(), b[i] = 1e9 + 6e7 * uniform();
        measure_memory(a, 5, b, 5, 0, &m);
        assert_true(m.enough);
        claims += m.distinguishable;
    }
    assert_true(claims <= 10 + 10);            /* 1 %, and twice as many for chance */
    double one[1] = {1e9}, less[1] = {8.73e8}; /* "saves 127 MB", from one process each */
    measure_bytes m;
    measure_memory(one, 1, less, 1, 0, &m);
    assert_false(m.enough || m.distinguishable);
    assert_true(m.saved == 1.27e8);
}

static void test_memory_saved(void **state)
{
    (void)state;
    for (int trial_no = 0; trial_no < 100; trial_no++) {
        double a[5], b[5];
        measure_bytes m;
        for (int i = 0; i < 5; i++) a[i] = 1e9 + 6e7 * uniform(), b[i] = 9e8 + 6e7 * uniform();
        measure_memory(a, 5, b, 5, 0, &m);
        assert_true(m.distinguishable && m.low > 0 && m.low <= m.saved && m.saved <= m.high);
        measure_memory(b, 5, a, 5, 0, &m);
        assert_true(m.distinguishable && m.high < 0);
        measure_memory(a, 5, b, 5, 2e8, &m); /* less than what is worth a word */
        assert_false(m.distinguishable);
    }
}

/* ---- the same arm twice, as recorded -------------------------------------------------------------------------------------- */

static void test_recorded(void **state)
{
    (void)state;
    enum { REPEATS = 100 };
    for (int n = 9; n <= 15; n += 6) { /* as many samples as e2e and attend take */
        int claims = 0;
        for (int repeat = 0; repeat < REPEATS; repeat++) {
            int from = (int)(uniform() * (240 - 3 * n));
            double a[15], b[15], c[15];
            measure_ratio self, r;
            for (int i = 0; i < n; i++) { /* neighbours in time are one round */
                a[i] = recorded[from + 3 * i];
                b[i] = recorded[from + 3 * i + 1];
                c[i] = recorded[from + 3 * i + 2];
            }
            measure_compare(a, b, n, 0, (uint64_t)repeat, &self);
            measure_compare(a, c, n, measure_floor(&self), (uint64_t)repeat, &r);
            claims += r.distinguishable;
        }
        print_message("the same arm as recorded, %d samples: %d claims of %d\n", n, claims, REPEATS);
        assert_true(claims <= REPEATS / 20);
    }
}

static int falls_after;

static void falls_behind(void *self)
{
    arm *a = self;
    falls_after--;
    work(a->m, falls_after < 0 && a->seconds < 1.5e-2 ? 5 * a->seconds : a->seconds);
}

/* Through a whole trial, with noise that has a tail as timings have. */
static void noisy_run(void *self)
{
    arm *a = self;
    a->m->now += a->seconds * (1 - 0.05 * log(1 - 0.999 * uniform()));
}

static void test_same_arm_in_trials(void **state)
{
    (void)state;
    machine m = quiet();
    measure_io io = io_of(&m);
    arm same = {.m = &m, .seconds = 1e-2};
    int claims[2] = {0}; /* with 9 samples, with 15 */
    for (int repeat = 0; repeat < 200; repeat++) {
        trial t = {.n_rows = 2, .threads = 2, .samples = repeat % 2 ? 15 : 9, .seed = (uint64_t)repeat};
        for (int i = 0; i < 2; i++)
            t.row[i] = (trial_row){.candidate = i == 0, .arm = {.run = noisy_run, .arm = &same, .calls = 1}};
        assert_int_equal(trial_run(&t, &io), 0);
        claims[repeat % 2] += t.row[1].ratio.distinguishable;
        trial_free(&t);
    }
    print_message("the same arm in 100 trials: %d claims from 9 samples, %d from 15\n", claims[0], claims[1]);
    assert_true(claims[0] <= 5 && claims[1] <= 5);
}

/* The candidate that is fastest at first sight falls behind: the noise that counts is that of the one that wins. */
static void test_floor_of_the_baseline(void **state)
{
    (void)state;
    machine m = quiet();
    measure_io io = io_of(&m);
    arm x[2] = {{.m = &m, .seconds = 1e-2, .calls = 1}, {.m = &m, .seconds = 2e-2, .calls = 1}};
    trial t = {.n_rows = 2, .threads = 2, .samples = 9};
    for (int i = 0; i < 2; i++) t.row[i] = (trial_row){.candidate = true, .arm = {.run = falls_behind, .arm = &x[i], .calls = 1}};
    falls_after = 30; /* after first sight and the baseline against itself */
    assert_int_equal(trial_run(&t, &io), 0);
    assert_int_equal(t.baseline, 1);
    assert_int_equal(t.repeated, 1);
    trial_free(&t);
}

/* A second process of the baseline is 5 % slower for no reason, steadily: then 4 % are no gain, and 10 % are one. */
static arm twin_arm;

static int slower_twin(void *user, int i, measure_arm *twin)
{
    (void)user;
    assert_int_equal(i, 0);
    twin->arm = &twin_arm;
    return 0;
}

static void test_noise_floor(void **state)
{
    (void)state;
    for (int gain = 4; gain <= 10; gain += 6) {
        machine m = quiet();
        measure_io io = io_of(&m);
        arm base = {.m = &m, .seconds = 1e-2, .calls = 8}, x = {.m = &m, .seconds = 1e-2 / (1 + 0.01 * gain), .calls = 8};
        trial t = {.n_rows = 2, .threads = 2, .samples = 15, .moves = gain == 10, .twin = slower_twin};
        twin_arm = (arm){.m = &m, .seconds = 1.05e-2, .calls = 8};
        t.row[0] = (trial_row){.candidate = true, .arm = {.run = run, .arm = &base, .calls = 8}};
        t.row[1] = (trial_row){.arm = {.run = run, .arm = &x, .calls = 8}};
        assert_int_equal(trial_run(&t, &io), 0);
        assert_true(fabs(t.floor - 0.05) < 1e-6);
        assert_true(t.row[1].ratio.low > 1);
        assert_int_equal(t.row[1].ratio.distinguishable, gain == 10);
        trial_free(&t);
    }
}

/* Three tenths more on each sample is found in the same recording. */
static void test_recorded_difference(void **state)
{
    (void)state;
    double a[80], b[80];
    measure_ratio r;
    for (int i = 0; i < 80; i++) a[i] = recorded[3 * i], b[i] = 1.3 * recorded[3 * i + 1];
    measure_compare(a, b, 80, 0.05, 1, &r);
    assert_true(r.distinguishable && r.ratio < 0.85 && r.ratio > 0.7);
}

static void test_amdahl(void **state)
{
    (void)state;
    assert_true(fabs(measure_amdahl(0.5) - 2) < 1e-12 && measure_amdahl(0) == 1 && measure_amdahl(-0.1) == 1);
    assert_true(isinf(measure_amdahl(1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_honest),
        cmocka_unit_test(test_work_put_off),
        cmocka_unit_test(test_cleaning_up_put_off),
        cmocka_unit_test(test_nothing_done),
        cmocka_unit_test(test_reused_input),
        cmocka_unit_test(test_small_pool),
        cmocka_unit_test(test_faster_than_memory),
        cmocka_unit_test(test_background_load),
        cmocka_unit_test(test_load_that_stays),
        cmocka_unit_test(test_hidden_load),
        cmocka_unit_test(test_frequency),
        cmocka_unit_test(test_burst),
        cmocka_unit_test(test_an_arm_that_dies),
        cmocka_unit_test(test_a_twin_that_dies),
        cmocka_unit_test(test_floor_of_the_baseline),
        cmocka_unit_test(test_memory_taken_while_timed),
        cmocka_unit_test(test_real_page_faults),
        cmocka_unit_test(test_allocator_noise),
        cmocka_unit_test(test_memory_saved),
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_same_arm_in_trials),
        cmocka_unit_test(test_noise_floor),
        cmocka_unit_test(test_recorded_difference),
        cmocka_unit_test(test_amdahl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
