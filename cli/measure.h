/* SPDX-License-Identifier: MIT
 * Timing of several arms in one run, and what may be said about the result.
 *
 * Arms are timed in rounds: each round takes one sample of every arm, in shuffled order, so that a drift of the machine meets
 * all of them. A round during which somebody else used the processors is marked and repeated while spare rounds last. Claims
 * come from a paired bootstrap over rounds, and none is made inside the noise that the unchanged baseline shows against itself.
 * Four ways to be fooled are looked for in every arm: work that is put off until the timer has stopped, one input used again and
 * again, memory taken from the system inside the timed region, and (see measure_memory) differences that the allocator made up.
 * Clock, load, frequency and page faults come through a table of functions, so that tests can feed a machine that lies.
 */
#ifndef KVFOLD_CLI_MEASURE_H
#define KVFOLD_CLI_MEASURE_H

#include <stddef.h>
#include <stdint.h>

enum { MEASURE_SAMPLES_MIN = 9, MEASURE_SAMPLES_MAX = 1001, MEASURE_ARMS_MAX = 96, MEASURE_WARM_UPS = 2 };

/* Counters that only grow. */
typedef struct measure_load {
    double other;  /* processor seconds that other processes used on this machine; < 0: unknown */
    double stolen; /* processor seconds that the hypervisor gave away; < 0: unknown */
    double waited; /* seconds that threads of this process were ready but not run; < 0: unknown */
} measure_load;

typedef struct measure_io {
    double (*now)(void *user); /* monotonic seconds */
    void (*load)(void *user, measure_load *load);
    int (*stop)(void *user); /* not 0: end after this round; NULL: never */
    void *user;
    double (*mhz)(void *user);                /* of the processors that the arms ran on, 0: unknown; NULL: nobody knows */
    double (*faults)(void *user);             /* page faults of this process so far; NULL: nobody knows */
    void (*took)(void *listener, int rounds); /* told after each round that is kept; NULL: nobody listens */
    void *listener;
} measure_io;

/* The real machine. */
extern const measure_io measure_system;

/* Its load when the work of n other processes is ours, too. */
void measure_system_load(const long *pid, int n, measure_load *load);

/* Mean frequency of the processors that the threads of n processes ran on last (n 0: of this one), MHz; 0: unknown. */
double measure_system_mhz(const long *pid, int n);

/* What an arm did that a timer alone does not show. */
typedef struct measure_found {
    int judged; /* samples that were looked at; 0: the arm has no digest */
    int late;   /* samples of which a result was missing when the timer stopped, or came or changed after that */
    double settling,
        timed;     /* seconds of all samples: that settling took after the timer stopped, and before; 0, 0: nothing to settle */
    int distinct;  /* least number of different results in a sample: as many different inputs at most were read */
    int reused;    /* 1: together those inputs are smaller than the pool that was asked for */
    double faults; /* median page faults of a call; < 0: unknown */
} measure_found;

typedef struct measure_arm {
    void (*run)(void *arm); /* `calls` calls of the thing to be timed, each on another input, and nothing else */
    void *arm;
    int calls;
    double *us; /* [rounds] out: microseconds of one call */

    /* The rest may be NULL and is never timed. */
    void (*prepare)(void *arm);              /* before a sample: wipes the results, turns to the next inputs */
    uint64_t (*digest)(void *arm, int call); /* of a result as it lies in memory, completing nothing */
    void (*settle)(void *arm);               /* completes whatever may have been put off */
    uint64_t (*blank)(void *arm);            /* digest of a wiped result, where reading it would bring it into the caches */
    int (*failed)(void *arm);                /* not 0: it can do no more, and its times mean nothing */
    double call_bytes, pool;                 /* bytes: input of a call; inputs that a sample must visit, 0: not judged */
    measure_found found;                     /* out */
} measure_arm;

/* What may be held against a round. */
enum { MEASURE_BUSY = 1, MEASURE_SLOW = 2 };

/* Counters that the system does not have. */
enum { MEASURE_NO_OTHER = 1, MEASURE_NO_STOLEN = 2, MEASURE_NO_WAITED = 4 };

typedef struct measure_rounds {
    int rounds;   /* samples of each arm; fewer than asked for when stopped, at least one */
    int marked;   /* of those: taken under other load, or at a lower frequency */
    int busy;     /* of those: under other load */
    int slow;     /* of those: at a lower frequency than the median round */
    int repeated; /* rounds that were thrown away and taken again */
    double
        worst; /* largest share of others in a round that was kept, 0 to 1: their processor time over that of the arm's threads */
    int unseen;                              /* MEASURE_NO_...: what nobody could watch */
    double mhz_min, mhz_max;                 /* of the kept rounds, 0: unknown */
    unsigned char mark[MEASURE_SAMPLES_MAX]; /* [rounds] MEASURE_BUSY | MEASURE_SLOW */
    float mhz[MEASURE_SAMPLES_MAX];          /* [rounds], 0: unknown */
} measure_rounds;

/* Warms every arm up, then fills us[0 .. rounds-1] and `found` of every arm. `threads`: how many processors an arm keeps busy.
 * 0, or -1 when memory is short. */
int measure_run(const measure_io *io, measure_arm *arms, int n_arms, int rounds, int threads, uint64_t seed,
                measure_rounds *result);

typedef struct measure_summary {
    double median, min, max;
    double noise; /* half of the 99 % interval of the median (by order statistics), relative to the median */
} measure_summary;

void measure_summarise(const double *us, int n, measure_summary *s);

/* Samples to leave out at each end of n sorted ones so that the rest spans the median in at least 99 of 100 cases, whatever the
 * distribution: below 8 samples none is enough, and it is 0. */
int measure_order(int n);

/* How many times faster than the base: median(base) / median(x), with its 99 % interval. */
typedef struct measure_ratio {
    double ratio, low, high;
    int distinguishable; /* the interval excludes 1 and the ratio lies outside of the noise floor */
} measure_ratio;

/* Samples with one index were taken in one round. floor: as from measure_floor, 0 for none. */
void measure_compare(const double *base, const double *x, int n, double floor, uint64_t seed, measure_ratio *r);

/* The same ratio in two runs: (base / x in run B) over (base / x in run A), each run resampled by itself. */
typedef struct measure_pair {
    const double *base, *x;
    int n;
} measure_pair;
void measure_compare_runs(const measure_pair *a, const measure_pair *b, double floor, uint64_t seed, measure_ratio *r);

/* Noise floor: how far the 99 % interval of a thing against itself reaches from 1. */
double measure_floor(const measure_ratio *against_itself);

/* How many times less than the base: bytes of whole processes, each sample another process. Claims only what no relabelling of
 * the samples would show in 1 of 100 cases (complete separation, which takes 5 processes an arm) and at least `least` bytes. */
typedef struct measure_bytes {
    double saved;     /* median(base) - median(x) */
    double low, high; /* the least and the most that two processes differ */
    int enough;       /* processes for any claim */
    int distinguishable;
} measure_bytes;

void measure_memory(const double *base, int n_base, const double *x, int n, double least, measure_bytes *m);

/* Share of a base that a speed-up works on: no more than 1 / (1 - share) can come of it (Amdahl 1967). */
double measure_amdahl(double share);

/* Of bytes, for measure_arm.digest. */
uint64_t measure_digest(const void *bytes, size_t n);

void measure_sort(double *x, size_t n); /* ascending */

double measure_median(const double *x, int n); /* n at most MEASURE_SAMPLES_MAX */

#endif
