/* SPDX-License-Identifier: MIT
 * Exact rows: f16 and f32, any number of channels, strided, unaligned, scattered, with junk between them. */
#include "parity.h"

typedef struct sample {
    kvf_type type;
    int dim, n, indexed;
    px_input in;
    int32_t index[KVF_BLOCK];
    kvfi_rows rows;
} sample;

static const int dims[] = {1, 2, 3, 7, 8, 9, 15, 17, 31, 40, 64, 72, 80, 96, 100, 112, 128, 192, 256, 512, 576};
enum { DIMS = sizeof dims / sizeof *dims };

static size_t size_of(kvf_type type)
{
    return type == KVF_F16 ? 2 : 4;
}

static const char *row_of(const sample *s, int i)
{
    return s->rows.data + (s->indexed ? s->index[i] : i) * s->rows.stride;
}

static float element(const sample *s, int i, int c)
{
    float x;
    uint16_t h;
    if (s->type == KVF_F32) {
        memcpy(&x, row_of(s, i) + c * 4, 4);
        return x;
    }
    memcpy(&h, row_of(s, i) + c * 2, 2);
    return (float)ci_half_value(h);
}

/* n rows of `dim` channels. Between them, and in rows that no index names, is junk that reads as no number. */
static void sample_make(sample *s, kvf_type type, int dim, int n, int round, uint64_t *state)
{
    const size_t size = size_of(type), gap = (size_t)(round % 4) * 3, stride = ((size_t)dim + gap) * size;
    *s = (sample){.type = type, .dim = dim, .n = n, .indexed = round % 3 == 1};
    const int cells = s->indexed ? n + 5 : n;
    const size_t bytes = stride * (size_t)(cells - 1) + (size_t)dim * size;
    s->in = px_input_make(bytes, (size_t)(round % 5) * size);
    memset(s->in.data, 0xff, bytes);
    for (int i = 0; i < n; i++) s->index[i] = (i * 7 + round) % cells;
    while (s->indexed && cells % 7 == 0) s->index[0] = 0, s->indexed = 0; /* 7 must not divide the number of cells */
    s->rows = (kvfi_rows){s->in.data, (int64_t)stride, type, s->indexed ? s->index : NULL};
    for (int i = 0; i < n; i++)
        for (int c = 0; c < dim; c++) {
            const float x = (float)ci_half(ci_value((ci_kind)(round % CI_KIND_COUNT), i, c, dim, state));
            const uint16_t h = kvfi_half_from_float(x);
            char *at = (char *)s->in.data + (row_of(s, i) - s->rows.data) + (size_t)c * size;
            if (type == KVF_F16)
                memcpy(at, &h, 2);
            else
                memcpy(at, &x, 4);
        }
}

static void check_score(const kvfi_kernels *scalar, const kvfi_kernels *fast, const sample *s, int nv, int round, uint64_t *state)
{
    const size_t stride = (size_t)s->dim + (size_t)(round % 2 * 3), bytes = (size_t)nv * KVF_BLOCK * sizeof(float);
    px_input in = px_input_make((stride * (size_t)(nv - 1) + (size_t)s->dim) * sizeof(float), (size_t)(round % 3) * 4);
    float *q = in.data;
    for (int v = 0; v < nv; v++)
        for (size_t c = 0; c < (v + 1 < nv ? stride : (size_t)s->dim); c++)
            q[(size_t)v * stride + c] = c < (size_t)s->dim ? px_number(round % PX_FLAVOURS, (int)c, state) : px_junk();
    px_output want = px_output_make(bytes, 0), got = px_output_make(bytes, (size_t)(round % 4) * 4);
    scalar->rows_score(&s->rows, s->n, s->dim, q, stride, nv, want.data);
    fast->rows_score(&s->rows, s->n, s->dim, q, stride, nv, got.data);
    for (int v = 0; v < nv; v++) {
        for (int i = 0; i < s->n; i++) {
            double sum = 0;
            for (int c = 0; c < s->dim; c++) sum += fabs((double)q[(size_t)v * stride + (size_t)c] * (double)element(s, i, c));
            px_close(PX_ROWS_SCORE, got.data[v * KVF_BLOCK + i], want.data[v * KVF_BLOCK + i], sum, "score", v, i);
        }
        for (int i = s->n; i < KVF_BLOCK; i++) px_untouched(&got, (size_t)(v * KVF_BLOCK + i), "the scores");
    }
    px_output_free(&want, "scalar scores");
    px_output_free(&got, "the scores");
    px_input_free(&in);
}

static void check_mix(const kvfi_kernels *scalar, const kvfi_kernels *fast, const sample *s, int nv, int round, uint64_t *state)
{
    const size_t stride = (size_t)s->dim + (size_t)(round % 2 * 3), bytes = (size_t)nv * stride * sizeof(float);
    px_input in = px_input_make((size_t)((nv - 1) * KVF_BLOCK + s->n) * sizeof(float), (size_t)(round % 3) * 4);
    float *w = in.data, *start = ci_alloc(bytes);
    for (int v = 0; v < nv; v++)
        for (int i = 0; i < (v + 1 < nv ? KVF_BLOCK : s->n); i++)
            w[v * KVF_BLOCK + i] = i < s->n ? px_weight(round % PX_FLAVOURS, i, state) : px_junk();
    px_output want = px_output_make(bytes, 0), got = px_output_make(bytes, (size_t)(round % 4) * 4);
    for (int v = 0; v < nv; v++)
        for (int c = 0; c < s->dim; c++) {
            const size_t i = (size_t)v * stride + (size_t)c;
            want.data[i] = got.data[i] = start[i] = (float)ci_gauss(state);
        }
    scalar->rows_mix(&s->rows, s->n, s->dim, w, nv, want.data, stride);
    fast->rows_mix(&s->rows, s->n, s->dim, w, nv, got.data, stride);
    for (int v = 0; v < nv; v++) {
        for (int c = 0; c < s->dim; c++) {
            double sum = fabs((double)start[(size_t)v * stride + (size_t)c]);
            for (int i = 0; i < s->n; i++) sum += fabs((double)w[v * KVF_BLOCK + i] * (double)element(s, i, c));
            px_close(PX_ROWS_MIX, got.data[(size_t)v * stride + (size_t)c], want.data[(size_t)v * stride + (size_t)c], sum, "acc",
                     v, c);
        }
        for (size_t c = (size_t)s->dim; c < stride; c++) px_untouched(&got, (size_t)v * stride + c, "the accumulators");
    }
    px_output_free(&want, "scalar accumulators");
    px_output_free(&got, "the accumulators");
    px_input_free(&in);
    free(start);
}

static void check_unfold(const kvfi_kernels *scalar, const kvfi_kernels *fast, const sample *s, int round)
{
    const int pad = (s->dim + 15) / 16 * 16;
    const size_t n = (size_t)pad * KVF_BLOCK;
    for (int side = KVF_K; side <= KVF_V; side++) {
        px_output want = px_output_make(n * sizeof(float), 0), got = px_output_make(n * sizeof(float), (size_t)(round % 4) * 4);
        (side ? scalar->rows_unfold_v : scalar->rows_unfold_k)(&s->rows, s->n, s->dim, pad, want.data);
        (side ? fast->rows_unfold_v : fast->rows_unfold_k)(&s->rows, s->n, s->dim, pad, got.data);
        for (size_t i = 0; i < n; i++)
            px_same(PX_UNFOLD, got.data[i], want.data[i], side ? "value tile" : "key tile", (int)i / (side ? pad : KVF_BLOCK),
                    (int)i % (side ? pad : KVF_BLOCK));
        px_output_free(&want, "the scalar tile");
        px_output_free(&got, "the tile");
    }
}

static void every_shape(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    int round = 0;
    for (int type = KVF_F16; type <= KVF_F32; type++)
        for (int d = 0; d < DIMS; d++)
            for (int r = 0; r < PX_ROWS; r++) {
                uint64_t state = (uint64_t)++round;
                const int nv = px_vectors[(d + r * 3) % PX_VECTORS];
                sample s;
                px_at("%s: %d rows of %d channels, %s, %d vectors, round %d", fast->name, px_rows[r], dims[d],
                      type == KVF_F16 ? "f16" : "f32", nv, round);
                sample_make(&s, (kvf_type)type, dims[d], px_rows[r], round, &state);
                check_score(scalar, fast, &s, nv, round, &state);
                check_mix(scalar, fast, &s, nv, round, &state);
                check_unfold(scalar, fast, &s, round);
                px_input_free(&s.in);
            }
}

static void test_every_shape(void **state)
{
    (void)state;
    px_each_set(every_shape);
}

/* Few rows in every possible number: groups of four and eight rows have ends of their own. */
static void every_count(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    for (int n = 1; n <= KVF_BLOCK; n++)
        for (int nv = 1; nv <= 9; nv += 4) {
            uint64_t state = (uint64_t)n;
            sample s;
            px_at("%s: %d rows of 24 channels, %d vectors", fast->name, n, nv);
            sample_make(&s, n % 2 ? KVF_F16 : KVF_F32, 24, n, n, &state);
            check_score(scalar, fast, &s, nv, n, &state);
            check_mix(scalar, fast, &s, nv, n, &state);
            check_unfold(scalar, fast, &s, n);
            px_input_free(&s.in);
        }
}

static void test_every_count(void **state)
{
    (void)state;
    px_each_set(every_count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_shape), cmocka_unit_test(test_every_count)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
