/* SPDX-License-Identifier: MIT
 * Key stages estimated from the sequence's own prompt: a centre (one vector for each 512 positions) and a scale per channel.
 *
 * Per store and KV head, over rows 4 .. E-1 of the sequence, E = 128, then again 256, 512, 1024 (an epoch each; blocks keep the
 * one they were sealed with):
 *   m        mean of the un-rotated (before RoPE) keys: a mean taken after RoPE would contain what later rotates away
 *   c_0      average of R_j m over positions j = 0..511;  c_s = R_{512 s} c_0 is the centre of segment s
 *   var      mean (k_j - R_j m)^2 + variance of R_j m over positions 0..511, per channel as cached
 *   scale    (var / mean q^2)^(0.35 / 2), geometric mean 1; keys are divided by it, queries multiplied
 * A centre common to all keys of a segment adds q.c_s to their scores: nothing is stored per token.
 * Sums are doubles, added in row order by one thread, so batch sizes cannot change a bit.
 *
 * With a calibration file the same two stages hold from row 0 on, with nothing to estimate: m is the file's, and the scale is
 * (k_rms / q_rms)^(1/2), not damped, as its spreads come from thousands of positions. */
#ifndef KVFI_SELF_H
#define KVFI_SELF_H

#include "codec/codec.h"

enum {
    KVFI_EPOCHS = 4,
    KVFI_EPOCH_FIRST = 128, /* rows of epoch 0; epoch e has 128 << e */
    KVFI_EPOCH_LAST = 1024,
    KVFI_SKIP = 4,      /* rows at the start that estimate nothing: sinks */
    KVFI_SEGMENT = 512, /* positions that share a centre */
    KVFI_KEY_SUMS = 4   /* per channel: k, k^2, k cos, k sin */
};

/* Two channels that RoPE turns together by position * freq, and averages over one segment. */
typedef struct kvfi_pair {
    int32_t a, b;
    double freq;
    double turn_cos, turn_sin;   /* of a whole segment */
    double cos, sin, cc, cs, ss; /* averages over positions 0..511 */
} kvfi_pair;

/* Fills pairs from a layer's RoPE description: dims/2 of them. */
void kvfi_pairs_init(kvfi_pair *pairs, int32_t dims, int32_t style, const double *freq);

/* Epoch of a block that is sealed when `rows` rows are present: the newest complete one. */
static inline int32_t kvfi_epoch_of(int64_t rows)
{
    int32_t e = 0;
    while (e + 1 < KVFI_EPOCHS && (KVFI_EPOCH_FIRST << (e + 1)) <= rows) e++;
    return e;
}

/* Adds one key row of one head: sums[KVFI_KEY_SUMS][dim]; turns[n_pairs][2] = cos, sin of position * freq. */
void kvfi_add_key(double *sums, const float *k, int32_t dim, const kvfi_pair *pairs, int32_t n_pairs, const double (*turns)[2]);

/* Adds the squares of one query row of one head: sums[dim]. */
void kvfi_add_query(double *sums, const float *q, int32_t dim);

/* Estimates from n rows: keys as above, pair_sums[n_pairs][3] = sum of cos^2, cos sin, sin^2 over those rows, queries[dim] = sum
 * of q^2 over n_queries rows and heads (0: no scale). */
typedef struct kvfi_estimate {
    const double *keys, *queries;
    const double (*pair_sums)[3];
    const kvfi_pair *pairs;
    int32_t dim, n_pairs;
    int64_t n, n_queries;
    int32_t centred, scaled; /* which stages the recipe wants */
} kvfi_estimate;

/* Squared norms of the un-rotated and of the plain mean. */
void kvfi_mean_energy(const kvfi_estimate *e, double *unrotated, double *plain);

/* rotate: 0 when the RoPE check failed. */
void kvfi_make_table(const kvfi_estimate *e, int rotate, double *c0, float *scale);

/* The same from calibrated arrays of one head: mean[dim] (NULL: no centre), k_rms and q_rms[dim], or lambda[dim], which is the scale
 * itself (NULL: no scale). */
typedef struct kvfi_known {
    const float *mean, *k_rms, *q_rms, *lambda;
    const kvfi_pair *pairs;
    int32_t dim, n_pairs;
} kvfi_known;
void kvfi_known_table(const kvfi_known *k, double *c0, float *scale);

/* Turns c_s into c_(s + segments), in place. One segment after the other, so that steps of any size give the same bits. */
void kvfi_turn(double *centre, const kvfi_pair *pairs, int32_t n_pairs, int64_t segments);

#endif
