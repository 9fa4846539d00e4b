/* SPDX-License-Identifier: MIT
 * What the parity tests share: the scalar table is the specification, and each instruction set present on this processor must
 * agree with it on every entry: within a stated bound, without touching anything else, on ordinary and on nasty numbers. */
#ifndef TESTS_PARITY_H
#define TESTS_PARITY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "codec/codec.h"
#include "codec/shared/part.h"
#include "codec_inputs.h"
#include "cpu/isa.h"

/* X(entry, bound, reason). A result may differ from the scalar one by bound * (sum of the magnitudes of the terms that either
 * side adds up, what was in the accumulator included): both sides round each addition, and add in another order. Beside that,
 * 2^-120 is always allowed, because products below 2^-126 lose bits. Bound 0: the same bits. */
#define PX_BOUNDS(X)                                                                                                             \
    X(FIXED_POINT, 0.5, "multipliers rounded to integers: half a unit each, kvfi_kind_ops.fixed_point")                          \
    X(KIND_SCORE, 5e-6, "up to 576 terms in f32 in another order, multiplications fused, scales folded elsewhere")               \
    X(KIND_MIX, 2e-6, "64 terms, as above")                                                                                      \
    X(ROWS_SCORE, 1e-6, "up to 576 terms in f32 in another order, multiplications fused")                                        \
    X(ROWS_MIX, 1e-6, "64 terms, multiplications fused")                                                                         \
    X(TILE_SCORE, 1e-6, "up to 576 terms, multiplications fused")                                                                \
    X(TILE_MIX, 1e-6, "64 terms, multiplications fused")                                                                         \
    X(SOFTMAX, 4e-6, "an own exponential, within 4e-6 of the true one; results below 2^-126 may be 0")                           \
    X(UNFOLD, 0, "one multiplication and one addition, each rounded")                                                            \
    X(HADAMARD, 0, "codes are made from it, so it is exact everywhere")                                                          \
    X(PATHS, 0, "as above")                                                                                                      \
    X(CODING, 0, "as above")

typedef enum px_entry {
#define PX_ENUM(entry, bound, reason) PX_##entry,
    PX_BOUNDS(PX_ENUM)
#undef PX_ENUM
        PX_ENTRIES
} px_entry;

/* What is being tested, for the message of a failure: px_at("kivi4 keys, 72 channels, seed %d", seed). */
void px_at(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Fails unless |got - want| <= bound * magnitude. Not a number never passes. */
void px_close(px_entry entry, float got, float want, double magnitude, const char *what, int i, int j);

/* The same with `more` allowed beside it. */
void px_close_by(px_entry entry, float got, float want, double magnitude, double more, const char *what, int i, int j);

/* What rounding n multipliers adds: half a unit of the largest for each, times the numbers that they are multiplied with, which
 * add up to `levels`. Multipliers below 2^-110 may count as zero. 0 where the set multiplies floats. */
double px_fixed_point(const kvfi_kind_ops *ops, int n, double largest, double levels);

/* Fails unless the bits are the same. */
void px_same(px_entry entry, float got, float want, const char *what, int i, int j);

/* Runs `test` for every instruction set present but scalar; skips when there is none. */
void px_each_set(void (*test)(const kvfi_kernels *scalar, const kvfi_kernels *fast));

/* An output: `bytes` bytes at an address that is `shift` beyond a multiple of 64, full of junk, with guards around. */
typedef struct px_output {
    unsigned char *block;
    size_t bytes, shift;
    float *data;
} px_output;

px_output px_output_make(size_t bytes, size_t shift);
void px_output_free(px_output *o, const char *what); /* also checks the guards */

/* The junk that outputs are filled with, a NaN: fails unless element i still is it. */
void px_untouched(const px_output *o, size_t i, const char *what);
float px_junk(void);

/* An input that ends where its memory ends, so that a sanitizer sees one byte too many: `shift` beyond a multiple of 64. */
typedef struct px_input {
    unsigned char *block;
    void *data;
} px_input;

px_input px_input_make(size_t bytes, size_t shift);
void px_input_free(px_input *i);

/* Numbers for queries and weights: most ordinary, by `flavour` also large (1000 deviations), tiny, equal or zero. */
enum { PX_FLAVOURS = 6 };
float px_number(int flavour, int i, uint64_t *state);
float px_weight(int flavour, int i, uint64_t *state);

static const int px_vectors[] = {1, 2, 3, 5, 7, 8, 16, 33};
enum { PX_VECTORS = sizeof px_vectors / sizeof *px_vectors };
static const int px_rows[] = {1, 31, 63, 64};
enum { PX_ROWS = sizeof px_rows / sizeof *px_rows };

#endif
