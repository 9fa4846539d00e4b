/* SPDX-License-Identifier: MIT
 * Rotations against their matrices: every head size, there and back; matrices drawn at random are orthogonal and differ by seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../unit/codec_inputs.h"
#include "codec/shared/rotation.h"
#include "cpu/isa.h"
#include "oracle_rotation.h"

#include <stdio.h>

/* f32 butterflies of up to 10 levels (and a sum of 28) against sums in double, on vectors of length about sqrt(n). */
static const double LIMIT = 4e-6;

static int made(const char *name, unsigned seed, int dim, kvf_rotation *rot, oracle_rotation *r)
{
    char options[32];
    snprintf(options, sizeof options, "rot=%s,seed=%u", name, seed);
    assert_int_equal(kvfi_rotation_init(rot, name, seed, dim), 1);
    return oracle_read_rotation(options, "none", dim, r);
}

static void there_and_back(const char *name, unsigned seed, int dim)
{
    kvf_rotation rot;
    oracle_rotation r;
    kvfi_kernels k;
    float x[1024] = {0}, y[1024];
    double in[1024], want[1024];
    uint64_t random = (uint64_t)dim;
    if (!made(name, seed, dim, &rot, &r)) return;
    if (rot.size != r.size) fail_msg("%s of %d channels turns %d, not %d", name, dim, (int)rot.size, r.size);
    kvfi_kernels_scalar(&k);
    for (int c = 0; c < dim; c++) x[c] = (float)ci_gauss(&random), in[c] = (double)x[c];
    memcpy(y, x, sizeof y);
    oracle_rotate(&r, in, want);
    kvfi_rotate(&rot, k.hadamard, y, 1024, 1);
    for (int c = 0; c < r.size; c++)
        if (fabs((double)y[c] - want[c]) > LIMIT * sqrt(dim))
            fail_msg("%s, %d channels, channel %d: %g, not %g", name, dim, c, (double)y[c], want[c]);
    kvfi_rotate_back(&rot, k.hadamard, y, 1024, 1);
    for (int c = 0; c < dim; c++) assert_true(fabs((double)y[c] - in[c]) <= LIMIT * sqrt(dim));
}

static void every_head_size_there_and_back(void **state)
{
    (void)state;
    for (int dim = 1; dim <= 1024; dim += dim < 130 ? 1 : dim < 600 ? 22 : 53)
        for (unsigned seed = 0; seed < 2; seed++) {
            there_and_back("none", seed, dim);
            there_and_back("h", seed, dim);
            there_and_back("h1", seed, dim);
            there_and_back("h2", seed, dim);
        }
    there_and_back("h2", 999999, 1024);
}

/* Sizes that have a matrix are not padded, the others by a quarter at most from 16 channels on. */
static void padding_is_small(void **state)
{
    static const int whole[] = {1,   2,   12,  20,  28,  40,  56,  64,  80,  96,  112,
                                128, 160, 192, 224, 256, 320, 512, 640, 768, 896, 1024};
    (void)state;
    int32_t odd;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) assert_int_equal(kvfi_hadamard_size(whole[i], &odd), whole[i]);
    for (int dim = 16; dim <= 1024; dim++) assert_true(kvfi_hadamard_size(dim, &odd) * 4 <= dim * 5);
}

static void oracle_matrices_are_hadamard(void **state)
{
    static const int sizes[] = {1, 2, 8, 12, 20, 24, 28, 40, 56};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int i = 0; i < sizes[s]; i++)
            for (int j = 0; j < sizes[s]; j++) {
                int dot = 0;
                for (int c = 0; c < sizes[s]; c++) dot += oracle_hadamard(sizes[s], i, c) * oracle_hadamard(sizes[s], j, c);
                assert_int_equal(dot, i == j ? sizes[s] : 0);
            }
}

static float *matrix(unsigned seed, int dim, kvf_rotation *rot)
{
    assert_int_equal(kvfi_rotation_init(rot, "haar", seed, dim), 1);
    size_t n = kvfi_rotation_floats(rot);
    assert_int_equal(n, dim * dim);
    double *work = ci_alloc(n * sizeof *work);
    float *m = ci_alloc(n * sizeof *m);
    kvfi_rotation_fill(rot, work, m);
    rot->matrix = m;
    free(work);
    return m;
}

static void drawn_matrices_are_orthogonal(void **state)
{
    static const int sizes[] = {1, 2, 7, 64, 80, 128};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        kvf_rotation rot, other;
        const int n = sizes[s];
        float *m = matrix(3, n, &rot), *o = matrix(4, n, &other), x[128], y[128];
        double most = 0, same = 0;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                double dot = 0;
                for (int c = 0; c < n; c++) dot += (double)m[i * n + c] * (double)m[j * n + c];
                most = fmax(most, fabs(dot - (i == j)));
                same += (double)m[i * n + j] * (double)o[i * n + j] / n;
            }
        assert_true(most < 1e-6);
        if (n >= 64) assert_true(fabs(same) < 0.1); /* independent: deviation 1 / n */
        uint64_t random = 9;
        for (int c = 0; c < n; c++) x[c] = y[c] = (float)ci_gauss(&random);
        kvfi_rotate(&rot, NULL, y, 0, 1);
        for (int c = 0; n >= 64 && c < n; c++) {
            double want = 0;
            for (int i = 0; i < n; i++) want += (double)x[i] * (double)m[i * n + c];
            assert_true(fabs(want - (double)y[c]) < 1e-5);
        }
        kvfi_rotate_back(&rot, NULL, y, 0, 1);
        for (int c = 0; c < n; c++) assert_true(fabs((double)y[c] - (double)x[c]) < 1e-5);
        free(m), free(o);
    }
}

/* Of 1,024 signs about half are minus, and those of another seed or round agree with them about half the time (6 deviations). */
static void signs_are_random(void **state)
{
    kvf_rotation a, b;
    (void)state;
    assert_int_equal(kvfi_rotation_init(&a, "h2", 0, 1024), 1);
    assert_int_equal(kvfi_rotation_init(&b, "h2", 1, 1024), 1);
    int minus = 0, seeds = 0, rounds = 0;
    for (int c = 0; c < 1024; c++) {
        const uint32_t first = a.minus[0][c / 32] >> c % 32 & 1;
        minus += (int)first;
        seeds += first == (b.minus[0][c / 32] >> c % 32 & 1);
        rounds += first == (a.minus[1][c / 32] >> c % 32 & 1);
    }
    assert_true(abs(minus - 512) < 96 && abs(seeds - 512) < 96 && abs(rounds - 512) < 96);
}

static void unknown_names_are_refused(void **state)
{
    kvf_rotation rot;
    (void)state;
    assert_int_equal(kvfi_rotation_init(&rot, "", 0, 64), 0);
    assert_int_equal(kvfi_rotation_init(&rot, "h3", 0, 64), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_head_size_there_and_back),
        cmocka_unit_test(padding_is_small),
        cmocka_unit_test(oracle_matrices_are_hadamard),
        cmocka_unit_test(drawn_matrices_are_orthogonal),
        cmocka_unit_test(signs_are_random),
        cmocka_unit_test(unknown_names_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
