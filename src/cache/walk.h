/* SPDX-License-Identifier: MIT
 * An item of an attention on its walk over history: its queries, what is known of centres on the way, and the scores of the piece of up
 * to 64 tokens that it is at. Attention (walk.c) mixes values with them; masses (walk_mass.c) add them up. */
#ifndef KVFI_CACHE_WALK_H
#define KVFI_CACHE_WALK_H

#include "cache/mass.h"
#include "cache/rows.h"

#include <math.h>

typedef struct kvfi_walker {
    kvf_cache *c;
    const kvf_attention *a;
    const kvfi_layer *layer;
    const kvfi_store *store;
    const kvf_part *k, *v; /* of the item's head */
    kvf_part k_room, v_room;
    const kvfi_run *run;
    const kvfi_sequence *seq;
    const kvfi_item *item;
    const kvfi_kernels *kernels;
    int32_t n;                 /* vectors */
    int32_t tiles;             /* 1: unfold tiles of exact rows, */
    int32_t tiles_k, tiles_v;  /* of keys, of values */
    size_t k_stride, v_stride; /* floats from one vector to the next */
    float *q, *q_rotated, *scores, *acc, *acc_rotated, *tile_k, *tile_v, *bias, *rows_k, *rows_v;
    void *prepared;
    int32_t epoch;              /* whose channel scale q_rotated has; -1: none yet */
    int64_t segment;            /* whose centre `offset` has */
    double centre[1024];        /* of that segment; blocks come in order, so it is turned on from the one before */
    float offset[KVFI_VECTORS]; /* <q, centre> of each vector */
    float room[KVFI_VECTORS];   /* what `add` of the last block points to */
    kvfi_rows keys;             /* exact ones that were scored last */
    float factor[KVFI_VECTORS]; /* what a raised maximum multiplies the accumulator with */
    int64_t *known;             /* chains: entry i holds offsets of this segment and epoch; -1: none */
    float *offsets;             /* [n_known][n] */
    int32_t n_known;
    int32_t from, to; /* chains: links of this walk */
    int32_t listed;   /* 1: entries of all their living rows of the epoch in use are known */
    float max[KVFI_VECTORS], sum[KVFI_VECTORS];
    float share[KVFI_VECTORS]; /* masses: one over the denominator of each vector; 0: it does not count */
    int32_t gathers;           /* 1: one decoded row whose weights are left for its masses */
    int32_t pos[KVFI_VECTORS], row[KVFI_VECTORS], head[KVFI_VECTORS]; /* of each vector: position, batch row, query head */
} kvfi_walker;

/* What the walk of an item needs to know; slot is scratch of one thread. And its queries, before anything is scored; they are turned for
 * packed codes when the first block asks for that. */
void kvfi_walker_open(kvfi_walker *w, kvf_cache *c, const kvfi_item *item, uint8_t *slot);
void kvfi_walker_prepare(kvfi_walker *w);

/* Table sets that links may have: queries are prepared once for each when links are taken set by set. */
static inline int32_t kvfi_walker_epochs(const kvfi_walker *w)
{
    return w->store->self ? w->seq->n_sets : 1;
}

/* Each leaves w->scores [n][64] of one piece: scaled, capped, with ALiBi, -inf where a query may not look. NULL or 0: nobody sees any of
 * it, and scores are what they were. */

/* Of a block of the table, which has consecutive positions; returns its record. *add: what is still to be added to all scores of each
 * vector (see kvfi_kernels.softmax), or NULL. */
const uint8_t *kvfi_score_block(kvfi_walker *w, int32_t block, const float **add);

/* Of a block of a chain, where every place has a position of its own; returns its record. */
const uint8_t *kvfi_score_link(kvfi_walker *w, const kvfi_link *link);

/* Of the sink; of open rows i .. i + n - 1; of rows i .. i + n - 1 of the batch's own run. */
int kvfi_score_sink(kvfi_walker *w);
int kvfi_score_window(kvfi_walker *w, int32_t i, int32_t n);
int kvfi_score_tail(kvfi_walker *w, int32_t i, int32_t n);

/* The values of what was scored last; cell is room that they may point to. */
kvfi_rows kvfi_sink_values(const kvfi_walker *w);
kvfi_rows kvfi_window_values(const kvfi_walker *w, int32_t i, int32_t n);
kvfi_rows kvfi_tail_values(const kvfi_walker *w, int32_t i, int32_t n, int32_t cell[KVF_BLOCK]);

/* Rows of the piece that begins at row i of `rows`. */
static inline int32_t kvfi_piece(int32_t i, int32_t rows)
{
    return rows - i < KVF_BLOCK ? rows - i : KVF_BLOCK;
}

/* [2][KVFI_VECTORS] of an item: largest score and sum of each vector, from its walk to its masses. */
static inline float *kvfi_norms_of(const kvf_cache *c, const kvfi_item *item)
{
    return c->attend.norms + (size_t)(item - c->attend.items) * 2 * KVFI_VECTORS;
}

/* A maximum may hide a NaN, and an exponential what is infinite, so scores are looked at before softmax. */
static inline void kvfi_watch_scores(const kvfi_walker *w)
{
    int bad = 0;
    for (int32_t i = 0; i < w->n * KVF_BLOCK; i++) bad |= !(w->scores[i] < INFINITY);
    if (bad) atomic_store(&w->c->attend.bad_mass, 1);
}

#endif
