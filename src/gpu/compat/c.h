/* SPDX-License-Identifier: MIT
 * The dialect of gpu/kernels/ in plain C11. The text there is written in a subset that CUDA and Metal compile too: no recursion,
 * no function pointers, no library calls but the macros below, no globals but constant tables, and every pointer names its
 * address space. Each target has one file like this one.
 *
 * KVF_ADD, KVF_SUB, KVF_MUL and KVF_DIV are rounded once each, to nearest even, and never contracted: codes and decoded values
 * are made with them alone and are the same bits everywhere. (Here that is the compiler's flag -ffp-contract=off.) */
#ifndef KVFI_COMPAT_C_H
#define KVFI_COMPAT_C_H

#include "base/half.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define KVF_FN static inline
#define KVF_TABLE static const /* a table at file scope */
#define KVF_GLOBAL             /* memory of all threads: records, queries, results */
#define KVF_PRIVATE            /* memory of one thread */

#define KVF_ADD(a, b) ((a) + (b))
#define KVF_SUB(a, b) ((a) - (b))
#define KVF_MUL(a, b) ((a) * (b))
#define KVF_DIV(a, b) ((a) / (b))
#define KVF_FABS(x) fabsf(x)
#define KVF_RINT(x) rintf(x)   /* half to even */
#define KVF_ROUND(x) roundf(x) /* half away from zero */

#define KVF_HALF_TO_FLOAT(h) kvfi_half_to_float(h)
#define KVF_HALF_SATURATED(x) kvfi_half_saturated(x)

#endif
