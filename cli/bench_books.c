/* SPDX-License-Identifier: MIT */
#include "bench_books.h"
#include "measure_random.h"

#include <ggml.h>
#include <kvfold.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The geometry of the codebook that a spec needs; 0: none. */
static int geometry(const char *spec, kvf_side side, int dim, kvf_codebook *book)
{
    kvf_spec_info info;
    *book = (kvf_codebook){.side = side, .heads = 1};
    if (kvf_spec_check(spec, side, dim, &info, NULL, 0) != KVF_OK) return 0;
    return sscanf(info.canonical, "vecinfer:sub=%d,bits=%d", &book->sub, &book->bits) == 2;
}

const kvf_calibrated_layer *bench_books_layer(const char *spec, kvf_side side, int dim)
{
    static float centroids[8 << 12];
    static kvf_codebook book;
    static kvf_calibrated_layer layer = {.size = sizeof layer, .kv_heads = 1, .n_codebooks = 1, .codebooks = &book};
    uint64_t state = 7;
    if (!geometry(spec, side, dim, &book)) return NULL;
    for (int i = 0; i < book.sub << book.bits; i++) centroids[i] = (float)(int32_t)(measure_next(&state) >> 32) * 0x1p-30f;
    book.centroids = centroids;
    return &layer;
}

static void read_row(const bench_data *d, kvf_side side, int token, int head, float *x)
{
    const uint16_t *rows = side == KVF_K ? d->k : d->v;
    const size_t at = ((size_t)token * (size_t)d->shape.kv_heads + (size_t)head) * (size_t)d->shape.head_dim;
    ggml_fp16_to_fp32_row((const ggml_fp16_t *)(rows + at), x, d->shape.head_dim);
}

/* mean[kv_heads][head_dim] of the keys, which the bench does not rotate. */
static void fill_mean(const bench_data *d, float *mean, float *row)
{
    const bench_shape *s = &d->shape;
    for (int h = 0; h < s->kv_heads; h++)
        for (int t = 0; t < s->context; t++) {
            read_row(d, KVF_K, t, h, row);
            for (int c = 0; c < s->head_dim; c++) mean[h * s->head_dim + c] += row[c] / (float)s->context;
        }
}

/* A random sub-vector of a random row, for each centroid; keys as the codec codes them, lambda being 1. */
static void fill_book(const bench_data *d, const kvf_codebook *book, const float *mean, float *centroids, float *row)
{
    const bench_shape *s = &d->shape;
    uint64_t state = 5;
    for (int i = 0; i < 1 << book->bits; i++, centroids += book->sub) {
        const int token = (int)(measure_next(&state) >> 33) % s->context, head = (int)(measure_next(&state) >> 33) % s->kv_heads;
        const int sub = (int)(measure_next(&state) >> 33) % (s->head_dim / book->sub);
        read_row(d, (kvf_side)book->side, token, head, row);
        for (int c = 0; book->side == KVF_K && c < s->head_dim; c++) row[c] -= mean[head * s->head_dim + c];
        if (book->side == KVF_K) kvf_op_hadamard(row, 1, s->head_dim, s->head_dim & -s->head_dim);
        for (int c = 0; c < book->sub; c++)
            centroids[c] = rintf(row[sub * book->sub + c] * 16) / 16; /* bytes, as training makes them */
    }
}

static size_t floats_of(const kvf_codebook *book)
{
    return (size_t)book->sub << book->bits;
}

int bench_books_make(bench_books *b, const kv_choice *choice, const bench_data *d, int layers, const kvf_calibration **known)
{
    const bench_shape *s = &d->shape;
    const size_t width = (size_t)s->kv_heads * (size_t)s->head_dim;
    int n = geometry(choice->k, KVF_K, s->head_dim, &b->book[0]);
    n += geometry(choice->v, KVF_V, s->head_dim, &b->book[n]);
    *known = NULL;
    if (!n) return 0;
    b->layers = calloc((size_t)layers, sizeof *b->layers);
    b->floats = calloc(2 * width + floats_of(&b->book[0]) + floats_of(&b->book[1]) + (size_t)s->head_dim, sizeof *b->floats);
    if (!b->layers || !b->floats) return -1;
    float *mean = b->floats, *lambda = mean + width, *at = lambda + width;
    float *row = at + floats_of(&b->book[0]) + floats_of(&b->book[1]);
    for (size_t i = 0; i < width; i++) lambda[i] = 1;
    fill_mean(d, mean, row);
    for (int i = 0; i < n; at += floats_of(&b->book[i++])) {
        fill_book(d, &b->book[i], mean, at, row);
        b->book[i].centroids = at;
    }
    for (int l = 0; l < layers; l++)
        b->layers[l] = (kvf_calibrated_layer){.size = sizeof *b->layers,
                                              .kv_heads = s->kv_heads,
                                              .k_dim = s->head_dim,
                                              .v_dim = s->head_dim,
                                              .k_mean = mean,
                                              .k_lambda = lambda,
                                              .n_codebooks = n,
                                              .codebooks = b->book};
    b->calibration = (kvf_calibration){.size = sizeof b->calibration, .n_layers = layers, .layers = b->layers};
    *known = &b->calibration;
    return 0;
}

void bench_books_free(bench_books *b)
{
    free(b->layers);
    free(b->floats);
}
