/* SPDX-License-Identifier: MIT
 * Spec strings, listings, presets, error texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>

#include "codec/codec.h"
#include "codec_inputs.h"

typedef struct spec_case {
    const char *spec;
    kvf_side side;
    int dim;
    int code;
    const char *says; /* canonical form, or words that the sentence must hold */
} spec_case;

static const spec_case good[] = {
    {"f16", KVF_K, 64, KVF_OK, "f16"},
    {"q8_0", KVF_K, 64, KVF_OK, "q8_0:rot=none,seed=0,centre=none,scale=none"},
    {"q8_0:rot=h", KVF_V, 80, KVF_OK, "q8_0:rot=h,seed=0"},
    {"q4_0:rot=none", KVF_V, 1, KVF_OK, "q4_0:rot=none,seed=0"},
    {"q4_0:centre=block,rot=h1", KVF_K, 72, KVF_OK, "q4_0:rot=h1,seed=0,centre=block,scale=none"},
    {"uni4", KVF_K, 64, KVF_OK, "uni4:norm=n1,rot=h1,seed=0,centre=prompt,scale=prompt"},
    {"uni2:rot=none,norm=n3", KVF_V, 64, KVF_OK, "uni2:norm=n3,rot=none,seed=0"},
    {"turbo8:rot=haar,seed=999999", KVF_K, 7, KVF_OK, "turbo8:norm=n1,rot=haar,seed=999999,centre=prompt,scale=prompt"},
    {"turbo3:rot=h2,seed=7,centre=none", KVF_K, 1, KVF_OK, "turbo3:norm=n1,rot=h2,seed=7,centre=none,scale=prompt"},
    {"kivi4", KVF_K, 64, KVF_OK, "kivi4:group=32"},
    {"kivi1", KVF_V, 7, KVF_OK, "kivi1:group=32"},
    {"kivi3:group=64", KVF_K, 1024, KVF_OK, "kivi3:group=64"},
    {"kivi2:group=128", KVF_V, 40, KVF_OK, "kivi2:group=128"},
    {"kivi8:group=16", KVF_K, 576, KVF_OK, "kivi8:group=16"},
};

static const spec_case bad[] = {
    /* nothing of that name */
    {"", KVF_K, 64, KVF_E_SPEC, "no name; there are: f16 q8_0 q4_0 kivi4"},
    {":", KVF_K, 64, KVF_E_SPEC, "no name"},
    {":group=32", KVF_K, 64, KVF_E_SPEC, "no name"},
    {"foo", KVF_K, 64, KVF_E_SPEC, "'foo' does not exist; there are: f16 q8_0 q4_0 kivi4 uni4 turbo4"},
    {"kiv4", KVF_K, 64, KVF_E_SPEC, "'kiv4' does not exist"},
    {"KIVI4", KVF_K, 64, KVF_E_SPEC, "'KIVI4' does not exist"},
    {" kivi4", KVF_K, 64, KVF_E_SPEC, "does not exist"},
    {"kivi4 ", KVF_K, 64, KVF_E_SPEC, "does not exist"},
    {"kivi-4", KVF_K, 64, KVF_E_SPEC, "does not exist"},
    {"kivi+4", KVF_K, 64, KVF_E_SPEC, "does not exist"},
    {"kivi4x", KVF_K, 64, KVF_E_SPEC, "does not exist"},
    {"kivi04", KVF_K, 64, KVF_E_SPEC, "does not exist"},
    {"kivi99999999999", KVF_K, 64, KVF_E_SPEC, "does not exist"},
    {"q8", KVF_K, 64, KVF_E_SPEC, "'q8' does not exist"},
    {"q8_", KVF_K, 64, KVF_E_SPEC, "does not exist"},
    {"q5_0", KVF_K, 64, KVF_E_SPEC, "does not exist"},
    {"f1", KVF_K, 64, KVF_E_SPEC, "does not exist"},
    {"f16/f16", KVF_K, 64, KVF_E_SPEC, "does not exist"},
    {"\x1b[31mred\n", KVF_K, 64, KVF_E_SPEC, "'?[31mred?' does not exist"},
    {"\xff\xfe", KVF_K, 64, KVF_E_SPEC, "'\?\?' does not exist"},
    {"kivi4:group=32,group=32,group=32,group=32,group=32,group=32,group=32,group=32,group=32,group=32,g"
     "roup=32,group=32,group=32,group=32,group=32,group=32,group=32,group=32,group=32,group=32,group=32,group=32,group=32",
     KVF_K, 64, KVF_E_SPEC, "212 characters; at most 199"},
    /* the number of bits: what no kernel implements is refused here */
    {"kivi", KVF_K, 64, KVF_E_SPEC, "needs its number of bits: kivi1 kivi2 kivi3 kivi4 kivi8"},
    {"kivi0", KVF_K, 64, KVF_E_SPEC, "'kivi0' does not exist: kivi has 1, 2, 3, 4 or 8 bits"},
    {"kivi5", KVF_V, 64, KVF_E_SPEC, "'kivi5' does not exist"},
    {"kivi6", KVF_K, 64, KVF_E_SPEC, "'kivi6' does not exist"},
    {"kivi7", KVF_K, 64, KVF_E_SPEC, "'kivi7' does not exist"},
    {"kivi9", KVF_K, 64, KVF_E_SPEC, "'kivi9' does not exist"},
    {"kivi16", KVF_K, 64, KVF_E_SPEC, "'kivi16' does not exist"},
    {"f164", KVF_K, 64, KVF_E_SPEC, "'f164' does not exist: 'f16' takes no number"},
    {"q8_04", KVF_K, 64, KVF_E_SPEC, "'q8_04' does not exist: 'q8_0' takes no number"},
    /* options */
    {"kivi4:", KVF_K, 64, KVF_E_SPEC, "nothing follows a ':' or ','; write KEY=VALUE"},
    {"kivi4:group", KVF_K, 64, KVF_E_SPEC, "'group' is not an option"},
    {"kivi4:group=", KVF_K, 64, KVF_E_SPEC, "option 'group=' has no value"},
    {"kivi4:=32", KVF_K, 64, KVF_E_SPEC, "'=32' is not an option"},
    {"kivi4:group=32,", KVF_K, 64, KVF_E_SPEC, "nothing follows"},
    {"kivi4:,group=32", KVF_K, 64, KVF_E_SPEC, "nothing follows"},
    {"kivi4:group=32,group=64", KVF_K, 64, KVF_E_SPEC, "'group' is given twice"},
    {"kivi4:grup=32", KVF_K, 64, KVF_E_SPEC, "no option 'grup'; it has: group"},
    {"kivi4:rot=h", KVF_K, 64, KVF_E_SPEC, "no option 'rot'; it has: group"},
    {"f16:rot=h", KVF_K, 64, KVF_E_SPEC, "'f16' has no option 'rot', nor any other"},
    {"q8_0:group=32", KVF_K, 64, KVF_E_SPEC, "no option 'group'; it has: rot seed centre scale"},
    {"q8_0:rot=hh", KVF_K, 64, KVF_E_SPEC, "rot is 'hh', but may be none, h, h1, h2 or haar"},
    {"kivi4:group=-32", KVF_K, 64, KVF_E_SPEC, "group is '-32', but may be 16, 32 or 64 tokens for keys"},
    {"kivi4:group=0x20", KVF_K, 64, KVF_E_SPEC, "group is '0x20', but may be"},
    {"kivi4:group=32.0", KVF_K, 64, KVF_E_SPEC, "group is '32.0', but may be"},
    {"kivi4:group=9999999", KVF_K, 64, KVF_E_SPEC, "group is '9999999', but may be"},
    {"kivi4:group=0", KVF_K, 64, KVF_E_SPEC, "group is '0', but may be 16, 32 or 64 tokens for keys"},
    {"kivi4:group=48", KVF_K, 64, KVF_E_SPEC, "group is '48'"},
    {"kivi4:group=128", KVF_K, 64, KVF_E_SPEC, "group is '128'"},
    {"kivi4:group=256", KVF_V, 256, KVF_E_SPEC, "group is '256', but may be 16, 32, 64 or 128 channels for values"},
    {"kivi4:group=1234567890123456789012345678901234567890", KVF_K, 64, KVF_E_SPEC, "is too long"},
    {"kivi4:a-very-long-key-name=1", KVF_K, 64, KVF_E_SPEC, "is too long"},
    {"f16:a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1", KVF_K, 64, KVF_E_SPEC, "more than 8 options"},
    {"uni4:rot=\x1b[31mh", KVF_K, 64, KVF_E_SPEC, "option 'rot=?[31mh' holds a character"},
    {"uni4:norm=n\x7f", KVF_K, 64, KVF_E_SPEC, "holds a character that no option has"},
    {"kivi4:group=\x01", KVF_K, 64, KVF_E_SPEC, "holds a character that no option has"},
    {"uni4:seed=1000000", KVF_K, 64, KVF_E_SPEC, "from 0 to 999999"},
    {"uni4:seed=-1", KVF_K, 64, KVF_E_SPEC, "seed is '-1', but may be a whole number from 0 to 999999"},
    {"uni4:rot=none,seed=3", KVF_K, 64, KVF_E_SPEC, "seed=3 changes nothing here"},
    {"turbo4:rot=h,seed=3", KVF_V, 64, KVF_E_SPEC, "seed=3 changes nothing here"},
    {"q8_0:seed=3", KVF_V, 64, KVF_E_SPEC, "seed=3 changes nothing here"},
    {"turbo2:outliers=8,rot=none,seed=3", KVF_K, 64, KVF_E_SPEC, "seed=3 changes nothing here"},
    {"uni4:centre=disk", KVF_K, 64, KVF_E_SPEC, "centre is 'disk', but may be none, prompt, file or block"},
    {"uni4:scale=block", KVF_K, 64, KVF_E_SPEC, "scale is 'block', but may be none, prompt or file"},
    {"uni4:centre=file,scale=prompt", KVF_K, 64, KVF_E_SPEC, "prompt and file do not mix"},
    {"turbo3:scale=file,centre=prompt", KVF_K, 64, KVF_E_SPEC, "prompt and file do not mix"},
    {"uni4:norm=n4", KVF_V, 64, KVF_E_SPEC, "norm is 'n4', but may be n0, n1, n2 or n3"},
    /* what does not go together */
    {"uni4:centre=prompt", KVF_V, 64, KVF_E_SPEC, "centre is for keys; values are never centred"},
    {"q8_0:scale=none", KVF_V, 64, KVF_E_SPEC, "scale is for keys"},
    {"q8_0:rot=h", KVF_K, 1, KVF_E_UNSUPPORTED, "rot=h needs an even head size, not 1"},
    {"q4_0:rot=h", KVF_V, 63, KVF_E_UNSUPPORTED, "not 63"},
    {"f16", KVF_K, 0, KVF_E_ARG, "head size 0 is not supported: 1 to 1024 are"},
    {"f16", KVF_K, -64, KVF_E_ARG, "head size -64"},
    {"kivi4", KVF_V, 1025, KVF_E_ARG, "head size 1025"},
    {"f16", (kvf_side)2, 64, KVF_E_ARG, "side"},
    {NULL, KVF_K, 64, KVF_E_ARG, "needs a spec"},
};

static void good_specs_have_a_canonical_form(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        kvf_spec_info info, again;
        char error[256] = "untouched";
        assert_int_equal(kvf_spec_check(good[i].spec, good[i].side, good[i].dim, &info, error, sizeof error), KVF_OK);
        assert_string_equal(info.canonical, good[i].says);
        assert_string_equal(error, "untouched");
        assert_int_equal(kvf_spec_check(info.canonical, good[i].side, good[i].dim, &again, NULL, 0), KVF_OK);
        assert_string_equal(again.canonical, info.canonical);
        assert_int_equal(again.block_bytes, info.block_bytes);
        assert_true(again.bits_code == info.bits_code && again.head_dim_padded == info.head_dim_padded);
        assert_int_equal(kvf_spec_check(good[i].spec, good[i].side, good[i].dim, NULL, NULL, 0), KVF_OK);
    }
}

static void bad_specs_are_refused_with_a_sentence(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kvf_spec_info info;
        memset(&info, 0x5a, sizeof info);
        char error[512] = "";
        int code = kvf_spec_check(bad[i].spec, bad[i].side, bad[i].dim, &info, error, sizeof error);
        if (code != bad[i].code || !strstr(error, bad[i].says))
            fail_msg("'%s': code %d, sentence \"%s\", expected %d and \"%s\"", bad[i].spec ? bad[i].spec : "NULL", code, error,
                     bad[i].code, bad[i].says);
        for (size_t c = 0; error[c]; c++) assert_true(isprint((unsigned char)error[c]));
        assert_int_equal(info.canonical[0], 0x5a); /* nothing was written */
        assert_int_equal(kvf_spec_check(bad[i].spec, bad[i].side, bad[i].dim, NULL, NULL, 0), bad[i].code);
    }
}

static void a_short_buffer_is_not_overrun(void **state)
{
    (void)state;
    char error[16];
    memset(error, 'x', sizeof error);
    assert_int_equal(kvf_spec_check("nonsense", KVF_K, 64, NULL, error, 8), KVF_E_SPEC);
    assert_string_equal(error, "codec '");
    assert_int_equal(error[8], 'x');
    assert_int_equal(kvf_spec_check("nonsense", KVF_K, 64, NULL, error, 0), KVF_E_SPEC);
}

/* Whatever is put in: one of the documented codes, and a sentence exactly when it fails. */
static void junk(void **state)
{
    (void)state;
    static const char alphabet[] = "kivfq1284_0:=,group roth\x80\x01%s";
    uint64_t seed = 5;
    for (int i = 0; i < 200000; i++) {
        char spec[80], error[128] = "";
        size_t n = ci_next(&seed) % sizeof spec;
        for (size_t c = 0; c < n; c++) spec[c] = alphabet[ci_next(&seed) % (sizeof alphabet - 1)];
        if (i % 2) memcpy(spec, "kivi4:group=", n < 12 ? n : 12);
        spec[n < sizeof spec ? n : n - 1] = '\0';
        int code = kvf_spec_check(spec, i % 3 ? KVF_K : KVF_V, 64, NULL, error, sizeof error);
        assert_true(code == KVF_OK || code == KVF_E_SPEC || code == KVF_E_UNSUPPORTED);
        assert_int_equal(code == KVF_OK, error[0] == '\0');
    }
}

static void example_is_valid(const char *spec, kvf_side side, void *user)
{
    (void)user;
    for (int dim = 1; dim <= 1024; dim++) {
        kvf_part part;
        char error[256] = "";
        int rc = kvfi_part_setup(spec, side, dim, &part, error, sizeof error);
        if (rc == KVF_E_UNSUPPORTED && !ci_fits(spec, dim)) continue;
        if (rc) fail_msg("%s, side %d, head size %d: %s", spec, (int)side, dim, error);
        assert_true(part.head_dim == dim && part.dim >= dim && part.dim == (part.rot.kind ? part.rot.size : dim));
        assert_true(part.dim_pad % 16 == 0 && part.dim_pad >= part.dim && part.dim_pad < part.dim + 16);
        assert_true(part.bytes % 64 == 0 && part.scale_offset % 64 == 0 && part.min_offset % 64 == 0);
        assert_true(part.scale_offset <= part.min_offset && part.min_offset <= part.bytes);
        assert_true(part.codec && part.side == side);
        const int two = part.rot.block & -part.rot.block;
        assert_true(!part.rot.block || (part.rot.block == two && part.rot.size % (part.rot.block * part.rot.odd) == 0));
        assert_true(part.kind != KVF_KIND_CHANNEL ||
                    (64 % part.t_group == 0 && part.n_tg * part.t_group == 64 && part.c_group == 1));
        assert_true(part.kind != KVF_KIND_TOKEN ||
                    (part.t_group == 1 && part.n_cg == (part.dim + part.c_group - 1) / part.c_group));
    }
}

static void examples_are_valid_for_every_head_size(void **state)
{
    (void)state;
    assert_true(ci_each_spec(example_is_valid, NULL) > 20);
}

/* Bits of a value, worked out by hand: codes, scales and minima of one record over 64 * dim. */
static void bits_of_known_specs(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        kvf_side side;
        int dim;
        double bits;
        size_t bytes;
        int padded;
    } known[] = {
        {"f16", KVF_K, 64, 16, 8192, 64},
        {"q8_0", KVF_K, 64, 8.5, 4352, 64},
        {"q4_0", KVF_V, 128, 4.5, 4608, 128},
        {"kivi4", KVF_K, 64, 5, 2560, 64},
        {"kivi4", KVF_V, 64, 5, 2560, 64},
        {"kivi3:group=64", KVF_K, 128, 3.5, 3584, 128},
        {"kivi1:group=128", KVF_V, 256, 1.25, 2560, 256},
        {"kivi8", KVF_K, 576, 9, 41472, 576},
        {"f16", KVF_V, 40, 19.2, 6144, 48},
        /* 16 padded channels: 512 bytes of codes, 32 of scales and 32 of minima, each filled to 64 */
        {"kivi4:group=64", KVF_K, 1, 80, 640, 16},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        kvf_spec_info info;
        assert_int_equal(kvf_spec_check(known[i].spec, known[i].side, known[i].dim, &info, NULL, 0), KVF_OK);
        assert_int_equal(info.block_bytes, known[i].bytes);
        assert_true(fabs(info.bits_code - known[i].bits) < 1e-9);
        assert_int_equal(info.head_dim_padded, known[i].padded);
    }
}

static void listings_end_and_names_are_unique(void **state)
{
    (void)state;
    kvf_codec_info a, b;
    int32_t n = 0;
    for (; kvf_codec_list(n, &a) == KVF_OK; n++) {
        assert_true(a.name[0] && a.summary[0] && a.examples[0] && a.sides && a.sides < 4);
        for (int32_t j = 0; j < n; j++) {
            assert_int_equal(kvf_codec_list(j, &b), KVF_OK);
            assert_string_not_equal(a.name, b.name);
        }
    }
    assert_true(n > 0);
    assert_int_equal(kvf_codec_list(-1, &a), KVF_E_ARG);
    assert_int_equal(kvf_codec_list(n, &a), KVF_E_ARG);
    assert_int_equal(kvf_codec_list(INT32_MAX, &a), KVF_E_ARG);
    assert_int_equal(kvf_codec_list(0, NULL), KVF_E_ARG);
}

static void presets_name_what_exists(void **state)
{
    (void)state;
    kvf_preset_info p, before = {0};
    int defaults = 0;
    int32_t n = 0;
    for (; kvf_preset_list(n, &p) == KVF_OK; n++) {
        assert_true(p.name[0]);
        assert_int_equal(kvf_spec_check(p.k, KVF_K, 64, NULL, NULL, 0), KVF_OK);
        assert_int_equal(kvf_spec_check(p.v, KVF_V, 64, NULL, NULL, 0), KVF_OK);
        assert_int_equal(p.sink, 4);
        assert_int_equal(p.recent, strcmp(p.name, "tiny") ? 64 : 128);
        defaults += p.is_default;
        if (p.is_default) assert_string_equal(p.name, "balanced");
        assert_true(p.n_measured > 0);
        for (int32_t i = 0; n > 0 && i < p.n_measured; i++) { /* best quality first, on every model */
            assert_string_equal(p.measured[i].model, before.measured[i].model);
            assert_true(p.measured[i].kld > before.measured[i].kld);
        }
        if (n > 0) assert_int_equal(p.n_measured, before.n_measured);
        before = p;
    }
    assert_true(n > 0);
    assert_int_equal(defaults, 1);
    assert_int_equal(kvf_preset_list(-1, &p), KVF_E_ARG);
    assert_int_equal(kvf_preset_list(0, NULL), KVF_E_ARG);
}

static void every_error_has_its_own_text(void **state)
{
    (void)state;
    static const int codes[] = {
#define ERROR_CODE(name, code, text) code,
        KVF_ERRORS(ERROR_CODE)
#undef ERROR_CODE
    };
    enum { CODES = sizeof codes / sizeof *codes };
    int least = 0;
    for (int i = 0; i < CODES; i++) {
        if (codes[i] < least) least = codes[i];
        assert_string_not_equal(kvf_strerror(codes[i]), "unknown error code");
        for (int j = 0; j < i; j++) assert_string_not_equal(kvf_strerror(codes[i]), kvf_strerror(codes[j]));
    }
    assert_string_equal(kvf_strerror(KVF_OK), "success");
    assert_string_equal(kvf_strerror(KVF_E_NONFINITE), "NaN or infinity in the input");
    assert_string_equal(kvf_strerror(1), "unknown error code");
    assert_string_equal(kvf_strerror(least - 1), "unknown error code");
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", KVF_VERSION_MAJOR, KVF_VERSION_MINOR, KVF_VERSION_PATCH);
    assert_string_equal(kvf_version(), version);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_specs_have_a_canonical_form),       cmocka_unit_test(bad_specs_are_refused_with_a_sentence),
        cmocka_unit_test(a_short_buffer_is_not_overrun),          cmocka_unit_test(junk),
        cmocka_unit_test(examples_are_valid_for_every_head_size), cmocka_unit_test(bits_of_known_specs),
        cmocka_unit_test(listings_end_and_names_are_unique),      cmocka_unit_test(presets_name_what_exists),
        cmocka_unit_test(every_error_has_its_own_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
