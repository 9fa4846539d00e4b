/* SPDX-License-Identifier: MIT
 * Orthogonal transforms as matrices in double precision, from their definitions and docs/FORMAT.md. Shares no code with the library. */
#ifndef TESTS_ORACLE_ROTATION_H
#define TESTS_ORACLE_ROTATION_H

/* "none", "h", "h1", "h2" (not "haar": that one is any orthogonal matrix) of a head of `dim` channels. */
typedef struct oracle_rotation {
    char name[8];
    unsigned seed;
    int dim, size; /* size: channels after the transform, dim and zeros */
} oracle_rotation;

/* Reads rot= and seed= out of a spec's options; `fallback` when there is no rot=. 0: unknown, or no such transform of this size. */
int oracle_read_rotation(const char *options, const char *fallback, int dim, oracle_rotation *r);

/* y[size] = R x, x[dim]; and x[dim] = the first channels of R' y. */
void oracle_rotate(const oracle_rotation *r, const double *x, double *y);
void oracle_rotate_back(const oracle_rotation *r, const double *y, double *x);

/* Entry (i, j) of the Hadamard matrix of size n = 2^k, 12 2^k, 20 2^k or 28 2^k: +1 or -1. */
int oracle_hadamard(int n, int i, int j);

#endif
