/* SPDX-License-Identifier: MIT
 * One item of an attention over one span of history: piece after piece of up to 64 tokens,
 *   score -> mask -> online softmax -> mix        while the piece is in L1
 * Exact pieces accumulate in the caller's domain; packed ones in the codec's, whose transform is undone once at the end. */
#include "cache/walk.h"
#include "codec/shared/part.h"
#include "codec/shared/rotation.h"

#include <math.h>
#include <string.h>

/* ---- softmax and mix -------------------------------------------------------------------------------------------------------- */

static void rescale(float *acc, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++) acc[i] *= factor;
}

/* add: see kvfi_kernels.softmax. */
static void softmax_all(kvfi_walker *w, const float *add)
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
static void turn_tile(const kvfi_walker *w)
{
    for (size_t t = 0; t < KVF_BLOCK; t++)
        for (size_t d = 0; d < w->v_stride; d++)
            w->tile_v[t * w->v_stride + d] = d < (size_t)w->layer->v_dim ? w->tile_k[d * KVF_BLOCK + t] : 0;
}

static void mix_record(const kvfi_walker *w, const uint8_t *record)
{
    const kvf_part *k = w->k, *v = w->v;
    const kvfi_kind_ops *vk = &w->kernels->kind[v->kind];
    if (w->store->v_in_k)
        turn_tile(w);
    else if (w->tiles_v)
        vk->unfold(v, record + k->bytes, w->tile_v);
    if (w->tiles_v || w->store->v_in_k)
        w->kernels->tile_mix(w->tile_v, (int32_t)w->v_stride, w->scores, w->n, w->acc_rotated, w->v_stride);
    else
        vk->mix(v, record + k->bytes, w->scores, w->n, w->acc_rotated, w->v_stride);
}

static void block_piece(kvfi_walker *w, int32_t block)
{
    const float *add;
    const uint8_t *record = kvfi_score_block(w, block, &add);
    if (!record) return;
    softmax_all(w, add);
    mix_record(w, record);
}

/* Nobody else has a place there: see kvfi_gathers. */
static void leave_weights(const kvfi_walker *w, int32_t i)
{
    float *weights = kvfi_link_weights(w->c, w->seq, i, w->item->head, w->n);
    memcpy(weights, w->scores, (size_t)w->n * KVF_BLOCK * sizeof *weights);
    memcpy(weights + w->n * KVF_BLOCK, w->max, (size_t)w->n * sizeof *weights);
}

/* Rows that no vector sees, as they have left the layer's window: no largest score, so no weights. */
static void leave_nothing(const kvfi_walker *w, int32_t i)
{
    float *weights = kvfi_link_weights(w->c, w->seq, i, w->item->head, w->n);
    for (int32_t v = 0; v < w->n; v++) weights[w->n * KVF_BLOCK + v] = -INFINITY;
}

static void link_piece(kvfi_walker *w, int32_t i)
{
    const uint8_t *record = kvfi_score_link(w, kvfi_link_at(w->seq, w->store, i));
    if (!record && w->gathers) leave_nothing(w, i);
    if (!record) return;
    if (w->gathers) kvfi_watch_scores(w);
    softmax_all(w, NULL);
    if (w->gathers) leave_weights(w, i);
    mix_record(w, record);
}

static void exact_mix(kvfi_walker *w, const kvfi_rows *v, int32_t n)
{
    if (!w->tiles) {
        w->kernels->rows_mix(v, n, w->layer->v_dim, w->scores, w->n, w->acc, w->v_stride);
        return;
    }
    w->kernels->rows_unfold_v(v, n, w->layer->v_dim, (int32_t)w->v_stride, w->tile_v);
    w->kernels->tile_mix(w->tile_v, (int32_t)w->v_stride, w->scores, w->n, w->acc, w->v_stride);
}

static void exact_piece(kvfi_walker *w, const kvfi_rows *values, int32_t n)
{
    softmax_all(w, NULL);
    exact_mix(w, values, n);
}

static void sink_piece(kvfi_walker *w)
{
    if (!kvfi_score_sink(w)) return;
    if (w->store->mass) kvfi_watch_scores(w); /* no mass is summed up there, so nobody looks again */
    const kvfi_rows v = kvfi_sink_values(w);
    exact_piece(w, &v, w->c->g.sink);
}

static void window_pieces(kvfi_walker *w)
{
    for (int32_t i = 0; i < w->seq->open; i += KVF_BLOCK) {
        const int32_t n = kvfi_piece(i, w->seq->open);
        if (!kvfi_score_window(w, i, n)) continue;
        const kvfi_rows v = kvfi_window_values(w, i, n);
        exact_piece(w, &v, n);
    }
}

static void tail_pieces(kvfi_walker *w)
{
    for (int32_t i = 0; i < w->run->count; i += KVF_BLOCK) {
        const int32_t n = kvfi_piece(i, w->run->count);
        int32_t cell[KVF_BLOCK];
        if (!kvfi_score_tail(w, i, n)) continue;
        const kvfi_rows v = kvfi_tail_values(w, i, n, cell);
        exact_piece(w, &v, n);
    }
}

/* ---- results ---------------------------------------------------------------------------------------------------------------- */

static float *out_row(const kvf_attention *a, int32_t row, int32_t head)
{
    return (float *)(void *)((char *)a->out + row * a->out_token_stride + head * a->out_head_stride);
}

/* acc / sum with the attention sink in the denominator; zeros when nothing was seen. */
static void write_result(const kvfi_walker *w, int32_t v, const float *acc, float max, float sum)
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

static void undo_rotation(kvfi_walker *w)
{
    if (w->acc_rotated == w->acc) return;
    kvfi_rotate_back(&w->store->turned, w->kernels->hadamard, w->acc_rotated, w->v_stride, w->n);
    for (size_t i = 0; i < (size_t)w->n * w->v_stride; i++) w->acc[i] += w->acc_rotated[i];
}

/* A partial result: max[16], sum[16], acc[count][v_stride]. */
static void write_partial(const kvfi_walker *w, uint8_t *partial)
{
    float *p = (float *)(void *)partial;
    memcpy(p, w->max, KVFI_DIRECT * sizeof *p);
    memcpy(p + KVFI_DIRECT, w->sum, KVFI_DIRECT * sizeof *p);
    memcpy(p + 2 * KVFI_DIRECT, w->acc, (size_t)w->n * w->v_stride * sizeof *p);
}

/* Links whose bins have that table set. */
static void link_pieces(kvfi_walker *w, int32_t epoch)
{
    for (int32_t i = w->from; i < w->to; i++)
        if (kvfi_link_at(w->seq, w->store, i)->bin[w->item->head].epoch == epoch) link_piece(w, i);
}

/* Packed blocks of span `span`: equal shares of those that may be visible, in the table or in the chain. */
static void body_pieces(kvfi_walker *w, int32_t span)
{
    const int64_t first = w->seq->first_block[w->layer->store], spans = w->c->attend.spans;
    const int64_t links = w->seq->n_links[w->layer->store], blocks = links ? 0 : w->seq->n_blocks - first;
    for (int64_t b = blocks * span / spans; b < blocks * (span + 1) / spans; b++) block_piece(w, (int32_t)(first + b));
    w->from = (int32_t)(links * span / spans), w->to = (int32_t)(links * (span + 1) / spans);
    for (int32_t epoch = 0; epoch < kvfi_walker_epochs(w); epoch++) link_pieces(w, epoch);
}

/* The body accumulates in another domain than the exact rows when its values are turned. */
static void clear_sums(kvfi_walker *w)
{
    for (int32_t v = 0; v < w->n; v++) w->max[v] = -INFINITY, w->sum[v] = 0;
    memset(w->acc, 0, (size_t)w->n * w->v_stride * sizeof *w->acc);
    if (w->store->turned.kind)
        memset(w->acc_rotated, 0, (size_t)w->n * w->v_stride * sizeof *w->acc);
    else
        w->acc_rotated = w->acc;
}

static void keep_norms(const kvfi_walker *w)
{
    float *norms = kvfi_norms_of(w->c, w->item);
    memcpy(norms, w->max, (size_t)w->n * sizeof *norms);
    memcpy(norms + KVFI_VECTORS, w->sum, (size_t)w->n * sizeof *norms);
}

void kvfi_walk(kvf_cache *c, const kvfi_item *item, int32_t span, uint8_t *slot, uint8_t *partial)
{
    kvfi_walker w;
    kvfi_walker_open(&w, c, item, slot);
    kvfi_walker_prepare(&w);
    clear_sums(&w);
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
    kvfi_walker w = {0};
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
