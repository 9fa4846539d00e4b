/* SPDX-License-Identifier: MIT
 * Estimating key stages from the first rows of a sequence (calib/self.h): queries enter at attend (pending until commit), keys at
 * commit; at 128, 256, 512 and 1,024 rows a table set is made from what there is. */
#include "cache/cache.h"
#include "base/exact.h"
#include "base/half.h"

#include <string.h>

/* Index of the first row of the run in its sequence. */
static int64_t first_row(const kvfi_sequence *s)
{
    return kvfi_rows_sealed(s) + s->open;
}

static int learns(const kvf_cache *c, const kvfi_sequence *s)
{
    return c->g.table_bytes && first_row(s) < KVFI_EPOCH_LAST && s->learned < KVFI_EPOCH_LAST;
}

/* Sets that the run will complete. */
int kvfi_learn_room(kvf_cache *c)
{
    uint32_t sets = 0;
    for (int32_t i = 0; i < c->batch.n_runs; i++) {
        const kvfi_run *r = &c->batch.runs[i];
        const kvfi_sequence *s = &c->sequences[r->seq];
        for (int32_t e = s->n_sets; c->g.table_bytes && e < KVFI_EPOCHS; e++)
            sets += KVFI_EPOCH_FIRST << e <= first_row(s) + r->count;
    }
    if (kvfi_pool_available(&c->tables) >= sets) return KVF_OK;
    if (c->reserved_sequences)
        return kvfi_fail(c, KVF_E_FULL, "estimates of one more sequence do not fit in the %d that were reserved",
                         (int)c->reserved_sequences);
    if (!kvfi_pool_grow(&c->tables, &c->a, (uint64_t)c->tables.in_use + sets + KVFI_EPOCHS)) return KVF_OK;
    return kvfi_fail(c, KVF_E_NOMEM, "out of memory: estimates need %zu bytes a set", c->g.table_bytes);
}

static double *query_sums(const kvfi_sequence *s, const kvfi_layer *l, int32_t copy)
{
    return (double *)(void *)(s->exact + l->query_sums + (size_t)copy * l->query_bytes);
}

void kvfi_learn_pend(kvf_cache *c, const kvfi_run *r)
{
    kvfi_sequence *s = &c->sequences[r->seq];
    if (!learns(c, s)) return;
    if (!s->used) memset(s->exact + c->g.sums_offset, 0, c->g.sums_bytes);
    for (int32_t i = 0; i < c->g.n_layers; i++) {
        const kvfi_layer *l = &c->g.layers[i];
        if (l->query_bytes) memcpy(query_sums(s, l, !s->query_copy), query_sums(s, l, s->query_copy), l->query_bytes);
    }
}

static void learn_run(kvf_cache *c, const kvfi_run *r)
{
    const kvf_attention *a = &c->attend.request;
    const kvfi_layer *l = &c->g.layers[a->layer];
    const kvfi_sequence *s = &c->sequences[r->seq];
    const size_t one = (size_t)l->kv_heads * (size_t)l->k_dim;
    double *sums = query_sums(s, l, !s->query_copy), *running = sums + (KVFI_EPOCHS - 1) * one;
    float q[1024];
    for (int32_t i = 0; i < r->count; i++) {
        const int64_t row = first_row(s) + i;
        if (row >= KVFI_EPOCH_LAST) break;
        if (row < s->learned) continue;
        for (int32_t h = 0; h < l->q_heads && row >= KVFI_SKIP; h++) {
            const char *from = (const char *)a->q.data + c->batch.order[r->first + i] * a->q.token_stride + h * a->q.head_stride;
            kvfi_load_row(from, a->q.type == KVF_F32, l->k_dim, q);
            kvfi_add_query(running + (size_t)(h / l->group) * (size_t)l->k_dim, q, l->k_dim);
        }
        for (int32_t e = 0; e + 1 < KVFI_EPOCHS; e++)
            if (row + 1 == KVFI_EPOCH_FIRST << e) memcpy(sums + (size_t)e * one, running, one * sizeof *sums);
    }
}

void kvfi_learn_queries(kvf_cache *c)
{
    const kvfi_layer *l = &c->g.layers[c->attend.request.layer];
    if (!l->query_bytes || c->batch.queried[c->attend.request.layer]) return;
    c->batch.queried[c->attend.request.layer] = 1;
    for (int32_t i = 0; i < c->batch.n_runs; i++)
        if (learns(c, &c->sequences[c->batch.runs[i].seq])) learn_run(c, &c->batch.runs[i]);
}

/* ---- keys ---------------------------------------------------------------------------------------------------------------------- */

static void add_row(kvf_cache *c, const kvfi_sequence *s, const kvfi_run *r, int store, int32_t i, int64_t pos)
{
    const kvfi_store *st = &c->g.stores[store];
    kvfi_open_rows open = kvfi_open_keys(c, s, r, store);
    double turns[512][2], *keys = (double *)(void *)(s->exact + st->key_sums),
                          *pair = (double *)(void *)(s->exact + st->pair_sums);
    uint16_t half[1024];
    float k[1024];
    for (int32_t p = 0; p < st->n_pairs; p++) {
        kvfi_sincos((double)pos * st->pairs[p].freq, &turns[p][1], &turns[p][0]);
        pair[3 * p] += turns[p][0] * turns[p][0];
        pair[3 * p + 1] += turns[p][0] * turns[p][1];
        pair[3 * p + 2] += turns[p][1] * turns[p][1];
    }
    for (int32_t h = 0; h < st->kv_heads; h++) {
        kvfi_read_open(&open, s->open + i, h, half);
        kvfi_load_row(half, 0, st->k.head_dim, k);
        kvfi_add_key(keys + (size_t)h * KVFI_KEY_SUMS * (size_t)st->k.head_dim, k, st->k.head_dim, st->pairs, st->n_pairs,
                     (const double(*)[2])turns);
    }
}

/* Sum over the layers that read the store of their queries' squares at `epoch`; returns how many query rows that is. */
static int64_t gather_queries(const kvf_cache *c, const kvfi_sequence *s, int store, int32_t epoch, int32_t head, double *out)
{
    int64_t n = 0;
    for (int32_t i = 0; i < c->g.n_layers; i++) {
        const kvfi_layer *l = &c->g.layers[i];
        if (l->store != store || !l->query_bytes || !c->batch.queried[i]) continue;
        const size_t one = (size_t)l->kv_heads * (size_t)l->k_dim;
        const double *sums = query_sums(s, l, !s->query_copy) + (size_t)epoch * one + (size_t)head * (size_t)l->k_dim;
        for (int32_t d = 0; d < l->k_dim; d++) out[d] += sums[d];
        n += ((KVFI_EPOCH_FIRST << epoch) - KVFI_SKIP) * (int64_t)l->group;
    }
    return n;
}

static void make_store_tables(kvf_cache *c, kvfi_sequence *s, int store, int32_t epoch)
{
    kvfi_store *st = &c->g.stores[store];
    uint8_t *table = (uint8_t *)(uintptr_t)kvfi_table(c, s, epoch, st);
    double queries[1024], unrotated = 0, plain = 0;
    kvfi_estimate e = {
        .pairs = st->pairs, .n_pairs = st->n_pairs, .dim = st->k.head_dim, .centred = st->k.centre, .scaled = st->k.scaled};
    e.n = (KVFI_EPOCH_FIRST << epoch) - KVFI_SKIP;
    e.pair_sums = (const double(*)[3])(const void *)(s->exact + st->pair_sums);
    e.queries = queries;
    for (int32_t h = 0; h < st->kv_heads; h++) {
        e.keys = (const double *)(const void *)(s->exact + st->key_sums) + (size_t)h * KVFI_KEY_SUMS * (size_t)st->k.head_dim;
        kvfi_mean_energy(&e, &unrotated, &plain);
    }
    /* Un-rotating must concentrate the mean. Where there is hardly a mean both are noise of equal size. */
    int64_t rotate = unrotated >= 0.9 * plain;
    memcpy(table, &rotate, sizeof rotate);
    st->unturned = !rotate;
    if (!rotate && !st->unturned_said) st->unturned_said = 1;
    for (int32_t h = 0; h < st->kv_heads; h++) {
        memset(queries, 0, sizeof queries);
        e.keys = (const double *)(const void *)(s->exact + st->key_sums) + (size_t)h * KVFI_KEY_SUMS * (size_t)st->k.head_dim;
        e.n_queries = gather_queries(c, s, store, epoch, h, queries);
        kvfi_make_table(&e, rotate != 0, kvfi_table_c0(table, st, h), kvfi_table_scale(table, st, h));
    }
}

static void make_set(kvf_cache *c, kvfi_sequence *s, int32_t epoch)
{
    s->sets[epoch] = kvfi_pool_take(&c->tables);
    s->n_sets = epoch + 1;
    memset(kvfi_pool_data(&c->tables, s->sets[epoch]), 0, c->g.table_bytes);
    for (int i = 0; i < c->g.n_stores; i++)
        if (c->g.stores[i].self) make_store_tables(c, s, i, epoch);
    kvfi_say_unturned(c);
}

void kvfi_learn_rows(kvf_cache *c, kvfi_sequence *s, const kvfi_run *r)
{
    if (!learns(c, s)) return;
    for (int32_t i = 0; i < r->count && s->learned < KVFI_EPOCH_LAST; i++) {
        const int64_t row = first_row(s) + i;
        if (row < s->learned) continue;
        const int64_t pos = c->batch.tokens[c->batch.order[r->first + i]].pos;
        for (int store = 0; store < c->g.n_stores && row >= KVFI_SKIP; store++)
            if (c->g.stores[store].self) add_row(c, s, r, store, i, pos);
        s->learned = (int32_t)row + 1;
        if (s->n_sets < KVFI_EPOCHS && s->learned == KVFI_EPOCH_FIRST << s->n_sets) make_set(c, s, s->n_sets);
    }
    s->query_copy = !s->query_copy;
}

void kvfi_forget_sets(kvf_cache *c, kvfi_sequence *s)
{
    for (int32_t e = 0; e < s->n_sets; e++) kvfi_pool_drop(&c->tables, s->sets[e]);
    s->n_sets = s->learned = s->query_copy = 0;
}

void kvfi_learn_again(kvf_cache *c, kvfi_sequence *s)
{
    kvfi_forget_sets(c, s);
    if (c->g.sums_bytes) memset(s->exact + c->g.sums_offset, 0, c->g.sums_bytes);
}

/* ---- what a block was coded with ---------------------------------------------------------------------------------------------- */

const float *kvfi_key_stages(const kvf_cache *c, const kvfi_sequence *s, const kvfi_store *st, int32_t epoch, int64_t segment,
                             int32_t head, float *centre)
{
    double turned[1024];
    const uint8_t *table = kvfi_table(c, s, epoch, st);
    memcpy(turned, kvfi_table_c0(table, st, head), (size_t)st->k.head_dim * sizeof *turned);
    kvfi_turn(turned, st->pairs, kvfi_table_turns(table) ? st->n_pairs : 0, segment);
    for (int32_t d = 0; d < st->k.head_dim; d++) centre[d] = (float)turned[d];
    return kvfi_table_scale(table, st, head);
}
