/* SPDX-License-Identifier: MIT
 * Codecs in double precision, written from their definitions and from docs/FORMAT.md. Shares no code with the library. */
#ifndef TESTS_ORACLE_CODEC_H
#define TESTS_ORACLE_CODEC_H

#include "oracle_rotation.h"

#include <stddef.h>

typedef enum oracle_family {
    ORACLE_F16,
    ORACLE_Q8_0,
    ORACLE_Q4_0,
    ORACLE_KIVI,
    ORACLE_UNI,
    ORACLE_TURBO,
    ORACLE_RVQ,
    ORACLE_TCQ
} oracle_family;

typedef struct oracle_plan {
    oracle_family family;
    int keys; /* 1: keys, 0: values */
    int head_dim;
    int dim;   /* channels that are coded: the head's, and zeros that the transform needs */
    int bits;  /* of a code; 16 for f16 */
    int group; /* tokens (KIVI keys) or channels (everything else) that share a scale */
    oracle_rotation rotation;
    int mean;       /* 1: the block's mean is subtracted after the transform and kept */
    int norm;       /* uni, turbo, rvq, tcq: rule 0 to 3 of the scale */
    int stage;      /* rvq: bits of the first stage */
    int entry[256]; /* turbo, rvq, tcq: a level is entry * unit */
    double unit;
} oracle_plan;

/* One value of a record: stored code, scale and minimum, and what they mean. near: how far the quotient was from the next
 * rounding boundary, in codes (only from oracle_encode). */
typedef struct oracle_value {
    int code;
    int state; /* tcq, from oracle_unpack and oracle_settle: which entry it is */
    double scale, min, value, near;
} oracle_value;

/* Reads a spec as the tests write them; 0 when the oracle does not know it. */
int oracle_read_spec(const char *spec, int keys, int dim, oracle_plan *plan);

/* What the definition makes of x[64][head_dim]: out[64][dim]. Rotates by a matrix first when the plan says so. */
void oracle_encode(const oracle_plan *plan, const float *x, oracle_value *out);

/* uni, turbo: where `got` has a neighbouring code and the quotient lay within `close` of the boundary, `out` of oracle_encode
 * takes it, and the scale that belongs to the codes is made anew. tcq: `out` has no codes (-1) before, and takes those of every token
 * whose path is the best one, to within rounding; of every sixteenth token this is found out, from `first` on. */
void oracle_settle(const oracle_plan *plan, const float *x, const oracle_value *got, double close, int first, oracle_value *out);

/* Scale of a vector x coded as c, by norm rule 0 to 3, from <x, x>, <x, c> and <c, c>; plain: that of rule 0. */
double oracle_norm_scale(int norm, double xx, double xc, double cc, double plain);

/* The levels above 0 of the quantiser of 2^bits levels that has the least mean-square error for one coordinate of a random unit
 * vector in dim dimensions, times sqrt(dim); dim below 4: for a normal variable. Returns that error. */
double oracle_levels(int bits, int dim, double *levels);

/* How far the levels are from the centroids of their cells, at most. */
double oracle_residue(int bits, int dim, const double *levels);

/* What a record says. */
void oracle_unpack(const oracle_plan *plan, const void *record, oracle_value *out);

/* Channel c of the mean that a record keeps. */
double oracle_mean(const oracle_plan *plan, const void *record, int c);

/* Bytes of a record, and whether every bit that is not part of a live code, scale or minimum is 0. */
size_t oracle_bytes(const oracle_plan *plan);
int oracle_padding_is_zero(const oracle_plan *plan, const void *record);

/* The codes of a matrix [rows][lanes] as it lies in memory: out[row * lanes + lane]. */
void oracle_codes(const void *codes, int bits, int rows, int lanes, int *out);

/* Nearest binary16, saturated; and the one at a place in memory. */
double oracle_half(double x);
double oracle_half_at(const void *memory, size_t at);

/* <q, key t> and sum of w_t value_t[c]; *size receives the sum of the magnitudes of all terms, for error bounds. */
double oracle_score(const oracle_plan *plan, const oracle_value *record, const float *q, int t, double *size);
double oracle_mix(const oracle_plan *plan, const oracle_value *record, const float *w, int c, double *size);

#endif
