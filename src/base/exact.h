/* SPDX-License-Identifier: MIT
 * Elementary functions in double made of + - * / and sqrt alone, so that tables made from them have the same bytes with every
 * compiler and C library. Relative error below 1e-15 where not said otherwise. */
#ifndef KVFI_EXACT_H
#define KVFI_EXACT_H

/* Absolute error below 1e-15, |x| up to 2^30. */
void kvfi_sincos(double x, double *sine, double *cosine);

/* As log2: -HUGE_VAL of 0, NaN below it. */
double kvfi_log2(double x);

/* |x| at most 1000; beyond, 0 or infinity. */
double kvfi_exp2(double x);

/* x^p for x > 0. */
double kvfi_power(double x, double p);

#endif
