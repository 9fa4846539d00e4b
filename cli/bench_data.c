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

int bench_history(const bench_shape *s)
{
    return s->context - s->queries;
}

/* The batches of two layers begin at different rows: of many queries each, none is asked of two layers at the same place. */
int bench_query_rows(const bench_shape *s)
{
    return BENCH_QUERIES - 1 + s->queries;
}

size_t bench_floats(const bench_shape *s)
{
    return (size_t)s->queries * (size_t)s->q_heads * (size_t)s->head_dim;
}

size_t bench_output_bytes(const bench_shape *s, int layers)
{
    return (size_t)layers * bench_floats(s) * sizeof(float);
}

bench_data *bench_data_create(const bench_shape *shape, uint64_t seed)
{
    size_t rows = (size_t)shape->context * (size_t)shape->kv_heads * (size_t)shape->head_dim;
    size_t queries = (size_t)bench_query_rows(shape) * (size_t)shape->q_heads * (size_t)shape->head_dim;
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

/* Queries that are checked, spread evenly from the first to the last: all of a long batch would take longer than the rounds. */
enum { CHECKED = 3 };

static int count_checked(const bench_shape *s)
{
    return s->queries < CHECKED ? s->queries : CHECKED;
}

static int checked_query(const bench_shape *s, int i)
{
    int n = count_checked(s);
    return n == 1 ? 0 : (int)((int64_t)(s->queries - 1) * i / (n - 1));
}

/* Of one head of one query of the batch, which sees the history and the batch as far as itself. Negative when memory is short. */
static double head_error(const bench_arm *arm, const bench_data *d, int layer, int head, int query, const float *k,
                         const float *v)
{
    const bench_shape *s = &d->shape;
    const int seen = bench_history(s) + query + 1;
    const size_t at = ((size_t)query * (size_t)s->q_heads + (size_t)head) * (size_t)s->head_dim;
    double *score = malloc((size_t)(seen + s->head_dim) * sizeof *score), *want = score ? score + seen : NULL;
    if (!score) return -1;
    attend(bench_query(d, layer) + at, k, v, seen, s->head_dim, score, want);
    double e = distance(want, arm->output(arm->self, layer) + at, s->head_dim);
    free(score);
    return isnan(e) ? INFINITY : e;
}

static double layer_error(const bench_arm *arm, const bench_data *d, int layer, float *k, float *v)
{
    const bench_shape *s = &d->shape;
    const int group = s->q_heads / s->kv_heads, n = count_checked(s);
    double worst = 0, least = 0;
    for (int h = 0; h < s->kv_heads; h++) {
        if (arm->decode(arm->self, layer, h, k, v) != 0) return -1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(cli_threads_default()) reduction(max : worst) reduction(min : least)
        for (int i = 0; i < group * n; i++) {
            double e = head_error(arm, d, layer, h * group + i / n, checked_query(s, i % n), k, v);
            worst = fmax(worst, e);
            least = fmin(least, e);
        }
    }
    return least < 0 ? -1 : worst;
}

double bench_error(const bench_arm *arm, const bench_data *d)
{
    size_t rows = (size_t)d->shape.context * (size_t)d->shape.head_dim;
    float *k = malloc(2 * rows * sizeof *k);
    if (!k) return -1;
    double first = layer_error(arm, d, 0, k, k + rows), last = layer_error(arm, d, arm->layers - 1, k, k + rows);
    free(k);
    return first < 0 || last < 0 ? -1 : fmax(first, last);
}
