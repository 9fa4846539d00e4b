/* SPDX-License-Identifier: MIT */
#include "self_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int sw_q_heads(int layer)
{
    return layer == 2 ? 2 : 4;
}

static double gauss(uint64_t key)
{
    uint64_t h = ts_mix(key);
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += (double)(h >> (16 * i) & 0xFFFF) / 65536.0;
    return (sum - 2.0) * 1.7320508;
}

static uint64_t place(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    return ts_mix(ts_mix(ts_mix(ts_mix(a) + b) + c) + d);
}

/* Channels of unlike size in keys and queries: every 8th key channel is large, every 8th query channel small. */
static void fill_head(const sw_options *o, const oracle_rope *r, int text, int layer, int row, int head, float *q, float *k,
                      float *v)
{
    double x[1024], mean = o->mean != 0 ? o->mean : 3;
    const uint64_t own = place(91, (uint64_t)layer, (uint64_t)head, 0),
                   here = place((uint64_t)text, (uint64_t)layer, (uint64_t)row, (uint64_t)head);
    for (int c = 0; c < o->dim && k; c++)
        x[c] = (mean * gauss(own + (uint64_t)c) + gauss(here + (uint64_t)c)) * (c % 8 == 3 ? 4 : 1);
    if (k && !o->not_rotated) oracle_turn(r, o->dim, x, o->start + row, x);
    for (int c = 0; c < o->dim && k; c++) k[c] = ts_round((float)x[c]);
    for (int c = 0; c < SW_V_DIM && v; c++) v[c] = ts_round((float)gauss(here + 5000 + (uint64_t)c));
    for (int c = 0; c < o->dim && q; c++)
        q[c] = ts_round((float)(gauss(here + 9000 + (uint64_t)c) * (c % 8 == 3 ? 0.125 : 1) * (1 + 0.5 * layer)));
}

static void frequencies(double *freq, int rope_dims, double base)
{
    for (int i = 0; i < rope_dims / 2; i++) freq[i] = pow(base, -2.0 * i / rope_dims);
}

static void fill_text(sw_world *w, const sw_options *o, int text)
{
    double freq[64];
    const oracle_rope true_turns = {o->rope_dims, o->neox != o->exchanged, freq};
    frequencies(freq, o->rope_dims, o->base > 0 ? o->base : 10000);
    for (int l = 0; l < SW_LAYERS; l++) {
        const size_t qh = (size_t)sw_q_heads(l), dim = (size_t)w->dim;
        sw_text *t = &w->text[text];
        t->q[l] = malloc(SW_ROWS * qh * dim * sizeof(float));
        t->k[l] = malloc(SW_ROWS * SW_KV * dim * sizeof(float));
        t->v[l] = malloc(SW_ROWS * SW_KV * SW_V_DIM * sizeof(float));
        for (size_t i = 0; i < SW_ROWS; i++) {
            for (size_t h = 0; h < qh; h++)
                fill_head(o, &true_turns, text, l, (int)i, (int)h, t->q[l] + (i * qh + h) * dim, NULL, NULL);
            for (size_t h = 0; h < SW_KV; h++)
                fill_head(o, &true_turns, text, l == 2 ? 0 : l, (int)i, (int)h, NULL, t->k[l] + (i * SW_KV + h) * dim,
                          t->v[l] + (i * SW_KV + h) * SW_V_DIM);
        }
    }
}

static void count_warning(void *user, kvf_log_level level, const char *text)
{
    sw_world *w = user;
    w->warnings += level == KVF_LOG_WARN && strstr(text, "RoPE") != NULL;
}

void sw_open(sw_world *w, const sw_options *o)
{
    memset(w, 0, sizeof *w);
    w->dim = o->dim, w->start = o->start;
    frequencies(w->freq, o->rope_dims, 10000);
    w->told = (oracle_rope){o->rope_dims, o->neox, w->freq};
    kvf_params_init(&w->params);
    w->params.n_layers = SW_LAYERS, w->params.layers = w->layers, w->params.max_sequences = 4, w->params.cpu = ts_cpu;
    w->params.k = o->k ? o->k : "uni4", w->params.v = "uni4";
    w->params.max_batch = SW_ROWS, w->params.log = count_warning, w->params.log_user = w;
    w->params.error = w->error, w->params.error_size = sizeof w->error;
    for (int l = 0; l < SW_LAYERS; l++) {
        kvf_layer_init(&w->layers[l]);
        w->layers[l].q_heads = sw_q_heads(l), w->layers[l].kv_heads = SW_KV;
        w->layers[l].k_dim = o->dim, w->layers[l].v_dim = SW_V_DIM;
        w->layers[l].rope_dims = o->rope_dims, w->layers[l].rope_style = o->neox ? KVF_ROPE_NEOX : KVF_ROPE_NORM;
        w->layers[l].rope_freq = o->rope_dims ? w->freq : NULL;
        if (l == 2) w->layers[l].share = 0;
    }
    for (int t = 0; t < SW_TEXTS; t++) fill_text(w, o, t);
}

void sw_close(sw_world *w)
{
    for (int t = 0; t < SW_TEXTS; t++)
        for (int l = 0; l < SW_LAYERS; l++) free(w->text[t].q[l]), free(w->text[t].k[l]), free(w->text[t].v[l]);
}

kvf_cache *sw_create(sw_world *w)
{
    kvf_cache *c = NULL;
    if (kvf_cache_create(&c, &w->params)) fail_msg("kvf_cache_create: %s", w->error);
    return c;
}

const float *sw_key(const sw_world *w, int text, int layer, int row, int head)
{
    return w->text[text].k[layer] + ((size_t)row * SW_KV + (size_t)head) * (size_t)w->dim;
}

const float *sw_value(const sw_world *w, int text, int layer, int row, int head)
{
    return w->text[text].v[layer] + ((size_t)row * SW_KV + (size_t)head) * SW_V_DIM;
}

const float *sw_query(const sw_world *w, int text, int layer, int row, int head)
{
    return w->text[text].q[layer] + ((size_t)row * (size_t)sw_q_heads(layer) + (size_t)head) * (size_t)w->dim;
}

/* Rows of all runs, taking turns: row 0 of each, row 1 of each, ... */
static int list_rows(const sw_world *w, const sw_rows *runs, int n, kvf_token *tokens, int *text, int *row)
{
    int total = 0, longest = 0;
    for (int i = 0; i < n; i++) longest = runs[i].to - runs[i].from > longest ? runs[i].to - runs[i].from : longest;
    for (int j = 0; j < longest; j++)
        for (int i = 0; i < n; i++)
            if (runs[i].from + j < runs[i].to) {
                text[total] = runs[i].text, row[total] = runs[i].from + j;
                tokens[total++] = (kvf_token){runs[i].seq, w->start + runs[i].from + j};
            }
    return total;
}

static float *gather(const int *text, const int *row, int n, float *const *from, size_t width)
{
    float *all = malloc((size_t)n * width * sizeof *all);
    for (int i = 0; i < n; i++) memcpy(all + (size_t)i * width, from[text[i]] + (size_t)row[i] * width, width * sizeof *all);
    return all;
}

static kvf_view view_of(const float *data, int heads, int dim)
{
    return (kvf_view){data, KVF_F32, 0, (int64_t)heads * dim * 4, (int64_t)dim * 4};
}

static void must(kvf_cache *c, int code)
{
    if (code) fail_msg("%d, %s", code, kvf_cache_error(c));
}

static void one_layer(const sw_world *w, kvf_cache *c, int l, const int *text, const int *row, int n, int flags, float *out,
                      float **keep)
{
    float *from[3][SW_TEXTS];
    for (int t = 0; t < SW_TEXTS; t++) from[0][t] = w->text[t].q[l], from[1][t] = w->text[t].k[l], from[2][t] = w->text[t].v[l];
    float *q = gather(text, row, n, from[0], (size_t)(sw_q_heads(l) * w->dim));
    float *k = keep[0] = gather(text, row, n, from[1], (size_t)(SW_KV * w->dim));
    float *v = keep[1] = gather(text, row, n, from[2], SW_KV * SW_V_DIM);
    kvf_attention a;
    kvf_attention_init(&a);
    a.layer = l, a.q = view_of(q, sw_q_heads(l), w->dim), a.k = view_of(k, SW_KV, w->dim), a.v = view_of(v, SW_KV, SW_V_DIM);
    a.scale = 0.25f / sqrtf((float)w->dim), a.out = out;
    a.out_head_stride = 4 * SW_V_DIM, a.out_token_stride = a.out_head_stride * sw_q_heads(l);
    for (int times = flags & SW_ATTEND ? 1 + (flags & SW_TWICE) / SW_TWICE : 0; times--;) must(c, kvf_attend(c, &a));
    if (l != 2) must(c, kvf_batch_append(c, l, &a.k, &a.v, NULL));
    free(q);
}

void sw_batch(const sw_world *w, kvf_cache *c, const sw_rows *runs, int n, int flags, float *out)
{
    kvf_token tokens[SW_ROWS];
    int text[SW_ROWS], row[SW_ROWS];
    float *keep[2 * SW_LAYERS], *all = malloc((size_t)SW_ROWS * SW_PROBE * sizeof *all);
    int total = list_rows(w, runs, n, tokens, text, row);
    size_t at = 0;
    must(c, kvf_batch_begin(c, tokens, total));
    for (int l = 0; l < SW_LAYERS; l++) {
        one_layer(w, c, l, text, row, total, flags, all + at, keep + 2 * l);
        at += (size_t)(total * sw_q_heads(l)) * SW_V_DIM;
    }
    must(c, flags & SW_ABORT ? kvf_batch_abort(c) : kvf_batch_commit(c));
    if (out) memcpy(out, all, at * sizeof *out);
    for (int i = 0; i < 2 * SW_LAYERS; i++) free(keep[i]);
    free(all);
}

void sw_feed(const sw_world *w, kvf_cache *c, int seq, int text, int from, int to, int chunk)
{
    for (int i = from; i < to; i += chunk)
        sw_batch(w, c, &(sw_rows){seq, text, i, i + chunk < to ? i + chunk : to}, 1, SW_ATTEND, NULL);
}

void sw_probe(const sw_world *w, kvf_cache *c, int seq, int text, int row, float out[SW_PROBE])
{
    sw_batch(w, c, &(sw_rows){seq, text, row, row + 1}, 1, SW_ATTEND | SW_ABORT, out);
}
