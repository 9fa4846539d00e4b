/* SPDX-License-Identifier: MIT
 * Dense tiles, softmax and the Hadamard transform. */
#include "parity.h"

/* ---- tiles ----------------------------------------------------------------------------------------------------------------- */

static void fill_tile(float *tile, int n, int round, uint64_t *state)
{
    for (int i = 0; i < n; i++) tile[i] = (float)ci_half(ci_value((ci_kind)(round % CI_KIND_COUNT), i / 64, i % 64, 64, state));
}

static void check_tile_score(const kvfi_kernels *scalar, const kvfi_kernels *fast, int pad, int nv, int round, uint64_t state)
{
    const size_t stride = (size_t)pad + (size_t)(round % 2 * 3), bytes = (size_t)nv * KVF_BLOCK * sizeof(float);
    px_input tile = px_input_make((size_t)pad * KVF_BLOCK * sizeof(float), (size_t)(round % 3) * 4);
    px_input in = px_input_make((stride * (size_t)(nv - 1) + (size_t)pad) * sizeof(float), (size_t)(round % 4) * 4);
    px_output want = px_output_make(bytes, 0), got = px_output_make(bytes, (size_t)(round % 5) * 4);
    float *k = tile.data, *q = in.data;
    fill_tile(k, pad * KVF_BLOCK, round, &state);
    for (int v = 0; v < nv; v++)
        for (size_t c = 0; c < (v + 1 < nv ? stride : (size_t)pad); c++)
            q[(size_t)v * stride + c] = c < (size_t)pad ? px_number((round + v) % PX_FLAVOURS, (int)c, &state) : px_junk();
    scalar->tile_score(k, pad, q, stride, nv, want.data);
    fast->tile_score(k, pad, q, stride, nv, got.data);
    for (int v = 0; v < nv; v++)
        for (int t = 0; t < KVF_BLOCK; t++) {
            double sum = 0;
            for (int c = 0; c < pad; c++) sum += fabs((double)q[(size_t)v * stride + (size_t)c] * (double)k[c * KVF_BLOCK + t]);
            px_close(PX_TILE_SCORE, got.data[v * KVF_BLOCK + t], want.data[v * KVF_BLOCK + t], sum, "score", v, t);
        }
    px_output_free(&want, "scalar scores");
    px_output_free(&got, "the scores");
    px_input_free(&tile);
    px_input_free(&in);
}

static void check_tile_mix(const kvfi_kernels *scalar, const kvfi_kernels *fast, int pad, int nv, int round, uint64_t state)
{
    const size_t stride = (size_t)pad + (size_t)(round % 2 * 3), bytes = (size_t)nv * stride * sizeof(float);
    px_input tile = px_input_make((size_t)pad * KVF_BLOCK * sizeof(float), (size_t)(round % 3) * 4);
    px_input in = px_input_make((size_t)nv * KVF_BLOCK * sizeof(float), (size_t)(round % 4) * 4);
    px_output want = px_output_make(bytes, 0), got = px_output_make(bytes, (size_t)(round % 5) * 4);
    float *values = tile.data, *w = in.data, *start = ci_alloc(bytes);
    fill_tile(values, pad * KVF_BLOCK, round, &state);
    for (int i = 0; i < nv * KVF_BLOCK; i++) w[i] = px_weight((round + i / KVF_BLOCK) % PX_FLAVOURS, i % KVF_BLOCK, &state);
    for (int v = 0; v < nv; v++)
        for (int c = 0; c < pad; c++) {
            const size_t i = (size_t)v * stride + (size_t)c;
            want.data[i] = got.data[i] = start[i] = (float)ci_gauss(&state);
        }
    scalar->tile_mix(values, pad, w, nv, want.data, stride);
    fast->tile_mix(values, pad, w, nv, got.data, stride);
    for (int v = 0; v < nv; v++) {
        for (int c = 0; c < pad; c++) {
            const size_t i = (size_t)v * stride + (size_t)c;
            double sum = fabs((double)start[i]);
            for (int t = 0; t < KVF_BLOCK; t++) sum += fabs((double)w[v * KVF_BLOCK + t] * (double)values[t * pad + c]);
            px_close(PX_TILE_MIX, got.data[i], want.data[i], sum, "acc", v, c);
        }
        for (size_t c = (size_t)pad; c < stride; c++) px_untouched(&got, (size_t)v * stride + c, "the accumulators");
    }
    px_output_free(&want, "scalar accumulators");
    px_output_free(&got, "the accumulators");
    px_input_free(&tile);
    px_input_free(&in);
    free(start);
}

static void tiles(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    static const int pads[] = {16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 512, 576};
    static const int vectors[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 17, 33, 64, 300};
    int round = 0;
    for (size_t p = 0; p < sizeof pads / sizeof *pads; p++)
        for (size_t n = 0; n < sizeof vectors / sizeof *vectors; n++) {
            const int nv = vectors[n];
            if (nv > 64 && pads[p] > 64) continue; /* slow, and nothing new */
            px_at("%s: tile of %d channels, %d vectors, round %d", fast->name, pads[p], nv, ++round);
            check_tile_score(scalar, fast, pads[p], nv, round, (uint64_t)round);
            check_tile_mix(scalar, fast, pads[p], nv, round, (uint64_t)round);
        }
}

static void test_tiles(void **state)
{
    (void)state;
    px_each_set(tiles);
}

/* ---- softmax --------------------------------------------------------------------------------------------------------------- */

/* Scores of several flavours: near each other, far apart, some or all absent, rising from piece to piece. */
static void make_scores(float *s, int flavour, int piece, uint64_t *state)
{
    static const float spread[] = {1, 10, 100, 10000};
    for (int i = 0; i < KVF_BLOCK; i++) {
        s[i] = (float)ci_gauss(state) * spread[flavour % 4] + (flavour % 3 == 1 ? 3 * (float)piece : 0);
        if (flavour % 5 == 1 && i % 3) s[i] = -INFINITY;
        if (flavour % 5 == 2 && i != 41) s[i] = -INFINITY;
        if (flavour % 5 == 3 && piece % 2 == 0) s[i] = -INFINITY;
        if (flavour % 5 == 4 && i % 16 == 0) s[i] = 77;
    }
}

static void softmaxes(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    enum { MOST = 9 };
    for (int flavour = 0; flavour < 60; flavour++) {
        const int n = 1 + flavour % MOST;
        const size_t bytes = (size_t)n * KVF_BLOCK * sizeof(float);
        uint64_t state = (uint64_t)flavour;
        float max[MOST], sum[MOST] = {0}, add[MOST];
        for (int v = 0; v < n; v++) max[v] = -INFINITY, add[v] = (float)ci_gauss(&state) * 3;
        for (int piece = 0; piece < 6; piece++) {
            px_output want = px_output_make(bytes, 0), got = px_output_make(bytes, (size_t)(flavour % 4) * 4);
            float got_max[MOST], got_sum[MOST], want_factor[MOST], got_factor[MOST + 1];
            px_at("%s: softmax, flavour %d, piece %d", fast->name, flavour, piece);
            for (int v = 0; v < n; v++) make_scores(want.data + v * KVF_BLOCK, flavour + v, piece, &state);
            memcpy(got.data, want.data, bytes);
            memcpy(got_max, max, sizeof max), memcpy(got_sum, sum, sizeof sum);
            got_factor[n] = px_junk();
            scalar->softmax(want.data, piece % 2 ? add : NULL, n, max, sum, want_factor);
            fast->softmax(got.data, piece % 2 ? add : NULL, n, got_max, got_sum, got_factor);
            for (int v = 0; v < n; v++) {
                px_same(PX_SOFTMAX, got_max[v], max[v], "maximum", v, 0);
                px_close(PX_SOFTMAX, got_factor[v], want_factor[v], want_factor[v], "factor", v, 0);
                px_close(PX_SOFTMAX, got_sum[v], sum[v], sum[v], "sum", v, 0);
                if (want_factor[v] == 1 || want_factor[v] == 0)
                    px_same(PX_SOFTMAX, got_factor[v], want_factor[v], "factor", v, 0);
            }
            px_same(PX_SOFTMAX, got_factor[n], px_junk(), "factor", n, 0);
            for (int i = 0; i < n * KVF_BLOCK; i++) {
                const float w = want.data[i];
                px_close(PX_SOFTMAX, got.data[i], w, w, "weight", i / KVF_BLOCK, i % KVF_BLOCK);
                if (w == 0 || w == 1) px_same(PX_SOFTMAX, got.data[i], w, "weight", i / KVF_BLOCK, i % KVF_BLOCK);
            }
            px_output_free(&want, "scalar weights");
            px_output_free(&got, "the weights");
        }
    }
}

static void test_softmax(void **state)
{
    (void)state;
    px_each_set(softmaxes);
}

/* The exponential itself, over all that it can meet, against double precision: scores below a maximum of 0. */
static void exponentials(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    (void)scalar;
    for (int i = 0; i < 20000; i++) {
        float s[KVF_BLOCK] = {0}, x[KVF_BLOCK] = {0}, max = 0, sum = 0, factor;
        for (int j = 0; j < KVF_BLOCK; j++) x[j] = s[j] = -(float)(i * KVF_BLOCK + j) * (90.0f / (20000 * KVF_BLOCK));
        fast->softmax(s, NULL, 1, &max, &sum, &factor);
        px_at("%s: exponentials from e^%g", fast->name, (double)x[0]);
        for (int j = 0; j < KVF_BLOCK; j++) px_close(PX_SOFTMAX, s[j], (float)exp((double)x[j]), exp((double)x[j]), "e^x", i, j);
    }
}

static void test_exponential(void **state)
{
    (void)state;
    px_each_set(exponentials);
}

/* ---- hadamard -------------------------------------------------------------------------------------------------------------- */

static void check_hadamard(const kvfi_kernels *scalar, const kvfi_kernels *fast, int dim, int block, int n, int round)
{
    const size_t stride = (size_t)dim + (size_t)(round % 3 * 5), bytes = stride * (size_t)n * sizeof(float);
    uint64_t state = (uint64_t)round;
    px_output want = px_output_make(bytes, 0), got = px_output_make(bytes, (size_t)(round % 4) * 4);
    px_at("%s: Hadamard of %d vectors of %d in blocks of %d, round %d", fast->name, n, dim, block, round);
    for (int v = 0; v < n; v++)
        for (int c = 0; c < dim; c++) {
            const float x = (float)ci_value((ci_kind)(round % CI_KIND_COUNT), v, c, dim, &state);
            want.data[(size_t)v * stride + (size_t)c] = got.data[(size_t)v * stride + (size_t)c] = x;
        }
    scalar->hadamard(want.data, stride, n, dim, block);
    fast->hadamard(got.data, stride, n, dim, block);
    for (int v = 0; v < n; v++) {
        for (int c = 0; c < dim; c++)
            px_same(PX_HADAMARD, got.data[(size_t)v * stride + (size_t)c], want.data[(size_t)v * stride + (size_t)c], "x", v, c);
        for (size_t c = (size_t)dim; c < stride; c++) px_untouched(&got, (size_t)v * stride + c, "the vectors");
    }
    px_output_free(&want, "scalar vectors");
    px_output_free(&got, "the vectors");
}

static void hadamards(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    int round = 0;
    for (int d = 0; d < CI_DIMS; d++)
        for (int block = 1; ci_dims[d] % block == 0; block *= 2)
            for (int i = 0; i < 6; i++, round++)
                check_hadamard(scalar, fast, ci_dims[d], block, px_vectors[(round * 3 + i) % PX_VECTORS], round);
    check_hadamard(scalar, fast, 1024, 1024, 2, 0);
    check_hadamard(scalar, fast, 12, 4, 3, 1); /* half a vector is left over */
    check_hadamard(scalar, fast, 14, 2, 3, 2);
}

static void test_hadamard(void **state)
{
    (void)state;
    px_each_set(hadamards);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_exponential),
        cmocka_unit_test(test_hadamard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
