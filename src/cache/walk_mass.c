/* SPDX-License-Identifier: MIT
 * What the vectors of an item attend to, after its walk, added to the masses of rows: the scores come a second time, or the walk has left
 * the weights. */
#include "cache/walk.h"

#include <math.h>
#include <string.h>

/* Do the queries of this vector count? Of a policy that asks the newest ones, the last 64 of a run do. */
static int counts(const kvfi_walker *w, int32_t v)
{
    const int32_t row = (w->item->first + v) / w->layer->group;
    return w->c->g.evict.policy->mass == KVFI_MASS_ALL || row >= w->run->count - KVF_BLOCK;
}

/* Largest score of every vector and, attention sinks included, one over its denominator: w->max and w->share. 0: none counts. */
static int load_norms(kvfi_walker *w)
{
    const float *norms = kvfi_norms_of(w->c, w->item);
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
 * multiplied with. -inf: there are none. */
static void add_weights(const kvfi_walker *w, const float *restrict s, const float *max, float *restrict mass)
{
    for (int32_t v = 0; v < w->n; v++, s += KVF_BLOCK) {
        if (w->share[v] == 0 || max[v] == -INFINITY) continue;
        const float factor = max[v] < w->max[v] ? expf(max[v] - w->max[v]) * w->share[v] : w->share[v];
        for (int32_t i = 0; i < KVF_BLOCK; i++) mass[i] += s[i] * factor;
    }
}

/* Scores that are finished, of n rows, become weights. */
static void add_scores(kvfi_walker *w, int32_t n, float *mass)
{
    float max[KVFI_VECTORS], sum[KVFI_VECTORS], factor[KVFI_VECTORS], all[KVF_BLOCK] = {0};
    memcpy(max, w->max, sizeof max);
    memset(sum, 0, sizeof sum);
    kvfi_watch_scores(w);
    w->kernels->softmax(w->scores, NULL, w->n, max, sum, factor);
    add_weights(w, w->scores, max, all);
    for (int32_t i = 0; i < n; i++) mass[i] += all[i];
}

static void link_mass(kvfi_walker *w, int32_t i)
{
    kvfi_link *link = kvfi_link_at(w->seq, w->store, i);
    float *mass = kvfi_link_mass(link, w->store, w->item->head)->pending;
    if (w->gathers && link->bin[w->item->head].alive) {
        const float *weights = kvfi_link_weights(w->c, w->seq, i, w->item->head, w->n);
        add_weights(w, weights, weights + w->n * KVF_BLOCK, mass);
    } else if (kvfi_score_link(w, link)) {
        add_scores(w, KVF_BLOCK, mass);
    }
}

static void window_mass(kvfi_walker *w, float *mass)
{
    for (int32_t i = 0; i < w->seq->open; i += KVF_BLOCK) {
        const int32_t n = kvfi_piece(i, w->seq->open);
        if (kvfi_score_window(w, i, n)) add_scores(w, n, mass + i);
    }
}

static void tail_mass(kvfi_walker *w, float *mass)
{
    for (int32_t i = 0; i < w->run->count; i += KVF_BLOCK) {
        const int32_t n = kvfi_piece(i, w->run->count);
        if (kvfi_score_tail(w, i, n)) add_scores(w, n, mass + i);
    }
}

void kvfi_walk_mass(kvf_cache *c, int32_t item, int32_t span, int32_t spans, uint8_t *slot)
{
    kvfi_walker w;
    kvfi_walker_open(&w, c, &c->attend.items[item], slot);
    if (!load_norms(&w)) return;
    kvfi_walker_prepare(&w);
    float *open = kvfi_open_mass(c, w.seq, w.store, w.item->head, 1);
    const int64_t links = w.seq->n_links[w.layer->store];
    w.from = (int32_t)(links * span / spans), w.to = (int32_t)(links * (span + 1) / spans);
    for (int32_t epoch = 0; epoch < kvfi_walker_epochs(&w); epoch++)
        for (int32_t i = w.from; i < w.to; i++)
            if (kvfi_link_at(w.seq, w.store, i)->bin[w.item->head].epoch == epoch) link_mass(&w, i);
    if (span < spans - 1) return;
    window_mass(&w, open);
    tail_mass(&w, open + w.seq->open);
}
