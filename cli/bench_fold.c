/* SPDX-License-Identifier: MIT
 * Our codecs as rows of the bench, through the public API: caches of many layers, one decoded token or one batch, the calling program's
 * OpenMP threads. A cache is filled by one thread, so layers are shared out among several, which fill at the same time. */
#include "bench.h"
#include "bench_books.h"

#include <ggml.h>
#include <jansson.h>
#include <kvfold.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Rows of the batches that fill, and the fewest layers of a cache: it has scratch of its own, which only the first of them finds cold. */
enum { PREFILL = 512, LAYERS_LEAST = 4 };

/* One cache. */
typedef struct share {
    kvf_cache *cache;
    int first, layers; /* of all: first .. first + layers - 1 */
    int code;
    char error[512];
} share;

typedef struct fold {
    const bench_data *data;
    const kv_choice *choice;
    int layers, batch; /* rows of the largest one */
    kvf_layer *layer;  /* [layers], all alike */
    share *shares;
    int n_shares;
    bench_books books;
    const kvf_calibration *known; /* NULL: nothing */
    kvf_attention *ask;           /* [layers], each for its cache */
    int32_t *cells;               /* [layers][batch] */
    float *out;                   /* [layers][queries][q_heads][head_dim] */
    int failed;
    char error[512];
} fold;

static kvf_view rows_of(const bench_data *d, const uint16_t *rows)
{
    int64_t head = (int64_t)d->shape.head_dim * 2;
    return (kvf_view){.data = rows, .type = KVF_F16, .token_stride = head * d->shape.kv_heads, .head_stride = head};
}

static void describe_layers(fold *f)
{
    const bench_shape *s = &f->data->shape;
    for (int l = 0; l < f->layers; l++) {
        kvf_layer_init(&f->layer[l]);
        f->layer[l].q_heads = s->q_heads;
        f->layer[l].kv_heads = s->kv_heads;
        f->layer[l].k_dim = f->layer[l].v_dim = s->head_dim;
    }
}

static void describe(const fold *f, share *c, kvf_params *p)
{
    kvf_params_init(p);
    p->n_layers = c->layers;
    p->layers = f->layer;
    p->k = f->choice->k;
    p->v = f->choice->v;
    p->cpu = f->choice->cpu;
    p->sink = f->choice->sink;
    p->recent = f->choice->recent;
    p->exact_bits = f->choice->exact_bits;
    p->threads = f->data->shape.threads;
    p->max_batch = f->batch;
    p->error = c->error;
    p->error_size = sizeof c->error;
}

/* Opens a batch of tokens t0 .. t0+n-1. */
static int begin(share *c, int t0, int n)
{
    kvf_token tokens[BENCH_BATCH_MOST];
    for (int i = 0; i < n; i++) tokens[i] = (kvf_token){0, t0 + i};
    return kvf_batch_begin(c->cache, tokens, n);
}

/* Where the rows of tokens t0 .. t0+n-1 of a layer lie. */
static int32_t *write_cells(const fold *f, int layer, int t0, int n)
{
    int32_t *cells = f->cells + (size_t)layer * (size_t)f->batch;
    for (int i = 0; i < n; i++) cells[i] = bench_row_of(f->data, layer, t0 + i);
    return cells;
}

/* Appends tokens t0 .. t0+n-1 to every layer. */
static int append(const fold *f, share *c, int t0, int n)
{
    kvf_view k = rows_of(f->data, f->data->k), v = rows_of(f->data, f->data->v);
    int code = begin(c, t0, n);
    for (int l = 0; code == KVF_OK && l < c->layers; l++)
        code = kvf_batch_append(c->cache, l, &k, &v, write_cells(f, c->first + l, t0, n));
    return code == KVF_OK ? kvf_batch_commit(c->cache) : code;
}

/* Everything before the batch becomes history; the batch stays open, and its attention is asked again and again. */
static int fill(const fold *f, share *c)
{
    const bench_shape *s = &f->data->shape;
    int history = bench_history(s), code = kvf_reserve(c->cache, s->context, 1, f->batch);
    for (int t = 0; code == KVF_OK && t < history; t += PREFILL)
        code = append(f, c, t, history - t < PREFILL ? history - t : PREFILL);
    return code == KVF_OK ? begin(c, history, s->queries) : code;
}

/* A cache of so many layers, filled. */
static int create_share(const fold *f, share *c)
{
    kvf_params p;
    kvf_calibration known = {0};
    describe(f, c, &p);
    if (f->known) {
        known = *f->known;
        known.n_layers = c->layers;
        p.calibration = &known;
    }
    int code = kvf_cache_create(&c->cache, &p);
    if (code != KVF_OK) return code;
    code = fill(f, c);
    if (code != KVF_OK) snprintf(c->error, sizeof c->error, "%s", kvf_cache_error(c->cache));
    return code;
}

/* As many caches as processors, where there are layers enough. f->error receives the first sentence. */
static int create_shares(fold *f)
{
    int most = f->layers / LAYERS_LEAST, n = cli_threads_default();
    if (n > most) n = most > 1 ? most : 1;
    f->shares = calloc((size_t)n, sizeof *f->shares);
    if (!f->shares) return -1;
    f->n_shares = n;
    for (int i = 0; i < n; i++) {
        share *c = &f->shares[i];
        c->first = (int)((int64_t)f->layers * i / n);
        c->layers = (int)((int64_t)f->layers * (i + 1) / n) - c->first;
    }
#pragma omp parallel for schedule(static, 1) num_threads(n)
    for (int i = 0; i < n; i++) f->shares[i].code = create_share(f, &f->shares[i]);
    for (int i = 0; i < n; i++) {
        if (f->shares[i].code == KVF_OK) continue;
        snprintf(f->error, sizeof f->error, "%s", f->shares[i].error);
        return -1;
    }
    return 0;
}

static share *share_of(const fold *f, int layer)
{
    share *c = f->shares;
    while (layer >= c->first + c->layers) c++;
    return c;
}

static void write_requests(fold *f)
{
    const bench_shape *s = &f->data->shape;
    int64_t head = (int64_t)s->head_dim * (int64_t)sizeof(float);
    for (int l = 0; l < f->layers; l++) {
        kvf_attention *a = &f->ask[l];
        kvf_attention_init(a);
        a->layer = l - share_of(f, l)->first;
        a->q =
            (kvf_view){.data = bench_query(f->data, l), .type = KVF_F32, .token_stride = head * s->q_heads, .head_stride = head};
        a->k = rows_of(f->data, f->data->k);
        a->v = rows_of(f->data, f->data->v);
        a->cells = write_cells(f, l, bench_history(s), s->queries);
        a->scale = 1.0f / sqrtf((float)s->head_dim);
        a->out = f->out + (size_t)l * bench_floats(s);
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
        if (kvf_attend_begin(share_of(f, l)->cache, &f->ask[l], &plan) != KVF_OK) {
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
static int sealed_blocks(const kv_choice *choice, const bench_shape *s)
{
    int coded = bench_history(s) - choice->recent;
    return coded > 0 ? coded / KVF_BLOCK : 0;
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

/* One side: the history as the cache holds it, then the rows of the open batch. */
static int decode_side(const fold *f, kvf_side side, int layer, int head, float *x)
{
    const bench_shape *s = &f->data->shape;
    const share *c = share_of(f, layer);
    const int history = bench_history(s);
    const size_t dim = (size_t)s->head_dim;
    if (history && kvf_seq_read_range(c->cache, 0, layer - c->first, side, head, 0, history, x) != KVF_OK) return -1;
    widen(f, side == KVF_K ? f->data->k : f->data->v, layer, head, history, s->queries, x + (size_t)history * dim);
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
    for (int i = 0; i < f->n_shares; i++) kvf_cache_free(&f->shares[i].cache);
    free(f->shares);
    bench_books_free(&f->books);
    free(f->layer);
    free(f->ask);
    free(f->cells);
    free(f->out);
    free(f);
}

/* What one call reads of one side: sealed blocks, exact rows, and the sink again, whose codes lie in block 0 too. 0: the codec cannot
 * serve this shape, with a sentence in error, which may be NULL. */
static size_t side_bytes(const kv_choice *choice, const bench_shape *s, kvf_side side, char *error, size_t error_size)
{
    const char *spec = side == KVF_K ? choice->k : choice->v;
    size_t sealed = (size_t)sealed_blocks(choice, s), exact = (size_t)s->context - sealed * KVF_BLOCK;
    kvf_spec_info info;
    if (kvf_spec_check(spec, side, s->head_dim, &info, error, error_size) != KVF_OK) return 0;
    if (sealed) exact += (size_t)choice->sink;
    return (size_t)s->kv_heads * (sealed * info.block_bytes + exact * (size_t)s->head_dim * sizeof(uint16_t));
}

/* Of both sides, 0 as above. */
static size_t call_bytes(const kv_choice *choice, const bench_shape *s, char *error, size_t error_size)
{
    size_t k = side_bytes(choice, s, KVF_K, error, error_size), v = k ? side_bytes(choice, s, KVF_V, error, error_size) : 0;
    return v ? k + v : 0;
}

size_t bench_fold_bytes(const kv_choice *choice, const bench_shape *shape, size_t pool)
{
    size_t bytes = call_bytes(choice, shape, NULL, 0);
    int layers = bench_layers(bytes, pool);
    return bytes ? bytes * (size_t)layers + bench_output_bytes(shape, layers) : 0;
}

static int allocate(fold *f)
{
    const bench_shape *s = &f->data->shape;
    size_t layers = (size_t)f->layers;
    f->layer = malloc(layers * sizeof *f->layer);
    f->ask = malloc(layers * sizeof *f->ask);
    f->cells = malloc(layers * (size_t)f->batch * sizeof *f->cells);
    f->out = malloc(bench_output_bytes(s, f->layers));
    return f->layer && f->ask && f->cells && f->out ? 0 : -1;
}

/* f->error receives the sentence. */
static int build(fold *f, size_t pool, bench_arm *arm)
{
    const bench_shape *s = &f->data->shape;
    arm->bytes = call_bytes(f->choice, s, f->error, sizeof f->error);
    if (!arm->bytes) return -1;
    f->batch = s->queries > PREFILL ? s->queries : PREFILL;
    arm->layers = f->layers = bench_layers(arm->bytes, pool);
    if (allocate(f) != 0 || bench_books_make(&f->books, f->choice, f->data, f->layers, &f->known) != 0) {
        snprintf(f->error, sizeof f->error, "out of memory");
        return -1;
    }
    describe_layers(f);
    if (create_shares(f) != 0) return -1;
    write_requests(f);
    kvf_stats_t stats = {.size = sizeof stats};
    if (kvf_stats(f->shares[0].cache, &stats) == KVF_OK) snprintf(arm->cpu, sizeof arm->cpu, "%s", stats.cpu);
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
