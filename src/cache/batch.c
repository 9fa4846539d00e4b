/* SPDX-License-Identifier: MIT
 * The transaction: begin (checks, makes room), append (stages by reference), commit or abort. Nothing of the cache changes
 * before commit, so abort has nothing to undo. */
#include "cache/mass.h"
#include "cache/check.h"

#include <string.h>

static int check_tokens(kvf_cache *c, const kvf_token *tokens, int32_t n)
{
    if (!tokens || n < 1 || n > c->g.max_batch)
        return kvfi_fail(c, KVF_E_ARG, "batch of %d rows; allowed are 1 to max_batch (%d)", (int)n, (int)c->g.max_batch);
    if (c->reserved_batch && n > c->reserved_batch)
        return kvfi_fail(c, KVF_E_FULL, "batch of %d rows; batches of at most %d were reserved", (int)n, (int)c->reserved_batch);
    for (int32_t i = 0; i < n; i++)
        if (tokens[i].seq < 0 || tokens[i].seq >= c->g.max_sequences)
            return kvfi_fail(c, KVF_E_ARG, "batch row %d: sequence %d; allowed are 0 to %d", (int)i, (int)tokens[i].seq,
                             (int)c->g.max_sequences - 1);
    return KVF_OK;
}

/* Groups the rows by sequence (stable) into runs. */
static void group_rows(kvfi_batch *b, const kvf_token *tokens, int32_t n, int32_t max_sequences)
{
    int32_t at = 0;
    b->n_runs = 0;
    for (int32_t seq = 0; seq < max_sequences && at < n; seq++) {
        int32_t first = at;
        for (int32_t i = 0; i < n; i++)
            if (tokens[i].seq == seq) b->order[at++] = i;
        if (at > first) b->runs[b->n_runs++] = (kvfi_run){seq, first, at - first, 0};
    }
}

static int check_positions(kvf_cache *c, const kvf_token *tokens, const kvfi_run *r)
{
    const kvfi_sequence *s = &c->sequences[r->seq];
    int32_t first = tokens[c->batch.order[r->first]].pos;
    int64_t expected = s->used ? s->next : first;
    if (first < 0) return kvfi_fail(c, KVF_E_POSITION, "sequence %d: position %d is negative", (int)r->seq, (int)first);
    for (int32_t i = 0; i < r->count; i++, expected++) {
        int32_t row = c->batch.order[r->first + i];
        if (expected >= INT32_MAX)
            return kvfi_fail(c, KVF_E_POSITION, "sequence %d: positions end at %d", (int)r->seq, INT32_MAX - 1);
        if (tokens[row].pos != expected)
            return kvfi_fail(c, KVF_E_POSITION, "batch row %d: position %d of sequence %d; the next one is %lld", (int)row,
                             (int)tokens[row].pos, (int)r->seq, (long long)expected);
    }
    return KVF_OK;
}

static int32_t seals_of(const kvf_cache *c, const kvfi_run *r)
{
    const kvfi_sequence *s = &c->sequences[r->seq];
    const int64_t open = (int64_t)s->open + r->count, rows = kvfi_rows_sealed(s) + open;
    return (int32_t)kvfi_sealed(&c->g, rows, open);
}

/* Of layers whose blocks stay as they are: a block shared by several sequences counts once; rows behind a cut do not count, other removed
 * ones do until their block goes. What moves between blocks is limited by blocks alone. */
int64_t kvfi_rows_in_use(const kvf_cache *c)
{
    int64_t blocks = 0, open = 0;
    for (int i = 0; i < c->g.n_stores; i++)
        if (!c->g.stores[i].window && !c->g.stores[i].packs && c->pools[i].in_use > blocks) blocks = c->pools[i].in_use;
    for (int i = 0; i < c->g.max_sequences; i++) open += c->sequences[i].open - (blocks ? c->sequences[i].wasted : 0);
    return blocks * KVF_BLOCK + open;
}

/* Where rows move between blocks there is room for what sequences hold as if no block were shared: who writes into one takes a copy
 * first, and must get it. */
int kvfi_pools_room(kvf_cache *c, int32_t seals, const kvfi_sequence *copied)
{
    for (int i = 0; i < c->g.n_stores; i++) {
        kvfi_pool *p = &c->pools[i];
        const int packs = c->g.stores[i].packs;
        const uint64_t more = (uint64_t)seals + (copied && packs ? (uint64_t)kvfi_blocks_held(c, copied, i) : 0);
        const uint64_t want = (packs ? p->references : p->in_use) + more;
        if (want <= p->capacity) continue;
        if (c->reserved_sequences)
            return kvfi_fail(c, KVF_E_FULL, "layer %d: %llu more blocks do not fit in the %u that were reserved (%lld tokens)",
                             (int)c->g.stores[i].layer, (unsigned long long)more, (unsigned)p->capacity,
                             (long long)c->reserved_tokens);
        const uint64_t grown = p->capacity + (uint64_t)p->capacity / 2 + 8;
        if (kvfi_pool_grow(p, &c->a, want > grown ? want : grown))
            return kvfi_fail(c, KVF_E_NOMEM, "out of memory: layer %d needs room for %llu blocks of %zu bytes",
                             (int)c->g.stores[i].layer, (unsigned long long)want, p->block_bytes);
    }
    return KVF_OK;
}

static int make_room(kvf_cache *c, int32_t n)
{
    kvfi_batch *b = &c->batch;
    if (c->reserved_sequences && kvfi_rows_in_use(c) + n > c->reserved_tokens)
        return kvfi_fail(c, KVF_E_FULL, "%d more rows do not fit: %lld of the %lld tokens that were reserved are held", (int)n,
                         (long long)kvfi_rows_in_use(c), (long long)c->reserved_tokens);
    int32_t seals = 0;
    for (int32_t i = 0; i < b->n_runs; i++) {
        kvfi_run *r = &b->runs[i];
        const kvfi_sequence *s = &c->sequences[r->seq];
        r->seals = seals_of(c, r), seals += r->seals;
        int rc = kvfi_sequence_room(c, r->seq, (int64_t)s->n_blocks + r->seals, (int64_t)kvfi_chain_to_come(c, s) + r->seals);
        if (rc) return rc;
    }
    int rc = kvfi_pools_room(c, seals, NULL);
    return rc ? rc : kvfi_learn_room(c);
}

int kvf_batch_begin(kvf_cache *c, const kvf_token *tokens, int32_t n)
{
    if (!c) return KVF_E_ARG;
    kvfi_batch *b = &c->batch;
    c->error[0] = 0;
    if (b->n) return kvfi_fail(c, KVF_E_STATE, "a batch of %d rows is open; commit or abort it first", (int)b->n);
    int rc = check_tokens(c, tokens, n);
    if (rc) return rc;
    group_rows(b, tokens, n, c->g.max_sequences);
    for (int32_t i = 0; i < b->n_runs && !rc; i++) rc = check_positions(c, tokens, &b->runs[i]);
    if (!rc) rc = make_room(c, n);
    if (rc) {
        b->n_runs = 0;
        return rc;
    }
    memcpy(b->tokens, tokens, (size_t)n * sizeof *tokens);
    memset(b->staged, 0, (size_t)c->g.n_stores * sizeof *b->staged);
    memset(b->queried, 0, (size_t)c->g.n_layers);
    b->n = n, b->saturated = 0, b->spoilt = 0;
    for (int32_t i = 0; i < b->n_runs; i++) {
        kvfi_learn_pend(c, &b->runs[i]);
        if (c->g.evict.policy->mass) kvfi_mass_clear_pending(c, &c->sequences[b->runs[i].seq]);
    }
    return KVF_OK;
}

/* Which sides of which layer may be staged now. */
static int check_append(kvf_cache *c, int32_t layer, const kvf_view *k, const kvf_view *v)
{
    if (!c->batch.n) return kvfi_fail(c, KVF_E_STATE, "append: no batch is open");
    if (layer < 0 || layer >= c->g.n_layers)
        return kvfi_fail(c, KVF_E_ARG, "append: layer %d; allowed are 0 to %d", (int)layer, (int)c->g.n_layers - 1);
    const kvfi_layer *l = &c->g.layers[layer];
    if (l->shares)
        return kvfi_fail(c, KVF_E_ARG, "append: layer %d shares the rows of layer %d", (int)layer,
                         (int)c->g.stores[l->store].layer);
    if (c->batch.staged[l->store].done) return kvfi_fail(c, KVF_E_STATE, "append: layer %d was appended already", (int)layer);
    int rc = kvfi_check_view(c, layer, "keys", k);
    if (!rc && !l->v_in_k) rc = kvfi_check_view(c, layer, "values", v);
    return rc;
}

int kvf_batch_append(kvf_cache *c, int32_t layer, const kvf_view *k, const kvf_view *v, const int32_t *cells)
{
    if (!c) return KVF_E_ARG;
    c->error[0] = 0;
    int rc = check_append(c, layer, k, v);
    if (rc) return rc;
    const kvfi_layer *l = &c->g.layers[layer];
    int64_t saturated = 0;
    rc = kvfi_check_rows(c, layer, "key", k, cells, l->kv_heads, l->k_dim, &saturated);
    if (!rc && !l->v_in_k) rc = kvfi_check_rows(c, layer, "value", v, cells, l->kv_heads, l->v_dim, &saturated);
    if (rc) return rc;
    kvfi_staged *staged = &c->batch.staged[l->store];
    staged->k = *k, staged->cells = cells, staged->done = 1;
    if (!l->v_in_k) staged->v = *v;
    c->batch.saturated += saturated;
    return KVF_OK;
}

int kvf_batch_commit(kvf_cache *c)
{
    if (!c) return KVF_E_ARG;
    kvfi_batch *b = &c->batch;
    c->error[0] = 0;
    if (!b->n) return kvfi_fail(c, KVF_E_STATE, "commit: no batch is open");
    if (c->attend.open) return kvfi_fail(c, KVF_E_STATE, "commit: an attention is open; end it first");
    if (b->spoilt)
        return kvfi_fail(c, KVF_E_STATE, "commit: an attention of this batch had scores that are NaN or infinite; abort it");
    for (int i = 0; i < c->g.n_stores; i++)
        if (!b->staged[i].done)
            return kvfi_fail(c, KVF_E_STATE, "commit: layer %d was not appended; the batch stays open",
                             (int)c->g.stores[i].layer);
    kvfi_seal_batch(c);
    kvfi_trim_committed(c);
    c->saturated += b->saturated;
    b->n = b->n_runs = 0;
    return KVF_OK;
}

int kvf_batch_abort(kvf_cache *c)
{
    if (!c) return KVF_E_ARG;
    c->error[0] = 0;
    if (!c->batch.n) return kvfi_fail(c, KVF_E_STATE, "abort: no batch is open");
    c->attend.open = 0;
    c->batch.n = c->batch.n_runs = 0;
    return KVF_OK;
}
