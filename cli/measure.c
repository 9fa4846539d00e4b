/* SPDX-License-Identifier: MIT
 * Rounds: every arm once, in shuffled order, with an eye on the machine and on the arms. */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"
#include "measure_random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WARM_UPS = 2 };

/* Share of the machine that others may have in a round before it is marked. */
static const double OTHER_LIMIT = 0.05;

/* Least frequency of a round, of the highest seen so far. */
static const double SLOW_LIMIT = 0.9;

/* ---- the machine ---------------------------------------------------------------------------------------------------------- */

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

/* Frequency of a round, and whether it fell since an earlier one. */
static int slowed_down(const measure_io *io, measure_rounds *result)
{
    double mhz = io->mhz ? io->mhz(io->user) : 0;
    if (mhz <= 0) return 0;
    int slow = mhz < SLOW_LIMIT * result->mhz_max;
    result->mhz_max = fmax(result->mhz_max, mhz);
    result->mhz_min = result->mhz_min > 0 ? fmin(result->mhz_min, mhz) : mhz;
    result->slow += slow;
    return slow;
}

/* ---- the arms ------------------------------------------------------------------------------------------------------------- */

/* Digests of one sample: of the wiped results, when the timer stopped, and of all arms' largest number of calls. */
typedef struct sheet {
    uint64_t *wiped, *now;
    double *faults; /* [arms][rounds] */
} sheet;

uint64_t measure_digest(const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t h = 0xcbf29ce484222325u, word; /* FNV-1a over words: Fowler, Noll and Vo 1991 */
    for (; n >= sizeof word; p += sizeof word, n -= sizeof word) {
        memcpy(&word, p, sizeof word);
        h = (h ^ word) * 0x100000001b3u;
        h ^= h >> 29;
    }
    for (; n; p++, n--) h = (h ^ *p) * 0x100000001b3u;
    return h;
}

static int by_digest(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int count_distinct(uint64_t *x, int n)
{
    int distinct = n > 0;
    qsort(x, (size_t)n, sizeof *x, by_digest);
    for (int i = 1; i < n; i++) distinct += x[i] != x[i - 1];
    return distinct;
}

static void read_digests(const measure_arm *a, uint64_t *to)
{
    for (int i = 0; a->digest && i < a->calls; i++) to[i] = a->digest(a->arm, i);
}

/* After the timer stopped: is everything there, does it stay as it is, and are the results those of different inputs? */
static void judge(const measure_io *io, measure_arm *a, const sheet *s, double seconds)
{
    measure_found *f = &a->found;
    int late = 0;
    read_digests(a, s->now);
    if (a->settle) {
        double t0 = io->now(io->user);
        a->settle(a->arm);
        f->settling += io->now(io->user) - t0;
        f->timed += seconds;
    }
    if (!a->digest) return;
    for (int i = 0; i < a->calls; i++) {
        late |= s->now[i] != a->digest(a->arm, i);
        late |= a->prepare && s->now[i] == s->wiped[i];
    }
    int distinct = count_distinct(s->now, a->calls);
    f->distinct = f->judged ? (distinct < f->distinct ? distinct : f->distinct) : distinct;
    f->late += late;
    f->judged++;
    f->reused |= distinct * a->call_bytes < a->pool;
}

static void one_sample(const measure_io *io, measure_arm *a, const sheet *s, int round, double *faults)
{
    if (a->prepare) a->prepare(a->arm);
    read_digests(a, s->wiped);
    double f0 = io->faults ? io->faults(io->user) : 0;
    double t0 = io->now(io->user);
    a->run(a->arm);
    double t1 = io->now(io->user);
    *faults = io->faults ? (io->faults(io->user) - f0) / a->calls : -1;
    a->us[round] = (t1 - t0) * 1e6 / a->calls;
    judge(io, a, s, t1 - t0);
}

/* ---- rounds --------------------------------------------------------------------------------------------------------------- */

static double one_round(const measure_io *io, measure_arm *arms, int n_arms, const int *order, const sheet *s, int round,
                        int rounds, int threads)
{
    measure_load before, after;
    io->load(io->user, &before);
    double start = io->now(io->user);
    for (int i = 0; i < n_arms; i++) one_sample(io, &arms[order[i]], s, round, &s->faults[order[i] * rounds + round]);
    double seconds = io->now(io->user) - start;
    io->load(io->user, &after);
    return seconds > 0 ? share_of_others(&before, &after, seconds, threads) : 0;
}

static void warm_up(measure_arm *arms, int n_arms)
{
    for (int w = 0; w < WARM_UPS; w++)
        for (int i = 0; i < n_arms; i++) {
            if (arms[i].prepare) arms[i].prepare(arms[i].arm);
            arms[i].run(arms[i].arm);
            if (arms[i].settle) arms[i].settle(arms[i].arm);
        }
}

static void take_rounds(const measure_io *io, measure_arm *arms, int n_arms, const sheet *s, int rounds, int threads,
                        uint64_t seed, measure_rounds *result)
{
    int order[MEASURE_ARMS_MAX];
    for (int i = 0; i < n_arms; i++) order[i] = i;
    for (int spare = rounds; result->rounds < rounds;) {
        if (result->rounds > 0 && io->stop && io->stop(io->user)) return;
        measure_shuffle(order, n_arms, &seed);
        double share = one_round(io, arms, n_arms, order, s, result->rounds, rounds, threads);
        int slow = slowed_down(io, result);
        result->worst = fmax(result->worst, share);
        if ((share > OTHER_LIMIT || slow) && spare > 0) { /* judged by the machine alone, never by the times */
            spare--;
            result->repeated++;
            continue;
        }
        result->marked += share > OTHER_LIMIT || slow;
        result->rounds++;
        if (io->took) io->took(io->listener, result->rounds);
    }
}

int measure_run(const measure_io *io, measure_arm *arms, int n_arms, int rounds, int threads, uint64_t seed,
                measure_rounds *result)
{
    int most = 1;
    *result = (measure_rounds){0};
    for (int i = 0; i < n_arms; i++) {
        if (arms[i].digest && arms[i].calls > most) most = arms[i].calls;
        arms[i].found = (measure_found){.faults = -1};
    }
    sheet s = {malloc((size_t)most * sizeof *s.wiped), malloc((size_t)most * sizeof *s.now),
               malloc((size_t)n_arms * (size_t)rounds * sizeof *s.faults)};
    int ok = s.wiped && s.now && s.faults;
    if (ok) {
        warm_up(arms, n_arms);
        take_rounds(io, arms, n_arms, &s, rounds, threads, seed, result);
        for (int i = 0; i < n_arms; i++) arms[i].found.faults = measure_median(s.faults + i * rounds, result->rounds);
    }
    free(s.wiped);
    free(s.now);
    free(s.faults);
    return ok ? 0 : -1;
}
