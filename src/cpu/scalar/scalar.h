/* SPDX-License-Identifier: MIT
 * The scalar kernels: the specification that every other instruction set is tested against.
 *
 * Each keeps the sums and the order of the one-at-a-time definitions in gpu/kernels/attend.h, to the last bit; what is added is
 * that a row of codes is fetched once for all vectors. Vectors are taken TILE at a time, lanes in chunks of 64. */
#ifndef KVFI_SCALAR_H
#define KVFI_SCALAR_H

#include "cpu/kernels.h"
#include "gpu/kernels/shape.h"

enum { KVFI_TILE = 8, KVFI_CHUNK = 64 };

/* Each file's own part of the table. */
void kvfi_scalar_half(kvfi_kind_ops *ops);
void kvfi_scalar_token(kvfi_kind_ops *ops);
void kvfi_scalar_channel(kvfi_kind_ops *ops);
void kvfi_scalar_trellis(kvfi_kind_ops *ops);
void kvfi_scalar_sum(kvfi_kind_ops *ops);
void kvfi_scalar_vector(kvfi_kind_ops *ops);
void kvfi_scalar_rows(kvfi_kernels *k);
void kvfi_scalar_tiles(kvfi_kernels *k);
void kvfi_scalar_softmax(float *s, const float *add, int32_t n, float *max, float *sum, float *factor);
void kvfi_scalar_hadamard(float *x, size_t stride, int32_t n, int32_t dim, int32_t block);
void kvfi_scalar_nearest(const float *x, int64_t n, int32_t sub, const float *centroids, int32_t k, uint16_t *index);
void kvfi_scalar_paths(int32_t bits, const float level[KVFI_TRELLIS_STATES], int32_t n, const float (*y)[KVFI_TRELLIS_LANES],
                       float (*cost)[KVFI_TRELLIS_LANES], kvfi_came_from *from);

float kvfi_scalar_dot16(const float *a, const float *b, int32_t n);
void kvfi_scalar_widen(const uint16_t *half, int32_t n, float *x);
void kvfi_scalar_narrow(const float *x, int32_t n, uint16_t *half);
void kvfi_scalar_rank(const kvfi_ranks *r, const float *x, float factor, int32_t n, uint8_t *codes, float *decoded);

/* KVF_KIND_VECTOR, for overlays that leave some of it. */
void kvfi_scalar_vector_score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *out);
void kvfi_scalar_vector_mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride);
void kvfi_scalar_vector_unfold(const kvf_part *part, const void *record, float *tile);

/* An entry that is exact on every set, of the set that the owner of the part has chosen. */
#define KVFI_EXACT(part, entry) ((part)->kernels ? (part)->kernels->entry : kvfi_scalar_##entry)

/* Prepared queries of every kind: floats [n][dim_pad]; with minima and channel groups their sums follow, [n][n_cg]. */
size_t kvfi_scalar_prepared_bytes(const kvf_part *part, int32_t n);
void kvfi_scalar_prepare(const kvf_part *part, const float *q, size_t stride, int32_t n, void *prepared);

/* What both coded kinds do alike: mixing in tiles of vectors and chunks of channels, and unfolding with one or the other index of
 * scales. */
typedef void (*kvfi_scalar_mixer)(const kvfi_shape *s, const uint8_t *record, const float *w, int32_t n, int first, int count,
                                  float *acc, size_t stride);
void kvfi_scalar_mix(const kvfi_shape *s, const void *record, const float *w, int32_t n, float *acc, size_t stride,
                     kvfi_scalar_mixer mix_tile);

/* One scale a token: scores of n <= KVFI_TILE queries q[n][dim_pad], and what kvfi_scalar_mix needs. sums: see attend.h. */
void kvfi_scalar_token_score(const kvfi_shape *s, const uint8_t *record, const float *q, const float *sums, int32_t n,
                             float *out);
void kvfi_scalar_token_mix(const kvfi_shape *s, const uint8_t *record, const float *w, int32_t n, int first, int count,
                           float *acc, size_t stride);
void kvfi_scalar_unfold(const kvf_part *part, const void *record, float *tile, int (*scale_index)(const kvfi_shape *, int, int));

/* row[i] = code (r, first + i) minus zero; first and count are multiples of 16. */
static inline void kvfi_scalar_code_row(const kvfi_shape *s, const void *record, int r, int first, int count, float *row)
{
    uint8_t codes[KVFI_CHUNK];
    kvfi_codes_get_row(record, s->bits, kvfi_reduction(s), kvfi_lanes(s), r, first, count, codes);
    for (int i = 0; i < count; i++) row[i] = kvfi_level(s, codes[i]);
}

/* sum[v][i] += q[v * q_stride] * row[i] for i < 64: one channel of the scores of n <= KVFI_TILE vectors. */
static inline void kvfi_scalar_add(float sum[][KVFI_CHUNK], const float *q, size_t q_stride, int32_t n, const float *row)
{
    for (int32_t v = 0; v < n; v++)
        for (int i = 0; i < KVFI_CHUNK; i++) sum[v][i] += q[(size_t)v * q_stride] * row[i];
}

#endif
