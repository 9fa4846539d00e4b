/* SPDX-License-Identifier: MIT */
#include "quality_stats.h"
#include "cli.h"
#include "measure.h"
#include "measure_random.h"
#include "tokens.h"

#include <math.h>
#include <stdlib.h>

enum { RESAMPLES = 2000 };

/* ---- one position --------------------------------------------------------------------------------------------------------- */

void quality_reference_set(quality_reference *r, const float *logits)
{
    double sum = 0;
    r->logits = logits;
    r->top = cli_likeliest(logits, r->n, NULL);
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
    int32_t top = cli_likeliest(logits, r->n, NULL);
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

/* ---- blocks --------------------------------------------------------------------------------------------------------------- */

int64_t quality_blocks_of(const quality_series *s)
{
    int64_t blocks = s->n > 0;
    for (int64_t i = 1; i < s->n; i++) blocks += s->block[i] != s->block[i - 1];
    return blocks;
}

/* Sums and lengths, of as many blocks as there are. */
static int64_t add_up(const quality_series *s, double *sum, double *length)
{
    int64_t b = -1;
    for (int64_t i = 0; i < s->n; i++) {
        if (i == 0 || s->block[i] != s->block[i - 1]) sum[++b] = 0, length[b] = 0;
        sum[b] += s->x[i];
        length[b] += 1;
    }
    return b + 1;
}

quality_mean quality_blocked(const quality_series *s)
{
    if (s->n < 1) return (quality_mean){NAN, NAN};
    double *sum = cli_alloc(2 * (size_t)s->n, sizeof *sum), *length = sum + s->n, total = 0, squares = 0;
    int64_t blocks = add_up(s, sum, length);
    for (int64_t b = 0; b < blocks; b++) total += sum[b];
    double mean = total / (double)s->n, n = (double)s->n, many = (double)blocks;
    for (int64_t b = 0; b < blocks; b++) squares += (sum[b] - mean * length[b]) * (sum[b] - mean * length[b]);
    free(sum);
    return (quality_mean){mean, blocks > 1 ? sqrt(many / (many - 1) * squares) / n : NAN};
}

quality_mean quality_share_of(const quality_series *s)
{
    quality_mean m = quality_blocked(s);
    double n = (double)s->n, p = m.mean;
    m.error = fmax(m.error, sqrt(p * (1 - p) / n + 0.25 / (n * n)) / (1 + 1 / n));
    return m;
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

double quality_percentile_known(const double *sorted, int64_t n, double share)
{
    static const double beyond = 5;
    return (double)n * fmin(share, 1 - share) >= beyond * (1 - 1e-9) ? quality_percentile(sorted, n, share) : NAN;
}

/* ---- bootstrap ------------------------------------------------------------------------------------------------------------ */

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

quality_interval quality_bootstrap(const quality_series *s, double confidence, uint64_t seed)
{
    quality_interval result = {NAN, NAN, NAN};
    if (s->n < 1) return result;
    double *sum = cli_alloc(2 * (size_t)s->n, sizeof *sum), *length = sum + s->n;
    double *mean = cli_alloc(RESAMPLES, sizeof *mean);
    int64_t blocks = add_up(s, sum, length);
    for (int i = 0; i < RESAMPLES; i++) mean[i] = resample(sum, length, blocks, &seed);
    measure_sort(mean, RESAMPLES);
    result = (quality_interval){quality_blocked(s).mean, quality_percentile(mean, RESAMPLES, (1 - confidence) / 2),
                                quality_percentile(mean, RESAMPLES, (1 + confidence) / 2)};
    free(sum);
    free(mean);
    return result;
}
