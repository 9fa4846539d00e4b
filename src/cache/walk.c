/* SPDX-License-Identifier: MIT
 * One item of an attention over one span of history: piece after piece of up to 64 tokens,
 *   score -> mask -> online softmax -> mix        while the piece is in L1
 * Exact pieces accumulate in the caller's domain; packed ones in the codec's, whose transform is undone once at the end.
 * Up to KVFI_DIRECT vectors read packed codes and exact rows as they lie; more unfold a tile once and share it. */
#include "base/half.h"
#include "cache/mass.h"
#include "cache/rows.h"
#include "codec/shared/part.h"
#include "codec/shared/rotation.h"
#include "codec/shared/stages.h"

#include <math.h>
#include <string.h>

typedef struct walk {
    kvf_cache *c;
    const kvf_attention *a;
    const kvfi_layer *layer;
    const kvfi_store *store;
    const kvf_part *k, *v; /* of the item's head */
    kvf_part k_room, v_room;
    const kvfi_run *run;
    const kvfi_sequence *seq;
    const kvfi_item *item;
    const kvfi_kernels *kernels;
    int32_t n;                 /* vectors */
    int32_t tiles;             /* 1: unfold tiles */
    size_t k_stride, v_stride; /* floats from one vector to the next */
    float *q, *q_rotated, *scores, *acc, *acc_rotated, *tile_k, *tile_v, *bias, *rows_k, *rows_v;
    void *prepared;
    int32_t epoch;              /* whose channel scale q_rotated has; -1: none yet */
    int64_t segment;            /* whose centre `offset` has */
    double centre[1024];        /* of that segment; blocks come in order, so it is turned on from the one before */
    float offset[KVFI_VECTORS]; /* <q, centre> of each vector */
    float factor[KVFI_VECTORS]; /* what a raised maximum multiplies the accumulator with */
    int64_t *known;             /* chains: entry i holds offsets of this segment and epoch; -1: none */
    float *offsets;             /* [n_known][n] */
    int32_t n_known;
    int32_t from, to; /* chains: links of this walk */
    int32_t listed;   /* 1: entries of all their living rows of the epoch in use are known */
    float max[KVFI_VECTORS], sum[KVFI_VECTORS];
    float share[KVFI_VECTORS]; /* masses: one over the denominator of each vector; 0: it does not count */
    int32_t gathers;           /* 1: one decoded row whose weights are left for its masses */
    int32_t pos[KVFI_VECTORS], row[KVFI_VECTORS], head[KVFI_VECTORS]; /* of each vector: position, batch row, query head */
} walk;

/* ---- preparation -------------------------------------------------------------------------------------------------------------- */

static void load_query(const walk *w, int32_t v, float *out)
{
    const kvf_view *q = &w->a->q;
    const char *data = (const char *)q->data + w->row[v] * q->token_stride + w->head[v] * q->head_stride;
    memset(out, 0, w->k_stride * sizeof *out);
    kvfi_load_row(data, q->type == KVF_F32, w->layer->k_dim, out);
    for (int32_t d = 0; d < w->layer->k_dim; d++) out[d] *= w->a->scale;
}

static void transform_queries(const walk *w)
{
    const kvf_part *k = w->k;
    kvfi_rotate(&k->rot, w->kernels->hadamard, w->q_rotated, w->k_stride, w->n);
    if (!w->tiles) w->kernels->kind[k->kind].prepare(k, w->q_rotated, w->k_stride, w->n, w->prepared);
}

static void prepare_queries(walk *w)
{
    const kvf_part *k = &w->store->k;
    for (int32_t v = 0; v < w->n; v++) load_query(w, v, w->q + (size_t)v * w->k_stride);
    w->epoch = -1, w->segment = -1;
    if (w->store->staged) return; /* blocks prepare their epoch, see use_tables */
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
static void use_epoch(walk *w, int32_t epoch)
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
static void turn_centre(walk *w, int64_t segment)
{
    const uint8_t *table = kvfi_table(w->c, w->seq, w->epoch, w->store);
    if (w->segment < 0 || segment < w->segment) {
        memcpy(w->centre, kvfi_table_c0(table, w->store, w->item->head), (size_t)w->store->k.head_dim * sizeof *w->centre);
        w->segment = 0;
    }
    kvfi_turn(w->centre, w->store->pairs, kvfi_table_turns(table) ? w->store->n_pairs : 0, segment - w->segment);
    w->segment = segment;
}

static void dot_centres(const walk *w, float *offset)
{
    const int32_t dim = w->store->k.head_dim;
    float centre[1024];
    for (int32_t d = 0; d < dim; d++) centre[d] = (float)w->centre[d];
    for (int32_t v = 0; v < w->n; v++) offset[v] = dot_centre(w->q + (size_t)v * w->k_stride, centre, dim);
}

/* Scale and centre of a block of the table: the centre's share of the scores is the same for the whole block. */
static void use_tables(walk *w, int32_t epoch, int64_t segment)
{
    if (epoch == w->epoch && segment == w->segment) return;
    use_epoch(w, epoch);
    turn_centre(w, segment);
    dot_centres(w, w->offset);
}

/* Where the share of a segment of an epoch is remembered. The last epoch has nearly all segments. */
static int64_t entry_of(const walk *w, int32_t epoch, int64_t segment)
{
    return (segment + epoch) & (w->n_known - 1); /* a power of two */
}

/* The same share for a segment of the epoch in use, from memory. In chains segments come in any order, and centres can only be turned
 * on, so all segments that are passed on the way are remembered. */
static const float *offsets_of(walk *w, int64_t segment)
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
static void want_segments(const walk *w, const kvfi_bin *bin, int64_t *first, int64_t *last)
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
static void use_links(walk *w, int32_t epoch)
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

static void open_walk(walk *w, kvf_cache *c, const kvfi_item *item, uint8_t *slot)
{
    const kvfi_geometry *g = &c->g;
    w->c = c, w->a = &c->attend.request, w->layer = &g->layers[w->a->layer], w->store = &g->stores[w->layer->store];
    w->k = kvfi_part_of(&w->store->k, item->head, &w->k_room), w->v = kvfi_part_of(&w->store->v, item->head, &w->v_room);
    w->run = &c->batch.runs[item->run], w->seq = &c->sequences[w->run->seq], w->item = item, w->kernels = &c->g.kernels;
    w->n = item->count, w->tiles = item->count > KVFI_DIRECT;
    w->gathers = kvfi_gathers(c, item);
    w->k_stride = (size_t)w->store->k.dim_pad, w->v_stride = w->layer->v_stride;
    w->q = (float *)(void *)(slot + g->slot_q), w->q_rotated = (float *)(void *)(slot + g->slot_rotated);
    w->prepared = slot + g->slot_prepared, w->scores = (float *)(void *)(slot + g->slot_scores);
    w->acc = (float *)(void *)(slot + g->slot_acc), w->acc_rotated = (float *)(void *)(slot + g->slot_acc_rotated);
    w->tile_k = (float *)(void *)(slot + g->slot_tile_k), w->tile_v = (float *)(void *)(slot + g->slot_tile_v);
    w->bias = (float *)(void *)(slot + g->slot_bias);
    w->known = (int64_t *)(void *)(slot + g->slot_offsets), w->offsets = (float *)(void *)(w->known + KVFI_OFFSETS);
    w->n_known = w->n > KVFI_DIRECT ? KVFI_OFFSETS / (KVFI_VECTORS / KVFI_DIRECT) : KVFI_OFFSETS;
    if (w->seq->n_links[w->layer->store] && w->store->staged) memset(w->known, 0xff, (size_t)w->n_known * sizeof *w->known);
    w->rows_k = (float *)(void *)(slot + g->slot_rows_k), w->rows_v = (float *)(void *)(slot + g->slot_rows_v);
    for (int32_t v = 0; v < w->n; v++) {
        int32_t vector = item->first + v;
        w->row[v] = c->batch.order[w->run->first + vector / w->layer->group];
        w->head[v] = item->head * w->layer->group + vector % w->layer->group;
        w->pos[v] = c->batch.tokens[w->row[v]].pos;
        w->max[v] = -INFINITY, w->sum[v] = 0;
    }
    memset(w->acc, 0, (size_t)w->n * w->v_stride * sizeof *w->acc);
    /* the body accumulates in another domain than the exact rows when its values are turned */
    if (w->store->turned.kind)
        memset(w->acc_rotated, 0, (size_t)w->n * w->v_stride * sizeof *w->acc);
    else
        w->acc_rotated = w->acc;
    prepare_queries(w);
}

/* ---- masks -------------------------------------------------------------------------------------------------------------------- */

/* Tokens of a piece (positions first .. first + n - 1) that a query at `pos` may see; bit i: token i. */
static uint64_t visible(const walk *w, int64_t first, int32_t n, int64_t pos, uint64_t alive)
{
    int64_t lo = w->layer->window ? pos - w->layer->window + 1 - first : 0, hi = pos - first + 1;
    if (lo < 0) lo = 0;
    if (hi > n) hi = n;
    if (lo >= hi) return 0;
    uint64_t below = hi == KVF_BLOCK ? ~(uint64_t)0 : ((uint64_t)1 << hi) - 1;
    return alive & below & ~(((uint64_t)1 << lo) - 1);
}

static void cap_scores(const walk *w, float *s)
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
static void finish_scores(const walk *w, int64_t first, const int32_t *pos, const uint64_t *seen)
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
static uint64_t see_bin(const walk *w, const kvfi_bin *bin, uint64_t *seen)
{
    uint64_t any = 0;
    for (int32_t v = 0; v < w->n; v++) {
        seen[v] = bin->alive;
        if (w->layer->window) seen[v] &= kvfi_bin_range(bin, (int64_t)w->pos[v] - w->layer->window + 1, INT32_MAX);
        any |= seen[v];
    }
    return any;
}

static uint64_t see(const walk *w, int64_t first, int32_t n, uint64_t alive, uint64_t *seen)
{
    uint64_t any = 0;
    for (int32_t v = 0; v < w->n; v++) {
        seen[v] = v && w->pos[v] == w->pos[v - 1] ? seen[v - 1] : visible(w, first, n, w->pos[v], alive);
        any |= seen[v];
    }
    return any;
}

/* ---- softmax and mix ---------------------------------------------------------------------------------------------------------- */

static void rescale(float *acc, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++) acc[i] *= factor;
}

/* add: see kvfi_kernels.softmax. */
static void softmax_all(walk *w, const float *add)
{
    w->kernels->softmax(w->scores, add, w->n, w->max, w->sum, w->factor);
    for (int32_t v = 0; v < w->n; v++) {
        const float factor = w->factor[v];
        if (factor == 1) continue;
        rescale(w->acc + (size_t)v * w->v_stride, w->v_stride, factor);
        if (w->acc_rotated != w->acc) rescale(w->acc_rotated + (size_t)v * w->v_stride, w->v_stride, factor);
    }
}

/* tile[channel][token] of latent keys -> its first v_dim channels as tile[token][channel]. */
static void turn_tile(const walk *w)
{
    for (size_t t = 0; t < KVF_BLOCK; t++)
        for (size_t d = 0; d < w->v_stride; d++)
            w->tile_v[t * w->v_stride + d] = d < (size_t)w->layer->v_dim ? w->tile_k[d * KVF_BLOCK + t] : 0;
}

/* Entries of a bin's rows, and whether those of living ones are known. Segments change at each row, so no branch depends on one. */
static int entries_of(const walk *w, const kvfi_bin *bin, int32_t entry[KVF_BLOCK])
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
static void add_bin_offsets(walk *w, const kvfi_bin *bin)
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

static void add_to_scores(const walk *w, const float *add)
{
    for (int32_t v = 0; add && v < w->n; v++)
        for (int32_t i = 0; i < KVF_BLOCK; i++) w->scores[(size_t)v * KVF_BLOCK + (size_t)i] += add[v];
}

/* What centre and mean, subtracted before coding, add to every score of the block, for each vector; NULL: nothing. A cap needs whole
 * scores, otherwise it is left to the softmax. */
static const float *offsets(const walk *w, const uint8_t *record, int centred, float *room)
{
    const kvf_part *k = w->k;
    float mean[1024];
    if (!centred && !k->block_mean) return NULL;
    if (k->block_mean) kvfi_block_mean(k, record, mean);
    for (int32_t v = 0; v < w->n; v++) {
        room[v] = centred ? w->offset[v] : 0;
        if (k->block_mean) room[v] += kvfi_dot16(w->q_rotated + (size_t)v * w->k_stride, mean, k->dim);
    }
    if (w->a->softcap <= 0) return room;
    add_to_scores(w, room);
    return NULL;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------------------- */

static const uint8_t *record_of(const walk *w, uint32_t id)
{
    return kvfi_pool_data(&w->c->pools[w->layer->store], id) + (size_t)w->item->head * w->store->record_bytes;
}

static void score_record(const walk *w, const uint8_t *record)
{
    const kvf_part *k = w->k;
    const kvfi_kind_ops *kk = &w->kernels->kind[k->kind];
    if (w->tiles || w->store->v_in_k) kk->unfold(k, record, w->tile_k);
    if (w->tiles)
        w->kernels->tile_score(w->tile_k, k->dim_pad, w->q_rotated, w->k_stride, w->n, w->scores);
    else
        kk->score(k, record, w->prepared, w->n, w->scores);
}

static void mix_record(const walk *w, const uint8_t *record)
{
    const kvf_part *k = w->k, *v = w->v;
    const kvfi_kind_ops *vk = &w->kernels->kind[v->kind];
    if (w->store->v_in_k)
        turn_tile(w);
    else if (w->tiles)
        vk->unfold(v, record + k->bytes, w->tile_v);
    if (w->tiles || w->store->v_in_k)
        w->kernels->tile_mix(w->tile_v, (int32_t)w->v_stride, w->scores, w->n, w->acc_rotated, w->v_stride);
    else
        vk->mix(v, record + k->bytes, w->scores, w->n, w->acc_rotated, w->v_stride);
}

/* A block of the table: consecutive positions. */
static void block_piece(walk *w, int32_t block)
{
    uint8_t *row = kvfi_row(w->c, w->seq, block);
    const uint32_t id = kvfi_row_ids(w->c, row)[w->layer->store];
    const uint64_t alive = kvfi_row_valid(w->c, row)[w->store->first_head + w->item->head];
    const int32_t first = *kvfi_row_first(row);
    uint64_t seen[KVFI_VECTORS];
    float room[KVFI_VECTORS];
    if (id == KVFI_NO_BLOCK || !see(w, first, KVF_BLOCK, alive, seen)) return;
    const uint8_t *record = record_of(w, id);
    if (w->store->staged) use_tables(w, w->store->self ? *kvfi_row_epoch(row) : 0, first / KVFI_SEGMENT);
    score_record(w, record);
    const float *add = offsets(w, record, w->store->staged, room);
    finish_scores(w, first, NULL, seen);
    softmax_all(w, add);
    mix_record(w, record);
}

/* Scores of a block of a chain, where every place has a position of its own. 0: nobody sees it. */
static int score_link(walk *w, const kvfi_link *link, const kvfi_bin *bin, uint64_t *seen)
{
    const uint8_t *record = record_of(w, link->id);
    float room[KVFI_VECTORS];
    if (!see_bin(w, bin, seen)) return 0;
    if (w->store->staged) use_links(w, bin->epoch);
    score_record(w, record);
    add_to_scores(w, offsets(w, record, 0, room));
    if (w->store->staged) add_bin_offsets(w, bin);
    finish_scores(w, 0, bin->pos, seen);
    return 1;
}

/* A maximum may hide a NaN, so scores are looked at before softmax. */
static void watch_scores(const walk *w)
{
    int bad = 0;
    for (int32_t i = 0; i < w->n * KVF_BLOCK; i++) bad |= w->scores[i] != w->scores[i];
    if (bad) atomic_store(&w->c->attend.bad_mass, 1);
}

/* Nobody else has a place there: see kvfi_gathers. */
static void leave_weights(const walk *w, int32_t i)
{
    float *weights = kvfi_link_weights(w->c, w->seq, i, w->item->head, w->n);
    memcpy(weights, w->scores, (size_t)w->n * KVF_BLOCK * sizeof *weights);
    memcpy(weights + w->n * KVF_BLOCK, w->max, (size_t)w->n * sizeof *weights);
}

static void link_piece(walk *w, int32_t i)
{
    const kvfi_link *link = kvfi_link_at(w->seq, w->store, i);
    uint64_t seen[KVFI_VECTORS];
    if (!score_link(w, link, &link->bin[w->item->head], seen)) return;
    if (w->gathers) watch_scores(w);
    softmax_all(w, NULL);
    if (w->gathers) leave_weights(w, i);
    mix_record(w, record_of(w, link->id));
}

static void exact_scores(walk *w, const kvfi_rows *k, int32_t n)
{
    if (!w->tiles) {
        w->kernels->rows_score(k, n, w->layer->k_dim, w->q, w->k_stride, w->n, w->scores);
        return;
    }
    w->kernels->rows_unfold_k(k, n, w->layer->k_dim, (int32_t)w->k_stride, w->tile_k);
    w->kernels->tile_score(w->tile_k, (int32_t)w->k_stride, w->q, w->k_stride, w->n, w->scores);
}

static void exact_mix(walk *w, const kvfi_rows *v, int32_t n)
{
    if (!w->tiles) {
        w->kernels->rows_mix(v, n, w->layer->v_dim, w->scores, w->n, w->acc, w->v_stride);
        return;
    }
    w->kernels->rows_unfold_v(v, n, w->layer->v_dim, (int32_t)w->v_stride, w->tile_v);
    w->kernels->tile_mix(w->tile_v, (int32_t)w->v_stride, w->scores, w->n, w->acc, w->v_stride);
}

/* Exact rows of the history with consecutive positions. */
static void exact_piece(walk *w, const kvfi_rows *k, const kvfi_rows *v, int64_t first, int32_t n, uint64_t alive)
{
    uint64_t seen[KVFI_VECTORS];
    if (!see(w, first, n, alive, seen)) return;
    exact_scores(w, k, n);
    finish_scores(w, first, NULL, seen);
    softmax_all(w, NULL);
    exact_mix(w, v, n);
}

/* n rows of a head from `slot` on, as they lie; rows that are not f16 are unpacked to `scratch` first. */
static kvfi_rows stored_rows(const walk *w, size_t offset, int32_t dim, int32_t rows_per_head, int32_t slot, int32_t n,
                             float *scratch)
{
    const int32_t bits = w->c->g.exact_bits;
    const size_t row_bytes = kvfi_row_bytes(bits, dim);
    const uint8_t *first = w->seq->exact + offset + ((size_t)w->item->head * (size_t)rows_per_head + (size_t)slot) * row_bytes;
    if (bits == 16) return (kvfi_rows){(const char *)first, (int64_t)row_bytes, KVF_F16, NULL};
    for (int32_t i = 0; i < n; i++) kvfi_row_get(bits, first + (size_t)i * row_bytes, dim, scratch + (size_t)i * (size_t)dim);
    return (kvfi_rows){(const char *)scratch, (int64_t)sizeof(float) * dim, KVF_F32, NULL};
}

static void sink_piece(walk *w)
{
    const kvfi_store *s = w->store;
    if (!w->seq->has_sink) return;
    const int32_t n = w->c->g.sink;
    kvfi_rows k = stored_rows(w, s->sink_k, w->layer->k_dim, n, 0, n, w->rows_k);
    kvfi_rows v = s->v_in_k ? k : stored_rows(w, s->sink_v, w->layer->v_dim, n, 0, n, w->rows_v);
    exact_piece(w, &k, &v, w->seq->start, w->c->g.sink, w->seq->sink_alive);
}

static void window_pieces(walk *w)
{
    const kvfi_store *s = w->store;
    const int32_t rows = w->c->g.window_rows;
    for (int32_t i = 0; i < w->seq->open; i += KVF_BLOCK) {
        int32_t n = w->seq->open - i < KVF_BLOCK ? w->seq->open - i : KVF_BLOCK, slot = (w->seq->open_slot + i) % rows;
        kvfi_rows k = stored_rows(w, s->window_k, w->layer->k_dim, rows, slot, n, w->rows_k);
        kvfi_rows v = s->v_in_k ? k : stored_rows(w, s->window_v, w->layer->v_dim, rows, slot, n, w->rows_v);
        exact_piece(w, &k, &v, (int64_t)w->seq->open_pos + i, n, ~w->seq->open_dead[i / KVF_BLOCK]);
    }
}

/* ---- tail: the batch's own rows ------------------------------------------------------------------------------------------------- */

static float mask_at(const walk *w, int32_t row, int32_t cell)
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
static float tail_bias(const walk *w, int32_t v, int32_t key_row, int32_t cell)
{
    if (w->a->mask) return mask_at(w, w->row[v], cell);
    int64_t distance = (int64_t)w->pos[v] - w->c->batch.tokens[key_row].pos;
    if (distance < 0 || (w->layer->window && distance >= w->layer->window)) return -INFINITY;
    return w->a->slopes ? -(float)distance : 0;
}

/* Bias of tail rows i .. i + n - 1, once for all heads of a query row. 0 when everything is hidden. */
static int fill_bias(const walk *w, int32_t i, int32_t n, const int32_t *cell)
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

static void bias_tail(const walk *w, int32_t n)
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
static kvfi_rows tail_rows(const walk *w, const kvf_view *view, const int32_t *index)
{
    return (kvfi_rows){(const char *)view->data + w->item->head * view->head_stride, view->token_stride, (kvf_type)view->type,
                       index};
}

/* Where rows i .. i + n - 1 of the run lie in the views. */
static const int32_t *tail_index(const walk *w, int32_t i, int32_t n, int32_t cell[KVF_BLOCK])
{
    const int32_t *rows = w->c->batch.order + w->run->first + i;
    for (int32_t j = 0; j < n; j++) cell[j] = w->a->cells ? w->a->cells[rows[j]] : rows[j];
    return w->c->attend.by_row ? rows : cell;
}

/* Scores of those rows. 0: nobody sees them. */
static int score_tail(walk *w, int32_t i, int32_t n)
{
    int32_t cell[KVF_BLOCK];
    const int32_t *index = tail_index(w, i, n, cell);
    if (!fill_bias(w, i, n, cell)) return 0;
    const kvfi_rows k = tail_rows(w, &w->a->k, index);
    exact_scores(w, &k, n);
    bias_tail(w, n);
    return 1;
}

static void tail_pieces(walk *w)
{
    for (int32_t i = 0; i < w->run->count; i += KVF_BLOCK) {
        int32_t n = w->run->count - i < KVF_BLOCK ? w->run->count - i : KVF_BLOCK, cell[KVF_BLOCK];
        if (!score_tail(w, i, n)) continue;
        softmax_all(w, NULL);
        const kvfi_rows v = tail_rows(w, w->store->v_in_k ? &w->a->k : &w->a->v, tail_index(w, i, n, cell));
        exact_mix(w, &v, n);
    }
}

/* ---- results ------------------------------------------------------------------------------------------------------------------ */

static float *out_row(const kvf_attention *a, int32_t row, int32_t head)
{
    return (float *)(void *)((char *)a->out + row * a->out_token_stride + head * a->out_head_stride);
}

/* acc / sum with the attention sink in the denominator; zeros when nothing was seen. */
static void write_result(const walk *w, int32_t v, const float *acc, float max, float sum)
{
    const kvf_attention *a = w->a;
    const int32_t row = w->row[v], head = w->head[v];
    float factor = 1, *out = out_row(a, row, head);
    if (a->sinks && a->sinks[head] > -INFINITY) {
        float top = max > a->sinks[head] ? max : a->sinks[head];
        factor = max > -INFINITY ? expf(max - top) : 0;
        sum = sum * factor + expf(a->sinks[head] - top);
        max = top;
    }
    const float scale = sum > 0 ? factor / sum : 0;
    for (int32_t d = 0; d < w->layer->v_dim; d++) out[d] = acc[d] * scale;
    if (a->lse) a->lse[(int64_t)row * w->layer->q_heads + head] = sum > 0 ? max + logf(sum) : -INFINITY;
}

static void undo_rotation(walk *w)
{
    if (w->acc_rotated == w->acc) return;
    kvfi_rotate_back(&w->store->turned, w->kernels->hadamard, w->acc_rotated, w->v_stride, w->n);
    for (size_t i = 0; i < (size_t)w->n * w->v_stride; i++) w->acc[i] += w->acc_rotated[i];
}

/* A partial result: max[16], sum[16], acc[count][v_stride]. */
static void write_partial(const walk *w, uint8_t *partial)
{
    float *p = (float *)(void *)partial;
    memcpy(p, w->max, KVFI_DIRECT * sizeof *p);
    memcpy(p + KVFI_DIRECT, w->sum, KVFI_DIRECT * sizeof *p);
    memcpy(p + 2 * KVFI_DIRECT, w->acc, (size_t)w->n * w->v_stride * sizeof *p);
}

/* Links whose bins have that table set: queries are prepared once for each. */
static void link_pieces(walk *w, int32_t epoch)
{
    for (int32_t i = w->from; i < w->to; i++)
        if (kvfi_link_at(w->seq, w->store, i)->bin[w->item->head].epoch == epoch) link_piece(w, i);
}

/* Packed blocks of span `span`: equal shares of those that may be visible, in the table or in the chain. */
static void body_pieces(walk *w, int32_t span)
{
    const int64_t first = w->seq->first_block[w->layer->store], spans = w->c->attend.spans;
    const int64_t links = w->seq->n_links[w->layer->store], blocks = links ? 0 : w->seq->n_blocks - first;
    for (int64_t b = blocks * span / spans; b < blocks * (span + 1) / spans; b++) block_piece(w, (int32_t)(first + b));
    w->from = (int32_t)(links * span / spans), w->to = (int32_t)(links * (span + 1) / spans);
    for (int32_t epoch = 0; epoch < (w->store->self ? w->seq->n_sets : 1); epoch++) link_pieces(w, epoch);
}

static float *norms_of(const kvf_cache *c, const kvfi_item *item)
{
    return c->attend.norms + (size_t)(item - c->attend.items) * 2 * KVFI_VECTORS;
}

static void keep_norms(const walk *w)
{
    float *norms = norms_of(w->c, w->item);
    memcpy(norms, w->max, (size_t)w->n * sizeof *norms);
    memcpy(norms + KVFI_VECTORS, w->sum, (size_t)w->n * sizeof *norms);
}

void kvfi_walk(kvf_cache *c, const kvfi_item *item, int32_t span, uint8_t *slot, uint8_t *partial)
{
    walk w;
    open_walk(&w, c, item, slot);
    if (span == 0) sink_piece(&w);
    body_pieces(&w, span);
    if (span == c->attend.spans - 1) {
        window_pieces(&w);
        tail_pieces(&w);
    }
    undo_rotation(&w);
    if (partial) {
        write_partial(&w, partial);
        return;
    }
    for (int32_t v = 0; v < w.n; v++) write_result(&w, v, w.acc + (size_t)v * w.v_stride, w.max[v], w.sum[v]);
    if (w.store->mass) keep_norms(&w);
}

void kvfi_merge_spans(kvf_cache *c, const kvfi_item *item, const uint8_t *partials, int32_t spans)
{
    walk w = {0};
    w.a = &c->attend.request, w.layer = &c->g.layers[w.a->layer], w.run = &c->batch.runs[item->run], w.n = item->count;
    const size_t stride = w.layer->v_stride;
    for (int32_t v = 0; v < item->count; v++) {
        float acc[1024] = {0}, max = -INFINITY, sum = 0;
        for (int32_t s = 0; s < spans; s++)
            max = fmaxf(max, ((const float *)(const void *)(partials + (size_t)s * c->g.partial_bytes))[v]);
        for (int32_t s = 0; s < spans && max > -INFINITY; s++) {
            const float *p = (const float *)(const void *)(partials + (size_t)s * c->g.partial_bytes);
            const float factor = expf(p[v] - max), *from = p + 2 * KVFI_DIRECT + (size_t)v * stride;
            sum += factor * p[KVFI_DIRECT + v];
            for (int32_t d = 0; d < w.layer->v_dim; d++) acc[d] += factor * from[d];
        }
        int32_t vector = item->first + v;
        w.row[v] = c->batch.order[w.run->first + vector / w.layer->group];
        w.head[v] = item->head * w.layer->group + vector % w.layer->group;
        write_result(&w, v, acc, max, sum);
    }
}

/* ---- masses ------------------------------------------------------------------------------------------------------------------- */

/* Do the queries of this vector count? Of a policy that asks the newest ones, the last 64 of a run do. */
static int counts(const walk *w, int32_t v)
{
    const int32_t row = (w->item->first + v) / w->layer->group;
    return w->c->g.evict.policy->mass == KVFI_MASS_ALL || row >= w->run->count - KVF_BLOCK;
}

/* Largest score of every vector and, attention sinks included, one over its denominator: w->max and w->share. 0: none counts. */
static int load_norms(walk *w)
{
    const float *norms = norms_of(w->c, w->item);
    int bad = 0, any = 0;
    for (int32_t v = 0; v < w->n; v++) {
        const float sink = w->a->sinks ? w->a->sinks[w->head[v]] : -INFINITY;
        const float max = norms[v];
        float sum = norms[KVFI_VECTORS + v];
        if (sink > -INFINITY) sum += expf(sink - max);
        bad |= max > -INFINITY ? !(sum > 0) : max != -INFINITY;
        w->max[v] = max, w->share[v] = counts(w, v) && max != -INFINITY ? 1 / sum : 0;
        any |= counts(w, v);
    }
    if (bad) atomic_store(&w->c->attend.bad_mass, 1);
    return any;
}

/* mass[i] += weight of row i of 64: s are weights of each vector relative to the scores `max`. Those are at most 1, and so is what they are
 * multiplied with. */
static void add_weights(const walk *w, const float *restrict s, const float *max, float *restrict mass)
{
    for (int32_t v = 0; v < w->n; v++, s += KVF_BLOCK) {
        if (w->share[v] == 0) continue;
        const float factor = max[v] < w->max[v] ? expf(max[v] - w->max[v]) * w->share[v] : w->share[v];
        for (int32_t i = 0; i < KVF_BLOCK; i++) mass[i] += s[i] * factor;
    }
}

/* Scores that are finished, of n rows, become weights. */
static void add_scores(walk *w, int32_t n, float *mass)
{
    float max[KVFI_VECTORS], sum[KVFI_VECTORS], factor[KVFI_VECTORS], all[KVF_BLOCK] = {0};
    memcpy(max, w->max, sizeof max);
    memset(sum, 0, sizeof sum);
    watch_scores(w);
    w->kernels->softmax(w->scores, NULL, w->n, max, sum, factor);
    add_weights(w, w->scores, max, all);
    for (int32_t i = 0; i < n; i++) mass[i] += all[i];
}

static void link_mass(walk *w, int32_t i)
{
    kvfi_link *link = kvfi_link_at(w->seq, w->store, i);
    const kvfi_bin *bin = &link->bin[w->item->head];
    float *mass = kvfi_link_mass(link, w->store, w->item->head)->pending;
    uint64_t seen[KVFI_VECTORS];
    if (w->gathers && bin->alive) {
        const float *weights = kvfi_link_weights(w->c, w->seq, i, w->item->head, w->n);
        add_weights(w, weights, weights + w->n * KVF_BLOCK, mass);
    } else if (score_link(w, link, bin, seen)) {
        add_scores(w, KVF_BLOCK, mass);
    }
}

static void window_mass(walk *w, float *mass)
{
    const kvfi_store *s = w->store;
    const int32_t rows = w->c->g.window_rows;
    for (int32_t i = 0; i < w->seq->open; i += KVF_BLOCK) {
        const int32_t n = w->seq->open - i < KVF_BLOCK ? w->seq->open - i : KVF_BLOCK, slot = (w->seq->open_slot + i) % rows;
        uint64_t seen[KVFI_VECTORS];
        kvfi_rows k = stored_rows(w, s->window_k, w->layer->k_dim, rows, slot, n, w->rows_k);
        if (!see(w, (int64_t)w->seq->open_pos + i, n, ~w->seq->open_dead[i / KVF_BLOCK], seen)) continue;
        exact_scores(w, &k, n);
        finish_scores(w, (int64_t)w->seq->open_pos + i, NULL, seen);
        add_scores(w, n, mass + i);
    }
}

static void tail_mass(walk *w, float *mass)
{
    for (int32_t i = 0; i < w->run->count; i += KVF_BLOCK) {
        const int32_t n = w->run->count - i < KVF_BLOCK ? w->run->count - i : KVF_BLOCK;
        if (score_tail(w, i, n)) add_scores(w, n, mass + i);
    }
}

void kvfi_walk_mass(kvf_cache *c, int32_t item, int32_t span, int32_t spans, uint8_t *slot)
{
    walk w;
    open_walk(&w, c, &c->attend.items[item], slot);
    if (!load_norms(&w)) return;
    float *open = kvfi_open_mass(c, w.seq, w.store, w.item->head, 1);
    const int64_t links = w.seq->n_links[w.layer->store];
    w.from = (int32_t)(links * span / spans), w.to = (int32_t)(links * (span + 1) / spans);
    for (int32_t i = w.from; i < w.to; i++) link_mass(&w, i);
    if (span < spans - 1) return;
    window_mass(&w, open);
    tail_mass(&w, open + w.seq->open);
}
