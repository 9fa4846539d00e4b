/* SPDX-License-Identifier: MIT
 * Power iteration on the second moment, from the mean on: the mean is near the first eigenvector where there is a direction at all.
 * Two eigenvalues that are nearly equal converge slowly, but then every vector between theirs serves as well: it stops when a round
 * turns the vector by less than ROUND, or after ROUNDS. */
#include "calib/direction.h"

#include <math.h>
#include <string.h>

enum { ROUNDS = 2000 };
static const double ROUND = 1e-14; /* of 1 - cosine */

/* Upper triangle of sum x x^T, then mirrored. */
static void second_moment(const float *x, int64_t n, int32_t dim, double *m)
{
    memset(m, 0, (size_t)dim * (size_t)dim * sizeof *m);
    for (int64_t i = 0; i < n; i++)
        for (int32_t a = 0; a < dim; a++) {
            const float *row = x + (size_t)i * (size_t)dim;
            const double scale = (double)row[a];
            double *to = m + (size_t)a * (size_t)dim;
            for (int32_t b = a; b < dim; b++) to[b] += scale * (double)row[b];
        }
    for (int32_t a = 0; a < dim; a++)
        for (int32_t b = 0; b < a; b++) m[(size_t)a * (size_t)dim + (size_t)b] = m[(size_t)b * (size_t)dim + (size_t)a];
}

static double dot(const double *a, const double *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Returns the length that it had. */
static double normalise(double *x, int32_t n)
{
    const double length = sqrt(dot(x, x, n));
    for (int32_t i = 0; i < n && length > 0; i++) x[i] /= length;
    return length;
}

/* The mean, and a little of the largest row of the moment, in case the mean is 0 or at right angles to what is looked for. */
static void start(const double *m, const double *mean, int32_t dim, double *x)
{
    int32_t largest = 0;
    for (int32_t a = 1; a < dim; a++)
        if (m[(size_t)a * (size_t)dim + (size_t)a] > m[(size_t)largest * (size_t)dim + (size_t)largest]) largest = a;
    memcpy(x, m + (size_t)largest * (size_t)dim, (size_t)dim * sizeof *x);
    normalise(x, dim);
    const double length = sqrt(dot(mean, mean, dim));
    for (int32_t a = 0; a < dim; a++) x[a] = length > 0 ? mean[a] / length + 0.01 * x[a] : x[a];
    normalise(x, dim);
}

static void iterate(const double *m, int32_t dim, double *x, double *y)
{
    for (int i = 0; i < ROUNDS; i++) {
        for (int32_t a = 0; a < dim; a++) y[a] = dot(m + (size_t)a * (size_t)dim, x, dim);
        if (normalise(y, dim) <= 0) break;
        const double turned = 1 - fabs(dot(x, y, dim));
        memcpy(x, y, (size_t)dim * sizeof *x);
        if (turned < ROUND) break;
    }
}

static double share_positive(const float *x, int64_t n, int32_t dim, const double *direction)
{
    int64_t positive = 0;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int32_t a = 0; a < dim; a++) sum += (double)x[(size_t)i * (size_t)dim + (size_t)a] * direction[a];
        positive += sum > 0;
    }
    return (double)positive / (double)n;
}

double kvfi_direction(const float *x, int64_t n, int32_t dim, double *work, double *direction)
{
    double *m = work, *mean = m + (size_t)dim * (size_t)dim, *y = mean + dim;
    second_moment(x, n, dim, m);
    memset(mean, 0, (size_t)dim * sizeof *mean);
    for (int64_t i = 0; i < n; i++)
        for (int32_t a = 0; a < dim; a++) mean[a] += (double)x[(size_t)i * (size_t)dim + (size_t)a];
    start(m, mean, dim, direction);
    iterate(m, dim, direction, y);
    if (dot(direction, mean, dim) < 0)
        for (int32_t a = 0; a < dim; a++) direction[a] = -direction[a];
    return dot(direction, direction, dim) > 0 ? share_positive(x, n, dim, direction) : 0.5;
}
