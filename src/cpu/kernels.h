/* SPDX-License-Identifier: MIT
 * The table of kernels: filled with scalar code, which is the specification, then overlaid by what the processor has.
 * A "vector" below is one query head of one query row; the vectors of a GQA group (and of several rows) share every code read.
 * Scores and weights of a piece are s[vectors][64]. Nothing here allocates, checks or knows a codec by name.
 */
#ifndef KVFI_KERNELS_H
#define KVFI_KERNELS_H

#include "kvfold_codec.h"

/* Exact rows of one head: sink, window, tail. Row i is at data + (index ? index[i] : i) * stride. */
typedef struct kvfi_rows {
    const char *data;
    int64_t stride; /* bytes */
    kvf_type type;
    const int32_t *index; /* NULL: consecutive */
} kvfi_rows;

/* One inner kind on packed records. */
typedef struct kvfi_kind_ops {
    /* Bytes of the prepared form of `n` queries (a multiple of 64). */
    size_t (*prepared_bytes)(const kvf_part *part, int32_t n);
    /* Once per head: q[n][stride] floats in the part's domain (rotated already), channels dim..dim_pad-1 zero. */
    void (*prepare)(const kvf_part *part, const float *q, size_t stride, int32_t n, void *prepared);
    /* s[v][t] = <q_v, key t> for the 64 tokens of a key record. */
    void (*score)(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *s);
    /* acc[v][c] += sum_t w[v][t] * value_t[c], c < dim_pad, of a value record; in the part's domain. stride in floats. */
    void (*mix)(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride);
    /* Decodes in the part's domain: keys to tile[dim_pad][64] (channel-major), values to tile[64][dim_pad]. */
    void (*unfold)(const kvf_part *part, const void *record, float *tile);
    /* 0: score and mix multiply floats. Else they round multipliers (query, weights, with scales where those are folded in) to
     * integers of at most this magnitude, one unit a vector or run: less than 255 n of them may be summed in 32 bits, so that
     * above 256 channels the magnitude is at least 8.3e6 / n. overlay/planes.h */
    int64_t fixed_point;
    /* 1: however many vectors there are, score and mix are faster than unfolding a tile for all of them. */
    int32_t many;
} kvfi_kind_ops;

typedef void (*kvfi_nearest)(const float *x, int64_t n, int32_t sub, const float *centroids, int32_t k, uint16_t *index);

/* The bit-shift trellis (codec/tcq). Vectors are searched LANES at a time, side by side: what is done to one state of all of them is
 * done to whole SIMD registers, on every set. */
enum { KVFI_TRELLIS_STATES = 256, KVFI_TRELLIS_LANES = 8 };

/* Which state came before, for each group h of 2^bits states that follow the same ones: bit j of its number, for lane i, is bit h % 32 of
 * [h / 32 * bits + j][i]. */
typedef uint32_t kvfi_came_from[4][KVFI_TRELLIS_LANES];

typedef void (*kvfi_paths)(int32_t bits, const float level[KVFI_TRELLIS_STATES], int32_t n, const float (*y)[KVFI_TRELLIS_LANES],
                           float (*cost)[KVFI_TRELLIS_LANES], kvfi_came_from *from);

/* A table to code with, 2^bits entries, bits 1 to 8: a number is coded as the number of bounds strictly below it, of which there are
 * 2^bits - 1, ascending, and decoded as level[code]. */
typedef struct kvfi_ranks {
    int32_t bits;
    float bound[256], level[256];
} kvfi_ranks;

typedef struct kvfi_kernels {
    const char *name;
    kvfi_kind_ops kind[KVF_KINDS];

    /* Exact rows, few vectors: s[v][i] = <q_v, row i> for i < n (n <= 64); q[nv][q_stride]. */
    void (*rows_score)(const kvfi_rows *rows, int32_t n, int32_t dim, const float *q, size_t q_stride, int32_t nv, float *s);
    /* acc[v][c] += sum_{i<n} w[v][i] * row_i[c], c < dim. */
    void (*rows_mix)(const kvfi_rows *rows, int32_t n, int32_t dim, const float *w, int32_t nv, float *acc, size_t stride);
    /* Exact rows to tiles, many vectors: keys to tile[dim_pad][64], values to tile[64][dim_pad]; rows n..63 and padded channels
     * become zero. */
    void (*rows_unfold_k)(const kvfi_rows *rows, int32_t n, int32_t dim, int32_t dim_pad, float *tile);
    void (*rows_unfold_v)(const kvfi_rows *rows, int32_t n, int32_t dim, int32_t dim_pad, float *tile);

    /* Dense tiles, many vectors: s[v][t] = sum_c q[v][c] * tile[c][t];  acc[v][c] += sum_t w[v][t] * tile[t][c]. */
    void (*tile_score)(const float *tile, int32_t dim_pad, const float *q, size_t q_stride, int32_t nv, float *s);
    void (*tile_mix)(const float *tile, int32_t dim_pad, const float *w, int32_t nv, float *acc, size_t stride);

    /* Online softmax of 64 scores of each of n vectors, s[n][64] (absent ones are -inf). add[v] (NULL: 0) is what all scores of
     * the piece share and s does not hold yet. Raises max[v], turns s into exp(s + add[v] - max[v]), adds them to sum[v] after
     * rescaling it, and leaves in factor[v] what the accumulator must be multiplied with (1 when the maximum stays). When
     * everything so far is -inf: s becomes 0, nothing changes, factor[v] is 1. */
    void (*softmax)(float *s, const float *add, int32_t n, float *max, float *sum, float *factor);

    /* Orthonormal Hadamard in place: n vectors, dim channels, blocks of `block`. Bit-identical on every target: each butterfly
     * (a, b) -> (a + b, a - b), strides 1, 2, 4, ..., then one multiplication by the f32 nearest 1/sqrt(block). */
    void (*hadamard)(float *x, size_t stride, int32_t n, int32_t dim, int32_t block);

    /* index[i] = the nearest of centroids[k][sub] to x[i][sub], i < n: squared distances in f32, channel after channel, nothing fused;
     * of equals the lowest index. sub 2, 4 or 8, k 1 to 4096. The same indices on every target. */
    kvfi_nearest nearest;

    /* n steps of Viterbi's algorithm: cost[s][i] is that of the cheapest way of lane i into state s, before the steps and, rewritten,
     * after them. In step d, state h << bits | code, code < 2^bits, is entered from the cheapest of the states
     * k << (8 - bits) | h, k < 2^bits, of equals from the lowest, which from[d] keeps; and its own cost is added,
     * (y[d][i] - level[state])^2. f32, nothing fused; no NaN. bits 1 to 4. The same costs and choices on every target. */
    kvfi_paths paths;

    /* Steps of coding a vector of n channels, any n; the same bits on every target.
     * f32 sum with a fixed tree: 16 interleaved partials (element i into partial i % 16), then halves added pairwise. */
    float (*dot16)(const float *a, const float *b, int32_t n);
    /* f16 as f32, and back: to nearest even, magnitudes above 65504 saturate. */
    void (*widen)(const uint16_t *half, int32_t n, float *x);
    void (*narrow)(const float *x, int32_t n, uint16_t *half);
    /* Codes x[i] * factor: codes[n], and decoded[n]. */
    void (*rank)(const kvfi_ranks *r, const float *x, float factor, int32_t n, uint8_t *codes, float *decoded);
} kvfi_kernels;

/* Every instruction set once (isa.def), worst first. */
int kvfi_cpu_count(void);
const char *kvfi_cpu_name(int i);
int kvfi_cpu_present(int i);

/* Fills the table for `name` (NULL: $KVFOLD_CPU, else the best present): scalar, then every overlay up to it. Returns
 * KVF_E_UNSUPPORTED with a sentence when the set is unknown, not built in, or absent from this processor. */
int kvfi_kernels_select(const char *name, kvfi_kernels *k, char *error, size_t error_size);

#endif
