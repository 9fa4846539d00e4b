/* SPDX-License-Identifier: MIT
 * Scores of one piece after the other, of up to 64 tokens. Up to KVFI_DIRECT vectors read packed codes and exact rows as they lie; more
 * unfold a tile once and share it, but where a set reads codes faster for any number of them. */
#include "base/half.h"
#include "cache/walk.h"
#include "codec/shared/part.h"
#include "codec/shared/rotation.h"
#include "codec/shared/stages.h"

#include <math.h>
#include <string.h>

/* ---- queries ---------------------------------------------------------------------------------------------------------------- */

static void load_query(const kvfi_walker *w, int32_t v, float *out)
{
    const kvf_view *q = &w->a->q;
    const char *data = (const char *)q->data + w->row[v] * q->token_stride + w->head[v] * q->head_stride;
    memset(out, 0, w->k_stride * sizeof *out);
    kvfi_load_row(data, q->type == KVF_F32, w->layer->k_dim, out);
    for (int32_t d = 0; d < w->layer->k_dim; d++) out[d] *= w->a->scale;
}

static void transform_queries(const kvfi_walker *w)
{
    const kvf_part *k = w->k;
    kvfi_rotate(&k->rot, w->kernels->hadamard, w->q_rotated, w->k_stride, w->n);
    if (!w->tiles_k) w->kernels->kind[k->kind].prepare(k, w->q_rotated, w->k_stride, w->n, w->prepared);
}

void kvfi_walker_prepare(kvfi_walker *w)
{
    for (int32_t v = 0; v < w->n; v++) load_query(w, v, w->q + (size_t)v * w->k_stride);
    w->epoch = -1, w->segment = -1;
    if (w->seq->n_links[w->layer->store] && w->store->staged) memset(w->known, 0xff, (size_t)w->n_known * sizeof *w->known);
}

/* Queries of stores without stages, all of whose blocks want the same: once there is one. */
static void use_plain(kvfi_walker *w)
{
    const kvf_part *k = &w->store->k;
    if (w->epoch == 0) return;
    w->epoch = 0;
    if (k->rot.kind)
        memcpy(w->q_rotated, w->q, (size_t)w->n * w->k_stride * sizeof *w->q);
    else
        w->q_rotated = w->q;
    transform_queries(w);
}

/* Four sums in turn, for the latency of an addition. */
static float dot_centre(const float *q, const float *centre, int32_t dim)
{
    float sum[4] = {0};
    int32_t d = 0;
    for (; d + 4 <= dim; d += 4)
        for (int i = 0; i < 4; i++) sum[i] += q[d + i] * centre[d + i];
    for (; d < dim; d++) sum[0] += q[d] * centre[d];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Queries times the channel scale of an epoch. */
static void use_epoch(kvfi_walker *w, int32_t epoch)
{
    const int32_t dim = w->store->k.head_dim;
    if (epoch == w->epoch) return;
    const float *scale = kvfi_table_scale(kvfi_table(w->c, w->seq, epoch, w->store), w->store, w->item->head);
    memcpy(w->q_rotated, w->q, (size_t)w->n * w->k_stride * sizeof *w->q);
    for (int32_t v = 0; v < w->n; v++)
        for (int32_t d = 0; d < dim; d++) w->q_rotated[(size_t)v * w->k_stride + (size_t)d] *= scale[d];
    transform_queries(w);
    w->epoch = epoch, w->segment = -1, w->listed = 0;
}

/* Turns the centre of the epoch in use on to `segment`. Where it lies behind, from the start. */
static void turn_centre(kvfi_walker *w, int64_t segment)
{
    const uint8_t *table = kvfi_table(w->c, w->seq, w->epoch, w->store);
    if (w->segment < 0 || segment < w->segment) {
        memcpy(w->centre, kvfi_table_c0(table, w->store, w->item->head), (size_t)w->store->k.head_dim * sizeof *w->centre);
        w->segment = 0;
    }
    kvfi_turn(w->centre, w->store->pairs, kvfi_table_turns(table) ? w->store->n_pairs : 0, segment - w->segment);
    w->segment = segment;
}

static void dot_centres(const kvfi_walker *w, float *offset)
{
    const int32_t dim = w->store->k.head_dim;
    float centre[1024];
    for (int32_t d = 0; d < dim; d++) centre[d] = (float)w->centre[d];
    for (int32_t v = 0; v < w->n; v++) offset[v] = dot_centre(w->q + (size_t)v * w->k_stride, centre, dim);
}

/* Scale and centre of a block of the table: the centre's share of the scores is the same for the whole block. */
static void use_tables(kvfi_walker *w, int32_t epoch, int64_t segment)
{
    if (epoch == w->epoch && segment == w->segment) return;
    use_epoch(w, epoch);
    turn_centre(w, segment);
    dot_centres(w, w->offset);
}

/* Where the share of a segment of an epoch is remembered. The last epoch has nearly all segments. */
static int64_t entry_of(const kvfi_walker *w, int32_t epoch, int64_t segment)
{
    return (segment + epoch) & (w->n_known - 1); /* a power of two */
}

/* The same share for a segment of the epoch in use, from memory. In chains segments come in any order, and centres can only be turned
 * on, so all segments that are passed on the way are remembered. */
static const float *offsets_of(kvfi_walker *w, int64_t segment)
{
    const int32_t epoch = w->epoch;
    const int64_t entry = entry_of(w, epoch, segment);
    float *offsets = w->offsets + (size_t)entry * (size_t)w->n;
    if (w->known[entry] == segment * KVFI_EPOCHS + epoch) return offsets;
    int64_t at = w->segment < 0 || w->segment >= segment ? segment - w->n_known + 1 : w->segment + 1;
    for (at = at > 0 ? at : 0; at <= segment; at++) {
        const int64_t e = entry_of(w, epoch, at);
        turn_centre(w, at);
        if (w->known[e] != at * KVFI_EPOCHS + epoch) dot_centres(w, w->offsets + (size_t)e * (size_t)w->n);
        w->known[e] = at * KVFI_EPOCHS + epoch;
    }
    return offsets;
}

/* Segments of the living rows of a bin become wanted, -2 - what is known once their share is there, where it is not. */
static void want_segments(const kvfi_walker *w, const kvfi_bin *bin, int64_t *first, int64_t *last)
{
    for (int32_t t = 0; t < KVF_BLOCK; t++) {
        if (!(bin->alive >> t & 1)) continue;
        const int64_t segment = kvfi_bin_segment(bin, t), key = segment * KVFI_EPOCHS + bin->epoch;
        int64_t *known = &w->known[entry_of(w, bin->epoch, segment)];
        if (*known != key) *known = -2 - key;
        *first = segment < *first ? segment : *first, *last = segment > *last ? segment : *last;
    }
}

/* Shares of the segments that rows of this walk's links have, and of no others: few rows may have come from a long text. Where segments
 * lie too far apart to be remembered together, offsets_of finds them one by one. */
static void use_links(kvfi_walker *w, int32_t epoch)
{
    int64_t first = INT64_MAX, last = -1;
    if (w->epoch == epoch) return;
    use_epoch(w, epoch);
    for (int32_t i = w->from; i < w->to; i++) {
        const kvfi_bin *bin = &kvfi_link_at(w->seq, w->store, i)->bin[w->item->head];
        if (bin->epoch == epoch) want_segments(w, bin, &first, &last);
    }
    w->listed = last - first < w->n_known;
    for (int64_t at = first; w->listed && at <= last; at++) {
        const int64_t e = entry_of(w, epoch, at), key = at * KVFI_EPOCHS + epoch;
        if (w->known[e] != -2 - key) continue;
        turn_centre(w, at);
        dot_centres(w, w->offsets + (size_t)e * (size_t)w->n);
        w->known[e] = key;
    }
}

void kvfi_walker_open(kvfi_walker *w, kvf_cache *c, const kvfi_item *item, uint8_t *slot)
{
    const kvfi_geometry *g = &c->g;
    w->c = c, w->a = &c->attend.request, w->layer = &g->layers[w->a->layer], w->store = &g->stores[w->layer->store];
    w->k = kvfi_part_of(&w->store->k, item->head, &w->k_room), w->v = kvfi_part_of(&w->store->v, item->head, &w->v_room);
    w->run = &c->batch.runs[item->run], w->seq = &c->sequences[w->run->seq], w->item = item, w->kernels = &c->g.kernels;
    w->n = item->count, w->tiles = item->count > KVFI_DIRECT;
    w->tiles_k = w->tiles && !w->kernels->kind[w->k->kind].many, w->tiles_v = w->tiles && !w->kernels->kind[w->v->kind].many;
    w->gathers = kvfi_gathers(c, item);
    w->k_stride = (size_t)w->store->k.dim_pad, w->v_stride = w->layer->v_stride;
    w->q = (float *)(void *)(slot + g->slot_q), w->q_rotated = (float *)(void *)(slot + g->slot_rotated);
    w->prepared = slot + g->slot_prepared, w->scores = (float *)(void *)(slot + g->slot_scores);
    w->acc = (float *)(void *)(slot + g->slot_acc), w->acc_rotated = (float *)(void *)(slot + g->slot_acc_rotated);
    w->tile_k = (float *)(void *)(slot + g->slot_tile_k), w->tile_v = (float *)(void *)(slot + g->slot_tile_v);
    w->bias = (float *)(void *)(slot + g->slot_bias);
    w->known = (int64_t *)(void *)(slot + g->slot_offsets), w->offsets = (float *)(void *)(w->known + KVFI_OFFSETS);
    w->n_known = w->n > KVFI_DIRECT ? KVFI_OFFSETS / (KVFI_VECTORS / KVFI_DIRECT) : KVFI_OFFSETS;
    w->rows_k = (float *)(void *)(slot + g->slot_rows_k), w->rows_v = (float *)(void *)(slot + g->slot_rows_v);
    for (int32_t v = 0; v < w->n; v++) {
        int32_t vector = item->first + v;
        w->row[v] = c->batch.order[w->run->first + vector / w->layer->group];
        w->head[v] = item->head * w->layer->group + vector % w->layer->group;
        w->pos[v] = c->batch.tokens[w->row[v]].pos;
    }
}

/* ---- masks ------------------------------------------------------------------------------------------------------------------ */

/* Tokens of a piece (positions first .. first + n - 1) that a query at `pos` may see; bit i: token i. */
static uint64_t visible(const kvfi_walker *w, int64_t first, int32_t n, int64_t pos, uint64_t alive)
{
    int64_t lo = w->layer->window ? pos - w->layer->window + 1 - first : 0, hi = pos - first + 1;
    if (lo < 0) lo = 0;
    if (hi > n) hi = n;
    if (lo >= hi) return 0;
    uint64_t below = hi == KVF_BLOCK ? ~(uint64_t)0 : ((uint64_t)1 << hi) - 1;
    return alive & below & ~(((uint64_t)1 << lo) - 1);
}

static void cap_scores(const kvfi_walker *w, float *s)
{
    if (w->a->softcap <= 0) return;
    const float cap = w->a->softcap;
    for (int i = 0; i < KVF_BLOCK; i++) s[i] = cap * tanhf(s[i] / cap);
}

static void hide(float *s, uint64_t seen)
{
    if (seen == ~(uint64_t)0) return;
    for (int i = 0; i < KVF_BLOCK; i++) s[i] = seen >> i & 1 ? s[i] : -INFINITY;
}

/* Scores of history: softcap, ALiBi by distance, mask by positions: from `first` on, or each its own. */
static void finish_scores(const kvfi_walker *w, int64_t first, const int32_t *pos, const uint64_t *seen)
{
    const int plain = w->a->softcap <= 0 && !w->a->slopes;
    for (int32_t v = 0; v < w->n; v++) {
        float *s = w->scores + (size_t)v * KVF_BLOCK;
        if (plain && seen[v] == ~(uint64_t)0) continue;
        cap_scores(w, s);
        if (w->a->slopes) {
            const float slope = w->a->slopes[w->head[v]];
            for (int i = 0; i < KVF_BLOCK; i++) s[i] -= slope * (float)(w->pos[v] - (pos ? pos[i] : first + i));
        }
        hide(s, seen[v]);
    }
}

/* Which places of a bin the queries may see. */
static uint64_t see_bin(const kvfi_walker *w, const kvfi_bin *bin, uint64_t *seen)
{
    uint64_t any = 0;
    for (int32_t v = 0; v < w->n; v++) {
        seen[v] = bin->alive;
        if (w->layer->window) seen[v] &= kvfi_bin_range(bin, (int64_t)w->pos[v] - w->layer->window + 1, INT32_MAX);
        any |= seen[v];
    }
    return any;
}

static uint64_t see(const kvfi_walker *w, int64_t first, int32_t n, uint64_t alive, uint64_t *seen)
{
    uint64_t any = 0;
    for (int32_t v = 0; v < w->n; v++) {
        seen[v] = v && w->pos[v] == w->pos[v - 1] ? seen[v - 1] : visible(w, first, n, w->pos[v], alive);
        any |= seen[v];
    }
    return any;
}

/* ---- packed ----------------------------------------------------------------------------------------------------------------- */

/* Entries of a bin's rows, and whether those of living ones are known. Segments change at each row, so no branch depends on one. */
static int entries_of(const kvfi_walker *w, const kvfi_bin *bin, int32_t entry[KVF_BLOCK])
{
    int32_t segment[KVF_BLOCK];
    int64_t differ = 0;
    for (int i = 0; i < KVF_BLOCK; i++) segment[i] = (int32_t)((uint32_t)bin->pos[i] / KVFI_SEGMENT);
    for (int i = 0; bin->earlier && i < KVF_BLOCK; i++) segment[i] -= (int32_t)(bin->earlier >> i & 1);
    for (int i = 0; i < KVF_BLOCK; i++) entry[i] = (segment[i] + w->epoch) & (w->n_known - 1);
    if (w->listed) return 1;
    for (int i = 0; i < KVF_BLOCK; i++) differ |= w->known[entry[i]] ^ ((int64_t)segment[i] * KVFI_EPOCHS + w->epoch);
    return !differ;
}

/* What the centre, subtracted before coding, adds to the score of each row of a bin; of dead rows it does not matter. */
static void add_bin_offsets(kvfi_walker *w, const kvfi_bin *bin)
{
    int32_t entry[KVF_BLOCK];
    float *s = w->scores;
    if (entries_of(w, bin, entry)) {
        for (int32_t v = 0; v < w->n; v++, s += KVF_BLOCK)
            for (int i = 0; i < KVF_BLOCK; i++) s[i] += w->offsets[entry[i] * w->n + v];
        return;
    }
    for (int i = 0; i < KVF_BLOCK; i++) {
        const float *offsets = offsets_of(w, kvfi_bin_segment(bin, i));
        for (int32_t v = 0; v < w->n; v++) s[v * KVF_BLOCK + i] += offsets[v];
    }
}

static void add_to_scores(const kvfi_walker *w, const float *add)
{
    for (int32_t v = 0; add && v < w->n; v++)
        for (int32_t i = 0; i < KVF_BLOCK; i++) w->scores[(size_t)v * KVF_BLOCK + (size_t)i] += add[v];
}

/* What centre and mean, subtracted before coding, add to every score of the block, for each vector; NULL: nothing. A cap needs whole
 * scores, otherwise it is left to the softmax. */
static const float *offsets(kvfi_walker *w, const uint8_t *record, int centred)
{
    const kvf_part *k = w->k;
    float mean[1024];
    if (!centred && !k->block_mean) return NULL;
    if (k->block_mean) kvfi_block_mean(k, record, mean);
    for (int32_t v = 0; v < w->n; v++) {
        w->room[v] = centred ? w->offset[v] : 0;
        if (k->block_mean) w->room[v] += kvfi_dot16(w->q_rotated + (size_t)v * w->k_stride, mean, k->dim);
    }
    if (w->a->softcap <= 0) return w->room;
    add_to_scores(w, w->room);
    return NULL;
}

static const uint8_t *record_of(const kvfi_walker *w, uint32_t id)
{
    return kvfi_pool_data(&w->c->pools[w->layer->store], id) + (size_t)w->item->head * w->store->record_bytes;
}

static void score_record(const kvfi_walker *w, const uint8_t *record)
{
    const kvf_part *k = w->k;
    const kvfi_kind_ops *kk = &w->kernels->kind[k->kind];
    if (w->tiles_k || w->store->v_in_k) kk->unfold(k, record, w->tile_k);
    if (w->tiles_k)
        w->kernels->tile_score(w->tile_k, k->dim_pad, w->q_rotated, w->k_stride, w->n, w->scores);
    else
        kk->score(k, record, w->prepared, w->n, w->scores);
}

const uint8_t *kvfi_score_block(kvfi_walker *w, int32_t block, const float **add)
{
    uint8_t *row = kvfi_row(w->c, w->seq, block);
    const uint32_t id = kvfi_row_ids(w->c, row)[w->layer->store];
    const uint64_t alive = kvfi_row_valid(w->c, row)[w->store->first_head + w->item->head];
    const int32_t first = *kvfi_row_first(row);
    uint64_t seen[KVFI_VECTORS];
    if (id == KVFI_NO_BLOCK || !see(w, first, KVF_BLOCK, alive, seen)) return NULL;
    const uint8_t *record = record_of(w, id);
    if (w->store->staged)
        use_tables(w, w->store->self ? *kvfi_row_epoch(row) : 0, first / KVFI_SEGMENT);
    else
        use_plain(w);
    score_record(w, record);
    *add = offsets(w, record, w->store->staged);
    finish_scores(w, first, NULL, seen);
    return record;
}

const uint8_t *kvfi_score_link(kvfi_walker *w, const kvfi_link *link)
{
    const kvfi_bin *bin = &link->bin[w->item->head];
    const uint8_t *record = record_of(w, link->id);
    uint64_t seen[KVFI_VECTORS];
    if (!see_bin(w, bin, seen)) return NULL;
    if (w->store->staged)
        use_links(w, bin->epoch);
    else
        use_plain(w);
    score_record(w, record);
    add_to_scores(w, offsets(w, record, 0));
    if (w->store->staged) add_bin_offsets(w, bin);
    finish_scores(w, 0, bin->pos, seen);
    return record;
}

/* ---- exact ------------------------------------------------------------------------------------------------------------------ */

static void exact_scores(kvfi_walker *w, const kvfi_rows *k, int32_t n)
{
    if (!w->tiles) {
        w->kernels->rows_score(k, n, w->layer->k_dim, w->q, w->k_stride, w->n, w->scores);
        return;
    }
    w->kernels->rows_unfold_k(k, n, w->layer->k_dim, (int32_t)w->k_stride, w->tile_k);
    w->kernels->tile_score(w->tile_k, (int32_t)w->k_stride, w->q, w->k_stride, w->n, w->scores);
}

/* n rows of a head from `slot` on, as they lie; rows that are not f16 are unpacked to `scratch` first. */
static kvfi_rows stored_rows(const kvfi_walker *w, size_t offset, int32_t dim, int32_t rows_per_head, int32_t slot, int32_t n,
                             float *scratch)
{
    const int32_t bits = w->c->g.exact_bits;
    const size_t row_bytes = kvfi_row_bytes(bits, dim);
    const uint8_t *first = w->seq->exact + offset + ((size_t)w->item->head * (size_t)rows_per_head + (size_t)slot) * row_bytes;
    if (bits == 16) return (kvfi_rows){(const char *)first, (int64_t)row_bytes, KVF_F16, NULL};
    for (int32_t i = 0; i < n; i++) kvfi_row_get(bits, first + (size_t)i * row_bytes, dim, scratch + (size_t)i * (size_t)dim);
    return (kvfi_rows){(const char *)scratch, (int64_t)sizeof(float) * dim, KVF_F32, NULL};
}

/* Rows of history with consecutive positions. */
static int score_stored(kvfi_walker *w, const kvfi_rows *keys, int64_t first, int32_t n, uint64_t alive)
{
    uint64_t seen[KVFI_VECTORS];
    if (!see(w, first, n, alive, seen)) return 0;
    exact_scores(w, keys, n);
    finish_scores(w, first, NULL, seen);
    return 1;
}

int kvfi_score_sink(kvfi_walker *w)
{
    const int32_t n = w->c->g.sink;
    if (!w->seq->has_sink) return 0;
    w->keys = stored_rows(w, w->store->sink_k, w->layer->k_dim, n, 0, n, w->rows_k);
    return score_stored(w, &w->keys, w->seq->start, n, w->seq->sink_alive);
}

kvfi_rows kvfi_sink_values(const kvfi_walker *w)
{
    const int32_t n = w->c->g.sink;
    return w->store->v_in_k ? w->keys : stored_rows(w, w->store->sink_v, w->layer->v_dim, n, 0, n, w->rows_v);
}

int kvfi_score_window(kvfi_walker *w, int32_t i, int32_t n)
{
    const int32_t rows = w->c->g.window_rows, slot = (w->seq->open_slot + i) % rows;
    w->keys = stored_rows(w, w->store->window_k, w->layer->k_dim, rows, slot, n, w->rows_k);
    return score_stored(w, &w->keys, (int64_t)w->seq->open_pos + i, n, ~w->seq->open_dead[i / KVF_BLOCK]);
}

kvfi_rows kvfi_window_values(const kvfi_walker *w, int32_t i, int32_t n)
{
    const int32_t rows = w->c->g.window_rows, slot = (w->seq->open_slot + i) % rows;
    return w->store->v_in_k ? w->keys : stored_rows(w, w->store->window_v, w->layer->v_dim, rows, slot, n, w->rows_v);
}

/* ---- tail ------------------------------------------------------------------------------------------------------------------- */

static float mask_at(const kvfi_walker *w, int32_t row, int32_t cell)
{
    const char *at = (const char *)w->a->mask + row * w->a->mask_stride + (w->a->mask_type == KVF_F32 ? 4 : 2) * (int64_t)cell;
    if (w->a->mask_type == KVF_F32) {
        float f;
        memcpy(&f, at, 4);
        return f;
    }
    uint16_t h;
    memcpy(&h, at, 2);
    return kvfi_half_to_float(h);
}

/* What the host's mask, or else causality, window and distance, add to a score before the head's slope. */
static float tail_bias(const kvfi_walker *w, int32_t v, int32_t key_row, int32_t cell)
{
    if (w->a->mask) return mask_at(w, w->row[v], cell);
    int64_t distance = (int64_t)w->pos[v] - w->c->batch.tokens[key_row].pos;
    if (distance < 0 || (w->layer->window && distance >= w->layer->window)) return -INFINITY;
    return w->a->slopes ? -(float)distance : 0;
}

/* Bias of tail rows i .. i + n - 1, once for all heads of a query row. 0 when everything is hidden. */
static int fill_bias(const kvfi_walker *w, int32_t i, int32_t n, const int32_t *cell)
{
    int any = 0;
    for (int32_t v = 0; v < w->n; v++) {
        float *bias = w->bias + (size_t)v * KVF_BLOCK;
        if (v && w->row[v] == w->row[v - 1]) {
            memcpy(bias, bias - KVF_BLOCK, (size_t)n * sizeof *bias);
            continue;
        }
        for (int32_t j = 0; j < n; j++) {
            bias[j] = tail_bias(w, v, w->c->batch.order[w->run->first + i + j], cell[j]);
            any |= bias[j] > -INFINITY;
        }
    }
    return any;
}

static void bias_tail(const kvfi_walker *w, int32_t n)
{
    for (int32_t v = 0; v < w->n; v++) {
        float *s = w->scores + (size_t)v * KVF_BLOCK;
        const float *bias = w->bias + (size_t)v * KVF_BLOCK, slope = w->a->slopes ? w->a->slopes[w->head[v]] : 1;
        cap_scores(w, s);
        for (int32_t j = 0; j < n; j++) s[j] = bias[j] > -INFINITY ? s[j] + slope * bias[j] : -INFINITY;
        for (int32_t j = n; j < KVF_BLOCK; j++) s[j] = -INFINITY;
    }
}

/* One side of rows of the batch. */
static kvfi_rows tail_rows(const kvfi_walker *w, const kvf_view *view, const int32_t *index)
{
    return (kvfi_rows){(const char *)view->data + w->item->head * view->head_stride, view->token_stride, (kvf_type)view->type,
                       index};
}

/* Where rows i .. i + n - 1 of the run lie in the views. */
static const int32_t *tail_index(const kvfi_walker *w, int32_t i, int32_t n, int32_t cell[KVF_BLOCK])
{
    const int32_t *rows = w->c->batch.order + w->run->first + i;
    for (int32_t j = 0; j < n; j++) cell[j] = w->a->cells ? w->a->cells[rows[j]] : rows[j];
    return w->c->attend.by_row ? rows : cell;
}

kvfi_rows kvfi_tail_values(const kvfi_walker *w, int32_t i, int32_t n, int32_t cell[KVF_BLOCK])
{
    return tail_rows(w, w->store->v_in_k ? &w->a->k : &w->a->v, tail_index(w, i, n, cell));
}

int kvfi_score_tail(kvfi_walker *w, int32_t i, int32_t n)
{
    int32_t cell[KVF_BLOCK];
    const int32_t *index = tail_index(w, i, n, cell);
    if (!fill_bias(w, i, n, cell)) return 0;
    const kvfi_rows k = tail_rows(w, &w->a->k, index);
    exact_scores(w, &k, n);
    bias_tail(w, n);
    return 1;
}
