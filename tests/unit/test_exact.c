/* SPDX-License-Identifier: MIT
 * The library's own elementary functions against the C library in long double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>

#include "base/exact.h"
#include "codec_inputs.h"

/* Limits, as base/exact.h states them.
 * TURN: absolute error of sine and cosine. POWER: relative error of log2 (absolute where the result is below 1/2), and of exp2 a bit
 * more: the fraction of x is known to 2^-53 of 1/2, which exp2 multiplies by ln 2.
 * x^p inherits |p log2 x| units of the last place from its logarithm, times ln 2. */
#define TURN_LIMIT 1e-15
#define POWER_LIMIT 1e-15

static void check_turn(double x)
{
    double s, c;
    kvfi_sincos(x, &s, &c);
    long double ds = fabsl((long double)s - sinl((long double)x)), dc = fabsl((long double)c - cosl((long double)x));
    if (!(ds <= TURN_LIMIT && dc <= TURN_LIMIT)) fail_msg("%.17g: sine off by %Lg, cosine by %Lg", x, ds, dc);
    assert_true(fabs(s * s + c * c - 1) < 4 * TURN_LIMIT);
}

static void sine_and_cosine(void **state)
{
    (void)state;
    uint64_t seed = 5;
    static const double ranges[] = {1e-8, 1, 10, 1e3, 1e5, 0x1p20, 0x1p25, 0x1p30};
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        for (int i = 0; i < 20000; i++) check_turn(ranges[r] * ci_uniform(&seed));
    /* next to multiples of pi/4, where quadrants change and results cancel */
    for (int k = -3000; k <= 3000; k++) {
        double x = k * 0.78539816339744831;
        check_turn(x), check_turn(nextafter(x, 1e9)), check_turn(nextafter(x, -1e9));
    }
    check_turn(0), check_turn(-0.0), check_turn(0x1p30), check_turn(-0x1p30);
}

/* What RoPE asks: positions times frequencies. */
static void turns_of_positions(void **state)
{
    (void)state;
    for (int i = 0; i < 64; i++) {
        double freq = pow(10000, -i / 64.0);
        for (int pos = 0; pos < 40000; pos += 37) check_turn(freq * pos);
        check_turn(freq * 1048575), check_turn(freq * 2147483);
    }
}

static void check_log(double x)
{
    long double want = log2l((long double)x), size = fmaxl(fabsl(want), 0.5L);
    if (!(fabsl((long double)kvfi_log2(x) - want) <= POWER_LIMIT * size))
        fail_msg("log2(%.17g) is %.17g, off by %Lg", x, kvfi_log2(x), (long double)kvfi_log2(x) - want);
}

static void logarithm(void **state)
{
    (void)state;
    uint64_t seed = 6;
    for (int e = -1022; e < 1024; e++) {
        assert_true(kvfi_log2(ldexp(1, e)) == e); /* exactly */
        for (int i = 0; i < 20; i++) check_log(ldexp(1.5 + ci_uniform(&seed) / 2, e));
    }
    for (int i = 0; i < 20000; i++) check_log(1 + ci_uniform(&seed) / 2);
    check_log(1.4142135623730951), check_log(1.4142135623730949), check_log(0.7071067811865476), check_log(DBL_MAX);
    /* relative, next to 1 as well */
    for (double d = 0.25; d > 1e-12; d /= 3) {
        long double want = log2l(1 + (long double)d + 0), got = kvfi_log2(1 + d);
        assert_true(fabsl(got / log2l((long double)(1 + d)) - 1) < 2 * POWER_LIMIT && want > 0);
    }
    assert_true(isinf(kvfi_log2(0)) && kvfi_log2(0) < 0);
    assert_true(isnan(kvfi_log2(-1)) && isnan(kvfi_log2(NAN)));
    assert_true(isinf(kvfi_log2(INFINITY)) && kvfi_log2(INFINITY) > 0);
    /* subnormal numbers are not served, but must not look large */
    assert_false(kvfi_log2(DBL_MIN / 4) > 0);
}

static void exponential(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int k = -1000; k <= 1000; k++) assert_true(kvfi_exp2(k) == ldexp(1, k)); /* exactly */
    for (int i = 0; i < 60000; i++) {
        double x = ci_uniform(&seed) * (i % 3 == 0 ? 1 : i % 3 == 1 ? 30 : 1000);
        long double want = exp2l((long double)x);
        if (!(fabsl((long double)kvfi_exp2(x) / want - 1) <= POWER_LIMIT)) fail_msg("exp2(%.17g) is %.17g", x, kvfi_exp2(x));
    }
    assert_true(kvfi_exp2(-1001) == 0 && isinf(kvfi_exp2(1001)) && isnan(kvfi_exp2(NAN)));
    assert_true(kvfi_exp2(-INFINITY) == 0 && isinf(kvfi_exp2(INFINITY)));
}

static void powers(void **state)
{
    (void)state;
    uint64_t seed = 8;
    for (int i = 0; i < 40000; i++) {
        double x = ldexp(1.5 + ci_uniform(&seed) / 2, (int)(ci_next(&seed) % 200) - 100), p = ci_uniform(&seed) * 4;
        long double want = powl((long double)x, (long double)p), size = 2 + fabsl((long double)p * log2l((long double)x));
        if (!(fabsl((long double)kvfi_power(x, p) / want - 1) <= size * POWER_LIMIT))
            fail_msg("%.17g to the %.17g is %.17g", x, p, kvfi_power(x, p));
    }
    assert_true(kvfi_power(7, 0) == 1 && kvfi_power(1, 123) == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sine_and_cosine), cmocka_unit_test(turns_of_positions),
        cmocka_unit_test(logarithm),       cmocka_unit_test(exponential),
        cmocka_unit_test(powers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
