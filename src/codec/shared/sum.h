/* SPDX-License-Identifier: MIT
 * KVF_KIND_SUM: records of one or two code matrices, each of another linear map of the vector. What prod (a table, then signs of a
 * sketch of what it leaves), qjl (signs alone) and the outlier split (two tables for two sets of channels) have in common.
 *
 *   x is about  sum_i A_i^T y_i,   y_i the decoded coordinates of matrix i
 *   <q, x>      sum_i <A_i q, y_i>            queries go through the maps, codes stay as they are
 *   sum_t w x   sum_i A_i^T (sum_t w y_i)     one map back for all tokens of a record
 *
 * Record: for each matrix its codes and its 64 f16 scales; then the set of outlier channels, if there is one. */
#ifndef KVFI_SUM_H
#define KVFI_SUM_H

#include "codec/shared/part.h"

enum { KVFI_SUM_ROOM = 16384 }; /* floats of coordinates that are handled together */

/* Adds a matrix of signs of `rows` directions of the selected channels. */
void kvfi_sum_add_signs(kvf_part *part, int32_t dim, int32_t rows, kvf_select select);

/* Adds a matrix of Lloyd-Max codes for vectors of `size` coordinates, its entries behind those of the matrices before. */
void kvfi_sum_add_table(kvf_part *part, kvf_map map, kvf_select select, int32_t size, int32_t bits);

/* Matrix i as a record of one scale a token: codes and scales lie kvf_matrix.codes_offset bytes from the start of the record. */
kvfi_shape kvfi_sum_shape(const kvf_part *part, int32_t i);

/* Does the map of matrix i depend on the record? */
static inline int kvfi_sum_chosen(const kvf_part *part, int32_t i)
{
    return part->matrix[i].select != KVF_SELECT_ALL;
}

/* What A_i q is to be multiplied with before it meets decoded coordinates +-1/2 or table entries times unit. */
static inline float kvfi_sum_factor(const kvf_part *part, int32_t i)
{
    return part->matrix[i].table < 0 ? part->matrix[i].unit : 1.0f;
}

/* Coordinates are made and returned in ranges that start on a multiple of `step` and have at most that many. */
int32_t kvfi_sum_step(const kvf_part *part, int32_t i);

/* Tokens whose `step` coordinates fit the room: 16, 32 or 64. */
static inline int32_t kvfi_sum_batch(int32_t step)
{
    int32_t batch = KVF_BLOCK;
    while (batch * step > KVFI_SUM_ROOM) batch /= 2;
    return batch;
}

/* y[v][j] = coordinate first + j of A_i x_v, j < count, with padded ones 0. record may be NULL when the map does not depend on it. */
void kvfi_sum_apply(const kvf_part *part, int32_t i, const void *record, const float *x, size_t stride, int32_t n, int32_t first,
                    int32_t count, float *y, size_t y_stride);

/* x[v * vector + c * channel] += (A_i^T y_v)[c], from coordinates first .. first + count - 1. y may be overwritten. */
void kvfi_sum_return(const kvf_part *part, int32_t i, const void *record, float *y, size_t y_stride, int32_t n, int32_t first,
                     int32_t count, float *x, size_t vector, size_t channel);

/* The encode slot of these codecs: transform, choose outliers, code matrix by matrix. A matrix after a table of the vector itself
 * codes what the table leaves. */
void kvfi_sum_encode(const kvf_part *part, float *x, void *record);

/* sketch=orth|iid into the part. */
int kvfi_spec_sketch(const kvf_spec *spec, kvf_part *part, char *error, size_t error_size);

/* outliers=N, less than dim; 0 when not given. */
int kvfi_spec_outliers(const kvf_spec *spec, int32_t dim, int32_t *n, char *error, size_t error_size);

#endif
