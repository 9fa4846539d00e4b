/* SPDX-License-Identifier: MIT
 * Pages back to the system: what removals and commits have emptied, but for what the next commits will fill again. */
#include "cache/mass.h"

/* Free blocks of a store that keep their pages in a commit: what another batch of that size seals, and two more as bins do not empty
 * evenly. Beyond 16, faulting pages in again is nothing beside coding so many blocks. */
enum { WARM_MOST = 16 };

static int32_t warm_blocks(const kvf_cache *c)
{
    const int32_t sealed = (c->batch.n + KVF_BLOCK - 1) / KVF_BLOCK + 2;
    return sealed < WARM_MOST ? sealed : WARM_MOST;
}

/* Entries from `used` on of an array of `room` entries. */
static void trim_array(const kvf_cache *c, uint8_t *array, int64_t used, int64_t room, size_t entry)
{
    if (used < room) kvfi_trim(&c->a, array + (size_t)used * entry, (size_t)(room - used) * entry);
}

/* Table and chains behind what is in use and `keep` entries more. */
static void trim_sequence(const kvf_cache *c, const kvfi_sequence *s, int32_t keep)
{
    const int64_t room = s->chain_room, longest = (int64_t)kvfi_chain_longest(c, s) + keep;
    trim_array(c, s->table, (int64_t)s->n_blocks + keep, s->table_rows, c->g.row_bytes);
    if (!room) return;
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        if (st->packs) trim_array(c, (uint8_t *)kvfi_link_at(s, st, 0), (int64_t)s->n_links[i] + keep, room, st->link_bytes);
    }
    const size_t sorts = c->g.weights_offset - c->g.sort_offset, weights = c->g.beside_bytes - sorts;
    trim_array(c, s->chains + (size_t)room * c->g.sort_offset, longest, room, sorts);
    trim_array(c, s->chains + (size_t)room * c->g.weights_offset, longest, room, weights);
}

void kvfi_trim_removed(kvf_cache *c, const kvfi_sequence *s)
{
    for (int i = 0; i < c->g.n_stores; i++) kvfi_pool_trim(&c->pools[i], &c->a, 0);
    kvfi_pool_trim(&c->tables, &c->a, 0);
    trim_sequence(c, s, 0);
}

void kvfi_trim_committed(kvf_cache *c)
{
    const int32_t warm = warm_blocks(c);
    uint32_t returned = 0;
    for (int i = 0; i < c->g.n_stores; i++) returned += kvfi_pool_trim(&c->pools[i], &c->a, (uint32_t)warm);
    for (int32_t i = 0; returned && i < c->batch.n_runs; i++) trim_sequence(c, &c->sequences[c->batch.runs[i].seq], warm);
}
