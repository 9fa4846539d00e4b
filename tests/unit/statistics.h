/* SPDX-License-Identifier: MIT
 * Means with their standard errors, and normal numbers. */
#ifndef TESTS_STATISTICS_H
#define TESTS_STATISTICS_H

#include "codec_inputs.h"

/* Statistics below stay within this many standard errors of what is expected: for one figure that fails by chance once in 150,000
 * times (normal, both sides). Seeds are fixed, so a test that passes passes always. */
#define ERRORS 4.5

/* Mean and standard error of a quantity. */
typedef struct mean {
    double sum, square;
    long n;
} mean;

static inline void add(mean *m, double x)
{
    m->sum += x, m->square += x * x, m->n++;
}

static inline double mean_of(const mean *m)
{
    return m->sum / (double)m->n;
}

static inline double standard_error(const mean *m)
{
    double n = (double)m->n;
    return sqrt((m->square / n - mean_of(m) * mean_of(m)) / n);
}

/* Box and Muller: sums of uniform numbers are too short in the tails for four digits at 5 bits. */
static inline double normal(uint64_t *state)
{
    double u = (ci_uniform(state) + 1) / 2 + 0x1p-25, v = ci_uniform(state);
    return sqrt(-2 * log(u)) * cos(acos(-1) * v);
}

#endif
