/* SPDX-License-Identifier: MIT
 * Calibration given to a cache: checked, refused by name, copied whole, counted. */
#include "calibrated.h"
#include "cache/cache.h"
#include "codec/shared/entries.h"
#include "codec/shared/part.h"
#include "kvfold_calibration.h"

#include <math.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void model(ts_model *m)
{
    ts_model_init(m, 3, 4, 2, 64, 32, "f16", "f16");
    m->layers[2].share = 0;
    m->layers[1].k_dim = 48, m->layers[1].kv_heads = 1;
}

static void same_floats(const float *a, const float *b, size_t n)
{
    assert_ptr_not_equal(a, b);
    assert_memory_equal(a, b, n * sizeof *a);
}

/* All arrays arrive where the stores look, and stay when the caller's go. */
/* With both codebooks of a layer (calibrated.c). */
static void coded_by_books(ts_model *m)
{
    for (int i = 0; i < m->params.n_layers; i++) m->layers[i].k = m->layers[i].v = NULL;
    m->params.k = "vecinfer2", m->params.v = "vecinfer:sub=2,bits=3,per=head";
}

static void test_copied_whole(void **state)
{
    ts_model m;
    (void)state;
    model(&m);
    coded_by_books(&m);
    tc_calibration *given = tc_new(&m, 1), *kept = tc_new(&m, 1);
    m.params.calibration = &given->c;
    kvf_cache *c = ts_create(&m);
    memset(given->floats, 0xff, given->n_floats * sizeof *given->floats);
    memset(given->books, 0xff, sizeof given->books);
    memset(given->layers, 0xff, sizeof given->layers);
    tc_free(given);
    assert_int_equal(c->g.n_stores, 2);
    for (int i = 0; i < 2; i++) {
        const kvf_calibrated_layer *a = c->g.stores[i].calibrated, *b = &kept->layers[i];
        const size_t n = (size_t)b->kv_heads * (size_t)b->k_dim;
        assert_non_null(a);
        assert_ptr_equal(c->g.stores[i].k.calibrated, a);
        assert_ptr_equal(c->g.stores[i].v.calibrated, a);
        assert_int_equal(a->kv_heads, b->kv_heads);
        assert_int_equal(a->k_dim, b->k_dim);
        same_floats(a->k_mean, b->k_mean, n);
        same_floats(a->k_rms, b->k_rms, n);
        same_floats(a->q_rms, b->q_rms, n);
        same_floats(a->k_lambda, b->k_lambda, n);
        same_floats(a->q_direction, b->q_direction, n);
        assert_true(!a->n_codebooks && !a->codebooks); /* the sides have their own copies */
        same_floats(c->g.stores[i].k.book, b->codebooks[0].centroids, 4 << 8);
        same_floats(c->g.stores[i].v.book, b->codebooks[1].centroids, (size_t)b->kv_heads * (2 << 3));
    }
    kvf_cache_free(&c);
    tc_free(kept);
}

/* Codebooks that no codec uses are left behind. */
static void test_bytes_are_counted(void **state)
{
    ts_model m;
    (void)state;
    model(&m);
    const int64_t without = ts_bytes(&m, 500);
    tc_calibration *t = tc_new(&m, 1);
    m.params.calibration = &t->c;
    int64_t least = (int64_t)(t->n_floats * sizeof(float) + 3 * sizeof(kvf_calibrated_layer));
    for (int i = 0; i < 3; i++)
        if (t->layers[i].n_codebooks) least -= (int64_t)(((4 << 8) + (size_t)m.layers[i].kv_heads * (2 << 3)) * sizeof(float));
    const int64_t with = ts_bytes(&m, 500);
    assert_in_range(with - without, least, least + 64 * 32);
    kvf_cache *c = ts_create(&m);
    kvf_stats_t s = {.size = sizeof s};
    ts_grow(c, &m, 0, 1, 500, 37);
    ts_ok(kvf_stats(c, &s));
    assert_int_equal(s.accounted, with);
    assert_true(s.resident >= 0 && s.resident <= s.accounted + (64 << 20));
    kvf_cache_free(&c);
    tc_free(t);
}

static void test_nothing_known(void **state)
{
    ts_model m;
    (void)state;
    model(&m);
    kvf_calibrated_layer empty[3] = {{.size = sizeof *empty}, {.size = sizeof *empty}, {.size = sizeof *empty}};
    kvf_calibration none = {.size = sizeof none, .n_layers = 3, .layers = empty};
    m.params.calibration = &none;
    kvf_cache *c = ts_create(&m);
    assert_null(c->g.stores[0].calibrated);
    kvf_cache_free(&c);
    m.params.calibration = NULL;
    c = ts_create(&m);
    assert_null(c->g.stores[0].calibrated);
    kvf_cache_free(&c);
}

/* ---- refusals ---- */

typedef struct fault {
    const char *name;
    int code;
    const char *words[3]; /* all of them must be in the sentence */
} fault;

static const fault faults[] = {
    {"size", KVF_E_VERSION, {"size is 3"}},
    {"layers", KVF_E_ARG, {"2 layers", "cache of 3"}},
    {"null", KVF_E_ARG, {"layers is NULL"}},
    {"layer size", KVF_E_VERSION, {"layer 1", "size is 5"}},
    {"heads", KVF_E_ARG, {"layer 1", "3 KV heads", "has 1"}},
    {"k_dim", KVF_E_ARG, {"layer 0", "heads of 60 and 32", "have 64 and 32"}},
    {"v_dim", KVF_E_ARG, {"layer 0", "heads of 64 and 31", "have 64 and 32"}},
    {"nan", KVF_E_NONFINITE, {"layer 0", "k_mean of head 1", "at 7"}},
    {"infinite", KVF_E_NONFINITE, {"layer 1", "q_direction of head 0", "at 47"}},
    {"negative", KVF_E_ARG, {"layer 0", "k_rms of head 0", "at least 0"}},
    {"negative query", KVF_E_ARG, {"layer 0", "q_rms of head 1", "at least 0"}},
    {"lambda", KVF_E_ARG, {"layer 0", "k_lambda of head 0 is 0", "above 0"}},
    {"count", KVF_E_ARG, {"layer 0", "n_codebooks is 65"}},
    {"books", KVF_E_ARG, {"layer 0", "n_codebooks is 2"}},
    {"side", KVF_E_ARG, {"layer 0", "codebook 0 is for side 2"}},
    {"sub", KVF_E_ARG, {"layer 0", "codebook 1", "sub-vectors of 3"}},
    {"bits", KVF_E_ARG, {"layer 0", "codebook 1 has 13 bits"}},
    {"tables", KVF_E_ARG, {"layer 0", "codebook 1 has tables for 3 heads"}},
    {"centroids", KVF_E_ARG, {"layer 0", "codebook 0 has no centroids"}},
    {"nan centroid", KVF_E_NONFINITE, {"layer 0", "a codebook of head 0"}},
    {"nan moment", KVF_E_NONFINITE, {"layer 0", "q_moment of head 1", "at 4095"}},
};
enum { FAULTS = sizeof faults / sizeof *faults };

static void spoil(tc_calibration *t, int which)
{
    kvf_calibrated_layer *l = t->layers;
    float *mean = (float *)(uintptr_t)l[0].k_mean, *rms = (float *)(uintptr_t)l[0].k_rms, *q = (float *)(uintptr_t)l[0].q_rms;
    float *lambda = (float *)(uintptr_t)l[0].k_lambda, *direction = (float *)(uintptr_t)l[1].q_direction;
    static float moment[2 * 64 * 64];
    switch (which) {
    case 0: t->c.size = 3; break;
    case 1: t->c.n_layers = 2; break;
    case 2: t->c.layers = NULL; break;
    case 3: l[1].size = 5; break;
    case 4: l[1].kv_heads = 3; break;
    case 5: l[0].k_dim = 60; break;
    case 6: l[0].v_dim = 31; break;
    case 7: mean[64 + 7] = NAN; break;
    case 8: direction[47] = -INFINITY; break;
    case 9: rms[3] = -1; break;
    case 10: q[64] = -1; break;
    case 11: lambda[5] = 0; break;
    case 12: l[0].n_codebooks = 65; break;
    case 13: l[0].codebooks = NULL; break;
    case 14: t->books[0][0].side = 2; break;
    case 15: t->books[0][1].sub = 3; break;
    case 16: t->books[0][1].bits = 13; break;
    case 17: t->books[0][1].heads = 3; break;
    case 18: t->books[0][0].centroids = NULL; break;
    case 19: ((float *)(uintptr_t)t->books[0][0].centroids)[1023] = NAN; break;
    case 20: l[0].q_moment = moment, moment[2 * 64 * 64 - 1] = NAN; break;
    default: fail();
    }
}

static void test_refused_by_name(void **state)
{
    (void)state;
    for (int i = 0; i < FAULTS; i++) {
        ts_model m;
        kvf_cache *c = NULL;
        ts_heap heap;
        model(&m);
        ts_heap_init(&heap);
        tc_calibration *t = tc_new(&m, 1);
        spoil(t, i);
        m.params.calibration = &t->c, m.params.allocator = &heap.hooks;
        if (ts_try(&m, &c) != faults[i].code) fail_msg("%s: code is not %d: %s", faults[i].name, faults[i].code, m.error);
        for (int w = 0; w < 3 && faults[i].words[w]; w++)
            if (!strstr(m.error, faults[i].words[w]))
                fail_msg("%s: '%s' is not in: %s", faults[i].name, faults[i].words[w], m.error);
        assert_null(c);
        assert_int_equal(heap.live, 0);
        assert_true(ts_bytes(&m, 10) == faults[i].code);
        tc_free(t);
    }
}

/* A moment that cannot be one is found when factors are made of it. */
static void test_false_moment(void **state)
{
    static float moment[2 * 64 * 64];
    ts_model m;
    kvf_cache *c = NULL;
    (void)state;
    model(&m);
    coded_by_books(&m);
    tc_calibration *t = tc_new(&m, 1);
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 64; i++) moment[h * 64 * 64 + i * 65] = h && i == 9 ? -5 : 1;
    t->layers[0].q_moment = moment, m.params.calibration = &t->c;
    assert_int_equal(ts_try(&m, &c), KVF_E_ARG);
    assert_non_null(strstr(m.error, "layer 0: q_moment of head 1"));
    assert_null(c);
    tc_free(t);
}

/* Operations on one record look at what they are given as a cache does. */
static void test_given_to_operations(void **state)
{
    ts_model m;
    kvf_spec_info info;
    static float x[64 * 64], moment[2 * 64 * 64];
    static _Alignas(64) uint8_t plain[4096], fed[4096];
    char error[200] = "";
    (void)state;
    model(&m);
    tc_calibration *t = tc_new(&m, 1);
    kvf_calibrated_layer *l = &t->layers[0];
    for (int i = 0; i < 64 * 64; i++) x[i] = (float)((ts_mix((uint64_t)i) % 2001) / 500.0 - 2);
    for (int i = 0; i < 64 * 64; i++) moment[64 * 64 + i] = 1 + (float)(i / 64 == i % 64); /* of head 1 */
    l->q_moment = moment;
    assert_int_equal(kvf_op_encode_calibrated("vecinfer2", KVF_K, 64, l, 1, x, fed), KVF_OK);
    assert_int_equal(kvf_op_encode_calibrated("vecinfer2:feedback=none", KVF_K, 64, l, 1, x, plain), KVF_OK);
    assert_memory_not_equal(fed, plain, 1024);
    l->k_lambda = NULL;
    assert_int_equal(kvf_op_encode_calibrated("vecinfer2", KVF_K, 64, l, 1, x, fed), KVF_E_UNSUPPORTED);
    l->q_moment = NULL;
    assert_int_equal(kvf_op_encode_calibrated("vecinfer2:feedback=query", KVF_K, 64, l, 1, x, fed), KVF_E_UNSUPPORTED);
    l->codebooks = NULL;
    assert_int_equal(kvf_op_encode_calibrated("vecinfer2", KVF_K, 64, l, 1, x, fed), KVF_E_ARG);
    assert_int_equal(kvf_spec_check_calibrated("vecinfer2", KVF_K, 64, l, &info, error, sizeof error), KVF_E_ARG);
    assert_string_equal(error, "calibration: n_codebooks is 2; allowed are 0 to 64, with an array");
    l->codebooks = t->books[0], t->books[0][1].sub = 5;
    assert_int_equal(kvf_spec_check_calibrated("vecinfer2", KVF_K, 64, l, &info, error, sizeof error), KVF_E_ARG);
    assert_non_null(strstr(error, "codebook 1 has sub-vectors of 5"));
    l->size = 3;
    assert_int_equal(kvf_op_decode_calibrated("vecinfer2", KVF_K, 64, l, 1, plain, x), KVF_E_VERSION);
    assert_int_equal(kvf_spec_check_calibrated("vecinfer2", KVF_K, 64, l, &info, error, sizeof error), KVF_E_VERSION);
    tc_free(t);
}

/* Heads with books of their own have units of their own: each is whole multiples of its own power of two. */
static void test_units_of_heads(void **state)
{
    enum { HEADS = 4, TABLE = 4 << 8 };
    static float book[HEADS * TABLE];
    static _Alignas(64) uint8_t entries[HEADS * TABLE + 64];
    kvf_part part = {.kind = KVF_KIND_VECTOR, .side = KVF_V, .bits = 8, .sub = 4, .book = book, .book_stride = TABLE}, room;
    (void)state;
    for (int i = 0; i < HEADS * TABLE; i++) book[i] = (float)((int)(ts_mix((uint64_t)i) % 255) - 127) * ldexpf(1, i / TABLE - 5);
    assert_int_equal(kvfi_entries_bytes(&part, HEADS), sizeof entries);
    kvfi_entries_fill(&part, HEADS, entries);
    for (int h = 0; h < HEADS; h++) {
        const kvf_part *own = kvfi_part_of(&part, h, &room);
        for (int i = 0; i < TABLE; i++)
            assert_true((float)(own->entries[i % 4 * 256 + i / 4] - 128) * own->unit == book[h * TABLE + i]);
    }
    book[3 * TABLE + 5] += 0.001f;
    assert_int_equal(kvfi_entries_bytes(&part, HEADS), 0);
}

/* What is said of a layer that reads another one's keys is of no interest, be it ever so wrong. */
static void test_sharing_layer_is_ignored(void **state)
{
    ts_model m;
    (void)state;
    model(&m);
    tc_calibration *t = tc_new(&m, 1);
    t->layers[2].kv_heads = 77, t->layers[2].k_mean = t->layers[0].k_mean;
    m.params.calibration = &t->c;
    kvf_cache *c = ts_create(&m);
    assert_null(c->g.calibration.layers[2].k_mean);
    kvf_cache_free(&c);
    tc_free(t);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (int fail_at = 1; fail_at <= 8; fail_at++) {
        ts_model m;
        ts_heap heap;
        kvf_cache *c = NULL;
        model(&m);
        ts_heap_init(&heap);
        tc_calibration *t = tc_new(&m, 1);
        heap.fail_at = fail_at;
        m.params.calibration = &t->c, m.params.allocator = &heap.hooks;
        const int rc = ts_try(&m, &c);
        if (rc) assert_int_equal(rc, KVF_E_NOMEM), assert_int_equal(heap.live, 0);
        kvf_cache_free(&c);
        assert_int_equal(heap.live, 0);
        tc_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copied_whole),   cmocka_unit_test(test_bytes_are_counted),
        cmocka_unit_test(test_nothing_known),  cmocka_unit_test(test_refused_by_name),
        cmocka_unit_test(test_false_moment),   cmocka_unit_test(test_given_to_operations),
        cmocka_unit_test(test_units_of_heads), cmocka_unit_test(test_sharing_layer_is_ignored),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests_name("calibration", tests, NULL, NULL);
}
