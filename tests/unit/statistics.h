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

/* Relative square error of rows whose direction is uniform on the sphere. */
static inline mean sphere_error(const char *spec, int dim, int blocks)
{
    kvf_spec_info info;
    mean m = {0};
    uint64_t seed = 77;
    assert_int_equal(kvf_spec_check(spec, KVF_V, dim, &info, NULL, 0), KVF_OK);
    float *x = ci_alloc((size_t)(CI_TOKENS * dim) * sizeof *x), *y = ci_alloc((size_t)(CI_TOKENS * dim) * sizeof *y);
    void *record = ci_alloc(info.block_bytes);
    for (int b = 0; b < blocks; b++) {
        for (int i = 0; i < CI_TOKENS * dim; i++) x[i] = (float)ci_half(normal(&seed));
        assert_int_equal(kvf_op_encode(spec, KVF_V, dim, x, record), KVF_OK);
        assert_int_equal(kvf_op_decode(spec, KVF_V, dim, record, y), KVF_OK);
        for (int t = 0; t < CI_TOKENS; t++) {
            double xx = 0, dd = 0;
            for (int i = t * dim; i < t * dim + dim; i++)
                xx += (double)x[i] * x[i], dd += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
            add(&m, dd / xx);
        }
    }
    free(x), free(y), free(record);
    return m;
}

#endif
