/* SPDX-License-Identifier: MIT
 * Key stages from the prompt with codecs whose records are sums of code matrices: in a cache, centre and channel scale help them as
 * they help the others, and rows read back are rid of both. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "self_world.h"

static sw_world world;

/* Mean square error of scores of coded rows, keys with a mean six times their deviation, queries of the same text. */
static double score_error(const char *k)
{
    enum { FROM = 64, TO = 960 };
    double error = 0;
    float row[64];
    sw_open(&world, &(sw_options){.dim = 64, .rope_dims = 64, .mean = 6, .k = k});
    kvf_cache *c = sw_create(&world);
    sw_feed(&world, c, 0, 0, 0, 1200, 300);
    for (int pos = FROM; pos < TO; pos++) {
        double d = 0;
        assert_int_equal(kvf_seq_read(c, 0, 0, KVF_K, 0, pos, row), KVF_OK);
        for (int i = 0; i < 64; i++)
            d += ((double)row[i] - (double)sw_key(&world, 0, 0, pos, 0)[i]) *
                 (double)sw_query(&world, 0, 0, 1200 + pos % 64, 0)[i];
        error += d * d / (TO - FROM);
    }
    kvf_cache_free(&c);
    sw_close(&world);
    return error;
}

static void stages_help_sums_too(void **state)
{
    (void)state;
    static const char *const specs[][2] = {{"prod3", "prod3:centre=none,scale=none"},
                                           {"qjl", "qjl:centre=none"},
                                           {"rvq3", "rvq3:centre=none,scale=none"},
                                           {"turbo2:outliers=16", "turbo2:outliers=16,centre=none,scale=none"}};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        const double with = score_error(specs[i][0]), without = score_error(specs[i][1]);
        print_message("%-22s %.4g with the stages, %.4g without\n", specs[i][0], with, without);
        assert_true(with < 0.5 * without);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stages_help_sums_too)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
