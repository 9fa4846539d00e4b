/* SPDX-License-Identifier: MIT
 * Random numbers by counter: known answers, and that they are as even, normal and independent as chance allows. Statistical
 * limits are 5 standard deviations of a fixed sample, so that nothing here can fail by luck twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/random.h"

enum { N = 1 << 16 };

/* The published sequence of SplitMix64 from state 1234567 is mix(1234567 + G), mix(1234567 + 2 G), ... */
static void mixing_has_the_published_values(void **state)
{
    static const uint64_t want[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u,
                                    16408922859458223821u};
    (void)state;
    for (uint64_t i = 0; i < 5; i++) assert_true(kvfi_random_bits(1234567, i) == want[i]);
}

static void seeds_and_streams_differ(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 64; seed++)
        for (uint32_t stream = 0; stream < 64; stream++)
            for (uint64_t other = 0; other < 64; other++)
                if (other != seed) assert_true(kvfi_random_start(seed, stream) != kvfi_random_start(other, stream));
    /* a seed one step on is not the same stream shifted by one */
    uint64_t a = kvfi_random_start(7, 0), b = kvfi_random_start(7 + KVFI_RANDOM_STEP, 0);
    assert_true(kvfi_random_bits(a, 1) != kvfi_random_bits(b, 0));
}

static void signs_are_even_and_independent(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        const uint64_t start = kvfi_random_start(seed, KVFI_STREAM_ROTATION), next = kvfi_random_start(seed + 1, 0);
        double sum = 0, lag = 0, across = 0;
        for (uint64_t i = 0; i < N; i++) {
            const double s = 1 - 2.0 * kvfi_random_minus(start, i);
            sum += s, lag += s * (1 - 2.0 * kvfi_random_minus(start, i + 1)),
                across += s * (1 - 2.0 * kvfi_random_minus(next, i));
        }
        assert_true(fabs(sum) < 5 * sqrt(N) && fabs(lag) < 5 * sqrt(N) && fabs(across) < 5 * sqrt(N));
    }
}

/* Moments 1 to 4 of a standard normal variable are 0, 1, 0, 3; the variances of their estimates 1, 2, 15, 96 over N. */
static void normals_have_the_moments_of_a_normal_variable(void **state)
{
    static const double want[] = {0, 1, 0, 3}, variance[] = {1, 2, 15, 96};
    (void)state;
    const uint64_t start = kvfi_random_start(3, KVFI_STREAM_SKETCH);
    double moment[4] = {0}, product = 0;
    for (uint64_t i = 0; i < N / 2; i++) {
        double x[2];
        kvfi_random_normals(start, i, x);
        assert_true(fabs(x[0]) < 8.7 && fabs(x[1]) < 8.7); /* the smallest uniform number is 2^-54 */
        product += x[0] * x[1];
        for (int j = 0; j < 2; j++)
            for (int m = 0; m < 4; m++) moment[m] += pow(x[j], m + 1);
    }
    for (int m = 0; m < 4; m++) assert_true(fabs(moment[m] / N - want[m]) < 5 * sqrt(variance[m] / N));
    assert_true(fabs(product) < 5 * sqrt(N / 2.0));
}

/* Bit for bit, so that sketches made anywhere are the same. Written down from a run whose values were within 2^-52 of the C library's
 * logarithm and cosine. */
static void normals_have_fixed_bits(void **state)
{
    static const double want[][2] = {
        {0x1.8d8bf113b03e3p-2, 0x1.6c0dafaa91fffp-1},
        {-0x1.2256558da90b1p+0, 0x1.33dab8ac9cc82p-2},
        {-0x1.c748367058159p+0, -0x1.58673f34a1be9p+0},
        {-0x1.4f3766925aadbp-3, -0x1.87f46695c8b6fp-1},
    };
    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        double x[2];
        kvfi_random_normals(kvfi_random_start(0, KVFI_STREAM_SKETCH), i, x);
        assert_true(x[0] == want[i][0] && x[1] == want[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixing_has_the_published_values), cmocka_unit_test(seeds_and_streams_differ),
        cmocka_unit_test(signs_are_even_and_independent),  cmocka_unit_test(normals_have_the_moments_of_a_normal_variable),
        cmocka_unit_test(normals_have_fixed_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
