/* SPDX-License-Identifier: MIT */
#include "books.h"

#include "codec_inputs.h"

static const struct geometry {
    int32_t sub, bits, heads;
} geometries[] = {{4, 8, 1},        {8, 12, 1}, {8, 10, 1}, {8, 8, 1}, {2, 5, 1},
                  {4, 8, TB_HEADS}, {2, 12, 1}, {4, 3, 1},  {8, 9, 1}, {8, 11, TB_HEADS}};
enum { GEOMETRIES = sizeof geometries / sizeof *geometries };
_Static_assert(2 * GEOMETRIES == TB_BOOKS, "keys and values");

static kvf_codebook book_of(const struct geometry *g, int side, uint64_t seed)
{
    const size_t n = (size_t)g->heads * (size_t)g->sub << g->bits;
    float *centroids = ci_alloc(n * sizeof *centroids);
    const int bytes = g->bits == 8 && (side == KVF_K || g->sub == 4); /* some books are whole multiples, which fit bytes */
    for (size_t i = 0; i < n; i++) centroids[i] = (float)(bytes ? nearbyint(ci_gauss(&seed) * 16) / 16 : ci_gauss(&seed));
    return (kvf_codebook){.side = side, .sub = g->sub, .bits = g->bits, .heads = g->heads, .centroids = centroids};
}

const kvf_calibrated_layer *tb_layer(void)
{
    static kvf_codebook books[2 * GEOMETRIES];
    static kvf_calibrated_layer layer = {.size = sizeof layer, .kv_heads = TB_HEADS};
    for (int i = 0; !layer.codebooks && i < 2 * GEOMETRIES; i++)
        books[i] = book_of(&geometries[i / 2], i % 2 ? KVF_V : KVF_K, (uint64_t)i);
    layer.codebooks = books, layer.n_codebooks = 2 * GEOMETRIES;
    return &layer;
}

/* What head 1 asks of keys of `dim` channels: queries near one direction, in halves, so that all sums are exact. */
static int encode_fed(const char *spec, kvf_side side, int32_t dim, const float *x, void *record)
{
    const size_t n = (size_t)dim;
    kvf_calibrated_layer layer = *tb_layer();
    float *moment = calloc(2 * n * n, sizeof *moment), *lambda = calloc(2 * n, sizeof *lambda);
    for (size_t i = 0; i < n; i++) {
        lambda[n + i] = 1 + (float)(i % 5) / 4;
        for (size_t j = 0; j < n; j++)
            moment[n * n + i * n + j] = (float)(ts_mix(i) % 9) / 2 * ((float)(ts_mix(j) % 9) / 2) + (i == j ? 2.0f : 0.0f);
    }
    layer.q_moment = moment, layer.k_lambda = lambda;
    const int rc = kvf_op_encode_calibrated(spec, side, dim, &layer, 1, x, record);
    free(moment), free(lambda);
    return rc;
}

int tb_encode(const char *spec, kvf_side side, int32_t dim, const float *x, void *record)
{
    if (strstr(spec, "feedback=query")) return encode_fed(spec, side, dim, x, record);
    return kvf_op_encode_calibrated(spec, side, dim, tb_layer(), 1, x, record);
}

int tb_decode(const char *spec, kvf_side side, int32_t dim, const void *record, float *x)
{
    return kvf_op_decode_calibrated(spec, side, dim, tb_layer(), 1, record, x);
}

const float *tb_book(kvf_side side, int32_t sub, int32_t bits, int32_t head)
{
    const kvf_calibrated_layer *layer = tb_layer();
    for (int i = 0; i < layer->n_codebooks; i++) {
        const kvf_codebook *b = &layer->codebooks[i];
        if (b->side != (int32_t)side || b->sub != sub || b->bits != bits || (b->heads > 1) != (head >= 0)) continue;
        return b->centroids + (head > 0 ? (size_t)head * (size_t)sub << bits : 0);
    }
    return NULL;
}

static void know_layer(tb_known *k, int i, const kvf_layer *l, int staged, float **at)
{
    kvf_calibrated_layer *c = &k->layers[i];
    const size_t width = (size_t)l->kv_heads * (size_t)l->k_dim;
    uint64_t seed = (uint64_t)i + 77;
    float *mean = *at, *lambda = *at + width;
    *at += 2 * width;
    for (size_t j = 0; j < width; j++) {
        mean[j] = staged ? (float)(2 * ci_gauss(&seed)) : 0;
        lambda[j] = staged ? (float)(0.5 + fabs(ci_gauss(&seed))) : 1;
    }
    memcpy(k->books[i], tb_layer()->codebooks, sizeof k->books[i]);
    for (int b = 0; b < TB_BOOKS; b++)
        if (k->books[i][b].heads > 1) k->books[i][b].heads = l->kv_heads;
    *c = (kvf_calibrated_layer){.size = sizeof *c,
                                .kv_heads = l->kv_heads,
                                .k_dim = l->k_dim,
                                .v_dim = l->v_dim,
                                .k_mean = mean,
                                .k_lambda = lambda,
                                .n_codebooks = TB_BOOKS,
                                .codebooks = k->books[i]};
}

tb_known *tb_know(ts_model *m, int staged)
{
    tb_known *k = ci_alloc(sizeof *k);
    size_t floats = 0;
    for (int i = 0; i < m->params.n_layers; i++) floats += 2 * (size_t)m->layers[i].kv_heads * (size_t)m->layers[i].k_dim;
    float *at = k->floats = ci_alloc(floats * sizeof *at);
    for (int i = 0; i < m->params.n_layers; i++) {
        k->layers[i].size = sizeof k->layers[i];
        if (m->layers[i].share < 0) know_layer(k, i, &m->layers[i], staged, &at);
    }
    k->calibration = (kvf_calibration){.size = sizeof k->calibration, .n_layers = m->params.n_layers, .layers = k->layers};
    m->params.calibration = &k->calibration;
    return k;
}

void tb_forget(tb_known *k)
{
    if (k) free(k->floats);
    free(k);
}
