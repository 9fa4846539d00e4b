/* SPDX-License-Identifier: MIT
 * Writing a calibration file (docs/calibration.md). The checksum is the first key; it covers everything but its own digits, so the bytes
 * are made in memory first. */
#include "calibrate.h"

#include <ggml.h>
#include <gguf.h>

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define KEY "kvfold.calibration."
#define NO_SUM "................"

/* A GGUF being made: tensors carry names and shapes in `shapes`, their data in the order of adding. */
typedef struct writer {
    struct gguf_context *g;
    struct ggml_context *shapes;
    const float **data;
    int64_t n;
} writer;

static void add(writer *w, int32_t il, const char *what, const float *x, int64_t ne0, int64_t ne1, int64_t ne2)
{
    if (!x) return;
    struct ggml_tensor *t = ggml_new_tensor_3d(w->shapes, GGML_TYPE_F32, ne0, ne1, ne2);
    ggml_format_name(t, "blk.%d.%s", il, what);
    gguf_add_tensor(w->g, t);
    w->data[w->n++] = x;
}

static void add_layer(writer *w, int32_t il, const kvf_llama_layer_t *s, const calibrate_result *r, const calibrate_books *books,
                      const tune_losses *losses)
{
    const kvf_learnt *l = &r->learnt;
    char name[64];
    add(w, il, "k_mean", l->turns ? l->k_mean : NULL, s->k_dim, s->kv_heads, 1);
    add(w, il, "k_rms", l->k_rms, s->k_dim, s->kv_heads, 1);
    add(w, il, "q_rms", l->q_rms, s->k_dim, s->kv_heads, 1);
    add(w, il, "k_lambda", l->k_lambda, s->k_dim, s->kv_heads, 1);
    add(w, il, "k_max", l->k_max, s->k_dim, s->kv_heads, 1);
    add(w, il, "q_direction", l->q_direction, s->k_dim, s->kv_heads, 1);
    add(w, il, "q_moment", l->q_moment, s->k_dim, s->k_dim, s->kv_heads);
    add(w, il, "q_one_sided", l->one_sided, s->kv_heads, 1, 1);
    for (int i = 0; i < CALIBRATE_SCORES_N; i++) {
        snprintf(name, sizeof name, "rank.%s", calibrate_score_name[i]);
        add(w, il, name, r->rank[i], s->kv_heads, 1, 1);
    }
    add(w, il, "sensitivity", losses ? losses->loss + 2 * il : NULL, 2, 1, 1);
    for (int i = 0; i < books->n; i++) {
        const kvf_codebook *b = &books->book[i];
        snprintf(name, sizeof name, "codebook.%c.%dx%d%s", b->side == KVF_K ? 'k' : 'v', b->sub, b->bits, b->heads ? "" : "h");
        add(w, il, name, r->book[i], b->sub, (int64_t)1 << b->bits, b->heads ? b->heads : s->kv_heads);
    }
}

static void add_shapes(struct gguf_context *g, const calibrate_collection *c)
{
    int32_t *n = cli_alloc((size_t)c->n_layers, sizeof *n);
    static const char *const key[] = {KEY "kv_heads", KEY "k_dim", KEY "v_dim"};
    for (int i = 0; i < 3; i++) {
        for (int32_t il = 0; il < c->n_layers; il++) {
            const calibrate_layer *l = &c->layer[il];
            n[il] = !l->k ? 0 : i == 0 ? l->info.kv_heads : i == 1 ? l->info.k_dim : l->info.v_dim;
        }
        gguf_set_arr_data(g, key[i], GGUF_TYPE_INT32, n, (size_t)c->n_layers);
    }
    free(n);
}

static void add_keys(struct gguf_context *g, const calibrate_collection *c, const calibrate_about *a)
{
    gguf_set_val_str(g, KEY "checksum", NO_SUM);
    gguf_set_val_str(g, "general.architecture", "kvfold-calibration");
    gguf_set_val_str(g, KEY "model.architecture", a->architecture);
    gguf_set_val_u64(g, KEY "model.hash", a->model_hash);
    gguf_set_val_u64(g, KEY "layers", (uint64_t)c->n_layers);
    gguf_set_val_u64(g, KEY "text.hash", a->text_hash);
    gguf_set_val_u64(g, KEY "tokens", (uint64_t)a->tokens);
    gguf_set_val_u64(g, KEY "positions", (uint64_t)a->positions);
    gguf_set_val_u64(g, KEY "context", (uint64_t)a->context);
    gguf_set_val_u64(g, KEY "seed", a->seed);
    if (a->losses) gguf_set_val_str(g, KEY "sensitivity.codec", a->losses->codec);
    if (a->losses) gguf_set_val_u64(g, KEY "sensitivity.context", (uint64_t)a->losses->context);
    gguf_set_val_str(g, KEY "kvfold", kvf_version());
    gguf_set_val_str(g, KEY "libllama", llama_version());
    add_shapes(g, c);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------------------- */

static char *to_bytes(const writer *w, size_t *size)
{
    const size_t meta = gguf_get_meta_size(w->g), align = gguf_get_alignment(w->g);
    size_t at = meta;
    for (int64_t i = 0; i < w->n; i++) at += (gguf_get_tensor_size(w->g, i) + align - 1) / align * align;
    char *bytes = cli_alloc(at, 1);
    gguf_get_meta_data(w->g, bytes);
    at = meta;
    for (int64_t i = 0; i < w->n; i++) {
        memcpy(bytes + at, w->data[i], gguf_get_tensor_size(w->g, i));
        at += (gguf_get_tensor_size(w->g, i) + align - 1) / align * align;
    }
    *size = at;
    return bytes;
}

/* Behind magic, version and counts (24 bytes), length and name of the first key, its type and the length of its value. */
static void put_sum(char *bytes, size_t size)
{
    const size_t at = 24 + 8 + strlen(KEY "checksum") + 4 + 8, n = strlen(NO_SUM);
    char digits[17];
    XXH64_state_t state;
    XXH64_reset(&state, 0);
    XXH64_update(&state, bytes, at);
    XXH64_update(&state, bytes + at + n, size - at - n);
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)XXH64_digest(&state));
    memcpy(bytes + at, digits, n);
}

int calibrate_write(const char *path, const calibrate_collection *c, const calibrate_result *result, const calibrate_books *books,
                    const calibrate_about *about)
{
    const size_t tensors = (size_t)c->n_layers * (9 + CALIBRATE_SCORES_N + (size_t)books->n);
    const struct ggml_init_params params = {.mem_size = (tensors + 1) * ggml_tensor_overhead(), .no_alloc = true};
    writer w = {.g = gguf_init_empty(), .shapes = ggml_init(params), .data = cli_alloc(tensors + 1, sizeof *w.data)};
    size_t size;
    if (!w.g || !w.shapes) {
        cli_error("out of memory");
        return CLI_CANNOT;
    }
    add_keys(w.g, c, about);
    for (int32_t il = 0; il < c->n_layers; il++)
        if (result[il].arrays) add_layer(&w, il, &c->layer[il].info, &result[il], books, about->losses);
    char *bytes = to_bytes(&w, &size);
    put_sum(bytes, size);
    int code = cli_save(path, bytes, size);
    free(bytes), free((void *)w.data);
    gguf_free(w.g);
    ggml_free(w.shapes);
    return code;
}
