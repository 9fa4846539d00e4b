/* SPDX-License-Identifier: MIT
 * q8_0 and q4_0: known groups worked out by hand, and the rule group by group. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "codec/shared/part.h"
#include "codec_inputs.h"
#include "cpu/isa.h"

typedef struct coded {
    kvf_part part;
    unsigned char *record;
    float x[64 * 96];
} coded;

static coded *encode(const char *spec, kvf_side side, int dim, void (*fill)(float *x, int dim))
{
    coded *e = ci_alloc(sizeof *e);
    assert_int_equal(kvfi_part_setup(spec, side, dim, &e->part, NULL, 0), KVF_OK);
    e->record = ci_alloc(e->part.bytes);
    fill(e->x, dim);
    assert_int_equal(kvf_op_encode(spec, side, dim, e->x, e->record), KVF_OK);
    return e;
}

static void release(coded *e)
{
    free(e->record);
    free(e);
}

static int code_of(const coded *e, int t, int c)
{
    kvfi_shape s = kvfi_shape_of(&e->part);
    return kvfi_code_of(&s, e->record, t, c);
}

static double scale_of(const coded *e, int t, int c)
{
    uint16_t h = kvfi_halves(e->record, e->part.scale_offset)[c / 32 * 64 + t];
    return ci_half_value(h);
}

/* Token 0: peak 127, so one step is 1. Halves go away from zero. */
static void fill_hand8(float *x, int dim)
{
    static const float row[] = {127, 0.5f, -0.5f, 1.5f, -1.5f, 2.5f, -2.5f, 0.25f, -0.25f, -127, 63.5f, -126.5f, 0, -0.0f};
    memset(x, 0, (size_t)(64 * dim) * sizeof *x);
    memcpy(x, row, sizeof row);
}

static void q8_0_by_hand(void **state)
{
    (void)state;
    static const int want[] = {127, 1, -1, 2, -2, 3, -3, 0, 0, -127, 64, -127, 0, 0};
    for (int side = KVF_K; side <= KVF_V; side++) {
        coded *e = encode("q8_0", (kvf_side)side, 32, fill_hand8);
        assert_true(scale_of(e, 0, 0) == 1);
        for (int i = 0; i < 14; i++) assert_int_equal(code_of(e, 0, i) - 128, want[i]);
        for (int c = 0; c < 32; c++) assert_true(code_of(e, 1, c) == 128 && scale_of(e, 1, c) == 0);
        release(e);
    }
}

/* Token 0: the peak is -8, so one step is 1; +8 would be code 16 and becomes 15. Token 1: the peak is +8, the step -1. Token 2: of
 * equal magnitudes the first decides the sign. Adding 8.5 and cutting rounds halves up. */
static void fill_hand4(float *x, int dim)
{
    static const float rows[3][8] = {{-8, 8, 7, 7.5f, 0.5f, -0.5f, 0.25f, -7.5f}, {8, -8, -7, 1, -1, 0.5f, -0.5f, 0}, {4, -4}};
    memset(x, 0, (size_t)(64 * dim) * sizeof *x);
    for (int t = 0; t < 3; t++) memcpy(x + t * dim, rows[t], sizeof rows[t]);
}

static void q4_0_by_hand(void **state)
{
    (void)state;
    static const int want[3][8] = {{0, 15, 15, 15, 9, 8, 8, 1}, {0, 15, 15, 7, 9, 8, 9, 8}, {0, 15, 8, 8, 8, 8, 8, 8}};
    static const double step[] = {1, -1, -0.5};
    for (int side = KVF_K; side <= KVF_V; side++) {
        coded *e = encode("q4_0", (kvf_side)side, 32, fill_hand4);
        for (int t = 0; t < 3; t++) {
            assert_true(scale_of(e, t, 0) == step[t]);
            for (int c = 0; c < 8; c++) assert_int_equal(code_of(e, t, c), want[t][c]);
        }
        for (int c = 0; c < 32; c++) assert_true(code_of(e, 9, c) == 8 && scale_of(e, 9, c) == 0);
        release(e);
    }
}

/* 80 channels: groups of 32, 32 and 16; each has its own scale, and padding joins none. */
static void fill_short(float *x, int dim)
{
    for (int i = 0; i < 64 * dim; i++) {
        int c = i % dim;
        x[i] = c < 32 ? 127 : c < 64 ? -254 : 12.7f;
        x[i] = (float)ci_half(x[i]);
    }
}

static void the_last_group_may_be_short(void **state)
{
    (void)state;
    for (int side = KVF_K; side <= KVF_V; side++) {
        coded *e = encode("q8_0", (kvf_side)side, 80, fill_short);
        assert_int_equal(e->part.n_cg, 3);
        for (int t = 0; t < 64; t++) {
            assert_true(scale_of(e, t, 0) == 1 && scale_of(e, t, 32) == 2);
            assert_true(scale_of(e, t, 64) == ci_half(ci_half(12.7f) / 127));
            assert_true(code_of(e, t, 0) == 255 && code_of(e, t, 40) == 1 && code_of(e, t, 79) == 255);
        }
        release(e);
    }
}

/* Codes are made with the reciprocal of the step before it was rounded to f16. A codec that used the stored step, or divided,
 * would give other codes here and there. */
static void fill_gauss(float *x, int dim)
{
    ci_fill(x, dim, CI_GAUSS, 31);
}

static void codes_come_from_the_unrounded_step(void **state)
{
    (void)state;
    for (int bits = 4; bits <= 8; bits += 4) {
        coded *e = encode(bits == 8 ? "q8_0" : "q4_0", KVF_K, 96, fill_gauss);
        int rounded = 0;
        for (int t = 0; t < 64; t++)
            for (int g = 0; g < 96; g += 32) {
                const float *x = e->x + t * 96 + g;
                float peak = 0;
                for (int i = 0; i < 32; i++)
                    if (fabsf(x[i]) > fabsf(peak)) peak = x[i];
                float step = bits == 8 ? fabsf(peak) / 127 : peak / -8, inverse = 1 / step;
                float stored = 1 / (float)ci_half(step);
                assert_true(scale_of(e, t, g) == ci_half(step));
                for (int i = 0; i < 32; i++) {
                    float a = x[i] * inverse, b = x[i] * stored;
                    int want = bits == 8 ? (int)roundf(a) + 128 : (int)fminf(15, truncf(a + 8.5f));
                    int other = bits == 8 ? (int)roundf(b) + 128 : (int)fminf(15, truncf(b + 8.5f));
                    assert_int_equal(code_of(e, t, g + i), want);
                    rounded += want != other;
                }
            }
        assert_true(bits == 4 || rounded > 0);
        release(e);
    }
}

/* A head of 64, 128 or 256 channels is turned as a whole, others by the largest power of two that divides them. */
static void the_rotation_covers_the_head(void **state)
{
    (void)state;
    static const struct {
        int dim, block;
    } heads[] = {{64, 64}, {128, 128}, {256, 256}, {512, 512}, {80, 16}, {96, 32},
                 {72, 8},  {112, 16},  {192, 64},  {576, 64},  {2, 2}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        kvf_part part;
        assert_int_equal(kvfi_part_setup("q8_0:rot=h", KVF_K, heads[i].dim, &part, NULL, 0), KVF_OK);
        assert_int_equal(part.rot.block, heads[i].block);
        assert_int_equal(part.dim, heads[i].dim);
        assert_int_equal(kvfi_part_setup("q8_0", KVF_K, heads[i].dim, &part, NULL, 0), KVF_OK);
        assert_int_equal(part.rot.kind, KVF_ROT_NONE);
    }
}

/* Scores of turned queries with a turned record are those of the plain ones: <Hq, Hk> = <q, k>. */
static void turned_queries_give_the_same_scores(void **state)
{
    (void)state;
    kvfi_kernels k;
    kvfi_kernels_scalar(&k);
    coded *plain = encode("q8_0", KVF_K, 64, fill_gauss), *turned = encode("q8_0:rot=h", KVF_K, 64, fill_gauss);
    float q[64], s[2][64];
    uint64_t seed = 3;
    double size = 0;
    for (int c = 0; c < 64; c++) {
        q[c] = (float)ci_gauss(&seed);
        size += q[c] * q[c];
    }
    for (int i = 0; i < 2; i++) {
        coded *e = i ? turned : plain;
        void *prepared = ci_alloc(k.kind[e->part.kind].prepared_bytes(&e->part, 1));
        if (i) k.hadamard(q, 64, 1, 64, e->part.rot.block);
        k.kind[e->part.kind].prepare(&e->part, q, 64, 1, prepared);
        k.kind[e->part.kind].score(&e->part, e->record, prepared, 1, s[i]);
        free(prepared);
    }
    double difference = 0;
    for (int t = 0; t < 64; t++)
        if (fabs(s[0][t] - s[1][t]) > difference) difference = fabs(s[0][t] - s[1][t]);
    assert_true(difference > 0);                 /* the codes do differ */
    assert_true(difference < 0.05 * sqrt(size)); /* each value is within a 250th of a peak of 3 or so */
    release(plain), release(turned);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q8_0_by_hand),
        cmocka_unit_test(q4_0_by_hand),
        cmocka_unit_test(the_last_group_may_be_short),
        cmocka_unit_test(codes_come_from_the_unrounded_step),
        cmocka_unit_test(the_rotation_covers_the_head),
        cmocka_unit_test(turned_queries_give_the_same_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
