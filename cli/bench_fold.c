/* SPDX-License-Identifier: MIT
 * Our codecs as rows of the bench, through the public API: one cache of many layers, one decoded token, the calling program's
 * OpenMP threads. */
#include "bench.h"
#include "bench_books.h"

#include <ggml.h>
#include <jansson.h>
#include <kvfold.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PREFILL = 512 };

typedef struct fold {
    const bench_data *data;
    const kv_choice *choice;
    int layers;
    kvf_params params;
    kvf_layer *layer; /* [layers] */
    kvf_cache *cache;
    bench_books books;
    kvf_attention *ask; /* [layers] */
    int32_t *cells;     /* [layers][PREFILL] */
    float *out;         /* [layers][q_heads][head_dim] */
    int failed;
    char error[512];
} fold;

static kvf_view rows_of(const bench_data *d, const uint16_t *rows)
{
    int64_t head = (int64_t)d->shape.head_dim * 2;
    return (kvf_view){.data = rows, .type = KVF_F16, .token_stride = head * d->shape.kv_heads, .head_stride = head};
}

static void describe(fold *f)
{
    const bench_shape *s = &f->data->shape;
    kvf_params *p = &f->params;
    kvf_params_init(p);
    p->n_layers = f->layers;
    p->layers = f->layer;
    p->k = f->choice->k;
    p->v = f->choice->v;
    p->cpu = f->choice->cpu;
    p->sink = f->choice->sink;
    p->recent = f->choice->recent;
    p->exact_bits = f->choice->exact_bits;
    p->threads = s->threads;
    p->max_batch = PREFILL;
    p->error = f->error;
    p->error_size = sizeof f->error;
    for (int l = 0; l < f->layers; l++) {
        kvf_layer_init(&f->layer[l]);
        f->layer[l].q_heads = s->q_heads;
        f->layer[l].kv_heads = s->kv_heads;
        f->layer[l].k_dim = f->layer[l].v_dim = s->head_dim;
    }
}

/* Appends tokens t0 .. t0+n-1 to every layer. */
static int append(fold *f, int t0, int n)
{
    kvf_token tokens[PREFILL];
    kvf_view k = rows_of(f->data, f->data->k), v = rows_of(f->data, f->data->v);
    for (int i = 0; i < n; i++) tokens[i] = (kvf_token){0, t0 + i};
    int code = kvf_batch_begin(f->cache, tokens, n);
    for (int l = 0; code == KVF_OK && l < f->layers; l++) {
        int32_t *cells = f->cells + (size_t)l * PREFILL;
        for (int i = 0; i < n; i++) cells[i] = bench_row_of(f->data, l, t0 + i);
        code = kvf_batch_append(f->cache, l, &k, &v, cells);
    }
    return code == KVF_OK ? kvf_batch_commit(f->cache) : code;
}

/* Everything but the last token becomes history; the last one stays an open batch whose attention is asked again and again. */
static int fill(fold *f)
{
    const bench_shape *s = &f->data->shape;
    int history = s->context - 1, code = kvf_reserve(f->cache, s->context, 1, PREFILL);
    for (int t = 0; code == KVF_OK && t < history; t += PREFILL)
        code = append(f, t, history - t < PREFILL ? history - t : PREFILL);
    kvf_token last = {0, history};
    return code == KVF_OK ? kvf_batch_begin(f->cache, &last, 1) : code;
}

static void write_requests(fold *f)
{
    const bench_shape *s = &f->data->shape;
    int64_t head = (int64_t)s->head_dim * (int64_t)sizeof(float);
    for (int l = 0; l < f->layers; l++) {
        kvf_attention *a = &f->ask[l];
        kvf_attention_init(a);
        f->cells[(size_t)l * PREFILL] = bench_row_of(f->data, l, s->context - 1);
        a->layer = l;
        a->q =
            (kvf_view){.data = bench_query(f->data, l), .type = KVF_F32, .token_stride = head * s->q_heads, .head_stride = head};
        a->k = rows_of(f->data, f->data->k);
        a->v = rows_of(f->data, f->data->v);
        a->cells = f->cells + (size_t)l * PREFILL;
        a->scale = 1.0f / sqrtf((float)s->head_dim);
        a->out = f->out + (size_t)l * (size_t)s->q_heads * (size_t)s->head_dim;
        a->out_token_stride = head * s->q_heads;
        a->out_head_stride = head;
    }
}

/* ---- arm ------------------------------------------------------------------------------------------------------------------ */

static void run(void *self)
{
    fold *f = self;
    int threads = f->data->shape.threads;
    for (int l = 0; l < f->layers; l++) {
        kvf_plan plan;
        if (kvf_attend_begin(f->cache, &f->ask[l], &plan) != KVF_OK) {
            f->failed = 1;
            return;
        }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int i = 0; i < plan.parts; i++) kvf_attend_part(&plan, i);
        if (kvf_attend_end(&plan) != KVF_OK) f->failed = 1;
    }
}

static float *output(void *self, int layer)
{
    return ((fold *)self)->ask[layer].out;
}

/* Blocks of the history that are packed. */
static int sealed_blocks(const fold *f)
{
    int history = f->data->shape.context - 1 - f->choice->recent;
    return history > 0 ? history / KVF_BLOCK : 0;
}

static void widen(const fold *f, const uint16_t *rows, int layer, int head, int t0, int n, float *to)
{
    const bench_shape *s = &f->data->shape;
    size_t dim = (size_t)s->head_dim;
    for (int i = 0; i < n; i++) {
        const uint16_t *row = rows + ((size_t)bench_row_of(f->data, layer, t0 + i) * (size_t)s->kv_heads + (size_t)head) * dim;
        ggml_fp16_to_fp32_row((const ggml_fp16_t *)row, to + (size_t)i * dim, s->head_dim);
    }
}

/* One side: the history as the cache holds it, then the row of the open batch. */
static int decode_side(const fold *f, kvf_side side, int layer, int head, float *x)
{
    const bench_shape *s = &f->data->shape;
    const int history = s->context - 1;
    for (int t = 0; t < history; t++)
        if (kvf_seq_read(f->cache, 0, layer, side, head, t, x + (size_t)t * (size_t)s->head_dim) != KVF_OK) return -1;
    widen(f, side == KVF_K ? f->data->k : f->data->v, layer, head, history, 1, x + (size_t)history * (size_t)s->head_dim);
    return 0;
}

static int decode(void *self, int layer, int head, float *k, float *v)
{
    const fold *f = self;
    if (f->failed || decode_side(f, KVF_K, layer, head, k) != 0) return -1;
    return decode_side(f, KVF_V, layer, head, v);
}

static void release(void *self)
{
    fold *f = self;
    kvf_cache_free(&f->cache);
    bench_books_free(&f->books);
    free(f->layer);
    free(f->ask);
    free(f->cells);
    free(f->out);
    free(f);
}

/* What one call reads of one side: sealed blocks, exact rows, and the sink again, whose codes lie in block 0 too. 0: the codec cannot
 * serve this shape, with a sentence in f->error. */
static size_t side_bytes(fold *f, kvf_side side)
{
    const bench_shape *s = &f->data->shape;
    const char *spec = side == KVF_K ? f->choice->k : f->choice->v;
    size_t sealed = (size_t)sealed_blocks(f), exact = (size_t)s->context - sealed * KVF_BLOCK;
    kvf_spec_info info;
    if (kvf_spec_check(spec, side, s->head_dim, &info, f->error, sizeof f->error) != KVF_OK) return 0;
    if (sealed) exact += (size_t)f->choice->sink;
    return (size_t)s->kv_heads * (sealed * info.block_bytes + exact * (size_t)s->head_dim * sizeof(uint16_t));
}

static int allocate(fold *f)
{
    const bench_shape *s = &f->data->shape;
    size_t layers = (size_t)f->layers;
    f->layer = malloc(layers * sizeof *f->layer);
    f->ask = malloc(layers * sizeof *f->ask);
    f->cells = malloc(layers * PREFILL * sizeof *f->cells);
    f->out = malloc(layers * (size_t)s->q_heads * (size_t)s->head_dim * sizeof *f->out);
    return f->layer && f->ask && f->cells && f->out ? 0 : -1;
}

/* f->error receives the sentence. */
static int build(fold *f, size_t pool, bench_arm *arm)
{
    size_t k = side_bytes(f, KVF_K), v = k ? side_bytes(f, KVF_V) : 0;
    if (!v) return -1;
    arm->bytes = k + v;
    arm->layers = f->layers = bench_layers(arm->bytes, pool);
    if (allocate(f) != 0) {
        snprintf(f->error, sizeof f->error, "out of memory");
        return -1;
    }
    describe(f);
    if (bench_books_make(&f->books, f->choice, f->data, f->layers, &f->params.calibration) != 0) {
        snprintf(f->error, sizeof f->error, "out of memory");
        return -1;
    }
    if (kvf_cache_create(&f->cache, &f->params) != KVF_OK) return -1;
    if (fill(f) != KVF_OK) {
        snprintf(f->error, sizeof f->error, "%s", kvf_cache_error(f->cache));
        return -1;
    }
    write_requests(f);
    kvf_stats_t stats = {.size = sizeof stats};
    if (kvf_stats(f->cache, &stats) == KVF_OK) snprintf(arm->cpu, sizeof arm->cpu, "%s", stats.cpu);
    return 0;
}

void bench_fold_fields(const kv_choice *c, json_t *row)
{
    json_object_set_new(row, "k", json_string(c->k));
    json_object_set_new(row, "v", json_string(c->v));
    json_object_set_new(row, "sink", json_integer(c->sink));
    json_object_set_new(row, "window", json_integer(c->recent));
    json_object_set_new(row, "exact_bits", json_integer(c->exact_bits));
    json_object_set_new(row, "evict", json_string(c->evict));
    if (c->layers.data) json_object_set_new(row, "layers", json_string(c->layers.data));
    if (c->calibration) json_object_set_new(row, "calibration", cli_json_text(c->calibration));
    if (c->cpu) json_object_set_new(row, "cpu", json_string(c->cpu));
    if (c->preset) json_object_set_new(row, "preset", json_string(c->preset));
}

static bool failed(void *self)
{
    return ((fold *)self)->failed != 0;
}

/* One layer stands for all here, and all its tokens are read back to check the result. */
static const char *not_here(const kv_choice *c)
{
    if (c->evicts) return "a policy that drops tokens cannot be timed here; bench e2e can";
    return c->layers.data ? "codecs of single layers cannot be timed here; bench e2e can" : NULL;
}

int bench_fold_create(const kv_choice *choice, const char *name, const bench_data *d, size_t pool, bench_arm *arm, char *error,
                      size_t error_size)
{
    if (not_here(choice)) {
        snprintf(error, error_size, "%s: %s", name, not_here(choice));
        return -1;
    }
    fold *f = calloc(1, sizeof *f);
    if (!f) {
        snprintf(error, error_size, "out of memory");
        return -1;
    }
    f->data = d;
    f->choice = choice;
    *arm = (bench_arm){.self = f, .run = run, .output = output, .decode = decode, .failed = failed, .release = release};
    snprintf(arm->name, sizeof arm->name, "%s", name);
    if (build(f, pool, arm) == 0) return 0;
    snprintf(error, error_size, "%s: %s", arm->name, f->error[0] ? f->error : "cannot be set up");
    release(f);
    return -1;
}
