/* SPDX-License-Identifier: MIT
 * Which set of kernels runs, and what is said when it cannot be the one that was asked for. */
#define _POSIX_C_SOURCE 200112L
#include "parity.h"

static const char *const all[] = {
#define KVFI_ISA(name, built) #name,
#include "cpu/isa.def"
#undef KVFI_ISA
};
enum { ALL = sizeof all / sizeof *all };

static int listed(const char *name)
{
    for (int i = 0; i < kvfi_cpu_count(); i++)
        if (!strcmp(kvfi_cpu_name(i), name)) return 1 + kvfi_cpu_present(i);
    return 0;
}

static const char *best(void)
{
    const char *name = NULL;
    for (int i = 0; i < kvfi_cpu_count(); i++)
        if (kvfi_cpu_present(i)) name = kvfi_cpu_name(i);
    return name;
}

/* The table without its name, which has the address of a text. */
static void assert_same_entries(kvfi_kernels a, kvfi_kernels b)
{
    a.name = b.name = NULL;
    assert_memory_equal(&a, &b, sizeof a);
}

static void test_list(void **state)
{
    (void)state;
    const char *name = "kept";
    int32_t present = 7;
    assert_true(kvfi_cpu_count() >= 1);
    assert_string_equal(kvfi_cpu_name(0), "scalar");
    assert_int_equal(kvfi_cpu_present(0), 1);
    for (int i = 0; i < kvfi_cpu_count(); i++) {
        assert_int_equal(kvf_cpu_list(i, &name, &present), KVF_OK);
        assert_string_equal(name, kvfi_cpu_name(i));
        assert_int_equal(present, kvfi_cpu_present(i));
        assert_int_equal(kvf_cpu_list(i, NULL, NULL), KVF_OK);
    }
    name = "kept", present = 7;
    assert_int_equal(kvf_cpu_list(kvfi_cpu_count(), &name, &present), KVF_E_ARG);
    assert_int_equal(kvf_cpu_list(-1, &name, &present), KVF_E_ARG);
    assert_string_equal(name, "kept");
    assert_int_equal(present, 7);
    assert_null(kvfi_cpu_name(-1));
    assert_null(kvfi_cpu_name(kvfi_cpu_count()));
    assert_int_equal(kvfi_cpu_present(-1), 0);
    assert_int_equal(kvfi_cpu_present(kvfi_cpu_count()), 0);
}

/* What the processor says of itself elsewhere. */
static void test_detection(void **state)
{
    (void)state;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    assert_int_equal(kvfi_isa_detect(KVFI_ISA_avx2),
                     __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"));
    assert_int_equal(kvfi_isa_detect(KVFI_ISA_avx512), __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                                           __builtin_cpu_supports("avx512dq") &&
                                                           __builtin_cpu_supports("avx512vl") &&
                                                           __builtin_cpu_supports("avx512vnni"));
    assert_int_equal(kvfi_isa_detect(KVFI_ISA_avx512vbmi),
                     kvfi_isa_detect(KVFI_ISA_avx512) && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni"));
    assert_int_equal(kvfi_isa_detect(KVFI_ISA_neon), 0);
    assert_int_equal(kvfi_isa_detect(KVFI_ISA_neondot), 0);
    assert_true(listed("avx2") && listed("avx512") && listed("avx512vbmi"));
#elif defined(__aarch64__)
    assert_int_equal(kvfi_isa_detect(KVFI_ISA_neon), 1);
    assert_int_equal(kvfi_isa_detect(KVFI_ISA_avx2), 0);
    assert_true(listed("neon") && listed("neondot"));
#else
    skip();
#endif
}

static void test_names(void **state)
{
    (void)state;
    kvfi_kernels k;
    char error[256];
    for (int i = 0; i < ALL; i++) {
        const int code = kvfi_kernels_select(all[i], &k, error, sizeof error);
        if (listed(all[i]) == 2) {
            assert_int_equal(code, KVF_OK);
            assert_string_equal(k.name, all[i]);
            continue;
        }
        assert_int_equal(code, KVF_E_UNSUPPORTED);
        assert_non_null(strstr(error, all[i]));
        assert_non_null(strstr(error, listed(all[i]) ? "absent from this processor" : "not built into this library"));
        assert_non_null(strstr(error, "scalar"));
    }
}

static void test_unknown(void **state)
{
    (void)state;
    kvfi_kernels k = {.name = "kept"};
    char error[256] = "";
    assert_int_equal(kvfi_kernels_select("avx3", &k, error, sizeof error), KVF_E_UNSUPPORTED);
    assert_non_null(strstr(error, "\"avx3\" is unknown"));
    assert_non_null(strstr(error, best()));
    assert_string_equal(k.name, "kept");
    assert_int_equal(kvfi_kernels_select("scala", &k, error, sizeof error), KVF_E_UNSUPPORTED);
    assert_int_equal(kvfi_kernels_select("scalar ", &k, NULL, 0), KVF_E_UNSUPPORTED);
    memset(error, 'x', sizeof error);
    assert_int_equal(kvfi_kernels_select("avx3", &k, error, 12), KVF_E_UNSUPPORTED);
    assert_int_equal(error[11], '\0');
    assert_int_equal(error[12], 'x');
}

static void test_default(void **state)
{
    (void)state;
    kvfi_kernels named, k;
    assert_int_equal(unsetenv("KVFOLD_CPU"), 0);
    assert_int_equal(kvfi_kernels_select(best(), &named, NULL, 0), KVF_OK);
    assert_int_equal(kvfi_kernels_select(NULL, &k, NULL, 0), KVF_OK);
    assert_string_equal(k.name, best());
    assert_same_entries(k, named);
    assert_int_equal(kvfi_kernels_select("", &k, NULL, 0), KVF_OK);
    assert_string_equal(k.name, best());
    assert_int_equal(setenv("KVFOLD_CPU", "", 1), 0);
    assert_int_equal(kvfi_kernels_select(NULL, &k, NULL, 0), KVF_OK);
    assert_string_equal(k.name, best());
    assert_int_equal(unsetenv("KVFOLD_CPU"), 0);
}

/* A lowered mask runs the scalar code itself: the same functions, so the same bits. */
static void test_lowered(void **state)
{
    (void)state;
    kvfi_kernels scalar, k;
    memset(&scalar, 0, sizeof scalar);
    kvfi_kernels_scalar(&scalar);
    assert_int_equal(setenv("KVFOLD_CPU", "scalar", 1), 0);
    assert_int_equal(kvfi_kernels_select(NULL, &k, NULL, 0), KVF_OK);
    assert_string_equal(k.name, "scalar");
    assert_same_entries(k, scalar);
    assert_int_equal(kvfi_kernels_select("", &k, NULL, 0), KVF_OK);
    assert_string_equal(k.name, "scalar");
    float a[128], b[128];
    for (int i = 0; i < 128; i++) a[i] = b[i] = (float)(i * i % 37) / 7;
    float max_a[2] = {0}, max_b[2] = {0}, sum_a[2] = {0}, sum_b[2] = {0}, factor[2];
    k.softmax(a, NULL, 2, max_a, sum_a, factor), scalar.softmax(b, NULL, 2, max_b, sum_b, factor);
    assert_memory_equal(a, b, sizeof a);
    assert_memory_equal(sum_a, sum_b, sizeof sum_a);
    assert_int_equal(kvfi_kernels_select(best(), &k, NULL, 0), KVF_OK); /* a name is stronger than the variable */
    assert_string_equal(k.name, best());
    assert_int_equal(setenv("KVFOLD_CPU", "sse9", 1), 0);
    char error[256];
    assert_int_equal(kvfi_kernels_select(NULL, &k, error, sizeof error), KVF_E_UNSUPPORTED);
    assert_non_null(strstr(error, "sse9"));
    assert_non_null(strstr(error, "KVFOLD_CPU"));
    assert_int_equal(unsetenv("KVFOLD_CPU"), 0);
}

/* Every set leaves a whole table, and replaces something of the one before it. */
static void test_whole(void **state)
{
    (void)state;
    kvfi_kernels scalar;
    kvfi_kernels_scalar(&scalar);
    for (int i = 0; i < kvfi_cpu_count(); i++) {
        kvfi_kernels k;
        if (!kvfi_cpu_present(i)) continue;
        assert_int_equal(kvfi_kernels_select(kvfi_cpu_name(i), &k, NULL, 0), KVF_OK);
        for (int kind = 0; kind < KVF_KINDS; kind++) {
            const kvfi_kind_ops *ops = &k.kind[kind];
            assert_true(ops->prepared_bytes && ops->prepare && ops->score && ops->mix && ops->unfold);
            if (i && kind == KVF_KIND_SUM)
                assert_true(ops->score == scalar.kind[kind].score); /* runs everywhere, tuned nowhere */
            else if (i)
                assert_true(ops->score != scalar.kind[kind].score && ops->mix != scalar.kind[kind].mix);
        }
        assert_true(k.rows_score && k.rows_mix && k.rows_unfold_k && k.rows_unfold_v);
        assert_true(k.tile_score && k.tile_mix && k.softmax && k.hadamard);
        if (i) assert_true(k.rows_score != scalar.rows_score && k.softmax != scalar.softmax && k.hadamard != scalar.hadamard);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),    cmocka_unit_test(test_detection), cmocka_unit_test(test_names),
        cmocka_unit_test(test_unknown), cmocka_unit_test(test_default),   cmocka_unit_test(test_lowered),
        cmocka_unit_test(test_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
