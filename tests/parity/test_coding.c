/* SPDX-License-Identifier: MIT
 * Steps of coding a vector, and the records of all codecs. Everything is exact. */
#include "parity.h"

#include <stdio.h>

/* Numbers of channels: each remainder of a vector, whole vectors, many. */
static const int counts[] = {1, 2, 3, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33, 40, 64, 100, 128, 576, 1024};
enum { COUNTS = sizeof counts / sizeof *counts };

/* Sets on x86 have entries of their own; NEON runs the portable ones. */
static void check_own(const kvfi_kernels *fast, int differs)
{
    if (strncmp(fast->name, "neon", 4) != 0) assert_true(differs);
}

/* ---- sums ------------------------------------------------------------------------------------------------------------------------- */

static void dots(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    check_own(fast, fast->dot16 != scalar->dot16);
    for (int i = 0; i < COUNTS; i++)
        for (int flavour = 0; flavour < PX_FLAVOURS; flavour++) {
            const int n = counts[i];
            uint64_t state = (uint64_t)(n * 10 + flavour);
            px_input a = px_input_make((size_t)n * sizeof(float), 4), b = px_input_make((size_t)n * sizeof(float), 12);
            float *x = a.data, *y = b.data, sum[16] = {0};
            for (int c = 0; c < n; c++) x[c] = px_number(flavour, c, &state), y[c] = px_number(flavour + 1, c, &state);
            px_at("%s: sum of %d products, flavour %d", fast->name, n, flavour);
            for (int c = 0; c < n; c++) sum[c % 16] += x[c] * y[c];
            for (int half = 8; half; half /= 2)
                for (int c = 0; c < half; c++) sum[c] += sum[c + half];
            px_same(PX_CODING, scalar->dot16(x, y, n), sum[0], "sum by definition", n, flavour);
            px_same(PX_CODING, fast->dot16(x, y, n), sum[0], "sum", n, flavour);
            px_input_free(&a), px_input_free(&b);
        }
}

static void test_dots(void **state)
{
    (void)state;
    px_each_set(dots);
}

/* ---- halves ----------------------------------------------------------------------------------------------------------------------- */

static void check_widen(const kvfi_kernels *k, const uint16_t *half, int n, float *x)
{
    k->widen(half, n, x);
    for (int i = 0; i < n; i++) px_same(PX_CODING, x[i], kvfi_half_to_float(half[i]), "f32 of", half[i], n);
}

/* All f16 numbers, by runs of each length. */
static void widens(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    check_own(fast, fast->widen != scalar->widen);
    for (int i = 0, first = 0; first < 1 << 16; i++) {
        const int left = (1 << 16) - first, n = counts[i % COUNTS] < left ? counts[i % COUNTS] : left;
        px_input in = px_input_make((size_t)n * sizeof(uint16_t), 2);
        px_output out = px_output_make((size_t)n * sizeof(float), 4);
        px_at("%s: %d numbers from %04x on", fast->name, n, (unsigned)first);
        for (int c = 0; c < n; c++) ((uint16_t *)in.data)[c] = (uint16_t)(first + c);
        check_widen(scalar, in.data, n, out.data);
        check_widen(fast, in.data, n, out.data);
        px_output_free(&out, "the numbers");
        px_input_free(&in);
        first += n;
    }
}

/* Around each f16 number: itself, the middle between it and the next, the neighbours of that; and what lies beyond them all. */
static uint32_t near_half(int i)
{
    const uint32_t bits = kvfi_float_bits(kvfi_half_to_float((uint16_t)(i / 4 & 0x7bff))) | (uint32_t)(i / 4 & 0x8000) << 16;
    return i % 4 ? bits + 0x1000 + (uint32_t)(i % 4) - 2 : bits;
}

static void narrows(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    static const float ends[] = {65504, 65519.99f, 65520, 1e30f, INFINITY, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 1e-40f, 0, NAN};
    enum { ENDS = sizeof ends / sizeof *ends };
    check_own(fast, fast->narrow != scalar->narrow);
    for (int i = 0, first = 0; first < 4 << 16; i++) {
        const int n = counts[i % COUNTS];
        px_input in = px_input_make((size_t)n * sizeof(float), 4);
        px_output out = px_output_make((size_t)n * sizeof(uint16_t), 2);
        float *x = in.data;
        uint16_t *half = (uint16_t *)(void *)out.data;
        px_at("%s: %d numbers to f16, from %d on", fast->name, n, first);
        for (int c = 0; c < n; c++)
            x[c] = i % 8 ? kvfi_bits_float(near_half(first + c)) : (c % 2 ? -1.0f : 1.0f) * ends[(first + c) % ENDS];
        for (int of = 0; of < 2; of++) {
            (of ? fast : scalar)->narrow(x, n, half);
            for (int c = 0; c < n; c++) assert_int_equal(half[c], kvfi_half_saturated(x[c]));
        }
        px_output_free(&out, "the numbers");
        px_input_free(&in);
        first += n;
    }
}

static void test_halves(void **state)
{
    (void)state;
    px_each_set(widens);
    px_each_set(narrows);
}

/* ---- tables ----------------------------------------------------------------------------------------------------------------------- */

/* Ascending, with some bounds equal; numbers on bounds, beside them and beyond. */
static void check_rank(const kvfi_kernels *k, const kvfi_ranks *r, const float *x, float factor, int n)
{
    px_output codes = px_output_make((size_t)n, 1), decoded = px_output_make((size_t)n * sizeof(float), 8);
    uint8_t *code = (uint8_t *)(void *)codes.data;
    k->rank(r, x, factor, n, code, decoded.data);
    for (int i = 0; i < n; i++) {
        int below = 0;
        for (int b = 0; b + 1 < 1 << r->bits; b++) below += r->bound[b] < x[i] * factor;
        if (code[i] != below) fail_msg("%s, %d bits: code of %g is %d, not %d", k->name, r->bits, x[i], code[i], below);
        px_same(PX_CODING, decoded.data[i], r->level[below], "level", i, below);
    }
    px_output_free(&codes, "the codes");
    px_output_free(&decoded, "the levels");
}

static void ranks(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    static const float factors[] = {1, 0.37f, 0, INFINITY};
    check_own(fast, fast->rank != scalar->rank);
    for (int bits = 1; bits <= 8; bits++)
        for (int i = 0; i < COUNTS * 4; i++) {
            const int n = counts[i / 4], top = (1 << bits) - 1;
            kvfi_ranks r = {.bits = bits};
            uint64_t state = (uint64_t)(bits * 100 + i);
            px_input in = px_input_make((size_t)n * sizeof(float), (size_t)(i % 3) * 4);
            float *x = in.data, bound = (float)-top;
            for (int b = 0; b < top; b++) r.bound[b] = bound += (float)(ci_next(&state) % 5);
            for (int b = 0; b <= top; b++) r.level[b] = (float)ci_gauss(&state);
            for (int c = 0; c < n; c++) {
                x[c] = r.bound[ci_next(&state) % (unsigned)top];
                if (c % 4 == 1) x[c] = nextafterf(x[c], c % 8 == 1 ? INFINITY : -INFINITY);
                if (c % 4 == 2) x[c] = (float)(ci_gauss(&state) * 2 * top);
            }
            px_at("%s: %d channels by a table of %d bits, times %g", fast->name, n, bits, (double)factors[i % 4]);
            check_rank(scalar, &r, x, factors[i % 4], n);
            check_rank(fast, &r, x, factors[i % 4], n);
            px_input_free(&in);
        }
}

static void test_ranks(void **state)
{
    (void)state;
    px_each_set(ranks);
}

/* ---- records ---------------------------------------------------------------------------------------------------------------------- */

static const kvfi_kernels *records_of;

static void check_record(const char *spec, kvf_side side, int dim, ci_kind kind, double size)
{
    kvf_part part;
    uint8_t *record[2];
    float *x = ci_alloc((size_t)(dim + 15) * KVF_BLOCK * 2 * sizeof *x);
    if (kvfi_part_setup(spec, side, dim, &part, NULL, 0) || part.kind == KVF_KIND_VECTOR || part.kind == KVF_KIND_TRELLIS) {
        free(x); /* of another head size, or with tests of their own */
        return;
    }
    for (int of = 0; of < 2; of++) {
        record[of] = ci_alloc(part.bytes);
        memset(record[of], of ? 0xa5 : 0, part.bytes);
        ci_fill(x, dim, kind, (uint64_t)dim);
        for (int i = 0; i < dim * KVF_BLOCK; i++) x[i] = (float)(x[i] * size);
        part.kernels = of ? records_of : NULL;
        part.codec->encode(&part, x, record[of]);
    }
    for (size_t i = 0; i < part.bytes; i++)
        if (record[0][i] != record[1][i])
            fail_msg("%s, %s, side %d, %d channels, %s times %g: byte %zu differs", records_of->name, spec, (int)side, dim,
                     ci_kind_name[kind], size, i);
    free(record[0]), free(record[1]), free(x);
}

static void each_record(const char *spec, kvf_side side, void *user)
{
    static const int dims[] = {2, 40, 72, 80, 128, 256};
    static const double sizes[] = {1, 1e-40, 1e30};
    int *round = user;
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++, ++*round)
        for (int input = 0; input < CI_KIND_COUNT; input++)
            if ((*round + input) % CI_SHARE == 0) check_record(spec, side, dims[d], (ci_kind)input, sizes[(*round + input) % 3]);
}

static void records(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    int round = 0;
    (void)scalar;
    records_of = fast;
    ci_each_spec(each_record, &round);
}

static void test_records(void **state)
{
    (void)state;
    px_each_set(records);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dots), cmocka_unit_test(test_halves), cmocka_unit_test(test_ranks),
                                       cmocka_unit_test(test_records)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
