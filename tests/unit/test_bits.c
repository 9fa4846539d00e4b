/* SPDX-License-Identifier: MIT
 * Where codes lie in a record, and the plain bit stream of the public operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "codec/shared/layout.h"
#include "codec/shared/pack.h"
#include "codec_inputs.h"
#include "gpu/kernels/codes.h"

/* reduction x lanes of every kind: keys of some head sizes, values of some. */
static const struct {
    int reduction, lanes;
} matrices[] = {{16, 64}, {48, 64}, {64, 64}, {80, 64}, {576, 64}, {64, 16}, {64, 48}, {64, 80}, {64, 96}, {64, 112}, {64, 576}};
enum { MATRICES = sizeof matrices / sizeof *matrices };

/* Every plane bit of every code has its own bit, and together they fill the section exactly. */
static void the_arrangement_is_a_bijection(void **state)
{
    (void)state;
    for (int bits = 1; bits <= 8; bits++)
        for (int m = 0; m < MATRICES; m++) {
            int reduction = matrices[m].reduction, lanes = matrices[m].lanes;
            size_t bytes = kvfi_codes_bytes(bits, reduction, lanes);
            assert_int_equal(bytes * 8, (size_t)reduction * (size_t)lanes * (size_t)bits);
            uint8_t *used = ci_alloc(bytes);
            for (int r = 0; r < reduction; r++)
                for (int lane = 0; lane < lanes; lane++)
                    for (int p = 0, width; (width = kvfi_plane_width[bits][p]); p++) {
                        kvfi_where at = kvfi_code_at(bits, reduction, lanes, r, lane, p);
                        int mask = ((1 << width) - 1) << at.shift;
                        assert_true(at.byte < bytes && mask < 256);
                        assert_int_equal(used[at.byte] & mask, 0);
                        used[at.byte] = (uint8_t)(used[at.byte] | mask);
                    }
            for (size_t i = 0; i < bytes; i++) assert_int_equal(used[i], 255);
            free(used);
        }
}

/* The properties that kernels rely on: planes add up to the code, four adjacent codes of the reduction are the bytes of one
 * 32-bit lane, sixteen lanes one line. */
static void the_arrangement_suits_dot_products(void **state)
{
    (void)state;
    for (int bits = 1; bits <= 8; bits++) {
        int sum = 0;
        for (int p = 0; kvfi_plane_width[bits][p]; p++) {
            sum += kvfi_plane_width[bits][p];
            for (int lane = 0; lane < 64; lane += 16)
                for (int r = 0; r < 64; r += 4) {
                    kvfi_where first = kvfi_code_at(bits, 64, 64, r, lane, p);
                    assert_int_equal(first.byte % 64, 0);
                    for (int i = 0; i < 64; i++) {
                        kvfi_where at = kvfi_code_at(bits, 64, 64, r + i % 4, lane + i / 4, p);
                        assert_int_equal(at.byte, first.byte + (size_t)i);
                        assert_int_equal(at.shift, first.shift);
                    }
                }
        }
        assert_int_equal(sum, bits);
    }
}

/* The examples that docs/FORMAT.md works out by hand. */
static void documented_places(void **state)
{
    (void)state;
    static const struct {
        int bits, reduction, lanes, r, lane, p, shift;
        size_t byte;
    } places[] = {
        {4, 64, 64, 0, 0, 0, 0, 0},     {4, 64, 64, 1, 0, 0, 0, 1},     {4, 64, 64, 0, 1, 0, 0, 4},
        {4, 64, 64, 0, 16, 0, 4, 0},    {4, 64, 64, 5, 37, 0, 0, 213},  {3, 64, 64, 5, 37, 0, 4, 85},
        {3, 64, 64, 5, 37, 1, 6, 1045}, {4, 64, 80, 9, 70, 0, 0, 2137}, {8, 64, 64, 63, 63, 0, 0, 4095},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        kvfi_where at =
            kvfi_code_at(places[i].bits, places[i].reduction, places[i].lanes, places[i].r, places[i].lane, places[i].p);
        assert_int_equal(at.byte, places[i].byte);
        assert_int_equal(at.shift, places[i].shift);
    }
}

/* kvfi_pack of codes[reduction][lanes], first all channels at once, then 16 at a time and the last ones first. */
static void packs_the_same(kvf_side side, int bits, int width, const uint8_t *codes, const uint8_t *want, size_t bytes)
{
    const size_t row = (size_t)width, junk = 5; /* rows are apart */
    uint8_t *tokens = ci_alloc(KVF_BLOCK * (row + junk)), *got = ci_alloc(2 * bytes);
    memset(tokens, 255, KVF_BLOCK * (row + junk));
    for (int t = 0; t < KVF_BLOCK; t++)
        for (int c = 0; c < width; c++)
            tokens[(size_t)t * (row + junk) + (size_t)c] = side == KVF_K ? codes[c * KVF_BLOCK + t] : codes[t * width + c];
    const kvfi_packing whole = {side, bits, width, got}, some = {side, bits, width, got + bytes};
    for (int t = KVF_BLOCK - KVFI_PACKED_TOKENS; t >= 0; t -= KVFI_PACKED_TOKENS) {
        const uint8_t *from = tokens + (size_t)t * (row + junk);
        kvfi_pack(&whole, t, 0, width, from, row + junk);
        for (int c = width - 16; c >= 0; c -= 16) kvfi_pack(&some, t, c, 16, from + c, row + junk);
    }
    assert_memory_equal(got, want, bytes);
    assert_memory_equal(got + bytes, want, bytes);
    free(tokens), free(got);
}

static void what_is_put_is_got(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int bits = 1; bits <= 8; bits++)
        for (int m = 0; m < MATRICES; m++) {
            int reduction = matrices[m].reduction, lanes = matrices[m].lanes;
            size_t bytes = kvfi_codes_bytes(bits, reduction, lanes), n = (size_t)reduction * (size_t)lanes;
            uint8_t *single = ci_alloc(bytes), *codes = ci_alloc(n), *back = ci_alloc(n);
            for (size_t i = 0; i < n; i++) codes[i] = (uint8_t)(ci_next(&seed) & ((1u << bits) - 1));
            for (int r = 0; r < reduction; r++)
                for (int l = 0; l < lanes; l++) kvfi_code_put(single, bits, reduction, lanes, r, l, codes[r * lanes + l]);
            if (reduction == 64) packs_the_same(KVF_V, bits, lanes, codes, single, bytes);
            if (lanes == 64) packs_the_same(KVF_K, bits, reduction, codes, single, bytes);
            for (int r = 0; r < reduction; r++) {
                for (int l = 0; l < lanes; l++)
                    assert_int_equal(kvfi_code_get(single, bits, reduction, lanes, r, l), codes[r * lanes + l]);
                for (int l = 0; l < lanes; l += 16)
                    kvfi_codes_get_row(single, bits, reduction, lanes, r, l, 16, back + r * lanes + l);
            }
            assert_memory_equal(codes, back, n);
            free(single), free(codes), free(back);
        }
}

static void stream_of_three_bits_by_hand(void **state)
{
    (void)state;
    /* 1 2 3 4 5 6 7 0 1, low bits first: 001 010 011 100 101 110 111 000 001 read from the right of each byte */
    const uint8_t codes[] = {1, 2, 3, 4, 5, 6, 7, 0, 1}, want[] = {0xd1, 0x58, 0x1f, 0x01};
    uint8_t packed[5] = {0xaa, 0xaa, 0xaa, 0xaa, 0xaa}, back[9];
    assert_int_equal(kvf_op_packed_bytes(9, 3), 4);
    assert_int_equal(kvf_op_pack(codes, 9, 3, packed), KVF_OK);
    assert_memory_equal(packed, want, 4);
    assert_int_equal(packed[4], 0xaa);
    assert_int_equal(kvf_op_unpack(packed, 9, 3, back), KVF_OK);
    assert_memory_equal(back, codes, 9);
}

/* Bit by bit, from the definition of the stream. */
static void streams_of_every_width_and_length(void **state)
{
    (void)state;
    uint64_t seed = 3;
    for (int bits = 1; bits <= 8; bits++)
        for (size_t n = 0; n <= 130; n++) {
            uint8_t codes[130], back[131], packed[140], want[140] = {0};
            memset(packed, 0x55, sizeof packed);
            memset(back, 0x55, sizeof back);
            for (size_t i = 0; i < n; i++) {
                codes[i] = (uint8_t)(ci_next(&seed) & ((1u << bits) - 1));
                for (int b = 0; b < bits; b++) {
                    size_t at = i * (size_t)bits + (size_t)b;
                    want[at / 8] = (uint8_t)(want[at / 8] | (codes[i] >> b & 1) << at % 8);
                }
            }
            size_t bytes = kvf_op_packed_bytes(n, bits);
            assert_int_equal(bytes, (n * (size_t)bits + 7) / 8);
            assert_int_equal(kvf_op_pack(codes, n, bits, packed), KVF_OK);
            assert_memory_equal(packed, want, bytes);
            assert_int_equal(packed[bytes], 0x55);
            assert_int_equal(kvf_op_unpack(packed, n, bits, back), KVF_OK);
            assert_memory_equal(back, codes, n);
            assert_int_equal(back[n], 0x55);
        }
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    uint8_t codes[4] = {0, 1, 8, 1}, packed[4] = {9, 9, 9, 9};
    assert_int_equal(kvf_op_pack(codes, 4, 3, packed), KVF_E_ARG); /* 8 needs four bits */
    assert_int_equal(packed[0], 9);
    assert_int_equal(kvf_op_pack(codes, 4, 4, packed), KVF_OK);
    for (int bits = -1; bits <= 9; bits += 10) {
        assert_int_equal(kvf_op_pack(codes, 4, bits, packed), KVF_E_ARG);
        assert_int_equal(kvf_op_unpack(packed, 4, bits, codes), KVF_E_ARG);
    }
    assert_int_equal(kvf_op_pack(codes, 4, 0, packed), KVF_E_ARG);
    assert_int_equal(kvf_op_pack(NULL, 4, 4, packed), KVF_E_ARG);
    assert_int_equal(kvf_op_unpack(packed, 4, 4, NULL), KVF_E_ARG);
    assert_int_equal(kvf_op_pack(codes, SIZE_MAX, 8, packed), KVF_E_ARG);
    assert_int_equal(kvf_op_packed_bytes(8, 9), 0);
    assert_int_equal(kvf_op_pack(NULL, 0, 4, NULL), KVF_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_arrangement_is_a_bijection),
        cmocka_unit_test(the_arrangement_suits_dot_products),
        cmocka_unit_test(documented_places),
        cmocka_unit_test(what_is_put_is_got),
        cmocka_unit_test(stream_of_three_bits_by_hand),
        cmocka_unit_test(streams_of_every_width_and_length),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
