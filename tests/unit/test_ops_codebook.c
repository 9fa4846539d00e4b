/* SPDX-License-Identifier: MIT
 * Codebooks as operations: nearest levels and ties, refusals, and that the fused form is the steps one after the other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>

#include "codec_inputs.h"
#include "statistics.h"

/* Levels known from print: docs of tests/unit/test_codebook.c hold the rest. */
static void codebooks_have_known_levels(void **state)
{
    (void)state;
    float level[256];
    double error;
    assert_int_equal(kvf_op_codebook(2, 0, level, &error), KVF_OK);
    assert_true(fabs(error - 0.117482) < 1e-6 && fabsf(level[3] - 1.510418f) < 2e-6f && fabsf(level[2] - 0.452780f) < 2e-6f);
    assert_true(level[0] == -level[3] && level[1] == -level[2]);
    assert_int_equal(kvf_op_codebook(1, 128, level, NULL), KVF_OK);
    assert_true(fabsf(level[1] - 0.7994f) < 6e-5f);
    for (int bits = 1; bits <= 8; bits++) {
        assert_int_equal(kvf_op_codebook(bits, 80, level, &error), KVF_OK);
        for (int i = 1; i < 1 << bits; i++) assert_true(level[i] > level[i - 1]);
    }
    assert_int_equal(kvf_op_codebook(0, 0, level, NULL), KVF_E_ARG);
    assert_int_equal(kvf_op_codebook(9, 0, level, NULL), KVF_E_ARG);
    assert_int_equal(kvf_op_codebook(2, -1, level, NULL), KVF_E_ARG);
    assert_int_equal(kvf_op_codebook(2, 0, NULL, NULL), KVF_E_ARG);
}

/* Against a search of all levels; ties and their neighbours on both sides. */
static void the_nearest_level_is_found(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 7, 16, 100, 255, 256};
    uint64_t seed = 3;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const int n = sizes[k];
        float level[256], x[4096];
        uint8_t code[4096];
        level[0] = -3;
        for (int i = 1; i < n; i++)
            level[i] = level[i - 1] + (i % 5 == 4 ? 0 : (float)(1 + ci_next(&seed) % 64) / 64); /* equal ones too */
        for (int i = 0; i < 4096; i++) {
            const int at = n > 1 ? (int)(ci_next(&seed) % (uint64_t)(n - 1)) : 0;
            const float mid = n > 1 ? (level[at] + level[at + 1]) / 2 : 0;
            x[i] = i % 4 == 0   ? mid
                   : i % 4 == 1 ? nextafterf(mid, 100)
                   : i % 4 == 2 ? nextafterf(mid, -100)
                                : (float)(4 * ci_gauss(&seed));
        }
        x[3] = INFINITY, x[7] = -INFINITY, x[11] = FLT_MAX, x[15] = -0.0f;
        assert_int_equal(kvf_op_codebook_quantise(x, 4096, level, n, code), KVF_OK);
        for (int i = 0; i < 4096; i++) {
            int count = 0;
            for (int j = 0; j + 1 < n; j++) count += ((double)level[j] + level[j + 1]) / 2 < (double)x[i];
            assert_int_equal(code[i], count);
        }
        float back[4096];
        assert_int_equal(kvf_op_codebook_dequantise(code, 4096, level, n, back), KVF_OK);
        for (int i = 0; i < 4096; i++) {
            assert_true(back[i] == level[code[i]]);
            for (int j = 0; j < n && isfinite(x[i]); j++)
                assert_true(fabs((double)x[i] - (double)back[i]) <= fabs((double)x[i] - (double)level[j]));
        }
    }
}

static void what_codebooks_refuse(void **state)
{
    (void)state;
    const float up[] = {0, 1, 2}, down[] = {0, 2, 1}, far[] = {-FLT_MAX, 0, FLT_MAX}, none[] = {0, NAN, 1}, x[] = {0, NAN};
    const uint8_t code[] = {0, 3};
    uint8_t out[2];
    float back[2];
    assert_int_equal(kvf_op_codebook_quantise(x, 1, up, 3, out), KVF_OK);
    assert_int_equal(kvf_op_codebook_quantise(x, 2, up, 3, out), KVF_E_NONFINITE);
    assert_int_equal(kvf_op_codebook_quantise(x, 1, down, 3, out), KVF_E_ARG);
    assert_int_equal(kvf_op_codebook_quantise(x, 1, far, 3, out), KVF_E_NONFINITE);
    assert_int_equal(kvf_op_codebook_quantise(x, 1, none, 3, out), KVF_E_NONFINITE);
    assert_int_equal(kvf_op_codebook_quantise(x, 1, up, 0, out), KVF_E_ARG);
    assert_int_equal(kvf_op_codebook_quantise(x, 1, up, 257, out), KVF_E_ARG);
    assert_int_equal(kvf_op_codebook_quantise(NULL, 1, up, 3, out), KVF_E_ARG);
    assert_int_equal(kvf_op_codebook_quantise(NULL, 0, up, 3, NULL), KVF_OK);
    assert_int_equal(kvf_op_codebook_dequantise(code, 2, up, 3, back), KVF_E_ARG);
    assert_int_equal(kvf_op_codebook_dequantise(code, 1, up, 3, back), KVF_OK);
    assert_int_equal(kvf_op_codebook_dequantise(code, 1, NULL, 3, back), KVF_E_ARG);
}

/* The fused form against the operations that it is made of. */
static void fused_is_the_steps_one_after_the_other(void **state)
{
    (void)state;
    static const struct {
        int dim;
        const char *rot;
    } shapes[] = {{1, "h1"},  {2, "h"},    {40, "h"},     {64, "h1"}, {72, "h1"},
                  {96, "h2"}, {128, "h1"}, {128, "none"}, {576, "h"}, {1024, "h1"}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        for (int bits = 1; bits <= 8; bits++)
            for (int kind = 0; kind < CI_KIND_COUNT; kind++) {
                const int dim = shapes[k].dim, size = kvf_op_rotated_size(shapes[k].rot, dim);
                const char *rot = shapes[k].rot;
                const size_t bytes = kvf_op_packed_bytes((size_t)size, bits);
                float level[256], norm[CI_TOKENS], *x = ci_alloc((size_t)(CI_TOKENS * dim) * 4), *y = ci_alloc((size_t)size * 4);
                uint8_t *packed = ci_alloc(CI_TOKENS * bytes + 1), *codes = ci_alloc((size_t)size), *want = ci_alloc(bytes);
                assert_int_equal(kvf_op_codebook(bits, size, level, NULL), KVF_OK);
                ci_fill(x, dim, (ci_kind)kind, 8);
                packed[CI_TOKENS * bytes] = 0x5a;
                assert_int_equal(kvf_op_rotate_quantise_pack(rot, 5, x, CI_TOKENS, dim, level, bits, packed, norm), KVF_OK);
                assert_int_equal(packed[CI_TOKENS * bytes], 0x5a);
                for (int t = 0; t < CI_TOKENS; t++) {
                    double square = 0;
                    for (int c = 0; c < dim; c++) square += (double)x[t * dim + c] * x[t * dim + c];
                    assert_true(fabs(norm[t] - sqrt(square)) <= 1e-6 * sqrt(square));
                    assert_int_equal(kvf_op_rotate(rot, 5, x + t * dim, 1, dim, y), KVF_OK);
                    const float inverse = norm[t] > 0 ? sqrtf((float)size) / norm[t] : 0;
                    for (int c = 0; c < size; c++) y[c] *= inverse;
                    assert_int_equal(kvf_op_codebook_quantise(y, (size_t)size, level, 1 << bits, codes), KVF_OK);
                    assert_int_equal(kvf_op_pack(codes, (size_t)size, bits, want), KVF_OK);
                    assert_memory_equal(packed + (size_t)t * bytes, want, bytes);
                }
                free(x), free(y), free(packed), free(codes), free(want);
            }
}

/* There and back: the error of the codebook. */
static void fused_back_has_the_error_of_the_codebook(void **state)
{
    (void)state;
    for (int bits = 1; bits <= 5; bits++) {
        enum { DIM = 128, N = 1024 };
        float level[32], norm[1], x[DIM], y[DIM];
        uint8_t packed[DIM];
        double want;
        mean error = {0};
        uint64_t seed = 6;
        assert_int_equal(kvf_op_codebook(bits, DIM, level, &want), KVF_OK);
        for (int i = 0; i < N; i++) {
            double xx = 0, dd = 0;
            for (int c = 0; c < DIM; c++) x[c] = (float)normal(&seed);
            assert_int_equal(kvf_op_rotate_quantise_pack("h1", 1, x, 1, DIM, level, bits, packed, norm), KVF_OK);
            assert_int_equal(kvf_op_unpack_dequantise_rotate("h1", 1, packed, norm, 1, DIM, level, bits, y), KVF_OK);
            for (int c = 0; c < DIM; c++) xx += (double)x[c] * x[c], dd += ((double)x[c] - y[c]) * ((double)x[c] - y[c]);
            add(&error, dd / xx);
        }
        assert_true(fabs(mean_of(&error) - want) < ERRORS * standard_error(&error));
    }
}

/* A rotation is undone by the one back, keeps lengths, and depends on its seed. */
static void rotations_there_and_back(void **state)
{
    (void)state;
    static const char *const names[] = {"none", "h", "h1", "h2"};
    for (int i = 0; i < 4; i++)
        for (int dim = 2; dim <= 1024; dim = dim * 3 / 2 + 1 + dim % 2) {
            const int size = kvf_op_rotated_size(names[i], dim);
            float *x = ci_alloc((size_t)dim * 8), *back = ci_alloc((size_t)dim * 8), *y = ci_alloc((size_t)size * 8),
                  *other = ci_alloc((size_t)size * 8);
            uint64_t seed = (uint64_t)dim;
            double xx = 0, yy = 0;
            for (int c = 0; c < 2 * dim; c++) x[c] = (float)normal(&seed), xx += (double)x[c] * x[c];
            assert_int_equal(kvf_op_rotate(names[i], 7, x, 2, dim, y), KVF_OK);
            assert_int_equal(kvf_op_rotate(names[i], 8, x, 2, dim, other), KVF_OK);
            assert_int_equal(kvf_op_rotate_back(names[i], 7, y, 2, dim, back), KVF_OK);
            for (int c = 0; c < 2 * size; c++) yy += (double)y[c] * y[c];
            assert_true(fabs(yy - xx) < 1e-5 * xx);
            for (int c = 0; c < 2 * dim; c++) assert_true(fabs((double)back[c] - x[c]) < 2e-5);
            if (dim >= 32) assert_int_equal(memcmp(y, other, (size_t)size * 8) != 0, i > 1); /* few signs may be the same */
            if (i < 2) assert_int_equal(size, dim);
            free(x), free(back), free(y), free(other);
        }
}

static void what_the_fused_form_refuses(void **state)
{
    (void)state;
    float level[2] = {-0.8f, 0.8f}, x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, norm[1];
    uint8_t packed[1] = {0};
    assert_int_equal(kvf_op_rotate_quantise_pack("h", 0, x, 1, 8, level, 1, packed, norm), KVF_OK);
    assert_int_equal(kvf_op_rotate_quantise_pack("h3", 0, x, 1, 8, level, 1, packed, norm), KVF_E_ARG);
    assert_int_equal(kvf_op_rotate_quantise_pack("haar", 0, x, 1, 8, level, 1, packed, norm), KVF_E_ARG); /* needs memory */
    assert_int_equal(kvf_op_rotate_quantise_pack(NULL, 0, x, 1, 8, level, 1, packed, norm), KVF_E_ARG);
    assert_int_equal(kvf_op_rotate_quantise_pack("h", 0, x, 1, 1025, level, 1, packed, norm), KVF_E_ARG);
    assert_int_equal(kvf_op_rotate_quantise_pack("h", 0, x, 1, 8, level, 9, packed, norm), KVF_E_ARG);
    assert_int_equal(kvf_op_rotate_quantise_pack("h", 0, NULL, 1, 8, level, 1, packed, norm), KVF_E_ARG);
    assert_int_equal(kvf_op_rotate_quantise_pack("h", 0, NULL, 0, 8, level, 1, NULL, NULL), KVF_OK);
    assert_int_equal(kvf_op_rotate("h1", 0, NULL, 1, 8, x), KVF_E_ARG);
    assert_int_equal(kvf_op_rotate("h1", 0, x, -1, 8, x), KVF_E_ARG);
    assert_int_equal(kvf_op_rotate_back("h1", 0, NULL, 0, 8, NULL), KVF_OK);
    assert_int_equal(kvf_op_rotated_size("h1", 0), KVF_E_ARG);
    assert_int_equal(kvf_op_rotated_size("h1", 72), 80);
    x[3] = NAN;
    assert_int_equal(kvf_op_rotate_quantise_pack("h", 0, x, 1, 8, level, 1, packed, norm), KVF_E_NONFINITE);
    x[3] = 3e38f;
    assert_int_equal(kvf_op_rotate_quantise_pack("h", 0, x, 1, 8, level, 1, packed, norm), KVF_E_NONFINITE);
    /* what lies before the bad vector is done, itself and what lies behind it are untouched */
    const float three[3][8] = {{1, 2, 3, 4, 5, 6, 7, 8}, {INFINITY}, {1}};
    uint8_t codes[3] = {9, 9, 9}, first = 0;
    float lengths[3] = {-1, -1, -1};
    assert_int_equal(kvf_op_rotate_quantise_pack("h", 0, three[0], 3, 8, level, 1, codes, lengths), KVF_E_NONFINITE);
    assert_int_equal(kvf_op_rotate_quantise_pack("h", 0, three[0], 1, 8, level, 1, &first, norm), KVF_OK);
    assert_true(codes[0] == first && codes[1] == 9 && codes[2] == 9);
    assert_true(lengths[0] == norm[0] && lengths[1] == -1 && lengths[2] == -1);
    assert_int_equal(kvf_op_unpack_dequantise_rotate("h", 0, NULL, norm, 1, 8, level, 1, x), KVF_E_ARG);
    assert_int_equal(kvf_op_unpack_dequantise_rotate("x", 0, packed, norm, 1, 8, level, 1, x), KVF_E_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codebooks_have_known_levels),
        cmocka_unit_test(the_nearest_level_is_found),
        cmocka_unit_test(what_codebooks_refuse),
        cmocka_unit_test(fused_is_the_steps_one_after_the_other),
        cmocka_unit_test(fused_back_has_the_error_of_the_codebook),
        cmocka_unit_test(rotations_there_and_back),
        cmocka_unit_test(what_the_fused_form_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
