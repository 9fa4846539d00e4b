/* SPDX-License-Identifier: MIT
 * Records that are sums of code matrices, in double precision and with every map as a matrix of numbers, written from docs/FORMAT.md.
 * Shares no code with the library. */
#ifndef TESTS_ORACLE_SUM_H
#define TESTS_ORACLE_SUM_H

#include <stddef.h>

#include "oracle_rotation.h"

enum { OS_DIM = 128, OS_ROWS = 512 };

typedef struct os_matrix {
    int size, width, bits;
    int table;  /* 1: entry[code] * unit; 0: signs */
    int select; /* -1: all channels, 0: those outside the set, 1: those in it */
    int sketch;
    oracle_rotation rot; /* of selected channels */
    double unit;         /* of entries, or the factor of the estimate */
    int entry[256];
    size_t codes, scales; /* bytes from the start of the record */
    double map[OS_ROWS][OS_DIM];
    int code[64][OS_ROWS]; /* what a record says */
    double scale[64];
} os_matrix;

typedef struct os_plan {
    int keys, head_dim, dim, norm, n, n_out, iid, seed, prod;
    oracle_rotation rot;
    size_t set, bytes;
    int outlier[OS_DIM];
    os_matrix m[2];
} os_plan;

/* Reads a spec of prod, qjl, or turbo with outliers for a head of at most OS_DIM channels. 0: no such rotation, or larger with zeros. */
int os_read_spec(const char *spec, int keys, int dim, os_plan *p);

/* The record's set, codes and scales; makes the maps. */
void os_unpack(os_plan *p, const void *record);

/* 1 when every bit that means nothing is 0. */
int os_padding_is_zero(const os_plan *p, const void *record);

/* out[size] = A x. */
void os_map(const os_plan *p, const os_matrix *m, const double *x, double *out);

/* Decoded coordinate j of token t, with the factor of signs. */
double os_coordinate(const os_matrix *m, int t, int j);

/* out[dim] += A^T y. */
void os_return(const os_plan *p, const os_matrix *m, const double *y, double *out);

#endif
