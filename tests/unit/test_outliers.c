/* SPDX-License-Identifier: MIT
 * The outlier split: which channels are told apart, what each part's codebook is worth at its own size, and what a codebook at the
 * size of the whole head would cost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "codec/codec.h"
#include "codec/shared/codebook.h"
#include "codec_inputs.h"
#include "statistics.h"

enum { DIM = 128, BLOCKS = 16 };

static _Alignas(64) unsigned char record[1 << 14];
static float x[CI_TOKENS * DIM], y[CI_TOKENS * DIM];

/* Channels 3, 7, 11, ... of 128 are `gain` times larger. */
static int large(int c)
{
    return c % 4 == 3;
}

static void fill(double gain, uint64_t *seed)
{
    for (int i = 0; i < CI_TOKENS * DIM; i++) x[i] = (float)ci_half(normal(seed) * (large(i % DIM) ? gain : 1));
}

static void code(const char *spec, kvf_side side)
{
    assert_int_equal(kvf_op_encode(spec, side, DIM, x, record), KVF_OK);
    assert_int_equal(kvf_op_decode(spec, side, DIM, record, y), KVF_OK);
}

/* Relative square error of the large (1) or the other (0) channels, or of all (-1). */
static void add_errors(mean *m, int which)
{
    for (int t = 0; t < CI_TOKENS; t++) {
        double xx = 0, dd = 0;
        for (int c = 0; c < DIM; c++) {
            const double a = x[t * DIM + c], d = a - (double)y[t * DIM + c];
            if (which >= 0 && large(c) != which) continue;
            xx += a * a, dd += d * d;
        }
        add(m, dd / xx);
    }
}

static mean error_of(const char *spec, kvf_side side, double gain, int which)
{
    mean m = {0};
    uint64_t seed = 99;
    for (int b = 0; b < BLOCKS; b++) {
        fill(gain, &seed);
        code(spec, side);
        add_errors(&m, which);
    }
    return m;
}

/* The set in the record is that of the largest sums of squares; equals are taken from the front. */
static void the_strongest_channels_are_chosen(void **state)
{
    (void)state;
    kvf_part part;
    uint64_t seed = 1;
    for (int side = KVF_K; side <= KVF_V; side++) {
        assert_int_equal(kvfi_part_setup("turbo2:outliers=32", (kvf_side)side, DIM, &part, NULL, 0), KVF_OK);
        fill(8, &seed);
        code("turbo2:outliers=32", (kvf_side)side);
        for (int c = 0; c < DIM; c++) assert_int_equal(record[part.set_offset + (size_t)c / 8] >> c % 8 & 1, large(c));
        for (int i = 0; i < CI_TOKENS * DIM; i++) x[i] = 5;
        code("turbo2:outliers=32", (kvf_side)side);
        for (int c = 0; c < DIM; c++) assert_int_equal(record[part.set_offset + (size_t)c / 8] >> c % 8 & 1, c < 32);
        for (size_t i = part.set_offset + DIM / 8; i < part.bytes; i++) assert_int_equal(record[i], 0);
    }
}

/* Each part has the error of its own codebook: 32 channels at one bit more, 96 at the plain number. */
static void each_part_has_the_error_of_its_codebook(void **state)
{
    (void)state;
    for (int bits = 1; bits <= 4; bits++)
        for (int which = 0; which < 2; which++) {
            char spec[64];
            double level[128];
            snprintf(spec, sizeof spec, "turbo%d:outliers=32,norm=n0", bits);
            mean m = error_of(spec, bits % 2 ? KVF_K : KVF_V, 8, which);
            const double want = kvfi_lloyd_max(bits + which, which ? 32 : 96, level);
            const double unit = level[(1 << (bits + which - 1)) - 1] / 127;
            print_message("%s, %s: error %.5f +- %.5f, codebook %.5f\n", spec, which ? "outliers" : "others", mean_of(&m),
                          standard_error(&m), want);
            assert_true(fabs(mean_of(&m) - want) < ERRORS * standard_error(&m) + unit * unit / 4);
        }
}

/* Coordinates of unit vectors of `size` channels, normal with deviation 1 / sqrt(size), coded with levels for vectors of `assumed`;
 * error times size. */
static double error_at(int size, int bits, int assumed)
{
    enum { N = 400000 };
    double level[128], sum = 0;
    uint64_t seed = 4;
    const int half = 1 << (bits - 1);
    kvfi_lloyd_max(bits, 2, level);
    for (int n = 0; n < N; n++) {
        const double u = fabs(normal(&seed)) / sqrt(size);
        int i = 0;
        while (i + 1 < half && u > (level[i] + level[i + 1]) / 2 / sqrt(assumed)) i++;
        sum += pow(u - level[i] / sqrt(assumed), 2);
    }
    return sum / N * size;
}

/* The trap: a released program divided the levels of both parts by sqrt(128), the size of the whole head. 32 channels at 3 bits then
 * have 0.133 instead of 0.0345 (0.0323 with the codebook of 32), at 4 bits 0.067 instead of 0.0095, 96 at 2 bits 0.125 instead of
 * 0.117. Two percent are for the sample. */
static void the_scale_of_a_part_is_its_own(void **state)
{
    (void)state;
    static const struct {
        int size, bits;
        double wrong, right;
    } known[] = {{32, 3, 0.133, 0.0345}, {96, 2, 0.125, 0.117}, {32, 4, 0.067, 0.0095}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const double wrong = error_at(known[i].size, known[i].bits, 128),
                     right = error_at(known[i].size, known[i].bits, known[i].size);
        print_message("%d channels, %d bits: error %.4f at the head's scale, %.4f at their own\n", known[i].size, known[i].bits,
                      wrong, right);
        assert_true(fabs(wrong - known[i].wrong) < 0.02 * known[i].wrong);
        assert_true(fabs(right - known[i].right) < 0.02 * known[i].right);
        /* the codec does not fall into it */
        char spec[64];
        snprintf(spec, sizeof spec, "turbo%d:outliers=32,norm=n0", known[i].size == 32 ? known[i].bits - 1 : known[i].bits);
        mean m = error_of(spec, KVF_K, 8, known[i].size == 32);
        assert_true(mean_of(&m) < 1.02 * known[i].right);
    }
}

static double spiked_error(const char *spec)
{
    mean m = {0};
    uint64_t seed = 12;
    for (int b = 0; b < BLOCKS; b++) {
        fill(1, &seed);
        for (int t = 0; t < CI_TOKENS; t++) x[t * DIM + (int)(ci_next(&seed) % DIM)] = 12;
        code(spec, KVF_K);
        add_errors(&m, -1);
    }
    print_message("%s, a spike in each token: error %.4f\n", spec, mean_of(&m));
    return mean_of(&m);
}

/* Strong channels told apart: less error in the others, which a common scale would drown. Where all channels are alike the 32 extra
 * bits still buy something, but less than their share of a whole bit. */
static void what_telling_apart_is_worth(void **state)
{
    (void)state;
    mean with = error_of("turbo2:outliers=32", KVF_V, 8, 0), without = error_of("turbo2", KVF_V, 8, 0);
    assert_true(mean_of(&with) < 0.2 * mean_of(&without));
    with = error_of("turbo2:outliers=32", KVF_V, 1, -1), without = error_of("turbo2", KVF_V, 1, -1);
    mean more = error_of("turbo3", KVF_V, 1, -1);
    assert_true(mean_of(&with) < mean_of(&without) && mean_of(&with) > mean_of(&more));
    /* the parts are turned: a value of 12 deviations somewhere in each token does not take all levels of its part */
    const double turned = spiked_error("turbo3:outliers=32,rot=h"), plain = spiked_error("turbo3:outliers=32,rot=none");
    assert_true(turned < 0.6 * plain);
}

/* What a rotation is for: a spike takes the steps of its whole token, unless it is spread over all channels. */
static void what_turning_is_worth(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"uni4", "uni4:rot=none"}, {"uni2", "uni2:rot=none"}, {"turbo3", "turbo3:rot=none"}, {"q4_0:rot=h", "q4_0"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        assert_true(spiked_error(pairs[i][0]) < 0.6 * spiked_error(pairs[i][1]));
}

static void bits_and_refusals(void **state)
{
    (void)state;
    kvf_spec_info info;
    char error[256];
    /* "2.5 bits" are 32 channels at 3, 96 at 2 and two f16: 160; the set adds 16 bytes, filled up to 64, for 64 tokens */
    assert_int_equal(kvf_spec_check("turbo2:outliers=32", KVF_K, 128, &info, NULL, 0), KVF_OK);
    assert_true(info.bits_code == 2.5 + 64.0 * 8 / (64 * 128));
    assert_string_equal(info.canonical, "turbo2:norm=n1,outliers=32,rot=h1,seed=0,centre=prompt,scale=prompt");
    assert_int_equal(kvf_spec_check("turbo3:outliers=32", KVF_K, 128, &info, NULL, 0), KVF_OK);
    assert_true(info.bits_code == 3.5 + 64.0 * 8 / (64 * 128));
    assert_int_equal(kvf_spec_check("turbo2:outliers=0", KVF_V, 128, &info, NULL, 0), KVF_OK);
    assert_string_equal(info.canonical, "turbo2:norm=n2,rot=h1,seed=0");
    assert_int_equal(kvf_spec_check("turbo7:outliers=32", KVF_K, 128, NULL, error, sizeof error), KVF_E_SPEC);
    assert_int_equal(kvf_spec_check("turbo2:outliers=128", KVF_K, 128, NULL, error, sizeof error), KVF_E_UNSUPPORTED);
    assert_non_null(strstr(error, "outliers is '128', but may be 0 to 127: fewer than the 128 channels"));
    assert_int_equal(kvf_spec_check("turbo2:outliers=33,rot=h", KVF_K, 128, NULL, error, sizeof error), KVF_E_UNSUPPORTED);
    assert_non_null(strstr(error, "33 outliers of 128 channels leave 95"));
    assert_int_equal(kvf_spec_check("turbo2:outliers=x", KVF_K, 128, NULL, error, sizeof error), KVF_E_SPEC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_strongest_channels_are_chosen),
        cmocka_unit_test(what_turning_is_worth),
        cmocka_unit_test(each_part_has_the_error_of_its_codebook),
        cmocka_unit_test(the_scale_of_a_part_is_its_own),
        cmocka_unit_test(what_telling_apart_is_worth),
        cmocka_unit_test(bits_and_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
