/* SPDX-License-Identifier: MIT */
#include "gen_model.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen_arch.h"
#include "gguf_out.h"

static const gen_model models[] = {
#define GEN_MODEL(NAME, ARCH, EXERCISES, ...) {.name = NAME, .arch = ARCH, .exercises = EXERCISES, __VA_ARGS__},
#include "models.def"
};

typedef struct real_model {
    const char *name, *arch, *exercises;
} real_model;

static const real_model real_models[] = {
#define REAL_MODEL(NAME, ARCH, EXERCISES) {NAME, ARCH, EXERCISES},
#include "models.def"
};

#define N_MODELS ((int32_t)(sizeof models / sizeof models[0]))

const gen_model *gen_model_at(int32_t i)
{
    return i >= 0 && i < N_MODELS ? &models[i] : NULL;
}

const gen_model *gen_model_find(const char *name)
{
    for (int32_t i = 0; i < N_MODELS; i++)
        if (!strcmp(models[i].name, name)) return &models[i];
    return NULL;
}

static void support_row(FILE *f, const char *arch, const char *evidence, const char *model, const char *what)
{
    fprintf(f, "| %s | %s | %s | %s |\n", arch, evidence, model, what);
}

void gen_model_support(FILE *f)
{
    support_row(f, "Architecture", "Tried with", "Model", "What it exercises");
    support_row(f, "---", "---", "---", "---");
    for (size_t i = 0; i < sizeof real_models / sizeof real_models[0]; i++)
        support_row(f, real_models[i].arch, "real model", real_models[i].name, real_models[i].exercises);
    for (int32_t i = 0; i < N_MODELS; i++)
        if (!models[i].refused) support_row(f, models[i].arch, "generated", models[i].name, models[i].exercises);
    for (int32_t i = 0; i < N_MODELS; i++)
        if (models[i].refused) support_row(f, models[i].arch, "refused", models[i].name, models[i].refused);
    support_row(f, "every other", "untested", "", "");
}

/* Windowed layers share with the last windowed layer that owns its KV, full ones with the last full one. */
static int32_t shared_with(const gen_model *m, int32_t il, bool windowed)
{
    int32_t own = m->layers - m->shared;
    if (il < own) return -1;
    for (int32_t l = own - 1; l >= 0; l--)
        if ((m->window && (l + 1) % m->full_every) == windowed) return l;
    return -1;
}

void gen_model_layer(const gen_model *m, int32_t il, gen_layer *layer)
{
    memset(layer, 0, sizeof *layer);
    layer->share = -1;
    if (!m->heads || (m->attention_every && (il + 1) % m->attention_every)) return;
    bool windowed = m->window && (il + 1) % m->full_every;
    int32_t head = !windowed && m->head_dim_full ? m->head_dim_full : m->head_dim;
    layer->attention = 1;
    layer->q_heads = m->heads;
    layer->kv_heads = m->kv_heads;
    layer->k_dim = m->latent ? m->latent + m->rope_dims : head;
    layer->v_dim = m->latent ? m->latent : m->v_dim ? m->v_dim : head;
    layer->window = windowed ? m->window : 0;
    layer->share = shared_with(m, il, windowed);
    layer->v_in_k = m->latent > 0;
    if (!m->no_rope_every || (il + 1) % m->no_rope_every) layer->rope_dims = m->rope_dims ? m->rope_dims : head;
}

/* ---- declarations --------------------------------------------------------------------------------------------------------- */

static const char *key_name(const gen *g, const char *key, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s.%s", g->m->arch, key);
    return buffer;
}

void gen_u32(gen *g, const char *key, uint32_t value)
{
    char name[128];
    gguf_set_val_u32(g->meta, key_name(g, key, name, sizeof name), value);
}

void gen_f32(gen *g, const char *key, float value)
{
    char name[128];
    gguf_set_val_f32(g->meta, key_name(g, key, name, sizeof name), value);
}

static void declare(gen *g, int32_t il, const char *name, struct ggml_tensor *t, gen_tensor fill)
{
    if (il < 0)
        ggml_set_name(t, name);
    else
        ggml_format_name(t, "blk.%d.%s", (int)il, name);
    gguf_add_tensor(g->meta, t);
    GGML_ASSERT(g->n < GEN_TENSORS_MAX);
    g->tensors[g->n++] = fill;
}

void gen_vector(gen *g, int32_t il, const char *name, int64_t n, gen_fill fill, float mean, float sd)
{
    declare(g, il, name, ggml_new_tensor_1d(g->shapes, GGML_TYPE_F32, n), (gen_tensor){fill, mean, sd});
}

void gen_matrix(gen *g, int32_t il, const char *name, int64_t in, int64_t out, float gain)
{
    enum ggml_type type = in % ggml_blck_size(g->weights) ? GGML_TYPE_F32 : g->weights;
    declare(g, il, name, ggml_new_tensor_2d(g->shapes, type, in, out), (gen_tensor){GEN_NORMAL, 0, gain / sqrtf((float)in)});
}

void gen_table(gen *g, int32_t il, const char *name, int64_t n0, int64_t n1, int64_t n2, gen_fill fill, float mean, float sd)
{
    struct ggml_tensor *t =
        n2 ? ggml_new_tensor_3d(g->shapes, GGML_TYPE_F32, n0, n1, n2) : ggml_new_tensor_2d(g->shapes, GGML_TYPE_F32, n0, n1);
    declare(g, il, name, t, (gen_tensor){fill, mean, sd});
}

/* ---- weights -------------------------------------------------------------------------------------------------------------- */

/* FNV-1a, so that a tensor's weights depend on its name and not on its place in the file. */
static uint64_t seed_of(const char *model, const char *tensor)
{
    uint64_t h = 14695981039346656037u;
    const char *parts[] = {model, "/", tensor};
    for (int i = 0; i < 3; i++)
        for (const char *c = parts[i]; *c; c++) h = (h ^ (uint8_t)*c) * 1099511628211u;
    return h;
}

/* SplitMix64 */
static uint64_t next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Sum of four uniform 16-bit numbers, mean 0 and variance 1: near enough to normal, and exact. */
static float noise(uint64_t *state)
{
    uint64_t r = next(state);
    int32_t sum = (int32_t)((r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48)) - 2 * 65535;
    return (float)sum * (1.0f / 37837.2f); /* sqrt(4 * 65536^2 / 12) */
}

static float value_at(const gen_tensor *t, int64_t i, int64_t n, uint64_t *state)
{
    switch (t->fill) {
    case GEN_SMOOTH: return 1.0f + (t->mean - 1.0f) * (float)i / (float)(n - 1);
    case GEN_QUARTER: return i < n / 4 ? 1.0f : 1e30f;
    case GEN_NEGATIVE: return -fabsf(t->mean + t->sd * noise(state));
    case GEN_STRONG: return (i % 16 == 5 ? 12.0f : 1.0f) * (t->mean + t->sd * noise(state));
    case GEN_NORMAL:
    default: return t->mean + t->sd * noise(state);
    }
}

static int write_tensor(const gen *g, gguf_out *out, int32_t i, float *row, void *packed)
{
    const struct ggml_tensor *t = ggml_get_tensor(g->shapes, gguf_get_tensor_name(g->meta, i));
    uint64_t state = seed_of(g->m->name, t->name);
    for (int64_t r = 0; r < ggml_nrows(t); r++) {
        for (int64_t c = 0; c < t->ne[0]; c++) row[c] = value_at(&g->tensors[i], c, t->ne[0], &state);
        const void *bytes = row;
        if (t->type != GGML_TYPE_F32) {
            ggml_quantize_chunk(t->type, row, packed, 0, 1, t->ne[0], NULL);
            bytes = packed;
        }
        if (gguf_out_write(out, bytes, ggml_row_size(t->type, t->ne[0]))) return -1;
    }
    return gguf_out_pad(out);
}

static int64_t longest_row(const gen *g)
{
    int64_t longest = 0;
    for (int32_t i = 0; i < g->n; i++) {
        int64_t n = gguf_get_tensor_ne(g->meta, i)[0];
        longest = n > longest ? n : longest;
    }
    return longest;
}

static int write_file(const gen *g, const char *path, char *error, size_t error_size)
{
    gguf_out out;
    size_t row_bytes = (size_t)longest_row(g) * sizeof(float);
    float *row = malloc(row_bytes);
    void *packed = malloc(row_bytes);
    int rc = row && packed ? gguf_out_open(&out, path, g->meta) : -1;
    if (!row || !packed) {
        snprintf(error, error_size, "not enough memory for a row of %zu bytes", row_bytes);
    } else {
        for (int32_t i = 0; !rc && i < g->n; i++) rc = write_tensor(g, &out, i, row, packed);
        rc = rc ? rc : gguf_out_close(&out);
        if (rc) {
            snprintf(error, error_size, "%s", out.error);
            gguf_out_abort(&out);
        }
    }
    free(row);
    free(packed);
    return rc;
}

int gen_model_write(const gen_model *m, enum ggml_type weights, const char *path, char *error, size_t error_size)
{
    gen *g = calloc(1, sizeof *g);
    if (!g) {
        snprintf(error, error_size, "not enough memory to describe %s", m->name);
        return -1;
    }
    struct ggml_init_params p = {.mem_size = GEN_TENSORS_MAX * ggml_tensor_overhead(), .no_alloc = true};
    g->m = m;
    g->weights = weights;
    g->shapes = ggml_init(p);
    g->meta = gguf_init_empty();
    gen_declare(g);
    int rc = write_file(g, path, error, error_size);
    gguf_free(g->meta);
    ggml_free(g->shapes);
    free(g);
    return rc;
}
