/* SPDX-License-Identifier: MIT
 * The search for the nearest centroid and the way back, as public operations: right, on every instruction set alike, ties to the lowest
 * index, nothing beyond the arrays touched, no memory that grows with the rows; and the specs of product codes. */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "codec_inputs.h"
#include "cpu/kernels.h"

static const int subs[] = {2, 4, 8};

/* Indices by the definition: f32, channel after channel. */
static int nearest(const float *x, int sub, const float *c, int k)
{
    int best = 0;
    float least = HUGE_VALF;
    for (int i = 0; i < k; i++) {
        volatile float sum = 0; /* every step rounded */
        for (int j = 0; j < sub; j++) {
            volatile float miss = x[j] - c[i * sub + j], square = miss * miss;
            sum = sum + square;
        }
        if (sum < least) least = sum, best = i;
    }
    return best;
}

static void every_set_finds_the_same(void **state)
{
    (void)state;
    static const int counts[] = {1, 2, 15, 16, 17, 33, 64, 100}, tables[] = {1, 2, 3, 255, 256, 1000};
    uint64_t seed = 3;
    for (int set = 0; set < kvfi_cpu_count(); set++) {
        kvfi_kernels kernels;
        if (!kvfi_cpu_present(set)) continue;
        assert_int_equal(kvfi_kernels_select(kvfi_cpu_name(set), &kernels, NULL, 0), KVF_OK);
        for (int s = 0; s < 3; s++)
            for (int a = 0; a < 8; a++)
                for (int b = 0; b < 6; b++) {
                    const int sub = subs[s], n = counts[a], k = tables[b];
                    float *x = malloc((size_t)(n * sub) * sizeof *x), *c = malloc((size_t)(k * sub) * sizeof *c);
                    uint16_t index[101];
                    for (int i = 0; i < n * sub; i++) x[i] = (float)(nearbyint(ci_gauss(&seed) * 4) / 4); /* many ties */
                    for (int i = 0; i < k * sub; i++) c[i] = (float)(nearbyint(ci_gauss(&seed) * 4) / 4);
                    index[n] = 0xabcd;
                    kernels.nearest(x, n, sub, c, k, index);
                    for (int i = 0; i < n; i++)
                        if (index[i] != nearest(x + i * sub, sub, c, k))
                            fail_msg("%s, %d of %d rows, %d x %d: %d instead of %d", kernels.name, i, n, k, sub, index[i],
                                     nearest(x + i * sub, sub, c, k));
                    assert_int_equal(index[n], 0xabcd);
                    free(x), free(c);
                }
    }
}

static void rows_come_back(void **state)
{
    (void)state;
    const float c[] = {0, 0, 1, 0, 0, 1, 1, 1}, x[] = {0.2f, 0.1f, 0.9f, 0.6f, 0.5f, 0.5f, 1e30f, -1e30f};
    uint16_t index[4];
    float y[8];
    assert_int_equal(kvf_op_nearest_centroid(x, 4, 2, c, 4, index), KVF_OK);
    assert_true(index[0] == 0 && index[1] == 3 && index[2] == 0); /* the third is as near to all */
    assert_int_equal(index[3], 0);                                /* no distance is finite */
    assert_int_equal(kvf_op_gather_centroids(index, 4, 2, c, 4, y), KVF_OK);
    for (int i = 0; i < 8; i++) assert_true(y[i] == c[index[i / 2] * 2 + i % 2]);
    index[2] = 4;
    assert_int_equal(kvf_op_gather_centroids(index, 4, 2, c, 4, y), KVF_E_ARG);
    assert_int_equal(kvf_op_nearest_centroid(x, 4, 3, c, 2, index), KVF_E_ARG);
    assert_int_equal(kvf_op_nearest_centroid(x, 4, 2, c, 0, index), KVF_E_ARG);
    assert_int_equal(kvf_op_nearest_centroid(x, 4, 2, c, 4097, index), KVF_E_ARG);
    assert_int_equal(kvf_op_nearest_centroid(x, -1, 2, c, 4, index), KVF_E_ARG);
    const float bad[] = {NAN, 0};
    assert_int_equal(kvf_op_nearest_centroid(bad, 1, 2, c, 4, index), KVF_E_NONFINITE);
    assert_int_equal(kvf_op_nearest_centroid(x, 1, 2, bad, 1, index), KVF_E_NONFINITE);
}

static long peak_kib(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_maxrss;
}

/* 4,096 tokens of 4 KV heads of 256 channels, 256 centroids of 4: a matrix of distances would take a gibibyte. */
static void the_search_needs_no_memory(void **state)
{
    (void)state;
    enum { SUBS = 4096 * 4 * 256 / 4 };
    float *x = malloc((size_t)SUBS * 4 * sizeof *x), c[256 * 4];
    uint16_t *index = malloc((size_t)SUBS * sizeof *index);
    uint64_t seed = 9;
    for (size_t i = 0; i < (size_t)SUBS * 4; i++) x[i] = (float)ci_uniform(&seed);
    for (int i = 0; i < 1024; i++) c[i] = (float)ci_uniform(&seed);
    memset(index, 0, (size_t)SUBS * sizeof *index);
    const long before = peak_kib();
    assert_int_equal(kvf_op_nearest_centroid(x, SUBS, 4, c, 256, index), KVF_OK);
    assert_true(peak_kib() - before < 16 * 1024);
    free(x), free(index);
}

static void specs_are_read_and_refused(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *canonical;
    } good[] = {{"vecinfer2", "vecinfer:sub=4,bits=8,per=layer"},
                {"vecinfer1.5", "vecinfer:sub=8,bits=12,per=layer"},
                {"vecinfer1.25:per=head", "vecinfer:sub=8,bits=10,per=head"},
                {"vecinfer", "vecinfer:sub=4,bits=8,per=layer"},
                {"vecinfer:bits=1,sub=2", "vecinfer:sub=2,bits=1,per=layer"}};
    static const struct {
        const char *spec, *says;
    } bad[] = {{"vecinfer3", "vecinfer1.25"},
               {"vecinfer1.50", "vecinfer1.25"},
               {"vecinfer:sub=3", "2, 4 or 8"},
               {"vecinfer:bits=13", "1 to 12"},
               {"vecinfer:bits=0", "1 to 12"},
               {"vecinfer2:sub=8", "has: per"},
               {"vecinfer:per=token", "head"},
               {"uni4.5", "2 to 8"},
               {"q8_01.5", "takes no number"},
               {"vecinfer1.", "does not exist"},
               {"vecinfer.5", "does not exist"},
               {"vecinfer1.2.5", "does not exist"},
               {"vecinfer2:feedback=query", "feedback is for keys"}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        kvf_spec_info info, again;
        assert_int_equal(kvf_spec_check(good[i].spec, KVF_V, 64, &info, NULL, 0), KVF_OK);
        assert_string_equal(info.canonical, good[i].canonical);
        assert_int_equal(kvf_spec_check(info.canonical, KVF_V, 64, &again, NULL, 0), KVF_OK);
        assert_int_equal(info.block_bytes, again.block_bytes);
    }
    kvf_spec_info info;
    assert_int_equal(kvf_spec_check("vecinfer2", KVF_K, 64, &info, NULL, 0), KVF_OK);
    assert_string_equal(info.canonical, "vecinfer:sub=4,bits=8,per=layer,feedback=none");
    assert_int_equal(kvf_spec_check("vecinfer2:feedback=query", KVF_K, 64, &info, NULL, 0), KVF_OK);
    assert_string_equal(info.canonical, "vecinfer:sub=4,bits=8,per=layer,feedback=query");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char error[1024] = "";
        assert_int_equal(kvf_spec_check(bad[i].spec, KVF_V, 64, NULL, error, sizeof error), KVF_E_SPEC);
        if (!strstr(error, bad[i].says)) fail_msg("%s: '%s' does not say '%s'", bad[i].spec, error, bad[i].says);
    }
    char error[1024] = "";
    assert_int_equal(kvf_spec_check("vecinfer2:feedback=both", KVF_K, 64, NULL, error, sizeof error), KVF_E_SPEC);
    assert_non_null(strstr(error, "query or none"));
    assert_int_equal(kvf_spec_check("vecinfer1", KVF_V, 60, NULL, NULL, 0), KVF_E_UNSUPPORTED);
    unsigned char record[4096];
    assert_int_equal(kvf_op_encode("vecinfer2", KVF_V, 64, (float[64 * 64]){0}, record), KVF_E_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_set_finds_the_same),
        cmocka_unit_test(rows_come_back),
        cmocka_unit_test(the_search_needs_no_memory),
        cmocka_unit_test(specs_are_read_and_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
