/* SPDX-License-Identifier: MIT
 * What attention is given, sampled as it passes. */
#include "calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- reservoir --------------------------------------------------------------------------------------------------------------- */

static uint64_t scramble(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int32_t draw(calibrate_collection *c, int32_t pos)
{
    if (pos < CALIBRATE_SKIP) return -1;
    const int64_t i = c->seen++;
    int64_t slot = i;
    if (i >= c->slots) slot = (int64_t)(scramble(c->seed ^ scramble((uint64_t)i)) % (uint64_t)(i + 1));
    if (slot >= c->slots) return -1;
    if (slot >= c->filled) c->filled = (int32_t)slot + 1;
    c->pos[slot] = pos;
    return (int32_t)slot;
}

/* Once a batch: the first layer that sees it draws for all. */
static void draw_slots(calibrate_collection *c, const kvf_llama_rows *r)
{
    if (c->drawn_layer >= 0 && r->layer > c->drawn_layer) return;
    c->drawn_layer = r->layer;
    for (int32_t i = 0; i < r->n; i++) c->slot[i] = c->ranking ? -1 : draw(c, r->tokens[i].pos);
}

static const char *row_of(const kvf_view *v, int32_t row, int32_t head)
{
    return (const char *)v->data + (int64_t)row * v->token_stride + (int64_t)head * v->head_stride;
}

static void keep(ggml_fp16_t *to, const kvf_view *v, int32_t row, int32_t heads, int32_t dim)
{
    for (int32_t h = 0; h < heads; h++, to += dim) {
        const char *from = row_of(v, row, h);
        if (v->type == KVF_F16)
            memcpy(to, from, (size_t)dim * sizeof *to);
        else
            ggml_fp32_to_fp16_row((const float *)(const void *)from, to, dim);
    }
}

static void sample(calibrate_collection *c, calibrate_layer *l, const kvf_llama_rows *r)
{
    const kvf_llama_layer_t *s = &l->info;
    for (int32_t i = 0; i < r->n; i++) {
        const size_t slot = (size_t)c->slot[i];
        if (c->slot[i] < 0) continue;
        keep(l->q + slot * (size_t)(s->q_heads * s->k_dim), &r->q, i, s->q_heads, s->k_dim);
        if (!l->k) continue;
        keep(l->k + slot * (size_t)(s->kv_heads * s->k_dim), &r->k, r->cells[i], s->kv_heads, s->k_dim);
        keep(l->v + slot * (size_t)(s->kv_heads * s->v_dim), &r->v, r->cells[i], s->kv_heads, s->v_dim);
    }
}

/* ---- ranking ----------------------------------------------------------------------------------------------------------------- */

static void load(const kvf_view *v, int32_t row, int32_t head, int32_t dim, float *x)
{
    const char *from = row_of(v, row, head);
    if (v->type == KVF_F16)
        ggml_fp16_to_fp32_row((const ggml_fp16_t *)(const void *)from, x, dim);
    else
        memcpy(x, from, (size_t)dim * sizeof *x);
}

/* Channels one after the other, so that a query meets all keys of one at once. */
static void keep_keys(calibrate_layer *l, const kvf_llama_rows *r)
{
    float x[1024];
    for (int32_t i = 0; i < r->n; i++)
        for (int32_t h = 0; h < l->info.kv_heads; h++) {
            float *to = l->keys + (size_t)h * (size_t)l->info.k_dim * CALIBRATE_RANK_MOST + r->tokens[i].pos;
            load(&r->k, r->cells[i], h, l->info.k_dim, x);
            for (int32_t d = 0; d < l->info.k_dim; d++) to[(size_t)d * CALIBRATE_RANK_MOST] = x[d];
        }
}

/* Softmax weights of one query over keys first .. pos of one head, added to what they have. */
static void add_weights(const kvf_llama_rows *r, const float *q, const float *keys, int32_t dim, int32_t first, int32_t pos,
                        double *weight)
{
    float s[CALIBRATE_RANK_MOST] = {0}, max = -INFINITY;
    double sum = 0;
    for (int32_t d = 0; d < dim; d++)
        for (int32_t j = first; j <= pos; j++) s[j] += q[d] * r->scale * keys[(size_t)d * CALIBRATE_RANK_MOST + (size_t)j];
    for (int32_t j = first; j <= pos; j++) {
        if (r->softcap > 0) s[j] = r->softcap * tanhf(s[j] / r->softcap);
        max = s[j] > max ? s[j] : max;
    }
    for (int32_t j = first; j <= pos; j++) s[j] = expf(s[j] - max), sum += (double)s[j];
    for (int32_t j = first; j <= pos; j++) weight[j] += (double)s[j] / sum;
}

static void rank(calibrate_collection *c, calibrate_layer *l, const kvf_llama_rows *r)
{
    calibrate_layer *owner = &c->layer[l->owner];
    const int32_t dim = l->info.k_dim, group = l->info.q_heads / l->info.kv_heads;
    float q[1024];
    if (l == owner) keep_keys(l, r);
    for (int32_t i = 0; i < r->n; i++)
        for (int32_t h = 0; h < l->info.q_heads; h++) {
            const size_t kv = (size_t)(h / group);
            const int32_t pos = r->tokens[i].pos, first = l->info.window && pos >= l->info.window ? pos - l->info.window + 1 : 0;
            load(&r->q, i, h, dim, q);
            add_weights(r, q, owner->keys + kv * (size_t)dim * CALIBRATE_RANK_MOST, dim, first, pos,
                        owner->weight + kv * CALIBRATE_RANK_MOST);
        }
}

void calibrate_observe(void *collection, const kvf_llama_rows *rows)
{
    calibrate_collection *c = collection;
    if (!c->layer || rows->n > c->rows) return; /* not open yet */
    calibrate_layer *l = &c->layer[rows->layer];
    draw_slots(c, rows);
    if (c->ranking)
        rank(c, l, rows);
    else
        sample(c, l, rows);
}

/* ---- room -------------------------------------------------------------------------------------------------------------------- */

static void *room(calibrate_collection *c, size_t n, size_t size)
{
    c->bytes += (int64_t)(n * size);
    return cli_alloc(n, size);
}

static void open_layer(calibrate_collection *c, int32_t il)
{
    calibrate_layer *l = &c->layer[il];
    const kvf_llama_layer_t *s = &l->info;
    const size_t slots = (size_t)c->slots, heads = (size_t)s->kv_heads, k = (size_t)s->k_dim, v = (size_t)s->v_dim;
    l->owner = s->share >= 0 ? s->share : il;
    l->q = room(c, slots * (size_t)s->q_heads * k, sizeof *l->q);
    if (s->share >= 0) return;
    l->k = room(c, slots * heads * k, sizeof *l->k);
    l->v = room(c, slots * heads * v, sizeof *l->v);
    l->keys = room(c, heads * k * CALIBRATE_RANK_MOST, sizeof *l->keys);
    l->weight = room(c, heads * CALIBRATE_RANK_MOST, sizeof *l->weight);
}

void calibrate_collect_make(calibrate_collection *c, const kvf_llama_layer_t *info, int32_t n, int64_t slots, int32_t rows,
                            uint64_t seed)
{
    *c = (calibrate_collection){.n_layers = n, .slots = (int32_t)slots, .seed = seed, .rows = rows, .drawn_layer = -1};
    c->pos = room(c, (size_t)slots, sizeof *c->pos);
    c->slot = room(c, (size_t)rows, sizeof *c->slot);
    c->layer = cli_alloc((size_t)n, sizeof *c->layer);
    for (int32_t il = 0; il < n; il++) {
        c->layer[il].info = info[il];
        if (info[il].folded) open_layer(c, il);
    }
}

int calibrate_collect_open(calibrate_collection *c, const kvf_llama *fold, const struct llama_model *model, int64_t slots,
                           int32_t rows, uint64_t seed)
{
    const int32_t n = llama_model_n_layer(model);
    kvf_llama_layer_t *info = cli_alloc((size_t)n, sizeof *info);
    int code = CLI_GO;
    for (int32_t il = 0; il < n && code == CLI_GO; il++) {
        info[il].size = sizeof *info;
        if (kvf_llama_layer(fold, il, &info[il]) == KVF_OK) continue;
        cli_error("calibrate: layer %d cannot be described", il);
        code = CLI_CANNOT;
    }
    if (code == CLI_GO) calibrate_collect_make(c, info, n, slots, rows, seed);
    free(info);
    return code;
}

void calibrate_collect_close(calibrate_collection *c)
{
    for (int32_t il = 0; c->layer && il < c->n_layers; il++) {
        calibrate_layer *l = &c->layer[il];
        free(l->q), free(l->k), free(l->v), free(l->keys), free(l->weight);
    }
    free(c->layer), free(c->pos), free(c->slot);
    *c = (calibrate_collection){0};
}
