/* SPDX-License-Identifier: MIT */
#include "calib/feedback.h"

#include <math.h>
#include <string.h>

/* Added to S, as a share of its mean eigenvalue. Between 0.1 and 0.5 the loss of two models moves by 4 %; 0.01 moves keys too far. */
#define DAMPING 0.25

/* Hadamard transform of x[dim] with a stride, in blocks of the largest power of two that divides dim. */
static void turn(double *x, int32_t dim, size_t stride)
{
    const int32_t block = dim & -dim;
    for (int32_t half = 1; half < block; half *= 2)
        for (int32_t i = 0; i < dim; i++) {
            if (i & half) continue;
            double *a = x + (size_t)i * stride, *b = x + (size_t)(i + half) * stride;
            const double sum = *a + *b;
            *b = *a - *b, *a = sum;
        }
    const double factor = 1 / sqrt((double)block);
    for (int32_t i = 0; i < dim; i++) x[(size_t)i * stride] *= factor;
}

/* s = H lambda (moment) lambda H, and its mean eigenvalue. */
static double turned_moment(const float *moment, const float *lambda, int32_t dim, double *s)
{
    const size_t n = (size_t)dim;
    double trace = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) s[i * n + j] = (double)moment[i * n + j] * (double)lambda[i] * (double)lambda[j];
    for (size_t i = 0; i < n; i++) turn(s + i * n, dim, 1);
    for (size_t i = 0; i < n; i++) turn(s + i, dim, n);
    for (size_t i = 0; i < n; i++) trace += s[i * n + i];
    return trace / (double)n;
}

/* S = L' D L from the last row on; row i of L takes the place of row i of s up to the diagonal. 0: an element of D is below `least`. */
static int factor(double *s, size_t n, double least)
{
    for (size_t i = n; i-- > 0;) {
        const double d = s[i * n + i];
        if (!(d >= least)) return 0;
        for (size_t j = 0; j < i; j++) s[i * n + j] /= d;
        for (size_t j = 0; j < i; j++)
            for (size_t k = 0; k <= j; k++) s[j * n + k] -= d * s[i * n + j] * s[i * n + k];
    }
    return 1;
}

/* e_i + sum over j < i of L_ij e_j = 0 for the channels i of a sub-vector, solved so that its rows R depend on earlier sub-vectors alone. */
static void solve_inside(double *s, size_t n, size_t sub)
{
    for (size_t first = 0; first < n; first += sub)
        for (size_t i = first; i < first + sub; i++)
            for (size_t k = first; k < i; k++)
                for (size_t j = 0; j < first; j++) s[i * n + j] -= s[i * n + k] * s[k * n + j];
}

/* From e, the error, to r = (1 + R) e, what was left: R (1 + R)^-1 takes the place of R. Row after row; column j needs only later ones of
 * its own row as they were. */
static void in_terms_of_left(double *s, size_t n, size_t sub)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i / sub * sub; j++)
            for (size_t k = (j / sub + 1) * sub; k < i / sub * sub; k++) s[i * n + j] -= s[i * n + k] * s[k * n + j];
}

/* Mean of f32 products: q_ij and q_ji are the same number, and |q_ij| cannot exceed the mean of both squares. */
static int is_symmetric(const float *moment, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < i; j++)
            if (fabs((double)moment[i * n + j] - (double)moment[j * n + i]) >
                1e-5 * ((double)moment[i * n + i] + (double)moment[j * n + j]))
                return 0;
    return 1;
}

int kvfi_feedback_fill(const float *moment, const float *lambda, int32_t dim, int32_t sub, double *work, float *factors)
{
    const size_t n = (size_t)dim, width = (size_t)sub;
    if (!is_symmetric(moment, n)) return KVF_E_ARG;
    const double mean = turned_moment(moment, lambda, dim, work);
    if (mean < 0) return KVF_E_ARG;
    if (!(mean > 0)) {
        memset(factors, 0, kvfi_feedback_floats(dim, sub) * sizeof *factors);
        return KVF_OK;
    }
    for (size_t i = 0; i < n; i++) work[i * n + i] += DAMPING * mean;
    if (!factor(work, n, 0.99 * DAMPING * mean)) return KVF_E_ARG; /* less is left of what was added */
    solve_inside(work, n, width);
    in_terms_of_left(work, n, width);
    for (size_t first = 0; first < n; first += width)
        for (size_t j = first; j < first + width; j++)
            for (size_t i = first + width; i < n; i++) *factors++ = (float)work[i * n + j];
    return KVF_OK;
}
