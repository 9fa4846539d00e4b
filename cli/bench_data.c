/* SPDX-License-Identifier: MIT */
#include "bench.h"
#include "measure_random.h"

#include <ggml.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- inputs --------------------------------------------------------------------------------------------------------------- */

/* Nearly normal, variance 1: the sum of four uniform 16-bit numbers. */
static float bell(uint64_t *state)
{
    uint64_t r = measure_next(state);
    int sum = (int)(r & 0xffff) + (int)(r >> 16 & 0xffff) + (int)(r >> 32 & 0xffff) + (int)(r >> 48);
    return (float)(sum - 2 * 65535) * (1.7320508f / 65535.0f);
}

/* Keys have a mean per channel and a few large channels, as keys of real models do; values have neither. */
static int fill_rows(uint16_t *rows, const bench_shape *s, int keys, uint64_t *state)
{
    int width = s->kv_heads * s->head_dim;
    float *mean = calloc(2 * (size_t)width, sizeof *mean), *row = mean ? mean + width : NULL;
    if (!mean) return -1;
    for (int c = 0; keys && c < width; c++) mean[c] = bell(state) * (c % 32 == 5 ? 4.0f : 0.5f);
    for (int t = 0; t < s->context; t++) {
        for (int c = 0; c < width; c++) row[c] = mean[c] + bell(state);
        ggml_fp32_to_fp16_row(row, (ggml_fp16_t *)(rows + (size_t)t * (size_t)width), width);
    }
    free(mean);
    return 0;
}

bench_data *bench_data_create(const bench_shape *shape, uint64_t seed)
{
    size_t rows = (size_t)shape->context * (size_t)shape->kv_heads * (size_t)shape->head_dim;
    size_t queries = (size_t)BENCH_QUERIES * (size_t)shape->q_heads * (size_t)shape->head_dim;
    bench_data *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    *d = (bench_data){*shape, malloc(rows * 2), malloc(rows * 2), malloc(queries * sizeof(float))};
    uint64_t state = seed;
    if (!d->k || !d->v || !d->q || fill_rows(d->k, shape, 1, &state) != 0 || fill_rows(d->v, shape, 0, &state) != 0) {
        bench_data_free(d);
        return NULL;
    }
    for (size_t i = 0; i < queries; i++) d->q[i] = 1.5f * bell(&state);
    return d;
}

void bench_data_free(bench_data *d)
{
    if (!d) return;
    free(d->k);
    free(d->v);
    free(d->q);
    free(d);
}

int bench_row_of(const bench_data *d, int layer, int token)
{
    return (int)(((int64_t)token + (int64_t)layer * 97) % d->shape.context);
}

const float *bench_query(const bench_data *d, int layer)
{
    return d->q + (size_t)(layer % BENCH_QUERIES) * (size_t)d->shape.q_heads * (size_t)d->shape.head_dim;
}

int bench_layers(size_t bytes_of_layer, size_t pool)
{
    size_t n = pool / (bytes_of_layer ? bytes_of_layer : 1) + 1;
    return n < 2 ? 2 : (int)n;
}

/* ---- the right answer ----------------------------------------------------------------------------------------------------- */

/* Attention of one query over n keys, in double precision. */
static void attend(const float *q, const float *k, const float *v, int n, int dim, double *score, double *out)
{
    double max = -INFINITY, sum = 0;
    for (int t = 0; t < n; t++) {
        double dot = 0;
        for (int c = 0; c < dim; c++) dot += (double)q[c] * (double)k[(size_t)t * (size_t)dim + (size_t)c];
        score[t] = dot / sqrt(dim);
        max = fmax(max, score[t]);
    }
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int t = 0; t < n; t++) {
        double w = exp(score[t] - max);
        sum += w;
        for (int c = 0; c < dim; c++) out[c] += w * (double)v[(size_t)t * (size_t)dim + (size_t)c];
    }
    for (int c = 0; c < dim; c++) out[c] /= sum;
}

static double distance(const double *want, const float *got, int dim)
{
    double diff = 0, norm = 0;
    for (int c = 0; c < dim; c++) {
        diff += ((double)got[c] - want[c]) * ((double)got[c] - want[c]);
        norm += want[c] * want[c];
    }
    return sqrt(diff / norm); /* NaN in the output stays NaN */
}

static double layer_error(const bench_arm *arm, const bench_data *d, int layer, float *k, float *v, double *score)
{
    const bench_shape *s = &d->shape;
    int group = s->q_heads / s->kv_heads;
    double worst = 0, *want = score + s->context;
    for (int h = 0; h < s->q_heads; h++) {
        size_t at = (size_t)h * (size_t)s->head_dim;
        if (h % group == 0 && arm->decode(arm->self, layer, h / group, k, v) != 0) return -1;
        attend(bench_query(d, layer) + at, k, v, s->context, s->head_dim, score, want);
        double e = distance(want, arm->output(arm->self, layer) + at, s->head_dim);
        if (isnan(e)) return INFINITY;
        worst = fmax(worst, e);
    }
    return worst;
}

double bench_error(const bench_arm *arm, const bench_data *d)
{
    size_t rows = (size_t)d->shape.context * (size_t)d->shape.head_dim;
    float *k = malloc(2 * rows * sizeof *k);
    double *score = malloc((size_t)(d->shape.context + d->shape.head_dim) * sizeof *score), error = -1;
    if (k && score) {
        double first = layer_error(arm, d, 0, k, k + rows, score);
        double last = layer_error(arm, d, arm->layers - 1, k, k + rows, score);
        error = first < 0 || last < 0 ? -1 : fmax(first, last);
    }
    free(k);
    free(score);
    return error;
}
