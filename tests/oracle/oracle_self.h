/* SPDX-License-Identifier: MIT
 * Key stages estimated from a prompt, in double precision and by the definition: every key is un-rotated by itself, every average is
 * a loop over what it averages. Shares no code with the library. */
#ifndef TESTS_ORACLE_SELF_H
#define TESTS_ORACLE_SELF_H

/* How position turns a key: the first `dims` channels in pairs. neox: channels i and i + dims/2, else 2i and 2i + 1. */
typedef struct oracle_rope {
    int dims, neox;
    const double *freq; /* [dims / 2] */
} oracle_rope;

/* y = R_pos x; pos may be negative. */
void oracle_turn(const oracle_rope *r, int dim, const double *x, double pos, double *y);

/* Mean of q^2 per channel over rows first .. last - 1 of `heads` heads, added to sum[dim]; returns how many vectors that is. */
long oracle_query_squares(const float *q, long token_stride, long head_stride, int heads, int dim, int first, int last,
                          double *sum);

/* From keys of rows 4 .. rows - 1 (row i is k + i * stride, at position start + i) and mean squares of queries (NULL: no scale). */
void oracle_estimate(const oracle_rope *r, int dim, const float *k, long stride, int start, int rows, const double *q_mean,
                     double *c0, double *scale);

/* Centre of segment s: R_{512 s} c0. */
void oracle_centre(const oracle_rope *r, int dim, const double *c0, int segment, double *c);

#endif
