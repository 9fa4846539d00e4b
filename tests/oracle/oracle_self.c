/* SPDX-License-Identifier: MIT */
#include "oracle_self.h"

#include <math.h>
#include <string.h>

enum { SKIPPED = 4, SEGMENT = 512, MOST = 1024 };

void oracle_turn(const oracle_rope *r, int dim, const double *x, double pos, double *y)
{
    if (y != x) memcpy(y, x, (size_t)dim * sizeof *y);
    for (int i = 0; i < r->dims / 2; i++) {
        int a = r->neox ? i : 2 * i, b = r->neox ? i + r->dims / 2 : 2 * i + 1;
        double c = cos(pos * r->freq[i]), s = sin(pos * r->freq[i]), xa = x[a], xb = x[b];
        y[a] = xa * c - xb * s;
        y[b] = xa * s + xb * c;
    }
}

long oracle_query_squares(const float *q, long token_stride, long head_stride, int heads, int dim, int first, int last,
                          double *sum)
{
    for (int t = first; t < last; t++)
        for (int h = 0; h < heads; h++)
            for (int c = 0; c < dim; c++) {
                double x = q[t * token_stride + h * head_stride + c];
                sum[c] += x * x;
            }
    return (long)(last - first) * heads;
}

static void mean_unrotated(const oracle_rope *r, int dim, const float *k, long stride, int start, int rows, double *m)
{
    memset(m, 0, (size_t)dim * sizeof *m);
    for (int i = SKIPPED; i < rows; i++) {
        double x[MOST];
        for (int c = 0; c < dim; c++) x[c] = k[i * stride + c];
        oracle_turn(r, dim, x, -(double)(start + i), x);
        for (int c = 0; c < dim; c++) m[c] += x[c] / (rows - SKIPPED);
    }
}

/* Average and variance per channel of R_j m over a segment. */
static void over_segment(const oracle_rope *r, int dim, const double *m, double *mean, double *var)
{
    double x[MOST];
    memset(mean, 0, (size_t)dim * sizeof *mean);
    memset(var, 0, (size_t)dim * sizeof *var);
    for (int pass = 0; pass < 2; pass++)
        for (int j = 0; j < SEGMENT; j++) {
            oracle_turn(r, dim, m, j, x);
            for (int c = 0; c < dim; c++)
                if (pass)
                    var[c] += (x[c] - mean[c]) * (x[c] - mean[c]) / SEGMENT;
                else
                    mean[c] += x[c] / SEGMENT;
        }
}

void oracle_estimate(const oracle_rope *r, int dim, const float *k, long stride, int start, int rows, const double *q_mean,
                     double *c0, double *scale)
{
    double m[MOST], var[MOST], turned[MOST], log_mean = 0;
    mean_unrotated(r, dim, k, stride, start, rows, m);
    over_segment(r, dim, m, c0, var);
    for (int i = SKIPPED; i < rows; i++) {
        oracle_turn(r, dim, m, start + i, turned);
        for (int c = 0; c < dim; c++) {
            double d = k[i * stride + c] - turned[c];
            var[c] += d * d / (rows - SKIPPED);
        }
    }
    for (int c = 0; c < dim; c++) {
        scale[c] = q_mean ? 0.35 * (0.5 * log(var[c]) - 0.5 * log(q_mean[c])) : 0; /* (rms k / rms q)^0.35 */
        log_mean += scale[c] / dim;
    }
    for (int c = 0; c < dim; c++) scale[c] = exp(scale[c] - log_mean);
}

void oracle_centre(const oracle_rope *r, int dim, const double *c0, int segment, double *c)
{
    oracle_turn(r, dim, c0, (double)SEGMENT * segment, c);
}
