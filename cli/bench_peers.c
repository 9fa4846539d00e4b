/* SPDX-License-Identifier: MIT
 * libllama's own attention as rows of the bench: the graph that it builds for one decoded token (its build_attn_mha), from ggml's
 * public operations, on its CPU backend. Its Hadamard rotation of quantised K and V is left out, in its favour. */
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
    struct ggml_tensor **k, **v, **q, **out; /* [layers] */
    struct ggml_tensor *mask;
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

size_t bench_peer_bytes(int i, const bench_shape *shape, size_t pool)
{
    if (i >= N_VARIANTS) return 0;
    size_t bytes = layer_bytes(&VARIANTS[i], shape);
    return bytes * (size_t)bench_layers(bytes, pool);
}

/* ---- inputs --------------------------------------------------------------------------------------------------------------- */

static void new_inputs(peer *p)
{
    const bench_shape *s = &p->data->shape;
    int64_t width = (int64_t)s->kv_heads * s->head_dim, n = s->context;
    p->mask = ggml_new_tensor_2d(p->inputs, p->variant->flash ? GGML_TYPE_F16 : GGML_TYPE_F32, n, 1);
    for (int l = 0; l < p->layers; l++) {
        p->k[l] = ggml_new_tensor_2d(p->inputs, p->variant->k, width, n);
        p->v[l] = p->variant->flash ? ggml_new_tensor_2d(p->inputs, p->variant->v, width, n)
                                    : ggml_new_tensor_2d(p->inputs, p->variant->v, n, width);
        p->q[l] = ggml_new_tensor_3d(p->inputs, GGML_TYPE_F32, s->head_dim, s->q_heads, 1);
    }
}

/* Stores token `t`, as the cache does that holds one token a row. */
static void put_row(struct ggml_tensor *x, int64_t t, const uint16_t *row, float *wide)
{
    if (x->type == GGML_TYPE_F16) {
        ggml_backend_tensor_set(x, row, (size_t)t * x->nb[1], (size_t)x->ne[0] * 2);
        return;
    }
    char *packed = (char *)(wide + x->ne[0]);
    ggml_fp16_to_fp32_row((const ggml_fp16_t *)row, wide, x->ne[0]);
    ggml_quantize_chunk(x->type, wide, packed, 0, 1, x->ne[0], NULL);
    ggml_backend_tensor_set(x, packed, (size_t)t * x->nb[1], x->nb[1]);
}

static int fill_inputs(peer *p)
{
    const bench_shape *s = &p->data->shape;
    size_t width = (size_t)s->kv_heads * (size_t)s->head_dim, n = (size_t)s->context;
    float *wide = malloc(2 * width * sizeof *wide);
    uint16_t *across = malloc(n * width * sizeof *across);
    for (int l = 0; wide && across && l < p->layers; l++) {
        for (size_t t = 0; t < n; t++) {
            size_t from = (size_t)bench_row_of(p->data, l, (int)t) * width;
            put_row(p->k[l], (int64_t)t, p->data->k + from, wide);
            if (p->variant->flash)
                put_row(p->v[l], (int64_t)t, p->data->v + from, wide);
            else
                for (size_t c = 0; c < width; c++) across[c * n + t] = p->data->v[from + c];
        }
        if (!p->variant->flash) ggml_backend_tensor_set(p->v[l], across, 0, ggml_nbytes(p->v[l]));
        ggml_backend_tensor_set(p->q[l], bench_query(p->data, l), 0, ggml_nbytes(p->q[l]));
    }
    int ok = wide && across;
    free(wide);
    free(across);
    return ok ? 0 : -1;
}

/* ---- graph ---------------------------------------------------------------------------------------------------------------- */

static struct ggml_tensor *heads_of(struct ggml_context *c, struct ggml_tensor *x, const bench_shape *s)
{
    struct ggml_tensor *view =
        ggml_view_3d(c, x, s->head_dim, s->kv_heads, s->context, ggml_row_size(x->type, s->head_dim), x->nb[1], 0);
    return ggml_permute(c, view, 0, 2, 1, 3);
}

static struct ggml_tensor *attention(peer *p, int l)
{
    const bench_shape *s = &p->data->shape;
    struct ggml_context *c = p->nodes;
    float scale = 1.0f / sqrtf((float)s->head_dim);
    struct ggml_tensor *q = ggml_permute(c, p->q[l], 0, 2, 1, 3), *k = heads_of(c, p->k[l], s);
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
    return ggml_cont_2d(c, kqv, (int64_t)s->head_dim * s->q_heads, 1);
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
    p->k = calloc(4 * (size_t)p->layers, sizeof *p->k);
    if (!p->k) return "out of memory";
    p->v = p->k + p->layers, p->q = p->v + p->layers, p->out = p->q + p->layers;
    if (!(p->backend = cpu_backend(s->threads))) return "ggml has no CPU backend here";
    p->inputs = ggml_init((struct ggml_init_params){ggml_tensor_overhead() * (size_t)(3 * p->layers + 1), NULL, true});
    if (!p->inputs) return "out of memory";
    new_inputs(p);
    if (!(p->buffer = ggml_backend_alloc_ctx_tensors(p->inputs, p->backend))) return "out of memory";
    ggml_backend_buffer_clear(p->buffer, 0); /* the mask: everything is visible */
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
