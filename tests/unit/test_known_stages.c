/* SPDX-License-Identifier: MIT
 * Key stages from calibration (centre=file, scale=file): what the tables hold, against double precision; in force from row 0 on; nothing
 * is estimated and nothing waits; defaults and refusals. */
#include "../oracle/oracle_self.h"
#include "cache/cache.h"
#include "self_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static sw_world world;

/* Of the first text of each store, by the definition. */
typedef struct known {
    kvf_calibration c;
    kvf_calibrated_layer layers[SW_LAYERS];
    float mean[2][SW_KV][128], k_rms[2][SW_KV][128], q_rms[2][SW_KV][128];
} known;

static known file;

static void average_keys(int store, int head, double *mean)
{
    double x[128], u[128];
    for (int row = 0; row < SW_ROWS; row++) {
        for (int d = 0; d < world.dim; d++) x[d] = (double)sw_key(&world, 0, store, row, head)[d];
        oracle_turn(&world.told, world.dim, x, -(world.start + row), u);
        for (int d = 0; d < world.dim; d++) mean[d] += u[d] / SW_ROWS;
    }
}

static void calibrate_head(int store, int head)
{
    double mean[128] = {0}, k[128] = {0}, q[128] = {0};
    average_keys(store, head, mean);
    for (int row = 0; row < SW_ROWS; row++)
        for (int d = 0; d < world.dim; d++) {
            k[d] += pow((double)sw_key(&world, 0, store, row, head)[d] - mean[d], 2) / SW_ROWS;
            q[d] += pow((double)sw_query(&world, 0, store, row, 2 * head)[d], 2) / SW_ROWS;
        }
    for (int d = 0; d < world.dim; d++) {
        file.mean[store][head][d] = (float)mean[d];
        file.k_rms[store][head][d] = (float)sqrt(k[d]);
        file.q_rms[store][head][d] = (float)sqrt(q[d]);
    }
}

static void pack(float (*x)[128])
{
    float *to = x[0];
    for (int h = 0; h < SW_KV; h++) memmove(to + h * world.dim, x[h], (size_t)world.dim * sizeof *to);
}

static void open_world(const sw_options *o)
{
    sw_open(&world, o);
    memset(&file, 0, sizeof file);
    file.c = (kvf_calibration){.size = sizeof file.c, .n_layers = SW_LAYERS, .layers = file.layers};
    for (int l = 0; l < SW_LAYERS; l++) {
        file.layers[l] = (kvf_calibrated_layer){.size = sizeof *file.layers};
        if (l == 2) continue;
        for (int h = 0; h < SW_KV; h++) calibrate_head(l, h);
        pack(file.mean[l]), pack(file.k_rms[l]), pack(file.q_rms[l]);
        file.layers[l].kv_heads = SW_KV, file.layers[l].k_dim = world.dim, file.layers[l].v_dim = SW_V_DIM;
        file.layers[l].k_mean = file.mean[l][0], file.layers[l].k_rms = file.k_rms[l][0], file.layers[l].q_rms = file.q_rms[l][0];
    }
    world.params.calibration = &file.c;
}

static const sw_options kinds[] = {
    {.dim = 64, .rope_dims = 64, .neox = 1},
    {.dim = 48, .rope_dims = 48, .neox = 0, .start = 700},
    {.dim = 64, .rope_dims = 32, .neox = 1},
    {.dim = 32, .rope_dims = 0},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Doubles from f32 arrays by the library's own sine; the scale's exponentials are good to 1e-15, then rounded to f32. */
static const double LIMIT = 3e-7;

static void compare_table(const kvf_cache *c, int store, int head)
{
    const kvfi_store *st = &c->g.stores[store];
    const uint8_t *table = kvfi_table(c, NULL, 0, st);
    double m[128], turned[128], c0[128] = {0}, ratio[128], mean = 0;
    const size_t at = (size_t)head * (size_t)world.dim;
    for (int d = 0; d < world.dim; d++) m[d] = (double)file.layers[store].k_mean[at + (size_t)d];
    for (int j = 0; j < 512; j++) {
        oracle_turn(&world.told, world.dim, m, j, turned);
        for (int d = 0; d < world.dim; d++) c0[d] += turned[d] / 512;
    }
    for (int d = 0; d < world.dim; d++) {
        ratio[d] = 0.5 * log((double)file.layers[store].k_rms[at + (size_t)d] / (double)file.layers[store].q_rms[at + (size_t)d]);
        mean += ratio[d] / world.dim;
    }
    for (int d = 0; d < world.dim; d++) {
        const double got = (double)kvfi_table_scale(table, st, head)[d], want = exp(ratio[d] - mean);
        if (!(fabs(kvfi_table_c0(table, st, head)[d] - c0[d]) <= LIMIT * 16) || !(fabs(got - want) <= LIMIT * want))
            fail_msg("store %d, head %d, channel %d: centre %.9g scale %.9g, oracle %.9g %.9g", store, head, d,
                     kvfi_table_c0(table, st, head)[d], got, c0[d], want);
    }
}

static void test_tables_are_what_the_file_says(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        open_world(&kinds[i]);
        kvf_cache *c = sw_create(&world);
        for (int store = 0; store < 2; store++)
            for (int head = 0; head < SW_KV; head++) compare_table(c, store, head);
        assert_string_equal(c->g.stores[0].k.canonical, "uni4:norm=n1,rot=h1,seed=0,centre=file,scale=file");
        kvf_cache_free(&c);
        sw_close(&world);
    }
}

/* Nothing is learned, and the first block is sealed as soon as R newer rows are there. */
static void test_in_force_from_the_first_row(void **state)
{
    (void)state;
    open_world(&kinds[0]);
    world.params.sink = 0, world.params.recent = 0;
    kvf_cache *c = sw_create(&world);
    kvf_keys_t keys = {.size = sizeof keys};
    sw_feed(&world, c, 1, 0, 0, 64, 7);
    assert_int_equal(c->sequences[1].n_blocks, 1);
    assert_int_equal(c->sequences[1].n_sets, 0);
    assert_int_equal(c->g.first_seal, 0);
    assert_int_equal(c->g.table_bytes, 0);
    assert_int_equal(c->g.sums_bytes, 0);
    ts_ok(kvf_keys(c, 0, &keys));
    assert_int_equal(keys.rule, KVF_KEYS_FILE);
    sw_feed(&world, c, 1, 0, 64, 200, 50);
    assert_true(kvf_can(c, KVF_CAN_RM_EXACT, 1, 195));
    kvf_cache_free(&c);
    sw_close(&world);
}

static void test_chunking_changes_no_byte(void **state)
{
    static const int chunk[] = {SW_ROWS, 1, 64, 255};
    uint64_t first = 0;
    (void)state;
    open_world(&kinds[1]);
    for (int i = 0; i < 4; i++) {
        kvf_cache *c = sw_create(&world);
        sw_feed(&world, c, 0, 0, 0, 700, chunk[i]);
        const uint64_t hash = kvfi_cache_hash(c, 0);
        if (!i) first = hash;
        assert_true(hash == first);
        kvf_cache_free(&c);
    }
    sw_close(&world);
}

/* Rows come back as they were, within the step of 8-bit codes; and attention over them is that of exact rows. Centre and scale are large
 * here, so forgetting either on one way shows at once. */
static void test_rows_and_attention(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        sw_options o = kinds[i];
        float got[SW_PROBE], want[SW_PROBE], row[128];
        o.k = "uni8";
        open_world(&o);
        world.params.v = "f16";
        kvf_cache *c = sw_create(&world);
        world.params.k = "f16";
        kvf_cache *exact = sw_create(&world);
        sw_feed(&world, c, 0, 0, 0, 1200, 255), sw_feed(&world, exact, 0, 0, 0, 1200, 255);
        sw_probe(&world, c, 0, 0, 1200, got), sw_probe(&world, exact, 0, 0, 1200, want);
        for (int p = 10; p < 1100; p += 97)
            for (int store = 0; store < 2; store++) {
                ts_ok(kvf_seq_read(c, 0, store, KVF_K, 1, world.start + p, row));
                for (int d = 0; d < world.dim; d++)
                    if (!(fabsf(row[d] - sw_key(&world, 0, store, p, 1)[d]) < 0.5f))
                        fail_msg("kind %d, row %d, channel %d: %g is not %g", i, p, d, (double)row[d],
                                 (double)sw_key(&world, 0, store, p, 1)[d]);
            }
        for (int d = 0; d < SW_PROBE; d++)
            if (!(fabsf(got[d] - want[d]) < 0.06f))
                fail_msg("kind %d: attention [%d] is %g, not %g", i, d, (double)got[d], (double)want[d]);
        kvf_cache_free(&c), kvf_cache_free(&exact);
        sw_close(&world);
    }
}

/* ---- which source ---- */

static const struct choice {
    const char *spec, *stages;
    int without; /* 1: no spreads in the file; 2: no mean; 3: no file */
    int rc;
} choices[] = {
    {"uni4", ",centre=file,scale=file", 0, KVF_OK},
    {"turbo3", ",centre=file,scale=file", 0, KVF_OK},
    {"tcq2", ",centre=file,scale=file", 0, KVF_OK},
    {"uni4", ",centre=prompt,scale=prompt", 1, KVF_OK},
    {"uni4", ",centre=prompt,scale=prompt", 2, KVF_OK},
    {"uni4", ",centre=prompt,scale=prompt", 3, KVF_OK},
    {"uni4:centre=prompt", ",centre=prompt,scale=prompt", 0, KVF_OK},
    {"uni4:scale=prompt", ",centre=prompt,scale=prompt", 0, KVF_OK},
    {"uni4:centre=none", ",centre=none,scale=file", 0, KVF_OK},
    {"uni4:scale=none", ",centre=file,scale=none", 0, KVF_OK},
    {"uni4:centre=block", ",centre=block,scale=file", 0, KVF_OK},
    {"uni4:centre=none,scale=none", ",centre=none,scale=none", 0, KVF_OK},
    {"q8_0:rot=h", ",centre=none,scale=none", 0, KVF_OK},
    {"q8_0:rot=h,centre=file", ",centre=file,scale=none", 0, KVF_OK},
    {"uni4:centre=file,scale=none", ",centre=file,scale=none", 1, KVF_OK},
    {"uni4:centre=file", "needs k_rms and q_rms", 1, KVF_E_UNSUPPORTED},
    {"uni4:centre=file", "layer 0, keys: uni4:norm=n1,rot=h1,seed=0,centre=file,scale=file needs k_mean", 2, KVF_E_UNSUPPORTED},
    {"uni4:scale=file", "no calibration here (kvfold calibrate", 3, KVF_E_UNSUPPORTED},
};

static void test_which_source(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const struct choice *t = &choices[i];
        kvf_cache *c = NULL;
        open_world(&kinds[0]);
        world.params.k = t->spec;
        for (int l = 0; l < 2 && t->without; l++)
            if (t->without == 1)
                file.layers[l].q_rms = NULL;
            else
                file.layers[l].k_mean = NULL;
        if (t->without == 3) world.params.calibration = NULL;
        const int rc = kvf_cache_create(&c, &world.params);
        const char *said = rc ? world.error : c->g.stores[0].k.canonical;
        if (rc != t->rc || !strstr(said, t->stages)) fail_msg("%s: %d, '%s' without '%s'", t->spec, rc, said, t->stages);
        kvf_cache_free(&c);
        sw_close(&world);
    }
}

/* A file says nothing of keys whose rotation cannot be described. */
static void test_unknown_rotation(void **state)
{
    (void)state;
    open_world(&kinds[3]);
    for (int l = 0; l < SW_LAYERS; l++) world.layers[l].rope_style = KVF_ROPE_UNKNOWN;
    kvf_cache *c = sw_create(&world);
    assert_non_null(strstr(c->g.stores[0].k.canonical, "centre=block,scale=file"));
    kvf_cache_free(&c);
    sw_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_are_what_the_file_says),
        cmocka_unit_test(test_in_force_from_the_first_row),
        cmocka_unit_test(test_chunking_changes_no_byte),
        cmocka_unit_test(test_rows_and_attention),
        cmocka_unit_test(test_which_source),
        cmocka_unit_test(test_unknown_rotation),
    };
    return ts_on_every_cpu("known stages", tests, sizeof tests / sizeof *tests);
}
