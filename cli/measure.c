/* SPDX-License-Identifier: MIT
 * Rounds: every arm once, in shuffled order, with an eye on the machine and on the arms. */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"
#include "measure_random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Processor time of others, over that of the arm's threads, above which a round is marked. */
static const double OTHER_LIMIT = 0.05;

/* Least frequency of a round, of the median of those so far. */
static const double SLOW_LIMIT = 0.9;

/* ---- the machine ---------------------------------------------------------------------------------------------------------- */

/* Processor time of others between two readings, over that of the arm's threads, 0 to 1. */
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

static int unseen(const measure_load *l)
{
    return (l->other < 0 ? MEASURE_NO_OTHER : 0) | (l->stolen < 0 ? MEASURE_NO_STOLEN : 0) |
           (l->waited < 0 ? MEASURE_NO_WAITED : 0);
}

/* Frequencies of rounds, those thrown away included: at most one of those for each that is kept. */
typedef struct pace {
    double mhz[2 * MEASURE_SAMPLES_MAX];
    int n;
} pace;

static void add_pace(pace *p, double mhz)
{
    if (mhz > 0 && p->n < 2 * MEASURE_SAMPLES_MAX) p->mhz[p->n++] = mhz;
}

static int is_slow(const pace *p, double mhz)
{
    if (mhz <= 0 || p->n == 0) return 0;
    pace sorted = *p;
    measure_sort(sorted.mhz, (size_t)sorted.n);
    return mhz < SLOW_LIMIT * sorted.mhz[(sorted.n - 1) / 2];
}

/* When all rounds are there: an early one may be slow beside those that came later. */
static void count_marks(measure_rounds *r)
{
    pace kept = {.n = 0};
    for (int i = 0; i < r->rounds; i++) add_pace(&kept, (double)r->mhz[i]);
    for (int i = 0; i < r->rounds; i++) {
        double mhz = (double)r->mhz[i];
        r->mark[i] = (unsigned char)((r->mark[i] & MEASURE_BUSY) | (is_slow(&kept, mhz) ? MEASURE_SLOW : 0));
        r->busy += (r->mark[i] & MEASURE_BUSY) != 0;
        r->slow += (r->mark[i] & MEASURE_SLOW) != 0;
        r->marked += r->mark[i] != 0;
        if (mhz <= 0) continue;
        r->mhz_max = fmax(r->mhz_max, mhz);
        r->mhz_min = r->mhz_min > 0 ? fmin(r->mhz_min, mhz) : mhz;
    }
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

static void read_blanks(const measure_arm *a, uint64_t *to)
{
    if (!a->blank) read_digests(a, to);
    for (int i = 0; a->blank && i < a->calls; i++) to[i] = a->blank(a->arm);
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
    read_blanks(a, s->wiped);
    double f0 = io->faults ? io->faults(io->user) : 0;
    double t0 = io->now(io->user);
    a->run(a->arm);
    double t1 = io->now(io->user);
    *faults = io->faults ? (io->faults(io->user) - f0) / a->calls : -1;
    a->us[round] = (t1 - t0) * 1e6 / a->calls;
    judge(io, a, s, t1 - t0);
}

/* ---- rounds --------------------------------------------------------------------------------------------------------------- */

/* The share of others in it. */
static double one_round(const measure_io *io, measure_arm *arms, int n_arms, const int *order, const sheet *s, int rounds,
                        int threads, measure_rounds *result)
{
    int round = result->rounds;
    measure_load before, after;
    io->load(io->user, &before);
    double start = io->now(io->user);
    for (int i = 0; i < n_arms; i++) one_sample(io, &arms[order[i]], s, round, &s->faults[order[i] * rounds + round]);
    double seconds = io->now(io->user) - start;
    io->load(io->user, &after);
    result->unseen |= unseen(&before) | unseen(&after);
    return seconds > 0 ? share_of_others(&before, &after, seconds, threads) : 0;
}

static void warm_up(measure_arm *arms, int n_arms)
{
    for (int w = 0; w < MEASURE_WARM_UPS; w++)
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
    pace tried = {.n = 0};
    for (int i = 0; i < n_arms; i++) order[i] = i;
    for (int spare = rounds; result->rounds < rounds;) {
        if (result->rounds > 0 && io->stop && io->stop(io->user)) return;
        measure_shuffle(order, n_arms, &seed);
        double share = one_round(io, arms, n_arms, order, s, rounds, threads, result);
        double now = io->mhz ? io->mhz(io->user) : 0;
        int mark = (share > OTHER_LIMIT ? MEASURE_BUSY : 0) | (is_slow(&tried, now) ? MEASURE_SLOW : 0);
        add_pace(&tried, now);
        if (mark && spare > 0) { /* judged by the machine alone, never by the times */
            spare--;
            result->repeated++;
            continue;
        }
        result->worst = fmax(result->worst, share);
        result->mhz[result->rounds] = (float)now;
        result->mark[result->rounds++] = (unsigned char)mark;
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
        count_marks(result);
        for (int i = 0; i < n_arms; i++) arms[i].found.faults = measure_median(s.faults + i * rounds, result->rounds);
    }
    free(s.wiped);
    free(s.now);
    free(s.faults);
    return ok ? 0 : -1;
}
