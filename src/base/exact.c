/* SPDX-License-Identifier: MIT */
#include "base/exact.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Nearest integer, ties to even: adding and taking away 1.5 * 2^52 rounds in the last place. Like all arithmetic here it supposes that
 * the processor rounds to nearest, as C programs start. */
static double nearest(double x)
{
    volatile double shifted = x + 6755399441055744.0;
    return shifted - 6755399441055744.0;
}

/* pi/2 in five parts, the first four of 22 bits, so that k times a part is exact for |k| < 2^31 (Cody and Waite, 1980). */
static const double HALF_PI[5] = {0x1.921fb00000000p+0, 0x1.5110b00000000p-22, 0x1.1846980000000p-44, 0x1.3198a00000000p-69,
                                  0x1.701b839a25205p-92};

/* Taylor series on [-pi/4, pi/4]: the first term left out is below 2^-56 of the result. */
static double series_sine(double x)
{
    static const double c[] = {1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
                               1.0 / 362880.0,          -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
    double y = x * x, s = 0;
    for (int i = 0; i < 8; i++) s = s * y + c[i];
    return x + x * y * s;
}

static double series_cosine(double x)
{
    static const double c[] = {1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
                               1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0};
    double y = x * x, s = 0;
    for (int i = 0; i < 7; i++) s = s * y + c[i];
    return (1.0 - 0.5 * y) + y * y * s;
}

void kvfi_sincos(double x, double *sine, double *cosine)
{
    double k = nearest(x * 0x1.45f306dc9c883p-1); /* 2 / pi */
    double r = x;
    for (int i = 0; i < 5; i++) r -= k * HALF_PI[i];
    double s = series_sine(r), c = series_cosine(r);
    switch ((int64_t)k & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
    }
}

double kvfi_log2(double x)
{
    uint64_t bits;
    if (x > 0 && x < 0x1p-1022) return kvfi_log2(x * 0x1p54) - 54;
    if (!(x > 0 && x < HUGE_VAL)) return x > 0 ? HUGE_VAL : x == 0 ? -HUGE_VAL : NAN;
    memcpy(&bits, &x, 8);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, 8);
    if (m > 0x1.6a09e667f3bcdp+0) m *= 0.5, exponent++; /* now in [sqrt(1/2), sqrt(2)] */
    /* log m = 2 atanh z, z = (m - 1) / (m + 1), |z| < 0.1716: 12 terms reach 2^-60 */
    static const double c[] = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                               1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
    double z = (m - 1) / (m + 1), y = z * z, s = 0;
    for (int i = 0; i < 11; i++) s = (s + c[i]) * y;
    return (double)exponent + (z + z * s) * 0x1.71547652b82fep+1; /* 2 / ln 2 */
}

/* Taylor series of e^f: for |f| < 0.35 the first term left out is below 2^-60. */
static double series_exp(double f)
{
    static const double c[] = {1.0 / 87178291200.0,
                               1.0 / 6227020800.0,
                               1.0 / 479001600.0,
                               1.0 / 39916800.0,
                               1.0 / 3628800.0,
                               1.0 / 362880.0,
                               1.0 / 40320.0,
                               1.0 / 5040.0,
                               1.0 / 720.0,
                               1.0 / 120.0,
                               1.0 / 24.0,
                               1.0 / 6.0,
                               1.0 / 2.0,
                               1.0,
                               1.0};
    double s = 0;
    for (int i = 0; i < 15; i++) s = s * f + c[i];
    return s;
}

double kvfi_exp2(double x)
{
    if (x != x) return x;
    if (x > 1000 || x < -1000) return x > 0 ? HUGE_VAL : 0;
    double k = nearest(x);
    uint64_t bits = (uint64_t)((int64_t)k + 1023) << 52;
    double power;
    memcpy(&power, &bits, 8);
    return series_exp((x - k) * 0x1.62e42fefa39efp-1) * power; /* ln 2 */
}

double kvfi_power(double x, double p)
{
    return kvfi_exp2(p * kvfi_log2(x));
}
