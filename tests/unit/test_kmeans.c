/* SPDX-License-Identifier: MIT
 * Codebooks: k-means finds what is there, the same each time, and survives rows that are few, equal or far away; keys are trained on as
 * they are coded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "calib/kmeans.h"

enum { ROWS = 4000 };

static kvf_allocator memory(void)
{
    return kvfi_system_allocator();
}

static double gauss(uint64_t start, uint64_t i)
{
    double pair[2];
    kvfi_random_normals(start, i / 2, pair);
    return pair[i % 2];
}

static double error_of(const float *x, int64_t n, int dim, const float *c, int k)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double least = HUGE_VAL;
        for (int j = 0; j < k; j++) {
            double d = 0;
            for (int e = 0; e < dim; e++) d += pow((double)x[i * dim + e] - (double)c[j * dim + e], 2);
            least = fmin(least, d);
        }
        sum += least;
    }
    return sum / (double)n;
}

static void clusters_are_found(void **state)
{
    (void)state;
    const kvf_allocator a = memory();
    static const int dims[] = {2, 4, 8};
    for (int d = 0; d < 3; d++) {
        const int dim = dims[d];
        float *x = malloc((size_t)(ROWS * dim) * sizeof *x), c[16 * 8];
        for (int i = 0; i < ROWS; i++)
            for (int e = 0; e < dim; e++) /* 16 corners of a square of side 4 in two channels, noise of deviation 0.1 */
                x[i * dim + e] = (float)((e == 0   ? i % 4 * 4
                                          : e == 1 ? i / 4 % 4 * 4
                                                   : 0) +
                                         0.1 * gauss(5, (uint64_t)(i * dim + e)));
        assert_int_equal(kvfi_kmeans(x, ROWS, dim, 16, 2, 1, 30, c, &a), KVF_OK);
        const double error = error_of(x, ROWS, dim, c, 16);
        if (!(error < 0.0105 * dim)) fail_msg("%d channels: %g", dim, error);
        free(x);
    }
}

/* Of each unit variance of a normal pair 4 bits leave 0.0625 at least (Shannon: 2 bits a dimension, 2^-4), and the product of two optimal
 * scalar quantisers 0.1175 (Max, 1960), which centroids in the plane must beat. */
static void iterations_lower_the_error(void **state)
{
    (void)state;
    const kvf_allocator a = memory();
    float *x = malloc(2 * ROWS * sizeof *x), seeds[256 * 2], c[256 * 2], other[256 * 2];
    for (int i = 0; i < 2 * ROWS; i++) x[i] = (float)gauss(9, (uint64_t)i);
    assert_int_equal(kvfi_kmeans(x, ROWS, 2, 16, 2, 1, 0, seeds, &a), KVF_OK);
    assert_int_equal(kvfi_kmeans(x, ROWS, 2, 16, 2, 1, 30, c, &a), KVF_OK);
    const double before = error_of(x, ROWS, 2, seeds, 16), after = error_of(x, ROWS, 2, c, 16);
    if (!(after < 0.8 * before && after < 2 * 0.1175 * 0.97 && after > 2 * 0.0625)) fail_msg("%g, then %g", before, after);
    assert_int_equal(kvfi_kmeans(x, ROWS, 2, 16, 2, 1, 30, other, &a), KVF_OK);
    assert_memory_equal(c, other, 16 * 2 * sizeof *c);
    assert_int_equal(kvfi_kmeans(x, ROWS, 2, 16, 2, 2, 30, other, &a), KVF_OK);
    assert_memory_not_equal(c, other, 16 * 2 * sizeof *c);
    free(x);
}

/* 90 % of the rows are one point: most seeds drawn without looking would lie there and stay empty. */
static void no_centroid_is_wasted(void **state)
{
    (void)state;
    const kvf_allocator a = memory();
    float *x = calloc(4 * ROWS, sizeof *x), c[64 * 4];
    for (int i = 0; i < ROWS; i += 10)
        for (int e = 0; e < 4; e++) x[i * 4 + e] = (float)(100 + gauss(3, (uint64_t)(i * 4 + e)));
    assert_int_equal(kvfi_kmeans(x, ROWS, 4, 64, 2, 7, 30, c, &a), KVF_OK);
    int used[64] = {0}, n = 0;
    for (int i = 0; i < ROWS; i++) {
        int best = 0;
        double least = HUGE_VAL;
        for (int j = 0; j < 64; j++) {
            double d = 0;
            for (int e = 0; e < 4; e++) d += pow((double)x[i * 4 + e] - (double)c[j * 4 + e], 2);
            if (d < least) least = d, best = j;
        }
        n += !used[best], used[best] = 1;
    }
    assert_true(n >= 63);
    free(x);
}

static void few_and_equal_rows(void **state)
{
    (void)state;
    const kvf_allocator a = memory();
    float x[3 * 4] = {1, 2, 3, 4, 1, 2, 3, 4, -5, 0, 0, 9}, c[256 * 4], equal[100 * 2];
    assert_int_equal(kvfi_kmeans(x, 3, 4, 256, 2, 1, 30, c, &a), KVF_OK);
    assert_true(error_of(x, 3, 4, c, 256) == 0);
    for (int j = 0; j < 256; j++) /* nothing but rows */
        assert_true(!memcmp(c + 4 * j, x, 16) || !memcmp(c + 4 * j, x + 8, 16));
    assert_int_equal(kvfi_kmeans(NULL, 0, 4, 256, 2, 1, 30, c, &a), KVF_OK);
    for (int j = 0; j < 1024; j++) assert_true(c[j] == 0);
    for (int i = 0; i < 200; i++) equal[i] = -0.25f;
    assert_int_equal(kvfi_kmeans(equal, 100, 2, 16, 2, 1, 30, c, &a), KVF_OK);
    for (int j = 0; j < 32; j++) assert_true(c[j] == -0.25f);
    assert_int_equal(kvfi_kmeans(equal, 100, 2, 16, 4, 1, 30, c, &a), KVF_OK);
    for (int j = 0; j < 32; j++) assert_true(c[j] == -0.25f);
    assert_int_equal(kvfi_kmeans(x, 3, 4, 256, 4, 1, 30, c, &a), KVF_OK);
    assert_true(error_of(x, 3, 4, c, 256) == 0);
}

/* Sum of the fourth powers of the distances. */
static double fourth_powers(const float *x, int n, int dim, const float *c, int k)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += pow(error_of(x + i * dim, 1, dim, c, k), 2);
    return sum;
}

/* One row in a hundred is five times as long: what makes squares small leaves it far off, what makes fourth powers small does not. */
static void fourth_powers_reach_long_rows(void **state)
{
    (void)state;
    const kvf_allocator a = memory();
    float *x = malloc(ROWS * 4 * sizeof *x), squares[64 * 4], fourth[64 * 4];
    for (int i = 0; i < ROWS * 4; i++) x[i] = (float)((i / 4 % 100 ? 1 : 5) * gauss(8, (uint64_t)i));
    assert_int_equal(kvfi_kmeans(x, ROWS, 4, 64, 2, 1, 30, squares, &a), KVF_OK);
    assert_int_equal(kvfi_kmeans(x, ROWS, 4, 64, 4, 1, 30, fourth, &a), KVF_OK);
    assert_true(error_of(x, ROWS, 4, squares, 64) < error_of(x, ROWS, 4, fourth, 64));
    const double with = fourth_powers(x, ROWS, 4, fourth, 64), without = fourth_powers(x, ROWS, 4, squares, 64);
    if (with > 0.9 * without) fail_msg("sum of fourth powers %g, by squares %g", with, without);
    free(x);
}

/* Keys are trained by fourth powers, values by squares. */
static void sides_are_trained_by_their_power(void **state)
{
    (void)state;
    const kvf_allocator a = memory();
    float *x = malloc(ROWS * 4 * sizeof *x), keys[16 * 4], values[16 * 4], want[16 * 4];
    for (int i = 0; i < ROWS * 4; i++) x[i] = (float)((i / 4 % 100 ? 1 : 5) * gauss(8, (uint64_t)i));
    const kvfi_training_rows set = {.x = x, .n = ROWS};
    assert_int_equal(kvfi_train_codebook(KVF_V, 4, 4, 4, &set, 1, 3, values, &a), KVF_OK);
    assert_int_equal(kvfi_kmeans(x, ROWS, 4, 16, 2, 3, KVFI_KMEANS_ITERATIONS, want, &a), KVF_OK);
    assert_memory_equal(values, want, sizeof want);
    assert_int_equal(kvfi_train_codebook(KVF_K, 4, 4, 4, &set, 1, 3, keys, &a), KVF_OK);
    kvfi_transform_keys(x, ROWS, 4, NULL, NULL);
    assert_int_equal(kvfi_kmeans(x, ROWS, 4, 16, 4, 3, KVFI_KMEANS_ITERATIONS, want, &a), KVF_OK);
    assert_memory_equal(keys, want, sizeof want);
    free(x);
}

static void wrong_input_is_refused(void **state)
{
    (void)state;
    const kvf_allocator a = memory();
    float x[16] = {0}, c[64];
    assert_int_equal(kvfi_kmeans(x, 4, 3, 4, 2, 1, 30, c, &a), KVF_E_ARG);
    assert_int_equal(kvfi_kmeans(x, -1, 4, 4, 2, 1, 30, c, &a), KVF_E_ARG);
    assert_int_equal(kvfi_kmeans(x, 4, 4, 0, 2, 1, 30, c, &a), KVF_E_ARG);
    assert_int_equal(kvfi_kmeans(x, 4, 4, 4097, 2, 1, 30, c, &a), KVF_E_ARG);
    assert_int_equal(kvfi_kmeans(x, 4, 4, 4, 3, 1, 30, c, &a), KVF_E_ARG);
    x[7] = NAN;
    assert_int_equal(kvfi_kmeans(x, 4, 4, 4, 2, 1, 30, c, &a), KVF_E_NONFINITE);
    x[7] = 2e18f;
    assert_int_equal(kvfi_kmeans(x, 4, 4, 4, 2, 1, 30, c, &a), KVF_E_NONFINITE);
    x[7] = 0;
    const kvfi_training_rows set = {.x = x, .n = 1};
    assert_int_equal(kvfi_train_codebook(KVF_V, 16, 4, 13, &set, 1, 1, c, &a), KVF_E_ARG);
    assert_int_equal(kvfi_train_codebook(KVF_V, 0, 4, 8, &set, 1, 1, c, &a), KVF_E_ARG);
    assert_int_equal(kvfi_train_codebook(KVF_V, 16, 5, 8, &set, 1, 1, c, &a), KVF_E_ARG);
}

/* ---- keys ------------------------------------------------------------------------------------------------------------------- */

enum { DIM = 64, KEYS = 2000 };

/* Keys with a mean and channels of very different sizes, as models have them. */
typedef struct world {
    float x[KEYS * DIM], centre[DIM], lambda[DIM];
} world;

static world *make_world(void)
{
    world *w = malloc(sizeof *w);
    for (int c = 0; c < DIM; c++) w->centre[c] = (float)(3 * gauss(1, (uint64_t)c)), w->lambda[c] = 0;
    for (int i = 0; i < KEYS; i++)
        for (int c = 0; c < DIM; c++) {
            const double size = c % 16 == 3 ? 8 : 0.5, x = size * gauss(2, (uint64_t)(i * DIM + c));
            w->x[i * DIM + c] = (float)((double)w->centre[c] + x);
            w->lambda[c] = fmaxf(w->lambda[c], fabsf((float)x));
        }
    for (int c = 0; c < DIM; c++) w->lambda[c] = sqrtf(w->lambda[c]);
    return w;
}

/* Mean squared error of products with queries as large as lambda makes them: what a key error costs, sum (error of channel / lambda)^2. */
static double coded_error(const world *w, const float *book)
{
    static float y[KEYS * DIM];
    memcpy(y, w->x, sizeof y);
    kvfi_transform_keys(y, KEYS, DIM, w->centre, w->lambda);
    return error_of(y, KEYS * DIM / 4, 4, book, 256);
}

static void keys_are_trained_as_they_are_coded(void **state)
{
    (void)state;
    const kvf_allocator a = memory();
    world *w = make_world();
    float raw[256 * 4], transformed[256 * 4];
    const kvfi_training_rows as_coded = {w->x, KEYS, w->centre, w->lambda};
    assert_int_equal(kvfi_train_codebook(KVF_V, DIM, 4, 8, &as_coded, 1, 5, raw, &a), KVF_OK); /* values: rows as they are */
    assert_int_equal(kvfi_train_codebook(KVF_K, DIM, 4, 8, &as_coded, 1, 5, transformed, &a), KVF_OK);
    const double wrong = coded_error(w, raw), right = coded_error(w, transformed);
    if (!(right < 0.5 * wrong)) fail_msg("trained on raw keys %g, on transformed ones %g", wrong, right);
    free(w);
}

/* Lambda belongs to the KV head, and each query head of its group is multiplied by it: before coding, products are those of the keys
 * less their centre, whatever the ratio of heads. */
static void products_survive_the_transform(void **state)
{
    (void)state;
    static const int ratios[] = {1, 3, 4, 7};
    world *w = make_world();
    for (int r = 0; r < 4; r++)
        for (int head = 0; head < 2 * ratios[r]; head++) {
            float q[DIM], back[DIM], ones[DIM], k[DIM];
            for (int c = 0; c < DIM; c++) {
                const float lambda = w->lambda[c] * (float)(1 + head / ratios[r]); /* of the KV head that it reads */
                q[c] = (float)gauss(4, (uint64_t)(head * DIM + c)), back[c] = q[c] * lambda, ones[c] = lambda;
            }
            kvfi_transform_keys(back, 1, DIM, NULL, NULL);
            for (int t = 0; t < 50; t++) {
                double want = 0, got = 0, size = 0;
                memcpy(k, w->x + t * DIM, sizeof k);
                kvfi_transform_keys(k, 1, DIM, w->centre, ones);
                for (int c = 0; c < DIM; c++) {
                    const double centred = (double)w->x[t * DIM + c] - (double)w->centre[c];
                    want += (double)q[c] * centred, size += fabs((double)q[c] * centred), got += (double)back[c] * (double)k[c];
                }
                /* some twenty roundings of 2^-24 on either way */
                if (fabs(got - want) > 40 * 0x1p-24 * size) fail_msg("ratio %d: %g instead of %g", ratios[r], got, want);
            }
        }
    free(w);
}

/* Several heads with stages of their own train one table; more rows than the bound are drawn from all of them. */
static void heads_share_a_codebook(void **state)
{
    (void)state;
    const kvf_allocator a = memory();
    enum { N = 3000, WIDE = 256 };
    float *x = malloc(2 * N * WIDE * sizeof *x), book[16 * 8];
    for (int i = 0; i < 2 * N * WIDE; i++) x[i] = (float)((i < N * WIDE ? -4 : 4) + 0.1 * gauss(6, (uint64_t)i));
    const kvfi_training_rows sets[] = {{.x = x, .n = N}, {.x = NULL, .n = 0}, {.x = x + N * WIDE, .n = N}};
    assert_true(2 * N * WIDE / 8 > KVFI_TRAINING_MOST);
    assert_int_equal(kvfi_train_codebook(KVF_V, WIDE, 8, 4, sets, 3, 5, book, &a), KVF_OK);
    int low = 0;
    for (int j = 0; j < 16; j++) low += book[8 * j] < 0;
    assert_true(low >= 4 && low <= 12);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clusters_are_found),
        cmocka_unit_test(iterations_lower_the_error),
        cmocka_unit_test(no_centroid_is_wasted),
        cmocka_unit_test(few_and_equal_rows),
        cmocka_unit_test(fourth_powers_reach_long_rows),
        cmocka_unit_test(sides_are_trained_by_their_power),
        cmocka_unit_test(wrong_input_is_refused),
        cmocka_unit_test(keys_are_trained_as_they_are_coded),
        cmocka_unit_test(products_survive_the_transform),
        cmocka_unit_test(heads_share_a_codebook),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
