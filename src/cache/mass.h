/* SPDX-License-Identifier: MIT
 * Attention that rows have received, for policies that rank by it: a sum of softmax weights for each row and KV head, over the query
 * heads of the group. What the open batch adds is pending until commit. Rows in bins have it beside the bin; open rows (window, then
 * batch) by their index. */
#ifndef KVFI_ATTENTION_MASS_H
#define KVFI_ATTENTION_MASS_H

#include "cache/chain.h"

typedef struct kvfi_mass {
    float sum[KVF_BLOCK], pending[KVF_BLOCK];
} kvfi_mass;

_Static_assert(sizeof(kvfi_mass) == KVF_BLOCK * 8, "docs/FORMAT.md, bins");

static inline kvfi_mass *kvfi_link_mass(kvfi_link *link, const kvfi_store *st, int32_t head)
{
    return (kvfi_mass *)(void *)((uint8_t *)link + kvfi_link_bytes(st->kv_heads)) + head;
}

/* [open_most] of one head: of committed rows, and pending. */
static inline float *kvfi_open_mass(const kvf_cache *c, const kvfi_sequence *s, const kvfi_store *st, int32_t head, int pending)
{
    float *all = (float *)(void *)(s->exact + c->g.mass_offset);
    return all + ((size_t)(st->first_score + head) * 2 + (size_t)pending) * (size_t)c->g.open_most;
}

/* Of one decoded row and one link, [group][64] softmax weights relative to the largest score so far, then [group] of those: the walk
 * leaves them, and they become masses once the largest of all is known. */
static inline float *kvfi_link_weights(const kvf_cache *c, const kvfi_sequence *s, int32_t link, int32_t head, int32_t group)
{
    float *all = (float *)(void *)(s->chains + (size_t)s->chain_room * c->g.weights_offset);
    return all + ((size_t)link * (size_t)c->g.weight_heads + (size_t)head * (size_t)group) * (KVF_BLOCK + 1);
}

/* batch_begin, and commit before rows are stored. */
void kvfi_mass_clear_pending(kvf_cache *c, kvfi_sequence *s);
void kvfi_mass_promote(kvf_cache *c, kvfi_sequence *s, const kvfi_run *r);

/* Open rows `first` .. first + 63 have become the last link of a store; later `moved` of them have gone, all in all. */
void kvfi_mass_adopt(const kvf_cache *c, const kvfi_sequence *s, const kvfi_store *st, kvfi_link *link, int32_t first);
void kvfi_mass_shift(kvf_cache *c, kvfi_sequence *s, int32_t moved);

/* Open rows have received nothing. */
void kvfi_mass_forget(kvf_cache *c, kvfi_sequence *s);

/* What the rows of a head are ranked by, into `pending` of its links, which nobody needs then: `next` rows and positions have come. */
void kvfi_mass_rank(const kvf_cache *c, const kvfi_sequence *s, int32_t store, int32_t head, int64_t next);

#endif
