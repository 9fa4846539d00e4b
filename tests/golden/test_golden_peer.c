/* SPDX-License-Identifier: MIT
 * The operations against arrays recorded from another implementation, when the environment variable KVFOLD_GOLDEN names the
 * folder that holds them; skipped otherwise. What the recording tool rounded or padded differently on purpose is said in place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "../unit/codec_inputs.h"
#include "codec/shared/codebook.h"
#include "npz.h"

static npz *open_recorded(const char *name)
{
    const char *folder = getenv("KVFOLD_GOLDEN");
    char path[4096];
    if (!folder || !folder[0]) return NULL;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) fail_msg("KVFOLD_GOLDEN is too long");
    return npz_open(path);
}

static npz_array need(const npz *z, const char *stem, const char *field)
{
    char name[80];
    npz_array a;
    snprintf(name, sizeof name, "%s.%s", stem, field);
    if (!npz_get(z, name, &a)) fail_msg("'%s' is missing or damaged", name);
    return a;
}

/* The next member that ends in `.field`: its stem. */
static int next_case(const npz *z, int *i, const char *field, char stem[64])
{
    for (const char *name; (name = npz_name(z, (*i)++));) {
        const char *dot = strrchr(name, '.');
        if (!dot || strcmp(dot + 1, field)) continue;
        snprintf(stem, 64, "%.*s", (int)(dot - name), name);
        return 1;
    }
    return 0;
}

static float *floats(const npz_array *a)
{
    float *x = ci_alloc((size_t)a->count * sizeof *x);
    for (int64_t i = 0; i < a->count; i++) x[i] = (float)npz_number(a, i);
    return x;
}

/* ---- the reader itself: runs without recordings ---- */

static void inflate_knows_its_blocks(void **state)
{
    (void)state;
    static const unsigned char stored[] = {0x01, 0x03, 0x00, 0xfc, 0xff, 'a', 'b', 'c'};
    static const unsigned char fixed[] = {0x4b, 0x4c, 0x4a, 0x4e, 0x84, 0x21, 0x00}; /* abcabcabcabc */
    unsigned char out[16];
    assert_true(npz_inflate(stored, sizeof stored, out, 3));
    assert_memory_equal(out, "abc", 3);
    assert_true(npz_inflate(fixed, sizeof fixed, out, 12));
    assert_memory_equal(out, "abcabcabcabc", 12);
    assert_false(npz_inflate(fixed, sizeof fixed - 3, out, 12));
    assert_false(npz_inflate(fixed, sizeof fixed, out, 11));
    assert_false(npz_inflate(fixed, sizeof fixed, out, 13));
    assert_false(npz_inflate((const unsigned char *)"\x07", 1, out, 1));
}

/* ---- KIVI: codes, scales and minima bit for bit; what is decoded, rounded to f16 as the other tool returns it ---- */

static void one_kivi_case(const npz *z, const char *stem)
{
    npz_array params = need(z, stem, "params"), xa = need(z, stem, "x"), codes = need(z, stem, "codes");
    npz_array scale = need(z, stem, "scale"), zero = need(z, stem, "zero"), recon = need(z, stem, "recon16");
    int64_t tokens = xa.shape[0], dim = xa.shape[1];
    int bits = (int)npz_number(&params, 0), group = (int)npz_number(&params, 1), axis = (int)npz_number(&params, 2);
    float *x = floats(&xa), *s = ci_alloc((size_t)(tokens * dim) * sizeof *s), *m = ci_alloc((size_t)(tokens * dim) * sizeof *m);
    uint8_t *c = ci_alloc((size_t)(tokens * dim));
    assert_int_equal(kvf_op_kivi_quantise(x, tokens, dim, bits, group, axis, KVF_F32, c, s, m), KVF_OK);
    for (int64_t i = 0; i < codes.count; i++)
        if (c[i] != npz_number(&codes, i)) fail_msg("%s: code %d is %d, recorded %g", stem, (int)i, c[i], npz_number(&codes, i));
    for (int64_t i = 0; i < scale.count; i++)
        if (s[i] != (float)npz_number(&scale, i) || m[i] != (float)npz_number(&zero, i))
            fail_msg("%s: group %d has scale %g and minimum %g, recorded %g and %g", stem, (int)i, s[i], m[i],
                     npz_number(&scale, i), npz_number(&zero, i));
    assert_int_equal(kvf_op_kivi_dequantise(c, s, m, tokens, dim, group, axis, x), KVF_OK);
    for (int64_t i = 0; i < recon.count; i++) assert_true(ci_half(x[i]) == npz_number(&recon, i));
    free(x), free(s), free(m), free(c);
    npz_free(&params), npz_free(&xa), npz_free(&codes), npz_free(&scale), npz_free(&zero), npz_free(&recon);
}

static void kivi_cases_bit_for_bit(void **state)
{
    (void)state;
    npz *z = open_recorded("kivi_a.npz");
    if (!z) skip();
    char stem[64];
    int n = 0;
    for (int i = 0; next_case(z, &i, "recon16", stem); n++) one_kivi_case(z, stem);
    print_message("%d recorded KIVI cases agree\n", n);
    assert_true(n >= 40);
    npz_close(z);
}

/* A cache at its end: coded rows replaced by what the codes mean, the newest rows as they came. */
static void kivi_cache_rows(void **state)
{
    (void)state;
    npz *z = open_recorded("kivi_a.npz");
    if (!z) skip();
    npz_array params = need(z, "cache", "params"), coded = need(z, "cache", "n_quantized");
    int bits = (int)npz_number(&params, 0), group = (int)npz_number(&params, 1);
    int64_t n = (int64_t)npz_number(&coded, coded.count - 1);
    for (int axis = 0; axis < 2; axis++) {
        npz_array in = need(z, "cache", axis ? "v" : "k"), out = need(z, "cache", axis ? "v_final" : "k_final");
        int64_t heads = in.shape[1], tokens = in.shape[2], dim = in.shape[3];
        assert_true(n > 0 && n <= tokens);
        for (int64_t h = 0; h < heads; h++) {
            float *x = floats(&in), *rows = x + h * tokens * dim, *s = ci_alloc((size_t)(n * dim) * sizeof *s);
            float *m = ci_alloc((size_t)(n * dim) * sizeof *m);
            uint8_t *c = ci_alloc((size_t)(n * dim));
            assert_int_equal(kvf_op_kivi_quantise(rows, n, dim, bits, group, axis, KVF_F32, c, s, m), KVF_OK);
            assert_int_equal(kvf_op_kivi_dequantise(c, s, m, n, dim, group, axis, rows), KVF_OK);
            for (int64_t i = 0; i < tokens * dim; i++) assert_true(ci_half(rows[i]) == npz_number(&out, h * tokens * dim + i));
            free(x), free(s), free(m), free(c);
        }
        npz_free(&in), npz_free(&out);
    }
    npz_free(&params), npz_free(&coded);
    npz_close(z);
}

/* ---- packing ---- */

/* The byte stream is ours. At 3 bits the other tool fills up to whole groups of 8 codes (3 bytes); we end with the byte that
 * holds the last code. What we do write is the same. */
static void packed_bytes(void **state)
{
    (void)state;
    npz *z = open_recorded("pack_a.npz");
    if (!z) skip();
    char stem[64];
    int n = 0, bits;
    for (int i = 0; next_case(z, &i, "packed", stem); n++) {
        npz_array codes = need(z, stem, "codes"), packed = need(z, stem, "packed");
        assert_int_equal(sscanf(stem, "byte_b%d_", &bits), 1);
        size_t bytes = kvf_op_packed_bytes((size_t)codes.count, bits);
        uint8_t *ours = ci_alloc(bytes);
        assert_int_equal(kvf_op_pack(codes.data, (size_t)codes.count, bits, ours), KVF_OK);
        assert_int_equal(packed.count, bits == 3 ? 3 * ((codes.count + 7) / 8) : (int64_t)bytes);
        assert_memory_equal(ours, packed.data, bytes);
        for (int64_t j = (int64_t)bytes; j < packed.count; j++) assert_int_equal(packed.data[j], 0);
        free(ours), npz_free(&codes), npz_free(&packed);
    }
    assert_true(n >= 12);
    npz_close(z);
}

/* Words of 32 bits hold floor(32 / bits) codes: for 1, 2 and 4 bits that is the byte stream too. At 3 bits a word holds 10 codes
 * and wastes two bits, which our stream does not. */
static void packed_words(void **state)
{
    (void)state;
    npz *z = open_recorded("pack_a.npz");
    if (!z) skip();
    char stem[64];
    int n = 0, bits;
    for (int i = 0; next_case(z, &i, "words", stem);) {
        npz_array codes = need(z, stem, "codes"), words = need(z, stem, "words");
        assert_int_equal(sscanf(stem, "word_b%d_", &bits), 1);
        size_t per_row = (size_t)codes.shape[1], bytes = kvf_op_packed_bytes(per_row, bits);
        uint8_t *ours = ci_alloc(bytes);
        for (int64_t row = 0; row < codes.shape[0] && bits != 3; row++, n++) {
            assert_int_equal(kvf_op_pack(codes.data + (size_t)row * per_row, per_row, bits, ours), KVF_OK);
            assert_int_equal(bytes, (size_t)words.shape[1] * 4);
            assert_memory_equal(ours, words.data + (size_t)row * bytes, bytes);
        }
        free(ours), npz_free(&codes), npz_free(&words);
    }
    assert_true(n >= 18);
    npz_close(z);
}

/* ---- Hadamard ---- */

static void close_to(const float *x, const npz_array *want, double limit)
{
    for (int64_t i = 0; i < want->count; i++) assert_true(fabs(x[i] - npz_number(want, i)) < limit);
}

static void hadamard_of_signed_vectors(void **state)
{
    (void)state;
    npz *z = open_recorded("hadamard_a.npz");
    if (!z) skip();
    char stem[64];
    int n = 0;
    for (int i = 0; next_case(z, &i, "signs", stem); n++) {
        npz_array signs = need(z, stem, "signs"), xa = need(z, stem, "x"), y = need(z, stem, "y"), back = need(z, stem, "back");
        int64_t dim = xa.shape[1];
        if (dim & (dim - 1)) continue; /* sizes that are no power of two are another matrix there */
        float *x = floats(&xa);
        for (int64_t j = 0; j < xa.count; j++) x[j] *= (float)npz_number(&signs, j % dim);
        assert_int_equal(kvf_op_hadamard(x, xa.shape[0], dim, (int32_t)dim), KVF_OK);
        close_to(x, &y, 2e-6);
        assert_int_equal(kvf_op_hadamard(x, xa.shape[0], dim, (int32_t)dim), KVF_OK);
        for (int64_t j = 0; j < xa.count; j++) x[j] *= (float)npz_number(&signs, j % dim);
        close_to(x, &back, 4e-6);
        free(x), npz_free(&signs), npz_free(&xa), npz_free(&y), npz_free(&back);
    }
    assert_true(n >= 2);
    npz_array h = need(z, "wht_d8", "H");
    float unit[64] = {0};
    for (int j = 0; j < 8; j++) unit[9 * j] = 1;
    assert_int_equal(kvf_op_hadamard(unit, 8, 8, 8), KVF_OK);
    close_to(unit, &h, 1e-6);
    npz_free(&h);
    npz_close(z);
}

/* ---- codebooks: `gauss` of a normal variable of deviation 1 / sqrt(d), cut at six deviations; `beta` of the exact density ---- */

/* Mean-square error of ascending levels for a normal variable. */
static double normal_error(const double *level, int n)
{
    enum { STEPS = 200000 };
    double error = 0;
    for (int k = 0, i = 0; k < STEPS; k++) {
        const double t = (k + 0.5) * 16 / STEPS - 8;
        while (i + 1 < n && t > (level[i] + level[i + 1]) / 2) i++;
        error += exp(-t * t / 2) / sqrt(2 * acos(-1)) * (t - level[i]) * (t - level[i]) * 16 / STEPS;
    }
    return error;
}

static void codebooks_of_the_other_tool(void **state)
{
    (void)state;
    npz *z = open_recorded("codebook_a.npz");
    if (!z) skip();
    char stem[64];
    int n = 0;
    for (int i = 0; next_case(z, &i, "centroids32", stem);) {
        int dim, bits;
        float level[256];
        const int exact = sscanf(stem, "beta_d%d_b%d", &dim, &bits) == 2;
        if (!exact && sscanf(stem, "gauss_d%d_b%d", &dim, &bits) != 2) continue;
        npz_array c = need(z, stem, "centroids32");
        assert_int_equal(kvf_op_codebook(bits, exact ? dim : 0, level, NULL), KVF_OK);
        double most = 0, theirs[256], ours[256];
        for (int64_t j = 0; j < c.count; j++) {
            theirs[j] = npz_number(&c, j) * sqrt(dim), ours[j] = (double)level[j];
            most = fmax(most, fabs(ours[j] - theirs[j]));
        }
        print_message("%s: levels within %.5f deviations\n", stem, most);
        /* its iteration ends before many levels have settled: there ours are better */
        if (bits <= 6 && most > 5e-4) fail_msg("%s: a level is %.5f deviations off", stem, most);
        if (bits > 6) assert_true(normal_error(ours, (int)c.count) < normal_error(theirs, (int)c.count));
        npz_free(&c);
        n++;
    }
    assert_true(n >= 20);
    npz_close(z);
}

/* Second stages of its residual codec: a Laplace density, cut at eight times its parameter `scale`. */
static void laplace_levels_of_the_other_tool(void **state)
{
    (void)state;
    npz *z = open_recorded("codebook_a.npz");
    if (!z) skip();
    char stem[64];
    int n = 0, dim, bits;
    for (int i = 0; next_case(z, &i, "scale", stem);) {
        if (sscanf(stem, "rvq2_d%d_b%d", &dim, &bits) != 2 || bits > 4) continue;
        npz_array scale = need(z, stem, "scale"), c = need(z, stem, "centroids32");
        double level[8];
        kvfi_laplace_max(bits, 8, level);
        double most = 0;
        for (int64_t j = 0; j < c.count / 2; j++)
            most = fmax(most, fabs(level[j] - npz_number(&c, c.count / 2 + j) / npz_number(&scale, 0)));
        print_message("%s: levels within %.5f scales\n", stem, most);
        assert_true(most < 2e-4); /* it sums the density, which has an edge at 0, by trapezia */
        npz_free(&scale), npz_free(&c);
        n++;
    }
    assert_true(n >= 8);
    npz_close(z);
}

/* Codes of its own levels; it rounds boundaries to f16, so where a value lies that close to one, the neighbour will do. */
static void codes_of_the_other_tool(void **state)
{
    (void)state;
    npz *z = open_recorded("codebook_a.npz");
    if (!z) skip();
    npz_array y = need(z, "assign_d64_b3", "y"), index = need(z, "assign_d64_b3", "idx"),
              c = need(z, "gauss_d64_b3", "centroids16");
    float *x = floats(&y), *level = floats(&c);
    uint8_t *code = ci_alloc((size_t)y.count);
    int same = 0;
    assert_int_equal(kvf_op_codebook_quantise(x, (size_t)y.count, level, (int32_t)c.count, code), KVF_OK);
    for (int64_t i = 0; i < y.count; i++) {
        const int want = (int)npz_number(&index, i), low = want < code[i] ? want : code[i];
        same += want == code[i];
        if (want == code[i]) continue;
        const double boundary = low < 7 ? ((double)level[low] + level[low + 1]) / 2 : 0;
        assert_true(abs(want - code[i]) == 1 && fabs(x[i] - boundary) <= fabs(boundary) * 0x1p-10 + 0x1p-24);
    }
    print_message("%d of %d codes are the same, the others within f16 rounding of a boundary\n", same, (int)y.count);
    assert_true(same * 2 > y.count);
    free(x), free(level), free(code), npz_free(&y), npz_free(&index), npz_free(&c);
    npz_close(z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inflate_knows_its_blocks),
        cmocka_unit_test(kivi_cases_bit_for_bit),
        cmocka_unit_test(kivi_cache_rows),
        cmocka_unit_test(packed_bytes),
        cmocka_unit_test(packed_words),
        cmocka_unit_test(hadamard_of_signed_vectors),
        cmocka_unit_test(codebooks_of_the_other_tool),
        cmocka_unit_test(laplace_levels_of_the_other_tool),
        cmocka_unit_test(codes_of_the_other_tool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
