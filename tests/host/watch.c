/* SPDX-License-Identifier: MIT */
#include "watch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* Scores are kept as f16 (2^-11 of a score, twice), masses are summed in f32: what is nearer than that may go either way. */
#define SCORE_NEAR 1e-3
#define MASS_NEAR 1e-4

static float value(const kvf_view *view, int32_t row, int32_t head, int32_t c)
{
    const char *at = (const char *)view->data + row * view->token_stride + head * view->head_stride;
    return view->type == KVF_F16 ? ggml_fp16_to_fp32(((const ggml_fp16_t *)(const void *)at)[c])
                                 : ((const float *)(const void *)at)[c];
}

void watch_rows(void *user, const kvf_llama_rows *r)
{
    watch *w = user;
    watch_layer *l = &w->layer[r->layer];
    l->scale = (double)r->scale;
    for (int32_t i = 0; i < r->n; i++)
        for (int32_t c = 0; c < w->dim; c++) {
            const int32_t pos = r->tokens[i].pos;
            for (int32_t h = 0; h < w->q_heads; h++) l->q[pos][h][c] = value(&r->q, i, h, c);
            for (int32_t h = 0; h < w->kv_heads; h++) l->k[pos][h][c] = value(&r->k, r->cells[i], h, c);
        }
}

static double dot(const float *a, const float *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* ---- attention that rows receive ------------------------------------------------------------------------------------------- */

/* Adds what query head q at `pos` gives to the rows that it sees: those alive before this batch, and those of it up to itself. */
static void attend(const watch *w, watch_layer *l, int32_t q, int32_t head, int32_t pos)
{
    double weight[TEXT_TOKENS], most = -INFINITY, sum = 0;
    for (int32_t j = 0; j <= pos; j++) {
        const int seen = j >= w->next || l->alive[head][j];
        weight[j] = seen ? l->scale * dot(l->q[pos][q], l->k[j][head], w->dim) : -INFINITY;
        if (weight[j] > most) most = weight[j];
    }
    for (int32_t j = 0; j <= pos; j++) sum += weight[j] = exp(weight[j] - most);
    for (int32_t j = 0; j <= pos; j++) l->mass[head][j] += weight[j] / sum;
}

/* h2o: all queries since a row came. snapkv: those since the last choice; of a batch of 64 or more its newest 64 and no others. */
static void sum_masses(const watch *w, watch_layer *l, int32_t n)
{
    const int newest = w->rule == WATCH_SNAPKV, group = w->q_heads / w->kv_heads;
    if (newest && (l->used || n >= KVF_BLOCK)) memset(l->mass, 0, sizeof l->mass);
    for (int32_t pos = newest && n > KVF_BLOCK ? w->next + n - KVF_BLOCK : w->next; pos < w->next + n; pos++)
        for (int32_t q = 0; q < w->q_heads; q++) attend(w, l, q, q / group, pos);
    l->used = 0;
}

/* Mean over the living coded rows from two before to two behind; `end` is where coded rows end. */
static double pooled(const watch_layer *l, int32_t head, int32_t pos, int32_t end)
{
    double sum = l->mass[head][pos];
    int32_t n = 1;
    for (int32_t j = pos - 1, left = 2; j >= WATCH_SINK && left; j--)
        if (l->alive[head][j]) sum += l->mass[head][j], n++, left--;
    for (int32_t j = pos + 1, left = 2; j < end && left; j++)
        if (l->alive[head][j]) sum += l->mass[head][j], n++, left--;
    return sum / n;
}

/* ---- choices ---------------------------------------------------------------------------------------------------------------- */

/* The larger, the longer it stays. */
static double rank_of(const watch *w, int32_t il, int32_t head, int32_t pos, int32_t end, int32_t next)
{
    const watch_layer *l = &w->layer[il];
    switch (w->rule) {
    case WATCH_KNORM: return -sqrt(dot(l->k[pos][head], l->k[pos][head], w->dim));
    case WATCH_QFILTERS: return dot(l->k[pos][head], w->direction[il] + head * w->dim, w->dim);
    case WATCH_H2O: return l->mass[head][pos] / (next - pos);
    case WATCH_SNAPKV: return pooled(l, head, pos, end);
    default: return pos;
    }
}

/* alive: what there was before the choice; now: what the cache has after it. end: of the block that was sealed. */
static void check_choice(watch *w, int32_t il, int32_t head, const int8_t *now, int32_t end, int32_t next)
{
    const watch_layer *l = &w->layer[il];
    const int32_t room = w->budget - WATCH_SINK - WATCH_RECENT;
    const double near = w->rule >= WATCH_H2O ? MASS_NEAR : SCORE_NEAR;
    int32_t had = 0, has = 0, worst_kept = -1, best_gone = -1;
    double kept = INFINITY, gone = -INFINITY;
    for (int32_t p = WATCH_SINK; p < end; p++) {
        if (!l->alive[head][p]) continue;
        const double rank = rank_of(w, il, head, p, end, next);
        had++, has += now[p];
        if (now[p] && rank < kept) kept = rank, worst_kept = p;
        if (!now[p] && rank > gone) gone = rank, best_gone = p;
    }
    if (has != (had < room ? had : room))
        fail_msg("layer %d, head %d, %d tokens: %d coded rows stay of %d, the budget has room for %d", (int)il, (int)head,
                 (int)next, (int)has, (int)had, (int)room);
    if (has < had && gone > kept + near * (fabs(gone) > fabs(kept) ? fabs(gone) : fabs(kept)))
        fail_msg("layer %d, head %d, %d tokens: position %d is gone with %g, and position %d stays with %g", (int)il, (int)head,
                 (int)next, (int)best_gone, gone, (int)worst_kept, kept);
    w->choices += has < had, w->dropped += had - has;
}

/* Which rows the cache holds of one head; each must be the row that attention was given. */
static void read_held(const watch *w, kvf_cache *cache, int32_t il, int32_t head, int32_t next, int8_t *now)
{
    float row[WATCH_DIM];
    const watch_layer *l = &w->layer[il];
    for (int32_t p = 0; p < next; p++) {
        const int rc = kvf_seq_read(cache, 0, l->index, KVF_K, head, p, row);
        if (rc != KVF_OK && rc != KVF_E_POSITION) fail_msg("read: %s", kvf_cache_error(cache));
        now[p] = rc == KVF_OK;
        if (now[p] && memcmp(row, l->k[p][head], (size_t)w->dim * sizeof *row))
            fail_msg("layer %d, head %d: position %d holds another row", (int)il, (int)head, (int)p);
    }
}

static void check_head(watch *w, kvf_cache *cache, int32_t il, int32_t head, int32_t from, int32_t next)
{
    watch_layer *l = &w->layer[il];
    int8_t now[TEXT_TOKENS];
    const int32_t before = from < KVF_BLOCK + WATCH_RECENT ? 0 : (from - WATCH_RECENT) / KVF_BLOCK * KVF_BLOCK,
                  end = next < KVF_BLOCK + WATCH_RECENT ? 0 : (next - WATCH_RECENT) / KVF_BLOCK * KVF_BLOCK;
    memset(l->alive[head] + from, 1, (size_t)(next - from));
    read_held(w, cache, il, head, next, now);
    for (int32_t p = 0; p < next; p++) {
        const int may_go = end > before && p >= WATCH_SINK && p < end;
        if (!may_go && now[p] != l->alive[head][p])
            fail_msg("layer %d, head %d, %d tokens: position %d %s", (int)il, (int)head, (int)next, (int)p,
                     now[p] ? "is back" : "is gone, and no choice let it go");
    }
    if (end > before) check_choice(w, il, head, now, end, next);
    memcpy(l->alive[head], now, (size_t)next);
}

void watch_check(watch *w, kvf_cache *cache, int32_t n)
{
    const int32_t from = w->next, next = from + n;
    for (int32_t il = 0; il < w->n_layers; il++) {
        watch_layer *l = &w->layer[il];
        if (l->index < 0) continue;
        if (w->rule >= WATCH_H2O) sum_masses(w, l, n);
        for (int32_t h = 0; h < w->kv_heads; h++) check_head(w, cache, il, h, from, next);
        l->used = (next - WATCH_RECENT) / KVF_BLOCK > (from > WATCH_RECENT ? (from - WATCH_RECENT) / KVF_BLOCK : 0);
    }
    w->next = next;
}
