/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RESAMPLES = 4000, WARM_UPS = 2 };

/* Share of the machine that others may have in a round before it is marked. */
static const double OTHER_LIMIT = 0.05;

/* ---- the real machine ----------------------------------------------------------------------------------------------------- */

static double system_now(void *user)
{
    (void)user;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double own_seconds(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) != 0) return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Busy seconds of all processors, ours included, and stolen ones. */
static int read_stat(double *busy, double *stolen)
{
    FILE *f = fopen("/proc/stat", "r");
    if (!f) return -1;
    unsigned long long user, nice, system, idle, iowait, irq, softirq, steal;
    int n =
        fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal);
    fclose(f);
    if (n != 8) return -1;
    double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    *busy = (double)(user + nice + system + irq + softirq) * tick;
    *stolen = (double)steal * tick;
    return 0;
}

/* Seconds that our threads stood in a run queue: sees a rival within microseconds, where the kernel keeps the figure. */
static double read_waited(void)
{
    DIR *dir = opendir("/proc/self/task");
    if (!dir) return -1;
    double waited = 0;
    int threads = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char path[300];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", e->d_name);
        FILE *f = fopen(path, "r");
        unsigned long long ran, delay;
        if (!f) continue;
        if (fscanf(f, "%llu %llu", &ran, &delay) == 2) {
            waited += 1e-9 * (double)delay;
            threads++;
        }
        fclose(f);
    }
    closedir(dir);
    return threads ? waited : -1;
}

static void system_load(void *user, measure_load *load)
{
    (void)user;
    double busy;
    *load = (measure_load){-1, -1, read_waited()};
    if (read_stat(&busy, &load->stolen) == 0) load->other = busy - own_seconds();
}

const measure_io measure_system = {system_now, system_load, NULL, NULL};

/* ---- rounds --------------------------------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u); /* splitmix64, Steele, Lea and Flood 2014 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int random_below(uint64_t *state, int n)
{
    return (int)((next_random(state) >> 32) * (uint64_t)n >> 32);
}

static void shuffle(int *order, int n, uint64_t *state)
{
    for (int i = n - 1; i > 0; i--) {
        int j = random_below(state, i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

/* Share of the machine that others had between two readings, 0 to 1. */
static double share_of_others(const measure_load *a, const measure_load *b, double seconds, int threads)
{
    /* Our processor time is exact while that of the machine comes in ticks: one tick of each thread is no evidence. */
    double slack = (double)threads / (double)sysconf(_SC_CLK_TCK);
    double other = a->other >= 0 && b->other >= 0 ? b->other - a->other : 0;
    double stolen = a->stolen >= 0 && b->stolen >= 0 ? b->stolen - a->stolen : 0;
    double share = fmax(0, (other + stolen - slack) / (seconds * threads));
    if (a->waited >= 0 && b->waited >= 0) share = fmax(share, (b->waited - a->waited) / (seconds * threads));
    return fmin(share, 1);
}

static double one_round(const measure_io *io, measure_arm *arms, int n_arms, const int *order, int round, int threads)
{
    measure_load before, after;
    io->load(io->user, &before);
    double start = io->now(io->user);
    for (int i = 0; i < n_arms; i++) {
        measure_arm *a = &arms[order[i]];
        double t0 = io->now(io->user);
        a->run(a->arm);
        double t1 = io->now(io->user);
        a->us[round] = (t1 - t0) * 1e6 / a->calls;
    }
    double seconds = io->now(io->user) - start;
    io->load(io->user, &after);
    return seconds > 0 ? share_of_others(&before, &after, seconds, threads) : 0;
}

void measure_run(const measure_io *io, measure_arm *arms, int n_arms, int rounds, int threads, uint64_t seed,
                 measure_rounds *result)
{
    int order[MEASURE_ARMS_MAX];
    *result = (measure_rounds){0};
    for (int i = 0; i < n_arms; i++) order[i] = i;
    for (int w = 0; w < WARM_UPS; w++)
        for (int i = 0; i < n_arms; i++) arms[i].run(arms[i].arm);
    for (int spare = rounds; result->rounds < rounds;) {
        if (result->rounds > 0 && io->stop && io->stop(io->user)) return;
        shuffle(order, n_arms, &seed);
        double share = one_round(io, arms, n_arms, order, result->rounds, threads);
        result->worst = fmax(result->worst, share);
        if (share > OTHER_LIMIT && spare > 0) { /* judged by the load alone, never by the times */
            spare--;
            result->repeated++;
            continue;
        }
        result->marked += share > OTHER_LIMIT;
        result->rounds++;
    }
}

/* ---- what may be said ----------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_in_place(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static double median_of(const double *x, int n)
{
    double copy[MEASURE_SAMPLES_MAX];
    memcpy(copy, x, (size_t)n * sizeof *x);
    return median_in_place(copy, n);
}

/* 99 % percentile interval of median(base) / median(x), or of median(x) when base is NULL, resampling rounds. */
static void bootstrap(const double *base, const double *x, int n, uint64_t seed, double *low, double *high)
{
    static const double tail = 0.005;
    double estimate[RESAMPLES], a[MEASURE_SAMPLES_MAX], b[MEASURE_SAMPLES_MAX];
    for (int r = 0; r < RESAMPLES; r++) {
        for (int i = 0; i < n; i++) {
            int pick = random_below(&seed, n);
            a[i] = base ? base[pick] : 0;
            b[i] = x[pick];
        }
        double m = median_in_place(b, n);
        estimate[r] = base ? median_in_place(a, n) / m : m;
    }
    qsort(estimate, RESAMPLES, sizeof *estimate, by_value);
    *low = estimate[(int)(tail * RESAMPLES)];
    *high = estimate[RESAMPLES - 1 - (int)(tail * RESAMPLES)];
}

void measure_summarise(const double *us, int n, uint64_t seed, measure_summary *s)
{
    double low, high;
    bootstrap(NULL, us, n, seed, &low, &high);
    *s = (measure_summary){median_of(us, n), us[0], us[0], 0};
    for (int i = 1; i < n; i++) {
        s->min = fmin(s->min, us[i]);
        s->max = fmax(s->max, us[i]);
    }
    s->noise = 0.5 * (high - low) / s->median;
}

void measure_compare(const double *base, const double *x, int n, double floor, uint64_t seed, measure_ratio *r)
{
    bootstrap(base, x, n, seed, &r->low, &r->high);
    r->ratio = median_of(base, n) / median_of(x, n);
    r->distinguishable = (r->low > 1 && r->ratio > 1 + floor) || (r->high < 1 && r->ratio < 1 / (1 + floor));
}

double measure_floor(const measure_ratio *against_itself)
{
    return fmax(against_itself->high - 1, 1 / against_itself->low - 1);
}
