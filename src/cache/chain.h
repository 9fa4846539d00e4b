/* SPDX-License-Identifier: MIT
 * Blocks whose rows have no first position in common: of stores whose policy ranks rows, so that every head keeps others, and of torn
 * sequences, where removals left holes. Each head has 64 places in a block, a bin, and every place its own position. A sequence has a
 * chain of such blocks for each store. Rows whose places are free again are replaced by others of the same table set (pack.c), in no
 * particular order.
 *
 * A block is shared by copies of a sequence; bins are not, and who wants to write into a shared block takes a copy first. */
#ifndef KVFI_CHAIN_H
#define KVFI_CHAIN_H

#include "cache/cache.h"

/* 64 places of one head. */
typedef struct kvfi_bin {
    uint64_t alive;            /* bit t: place t holds a row */
    uint64_t earlier;          /* bit t: its key has the centre of the segment before its own, in which its block began */
    int32_t epoch;             /* table set that its keys were coded with; 0 where the store estimates nothing */
    int32_t reserved;          /* 0 */
    int32_t pos[KVF_BLOCK];    /* position of the row at each place, living or not */
    uint16_t score[KVF_BLOCK]; /* the policy's */
} kvfi_bin;

_Static_assert(sizeof(kvfi_bin) == 24 + KVF_BLOCK * 6, "docs/FORMAT.md, bins");

typedef struct kvfi_link {
    uint32_t id;       /* block of the store's pool */
    uint32_t reserved; /* 0 */
    kvfi_bin bin[];    /* [kv_heads] */
} kvfi_link;

_Static_assert(sizeof(kvfi_link) == 8, "docs/FORMAT.md, bins");

static inline size_t kvfi_link_bytes(int32_t kv_heads)
{
    return sizeof(kvfi_link) + (size_t)kv_heads * sizeof(kvfi_bin);
}

static inline kvfi_link *kvfi_link_at(const kvfi_sequence *s, const kvfi_store *st, int32_t i)
{
    return (kvfi_link *)(void *)(s->chains + (size_t)s->chain_room * st->chain_offset + (size_t)i * st->link_bytes);
}

/* Blocks that a sequence holds of a store, in its chain and in its table, shared or not. */
int32_t kvfi_blocks_held(const kvf_cache *c, const kvfi_sequence *s, int32_t store);

/* Links of the longest chain; and once the blocks that a torn sequence has in its table are there, too. */
int32_t kvfi_chain_longest(const kvf_cache *c, const kvfi_sequence *s);
int32_t kvfi_chain_to_come(const kvf_cache *c, const kvfi_sequence *s);

/* Makes room for `links` in every chain; allocates. KVF_OK or KVF_E_NOMEM (nothing changed, no sentence left). */
int kvfi_chain_grow(kvf_cache *c, kvfi_sequence *s, int64_t links);

/* The blocks that a table row has of stores in chains go to the end of those, rows, scores and all. Their first
 * row was the open row `open` when the batch began. No chain is longer than then and `open` / 64 links more. */
void kvfi_chain_adopt(kvf_cache *c, kvfi_sequence *s, uint8_t *row, int32_t open);

/* Rows of one store with p0 <= position < p1 die; blocks without a living row go. 1: some row did. Of all stores, whose chains are
 * packed then: what was removed frees memory for others. */
int kvfi_chain_kill_in(kvf_cache *c, kvfi_sequence *s, int32_t store, int64_t p0, int64_t p1);
void kvfi_chain_kill(kvf_cache *c, kvfi_sequence *s, int64_t p0, int64_t p1);

/* All blocks go. */
void kvfi_chain_clear(kvf_cache *c, kvfi_sequence *s);

/* `to` gets the chains of `from`; there is room. */
void kvfi_chain_copy(kvf_cache *c, kvfi_sequence *to, const kvfi_sequence *from);

/* Moves rows until every table set of every head has no more bins than its rows need (pack.c). */
void kvfi_chain_pack(kvf_cache *c, kvfi_sequence *s, int32_t store);

/* Living rows of a head. */
int64_t kvfi_chain_rows(const kvfi_sequence *s, const kvfi_store *st, int32_t n, int32_t head);

/* Segment whose centre the key at place t has. */
static inline int64_t kvfi_bin_segment(const kvfi_bin *bin, int32_t t)
{
    return bin->pos[t] / KVFI_SEGMENT - (int64_t)(bin->earlier >> t & 1);
}

static inline int kvfi_link_empty(const kvfi_link *link, const kvfi_store *st)
{
    uint64_t any = 0;
    for (int32_t h = 0; h < st->kv_heads; h++) any |= link->bin[h].alive;
    return !any;
}

/* Bits of the places whose position lies in [p0, p1). */
static inline uint64_t kvfi_bin_range(const kvfi_bin *bin, int64_t p0, int64_t p1)
{
    uint64_t bits = 0;
    for (int t = 0; t < KVF_BLOCK; t++) bits |= (uint64_t)(bin->pos[t] >= p0 && bin->pos[t] < p1) << t;
    return bits;
}

#endif
