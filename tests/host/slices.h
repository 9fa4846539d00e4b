/* SPDX-License-Identifier: MIT
 * Byte ranges of the English text (the Jargon File, 1,681,817 bytes) that measurements of quality use. They are fixed: figures are
 * comparable only on the same text, and what a codec was calibrated on must not be what it is judged by. */
#ifndef KVF_TESTS_SLICES_H
#define KVF_TESTS_SLICES_H

#include <stddef.h>

typedef struct slice {
    const char *name;
    size_t first, bytes;
} slice;

static const slice SLICE_A = {"A", 300000, 16384};  /* tests */
static const slice SLICE_B = {"B", 800000, 16384};  /* tests */
static const slice SLICE_C = {"C", 1000000, 65536}; /* calibration only */
static const slice SLICE_LONG = {"long", 400000,
                                 65536}; /* a whole context of 8,192 tokens; no figure of quality is taken on it */

#endif
