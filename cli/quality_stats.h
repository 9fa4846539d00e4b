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
/* Of a share: error sqrt(p (1 - p) / (n - 1)). */
quality_mean quality_share_of(int64_t hits, int64_t n);
/* exp of a mean, its error by the delta method: perplexity from log-likelihoods, a ratio of perplexities from differences. */
quality_mean quality_exp_of(quality_mean m);

/* Of sorted values, 0 <= share <= 1: linear between the two nearest. NaN when n is 0. */
double quality_percentile(const double *sorted, int64_t n, double share);

/* The interval that holds the mean of a[i] - b[i] with that confidence: percentile bootstrap over runs of `block` neighbouring
 * positions, as what one context does to a token it often does to the next. Same seed, same interval. */
typedef struct quality_interval {
    double mean, low, high;
} quality_interval;
quality_interval quality_paired(const double *a, const double *b, int64_t n, int64_t block, double confidence, uint64_t seed);

#endif
