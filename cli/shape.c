/* SPDX-License-Identifier: MIT */
#include "shape.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_LAYERS = 512, /* of libllama, which aborts on more */
    MOST_HEADS = 4096,
    HOST_CELLS = 256, /* what libllama pads a context to */
    HOST_BATCH = 255, /* rows of a batch, which a window cache holds beside the window */
};

/* ---- windows --------------------------------------------------------------------------------------------------------------- */

typedef struct window_rule {
    const char *arch;
    int32_t period, first, window;
} window_rule;

static const window_rule window_rules[] = {
#define WINDOWS(arch, period, first, window) {arch, period, first, window},
#include "windows.def"
#undef WINDOWS
};

static window_rule rule_of(const model_file *m)
{
    window_rule none = {NULL, 1, 0, 0}; /* period 1: every layer attends to everything */
    for (size_t i = 0; i < sizeof window_rules / sizeof window_rules[0]; i++) {
        if (strcmp(window_rules[i].arch, m->arch) == 0) return window_rules[i];
    }
    return none;
}

static bool windowed_by_period(int64_t period, int32_t first, int32_t il)
{
    if (period <= 0) return true;
    return first ? il % period != 0 : il % period < period - 1;
}

static void read_windows(shape *s, const model_file *m)
{
    static const char pattern[] = "attention.sliding_window_pattern";
    window_rule rule = rule_of(m);
    int64_t window = rule.window, period = rule.period, k_dim = 0, v_dim = 0;
    model_file_int(m, "attention.sliding_window", &window);
    if (window <= 0 || window > INT32_MAX) return;
    bool array = model_file_is_array(m, pattern);
    if (!array) model_file_int(m, pattern, &period);
    model_file_int(m, "attention.key_length_swa", &k_dim);
    model_file_int(m, "attention.value_length_swa", &v_dim);
    for (int32_t il = 0; il < s->n_layers; il++) {
        int64_t flag = 0;
        bool windowed = array ? model_file_int_at(m, pattern, il, &flag) && flag : windowed_by_period(period, rule.first, il);
        if (!windowed || !s->layer[il].attention) continue;
        s->layer[il].window = (int32_t)window;
        s->layer[il].k_dim = k_dim > 0 ? (int32_t)k_dim : s->layer[il].k_dim;
        s->layer[il].v_dim = v_dim > 0 ? (int32_t)v_dim : s->layer[il].v_dim;
    }
}

/* ---- layers ---------------------------------------------------------------------------------------------------------------- */

/* Mixed models: does this layer attend, or is it recurrent? */
static bool attends(const model_file *m, int32_t il, int64_t kv_heads)
{
    int64_t recurrent = 0, interval = 0;
    if (kv_heads <= 0) return false;
    if (model_file_int_at(m, "attention.recurrent_layers", il, &recurrent)) return recurrent == 0;
    if (model_file_int(m, "full_attention_interval", &interval) && interval > 0) return (il + 1) % interval == 0;
    return true;
}

static int bad(const model_file *m, const char *key, int64_t value)
{
    cli_error("'%s' is damaged: %s.%s is %lld", m->path, m->arch, key, (long long)value);
    return CLI_DAMAGED;
}

/* A number for all layers or one for each; absent: *value stays. An array that is too short makes it impossible. */
static void of_layer(const model_file *m, const char *key, int32_t il, int64_t *value)
{
    if (!model_file_int_at(m, key, il, value) && model_file_is_array(m, key)) *value = -1;
}

static int read_layer(shape_layer *l, const model_file *m, int32_t il)
{
    int64_t heads = 0, kv_heads, embedding = 0, k_dim = 0, v_dim = 0, k_mla = 0, v_mla = 0, rope = 0;
    of_layer(m, "attention.head_count", il, &heads);
    kv_heads = heads;
    of_layer(m, "attention.head_count_kv", il, &kv_heads);
    if (heads < 0 || heads > MOST_HEADS) return bad(m, "attention.head_count", heads);
    if (kv_heads < 0 || kv_heads > MOST_HEADS) return bad(m, "attention.head_count_kv", kv_heads);
    l->share = -1;
    l->attention = heads > 0 && attends(m, il, kv_heads);
    if (!l->attention) return CLI_GO;
    model_file_int(m, "embedding_length", &embedding);
    k_dim = v_dim = embedding / heads;
    model_file_int(m, "attention.key_length", &k_dim);
    model_file_int(m, "attention.value_length", &v_dim);
    if (k_dim < 1 || k_dim > 65536) return bad(m, "attention.key_length", k_dim);
    if (v_dim < 1 || v_dim > 65536) return bad(m, "attention.value_length", v_dim);
    if (heads % kv_heads != 0) return bad(m, "attention.head_count_kv", kv_heads);
    model_file_int(m, "attention.key_length_mla", &k_mla);
    model_file_int(m, "attention.value_length_mla", &v_mla);
    l->q_heads = (int32_t)heads;
    l->kv_heads = (int32_t)kv_heads;
    l->k_dim = (int32_t)k_dim;
    l->v_dim = (int32_t)v_dim;
    l->v_in_k = k_mla > 0 && v_mla > 0;
    model_file_int(m, "rope.dimension_count", &rope);
    l->rope_dims = rope > 0 && rope <= k_dim ? (int32_t)(rope & ~(int64_t)1) : (int32_t)(k_dim & ~(int64_t)1);
    return CLI_GO;
}

/* The last layers of some models read the K/V of the last layer of their kind that owns any. */
static void read_sharing(shape *s, const model_file *m)
{
    int64_t n = 0;
    if (!model_file_int(m, "attention.shared_kv_layers", &n) || n <= 0 || n > s->n_layers - 2) return;
    int32_t own = s->n_layers - (int32_t)n;
    for (int32_t il = own; il < s->n_layers; il++) s->layer[il].share = own - (s->layer[il].window > 0 ? 2 : 1);
}

static void read_refusals(shape *s, const model_file *m)
{
    int64_t value = 0;
    if (model_file_int_at(m, "attention.indexer.head_count", 0, &value) && value > 0)
        snprintf(s->refused, sizeof s->refused, "architecture %s uses sparse attention with an indexer cache", m->arch);
    else if (model_file_int(m, "attention.causal", &value) && value == 0)
        snprintf(s->refused, sizeof s->refused, "architecture %s is an encoder", m->arch);
    else if (s->n_attention == 0)
        snprintf(s->refused, sizeof s->refused, "architecture %s has no attention layers", m->arch);
}

int shape_read(shape *s, const model_file *m)
{
    *s = (shape){0};
    int64_t blocks = 0, prediction = 0;
    if (strcmp(m->arch, "kvfold-calibration") == 0) {
        cli_error("'%s' is a calibration, no model: give it with --calibration", m->path);
        return CLI_CANNOT;
    }
    if (!model_file_int(m, "block_count", &blocks) || blocks < 1 || blocks > MOST_LAYERS) return bad(m, "block_count", blocks);
    model_file_int(m, "nextn_predict_layers", &prediction);
    if (prediction < 0 || prediction >= blocks) return bad(m, "nextn_predict_layers", prediction);
    model_file_int(m, "context_length", &s->context);
    s->n_layers = (int32_t)(blocks - prediction);
    s->layer = cli_alloc((size_t)s->n_layers, sizeof *s->layer);
    for (int32_t il = 0; il < s->n_layers; il++) {
        int code = read_layer(&s->layer[il], m, il);
        if (code != CLI_GO) {
            shape_free(s);
            return code;
        }
        s->n_attention += s->layer[il].attention;
    }
    read_windows(s, m);
    read_sharing(s, m);
    read_refusals(s, m);
    return CLI_GO;
}

void shape_free(shape *s)
{
    free(s->layer);
    s->layer = NULL;
}

/* ---- sizes ----------------------------------------------------------------------------------------------------------------- */

static const double no_turn[512];

void shape_params(const shape *s, const kv_choice *kv, kvf_params *p, kvf_layer **layers, char *error, size_t error_size)
{
    int32_t n = 0;
    int32_t *index = cli_alloc((size_t)s->n_layers, sizeof *index); /* of a model's layer in the cache */
    kvf_layer *list = cli_alloc((size_t)s->n_attention, sizeof *list);
    for (int32_t il = 0; il < s->n_layers; il++) {
        const shape_layer *l = &s->layer[il];
        if (!l->attention) continue;
        kvf_layer *to = &list[index[il] = n++];
        kvf_layer_init(to);
        to->q_heads = l->q_heads;
        to->kv_heads = l->kv_heads;
        to->k_dim = l->k_dim;
        to->v_dim = l->v_dim;
        to->window = l->window;
        to->v_in_k = l->v_in_k;
        to->share = l->share < 0 ? -1 : index[l->share];
        to->rope_dims = l->rope_dims; /* sizes do not depend on how fast they turn */
        to->rope_freq = no_turn;
        kv_choice_of_layer(kv, il, &to->k, &to->v);
        if (l->v_in_k && kv->by_default && !to->k) to->k = "q8_0"; /* as the adapter does */
    }
    free(index);
    kvf_params_init(p);
    p->n_layers = n;
    p->layers = *layers = list;
    p->k = kv->k;
    p->v = kv->v;
    p->sink = kv->sink;
    p->recent = kv->recent;
    p->exact_bits = kv->exact_bits;
    p->evict = kv->evict;
    p->cpu = kv->cpu;
    p->error = error;
    p->error_size = error_size;
    if (error_size > 0) error[0] = '\0';
}

kvf_calibrated_layer *shape_known(const shape *s, const kvf_llama_calibration *known, kvf_calibration *all, kvf_params *p)
{
    kvf_calibrated_layer *layers = cli_alloc((size_t)s->n_attention, sizeof *layers);
    int32_t n = 0;
    for (int32_t il = 0; il < s->n_layers; il++) {
        if (!s->layer[il].attention) continue;
        const kvf_calibrated_layer *of = s->layer[il].share < 0 ? kvf_llama_calibration_layer(known, il) : NULL;
        layers[n++] = of ? *of : (kvf_calibrated_layer){.size = sizeof *layers};
    }
    *all = (kvf_calibration){.size = sizeof *all, .n_layers = n, .layers = layers};
    p->calibration = known ? all : NULL;
    return layers;
}

static int64_t padded(int64_t n)
{
    return (n + HOST_CELLS - 1) / HOST_CELLS * HOST_CELLS;
}

/* Bytes of f16 rows when layers hold `full` cells; windowed layers need no more than window and batch. */
static int64_t f16_rows(const shape *s, int64_t full, int64_t batch)
{
    int64_t bytes = 0;
    for (int32_t il = 0; il < s->n_layers; il++) {
        const shape_layer *l = &s->layer[il];
        if (!l->attention || l->share >= 0) continue;
        int64_t limit = padded(l->window + batch);
        int64_t cells = l->window > 0 && limit < full ? limit : full;
        bytes += cells * l->kv_heads * (l->k_dim + (l->v_in_k ? 0 : l->v_dim)) * 2;
    }
    return bytes;
}

int64_t shape_f16(const shape *s, int64_t context)
{
    return f16_rows(s, padded(context), HOST_BATCH);
}

int64_t shape_host(const shape *s)
{
    return f16_rows(s, HOST_CELLS, HOST_BATCH);
}
