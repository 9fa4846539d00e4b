/* SPDX-License-Identifier: MIT
 * Sketches: y = S x, of which a code keeps the signs (QJL, Zandieh et al., arXiv 2406.03482). For a direction s that is as likely as
 * any other, the mean of <s, q> sign <s, k> is proportional to <q, k> / ||k||, so that
 *   unit * ||k|| * <S q, sign(S k)>
 * estimates <q, k> without bias.
 *
 * orthogonal   blocks of P directions, P the power of two at or above dim and at least 16: S is the first dim columns of H D2 H D1,
 *              H the orthonormal Hadamard matrix, D1 and D2 random signs of the block's own; the last block may be cut short.
 *              Directions of a block cannot repeat each other: the variance is (pi/2 - 1) / pi/2 of that of independent ones in
 *              whole blocks, about (pi/2 - (m - 1) / (P - 1)) / pi/2 where one block is cut to m.
 * independent  every entry a normal number of its own: the form of the proofs, to compare with.
 * Exact arithmetic: the same signs on every target. */
#ifndef KVFI_SKETCH_H
#define KVFI_SKETCH_H

#include <stddef.h>
#include <stdint.h>

enum { KVFI_SKETCH_ROWS = 4096 }; /* most directions */

typedef struct kvfi_sketch {
    int32_t dim, rows;
    int32_t iid;
    uint32_t seed;
    int32_t which; /* independent sketches of one seed: 0, 1 */
} kvfi_sketch;

/* Directions that are made together, a divisor of the offset of each: ranges below start on a multiple and have at most that many. */
int32_t kvfi_sketch_step(const kvfi_sketch *s);

/* Factor of the estimate: sqrt(pi/2) / rows for independent directions; for orthogonal ones, unit vectors u in P dimensions here,
 * 1 / (rows * mean |u_1|). */
double kvfi_sketch_unit(const kvfi_sketch *s);

/* y[v][i] = <direction first + i, x_v> for i < count. keep[c] is 0 for channels to be left out, NULL for all. */
void kvfi_sketch_apply(const kvfi_sketch *s, const uint8_t *keep, const float *x, size_t stride, int32_t n, int32_t first,
                       int32_t count, float *y, size_t y_stride);

/* x[v * vector + c * channel] += sum_i y[v][i] * (direction first + i)[c], channels with keep[c] = 0 left alone. */
void kvfi_sketch_return(const kvfi_sketch *s, const uint8_t *keep, const float *y, size_t y_stride, int32_t n, int32_t first,
                        int32_t count, float *x, size_t vector, size_t channel);

#endif
