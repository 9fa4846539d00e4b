/* SPDX-License-Identifier: MIT
 * Numbers: what is held, what it costs, what it would cost in f16. */
#include "cache/mass.h"
#include "base/text.h"

#include <string.h>

/* Living rows of the packed blocks of one head. */
static int64_t head_rows(const kvf_cache *c, const kvfi_sequence *s, int store, int32_t head)
{
    const kvfi_store *st = &c->g.stores[store];
    int64_t rows = kvfi_chain_rows(s, st, s->n_links[store], head);
    for (int32_t b = s->first_block[store]; b < s->n_blocks; b++) {
        uint8_t *row = kvfi_row(c, s, b);
        if (kvfi_row_ids(c, row)[store] != KVFI_NO_BLOCK) rows += kvfi_popcount(kvfi_row_valid(c, row)[st->first_head + head]);
    }
    return rows;
}

/* Of the head that has most. */
static int64_t body_rows(const kvf_cache *c, const kvfi_sequence *s, int store)
{
    int64_t most = 0;
    for (int32_t h = 0; h < c->g.stores[store].kv_heads; h++) {
        const int64_t rows = head_rows(c, s, store, h);
        if (rows > most) most = rows;
    }
    return most;
}

/* Of the full-attention layer that has most; of the windowed one when there is no other. */
static int64_t most_body_rows(const kvf_cache *c, const kvfi_sequence *s)
{
    int full = 0;
    int64_t most = 0;
    for (int i = 0; i < c->g.n_stores; i++) full |= !c->g.stores[i].window;
    for (int i = 0; i < c->g.n_stores; i++) {
        if (full && c->g.stores[i].window) continue;
        const int64_t rows = body_rows(c, s, i);
        if (rows > most) most = rows;
    }
    return most;
}

static int64_t window_rows(const kvf_cache *c, const kvfi_sequence *s)
{
    int64_t rows = s->open;
    for (int32_t w = 0; w < c->g.window_rows / KVF_BLOCK; w++) rows -= kvfi_popcount(s->open_dead[w]);
    return rows;
}

/* Living rows among the first S, in the sink or still in the window. */
static int64_t sink_rows(const kvf_cache *c, const kvfi_sequence *s)
{
    if (s->has_sink) return kvfi_popcount(s->sink_alive);
    if (s->n_blocks || !c->g.sink) return 0;
    int32_t rows = s->open < c->g.sink ? s->open : c->g.sink;
    return rows ? kvfi_popcount(~s->open_dead[0] & ~(uint64_t)0 >> (KVF_BLOCK - rows)) : 0;
}

/* Values held by one sequence over all stores: of rows that live. */
static int64_t sequence_values(const kvf_cache *c, const kvfi_sequence *s)
{
    const int64_t exact = window_rows(c, s) + (s->has_sink ? kvfi_popcount(s->sink_alive) : 0);
    int64_t values = 0;
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        int64_t rows = 0;
        for (int32_t h = 0; h < st->kv_heads; h++) rows += exact + head_rows(c, s, i, h);
        values += rows * (st->k.head_dim + (st->v_in_k ? 0 : st->v_dim));
    }
    return values;
}

static int64_t accounted(const kvf_cache *c)
{
    int64_t sum = (int64_t)c->g.fixed_bytes;
    for (int i = 0; i < c->g.max_sequences; i++) {
        const kvfi_sequence *s = &c->sequences[i];
        if (s->used) sum += (int64_t)c->g.sequence_bytes + (int64_t)s->n_blocks * (int64_t)c->g.row_bytes;
        if (c->g.beside_bytes) sum += (int64_t)kvfi_chain_longest(c, s) * (int64_t)c->g.beside_bytes;
        for (int store = 0; store < c->g.n_stores; store++)
            sum += (int64_t)s->n_links[store] * (int64_t)c->g.stores[store].link_bytes;
    }
    sum += (int64_t)c->tables.in_use * (int64_t)(c->g.table_bytes + KVFI_BLOCK_META);
    for (int i = 0; i < c->g.n_stores; i++)
        sum += (int64_t)c->pools[i].in_use * (int64_t)(c->g.stores[i].block_bytes + KVFI_BLOCK_META);
    return sum;
}

static int64_t add_resident(int64_t sum, const void *memory, size_t size)
{
    int64_t r = kvfi_resident(memory, size);
    return sum < 0 || r < 0 ? -1 : sum + r;
}

/* Large regions are measured; the object itself and its tables of layers count whole. */
static int64_t resident(const kvf_cache *c)
{
    const kvfi_geometry *g = &c->g;
    size_t small = sizeof *c + kvfi_geometry_bytes(g);
    int64_t sum = add_resident((int64_t)small, c->fixed, g->fixed_bytes - small);
    for (int i = 0; i < g->max_sequences; i++) {
        const kvfi_sequence *s = &c->sequences[i];
        sum = add_resident(sum, s->exact, s->exact ? g->sequence_bytes : 0);
        sum = add_resident(sum, s->table, (size_t)s->table_rows * g->row_bytes);
        sum = add_resident(sum, s->chains, (size_t)s->chain_room * g->chain_bytes);
    }
    for (int i = -1; i < g->n_stores && sum >= 0; i++) {
        int64_t r = kvfi_pool_resident(i < 0 ? &c->tables : &c->pools[i]);
        sum = r < 0 ? -1 : sum + r;
    }
    return sum;
}

static int64_t reserved(const kvf_cache *c)
{
    int64_t sum = (int64_t)c->g.fixed_bytes;
    for (int i = 0; i < c->g.max_sequences; i++) {
        const kvfi_sequence *s = &c->sequences[i];
        sum += (int64_t)(s->exact ? c->g.sequence_bytes : 0) + (int64_t)s->table_rows * (int64_t)c->g.row_bytes +
               (int64_t)s->chain_room * (int64_t)c->g.chain_bytes;
    }
    for (int i = 0; i < c->g.n_stores; i++) sum += kvfi_pool_reserved(&c->pools[i]);
    return sum + kvfi_pool_reserved(&c->tables);
}

static void code_bits(const kvfi_geometry *g, kvf_stats_t *s)
{
    double bits_k = 0, bits_v = 0, values_k = 0, values_v = 0;
    for (int i = 0; i < g->n_stores; i++) {
        const kvfi_store *st = &g->stores[i];
        bits_k += 8.0 * (double)st->k.bytes * st->kv_heads / KVF_BLOCK;
        values_k += (double)st->k.head_dim * st->kv_heads;
        if (st->v_in_k) continue;
        bits_v += 8.0 * (double)st->v.bytes * st->kv_heads / KVF_BLOCK;
        values_v += (double)st->v_dim * st->kv_heads;
    }
    s->bits_code_k = bits_k / values_k;
    s->bits_code_v = values_v > 0 ? bits_v / values_v : 0;
    s->bits_code = (bits_k + bits_v) / (values_k + values_v);
}

/* A side is folded when its codes are narrower than the f16 that would be there otherwise. */
static int32_t folded_layers(const kvfi_geometry *g)
{
    int32_t n = 0;
    for (int i = 0; i < g->n_layers; i++) {
        const kvfi_store *s = &g->stores[g->layers[i].store];
        n += s->k.bits < 16 || (!s->v_in_k && s->v.bits < 16);
    }
    return n;
}

static int64_t most_evicted(const kvf_cache *c, const kvfi_sequence *s)
{
    int64_t most = 0;
    for (int i = 0; i < c->g.n_stores; i++)
        if (s->evicted[i] > most) most = s->evicted[i];
    return most;
}

int64_t kvfi_rows_kept(const kvf_cache *c, const kvfi_sequence *s, int32_t store)
{
    return body_rows(c, s, store) + window_rows(c, s) + (s->has_sink ? kvfi_popcount(s->sink_alive) : 0);
}

int kvf_evicted(const kvf_cache *c, int32_t layer, kvf_evicted_t *e)
{
    if (!c || !e || layer < 0 || layer >= c->g.n_layers) return KVF_E_ARG;
    if (e->size != sizeof *e) return KVF_E_VERSION;
    const int32_t store = c->g.layers[layer].store;
    *e = (kvf_evicted_t){.size = sizeof *e, .pruned = c->g.stores[store].evicts};
    if (e->pruned) e->budget = c->g.stores[store].budget, e->own = c->g.stores[store].own_budget > 0;
    for (int i = 0; i < c->g.max_sequences; i++) {
        const kvfi_sequence *s = &c->sequences[i];
        if (!s->used) continue;
        e->kept += kvfi_rows_kept(c, s, store);
        e->evicted += s->evicted[store];
    }
    return KVF_OK;
}

int kvf_stats(const kvf_cache *c, kvf_stats_t *s)
{
    if (!c || !s) return KVF_E_ARG;
    if (s->size != sizeof *s) return KVF_E_VERSION;
    *s = (kvf_stats_t){.size = sizeof *s, .layers = c->g.n_layers, .layers_folded = folded_layers(&c->g)};
    int64_t values = 0;
    for (int i = 0; i < c->g.max_sequences; i++) {
        const kvfi_sequence *q = &c->sequences[i];
        if (!q->used) continue;
        s->sequences++;
        int64_t sink = sink_rows(c, q);
        s->tokens_sink += sink;
        s->tokens_body += most_body_rows(c, q);
        s->tokens_window += window_rows(c, q) - (q->has_sink ? 0 : sink);
        s->tokens_evicted += most_evicted(c, q);
        values += sequence_values(c, q);
    }
    s->tokens = s->tokens_sink + s->tokens_body + s->tokens_window;
    s->accounted = accounted(c), s->reserved_bytes = reserved(c), s->resident = resident(c);
    s->f16 = 2 * values;
    s->saturated = c->saturated, s->saturated_scales = c->saturated_scales, s->rows_recoded = c->recoded;
    code_bits(&c->g, s);
    s->bits_per_value = values ? 8.0 * (double)s->accounted / (double)values : 0;
    s->cpu = c->cpu;
    return KVF_OK;
}

/* ---- hash ---------------------------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, const void *data, size_t n)
{
    const uint8_t *b = data;
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3u; /* FNV-1a */
    return h;
}

static uint64_t hash_blocks(const kvf_cache *c, const kvfi_sequence *s, uint64_t h)
{
    for (int32_t b = 0; b < s->n_blocks; b++) {
        uint8_t *row = kvfi_row(c, s, b);
        h = mix(h, kvfi_row_first(row), 2 * sizeof(int32_t)); /* and the epoch */
        h = mix(h, kvfi_row_valid(c, row), c->g.row_bytes - c->g.row_valid);
        for (int i = 0; i < c->g.n_stores; i++) {
            uint32_t id = kvfi_row_ids(c, row)[i];
            if (id != KVFI_NO_BLOCK) h = mix(h, kvfi_pool_data(&c->pools[i], id), c->g.stores[i].block_bytes);
        }
    }
    return h;
}

static uint64_t hash_chains(const kvf_cache *c, const kvfi_sequence *s, uint64_t h)
{
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        for (int32_t j = 0; j < s->n_links[i]; j++) {
            kvfi_link *link = kvfi_link_at(s, st, j);
            h = mix(h, link->bin, kvfi_link_bytes(st->kv_heads) - sizeof *link);
            for (int32_t head = 0; st->mass && head < st->kv_heads; head++)
                h = mix(h, kvfi_link_mass(link, st, head)->sum, KVF_BLOCK * sizeof(float));
            h = mix(h, kvfi_pool_data(&c->pools[i], link->id), st->block_bytes);
        }
    }
    return h;
}

static uint64_t hash_exact(const kvf_cache *c, const kvfi_sequence *s, uint64_t h)
{
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        size_t sink = s->has_sink ? (size_t)c->g.sink * (size_t)st->kv_heads : 0;
        h = mix(h, s->exact + st->sink_k, sink * st->k_row);
        h = mix(h, s->exact + st->sink_v, sink * st->v_row);
        for (int32_t head = 0; st->mass && head < st->kv_heads; head++)
            h = mix(h, kvfi_open_mass(c, s, st, head, 0), (size_t)s->open * sizeof(float));
        for (int32_t head = 0; head < st->kv_heads; head++)
            for (int32_t r = 0; r < s->open; r++) {
                size_t at = (size_t)head * (size_t)c->g.window_rows + (size_t)((s->open_slot + r) % c->g.window_rows);
                h = mix(h, s->exact + st->window_k + at * st->k_row, st->k_row);
                h = mix(h, s->exact + st->window_v + at * st->v_row, st->v_row);
            }
    }
    return h;
}

uint64_t kvfi_cache_hash(const kvf_cache *c, int32_t seq)
{
    const kvfi_sequence *s = &c->sequences[seq];
    uint64_t h = 0xcbf29ce484222325u;
    int32_t fields[] = {s->used, s->start, s->next, s->gone, s->n_blocks, s->open, s->open_pos, s->has_sink};
    h = mix(h, fields, sizeof fields);
    if (!s->used) return h;
    h = mix(h, &s->sink_alive, sizeof s->sink_alive);
    h = mix(h, s->open_dead, (size_t)c->g.window_rows / 8);
    for (int32_t e = 0; e < s->n_sets; e++) h = mix(h, kvfi_pool_data(&c->tables, s->sets[e]), c->g.table_bytes);
    return hash_exact(c, s, hash_chains(c, s, hash_blocks(c, s, h)));
}
