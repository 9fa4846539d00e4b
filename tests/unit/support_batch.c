/* SPDX-License-Identifier: MIT
 * Batches of the tests: contents laid out in memory in every way that a caller may choose, and the driver. */
#include "support_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CANARY 0xAA

static void *get(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    assert_non_null(p);
    return p;
}

static size_t width(int type)
{
    return type == KVF_F16 ? 2 : 4;
}

/* Writes plain rows to memory of exactly the size needed; all else in it is NaN (0xFF everywhere), so that reading a gap shows. */
static void lay_out(ts_side *s, int n, int heads, int dim, int type, ts_layout layout, const int32_t *cells, int columns)
{
    int64_t es = (int64_t)width(type), token = heads * dim * es, head = dim * es, lead = 0;
    if (layout == TS_STRIDED) head = (dim + 3) * es, token = heads * head + 5 * es;
    if (layout == TS_HEADS_FIRST) token = dim * es, head = columns * dim * es + es;
    if (layout == TS_UNALIGNED) token += es, lead = es;
    s->bytes = (size_t)(lead + (columns - 1) * token + (heads - 1) * head + dim * es);
    s->block = get(s->bytes, 1);
    memset(s->block, 0xFF, s->bytes);
    s->view = (kvf_view){s->block + lead, type, 0, token, head};
    for (int t = 0; t < n; t++)
        for (int h = 0; h < heads; h++)
            for (int c = 0; c < dim; c++) {
                unsigned char *at = s->block + lead + (cells ? cells[t] : t) * token + h * head + c * es;
                float x = s->plain[((size_t)t * (size_t)heads + (size_t)h) * (size_t)dim + (size_t)c];
                uint16_t half = ts_half(x);
                memcpy(at, type == KVF_F16 ? (void *)&half : (void *)&x, (size_t)es);
            }
}

static int content_layer(const ts_model *m, int layer)
{
    return ts_owns(m, layer) ? layer : m->layers[layer].share;
}

static float scale_of(const ts_batch *b, int layer)
{
    return b->how.scale != 0.0f ? b->how.scale : 1.0f / sqrtf((float)b->model->layers[layer].k_dim);
}

static void fill_kv(ts_batch *b, int layer, ts_what what, int heads, int dim, ts_side *s)
{
    int type = b->how.type ? b->how.type : KVF_F16;
    size_t total = (size_t)b->n * (size_t)heads * (size_t)dim;
    s->plain = get(total, sizeof(float));
    for (int t = 0; t < b->n; t++)
        for (int h = 0; h < heads; h++)
            ts_content(b->model, b->rows[t].tag, content_layer(b->model, layer), what, b->rows[t].pos, h, dim,
                       s->plain + ((size_t)t * (size_t)heads + (size_t)h) * (size_t)dim);
    if (!b->how.whole_f32)
        for (size_t i = 0; i < total; i++) s->plain[i] = ts_round(s->plain[i]);
    lay_out(s, b->n, heads, dim, type, b->how.layout, b->cells, b->columns);
}

/* A query whose score with the key `distance` rows back is 16, far above the others. */
static int aim(const ts_batch *b, int layer, const ts_row *row, int head, int distance, float *q)
{
    const kvf_layer *l = &b->model->layers[layer];
    int kv = head / (l->q_heads / l->kv_heads);
    if (row->pos < distance) return 0;
    ts_content(b->model, row->tag, content_layer(b->model, layer), TS_K, row->pos - distance, kv, l->k_dim, q);
    double square = 0;
    for (int c = 0; c < l->k_dim; c++) square += (double)q[c] * q[c];
    for (int c = 0; c < l->k_dim; c++) q[c] = (float)(q[c] * (16.0 / ((double)scale_of(b, layer) * square)));
    return 1;
}

static void fill_q(ts_batch *b, int layer, ts_side *s)
{
    const kvf_layer *l = &b->model->layers[layer];
    int type = b->how.q_type ? b->how.q_type : KVF_F32, aims = 0;
    size_t total = (size_t)b->n * (size_t)l->q_heads * (size_t)l->k_dim;
    s->plain = get(total, sizeof(float));
    while (b->how.point_at && b->how.point_at[aims] >= 0) aims++;
    for (int t = 0; t < b->n; t++)
        for (int h = 0; h < l->q_heads; h++) {
            float *q = s->plain + ((size_t)t * (size_t)l->q_heads + (size_t)h) * (size_t)l->k_dim;
            if (!aims || !aim(b, layer, &b->rows[t], h, b->how.point_at[(t + h) % aims], q))
                ts_content(b->model, b->rows[t].tag, layer, TS_Q, b->rows[t].pos, h, l->k_dim, q);
        }
    if (type == KVF_F16)
        for (size_t i = 0; i < total; i++) s->plain[i] = ts_round(s->plain[i]);
    lay_out(s, b->n, l->q_heads, l->k_dim, type, b->how.layout, NULL, b->n);
}

/* n different cells out of `columns`, in no order. */
static int32_t *scatter(int n, int columns)
{
    int32_t *all = get((size_t)columns, sizeof *all);
    ts_random r = {(uint64_t)n * 77};
    for (int i = 0; i < columns; i++) all[i] = i;
    for (int i = 0; i < n; i++) {
        int j = i + (int)ts_next(&r, (uint32_t)(columns - i));
        int32_t x = all[i];
        all[i] = all[j];
        all[j] = x;
    }
    return all;
}

ts_batch *ts_batch_new(const ts_model *m, const ts_row *rows, int n, const ts_how *how)
{
    ts_batch *b = get(1, sizeof *b);
    b->model = m;
    if (how) b->how = *how;
    b->n = n;
    b->columns = b->how.scatter ? 3 * n + 2 : n;
    b->cells = b->how.scatter ? scatter(n, b->columns) : NULL;
    b->rows = get((size_t)n, sizeof *b->rows);
    b->tokens = get((size_t)n, sizeof *b->tokens);
    memcpy(b->rows, rows, (size_t)n * sizeof *rows);
    for (int i = 0; i < n; i++) b->tokens[i] = (kvf_token){rows[i].seq, rows[i].pos};
    for (int i = 0; i < m->params.n_layers; i++) {
        const kvf_layer *l = &m->layers[i];
        fill_kv(b, i, TS_K, l->kv_heads, l->k_dim, &b->k[i]);
        if (!l->v_in_k) fill_kv(b, i, TS_V, l->kv_heads, l->v_dim, &b->v[i]);
        fill_q(b, i, &b->q[i]);
        b->out[i] = get((size_t)n * (size_t)l->q_heads * (size_t)l->v_dim, sizeof(float));
        b->lse[i] = get((size_t)n * (size_t)l->q_heads, sizeof(float));
    }
    return b;
}

static void side_free(ts_side *s)
{
    free(s->plain);
    free(s->block);
}

void ts_batch_free(ts_batch *b)
{
    for (int i = 0; i < TS_LAYERS; i++) {
        side_free(&b->q[i]);
        side_free(&b->k[i]);
        side_free(&b->v[i]);
        free(b->out[i]);
        free(b->lse[i]);
    }
    free(b->rows);
    free(b->tokens);
    free(b->cells);
    free(b->mask);
    free(b->bias);
    free(b);
}

/* What an explicit mask says about row j for query row i. */
static double mask_entry(const ts_batch *b, int layer, int i, int j)
{
    const ts_row *a = &b->rows[i], *k = &b->rows[j];
    int window = b->model->layers[layer].window;
    if (b->how.hide_row == i + 1) return -INFINITY;
    if (!b->how.see_all && (a->seq != k->seq || k->pos > a->pos)) return -INFINITY;
    if (window > 0 && a->pos - k->pos >= window) return -INFINITY;
    double bias = b->how.slopes ? (double)(k->pos - a->pos) : 0.0;
    if (b->how.bias != 0.0f) bias += (double)b->how.bias * ((i * 3 + j * 5) % 17 - 8);
    return bias;
}

/* f16 of what masks hold: small multiples of 1/8 and minus infinity. */
static uint16_t mask_half(double x)
{
    return x < -65504.0 ? 0xFC00u : ts_half((float)x);
}

static int64_t make_mask(ts_batch *b, int layer)
{
    size_t es = width(b->how.mask), stride = ((size_t)b->columns + 3) * es;
    free(b->mask);
    free(b->bias);
    b->mask = get((size_t)(b->n - 1) * stride + (size_t)b->columns * es, 1);
    memset(b->mask, 0xFF, (size_t)(b->n - 1) * stride + (size_t)b->columns * es);
    b->bias = get((size_t)b->n * (size_t)b->n, sizeof(double));
    for (int i = 0; i < b->n; i++)
        for (int j = 0; j < b->n; j++) {
            double x = b->bias[i * b->n + j] = mask_entry(b, layer, i, j);
            float single = (float)x;
            uint16_t half = mask_half(x);
            char *at = (char *)b->mask + (size_t)i * stride + (size_t)(b->cells ? b->cells[j] : j) * es;
            memcpy(at, b->how.mask == KVF_F16 ? (void *)&half : (void *)&single, es);
        }
    return (int64_t)stride;
}

void ts_batch_request(ts_batch *b, int layer, kvf_attention *a, float *out, float *lse)
{
    const kvf_layer *l = &b->model->layers[layer];
    kvf_attention_init(a);
    a->layer = layer;
    a->q = b->q[layer].view;
    a->k = b->k[layer].view;
    a->v = b->v[layer].view;
    a->cells = b->cells;
    if (b->how.mask) {
        a->mask_stride = make_mask(b, layer);
        a->mask = b->mask;
        a->mask_type = b->how.mask;
    }
    a->scale = scale_of(b, layer);
    a->softcap = b->how.softcap;
    a->slopes = b->how.slopes;
    a->sinks = b->how.sinks;
    a->out = out;
    a->out_head_stride = l->v_dim * (int64_t)sizeof(float);
    a->out_token_stride = l->q_heads * a->out_head_stride;
    a->lse = lse;
}

static int run_plan(kvf_cache *c, const ts_batch *b, const kvf_attention *a)
{
    if (!b->how.shuffle_parts) return kvf_attend(c, a);
    kvf_plan plan;
    memset(&plan, 0, sizeof plan);
    int code = kvf_attend_begin(c, a, &plan);
    if (code != KVF_OK) return code;
    int32_t *order = scatter(plan.parts, plan.parts);
    for (int i = 0; i < plan.parts; i++) kvf_attend_part(&plan, order[i]);
    free(order);
    return kvf_attend_end(&plan);
}

int ts_batch_attend(kvf_cache *c, ts_batch *b, int layer)
{
    const kvf_layer *l = &b->model->layers[layer];
    size_t gap = b->how.layout == TS_PLAIN ? 0 : 1, head = (size_t)l->v_dim + gap, token = (size_t)l->q_heads * head + 2 * gap;
    size_t total = (size_t)(b->n - 1) * token + (size_t)(l->q_heads - 1) * head + (size_t)l->v_dim;
    float *out = get(total, sizeof(float)), canary;
    memset(out, CANARY, total * sizeof(float));
    memset(&canary, CANARY, sizeof canary);
    memset(b->lse[layer], CANARY, (size_t)b->n * (size_t)l->q_heads * sizeof(float));
    kvf_attention a;
    ts_batch_request(b, layer, &a, out, b->lse[layer]);
    a.out_token_stride = (int64_t)(token * sizeof(float));
    a.out_head_stride = (int64_t)(head * sizeof(float));
    int code = run_plan(c, b, &a);
    for (int t = 0; code == KVF_OK && t < b->n; t++)
        for (int h = 0; h < l->q_heads; h++) {
            float *from = out + (size_t)t * token + (size_t)h * head;
            size_t to = ((size_t)t * (size_t)l->q_heads + (size_t)h) * (size_t)l->v_dim;
            memcpy(b->out[layer] + to, from, (size_t)l->v_dim * sizeof(float));
            memset(from, CANARY, (size_t)l->v_dim * sizeof(float));
        }
    for (size_t i = 0; code == KVF_OK && i < total; i++)
        if (memcmp(out + i, &canary, sizeof canary)) fail_msg("layer %d: written outside the output, float %zu", layer, i);
    free(out);
    return code;
}

int ts_batch_begin(kvf_cache *c, ts_batch *b)
{
    return kvf_batch_begin(c, b->tokens, b->n);
}

int ts_batch_append(kvf_cache *c, ts_batch *b, int layer)
{
    const kvf_view *v = b->model->layers[layer].v_in_k ? NULL : &b->v[layer].view;
    return kvf_batch_append(c, layer, &b->k[layer].view, v, b->cells);
}

/* ---- driver ---- */

static void must(kvf_cache *c, int code, const char *what, int layer)
{
    if (code != KVF_OK) fail_msg("%s, layer %d: %d, %s", what, layer, code, kvf_cache_error(c));
}

void ts_begin(kvf_cache *c, ts_batch *b)
{
    must(c, ts_batch_begin(c, b), "kvf_batch_begin", -1);
}

void ts_attend_all(kvf_cache *c, ts_batch *b)
{
    for (int i = 0; i < b->model->params.n_layers; i++) must(c, ts_batch_attend(c, b, i), "attention", i);
}

void ts_append_all(kvf_cache *c, ts_batch *b)
{
    for (int i = 0; i < b->model->params.n_layers; i++)
        if (ts_owns(b->model, i)) must(c, ts_batch_append(c, b, i), "kvf_batch_append", i);
}

void ts_feed(kvf_cache *c, const ts_model *m, const ts_row *rows, int n, int chunk, const ts_how *how)
{
    for (int i = 0; i < n; i += chunk) {
        ts_batch *b = ts_batch_new(m, rows + i, n - i < chunk ? n - i : chunk, how);
        ts_begin(c, b);
        ts_append_all(c, b);
        must(c, kvf_batch_commit(c), "kvf_batch_commit", -1);
        ts_batch_free(b);
    }
}

void ts_grow(kvf_cache *c, const ts_model *m, int32_t seq, uint64_t tag, int n, int chunk)
{
    ts_row *rows = get((size_t)n, sizeof *rows);
    ts_rows(rows, n, seq, tag, kvf_seq_pos_max(c, seq) + 1);
    ts_feed(c, m, rows, n, chunk, NULL);
    free(rows);
}
