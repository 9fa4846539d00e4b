/* SPDX-License-Identifier: MIT
 * Commit: frees blocks that left a window, codes whole blocks from window and batch rows, keeps the rest in the window.
 * Rows always pass through f16, wherever they come from, so that the chunking of the input cannot change a byte. */
#include "cache/mass.h"
#include "cache/rows.h"
#include "base/half.h"
#include "codec/shared/part.h"

#include <string.h>

static const char *staged_row(const kvf_cache *c, const kvf_view *view, const int32_t *cells, const kvfi_run *r, int32_t i,
                              int32_t head)
{
    int32_t row = c->batch.order[r->first + i];
    return (const char *)view->data + (cells ? cells[row] : row) * view->token_stride + head * view->head_stride;
}

static uint8_t *window_row(const kvf_cache *c, const kvfi_sequence *s, const uint8_t *window, size_t row_bytes, int32_t i,
                           int32_t head)
{
    int32_t slot = (s->open_slot + i) % c->g.window_rows;
    return (uint8_t *)(uintptr_t)window + ((size_t)head * (size_t)c->g.window_rows + (size_t)slot) * row_bytes;
}

/* Row i of the batch itself, i >= open. */
static void read_staged(const kvfi_open_rows *o, int32_t i, int32_t head, uint16_t *out)
{
    const char *row = staged_row(o->c, o->view, o->cells, o->run, i - o->s->open, head);
    if (o->view->type == KVF_F32)
        o->c->g.kernels.narrow((const float *)(const void *)row, o->dim, out);
    else
        memcpy(out, row, (size_t)o->dim * sizeof *out);
}

/* The same whether the row was in the window or not: what the window does to a row is done to all. */
void kvfi_read_open(const kvfi_open_rows *o, int32_t i, int32_t head, uint16_t *out)
{
    const int32_t bits = o->c->g.exact_bits;
    float x[1024];
    if (i >= o->s->open) {
        read_staged(o, i, head, out);
        kvfi_row_round(bits, out, o->dim);
        return;
    }
    const uint8_t *row = window_row(o->c, o->s, o->window, o->row_bytes, i, head);
    if (bits == 16) {
        memcpy(out, row, o->row_bytes);
        return;
    }
    kvfi_row_get(bits, row, o->dim, x);
    o->c->g.kernels.narrow(x, o->dim, out);
}

kvfi_open_rows kvfi_open_keys(const kvf_cache *c, const kvfi_sequence *s, const kvfi_run *r, int store)
{
    const kvfi_store *st = &c->g.stores[store];
    const kvfi_staged *g = &c->batch.staged[store];
    return (kvfi_open_rows){c, s, r, &g->k, g->cells, s->exact + st->window_k, st->k_row, st->k.head_dim};
}

static kvfi_open_rows open_values(const kvf_cache *c, const kvfi_sequence *s, const kvfi_run *r, int store)
{
    const kvfi_store *st = &c->g.stores[store];
    const kvfi_staged *g = &c->batch.staged[store];
    return (kvfi_open_rows){c, s, r, &g->v, g->cells, s->exact + st->window_v, st->v_row, st->v_dim};
}

/* The stages before the codec's own: subtract the centre of the block's segment, divide by the channel scale. */
static void apply_stages(const kvf_cache *c, const kvfi_sequence *s, const kvfi_store *st, uint8_t *row, int32_t head, float *x)
{
    float centre[1024];
    const float *scale = kvfi_key_stages(c, s, st, *kvfi_row_epoch(row), *kvfi_row_first(row) / KVFI_SEGMENT, head, centre);
    kvfi_stage_rows(x, KVF_BLOCK, st->k.head_dim, centre, scale);
}

/* 64 open rows from `first` on as floats. */
static void load_block(const kvfi_open_rows *o, int32_t first, int32_t head, float *x)
{
    uint16_t half[1024];
    for (int32_t t = 0; t < KVF_BLOCK; t++) {
        kvfi_read_open(o, first + t, head, half);
        o->c->g.kernels.widen(half, o->dim, x + t * o->dim);
    }
}

/* Rows 0 .. sink-1 of the sequence, before block 0 takes them out of the window. */
static void fill_sink(const kvfi_open_rows *o, int32_t rows, int32_t heads, uint8_t *sink)
{
    uint16_t half[1024];
    for (int32_t h = 0; h < heads; h++)
        for (int32_t i = 0; i < rows; i++) {
            uint8_t *to = sink + ((size_t)h * (size_t)rows + (size_t)i) * o->row_bytes;
            if (i < o->s->open) {
                memcpy(to, window_row(o->c, o->s, o->window, o->row_bytes, i, h), o->row_bytes);
                continue;
            }
            read_staged(o, i, h, half);
            kvfi_row_put(o->c->g.exact_bits, half, o->dim, to);
        }
}

/* New rows that stay open go where their slot is; the slots they take were freed by the blocks just sealed. */
static void keep_open(const kvfi_open_rows *o, int32_t seals, int32_t heads)
{
    uint16_t half[1024];
    int32_t from = o->s->open > seals * KVF_BLOCK ? o->s->open : seals * KVF_BLOCK, to = o->s->open + o->run->count;
    for (int32_t h = 0; h < heads; h++)
        for (int32_t i = from; i < to; i++) {
            read_staged(o, i, h, half);
            kvfi_row_put(o->c->g.exact_bits, half, o->dim, window_row(o->c, o->s, o->window, o->row_bytes, i, h));
        }
}

/* How many blocks, over all stores, have left their window. */
static int32_t free_left(kvf_cache *c, kvfi_sequence *s, int32_t next)
{
    int32_t left = 0;
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        for (int32_t *b = &s->first_block[i]; *b < s->n_blocks; ++*b) {
            uint8_t *row = kvfi_row(c, s, *b);
            uint32_t *id = &kvfi_row_ids(c, row)[i];
            if (!kvfi_left_window(&c->g, st, (int64_t)*kvfi_row_first(row) + KVF_BLOCK - 1, next)) break;
            if (*id != KVFI_NO_BLOCK) kvfi_pool_drop(&c->pools[i], *id);
            *id = KVFI_NO_BLOCK;
            s->left_to[i] = *kvfi_row_first(row) + KVF_BLOCK - 1;
            left++;
        }
    }
    return left;
}

/* The table row of a block about to be sealed: positions, validity (dead rows and sink rows cleared), blocks taken. */
static void open_row(kvf_cache *c, kvfi_sequence *s, int32_t j, int32_t next)
{
    int32_t b = s->gone + s->n_blocks + j;
    uint8_t *row = kvfi_row(c, s, s->n_blocks + j);
    uint64_t dead = j < c->g.window_rows / KVF_BLOCK ? s->open_dead[j] : 0;
    uint64_t alive = ~dead;
    int32_t epoch = kvfi_epoch_of((int64_t)(b + 1) * KVF_BLOCK + c->g.recent);
    *kvfi_row_first(row) = s->open_pos + j * KVF_BLOCK;
    *kvfi_row_epoch(row) = epoch < s->n_sets ? epoch : s->n_sets - 1;
    if (b == 0 && c->g.sink) {
        uint64_t sink = c->g.sink == KVF_BLOCK ? ~(uint64_t)0 : ((uint64_t)1 << c->g.sink) - 1;
        s->has_sink = 1, s->sink_alive = alive & sink;
        alive &= ~sink;
    }
    for (int32_t h = 0; h < c->g.n_heads; h++) kvfi_row_valid(c, row)[h] = alive;
    for (int i = 0; i < c->g.n_stores; i++) {
        int gone = kvfi_left_window(&c->g, &c->g.stores[i], (int64_t)*kvfi_row_first(row) + KVF_BLOCK - 1, next);
        kvfi_row_ids(c, row)[i] = gone ? KVFI_NO_BLOCK : kvfi_pool_take(&c->pools[i]);
    }
}

static void seal_side(const kvfi_open_rows *o, const kvf_part *part, int store, int32_t seals, int32_t heads, size_t offset,
                      float *x)
{
    kvf_cache *c = (kvf_cache *)(uintptr_t)o->c;
    kvf_part room;
    for (int32_t j = 0; j < seals; j++) {
        uint8_t *row = kvfi_row(c, o->s, o->s->n_blocks + j);
        uint32_t id = kvfi_row_ids(c, row)[store];
        if (id == KVFI_NO_BLOCK) continue;
        for (int32_t h = 0; h < heads; h++) {
            load_block(o, j * KVF_BLOCK, h, x);
            if (part->side == KVF_K && !c->g.stores[store].keys_known) kvfi_watch_keys(c, &c->g.stores[store], x);
            if (part->side == KVF_K) kvfi_score_rows(c, o->s, store, j, h, x);
            if (part->side == KVF_K && c->g.stores[store].staged) apply_stages(c, o->s, &c->g.stores[store], row, h, x);
            uint8_t *record = kvfi_pool_data(&c->pools[store], id) + (size_t)h * c->g.stores[store].record_bytes + offset;
            part->codec->encode(kvfi_part_of(part, h, &room), x, record);
            c->saturated_scales += kvfi_part_saturated(part, record);
        }
        if (part->side == KVF_K && !c->g.stores[store].keys_known) c->g.stores[store].keys_known = 1;
    }
    keep_open(o, seals, heads);
}

static void seal_store(kvf_cache *c, const kvfi_sequence *s, const kvfi_run *r, int store)
{
    const kvfi_store *st = &c->g.stores[store];
    float *x = (float *)(void *)(c->attend.slots + c->g.slot_tile_k); /* no attention is open */
    kvfi_open_rows k = kvfi_open_keys(c, s, r, store), v = open_values(c, s, r, store);
    int new_sink = s->gone + s->n_blocks == 0 && r->seals > 0 && c->g.sink;
    if (new_sink) fill_sink(&k, c->g.sink, st->kv_heads, s->exact + st->sink_k);
    if (new_sink && !st->v_in_k) fill_sink(&v, c->g.sink, st->kv_heads, s->exact + st->sink_v);
    seal_side(&k, &st->k, store, r->seals, st->kv_heads, 0, x);
    if (!st->v_in_k) seal_side(&v, &st->v, store, r->seals, st->kv_heads, st->k.bytes, x);
}

static void advance_sequence(kvf_cache *c, kvfi_sequence *s, const kvfi_run *r)
{
    int32_t words = c->g.window_rows / KVF_BLOCK, moved = r->seals * KVF_BLOCK;
    s->n_blocks += r->seals;
    s->open += r->count - moved;
    s->open_pos += moved;
    s->open_slot = (int32_t)(((int64_t)s->open_slot + moved) % c->g.window_rows);
    for (int32_t i = 0; i < words; i++) s->open_dead[i] = i + r->seals < words ? s->open_dead[i + r->seals] : 0;
    s->next += r->count;
}

void kvfi_seal_batch(kvf_cache *c)
{
    for (int32_t i = 0; i < c->batch.n_runs; i++) {
        const kvfi_run *r = &c->batch.runs[i];
        kvfi_sequence *s = &c->sequences[r->seq];
        if (!s->used) {
            s->start = s->next = s->open_pos = c->batch.tokens[c->batch.order[r->first]].pos;
            s->used = 1, s->open_slot = 0;
            for (int store = 0; store < c->g.n_stores; store++) s->left_to[store] = -1;
        }
        kvfi_learn_rows(c, s, r);
        if (c->g.evict.policy->mass) kvfi_mass_promote(c, s, r);
        int32_t next = s->next + r->count;
        int32_t left = free_left(c, s, next);
        for (int32_t j = 0; j < r->seals; j++) open_row(c, s, j, next);
        memcpy(c->batch.scored, s->n_links, (size_t)c->g.n_stores * sizeof *s->n_links);
        for (int store = 0; store < c->g.n_stores; store++) seal_store(c, s, r, store);
        if (r->seals) kvfi_say_risky(c);
        advance_sequence(c, s, r);
        left += free_left(c, s, next); /* steps over blocks that left before they were sealed */
        if (kvfi_evicts(&c->g.evict) && r->seals + left) kvfi_evict_rows(c, s, r->seals);
    }
}
