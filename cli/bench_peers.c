/* SPDX-License-Identifier: MIT
 * libllama's own attention as rows of the bench: the graph that it builds for one decoded token or a batch (its build_attn_mha), from
 * ggml's public operations, on its CPU backend. Its Hadamard rotation of quantised K and V is left out, in its favour. */
#include "bench.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct variant {
    const char *name;
    enum ggml_type k, v;
    int flash; /* without flash attention V is held transposed and must be f16 */
} variant;

static const variant VARIANTS[] = {
    {"llama-f16-noflash", GGML_TYPE_F16, GGML_TYPE_F16, 0},  {"llama-q8_0/f16-noflash", GGML_TYPE_Q8_0, GGML_TYPE_F16, 0},
    {"llama-f16-flash", GGML_TYPE_F16, GGML_TYPE_F16, 1},    {"llama-q8_0-flash", GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, 1},
    {"llama-q4_0-flash", GGML_TYPE_Q4_0, GGML_TYPE_Q4_0, 1},
};
enum { N_VARIANTS = sizeof VARIANTS / sizeof *VARIANTS, NODES_OF_LAYER = 16 };

typedef struct peer {
    const variant *variant;
    const bench_data *data;
    int layers;
    ggml_backend_t backend;
    struct ggml_context *inputs, *nodes;
    ggml_backend_buffer_t buffer;
    ggml_gallocr_t allocator;
    struct ggml_tensor **k, **v, **out; /* [layers] */
    struct ggml_tensor *queries, *mask;
    struct ggml_cgraph *graph;
    int failed;
} peer;

/* ggml_row_size insists on whole blocks; head sizes that have none are refused later. */
static size_t row_bytes(enum ggml_type type, size_t n)
{
    return ggml_type_size(type) * n / (size_t)ggml_blck_size(type);
}

static size_t layer_bytes(const variant *p, const bench_shape *s)
{
    size_t width = (size_t)s->kv_heads * (size_t)s->head_dim;
    return (row_bytes(p->k, width) + row_bytes(p->v, width)) * (size_t)s->context;
}

/* The mask, and without flash attention the scores of one layer, twice: ggml multiplies V by a copy in f16. */
static size_t scratch_bytes(const variant *p, const bench_shape *s)
{
    size_t cells = (size_t)s->context * (size_t)s->queries;
    return p->flash ? 2 * cells : cells * 4 + cells * (size_t)s->q_heads * (4 + 2);
}

size_t bench_peer_bytes(int i, const bench_shape *shape, size_t pool)
{
    if (i >= N_VARIANTS) return 0;
    const variant *p = &VARIANTS[i];
    size_t bytes = layer_bytes(p, shape);
    int layers = bench_layers(bytes, pool);
    return bytes * (size_t)layers + bench_output_bytes(shape, layers) + scratch_bytes(p, shape);
}

/* ---- inputs --------------------------------------------------------------------------------------------------------------- */

static void new_inputs(peer *p)
{
    const bench_shape *s = &p->data->shape;
    int64_t width = (int64_t)s->kv_heads * s->head_dim, n = s->context;
    p->mask = ggml_new_tensor_2d(p->inputs, p->variant->flash ? GGML_TYPE_F16 : GGML_TYPE_F32, n, s->queries);
    p->queries = ggml_new_tensor_3d(p->inputs, GGML_TYPE_F32, s->head_dim, s->q_heads, bench_query_rows(s));
    for (int l = 0; l < p->layers; l++) {
        p->k[l] = ggml_new_tensor_2d(p->inputs, p->variant->k, width, n);
        p->v[l] = p->variant->flash ? ggml_new_tensor_2d(p->inputs, p->variant->v, width, n)
                                    : ggml_new_tensor_2d(p->inputs, p->variant->v, n, width);
    }
}

/* Each query sees what is before it and itself. */
static void fill_mask(peer *p)
{
    const bench_shape *s = &p->data->shape;
    for (int i = 0; i < s->queries; i++)
        for (int t = 0; t < s->context; t++) {
            const size_t at = (size_t)i * (size_t)s->context + (size_t)t;
            const float x = t <= bench_history(s) + i ? 0 : -INFINITY;
            if (p->variant->flash)
                ((ggml_fp16_t *)p->mask->data)[at] = ggml_fp32_to_fp16(x);
            else
                ((float *)p->mask->data)[at] = x;
        }
}

/* Stores token `t`, as the cache does that holds one token a row. */
static void put_row(struct ggml_tensor *x, int64_t t, const uint16_t *row, float *wide)
{
    char *to = (char *)x->data + (size_t)t * x->nb[1];
    if (x->type == GGML_TYPE_F16) {
        memcpy(to, row, (size_t)x->ne[0] * sizeof *row);
        return;
    }
    ggml_fp16_to_fp32_row((const ggml_fp16_t *)row, wide, x->ne[0]);
    ggml_quantize_chunk(x->type, wide, to, 0, 1, x->ne[0], NULL);
}

/* Values transposed, a few tokens at a time: whole cache lines are written. */
static void put_across(const peer *p, int l)
{
    enum { TOKENS = 32 };
    const int width = p->data->shape.kv_heads * p->data->shape.head_dim, n = p->data->shape.context;
    uint16_t *to = p->v[l]->data;
    for (int t0 = 0; t0 < n; t0 += TOKENS)
        for (int c = 0; c < width; c++)
            for (int t = t0; t < n && t < t0 + TOKENS; t++)
                to[(size_t)c * (size_t)n + (size_t)t] =
                    p->data->v[(size_t)bench_row_of(p->data, l, t) * (size_t)width + (size_t)c];
}

static int fill_layer(const peer *p, int l)
{
    const bench_shape *s = &p->data->shape;
    const size_t width = (size_t)s->kv_heads * (size_t)s->head_dim;
    float *wide = malloc(width * sizeof *wide);
    if (!wide) return -1;
    for (int t = 0; t < s->context; t++) {
        const size_t from = (size_t)bench_row_of(p->data, l, t) * width;
        put_row(p->k[l], t, p->data->k + from, wide);
        if (p->variant->flash) put_row(p->v[l], t, p->data->v + from, wide);
    }
    if (!p->variant->flash) put_across(p, l);
    free(wide);
    return 0;
}

/* The CPU backend keeps its tensors in memory of this process. */
static int fill_inputs(peer *p)
{
    int code = 0;
    fill_mask(p);
    memcpy(p->queries->data, p->data->q, ggml_nbytes(p->queries));
#pragma omp parallel for schedule(dynamic, 1) num_threads(cli_threads_default()) reduction(min : code)
    for (int l = 0; l < p->layers; l++) {
        int done = fill_layer(p, l);
        code = done < code ? done : code;
    }
    return code;
}

/* ---- graph ---------------------------------------------------------------------------------------------------------------- */

static struct ggml_tensor *heads_of(struct ggml_context *c, struct ggml_tensor *x, const bench_shape *s)
{
    struct ggml_tensor *view =
        ggml_view_3d(c, x, s->head_dim, s->kv_heads, s->context, ggml_row_size(x->type, s->head_dim), x->nb[1], 0);
    return ggml_permute(c, view, 0, 2, 1, 3);
}

/* Those of one batch. */
static struct ggml_tensor *queries_of(peer *p, int l)
{
    const bench_shape *s = &p->data->shape;
    const struct ggml_tensor *all = p->queries;
    return ggml_view_3d(p->nodes, p->queries, s->head_dim, s->q_heads, s->queries, all->nb[1], all->nb[2],
                        (size_t)(l % BENCH_QUERIES) * all->nb[2]);
}

static struct ggml_tensor *attention(peer *p, int l)
{
    const bench_shape *s = &p->data->shape;
    struct ggml_context *c = p->nodes;
    float scale = 1.0f / sqrtf((float)s->head_dim);
    struct ggml_tensor *q = ggml_permute(c, queries_of(p, l), 0, 2, 1, 3), *k = heads_of(c, p->k[l], s);
    if (p->variant->flash) {
        struct ggml_tensor *out = ggml_flash_attn_ext(c, q, k, heads_of(c, p->v[l], s), p->mask, scale, 0, 0);
        ggml_prec_set_acc(out, GGML_PREC_F32);
        return out;
    }
    size_t row = p->v[l]->nb[1];
    struct ggml_tensor *v = ggml_view_3d(c, p->v[l], s->context, s->head_dim, s->kv_heads, row, row * (size_t)s->head_dim, 0);
    struct ggml_tensor *kq = ggml_mul_mat(c, k, q);
    ggml_prec_set_acc(kq, GGML_PREC_F32);
    kq = ggml_soft_max_ext(c, kq, p->mask, scale, 0);
    struct ggml_tensor *kqv = ggml_permute(c, ggml_mul_mat(c, v, kq), 0, 2, 1, 3);
    return ggml_cont_2d(c, kqv, (int64_t)s->head_dim * s->q_heads, s->queries);
}

static int build_graph(peer *p)
{
    size_t size = (size_t)p->layers * NODES_OF_LAYER + 64;
    p->nodes =
        ggml_init((struct ggml_init_params){size * ggml_tensor_overhead() + ggml_graph_overhead_custom(size, false), NULL, true});
    if (!p->nodes) return -1;
    p->graph = ggml_new_graph_custom(p->nodes, size, false);
    for (int l = 0; l < p->layers; l++) {
        p->out[l] = attention(p, l);
        ggml_set_output(p->out[l]);
        ggml_build_forward_expand(p->graph, p->out[l]);
    }
    p->allocator = ggml_gallocr_new(ggml_backend_get_default_buffer_type(p->backend));
    return p->allocator && ggml_gallocr_alloc_graph(p->allocator, p->graph) ? 0 : -1;
}

/* The CPU backend may have been loaded at run time, so its functions are asked for by name. */
static ggml_backend_t cpu_backend(int threads)
{
    if (!ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) ggml_backend_load_all();
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_t backend = device ? ggml_backend_dev_init(device, NULL) : NULL;
    if (!backend) return NULL;
    ggml_backend_set_n_threads_t set = (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads");
    if (set) {
        set(backend, threads);
        return backend;
    }
    ggml_backend_free(backend);
    return NULL;
}

/* ---- arm ------------------------------------------------------------------------------------------------------------------ */

static void run(void *self)
{
    peer *p = self;
    if (ggml_backend_graph_compute(p->backend, p->graph) != GGML_STATUS_SUCCESS) p->failed = 1;
}

static float *output(void *self, int layer)
{
    return ((peer *)self)->out[layer]->data;
}

static void widen(enum ggml_type type, const void *from, float *to, int64_t n)
{
    ggml_get_type_traits(type)->to_float(from, to, n);
}

static int decode(void *self, int layer, int head, float *k, float *v)
{
    peer *p = self;
    const bench_shape *s = &p->data->shape;
    const struct ggml_tensor *kt = p->k[layer], *vt = p->v[layer];
    size_t dim = (size_t)s->head_dim;
    if (p->failed) return -1;
    for (size_t t = 0; t < (size_t)s->context; t++) {
        const char *row = (const char *)kt->data + t * kt->nb[1];
        widen(kt->type, row + (size_t)head * ggml_row_size(kt->type, s->head_dim), k + t * dim, s->head_dim);
        row = (const char *)vt->data + t * vt->nb[1];
        if (p->variant->flash) {
            widen(vt->type, row + (size_t)head * ggml_row_size(vt->type, s->head_dim), v + t * dim, s->head_dim);
            continue;
        }
        for (size_t c = 0; c < dim; c++) {
            const ggml_fp16_t *across = (const ggml_fp16_t *)((const char *)vt->data + ((size_t)head * dim + c) * vt->nb[1]);
            v[t * dim + c] = ggml_fp16_to_fp32(across[t]);
        }
    }
    return 0;
}

static bool failed(void *self)
{
    return ((peer *)self)->failed != 0;
}

static void release(void *self)
{
    peer *p = self;
    if (p->allocator) ggml_gallocr_free(p->allocator);
    if (p->buffer) ggml_backend_buffer_free(p->buffer);
    if (p->nodes) ggml_free(p->nodes);
    if (p->inputs) ggml_free(p->inputs);
    if (p->backend) ggml_backend_free(p->backend);
    free(p->k);
    free(p);
}

/* NULL, or what is missing. */
static const char *build(peer *p)
{
    const bench_shape *s = &p->data->shape;
    if (s->head_dim % ggml_blck_size(p->variant->k) || s->head_dim % ggml_blck_size(p->variant->v))
        return "the head size is not a multiple of its block size";
    p->k = calloc(3 * (size_t)p->layers, sizeof *p->k);
    if (!p->k) return "out of memory";
    p->v = p->k + p->layers, p->out = p->v + p->layers;
    if (!(p->backend = cpu_backend(s->threads))) return "ggml has no CPU backend here";
    p->inputs = ggml_init((struct ggml_init_params){ggml_tensor_overhead() * (size_t)(2 * p->layers + 2), NULL, true});
    if (!p->inputs) return "out of memory";
    new_inputs(p);
    if (!(p->buffer = ggml_backend_alloc_ctx_tensors(p->inputs, p->backend))) return "out of memory";
    if (fill_inputs(p) != 0 || build_graph(p) != 0) return "out of memory";
    return NULL;
}

int bench_peer_create(int i, const bench_data *d, size_t pool, bench_arm *arm, char *error, size_t error_size)
{
    if (i >= N_VARIANTS) return 1;
    const variant *v = &VARIANTS[i];
    size_t bytes = layer_bytes(v, &d->shape);
    peer *p = calloc(1, sizeof *p);
    if (p) *p = (peer){.variant = v, .data = d, .layers = bench_layers(bytes, pool)};
    const char *missing = p ? build(p) : "out of memory";
    if (missing) {
        snprintf(error, error_size, "%s: %s", v->name, missing);
        if (p) release(p);
        return -1;
    }
    *arm = (bench_arm){.bytes = bytes,
                       .layers = p->layers,
                       .self = p,
                       .run = run,
                       .output = output,
                       .decode = decode,
                       .failed = failed,
                       .release = release};
    snprintf(arm->name, sizeof arm->name, "%s", v->name);
    return 0;
}
