/* SPDX-License-Identifier: MIT
 * Everything that a request may say, against the oracle: layouts, cells, masks, windows, softcap, ALiBi, attention sinks,
 * latent attention, shared layers, how the work is split, and the merge. */
#include "pair.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static const int aims[] = {0, 1, 2, 3, 63, 64, 65, 127, 128, -1};
static const float slopes[] = {0.5f, 0.25f, 0.0f, 0.0625f};
static const float sinks[] = {1.5f, -2.0f, 9.0f, 17.0f};

static void open_with(pair *p, const char *k, const char *v, int window, int grown)
{
    ts_model_init(&p->m, 1, 4, 2, 64, 80, k, v);
    p->m.layers[0].window = window;
    pair_open(p);
    pair_grow(p, 0, 1, grown, 512);
}

static void test_layouts_and_types(void **state)
{
    static const int types[] = {KVF_F16, KVF_F32};
    (void)state;
    for (int layout = 0; layout < TS_LAYOUTS; layout++)
        for (int i = 0; i < 16; i++) {
            pair p = {0};
            ts_row rows[75];
            ts_how how = {.layout = (ts_layout)layout,
                          .type = types[i & 1],
                          .q_type = types[i >> 1 & 1],
                          .scatter = i >> 2 & 1,
                          .whole_f32 = (i & 1) && (i >> 3 & 1),
                          .point_at = aims};
            open_with(&p, "kivi4", "q8_0", 0, 0);
            ts_rows(rows, 75, 0, 1, 0);
            pair_feed(&p, rows, 75, 75, &how, 1);
            pair_next(&p, 0, 1, 70, &how);
            pair_next(&p, 0, 1, 1, &how);
            pair_close(&p);
        }
}

/* Rows given whole are stored as f16, and the tail is used as it is. */
static void test_f32_rows_are_rounded_when_stored(void **state)
{
    pair p = {0};
    ts_how how = {.type = KVF_F32, .whole_f32 = 1, .layout = TS_STRIDED, .point_at = aims};
    ts_row rows[300];
    (void)state;
    open_with(&p, "f16", "f16", 0, 0);
    ts_rows(rows, 300, 0, 1, 0);
    pair_feed(&p, rows, 300, 100, &how, 1);
    pair_next(&p, 0, 1, 3, &how);
    pair_close(&p);
}

/* An explicit mask, in cells out of order, that says what the implicit one says. */
static void test_explicit_mask_equals_implicit(void **state)
{
    static const int masks[] = {KVF_F16, KVF_F32}, windows[] = {0, 1, 5, 64, 100};
    (void)state;
    for (int w = 0; w < COUNT(windows); w++)
        for (int i = 0; i < 4; i++) {
            pair p = {0};
            ts_how with = {.mask = masks[i & 1], .scatter = i >> 1, .slopes = slopes, .point_at = aims};
            ts_how without = {.slopes = slopes, .point_at = aims};
            ts_row rows[90];
            open_with(&p, "kivi3", "kivi2", windows[w], 140);
            for (int t = 0; t < 90; t++) rows[t] = t % 3 ? (ts_row){0, 140 + t / 3 * 2 + t % 3 - 1, 1} : (ts_row){1, t / 3, 2};
            ts_batch *a = ts_batch_new(&p.m, rows, 90, &with), *b = ts_batch_new(&p.m, rows, 90, &without);
            ts_begin(p.c, a);
            ts_attend_all(p.c, a);
            ts_attend_all(p.c, b);
            pair_compare(&p, a, 0);
            pair_compare(&p, b, 0);
            for (int c = 0; c < 90 * 4 * 80; c++)
                if (fabsf(a->out[0][c] - b->out[0][c]) > (float)(4 * p.bound)) fail_msg("value %d: mask and positions differ", c);
            ts_ok(kvf_batch_abort(p.c));
            ts_batch_free(a);
            ts_batch_free(b);
            pair_close(&p);
        }
}

static void test_masks_with_bias_and_without_causality(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        pair p = {0};
        ts_how how = {.mask = i & 1 ? KVF_F16 : KVF_F32,
                      .bias = i & 2 ? 1.0f : 0.125f,
                      .see_all = i >> 2 & 1,
                      .scatter = 1,
                      .slopes = i & 8 ? slopes : NULL,
                      .point_at = aims};
        open_with(&p, "q4_0", "kivi4", 0, 150);
        pair_next(&p, 0, 1, 1, &how);
        pair_next(&p, 0, 1, 4, &how);
        pair_next(&p, 0, 1, 130, &how);
        pair_close(&p);
    }
}

/* cmocka's assert_float_equal takes an infinity for anything. */
static void near(double x, double want, double allowed)
{
    if (!(fabs(x - want) <= allowed)) fail_msg("%.9g, expected %.9g", x, want);
}

static void all_equal(const float *x, int n, float value, const char *what)
{
    for (int i = 0; i < n; i++)
        if (!(x[i] == value)) fail_msg("%s %d is %g, not %g", what, i, (double)x[i], (double)value);
}

/* A row that sees nothing gives exact zeros; beside it others are right; with history it sees the history. */
static void test_fully_masked_rows(void **state)
{
    static const int counts[] = {1, 4, 70};
    (void)state;
    for (int i = 0; i < COUNT(counts); i++)
        for (int mask = KVF_F16; mask <= KVF_F32; mask++)
            for (int hidden = 1; hidden <= counts[i]; hidden += counts[i] > 4 ? 23 : 1) {
                pair p = {0};
                ts_row rows[70];
                ts_how how = {.mask = mask, .hide_row = hidden, .slopes = slopes};
                open_with(&p, "kivi2", "kivi2", 0, 0);
                ts_rows(rows, counts[i], 0, 1, 0);
                ts_batch *b = ts_batch_new(&p.m, rows, counts[i], &how);
                ts_begin(p.c, b);
                ts_attend_all(p.c, b);
                pair_compare(&p, b, 0);
                all_equal(b->out[0] + (hidden - 1) * 4 * 80, 4 * 80, 0.0f, "output");
                all_equal(b->lse[0] + (hidden - 1) * 4, 4, -INFINITY, "log-sum-exp");
                ts_ok(kvf_batch_abort(p.c));
                ts_batch_free(b);
                pair_grow(&p, 0, 1, 200, 200);
                pair_next(&p, 0, 1, counts[i], &how);
                pair_close(&p);
            }
}

/* A fully masked row with attention-sink logits: zeros, and the sinks alone in the denominator. */
static void test_fully_masked_row_with_sinks(void **state)
{
    pair p = {0};
    ts_row rows[2];
    ts_how how = {.mask = KVF_F32, .hide_row = 2, .sinks = sinks};
    (void)state;
    open_with(&p, "f16", "f16", 0, 0);
    ts_rows(rows, 2, 0, 1, 0);
    ts_batch *b = ts_batch_new(&p.m, rows, 2, &how);
    ts_begin(p.c, b);
    ts_attend_all(p.c, b);
    all_equal(b->out[0] + 4 * 80, 4 * 80, 0.0f, "output");
    for (int h = 0; h < 4; h++) near((double)b->lse[0][4 + h], (double)sinks[h], 1e-5);
    ts_ok(kvf_batch_abort(p.c));
    ts_batch_free(b);
    pair_close(&p);
}

/* Windows at their edges: queries are aimed at the last key inside and the first outside. */
static void window(int w, const int *at, int n, int recent)
{
    int edge[] = {w - 1, w, 0, w + 1, w - 2 < 0 ? 0 : w - 2, w + 63, -1};
    pair p = {0};
    ts_how how = {.point_at = edge};
    ts_model_init(&p.m, 2, 4, 2, 64, 64, "kivi4", "kivi4");
    p.m.layers[0].window = w; /* layer 1 sees everything */
    p.m.params.recent = recent;
    pair_open(&p);
    for (int i = 0; i < n; i++) {
        pair_grow(&p, 0, 1, at[i] - oracle_pos_max(p.o, 0) - 1, 512);
        pair_next(&p, 0, 1, 1, &how);
        pair_next(&p, 0, 1, 6, &how);
    }
    pair_next(&p, 0, 1, 70, &how);
    pair_close(&p);
}

static void test_windows(void **state)
{
    static const int small[] = {0, 1, 4, 5, 6, 63, 64, 65, 99, 100, 101, 127, 128, 129, 200, 333, 500, 900};
    static const int edges[] = {1022, 1023, 1024, 1025, 1026, 1087, 1088, 1089, 1300, 1400, 2048, 2049};
    (void)state;
    window(1, small, COUNT(small), 64);
    window(5, small, COUNT(small), 64);
    window(64, small, COUNT(small), 64);
    window(100, small, COUNT(small), 64);
    window(100, small, COUNT(small), 0);
    window(1024, edges, COUNT(edges), 64);
}

/* Lengths 1023 to 1026 reached by single steps, attended at each. */
static void test_window_in_single_steps(void **state)
{
    int edge[] = {1023, 1024, 1022, 0, -1};
    pair p = {0};
    ts_row rows[12];
    ts_how how = {.point_at = edge};
    (void)state;
    open_with(&p, "kivi4", "kivi4", 1024, 1018);
    ts_rows(rows, 12, 0, 1, 1018);
    pair_feed(&p, rows, 12, 1, &how, 1);
    pair_close(&p);
}

/* A batch longer than the window: rows of one batch leave the window of its later rows. */
static void test_prefill_longer_than_the_window(void **state)
{
    int edge[] = {4, 5, 6, 0, -1};
    pair p = {0};
    ts_row rows[600];
    ts_how how = {.point_at = edge};
    (void)state;
    open_with(&p, "q8_0", "kivi4", 5, 0);
    ts_rows(rows, 600, 0, 1, 0);
    pair_feed(&p, rows, 600, 200, &how, 1);
    pair_close(&p);
}

static void test_softcap_slopes_and_sinks(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        pair p = {0};
        ts_how how = {.softcap = i & 1 ? 3.0f : 0.0f,
                      .slopes = i & 2 ? slopes : NULL,
                      .sinks = i & 4 ? sinks : NULL,
                      .mask = i & 8 ? KVF_F16 : 0,
                      .point_at = aims};
        open_with(&p, "kivi4", "q4_0", 0, 0);
        pair_next(&p, 0, 1, 3, &how);
        pair_grow(&p, 0, 1, 260, 260);
        pair_next(&p, 0, 1, 1, &how);
        pair_next(&p, 0, 1, 4, &how);
        pair_next(&p, 0, 1, 100, &how);
        pair_close(&p);
    }
}

static void test_scale_is_the_callers(void **state)
{
    static const float scales[] = {1.0f, 0.01f, -0.125f};
    (void)state;
    for (int i = 0; i < COUNT(scales); i++) {
        pair p = {0};
        ts_how how = {.scale = scales[i]};
        open_with(&p, "kivi4", "kivi4", 0, 200);
        p.bound *= 4; /* scores of 40 and more: their last places show */
        pair_next(&p, 0, 1, 2, &how);
        pair_close(&p);
    }
}

static void test_latent_attention(void **state)
{
    static const char *const specs[] = {"f16", "q8_0", "q4_0", "kivi4", "q8_0:rot=h", "q8_0:centre=prompt", "q8_0:centre=block"};
    (void)state;
    for (int i = 0; i < COUNT(specs); i++) {
        pair p = {0};
        kvf_cache *c = NULL;
        ts_how how = {.point_at = aims};
        ts_model_init(&p.m, 1, 4, 1, 96, 80, specs[i], specs[i]);
        p.m.layers[0].v_in_k = 1;
        int code = ts_try(&p.m, &c);
        kvf_cache_free(&c);
        if (code != KVF_OK && i > 1) { /* f16 and q8_0 must; others may be refused by name */
            assert_int_equal(code, KVF_E_UNSUPPORTED);
            assert_non_null(strstr(p.m.error, i > 4 ? "centre" : i == 4 ? "rot=h mixes" : i == 3 ? "kivi" : specs[i]));
            continue;
        }
        pair_open(&p);
        pair_next(&p, 0, 1, 5, &how);
        pair_grow(&p, 0, 1, 210, 105);
        pair_next(&p, 0, 1, 1, &how);
        pair_next(&p, 0, 1, 40, &how);
        pair_close(&p);
    }
}

/* Layers 2 and 3 read the rows of 0 and 1 with their own queries. */
static void test_layers_that_share(void **state)
{
    pair p = {0};
    ts_how how = {.point_at = aims};
    (void)state;
    ts_model_init(&p.m, 4, 4, 2, 64, 64, "kivi4", "kivi4");
    p.m.layers[1].window = p.m.layers[3].window = 70;
    p.m.layers[2].share = 0;
    p.m.layers[2].q_heads = 8;
    p.m.layers[3].share = 1;
    p.m.layers[1].k = p.m.layers[3].k = "q8_0";
    pair_open(&p);
    pair_grow(&p, 0, 1, 250, 125);
    pair_next(&p, 0, 1, 1, &how);
    pair_next(&p, 0, 1, 9, &how);
    pair_close(&p);
}

static void test_layers_unlike_each_other(void **state)
{
    pair p = {0};
    ts_how how = {.point_at = aims};
    (void)state;
    ts_model_init(&p.m, 4, 4, 2, 64, 64, "kivi4", "kivi4");
    p.m.layers[1] = p.m.layers[0];
    p.m.layers[1].k = "f16";
    p.m.layers[1].v = "kivi2:group=64";
    p.m.layers[2].kv_heads = 4;
    p.m.layers[2].k_dim = 80;
    p.m.layers[2].v_dim = 48;
    p.m.layers[3].q_heads = 9;
    p.m.layers[3].kv_heads = 3;
    p.m.layers[3].window = 33;
    p.m.layers[3].k = "q8_0:rot=h";
    pair_open(&p);
    pair_grow(&p, 0, 1, 333, 100);
    pair_next(&p, 0, 1, 1, &how);
    pair_next(&p, 0, 1, 30, &how);
    pair_close(&p);
}

/* Parts of a plan for one row. */
static int parts_of(pair *p)
{
    kvf_attention a;
    kvf_plan plan;
    ts_row row = {0, oracle_pos_max(p->o, 0) + 1, 1};
    ts_batch *b = ts_batch_new(&p->m, &row, 1, NULL);
    ts_begin(p->c, b);
    ts_batch_request(b, 0, &a, b->out[0], b->lse[0]);
    ts_ok(kvf_attend_begin(p->c, &a, &plan));
    for (int i = 0; i < plan.parts; i++) kvf_attend_part(&plan, i);
    ts_ok(kvf_attend_end(&plan));
    ts_ok(kvf_batch_abort(p->c));
    ts_batch_free(b);
    return plan.parts;
}

/* However many threads are announced, the answer is the same; parts may run in any order. The history is long enough to be cut
 * into several spans, and the keys that the queries are aimed at lie in different ones. */
static void test_splits(void **state)
{
    static const int threads[] = {1, 2, 3, 4, 8, 64}, rows[] = {1, 3, 4, 40};
    static const int far[] = {0, 2599, 2000, 1300, 700, 64, 100, 1, -1};
    int most = 0;
    (void)state;
    for (int i = 0; i < COUNT(threads); i++) {
        pair p = {0};
        ts_model_init(&p.m, 1, 4, 1, 32, 48, "kivi4", i % 2 ? "q8_0" : "q4_0:rot=h");
        p.m.params.threads = threads[i];
        pair_open(&p);
        pair_next(&p, 0, 1, 4, NULL);
        pair_grow(&p, 0, 1, 2600, 500);
        for (int j = 0; j < COUNT(rows); j++) {
            ts_how how = {.point_at = far, .shuffle_parts = 1};
            pair_next(&p, 0, 1, rows[j], &how);
            how.sinks = sinks;
            how.mask = KVF_F32;
            how.hide_row = 1;
            pair_next(&p, 0, 1, rows[j], &how);
        }
        int parts = parts_of(&p);
        most = parts > most ? parts : most;
        pair_close(&p);
    }
    assert_true(most >= 4);
}

/* Two disjoint sets of keys, attended apart and merged, equal their union; empty sets are neutral. */
static void test_merge(void **state)
{
    enum { ROWS = 6, HEADS = 4, DIM = 80 };
    (void)state;
    pair p = {0};
    open_with(&p, "kivi4", "kivi4", 0, 0);
    ts_row rows[ROWS];
    ts_rows(rows, ROWS, 0, 1, 0);
    ts_how how = {.mask = KVF_F32, .see_all = 1, .scatter = 0};
    ts_batch *whole = ts_batch_new(&p.m, rows, ROWS, &how), *part[2];
    ts_begin(p.c, whole);
    ts_attend_all(p.c, whole);
    for (int half = 0; half < 2; half++) { /* columns below 2, columns from 2 */
        kvf_attention a;
        part[half] = ts_batch_new(&p.m, rows, ROWS, &how);
        ts_batch_request(part[half], 0, &a, part[half]->out[0], part[half]->lse[0]);
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < ROWS; j++)
                if ((j < 2) == half) ((float *)(void *)((char *)part[half]->mask + i * a.mask_stride))[j] = -INFINITY;
        ts_ok(kvf_attend(p.c, &a));
    }
    kvf_merge(part[0]->out[0], part[0]->lse[0], part[1]->out[0], part[1]->lse[0], ROWS * HEADS, DIM);
    pair_compare(&p, whole, 0);
    for (int i = 0; i < ROWS * HEADS; i++) near((double)part[0]->lse[0][i], (double)whole->lse[0][i], 1e-5);
    for (int i = 0; i < ROWS * HEADS * DIM; i++) near((double)part[0]->out[0][i], (double)whole->out[0][i], 1e-5);

    float nothing[HEADS * DIM] = {0}, never[HEADS], copy[HEADS * DIM], lse[HEADS];
    for (int i = 0; i < HEADS; i++) never[i] = -INFINITY;
    memcpy(copy, whole->out[0], sizeof copy);
    memcpy(lse, whole->lse[0], sizeof lse);
    kvf_merge(copy, lse, nothing, never, HEADS, DIM);
    assert_memory_equal(copy, whole->out[0], sizeof copy);
    assert_memory_equal(lse, whole->lse[0], sizeof lse);
    kvf_merge(nothing, never, copy, lse, HEADS, DIM);
    assert_memory_equal(nothing, copy, sizeof copy);
    assert_memory_equal(never, lse, sizeof lse);
    memset(nothing, 0, sizeof nothing);
    memset(copy, 0, sizeof copy);
    for (int i = 0; i < HEADS; i++) never[i] = lse[i] = -INFINITY;
    kvf_merge(nothing, never, copy, lse, HEADS, DIM);
    all_equal(nothing, HEADS * DIM, 0.0f, "output");
    all_equal(never, HEADS, -INFINITY, "log-sum-exp");
    ts_ok(kvf_batch_abort(p.c));
    ts_batch_free(whole);
    ts_batch_free(part[0]);
    ts_batch_free(part[1]);
    pair_close(&p);
}

/* Large log-sum-exps on both sides: nothing overflows, and the nearer one wins. */
static void test_merge_of_extreme_scores(void **state)
{
    float a[2] = {1, 2}, b[2] = {3, 4}, la = 500, lb = 510;
    (void)state;
    kvf_merge(a, &la, b, &lb, 1, 2);
    double w = 1 / (1 + exp(10.0));
    near((double)a[0], (3 + w * (1 - 3)), 1e-5);
    near((double)a[1], (4 + w * (2 - 4)), 1e-5);
    near((double)la, (510 + log1p(exp(-10.0))), 1e-4);
    float c[1] = {1}, d[1] = {2}, lc = -900, ld = 900;
    kvf_merge(c, &lc, d, &ld, 1, 1);
    assert_true(c[0] == 2.0f && lc == 900.0f);
}

/* Scores far from zero on either side, and all the same: no overflow, no NaN. */
static void test_extreme_scores(void **state)
{
    static const float scales[] = {300.0f, -300.0f, 1e-30f};
    (void)state;
    for (int i = 0; i < COUNT(scales); i++) {
        pair p = {0};
        ts_row row = {0, 200, 1};
        ts_how how = {.scale = scales[i]};
        open_with(&p, "f16", "f16", 0, 200);
        ts_batch *b = ts_batch_new(&p.m, &row, 1, &how);
        ts_begin(p.c, b);
        ts_attend_all(p.c, b);
        for (int c = 0; c < 4 * 80; c++) assert_true(isfinite(b->out[0][c]));
        for (int h = 0; h < 4; h++) assert_true(isfinite(b->lse[0][h]));
        if (i == 2) near((double)b->lse[0][0], log(201), 1e-5);
        ts_ok(kvf_batch_abort(p.c));
        ts_batch_free(b);
        pair_close(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts_and_types),
        cmocka_unit_test(test_f32_rows_are_rounded_when_stored),
        cmocka_unit_test(test_explicit_mask_equals_implicit),
        cmocka_unit_test(test_masks_with_bias_and_without_causality),
        cmocka_unit_test(test_fully_masked_rows),
        cmocka_unit_test(test_fully_masked_row_with_sinks),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_window_in_single_steps),
        cmocka_unit_test(test_prefill_longer_than_the_window),
        cmocka_unit_test(test_softcap_slopes_and_sinks),
        cmocka_unit_test(test_scale_is_the_callers),
        cmocka_unit_test(test_latent_attention),
        cmocka_unit_test(test_layers_that_share),
        cmocka_unit_test(test_layers_unlike_each_other),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_merge_of_extreme_scores),
        cmocka_unit_test(test_extreme_scores),
    };
    return ts_on_every_cpu("oracle_request", tests, sizeof tests / sizeof *tests);
}
