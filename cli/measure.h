/* SPDX-License-Identifier: MIT
 * Timing of several arms in one run, and what may be said about the result.
 *
 * Arms are timed in rounds: each round takes one sample of every arm, in shuffled order, so that a drift of the machine meets
 * all of them. A round during which somebody else used the processors is marked and repeated while spare rounds last. Claims
 * come from a paired bootstrap over rounds, and none is made inside the noise that the unchanged baseline shows against itself.
 * Clock and load come through a table of functions, so that tests can feed a machine that lies.
 */
#ifndef KVFOLD_CLI_MEASURE_H
#define KVFOLD_CLI_MEASURE_H

#include <stdint.h>

enum { MEASURE_SAMPLES_MIN = 9, MEASURE_SAMPLES_MAX = 1001, MEASURE_ARMS_MAX = 96 };

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
} measure_io;

/* The real machine. */
extern const measure_io measure_system;

typedef struct measure_arm {
    void (*run)(void *arm); /* `calls` calls of the thing to be timed, each on another input, and nothing else */
    void *arm;
    int calls;
    double *us; /* [rounds] out: microseconds of one call */
} measure_arm;

typedef struct measure_rounds {
    int rounds;   /* samples of each arm; fewer than asked for when stopped, at least one */
    int marked;   /* of those, taken under other load */
    int repeated; /* marked rounds that were thrown away and taken again */
    double worst; /* largest share of the machine that others had during a round, 0 to 1 */
} measure_rounds;

/* Warms every arm up, then fills us[0 .. rounds-1] of every arm. `threads`: how many processors an arm keeps busy. */
void measure_run(const measure_io *io, measure_arm *arms, int n_arms, int rounds, int threads, uint64_t seed,
                 measure_rounds *result);

typedef struct measure_summary {
    double median, min, max;
    double noise; /* half of the 99 % bootstrap interval of the median, relative to the median */
} measure_summary;

void measure_summarise(const double *us, int n, uint64_t seed, measure_summary *s);

/* How many times faster than the base: median(base) / median(x), with its 99 % interval. */
typedef struct measure_ratio {
    double ratio, low, high;
    int distinguishable; /* the interval excludes 1 and the ratio lies outside of the noise floor */
} measure_ratio;

/* Samples with one index were taken in one round. floor: as from measure_floor, 0 for none. */
void measure_compare(const double *base, const double *x, int n, double floor, uint64_t seed, measure_ratio *r);

/* Noise floor: how far the 99 % interval of a thing against itself reaches from 1. */
double measure_floor(const measure_ratio *against_itself);

#endif
