/* SPDX-License-Identifier: MIT
 * The statistics of `kvfold quality`: distances of next-token distributions, means with their errors, percentiles, and what may
 * be said of a difference. Nothing here knows of models or caches.
 */
#ifndef KVFOLD_CLI_QUALITY_STATS_H
#define KVFOLD_CLI_QUALITY_STATS_H

#include <stdbool.h>
#include <stdint.h>

/* ---- one position --------------------------------------------------------------------------------------------------------- */

/* The reference's distribution after one token: softmax of n logits. */
typedef struct quality_reference {
    int32_t n;
    const float *logits; /* [n] */
    double *p;           /* [n], owned by the caller, filled by quality_reference_set */
    double log_sum;      /* log of the sum of exp(logits) */
    int32_t top;         /* the likeliest token, the first of several */
} quality_reference;

/* What is kept of an arm's position. */
typedef struct quality_point {
    double kld;            /* nats: sum over tokens of p_ref log(p_ref / p_arm), exactly 0 for equal logits */
    double nll;            /* -log p_arm of the token that the text has next */
    double p, p_reference; /* probability of that token */
    int32_t top;           /* the arm's likeliest token */
    bool same_top;         /* it is the reference's too */
} quality_point;

void quality_reference_set(quality_reference *r, const float *logits);

/* Compares an arm's logits[r->n] with the reference. NaN or infinity in either gives a kld that is not finite. */
void quality_compare(const quality_reference *r, const float *logits, int32_t next, quality_point *point);

/* ---- many positions ------------------------------------------------------------------------------------------------------- */

typedef struct quality_mean {
    double mean, error; /* standard error, from the sample's variance with n - 1; NaN for less than two values */
} quality_mean;

quality_mean quality_mean_of(const double *x, int64_t n);

/* Values that belong to runs of neighbours, as what one context does to a token it often does to the next: block[i] is the number of
 * the run, and equal numbers follow each other. */
typedef struct quality_series {
    double *x;      /* [n] */
    int64_t *block; /* [n] */
    int64_t n;
} quality_series;
int64_t quality_blocks_of(const quality_series *s);

/* The mean, its error from the sums of the blocks, of whatever length (the ratio estimator; Cochran, Sampling Techniques, 1977, 6.3):
 * sqrt(B / (B - 1) sum (s_b - mean l_b)^2) / n. NaN for less than two blocks. */
quality_mean quality_blocked(const quality_series *s);

/* The same of a share, values 0 and 1. Never less than half of Wilson's interval (1927) of one standard error, which is not 0 where
 * all are hits. */
quality_mean quality_share_of(const quality_series *s);
/* exp of a mean, its error by the delta method: perplexity from log-likelihoods, a ratio of perplexities from differences. */
quality_mean quality_exp_of(quality_mean m);

/* Of sorted values, 0 <= share <= 1: linear between the two nearest. NaN when n is 0. */
double quality_percentile(const double *sorted, int64_t n, double share);
/* The same, but NaN where fewer than five values are expected beyond it: 10 values for the median, 500 for 99 %, 5,000 for 99.9 %. */
double quality_percentile_known(const double *sorted, int64_t n, double share);

/* The interval that holds the mean with that confidence: percentile bootstrap over the blocks. Same seed, same interval. */
typedef struct quality_interval {
    double mean, low, high;
} quality_interval;
quality_interval quality_bootstrap(const quality_series *s, double confidence, uint64_t seed);

#endif
