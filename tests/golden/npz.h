/* SPDX-License-Identifier: MIT
 * Reads NumPy archives (.npz: a ZIP file of .npy files, stored or deflated) as far as tests need them. */
#ifndef TESTS_NPZ_H
#define TESTS_NPZ_H

#include <stddef.h>
#include <stdint.h>

#define NPZ_DIMS 4

typedef struct npz npz;

/* An array in row-major order, whatever order the file had. */
typedef struct npz_array {
    char type[8]; /* "f4", "f2", "u1", "i4", ...: NumPy's kind and bytes of an element, little-endian */
    int n_dims;
    int64_t shape[NPZ_DIMS];
    int64_t count; /* elements */
    size_t element;
    unsigned char *data;
} npz_array;

npz *npz_open(const char *path); /* NULL when there is no such file or it is not an archive */
void npz_close(npz *z);

/* Name of member i without ".npy"; NULL past the end. */
const char *npz_name(const npz *z, int i);

/* 0 when there is no such member or it cannot be read. */
int npz_get(const npz *z, const char *name, npz_array *a);
void npz_free(npz_array *a);

/* Element i as a number. */
double npz_number(const npz_array *a, int64_t i);

/* Inflates `from` (RFC 1951) into exactly `size` bytes; 0 when the stream is damaged. */
int npz_inflate(const unsigned char *from, size_t from_size, unsigned char *to, size_t size);

#endif
