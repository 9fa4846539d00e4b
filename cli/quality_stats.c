/* SPDX-License-Identifier: MIT */
#include "quality_stats.h"
#include "cli.h"
#include "measure.h"
#include "measure_random.h"

#include <math.h>
#include <stdlib.h>

enum { RESAMPLES = 2000 };

/* ---- one position --------------------------------------------------------------------------------------------------------- */

static int32_t likeliest(const float *x, int32_t n)
{
    int32_t top = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[top]) top = i;
    return top;
}

void quality_reference_set(quality_reference *r, const float *logits)
{
    double sum = 0;
    r->logits = logits;
    r->top = likeliest(logits, r->n);
    for (int32_t i = 0; i < r->n; i++) {
        r->p[i] = exp((double)logits[i] - (double)logits[r->top]);
        sum += r->p[i];
    }
    for (int32_t i = 0; i < r->n; i++) r->p[i] /= sum;
    r->log_sum = (double)logits[r->top] + log(sum);
}

/* sum p (x - y) - (log_sum(x) - log_sum(y)): one exponential a token, the reference's being known. Equal logits give zeros and the
 * same log_sum twice, so the result is exactly 0. */
void quality_compare(const quality_reference *r, const float *logits, int32_t next, quality_point *point)
{
    double sum = 0, shift = 0;
    int32_t top = likeliest(logits, r->n);
    for (int32_t i = 0; i < r->n; i++) {
        sum += exp((double)logits[i] - (double)logits[top]);
        shift += r->p[i] * ((double)r->logits[i] - (double)logits[i]);
    }
    double log_sum = (double)logits[top] + log(sum);
    point->kld = shift - (r->log_sum - log_sum);
    if (point->kld < 0 && point->kld > -1e-12) point->kld = 0; /* rounding; the divergence itself is never negative */
    point->nll = log_sum - (double)logits[next];
    point->p = exp((double)logits[next] - (double)logits[top]) / sum;
    point->p_reference = r->p[next];
    point->top = top;
    point->same_top = top == r->top;
}

/* ---- means ---------------------------------------------------------------------------------------------------------------- */

quality_mean quality_mean_of(const double *x, int64_t n)
{
    double sum = 0, squares = 0;
    if (n < 1) return (quality_mean){NAN, NAN};
    for (int64_t i = 0; i < n; i++) sum += x[i];
    double mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
    return (quality_mean){mean, n > 1 ? sqrt(squares / (double)(n - 1) / (double)n) : NAN};
}

quality_mean quality_share_of(int64_t hits, int64_t n)
{
    if (n < 1) return (quality_mean){NAN, NAN};
    double p = (double)hits / (double)n;
    return (quality_mean){p, n > 1 ? sqrt(p * (1 - p) / (double)(n - 1)) : NAN};
}

quality_mean quality_exp_of(quality_mean m)
{
    double e = exp(m.mean);
    return (quality_mean){e, e * m.error};
}

/* ---- percentiles ---------------------------------------------------------------------------------------------------------- */

double quality_percentile(const double *sorted, int64_t n, double share)
{
    if (n < 1) return NAN;
    double at = share * (double)(n - 1);
    int64_t i = (int64_t)at;
    if (i >= n - 1) return sorted[n - 1];
    return sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]);
}

/* ---- differences ---------------------------------------------------------------------------------------------------------- */

/* Sums and lengths of the blocks; the last one may be short. */
static int64_t make_blocks(const double *a, const double *b, int64_t n, int64_t block, double *sum, double *length)
{
    int64_t blocks = (n + block - 1) / block;
    for (int64_t i = 0; i < blocks; i++) sum[i] = length[i] = 0;
    for (int64_t i = 0; i < n; i++) {
        sum[i / block] += a[i] - b[i];
        length[i / block] += 1;
    }
    return blocks;
}

static double resample(const double *sum, const double *length, int64_t blocks, uint64_t *state)
{
    double total = 0, count = 0;
    for (int64_t i = 0; i < blocks; i++) {
        int pick = measure_below(state, (int)blocks);
        total += sum[pick];
        count += length[pick];
    }
    return total / count;
}

quality_interval quality_paired(const double *a, const double *b, int64_t n, int64_t block, double confidence, uint64_t seed)
{
    quality_interval result = {NAN, NAN, NAN};
    if (n < 1) return result;
    double *sum = cli_alloc((size_t)n, sizeof *sum), *length = cli_alloc((size_t)n, sizeof *length);
    double *mean = cli_alloc(RESAMPLES, sizeof *mean), total = 0;
    int64_t blocks = make_blocks(a, b, n, block, sum, length);
    for (int64_t i = 0; i < blocks; i++) total += sum[i];
    for (int i = 0; i < RESAMPLES; i++) mean[i] = resample(sum, length, blocks, &seed);
    measure_sort(mean, RESAMPLES);
    result = (quality_interval){total / (double)n, quality_percentile(mean, RESAMPLES, (1 - confidence) / 2),
                                quality_percentile(mean, RESAMPLES, (1 + confidence) / 2)};
    free(sum);
    free(length);
    free(mean);
    return result;
}
