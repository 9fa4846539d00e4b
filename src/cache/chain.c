/* SPDX-License-Identifier: MIT */
#include "cache/mass.h"

#include <string.h>

int32_t kvfi_chain_longest(const kvf_cache *c, const kvfi_sequence *s)
{
    int32_t most = 0;
    for (int i = 0; i < c->g.n_stores; i++)
        if (s->n_links[i] > most) most = s->n_links[i];
    return most;
}

int32_t kvfi_blocks_held(const kvf_cache *c, const kvfi_sequence *s, int32_t store)
{
    int32_t n = s->n_links[store];
    for (int32_t b = 0; b < s->n_blocks; b++) n += kvfi_row_ids(c, kvfi_row(c, s, b))[store] != KVFI_NO_BLOCK;
    return n;
}

int32_t kvfi_chain_to_come(const kvf_cache *c, const kvfi_sequence *s)
{
    int32_t most = 0;
    if (s->torn != 1) return kvfi_chain_longest(c, s);
    for (int i = 0; i < c->g.n_stores; i++) {
        const int32_t links = c->g.stores[i].packs ? kvfi_blocks_held(c, s, i) : 0;
        if (links > most) most = links;
    }
    return most;
}

int kvfi_chain_grow(kvf_cache *c, kvfi_sequence *s, int64_t links)
{
    if (links <= s->chain_room || !c->g.chain_bytes) return KVF_OK;
    uint8_t *chains = links <= INT32_MAX ? kvfi_alloc(&c->a, (size_t)links * c->g.chain_bytes) : NULL;
    if (!chains) return KVF_E_NOMEM;
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        if (s->n_links[i])
            memcpy(chains + (size_t)links * st->chain_offset, kvfi_link_at(s, st, 0), (size_t)s->n_links[i] * st->link_bytes);
    }
    kvfi_release(&c->a, s->chains, (size_t)s->chain_room * c->g.chain_bytes);
    s->chains = chains, s->chain_room = (int32_t)links;
    return KVF_OK;
}

/* scores [64]: NULL: all 0. They may lie where they go. */
static void fill_bin(const kvf_cache *c, const kvfi_store *st, uint8_t *row, int32_t head, const uint16_t *scores, kvfi_bin *bin)
{
    bin->alive = kvfi_row_valid(c, row)[st->first_head + head];
    bin->epoch = st->self ? *kvfi_row_epoch(row) : 0;
    bin->reserved = 0, bin->earlier = 0;
    for (int32_t t = 0; t < KVF_BLOCK; t++) {
        bin->pos[t] = *kvfi_row_first(row) + t;
        bin->earlier |= (uint64_t)(bin->pos[t] / KVFI_SEGMENT != bin->pos[0] / KVFI_SEGMENT) << t;
    }
    if (scores)
        memmove(bin->score, scores, sizeof bin->score);
    else
        memset(bin->score, 0, sizeof bin->score);
}

void kvfi_chain_adopt(kvf_cache *c, kvfi_sequence *s, uint8_t *row, int32_t open)
{
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        uint32_t *id = &kvfi_row_ids(c, row)[i];
        if (!kvfi_in_chain(st, s->torn) || *id == KVFI_NO_BLOCK) continue;
        kvfi_link *link = kvfi_link_at(s, st, s->n_links[i]);
        const kvfi_link *scored = kvfi_link_at(s, st, c->batch.scored[i] + open / KVF_BLOCK);
        const int has = st->chained && c->g.evict.policy->score;
        link->id = *id, link->reserved = 0;
        for (int32_t h = 0; h < st->kv_heads; h++) fill_bin(c, st, row, h, has ? scored->bin[h].score : NULL, &link->bin[h]);
        kvfi_mass_adopt(c, s, st, link, open);
        *id = KVFI_NO_BLOCK;
        if (kvfi_link_empty(link, st))
            kvfi_pool_drop(&c->pools[i], link->id);
        else
            s->n_links[i]++;
    }
}

int kvfi_chain_kill_in(kvf_cache *c, kvfi_sequence *s, int32_t store, int64_t p0, int64_t p1)
{
    const kvfi_store *st = &c->g.stores[store];
    int32_t kept = 0;
    int killed = 0;
    for (int32_t i = 0; i < s->n_links[store]; i++) {
        kvfi_link *link = kvfi_link_at(s, st, i);
        for (int32_t h = 0; h < st->kv_heads; h++) {
            const uint64_t range = kvfi_bin_range(&link->bin[h], p0, p1);
            killed |= (link->bin[h].alive & range) != 0;
            link->bin[h].alive &= ~range;
        }
        if (kvfi_link_empty(link, st)) {
            kvfi_pool_drop(&c->pools[store], link->id);
            continue;
        }
        if (kept < i) memcpy(kvfi_link_at(s, st, kept), link, st->link_bytes);
        kept++;
    }
    s->n_links[store] = kept;
    return killed;
}

void kvfi_chain_kill(kvf_cache *c, kvfi_sequence *s, int64_t p0, int64_t p1)
{
    for (int i = 0; i < c->g.n_stores; i++)
        if (kvfi_chain_kill_in(c, s, i, p0, p1)) kvfi_chain_pack(c, s, i);
}

void kvfi_chain_clear(kvf_cache *c, kvfi_sequence *s)
{
    for (int store = 0; store < c->g.n_stores; store++) {
        for (int32_t i = 0; i < s->n_links[store]; i++)
            kvfi_pool_drop(&c->pools[store], kvfi_link_at(s, &c->g.stores[store], i)->id);
        s->n_links[store] = 0;
    }
}

void kvfi_chain_copy(kvf_cache *c, kvfi_sequence *to, const kvfi_sequence *from)
{
    for (int store = 0; store < c->g.n_stores; store++) {
        const kvfi_store *st = &c->g.stores[store];
        to->n_links[store] = from->n_links[store];
        for (int32_t i = 0; i < from->n_links[store]; i++) {
            memcpy(kvfi_link_at(to, st, i), kvfi_link_at(from, st, i), st->link_bytes);
            kvfi_pool_share(&c->pools[store], kvfi_link_at(from, st, i)->id);
        }
    }
}

int64_t kvfi_chain_rows(const kvfi_sequence *s, const kvfi_store *st, int32_t n, int32_t head)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < n; i++) rows += kvfi_popcount(kvfi_link_at(s, st, i)->bin[head].alive);
    return rows;
}
