/* SPDX-License-Identifier: MIT */
#include "calibrated.h"

#include <stdlib.h>
#include <string.h>

static float number(uint64_t seed, size_t i, double low, double high)
{
    return (float)(low + (high - low) * (double)(ts_mix(seed ^ ts_mix(i)) >> 11) / 9007199254740992.0);
}

static const float *fill(tc_calibration *t, size_t n, uint64_t seed, double low, double high)
{
    float *x = t->floats + t->n_floats;
    for (size_t i = 0; i < n; i++) x[i] = number(seed, t->n_floats + i, low, high);
    t->n_floats += n;
    return x;
}

static void fill_layer(tc_calibration *t, int i, const kvf_layer *l, uint64_t seed)
{
    const size_t n = (size_t)l->kv_heads * (size_t)l->k_dim;
    kvf_calibrated_layer *c = &t->layers[i];
    kvf_codebook *b = t->books[i];
    c->kv_heads = l->kv_heads, c->k_dim = l->k_dim, c->v_dim = l->v_dim;
    c->k_mean = fill(t, n, seed, -3, 3);
    c->k_rms = fill(t, n, seed, 0.5, 4);
    c->q_rms = fill(t, n, seed, 0.5, 4);
    c->k_lambda = fill(t, n, seed, 0.25, 2);
    c->q_direction = fill(t, n, seed, -1, 1);
    b[0] = (kvf_codebook){.side = KVF_K, .sub = 4, .bits = 8, .heads = 1, .centroids = fill(t, 4 << 8, seed, -2, 2)};
    b[1] = (kvf_codebook){.side = KVF_V, .sub = 2, .bits = 3, .heads = l->kv_heads};
    b[1].centroids = fill(t, (size_t)l->kv_heads * (2 << 3), seed, -2, 2);
    c->n_codebooks = 2, c->codebooks = b;
}

tc_calibration *tc_new(const ts_model *m, uint64_t seed)
{
    tc_calibration *t = calloc(1, sizeof *t);
    size_t room = 0;
    for (int i = 0; i < m->params.n_layers; i++)
        room += (size_t)m->layers[i].kv_heads * (5 * (size_t)m->layers[i].k_dim + (2 << 3)) + (4 << 8);
    assert_non_null(t);
    t->floats = calloc(room, sizeof *t->floats);
    assert_non_null(t->floats);
    t->c = (kvf_calibration){.size = sizeof t->c, .n_layers = m->params.n_layers, .layers = t->layers};
    for (int i = 0; i < m->params.n_layers; i++) {
        t->layers[i].size = sizeof t->layers[i];
        if (m->layers[i].share < 0) fill_layer(t, i, &m->layers[i], seed);
    }
    return t;
}

void tc_free(tc_calibration *t)
{
    if (t) free(t->floats);
    free(t);
}
