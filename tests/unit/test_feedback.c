/* SPDX-License-Identifier: MIT
 * Error feedback: what is added to a sub-vector is what makes the scores' error least, given the errors before it. */
#include "support_internal.h"

#include "calib/feedback.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM_MOST = 128 };

static double gauss(uint64_t *seed)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += (double)(ts_mix(++*seed) >> 11) * 0x1p-53;
    return sum;
}

/* Queries that lie near a few directions, as a moment[dim][dim]. */
static void make_moment(int dim, uint64_t seed, float *moment)
{
    static double u[4][DIM_MOST];
    for (int r = 0; r < 4; r++)
        for (int d = 0; d < dim; d++) u[r][d] = gauss(&seed);
    for (int i = 0; i < dim; i++)
        for (int j = 0; j < dim; j++) {
            double sum = i == j ? 0.5 : 0;
            for (int r = 0; r < 4; r++) sum += u[r][i] * u[r][j] / (r + 1);
            moment[i * dim + j] = (float)sum;
        }
}

/* s = T (moment + its damping) T', T = H diag(lambda), entry by entry of Sylvester's matrix. */
static void transformed(const float *moment, const float *lambda, int dim, double (*s)[DIM_MOST])
{
    const int block = dim & -dim;
    static double t[DIM_MOST][DIM_MOST], half[DIM_MOST][DIM_MOST];
    double trace = 0;
    for (int i = 0; i < dim; i++)
        for (int j = 0; j < dim; j++) {
            const int sign = __builtin_popcount((unsigned)(i % block & j % block)) % 2 ? -1 : 1;
            t[i][j] = i / block == j / block ? sign * (double)lambda[j] / sqrt(block) : 0;
        }
    for (int i = 0; i < dim; i++)
        for (int j = 0; j < dim; j++) {
            half[i][j] = 0;
            for (int k = 0; k < dim; k++) half[i][j] += t[i][k] * (double)moment[k * dim + j];
        }
    for (int i = 0; i < dim; i++)
        for (int j = 0; j < dim; j++) {
            s[i][j] = 0;
            for (int k = 0; k < dim; k++) s[i][j] += half[i][k] * t[j][k];
        }
    for (int i = 0; i < dim; i++) trace += s[i][i];
    for (int i = 0; i < dim; i++) s[i][i] += 0.25 * trace / dim;
}

/* The u from `first` on that makes [e u]' s [e u] least, e[first] given: Gauss's elimination of s_uu u = - s_uc e. */
static void least(double (*s)[DIM_MOST], int dim, int first, const double *e, double *u)
{
    static double a[DIM_MOST][DIM_MOST + 1];
    const int n = dim - first;
    for (int i = 0; i < n; i++) {
        a[i][n] = 0;
        for (int j = 0; j < n; j++) a[i][j] = s[first + i][first + j];
        for (int j = 0; j < first; j++) a[i][n] -= s[first + i][j] * e[j];
    }
    for (int p = 0; p < n; p++)
        for (int i = 0; i < n; i++) {
            const double factor = i == p ? 0 : a[i][p] / a[p][p];
            for (int j = p; j <= n && i != p; j++) a[i][j] -= factor * a[p][j];
        }
    for (int i = 0; i < n; i++) u[i] = a[i][n] / a[i][i];
}

typedef struct bench {
    float moment[DIM_MOST * DIM_MOST], lambda[DIM_MOST], factors[DIM_MOST * DIM_MOST / 2];
    double work[DIM_MOST * DIM_MOST], s[DIM_MOST][DIM_MOST];
} bench;

static bench *make_bench(int dim, int sub)
{
    bench *b = calloc(1, sizeof *b);
    uint64_t seed = (uint64_t)(dim * sub);
    for (int d = 0; d < dim; d++) b->lambda[d] = (float)(0.5 + fabs(gauss(&seed)));
    make_moment(dim, seed, b->moment);
    transformed(b->moment, b->lambda, dim, b->s);
    assert_int_equal(kvfi_feedback_fill(b->moment, b->lambda, dim, sub, b->work, b->factors), KVF_OK);
    return b;
}

/* Whatever coding leaves, each sub-vector is asked to be y - u, u the least given the true errors y - code of those before it. */
static void check_targets(const bench *b, int dim, int sub)
{
    float x[DIM_MOST], left[8];
    double y[DIM_MOST], e[DIM_MOST], u[DIM_MOST];
    uint64_t seed = 99;
    for (int d = 0; d < dim; d++) y[d] = (double)(x[d] = (float)gauss(&seed));
    for (int m = 0; m < dim / sub; m++) {
        least((double(*)[DIM_MOST])(uintptr_t)b->s, dim, m * sub, e, u);
        for (int j = 0; j < sub; j++) {
            const int c = m * sub + j;
            if (fabs((double)x[c] - (y[c] - u[j])) > 2e-5)
                fail_msg("%d channels of %d: channel %d is to be %g, not %g", dim, sub, c, (double)x[c], y[c] - u[j]);
            left[j] = (float)(0.3 * gauss(&seed));
            e[c] = y[c] - ((double)x[c] - (double)left[j]);
        }
        kvfi_feedback_add(b->factors, dim, sub, m, left, 1, x);
    }
}

static void test_targets_are_the_least(void **state)
{
    static const struct {
        int dim, sub;
    } shapes[] = {{64, 4}, {128, 8}, {72, 8}, {40, 2}, {8, 4}, {2, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        bench *b = make_bench(shapes[i].dim, shapes[i].sub);
        check_targets(b, shapes[i].dim, shapes[i].sub);
        free(b);
    }
}

/* Every token has its own errors. */
static void test_tokens_are_apart(void **state)
{
    (void)state;
    bench *b = make_bench(64, 4);
    float x[3 * 64] = {0}, one[64] = {0}, left[3 * 4] = {0, 0, 0, 0, 1, 2, -1, 0.5f, 0, 0, 0, 0};
    kvfi_feedback_add(b->factors, 64, 4, 3, left, 3, x);
    kvfi_feedback_add(b->factors, 64, 4, 3, left + 4, 1, one);
    assert_memory_equal(x + 64, one, sizeof one);
    for (int c = 0; c < 64; c++) assert_true(x[c] == 0 && x[128 + c] == 0 && (c < 16 ? one[c] == 0 : one[c] != 0));
    free(b);
}

/* Queries that are not known ask for nothing, and one direction alone is no reason for infinity. */
static void test_poor_moments(void **state)
{
    (void)state;
    bench *b = make_bench(64, 4);
    memset(b->moment, 0, sizeof b->moment);
    assert_int_equal(kvfi_feedback_fill(b->moment, b->lambda, 64, 4, b->work, b->factors), KVF_OK);
    for (size_t i = 0; i < kvfi_feedback_floats(64, 4); i++) assert_true(b->factors[i] == 0);
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < 64; j++) b->moment[i * 64 + j] = 1e-12f;
    assert_int_equal(kvfi_feedback_fill(b->moment, b->lambda, 64, 4, b->work, b->factors), KVF_OK);
    transformed(b->moment, b->lambda, 64, b->s);
    check_targets(b, 64, 4);
    free(b);
}

/* Errors would follow a matrix that is no mean of q q'. */
static void test_no_moments(void **state)
{
    (void)state;
    bench *b = make_bench(64, 4);
    const float was = b->moment[5 * 64 + 9];
    b->moment[5 * 64 + 9] += 0.01f * (b->moment[5 * 65] + b->moment[9 * 65]);
    assert_int_equal(kvfi_feedback_fill(b->moment, b->lambda, 64, 4, b->work, b->factors), KVF_E_ARG);
    b->moment[5 * 64 + 9] = was;
    assert_int_equal(kvfi_feedback_fill(b->moment, b->lambda, 64, 4, b->work, b->factors), KVF_OK);
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < 64; j++) b->moment[i * 64 + j] = i == j ? 1 : i / 2 == j / 2 ? 3 : 0; /* eigenvalues 4 and -2 */
    assert_int_equal(kvfi_feedback_fill(b->moment, b->lambda, 64, 4, b->work, b->factors), KVF_E_ARG);
    for (int i = 0; i < 64; i++) b->moment[i * 65] = -1;
    assert_int_equal(kvfi_feedback_fill(b->moment, b->lambda, 64, 4, b->work, b->factors), KVF_E_ARG);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_targets_are_the_least),
        cmocka_unit_test(test_tokens_are_apart),
        cmocka_unit_test(test_poor_moments),
        cmocka_unit_test(test_no_moments),
    };
    return cmocka_run_group_tests_name("feedback", tests, NULL, NULL);
}
