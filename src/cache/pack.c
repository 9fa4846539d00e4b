/* SPDX-License-Identifier: MIT
 * Compaction of chains: memory follows the rows that are kept. Within a head and a table set,
 * - codecs whose tokens stand alone: whenever the rows would fit into one bin less, the rows of the emptiest bin move into free places
 *   of the others, codes and scales bit for bit. So a set of n rows has ceil(n / 64) bins.
 * - others (a scale per channel, a mean of the block): two bins that are both more than half dead become one. Rows that stay in it keep
 *   their codes; those that come, from the bin whose oldest row is younger, are decoded and coded beside them. So a row that stays long is
 *   coded a few times, however many come and go. Every other bin is at least half full.
 * Then whole bins move down until a head's come first in the chain, and blocks that hold nothing go. */
#include "cache/mass.h"
#include "codec/shared/move.h"
#include "codec/shared/part.h"

#include <string.h>

/* One head of one store. */
typedef struct head_bins {
    kvf_cache *c;
    kvfi_sequence *s;
    const kvfi_store *st;
    int32_t store, head, n;
} head_bins;

static const uint64_t ALL = ~(uint64_t)0;

static kvfi_bin *bin_at(const head_bins *b, int32_t i)
{
    return &kvfi_link_at(b->s, b->st, i)->bin[b->head];
}

static kvfi_mass *mass_at(const head_bins *b, int32_t i)
{
    return kvfi_link_mass(kvfi_link_at(b->s, b->st, i), b->st, b->head);
}

static const uint8_t *record_at(const head_bins *b, int32_t i)
{
    return kvfi_pool_data(&b->c->pools[b->store], kvfi_link_at(b->s, b->st, i)->id) + (size_t)b->head * b->st->record_bytes;
}

/* The same for writing: a block that another sequence holds is copied first (there is room, batch.c). */
static uint8_t *own_record(const head_bins *b, int32_t i)
{
    kvfi_pool *pool = &b->c->pools[b->store];
    kvfi_link *link = kvfi_link_at(b->s, b->st, i);
    if (pool->blocks[link->id].references > 1) {
        const uint32_t shared = link->id;
        link->id = kvfi_pool_take(pool);
        memcpy(kvfi_pool_data(pool, link->id), kvfi_pool_data(pool, shared), pool->block_bytes);
        kvfi_pool_drop(pool, shared);
    }
    return (uint8_t *)(uintptr_t)record_at(b, i);
}

static int32_t first_hole(uint64_t alive)
{
    int32_t t = 0;
    while (alive >> t & 1) t++;
    return t;
}

static void take_place(const head_bins *b, int32_t i, int32_t u, int32_t j, int32_t t)
{
    kvfi_bin *to = bin_at(b, i), *from = bin_at(b, j);
    if (b->st->mass) mass_at(b, i)->sum[u] = mass_at(b, j)->sum[t];
    to->pos[u] = from->pos[t], to->score[u] = from->score[t];
    to->earlier = (to->earlier & ~((uint64_t)1 << u)) | (from->earlier >> t & 1) << u;
    to->alive |= (uint64_t)1 << u;
    from->alive &= ~((uint64_t)1 << t);
}

/* ---- tokens that stand alone ---------------------------------------------------------------------------------------------------- */

/* The bin of a table set whose rows fit into free places of its others: the emptiest, of equals the last. -1: none does. */
static int32_t spare_bin(const head_bins *b, int32_t epoch)
{
    int32_t bins = 0, rows = 0, least = KVF_BLOCK + 1, spare = -1;
    for (int32_t i = 0; i < b->n; i++) {
        const kvfi_bin *bin = bin_at(b, i);
        const int32_t alive = kvfi_popcount(bin->alive);
        if (!alive || bin->epoch != epoch) continue;
        bins++, rows += alive;
        if (alive <= least) least = alive, spare = i;
    }
    return bins && rows <= KVF_BLOCK * (bins - 1) ? spare : -1;
}

static void move_row(const head_bins *b, int32_t from, int32_t t, int32_t to, int32_t u)
{
    uint8_t *record = own_record(b, to);
    const uint8_t *old = record_at(b, from);
    const size_t values = b->st->k.bytes;
    kvfi_part_move(&b->st->k, old, t, record, u);
    if (!b->st->v_in_k) kvfi_part_move(&b->st->v, old + values, t, record + values, u);
    take_place(b, to, u, from, t);
}

static void empty_bin(const head_bins *b, int32_t from)
{
    const kvfi_bin *bin = bin_at(b, from);
    int32_t to = 0;
    for (int32_t t = 0; t < KVF_BLOCK; t++) {
        if (!(bin->alive >> t & 1)) continue;
        while (to == from || bin_at(b, to)->epoch != bin->epoch || !bin_at(b, to)->alive || bin_at(b, to)->alive == ALL) to++;
        move_row(b, from, t, to, first_hole(bin_at(b, to)->alive));
    }
}

/* ---- tokens that share numbers ---------------------------------------------------------------------------------------------------- */

/* The first bin from `from` on of the table set that is more than half dead; n: none. */
static int32_t half_dead(const head_bins *b, int32_t epoch, int32_t from)
{
    int32_t i = from;
    for (; i < b->n; i++) {
        const kvfi_bin *bin = bin_at(b, i);
        if (bin->alive && bin->epoch == epoch && kvfi_popcount(bin->alive) < KVF_BLOCK / 2) break;
    }
    return i;
}

/* x[t] of the rows whose bit is set, as they were when they were coded. Centre and scale are those of before, so they stay in. */
static void decode_rows(const head_bins *b, const kvf_part *part, const uint8_t *record, const int8_t place[KVF_BLOCK], float *x)
{
    kvf_cache *c = b->c;
    float *tile = (float *)(void *)(c->attend.slots + (part->side == KVF_K ? c->g.slot_q : c->g.slot_acc));
    float row[1024];
    c->g.kernels.kind[part->kind].unfold(part, record, tile);
    for (int32_t t = 0; t < KVF_BLOCK; t++) {
        if (place[t] < 0) continue;
        kvfi_decoded_row(c, part, record, tile, t, row);
        memcpy(x + (size_t)place[t] * (size_t)part->head_dim, row, (size_t)part->head_dim * sizeof *x);
    }
}

/* Places without a row repeat the one before, so that they do not widen any range. */
static void fill_dead(uint64_t alive, int32_t dim, float *x)
{
    int32_t last = 0;
    while (!(alive >> last & 1)) last++;
    for (int32_t t = 0; t < KVF_BLOCK; t++) {
        if (alive >> t & 1)
            last = t;
        else
            memcpy(x + (size_t)t * (size_t)dim, x + (size_t)last * (size_t)dim, (size_t)dim * sizeof *x);
    }
}

/* Two bins that become one. */
typedef struct merger {
    int32_t to, from;
    int8_t stay[KVF_BLOCK], go[KVF_BLOCK]; /* place of each row of `to`, of `from`; -1: it is dead */
    uint64_t alive;                        /* of what they become */
} merger;

/* The rows of the first bin stay, the others take its free places in turn. */
static void find_places(const head_bins *b, merger *m)
{
    const uint64_t own = bin_at(b, m->to)->alive, other = bin_at(b, m->from)->alive;
    m->alive = own;
    for (int8_t t = 0; t < KVF_BLOCK; t++) {
        m->stay[t] = own >> t & 1 ? t : -1, m->go[t] = -1;
        if (!(other >> t & 1)) continue;
        m->go[t] = (int8_t)first_hole(m->alive);
        m->alive |= (uint64_t)1 << m->go[t];
    }
}

/* Codes rows x of a merger into the record, of which those that stay keep what they had. */
static void code_beside(const head_bins *b, const kvf_part *part, float *x, const merger *m, uint8_t *record)
{
    kvf_cache *c = b->c;
    uint8_t *old = c->attend.slots + (part->side == KVF_K ? c->g.slot_q : c->g.slot_acc); /* the tile there is done with */
    kvf_part beside = *part;
    memcpy(old, record, part->bytes);
    beside.like = old;
    part->codec->encode(&beside, x, record);
    for (int32_t t = 0; t < KVF_BLOCK && part->kind != KVF_KIND_CHANNEL; t++)
        if (m->stay[t] >= 0) kvfi_part_move(part, old, t, record, t);
}

static void merge_part(const head_bins *b, const kvf_part *shared, size_t offset, const merger *m)
{
    kvf_cache *c = b->c;
    kvf_part room;
    const kvf_part *part = kvfi_part_of(shared, b->head, &room);
    uint8_t *record = own_record(b, m->to) + offset;
    const uint8_t *other = record_at(b, m->from) + offset;
    float *x = (float *)(void *)(c->attend.slots + (part->side == KVF_K ? c->g.slot_tile_k : c->g.slot_tile_v));
    if (kvfi_part_moves(part)) {
        for (int32_t t = 0; t < KVF_BLOCK; t++)
            if (m->go[t] >= 0) kvfi_part_move(part, other, t, record, m->go[t]);
        return;
    }
    decode_rows(b, part, record, m->stay, x);
    decode_rows(b, part, other, m->go, x);
    fill_dead(m->alive, part->head_dim, x);
    code_beside(b, part, x, m, record);
}

/* The row of a bin that came first. */
static int32_t oldest(const kvfi_bin *bin)
{
    int32_t first = INT32_MAX;
    for (int32_t t = 0; t < KVF_BLOCK; t++)
        if (bin->alive >> t & 1 && bin->pos[t] < first) first = bin->pos[t];
    return first;
}

static void merge_bins(const head_bins *b, int32_t one, int32_t other)
{
    const int swap = oldest(bin_at(b, other)) < oldest(bin_at(b, one));
    merger m = {.to = swap ? other : one, .from = swap ? one : other};
    find_places(b, &m);
    merge_part(b, &b->st->k, 0, &m);
    if (!b->st->v_in_k) merge_part(b, &b->st->v, b->st->k.bytes, &m);
    for (int32_t t = 0; t < KVF_BLOCK; t++)
        if (m.go[t] >= 0) take_place(b, m.to, m.go[t], m.from, t), b->c->recoded++;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------------------------ */

static void pack_set(const head_bins *b, int32_t epoch)
{
    if (b->st->moves) {
        for (int32_t i = spare_bin(b, epoch); i >= 0; i = spare_bin(b, epoch)) empty_bin(b, i);
        return;
    }
    for (int32_t i = half_dead(b, epoch, 0); i < b->n; i = half_dead(b, epoch, i)) {
        const int32_t other = half_dead(b, epoch, i + 1);
        if (other == b->n) return;
        merge_bins(b, i, other);
    }
}

/* The last bins that hold something take the place of the first that hold nothing. */
static void close_gaps(const head_bins *b)
{
    for (int32_t low = 0, high = b->n - 1;; low++, high--) {
        while (low < b->n && bin_at(b, low)->alive) low++;
        while (high >= 0 && !bin_at(b, high)->alive) high--;
        if (low >= high) return;
        memcpy(own_record(b, low), record_at(b, high), b->st->record_bytes);
        *bin_at(b, low) = *bin_at(b, high);
        if (b->st->mass) *mass_at(b, low) = *mass_at(b, high);
        bin_at(b, high)->alive = 0;
    }
}

void kvfi_chain_pack(kvf_cache *c, kvfi_sequence *s, int32_t store)
{
    const kvfi_store *st = &c->g.stores[store];
    int32_t *n = &s->n_links[store];
    for (int32_t h = 0; h < st->kv_heads; h++) {
        const head_bins b = {c, s, st, store, h, *n};
        for (int32_t epoch = 0; epoch < KVFI_EPOCHS; epoch++) pack_set(&b, epoch);
        close_gaps(&b);
    }
    for (; *n && kvfi_link_empty(kvfi_link_at(s, st, *n - 1), st); --*n)
        kvfi_pool_drop(&c->pools[store], kvfi_link_at(s, st, *n - 1)->id);
}
