/* SPDX-License-Identifier: MIT
 * Birth, reserve and death of a cache. */
#include "cache/chain.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void kvf_params_init(kvf_params *p)
{
    memset(p, 0, sizeof *p);
    p->size = sizeof *p;
    p->sink = 4, p->recent = 64;
    p->max_sequences = 1, p->max_batch = 512, p->threads = 1, p->window_keep = 256, p->exact_bits = 16;
    kvf_preset_info preset;
    for (int32_t i = 0; !kvf_preset_list(i, &preset); i++)
        if (preset.is_default) p->k = preset.k, p->v = preset.v;
}

void kvf_layer_init(kvf_layer *l)
{
    memset(l, 0, sizeof *l);
    l->size = sizeof *l;
    l->share = -1;
}

int kvfi_fail(kvf_cache *c, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->error, sizeof c->error, format, arguments);
    va_end(arguments);
    return code;
}

const char *kvf_cache_error(const kvf_cache *c)
{
    return c ? c->error : "";
}

/* The fixed region, listed once: X(field, count, type). */
#define FIXED(X)                                                                                                                 \
    X(pools, g->n_stores, kvfi_pool)                                                                                             \
    X(sequences, g->max_sequences, kvfi_sequence)                                                                                \
    X(batch.tokens, g->max_batch, kvf_token)                                                                                     \
    X(batch.order, g->max_batch, int32_t)                                                                                        \
    X(batch.runs, g->max_sequences, kvfi_run)                                                                                    \
    X(batch.queried, g->n_layers, uint8_t)                                                                                       \
    X(batch.scored, g->n_stores, int32_t)                                                                                        \
    X(batch.staged, g->n_stores, kvfi_staged)                                                                                    \
    X(attend.items, g->max_items, kvfi_item)                                                                                     \
    X(attend.part_taken, (g->max_items > g->max_parts ? g->max_items : g->max_parts) + g->max_masses, atomic_flag)               \
    X(attend.norms, g->evict.policy->mass ? (size_t)g->max_items * 2 * KVFI_VECTORS : 0, float)                                  \
    X(attend.slot_busy, g->threads, atomic_flag)                                                                                 \
    X(attend.coded, g->coded_bytes, uint8_t)                                                                                     \
    X(attend.partials, (size_t)g->max_parts * g->partial_bytes, uint8_t)                                                         \
    X(attend.slots, (size_t)g->threads * g->slot_bytes, uint8_t)

/* At the front of the region, for each sequence: open_dead[window_rows / 64]; first_block, left_to, evicted, n_links, each [n_stores]. */
static size_t sequence_arrays(const kvfi_geometry *g)
{
    return (size_t)g->window_rows / KVF_BLOCK * sizeof(uint64_t) + kvfi_round_up(4 * (size_t)g->n_stores * sizeof(int32_t), 8);
}

static size_t region_bytes(const kvfi_geometry *g)
{
    size_t at = (size_t)g->max_sequences * sequence_arrays(g);
#define COUNT(field, count, type) at = kvfi_round_up(at, 64) + (size_t)(count) * sizeof(type);
    FIXED(COUNT)
#undef COUNT
    return at;
}

size_t kvfi_fixed_bytes(const kvfi_geometry *g)
{
    return sizeof(kvf_cache) + kvfi_geometry_bytes(g) + region_bytes(g);
}

static void place_fixed(kvf_cache *c)
{
    const kvfi_geometry *g = &c->g;
    size_t at = (size_t)g->max_sequences * sequence_arrays(g);
#define PLACE(field, count, type)                                                                                                \
    at = kvfi_round_up(at, 64);                                                                                                  \
    c->field = (type *)(void *)(c->fixed + at);                                                                                  \
    at += (size_t)(count) * sizeof(type);
    FIXED(PLACE)
#undef PLACE
    kvfi_pool_init(&c->tables, g->table_bytes);
    for (int i = 0; i < g->n_stores; i++) kvfi_pool_init(&c->pools[i], g->stores[i].block_bytes);
    for (int i = 0; i < g->max_sequences; i++) {
        uint8_t *arrays = c->fixed + (size_t)i * sequence_arrays(g);
        c->sequences[i].open_dead = (uint64_t *)(void *)arrays;
        c->sequences[i].first_block = (int32_t *)(void *)(arrays + (size_t)g->window_rows / KVF_BLOCK * sizeof(uint64_t));
        c->sequences[i].left_to = c->sequences[i].first_block + g->n_stores;
        c->sequences[i].evicted = c->sequences[i].left_to + g->n_stores;
        c->sequences[i].n_links = c->sequences[i].evicted + g->n_stores;
    }
    for (int i = 0; i < g->threads; i++) atomic_flag_clear(&c->attend.slot_busy[i]);
}

/* Everything that kvf_cache_create and kvf_bytes refuse alike. */
int kvfi_geometry_open(const kvf_params *p, kvf_allocator *a, kvfi_geometry *g)
{
    if (!p) return KVF_E_ARG;
    if (p->size != sizeof *p) return KVF_E_VERSION; /* nothing else in it can be trusted, its error buffer neither */
    if (p->error && p->error_size) p->error[0] = 0;
    if (p->allocator && (!p->allocator->allocate || !p->allocator->release)) {
        kvfi_sentence(p->error, p->error_size, "allocator: both allocate and release are needed");
        return KVF_E_ARG;
    }
    *a = p->allocator ? *p->allocator : kvfi_system_allocator();
    return kvfi_geometry_init(g, p, a, p->error, p->error_size);
}

static kvf_cache *build(const kvf_params *p, const kvf_allocator *a, const kvfi_geometry *g)
{
    kvf_cache *c = kvfi_alloc_zero(a, sizeof *c);
    if (!c) return NULL;
    c->fixed = kvfi_alloc_zero(a, region_bytes(g));
    if (!c->fixed) {
        kvfi_release(a, c, sizeof *c);
        return NULL;
    }
    c->a = *a, c->g = *g, c->log = p->log, c->log_user = p->log_user;
    place_fixed(c);
    for (int i = 0; i < g->n_stores; i++) g->stores[i].k.kernels = g->stores[i].v.kernels = &c->g.kernels;
    return c;
}

int kvf_cache_create(kvf_cache **cache, const kvf_params *p)
{
    if (!cache) return KVF_E_ARG;
    *cache = NULL;
    kvf_allocator a;
    kvfi_geometry g;
    int rc = kvfi_geometry_open(p, &a, &g);
    if (rc) return rc;
    kvf_cache *c = build(p, &a, &g);
    if (!c) {
        kvfi_sentence(p->error, p->error_size, "out of memory: creating the cache needs %zu bytes", g.fixed_bytes);
        kvfi_geometry_free(&g, &a);
        return KVF_E_NOMEM;
    }
    snprintf(c->cpu, sizeof c->cpu, "%s", g.kernels.name);
    kvfi_say_unknown_turns(c);
    *cache = c;
    return KVF_OK;
}

void kvf_cache_free(kvf_cache **cache)
{
    if (!cache || !*cache) return;
    kvf_cache *c = *cache;
    kvf_allocator a = c->a;
    for (int i = 0; i < c->g.max_sequences; i++) {
        kvfi_sequence *s = &c->sequences[i];
        kvfi_release(&a, s->exact, c->g.sequence_bytes);
        kvfi_release(&a, s->table, (size_t)s->table_rows * c->g.row_bytes);
        kvfi_release(&a, s->chains, (size_t)s->chain_room * c->g.chain_bytes);
    }
    for (int i = 0; i < c->g.n_stores; i++) kvfi_pool_free(&c->pools[i], &a);
    kvfi_pool_free(&c->tables, &a);
    kvfi_release(&a, c->fixed, region_bytes(&c->g));
    kvfi_geometry_free(&c->g, &a);
    kvfi_release(&a, c, sizeof *c);
    *cache = NULL;
}

/* ---- reserve -------------------------------------------------------------------------------------------------------------- */

/* Blocks for rows that sequences hold in all, of a store that packs. In chains every table set but for one bin has whole bins, or half full
 * ones; in the table there are the ends of what a window keeps. The spare blocks cover both. */
static uint64_t packed_blocks(const kvfi_store *s, int64_t rows, int32_t sequences)
{
    return (uint64_t)rows / (s->moves ? KVF_BLOCK : KVF_BLOCK / 2) + (uint64_t)sequences * KVFI_SPARE_BLOCKS;
}

/* Rows that one sequence can hold in a store, however long it gets: within a window, or a budget. A share of all has no bound. */
static int64_t most_rows(const kvfi_geometry *g, const kvfi_store *s, int64_t tokens)
{
    int64_t rows = s->window ? (int64_t)s->window + g->keep : tokens;
    if (s->evicts && s->budget) rows = kvfi_evict_rows_kept(&g->evict, s->budget, 0, 0);
    return rows < tokens ? rows : tokens;
}

/* Blocks that a store can need: never more than the rows held, and during a commit also what one batch seals before others go. */
static uint64_t blocks_needed(const kvfi_geometry *g, const kvfi_store *s, int64_t tokens, int32_t sequences, int32_t batch)
{
    uint64_t all = (uint64_t)tokens / KVF_BLOCK + (uint64_t)sequences * KVFI_SPARE_BLOCKS, kept = all;
    const uint64_t sealing = (uint64_t)batch / KVF_BLOCK + 3;
    if (s->packs) {
        all = packed_blocks(s, tokens, sequences);
        kept = packed_blocks(s, most_rows(g, s, tokens), 1) + sealing;
    } else if (s->window) {
        kept = (uint64_t)most_rows(g, s, tokens) / KVF_BLOCK + sealing;
    }
    return kept * (uint64_t)sequences < all ? kept * (uint64_t)sequences : all;
}

/* Links of the longest chain of one sequence. */
static int64_t links_needed(const kvfi_geometry *g, int64_t tokens, int32_t batch)
{
    int64_t most = 0;
    for (int i = 0; i < g->n_stores; i++) {
        const int64_t links = g->stores[i].packs ? (int64_t)blocks_needed(g, &g->stores[i], tokens, 1, batch) : 0;
        if (links > most) most = links;
    }
    return most;
}

static int reserve_pools(kvf_cache *c, int64_t tokens, int32_t sequences, int32_t batch)
{
    for (int i = 0; i < c->g.n_stores; i++) {
        uint64_t blocks = blocks_needed(&c->g, &c->g.stores[i], tokens, sequences, batch);
        if (kvfi_pool_grow(&c->pools[i], &c->a, blocks))
            return kvfi_fail(c, KVF_E_NOMEM, "out of memory: layer %d needs %llu blocks of %zu bytes for %lld tokens",
                             (int)c->g.stores[i].layer, (unsigned long long)blocks, c->g.stores[i].block_bytes,
                             (long long)tokens);
    }
    return KVF_OK;
}

static int reserve_sets(kvf_cache *c, int32_t sequences)
{
    if (!c->g.table_bytes || !kvfi_pool_grow(&c->tables, &c->a, (uint64_t)sequences * KVFI_EPOCHS)) return KVF_OK;
    return kvfi_fail(c, KVF_E_NOMEM, "out of memory: estimates of %d sequences, %zu bytes each", (int)sequences,
                     KVFI_EPOCHS * c->g.table_bytes);
}

static int grow_table(kvf_cache *c, kvfi_sequence *s, int64_t rows)
{
    uint8_t *table = rows <= INT32_MAX ? kvfi_alloc(&c->a, (size_t)rows * c->g.row_bytes) : NULL;
    if (!table) return kvfi_fail(c, KVF_E_NOMEM, "out of memory: block table of %lld rows", (long long)rows);
    if (s->n_blocks) memcpy(table, s->table, (size_t)s->n_blocks * c->g.row_bytes);
    kvfi_release(&c->a, s->table, (size_t)s->table_rows * c->g.row_bytes);
    s->table = table, s->table_rows = (int32_t)rows;
    return KVF_OK;
}

/* Sequences that have (or have had) an exact store of their own. */
static int32_t sequences_mapped(const kvf_cache *c)
{
    int32_t n = 0;
    for (int i = 0; i < c->g.max_sequences; i++) n += c->sequences[i].exact != NULL;
    return n;
}

static int map_sequence(kvf_cache *c, kvfi_sequence *s, int64_t rows, int64_t links)
{
    if (!s->exact) s->exact = kvfi_alloc(&c->a, c->g.sequence_bytes);
    if (!s->exact)
        return kvfi_fail(c, KVF_E_NOMEM, "out of memory: the exact rows of a sequence need %zu bytes", c->g.sequence_bytes);
    if (kvfi_chain_grow(c, s, links))
        return kvfi_fail(c, KVF_E_NOMEM, "out of memory: %lld blocks with positions of their own", (long long)links);
    return rows > s->table_rows ? grow_table(c, s, rows) : KVF_OK;
}

/* Is the sequence part of the batch that is being opened? Then its store is spoken for though it holds no row yet. */
static int in_batch(const kvf_cache *c, int32_t seq)
{
    for (int32_t i = 0; i < c->batch.n_runs; i++)
        if (c->batch.runs[i].seq == seq) return 1;
    return 0;
}

/* A mapped store of an empty sequence that `s` may have. */
static int adopt_spare(kvf_cache *c, kvfi_sequence *s)
{
    for (int i = 0; i < c->g.max_sequences; i++) {
        kvfi_sequence *o = &c->sequences[i];
        if (o == s || o->used || !o->exact || in_batch(c, i)) continue;
        s->exact = o->exact, s->table = o->table, s->table_rows = o->table_rows, s->chains = o->chains,
        s->chain_room = o->chain_room;
        o->exact = o->table = o->chains = NULL, o->table_rows = o->chain_room = 0;
        return 1;
    }
    return 0;
}

/* What an array of `room` entries grows to when `need` are wanted. */
static int64_t grown(int64_t room, int64_t need)
{
    return need <= room ? 0 : need < 2 * room ? 2 * room : need < 16 ? 16 : need;
}

int kvfi_sequence_room(kvf_cache *c, int32_t seq, int64_t rows, int64_t links)
{
    kvfi_sequence *s = &c->sequences[seq];
    if (!c->g.chain_bytes) links = 0;
    if (c->reserved_sequences) {
        if (!s->exact && !adopt_spare(c, s))
            return kvfi_fail(c, KVF_E_FULL, "sequence %d is one more than the %d that were reserved", (int)seq,
                             (int)c->reserved_sequences);
        if (rows > s->table_rows || links > s->chain_room)
            return kvfi_fail(c, KVF_E_FULL, "sequence %d needs %lld blocks, %d were reserved (%lld tokens)", (int)seq,
                             (long long)(rows > s->table_rows ? rows : links),
                             (int)(rows > s->table_rows ? s->table_rows : s->chain_room), (long long)c->reserved_tokens);
        return KVF_OK;
    }
    return map_sequence(c, s, grown(s->table_rows, rows), grown(s->chain_room, links));
}

int kvf_reserve(kvf_cache *c, int64_t tokens, int32_t sequences, int32_t batch)
{
    if (!c) return KVF_E_ARG;
    const kvfi_geometry *g = &c->g;
    c->error[0] = 0;
    if (tokens < 1 || tokens > KVFI_TOKENS_MOST)
        return kvfi_fail(c, KVF_E_ARG, "reserve: %lld tokens; allowed are 1 to 2^36", (long long)tokens);
    if (sequences < 1 || sequences > g->max_sequences)
        return kvfi_fail(c, KVF_E_ARG, "reserve: %d sequences; allowed are 1 to max_sequences (%d)", (int)sequences,
                         (int)g->max_sequences);
    if (batch < 1 || batch > g->max_batch)
        return kvfi_fail(c, KVF_E_ARG, "reserve: batches of %d rows; allowed are 1 to max_batch (%d)", (int)batch,
                         (int)g->max_batch);
    if (c->batch.n) return kvfi_fail(c, KVF_E_STATE, "reserve: a batch is open; commit or abort it first");
    if (tokens < c->reserved_tokens) tokens = c->reserved_tokens;
    if (sequences < c->reserved_sequences) sequences = c->reserved_sequences;
    int rc = reserve_pools(c, tokens, sequences, g->max_batch);
    if (!rc) rc = reserve_sets(c, sequences);
    for (int i = 0; i < g->max_sequences && !rc; i++)
        if (c->sequences[i].exact || sequences_mapped(c) < sequences)
            rc = map_sequence(c, &c->sequences[i], tokens / KVF_BLOCK + 1 + KVFI_SPARE_BLOCKS,
                              links_needed(g, tokens, g->max_batch));
    if (rc) return rc;
    c->reserved_tokens = tokens;
    if (sequences > c->reserved_sequences) c->reserved_sequences = sequences;
    if (batch > c->reserved_batch) c->reserved_batch = batch;
    return KVF_OK;
}
