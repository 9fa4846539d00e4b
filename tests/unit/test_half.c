/* SPDX-License-Identifier: MIT
 * binary16 conversions against the definition of the format. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>

#include "base/half.h"
#include "codec_inputs.h"

static void every_pattern_has_its_value(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 0x10000; h++) {
        double want = ci_half_value(h);
        float got = kvfi_half_to_float((uint16_t)h);
        if (isnan(want)) {
            assert_true(isnan(got));
            continue;
        }
        assert_true(got == want && !signbit(got) == !signbit(want));
        assert_int_equal(kvfi_half_from_float(got), h);
    }
}

static void nan_stays_a_quiet_nan_of_its_sign(void **state)
{
    (void)state;
    for (unsigned i = 1; i < 0x400; i++)
        for (unsigned sign = 0; sign < 2; sign++) {
            uint16_t h = (uint16_t)(sign << 15 | 0x7c00 | i);
            assert_int_equal(kvfi_half_from_float(kvfi_half_to_float(h)), h | 0x200);
        }
    uint32_t payloads[] = {0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff};
    for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
        uint16_t h = kvfi_half_from_float(kvfi_bits_float(payloads[i]));
        assert_true((h & 0x7e00) == 0x7e00);
        assert_int_equal(h >> 15, payloads[i] >> 31);
    }
}

/* Between every two neighbours: the midpoint goes to the even one, everything else to the nearer one. */
static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 0x7bff; h++) {
        double low = ci_half_value(h), high = ci_half_value(h + 1);
        float middle = (float)((low + high) / 2);
        for (unsigned sign = 0; sign < 2; sign++) {
            float s = sign ? -1.0f : 1.0f;
            unsigned even = h & 1 ? h + 1 : h;
            assert_int_equal(kvfi_half_from_float(s * middle), sign << 15 | even);
            assert_int_equal(kvfi_half_from_float(s * nextafterf(middle, INFINITY)), sign << 15 | (h + 1));
            assert_int_equal(kvfi_half_from_float(s * nextafterf(middle, 0)), sign << 15 | h);
        }
    }
}

static void the_ends(void **state)
{
    (void)state;
    assert_int_equal(kvfi_half_from_float(65504.0f), 0x7bff);
    assert_int_equal(kvfi_half_from_float(nextafterf(65520.0f, 0)), 0x7bff);
    assert_int_equal(kvfi_half_from_float(65520.0f), 0x7c00);
    assert_int_equal(kvfi_half_from_float(FLT_MAX), 0x7c00);
    assert_int_equal(kvfi_half_from_float(-INFINITY), 0xfc00);
    assert_int_equal(kvfi_half_from_float(0x1p-25f), 0);
    assert_int_equal(kvfi_half_from_float(nextafterf(0x1p-25f, 1)), 1);
    assert_int_equal(kvfi_half_from_float(-0x1p-25f), 0x8000);
    assert_int_equal(kvfi_half_from_float(FLT_TRUE_MIN), 0);
    assert_int_equal(kvfi_half_from_float(-0.0f), 0x8000);
}

static void saturation_keeps_the_sign(void **state)
{
    (void)state;
    assert_int_equal(kvfi_half_saturated(65504.0f), 0x7bff);
    assert_int_equal(kvfi_half_saturated(65505.0f), 0x7bff);
    assert_int_equal(kvfi_half_saturated(65520.0f), 0x7bff);
    assert_int_equal(kvfi_half_saturated(FLT_MAX), 0x7bff);
    assert_int_equal(kvfi_half_saturated(-FLT_MAX), 0xfbff);
    assert_int_equal(kvfi_half_saturated(INFINITY), 0x7bff);
    assert_int_equal(kvfi_half_saturated(-INFINITY), 0xfbff);
    assert_int_equal(kvfi_half_saturated(1.0f), 0x3c00);
    assert_true(isnan(kvfi_half_to_float(kvfi_half_saturated(NAN))));
}

static void random_numbers_agree_with_arithmetic(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 500000; i++) {
        float x = kvfi_bits_float((uint32_t)ci_next(&seed));
        if (!isfinite(x)) continue;
        float got = kvfi_half_to_float(kvfi_half_saturated(x));
        assert_true(got == ci_half(x) && !signbit(got) == !signbit(x));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_has_its_value), cmocka_unit_test(nan_stays_a_quiet_nan_of_its_sign),
        cmocka_unit_test(rounding_is_to_nearest_even), cmocka_unit_test(the_ends),
        cmocka_unit_test(saturation_keeps_the_sign),   cmocka_unit_test(random_numbers_agree_with_arithmetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
