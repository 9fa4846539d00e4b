/* SPDX-License-Identifier: MIT */
#include "oracle_attention.h"

#include "kvfold_calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 64
#define SEQUENCES 8
#define LAYERS 8

/* One row of one sequence. `exact` and `seen` are [layer][side][head][channel], at offsets fixed by the oracle. */
typedef struct row {
    int pos, slot, alive, coded;
    uint64_t dropped[LAYERS]; /* bit h: head h has dropped it */
    float *exact, *seen;
} row;

typedef struct list {
    row *rows;
    int n, room, next_slot, sealed, pos_max;
} list;

struct oracle {
    const kvf_params *p;
    list seq[SEQUENCES];
    size_t at[LAYERS][2]; /* offset of a layer's K and V in a row's values */
    size_t values;
    int budget, by_length, sink, recent; /* of the policy; budget 0: none */
};

static void *get(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) abort();
    return p;
}

static int owner(const oracle *o, int layer)
{
    return o->p->layers[layer].share < 0 ? layer : o->p->layers[layer].share;
}

oracle *oracle_new(const kvf_params *p)
{
    oracle *o = get(sizeof *o);
    o->p = p;
    for (int i = 0; i < p->n_layers; i++) {
        const kvf_layer *l = &p->layers[i];
        if (l->share >= 0) continue;
        o->at[i][0] = o->values;
        o->values += (size_t)(l->kv_heads * l->k_dim);
        o->at[i][1] = o->values;
        if (!l->v_in_k) o->values += (size_t)(l->kv_heads * l->v_dim);
    }
    for (int s = 0; s < SEQUENCES; s++) o->seq[s].pos_max = -1;
    return o;
}

static void clear(list *l)
{
    for (int i = 0; i < l->n; i++) {
        free(l->rows[i].exact);
        free(l->rows[i].seen);
    }
    free(l->rows);
    *l = (list){.pos_max = -1};
}

void oracle_free(oracle *o)
{
    for (int s = 0; s < SEQUENCES; s++) clear(&o->seq[s]);
    free(o);
}

/* Nearest f16, ties to even, by searching the exponent. */
static float half(float x)
{
    double m = fabs((double)x), unit = ldexp(1, -24);
    if (m > 65504) m = 65504;
    while (m >= 2048 * unit) unit *= 2;
    double n = floor(m / unit), rest = m / unit - n;
    if (rest > 0.5 || (rest == 0.5 && fmod(n, 2) == 1)) n++;
    return (float)copysign(n * unit, (double)x);
}

static row *push(list *l)
{
    if (l->n == l->room) {
        l->room = l->room ? 2 * l->room : 128;
        l->rows = realloc(l->rows, (size_t)l->room * sizeof *l->rows);
        if (!l->rows) abort();
    }
    memset(&l->rows[l->n], 0, sizeof *l->rows);
    return &l->rows[l->n++];
}

/* A head's channels as sink and window keep them in q8_0: seen so while they are there, coded from what that is in f16. */
static void keep_in_8_bits(row *r, size_t base, int dim)
{
    for (int first = 0; first < dim; first += 32) {
        int n = dim - first < 32 ? dim - first : 32;
        float peak = 0, *x = r->exact + base + first, *y = r->seen + base + first;
        for (int c = 0; c < n; c++) peak = fmaxf(peak, fabsf(x[c]));
        float step = peak / 127.0f, inverse = step > 0 ? 1.0f / step : 0;
        for (int c = 0; c < n; c++) {
            y[c] = roundf(x[c] * inverse) * half(step);
            x[c] = half(y[c]);
        }
    }
}

void oracle_append(oracle *o, int seq, int pos, const float *const *k, const float *const *v)
{
    list *l = &o->seq[seq];
    row *r = push(l);
    r->pos = l->pos_max = pos;
    r->alive = 1;
    r->slot = l->next_slot++;
    r->exact = get(o->values * sizeof(float));
    r->seen = get(o->values * sizeof(float));
    for (int i = 0; i < o->p->n_layers; i++) {
        const kvf_layer *layer = &o->p->layers[i];
        if (layer->share >= 0) continue;
        for (int c = 0; c < layer->kv_heads * layer->k_dim; c++) r->exact[o->at[i][0] + (size_t)c] = half(k[i][c]);
        for (int c = 0; !layer->v_in_k && c < layer->kv_heads * layer->v_dim; c++)
            r->exact[o->at[i][1] + (size_t)c] = half(v[i][c]);
    }
    memcpy(r->seen, r->exact, o->values * sizeof(float));
    for (int i = 0; o->p->exact_bits == 8 && i < o->p->n_layers; i++) {
        const kvf_layer *layer = &o->p->layers[i];
        for (int h = 0; layer->share < 0 && h < layer->kv_heads; h++) {
            keep_in_8_bits(r, o->at[i][0] + (size_t)(h * layer->k_dim), layer->k_dim);
            if (!layer->v_in_k) keep_in_8_bits(r, o->at[i][1] + (size_t)(h * layer->v_dim), layer->v_dim);
        }
    }
}

/* One head of a block through its record. base: where the head's channels lie in a row. */
static void code_head(const char *spec, kvf_side side, int dim, const kvf_calibrated_layer *known, int head, row *block[BLOCK],
                      size_t base, int sink)
{
    kvf_spec_info info;
    float *x = get((size_t)(BLOCK * dim) * sizeof(float));
    if (kvf_spec_check(spec, side, dim, &info, NULL, 0) != KVF_OK) abort();
    void *record = aligned_alloc(64, info.block_bytes);
    if (!record) abort();
    for (int t = 0; t < BLOCK; t++) memcpy(x + t * dim, block[t]->exact + base, (size_t)dim * sizeof(float));
    if (kvf_op_encode_calibrated(spec, side, dim, known, head, x, record) != KVF_OK) abort();
    if (kvf_op_decode_calibrated(spec, side, dim, known, head, record, x) != KVF_OK) abort();
    for (int t = 0; t < BLOCK; t++)
        if (block[t]->slot >= sink) memcpy(block[t]->seen + base, x + t * dim, (size_t)dim * sizeof(float));
    free(record);
    free(x);
}

static void code_block(oracle *o, row *block[BLOCK])
{
    for (int i = 0; i < o->p->n_layers; i++) {
        const kvf_layer *l = &o->p->layers[i];
        if (l->share >= 0) continue;
        const kvf_calibrated_layer *known = o->p->calibration ? &o->p->calibration->layers[i] : NULL;
        for (int h = 0; h < l->kv_heads; h++) {
            const size_t k = o->at[i][0] + (size_t)(h * l->k_dim), v = o->at[i][1] + (size_t)(h * l->v_dim);
            code_head(l->k ? l->k : o->p->k, KVF_K, l->k_dim, known, h, block, k, o->p->sink);
            if (!l->v_in_k) code_head(l->v ? l->v : o->p->v, KVF_V, l->v_dim, known, h, block, v, o->p->sink);
        }
    }
    for (int t = 0; t < BLOCK; t++) block[t]->coded = block[t]->slot >= o->p->sink;
}

void oracle_policy(oracle *o, int by_length, int budget, int sink, int recent)
{
    o->budget = budget, o->by_length = by_length, o->sink = sink, o->recent = recent;
}

/* Length of a key, as coarse as f16 is: equal ones are ties. */
static double key_length(const oracle *o, const row *r, int layer, int head)
{
    const kvf_layer *l = &o->p->layers[layer];
    const float *k = r->exact + o->at[layer][0] + (size_t)(head * l->k_dim);
    double sum = 0;
    for (int c = 0; c < l->k_dim; c++) sum += (double)k[c] * (double)k[c];
    return (double)half((float)sqrt(sum / l->k_dim));
}

static void drop(const oracle *o, const list *l, int layer, int head)
{
    const int sealed = BLOCK * (l->sealed + 1); /* rows up to the block that is sealed now */
    const uint64_t bit = (uint64_t)1 << head;
    for (int have = 0;; have = 0) {
        row *worst = NULL;
        for (int i = 0; i < l->n; i++) {
            row *r = &l->rows[i];
            if (r->slot >= sealed + o->p->recent || !r->alive || (r->dropped[layer] & bit)) continue;
            have++; /* with the newest, of which some may have been removed */
            if (r->slot < o->sink || r->slot >= sealed + o->p->recent - o->recent) continue;
            if (!worst || (o->by_length && key_length(o, r, layer, head) > key_length(o, worst, layer, head))) worst = r;
        }
        if (have <= o->budget || !worst) return;
        worst->dropped[layer] |= bit;
    }
}

static void drop_all(const oracle *o, const list *l)
{
    for (int i = 0; o->budget && i < o->p->n_layers; i++)
        for (int h = 0; h < o->p->layers[i].kv_heads; h++)
            if (o->p->layers[i].share < 0 && !o->p->layers[i].window) drop(o, l, i, h);
}

/* Block b is due when the rows up to and including it and R more are present. */
void oracle_seal(oracle *o)
{
    for (int s = 0; s < SEQUENCES; s++) {
        list *l = &o->seq[s];
        while (l->next_slot >= BLOCK * (l->sealed + 1) + o->p->recent) {
            row *block[BLOCK] = {0};
            int found = 0;
            for (int i = 0; i < l->n; i++)
                if (l->rows[i].slot / BLOCK == l->sealed) block[l->rows[i].slot % BLOCK] = &l->rows[i], found++;
            if (found == BLOCK) code_block(o, block);
            drop_all(o, l);
            l->sealed++;
        }
    }
}

void oracle_see(oracle *o, int seq, int pos, int layer, kvf_side side, int head, const float *x)
{
    const kvf_layer *l = &o->p->layers[layer];
    int dim = side == KVF_K ? l->k_dim : l->v_dim;
    for (int i = 0; i < o->seq[seq].n; i++) {
        row *r = &o->seq[seq].rows[i];
        if (r->alive && r->pos == pos)
            memcpy(r->seen + o->at[layer][side] + (size_t)(head * dim), x, (size_t)dim * sizeof(float));
    }
}

int oracle_holds(const oracle *o, int seq, int pos, int layer, int head)
{
    for (int i = 0; i < o->seq[seq].n; i++) {
        const row *r = &o->seq[seq].rows[i];
        if (r->alive && r->pos == pos) return !(r->dropped[layer] >> head & 1);
    }
    return 0;
}

void oracle_rm(oracle *o, int seq, int p0, int p1)
{
    list *l = &o->seq[seq];
    if (p0 < 0) p0 = 0;
    int to_end = p1 < 0 || p1 > l->pos_max, coded_died = 0, alive = 0, last = -1;
    if (l->pos_max < 0 || (to_end && p0 > l->pos_max)) return;
    for (int i = 0; i < l->n; i++) {
        row *r = &l->rows[i];
        if (r->alive && r->pos >= p0 && (to_end || r->pos < p1)) r->alive = 0, coded_died |= r->slot < BLOCK * l->sealed;
        alive += r->alive;
        if (r->alive) last = r->slot;
    }
    if (!to_end) return;
    if (!alive) {
        clear(l);
        l->pos_max = p0 - 1;
        return;
    }
    l->pos_max = p0 - 1;
    l->next_slot = coded_died || last < BLOCK * l->sealed ? BLOCK * l->sealed : last + 1;
    while (l->n && l->rows[l->n - 1].slot >= l->next_slot) {
        free(l->rows[l->n - 1].exact);
        free(l->rows[--l->n].seen);
    }
}

void oracle_cp(oracle *o, int src, int dst)
{
    clear(&o->seq[dst]);
    list *to = &o->seq[dst], *from = &o->seq[src];
    for (int i = 0; i < from->n; i++) {
        row *r = push(to);
        *r = from->rows[i];
        r->exact = get(o->values * sizeof(float));
        r->seen = get(o->values * sizeof(float));
        memcpy(r->exact, from->rows[i].exact, o->values * sizeof(float));
        memcpy(r->seen, from->rows[i].seen, o->values * sizeof(float));
    }
    to->next_slot = from->next_slot;
    to->sealed = from->sealed;
    to->pos_max = from->pos_max;
}

int oracle_pos_max(const oracle *o, int seq)
{
    return o->seq[seq].pos_max;
}

int oracle_rows(const oracle *o, int seq)
{
    int alive = 0;
    for (int i = 0; i < o->seq[seq].n; i++) alive += o->seq[seq].rows[i].alive;
    return alive;
}

int oracle_sealed(const oracle *o, int seq)
{
    return o->seq[seq].sealed;
}

/* ---- attention ---- */

/* Keys that one query head sees: values and scores. */
typedef struct keys {
    const float **v;
    double *s;
    int n;
} keys;

static void add(keys *ks, const oracle_query *a, const float *q, const float *k, const float *v, int dim, double bias)
{
    if (bias == -INFINITY) return;
    double s = 0;
    for (int c = 0; c < dim; c++) s += (double)q[c] * (double)k[c];
    s *= a->scale;
    if (a->softcap > 0) s = a->softcap * tanh(s / a->softcap);
    ks->s[ks->n] = s + bias;
    ks->v[ks->n++] = v;
}

static double slope(const oracle_query *a, int h)
{
    return a->slopes ? (double)a->slopes[h] : 0;
}

static void history(const oracle *o, const oracle_query *a, int i, int h, const float *q, keys *ks)
{
    const kvf_layer *l = &o->p->layers[a->layer];
    const list *s = &o->seq[a->tokens[i].seq];
    int own = owner(o, a->layer), kv = h / (l->q_heads / l->kv_heads);
    for (int j = 0; j < s->n; j++) {
        const row *r = &s->rows[j];
        int back = a->tokens[i].pos - r->pos;
        if (!r->alive || (r->dropped[own] >> kv & 1) || back < 0 || (l->window > 0 && back >= l->window)) continue;
        const float *k = r->seen + o->at[own][0] + (size_t)(kv * l->k_dim);
        const float *v = l->v_in_k ? k : r->seen + o->at[own][1] + (size_t)(kv * l->v_dim);
        add(ks, a, q, k, v, l->k_dim, -slope(a, h) * back);
    }
}

static double tail_bias(const oracle *o, const oracle_query *a, int i, int j, int h)
{
    const kvf_layer *l = &o->p->layers[a->layer];
    if (a->bias) {
        double b = a->bias[i * a->n + j];
        return b == -INFINITY || !a->slopes ? b : slope(a, h) * b;
    }
    int back = a->tokens[i].pos - a->tokens[j].pos;
    if (a->tokens[i].seq != a->tokens[j].seq || back < 0 || (l->window > 0 && back >= l->window)) return -INFINITY;
    return -slope(a, h) * back;
}

static void tail(const oracle *o, const oracle_query *a, int i, int h, const float *q, keys *ks)
{
    const kvf_layer *l = &o->p->layers[a->layer];
    int kv = h / (l->q_heads / l->kv_heads);
    for (int j = 0; j < a->n; j++) {
        const float *k = a->k + (size_t)(j * l->kv_heads + kv) * (size_t)l->k_dim;
        const float *v = l->v_in_k ? k : a->v + (size_t)(j * l->kv_heads + kv) * (size_t)l->v_dim;
        add(ks, a, q, k, v, l->k_dim, tail_bias(o, a, i, j, h));
    }
}

static void softmax(const keys *ks, const float *sink, int dim, double *out, double *lse)
{
    double max = sink ? (double)*sink : -INFINITY, sum = 0;
    for (int j = 0; j < ks->n; j++) max = fmax(max, ks->s[j]);
    for (int c = 0; c < dim; c++) out[c] = 0;
    *lse = max;
    if (max == -INFINITY) return;
    if (sink) sum = exp((double)*sink - max);
    for (int j = 0; j < ks->n; j++) sum += exp(ks->s[j] - max);
    for (int j = 0; j < ks->n; j++) {
        double w = exp(ks->s[j] - max) / sum;
        for (int c = 0; c < dim; c++) out[c] += w * (double)ks->v[j][c];
    }
    *lse = max + log(sum);
}

void oracle_attend(const oracle *o, const oracle_query *a)
{
    const kvf_layer *l = &o->p->layers[a->layer];
    int most = a->n;
    for (int s = 0; s < SEQUENCES; s++) most = most > o->seq[s].n + a->n ? most : o->seq[s].n + a->n;
    keys ks = {get((size_t)most * sizeof(float *)), get((size_t)most * sizeof(double)), 0};
    for (int i = 0; i < a->n; i++)
        for (int h = 0; h < l->q_heads; h++) {
            size_t at = (size_t)(i * l->q_heads + h);
            const float *q = a->q + at * (size_t)l->k_dim;
            ks.n = 0;
            history(o, a, i, h, q, &ks);
            tail(o, a, i, h, q, &ks);
            softmax(&ks, a->sinks ? &a->sinks[h] : NULL, l->v_dim, a->out + at * (size_t)l->v_dim, a->lse + at);
        }
    free(ks.v);
    free(ks.s);
}
