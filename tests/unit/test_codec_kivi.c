/* SPDX-License-Identifier: MIT
 * KIVI bit by bit: the operations on plain arrays against the definition, the three traps, and records against the operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>

#include "codec/shared/part.h"
#include "codec_inputs.h"
#include "cpu/isa.h"

/* ---- the definition, group by group, in double with the roundings that it states ---- */

typedef struct result {
    uint8_t *codes;
    float *scale, *zero;
} result;

static double once(double x)
{
    return (double)(float)x;
}

static void define_group(const float *x, int64_t first, int64_t stride, int64_t n, int bits, result *r, int64_t g)
{
    double low = x[first], high = low, levels = (1 << bits) - 1;
    for (int64_t i = 0; i < n; i++) {
        low = fmin(low, x[first + i * stride]);
        high = fmax(high, x[first + i * stride]);
    }
    double scale = fmax(once(once(high - low) / levels), (double)1e-8f);
    r->scale[g] = (float)scale;
    r->zero[g] = (float)low;
    for (int64_t i = 0; i < n; i++) {
        double code = nearbyint(once(once(x[first + i * stride] - low) / scale));
        r->codes[first + i * stride] = (uint8_t)fmin(fmax(code, 0), levels);
    }
}

static void define(const float *x, int64_t tokens, int64_t dim, int bits, int group, int axis, result *r)
{
    int64_t g = 0;
    if (axis) {
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t c = 0; c < dim; c += group)
                define_group(x, t * dim + c, 1, dim - c < group ? dim - c : group, bits, r, g++);
    } else {
        for (int64_t t = 0; t < tokens; t += group)
            for (int64_t c = 0; c < dim; c++)
                define_group(x, t * dim + c, dim, tokens - t < group ? tokens - t : group, bits, r, g++);
    }
}

static result make_result(int64_t n)
{
    size_t size = (size_t)(n + 8);
    result r = {ci_alloc(size), ci_alloc(size * sizeof(float)), ci_alloc(size * sizeof(float))};
    memset(r.codes, 0x5a, size);
    for (size_t i = 0; i < size; i++) r.scale[i] = r.zero[i] = -7.0f;
    return r;
}

static void free_result(result *r)
{
    free(r->codes), free(r->scale), free(r->zero);
}

/* Shapes with whole, short and single groups; f32 input that no f16 holds; canaries behind every output. */
static void operations_equal_their_definition(void **state)
{
    (void)state;
    static const struct {
        int64_t tokens, dim;
        int group;
    } shapes[] = {{64, 64, 32}, {1, 1, 1}, {50, 40, 32}, {31, 72, 32}, {33, 65, 64}, {100, 3, 16}, {7, 576, 128}, {2, 5, 1000}};
    uint64_t seed = 77;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int bits = 1; bits <= 8; bits++)
            for (int axis = 0; axis < 2; axis++) {
                int64_t tokens = shapes[i].tokens, dim = shapes[i].dim, n = tokens * dim;
                int64_t groups = axis ? tokens * ((dim + shapes[i].group - 1) / shapes[i].group)
                                      : (tokens + shapes[i].group - 1) / shapes[i].group * dim;
                float *x = ci_alloc((size_t)n * sizeof *x), *back = ci_alloc((size_t)(n + 1) * sizeof *back);
                for (int64_t j = 0; j < n; j++) x[j] = (float)(ci_gauss(&seed) * (j % 3 ? 1 : 1e-3));
                result want = make_result(n), got = make_result(n);
                define(x, tokens, dim, bits, shapes[i].group, axis, &want);
                assert_int_equal(
                    kvf_op_kivi_quantise(x, tokens, dim, bits, shapes[i].group, axis, KVF_F32, got.codes, got.scale, got.zero),
                    KVF_OK);
                assert_memory_equal(want.codes, got.codes, (size_t)n + 8);
                assert_memory_equal(want.scale, got.scale, (size_t)(groups + 1) * sizeof(float));
                assert_memory_equal(want.zero, got.zero, (size_t)(groups + 1) * sizeof(float));
                back[n] = 42;
                assert_int_equal(kvf_op_kivi_dequantise(got.codes, got.scale, got.zero, tokens, dim, shapes[i].group, axis, back),
                                 KVF_OK);
                for (int64_t j = 0; j < n; j++) {
                    int64_t t = j / dim, c = j % dim, per = (dim + shapes[i].group - 1) / shapes[i].group;
                    int64_t g = axis ? t * per + c / shapes[i].group : t / shapes[i].group * dim + c;
                    assert_true(back[j] == once(once((double)got.codes[j] * got.scale[g]) + got.zero[g]));
                }
                assert_true(back[n] == 42);
                free(x), free(back), free_result(&want), free_result(&got);
            }
}

/* ---- the three traps ---- */

/* Dequantising multiplies and adds apart. The numbers are chosen so that a fused operation would differ; that it would is part
 * of the test. */
static void multiplication_and_addition_are_rounded_apart(void **state)
{
    (void)state;
    uint64_t seed = 1;
    int differ = 0;
    kvfi_kernels k;
    kvfi_kernels_scalar(&k);
    static float tile[64 * 16];
    for (int side = KVF_K; side <= KVF_V; side++) {
        kvf_part part;
        assert_int_equal(kvfi_part_setup("kivi8:group=16", (kvf_side)side, 16, &part, NULL, 0), KVF_OK);
        uint8_t *record = ci_alloc(part.bytes);
        for (int round = 0; round < 50; round++) {
            uint16_t *scale = kvfi_halves(record, part.scale_offset), *min = kvfi_halves(record, part.min_offset);
            for (int i = 0; i < 64; i++) {
                scale[i] = (uint16_t)(0x2000 + ci_next(&seed) % 0x1800);
                min[i] = (uint16_t)(0xb000 + ci_next(&seed) % 0x1800);
            }
            for (size_t i = 0; i < part.scale_offset; i++) record[i] = (uint8_t)ci_next(&seed);
            k.kind[part.kind].unfold(&part, record, tile);
            for (int t = 0; t < 64; t++)
                for (int c = 0; c < 16; c++) {
                    kvfi_shape s = kvfi_shape_of(&part);
                    int i = side == KVF_K ? t / 16 * 16 + c : t; /* [4][16] and [1][64] */
                    float a = kvfi_half_to_float(scale[i]), b = kvfi_half_to_float(min[i]);
                    float code = (float)kvfi_code_of(&s, record, t, c), apart = (float)once(once((double)code * a) + b);
                    float got = tile[side == KVF_K ? c * 64 + t : t * 16 + c], op;
                    uint8_t code8 = (uint8_t)code;
                    assert_true(got == apart);
                    assert_int_equal(kvf_op_kivi_dequantise(&code8, &a, &b, 1, 1, 1, 1, &op), KVF_OK);
                    assert_true(op == apart);
                    differ += fmaf(code, a, b) != apart;
                }
        }
        free(record);
    }
    /* f16 scales and 8-bit codes multiply exactly in f32, so the sums above are safe by nature; f32 scales are not */
    assert_int_equal(differ, 0);
    for (int i = 0; i < 20000; i++) {
        uint8_t code = (uint8_t)ci_next(&seed);
        float a = (float)ci_uniform(&seed), b = (float)ci_gauss(&seed), op;
        a = a / 3;
        assert_int_equal(kvf_op_kivi_dequantise(&code, &a, &b, 1, 1, 1, 1, &op), KVF_OK);
        assert_true(op == once(once((double)code * a) + b));
        differ += fmaf((float)code, a, b) != op;
    }
    assert_true(differ > 10);
}

/* A quotient that ends in exactly one half goes to the even code. */
static void halves_go_to_the_even_code(void **state)
{
    (void)state;
    /* minimum 0 and maximum 15 make a scale of exactly 1 at four bits */
    float x[32], scale, zero;
    uint8_t codes[32];
    for (int i = 0; i < 32; i++) x[i] = (float)i / 2;
    x[31] = 15;
    assert_int_equal(kvf_op_kivi_quantise(x, 32, 1, 4, 32, 0, KVF_F32, codes, &scale, &zero), KVF_OK);
    assert_true(scale == 1 && zero == 0);
    for (int i = 0; i < 31; i++) {
        int whole = i / 2, want = i % 2 == 0 ? whole : whole % 2 ? whole + 1 : whole;
        assert_int_equal(codes[i], want);
    }
    static float rows[64 * 16], back[64 * 16];
    static _Alignas(64) unsigned char record[4096];
    for (int side = KVF_K; side <= KVF_V; side++) {
        for (int t = 0; t < 64; t++)
            for (int c = 0; c < 16; c++) {
                int i = side == KVF_K ? t % 32 : c + 16 * (t % 2); /* values: 16 channels hold 0 .. 7.5 or 8 .. 15 */
                rows[t * 16 + c] = x[i];
                if (side == KVF_V && c == 14) rows[t * 16 + c] = 0;
                if (side == KVF_V && c == 15) rows[t * 16 + c] = 15;
            }
        assert_int_equal(kvf_op_encode("kivi4", (kvf_side)side, 16, rows, record), KVF_OK);
        assert_int_equal(kvf_op_decode("kivi4", (kvf_side)side, 16, record, back), KVF_OK);
        for (int i = 0; i < 64 * 16; i++) assert_true(back[i] == nearbyintf(rows[i]));
    }
}

/* The last group of a head that is no multiple of it has its live channels only; zeros in the padding would widen it. */
static void a_short_group_is_not_padded_with_zeros(void **state)
{
    (void)state;
    enum { DIM = 40, GROUP = 32 };
    static float x[64 * DIM], back[64 * DIM];
    static _Alignas(64) unsigned char record[64 * 48 * 2];
    for (int t = 0; t < 64; t++)
        for (int c = 0; c < DIM; c++) x[t * DIM + c] = (float)(1000 + (t + c) % 4); /* far from 0, range 3 */
    assert_int_equal(kvf_op_encode("kivi2", KVF_V, DIM, x, record), KVF_OK);
    assert_int_equal(kvf_op_decode("kivi2", KVF_V, DIM, record, back), KVF_OK);
    assert_memory_equal(x, back, sizeof x); /* range 3 in 3 steps: exact, unless padding has joined */
    for (int axis = 0; axis < 2; axis++) {  /* the operation: 40 along either axis */
        int64_t tokens = axis ? 64 : DIM, dim = axis ? DIM : 64, n = tokens * dim;
        result r = make_result(n);
        assert_int_equal(kvf_op_kivi_quantise(x, tokens, dim, 2, GROUP, axis, KVF_F16, r.codes, r.scale, r.zero), KVF_OK);
        assert_int_equal(kvf_op_kivi_dequantise(r.codes, r.scale, r.zero, tokens, dim, GROUP, axis, back), KVF_OK);
        for (int64_t i = 0; i < n; i++) assert_true(back[i] == x[i]);
        free_result(&r);
    }
}

/* ---- scale and minimum ---- */

static void stored_numbers_are_rounded_before_coding(void **state)
{
    (void)state;
    uint64_t seed = 5;
    int moved = 0;
    for (int round = 0; round < 2000; round++) {
        float x[32], scale[2], zero[2];
        uint8_t codes[2][32];
        for (int i = 0; i < 32; i++) x[i] = (float)ci_gauss(&seed);
        for (int type = KVF_F16; type <= KVF_F32; type++)
            assert_int_equal(
                kvf_op_kivi_quantise(x, 32, 1, 8, 32, 0, (kvf_type)type, codes[type - 1], &scale[type - 1], &zero[type - 1]),
                KVF_OK);
        assert_true(scale[0] == (float)ci_half(scale[1]) && zero[0] == (float)ci_half(zero[1]));
        for (int i = 0; i < 32; i++) {
            double q = nearbyint(once(once((double)x[i] - zero[0]) / scale[0]));
            assert_int_equal(codes[0][i], (int)fmin(fmax(q, 0), 255));
            moved += codes[0][i] != codes[1][i];
        }
    }
    assert_true(moved > 1000); /* coding with unrounded numbers would be something else */
}

static void constant_and_tiny_groups(void **state)
{
    (void)state;
    static const float constants[] = {100, -100, 0, 1e-30f, -1e-30f, 65504, -65504, 3.14159f, 1e30f};
    float x[16], scale, zero, back[16];
    uint8_t codes[16];
    for (size_t k = 0; k < sizeof constants / sizeof *constants; k++) {
        for (int i = 0; i < 16; i++) x[i] = constants[k];
        assert_int_equal(kvf_op_kivi_quantise(x, 16, 1, 4, 16, 0, KVF_F32, codes, &scale, &zero), KVF_OK);
        assert_true(scale == 1e-8f);
        assert_int_equal(kvf_op_kivi_dequantise(codes, &scale, &zero, 16, 1, 16, 0, back), KVF_OK);
        for (int i = 0; i < 16; i++) assert_true(codes[i] == 0 && back[i] == constants[k]);
        assert_int_equal(kvf_op_kivi_quantise(x, 16, 1, 4, 16, 0, KVF_F16, codes, &scale, &zero), KVF_OK);
        assert_true(scale == 0 && zero == (float)ci_half(constants[k]));
        for (int i = 0; i < 16; i++) assert_int_equal(codes[i], 0);
    }
    /* a range of 1e-30: finite numbers, the floor of the scale in force */
    for (int i = 0; i < 16; i++) x[i] = (float)i * 1e-31f;
    assert_int_equal(kvf_op_kivi_quantise(x, 16, 1, 4, 16, 0, KVF_F32, codes, &scale, &zero), KVF_OK);
    assert_true(scale == 1e-8f && zero == 0 && codes[15] == 0);
}

/* The stored scale among subnormals: every multiple of 2^-24 as range, every width. No value is farther off than half a step, and
 * none at all where the step would vanish. */
static void subnormal_scales_never_fall_short(void **state)
{
    (void)state;
    for (int bits = 1; bits <= 8; bits++)
        for (int range = 1; range < 2000; range++) {
            float x[3] = {0, (float)(range / 2) * 0x1p-24f, (float)range * 0x1p-24f}, scale, zero, back[3];
            uint8_t codes[3];
            double levels = (1 << bits) - 1;
            assert_int_equal(kvf_op_kivi_quantise(x, 3, 1, bits, 3, 0, KVF_F16, codes, &scale, &zero), KVF_OK);
            assert_int_equal(kvf_op_kivi_dequantise(codes, &scale, &zero, 3, 1, 3, 0, back), KVF_OK);
            double unit = scale / 0x1p-24, exact = range / levels;
            assert_true(unit >= 1 && unit == nearbyint(unit));
            assert_true(fabs(unit - exact) < 1); /* one of the two neighbours */
            assert_true(unit >= exact || (levels + 0.5) * unit >= range);
            for (int i = 0; i < 3; i++) assert_true(fabs((double)x[i] - back[i]) <= scale / 2 && (unit > 1 || x[i] == back[i]));
        }
}

static void one_bit_over_the_whole_range_of_f16(void **state)
{
    (void)state;
    float x[4] = {-65504, 65504, 60000, -60000}, scale, zero;
    uint8_t codes[4];
    assert_int_equal(kvf_op_kivi_quantise(x, 4, 1, 1, 4, 0, KVF_F16, codes, &scale, &zero), KVF_OK);
    assert_true(scale == 65504 && zero == -65504);
    assert_true(codes[0] == 0 && codes[1] == 1 && codes[2] == 1 && codes[3] == 0);
    assert_int_equal(kvf_op_kivi_quantise(x, 4, 1, 2, 4, 0, KVF_F16, codes, &scale, &zero), KVF_OK);
    assert_true(scale == (float)ci_half(131008.0 / 3) && codes[1] == 3);
}

static void the_minimum_has_no_negative_zero(void **state)
{
    (void)state;
    float x[4] = {-0.0f, 0.0f, 1.0f, -0.0f}, scale, zero;
    uint8_t codes[4];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kvf_op_kivi_quantise(x + i, 3, 1, 4, 3, 0, KVF_F32, codes, &scale, &zero), KVF_OK);
        assert_true(zero == 0 && !signbit(zero));
    }
}

/* A record holds what the operation makes. */
static void records_hold_what_the_operations_make(void **state)
{
    (void)state;
    static const char *const specs[] = {"kivi1", "kivi2:group=64", "kivi3", "kivi4:group=16", "kivi8"};
    static const int groups[] = {32, 64, 32, 16, 32};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        for (int d = 0; d < CI_DIMS; d++)
            for (int side = KVF_K; side <= KVF_V; side++) {
                kvf_part part;
                int dim = ci_dims[d];
                size_t n = (size_t)(64 * dim);
                assert_int_equal(kvfi_part_setup(specs[i], (kvf_side)side, dim, &part, NULL, 0), KVF_OK);
                float *x = ci_alloc(n * sizeof *x), *a = ci_alloc(n * sizeof *a), *b = ci_alloc(n * sizeof *b);
                void *record = ci_alloc(part.bytes);
                result r = make_result((int64_t)n);
                ci_fill(x, dim, CI_GAUSS, 9);
                assert_int_equal(kvf_op_encode(specs[i], (kvf_side)side, dim, x, record), KVF_OK);
                assert_int_equal(kvf_op_decode(specs[i], (kvf_side)side, dim, record, a), KVF_OK);
                int axis = side == KVF_V;
                assert_int_equal(kvf_op_kivi_quantise(x, 64, dim, part.bits, groups[i], axis, KVF_F16, r.codes, r.scale, r.zero),
                                 KVF_OK);
                assert_int_equal(kvf_op_kivi_dequantise(r.codes, r.scale, r.zero, 64, dim, groups[i], axis, b), KVF_OK);
                assert_memory_equal(a, b, n * sizeof *a);
                kvfi_shape s = kvfi_shape_of(&part);
                for (int j = 0; j < 64 * dim; j++) assert_int_equal(kvfi_code_of(&s, record, j / dim, j % dim), r.codes[j]);
                free(x), free(a), free(b), free(record), free_result(&r);
            }
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    float x[4] = {0, 1, 2, 3}, scale[4], zero[4];
    uint8_t codes[4] = {9, 9, 9, 9};
    static const struct {
        int64_t tokens, dim;
        int bits, group, axis, stored;
    } bad[] = {{-1, 4, 4, 4, 0, KVF_F16}, {1, 0, 4, 4, 0, KVF_F16},  {1, 4, 0, 4, 0, KVF_F16},        {1, 4, 9, 4, 0, KVF_F16},
               {1, 4, 4, 0, 0, KVF_F16},  {1, 4, 4, -4, 0, KVF_F16}, {1, 4, 4, 4, 2, KVF_F16},        {1, 4, 4, 4, -1, KVF_F16},
               {1, 4, 4, 4, 0, 0},        {1, 4, 4, 4, 0, 3},        {INT64_MAX, 4, 4, 4, 0, KVF_F16}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(kvf_op_kivi_quantise(x, bad[i].tokens, bad[i].dim, bad[i].bits, bad[i].group, bad[i].axis,
                                              (kvf_type)bad[i].stored, codes, scale, zero),
                         KVF_E_ARG);
    assert_int_equal(kvf_op_kivi_quantise(NULL, 1, 4, 4, 4, 1, KVF_F16, codes, scale, zero), KVF_E_ARG);
    assert_int_equal(kvf_op_kivi_quantise(x, 1, 4, 4, 4, 1, KVF_F16, codes, NULL, zero), KVF_E_ARG);
    assert_int_equal(kvf_op_kivi_dequantise(codes, scale, zero, 1, 4, 0, 1, x), KVF_E_ARG);
    assert_int_equal(kvf_op_kivi_dequantise(codes, scale, zero, 1, 4, 4, 2, x), KVF_E_ARG);
    assert_int_equal(kvf_op_kivi_dequantise(NULL, scale, zero, 1, 4, 4, 1, x), KVF_E_ARG);
    assert_int_equal(kvf_op_kivi_quantise(NULL, 0, 4, 4, 4, 1, KVF_F16, NULL, NULL, NULL), KVF_OK);
    static const float beyond[] = {NAN, INFINITY, -INFINITY, FLT_MAX};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        x[3] = beyond[i];
        assert_int_equal(kvf_op_kivi_quantise(x, 1, 4, 4, 4, 1, KVF_F32, codes, scale, zero), KVF_E_NONFINITE);
        assert_int_equal(codes[0], 9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_equal_their_definition),
        cmocka_unit_test(multiplication_and_addition_are_rounded_apart),
        cmocka_unit_test(halves_go_to_the_even_code),
        cmocka_unit_test(a_short_group_is_not_padded_with_zeros),
        cmocka_unit_test(stored_numbers_are_rounded_before_coding),
        cmocka_unit_test(constant_and_tiny_groups),
        cmocka_unit_test(subnormal_scales_never_fall_short),
        cmocka_unit_test(one_bit_over_the_whole_range_of_f16),
        cmocka_unit_test(the_minimum_has_no_negative_zero),
        cmocka_unit_test(records_hold_what_the_operations_make),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
