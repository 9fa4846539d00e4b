/* SPDX-License-Identifier: MIT
 * Attention after a policy has dropped rows inside the history: at every step of 200 appended tokens the cache answers as a dense
 * softmax over the rows that the policy's definition keeps, at their own positions, each head with its own set. */
#include "pair.h"
#include "../unit/books.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

static void model(pair *p, const char *k, const char *v, const char *evict)
{
    ts_model_init(&p->m, 2, 4, 2, 32, 32, k, v);
    p->m.layers[1].window = 50; /* which the policy leaves alone */
    p->m.params.window_keep = 16;
    p->m.params.evict = evict;
}

/* stored: what the cache has stored is taken for granted. */
static void steps(const char *k, const char *v, int by_length, int stored)
{
    static const float slopes[] = {0.125f, 0.25f, 0.5f, 0.0625f};
    pair p = {0};
    ts_how plain = {0}, alibi = {.slopes = slopes}; /* distances count positions, not rows */
    tb_known *known = NULL;
    model(&p, k, v, by_length ? "knorm:budget=180,recent=70,sink=6" : "window:budget=180,sink=6");
    if (k[0] == 'v') known = tb_know(&p.m, 1);
    pair_open(&p);
    oracle_policy(p.o, by_length, 180, 6, by_length ? 70 : 64);
    ts_row prompt[400];
    ts_rows(prompt, 400, 0, 1, 0);
    for (int i = 0; i < 400; i += 100) pair_prompt(&p, prompt + i, 100);
    int sealed = -1;
    for (int i = 0; i < 200; i++) {
        if (stored && oracle_sealed(p.o, 0) != sealed) pair_see_stored(&p, 0), sealed = oracle_sealed(p.o, 0);
        pair_next(&p, 0, 2, 1, i % 8 ? &plain : &alibi);
        pair_grow(&p, 0, 1, 1, 1);
    }
    if (stored) pair_see_stored(&p, 0);
    pair_next(&p, 0, 2, 40, &plain); /* unfolded tiles */
    kvf_evicted_t e = {.size = sizeof e};
    ts_ok(kvf_evicted(p.c, 0, &e));
    assert_true(e.evicted >= 600 - 180 - 63);
    pair_close(&p);
    if (known) tb_forget(known);
}

static void test_window_steps(void **state)
{
    static const char *const pairs[][2] = {{"f16", "f16"}, {"kivi3", "q8_0"}, {"uni4:centre=block,scale=none", "rvq4"}};
    (void)state;
    for (int i = 0; i < COUNT(pairs); i++) steps(pairs[i][0], pairs[i][1], 0, 0);
}

/* Rows have moved between records as they were: the oracle codes each once, in the block of 64 that it came with. */
static void test_moved_rows(void **state)
{
    static const char *const pairs[][2] = {{"f16", "f16"},
                                           {"q4_0", "kivi2"},
                                           {"q8_0:rot=h", "q8_0"},
                                           {"turbo4:centre=none,scale=none", "turbo3"},
                                           {"uni4:centre=none,scale=none", "rvq4"},
                                           {"tcq2:centre=none,scale=none", "tcq3"},
                                           {"prod3:centre=none,scale=none", "uni5"},
                                           {"qjl:centre=none,scale=none", "uni3"}};
    (void)state;
    for (int i = 0; i < COUNT(pairs); i++) steps(pairs[i][0], pairs[i][1], 1, 0);
}

/* Stages from the prompt, with a centre for each row's segment; and records that are coded again. */
static void test_stored_rows(void **state)
{
    static const char *const pairs[][2] = {{"turbo4", "turbo3"},
                                           {"uni4", "uni4"},
                                           {"tcq3", "tcq2"},
                                           {"kivi4", "kivi4"},
                                           {"kivi2", "turbo4"},
                                           {"turbo3:centre=block,scale=none", "f16"},
                                           {"uni4", "turbo2:outliers=8"},
                                           {"vecinfer:sub=4,bits=8", "vecinfer:sub=4,bits=8"}};
    (void)state;
    for (int i = 0; i < COUNT(pairs); i++) steps(pairs[i][0], pairs[i][1], 1, 1);
}

/* A batch attends to everything that was there before it, however much of that its own commit will drop. */
static void test_batch_sees_what_its_commit_drops(void **state)
{
    (void)state;
    pair p = {0};
    ts_row rows[300];
    model(&p, "q4_0", "q4_0", "knorm:budget=100");
    pair_open(&p);
    oracle_policy(p.o, 1, 100, 4, 64);
    ts_rows(rows, 300, 0, 1, 0);
    pair_feed(&p, rows, 300, 300, NULL, 1); /* 300 rows see each other through a budget of 100 */
    ts_rows(rows, 300, 0, 1, 300);
    pair_feed(&p, rows, 300, 130, NULL, 1);
    pair_close(&p);
}

/* Copies, cuts and holes after eviction. */
static void sequences(const char *evict, int by_length)
{
    pair p = {0};
    model(&p, "q4_0", "kivi4", evict);
    p.m.params.window_keep = 1000;
    pair_open(&p);
    oracle_policy(p.o, by_length, 150, 4, 64);
    pair_grow(&p, 0, 1, 330, 100);
    pair_cp(&p, 0, 1);
    pair_grow(&p, 0, 2, 90, 30);
    pair_rm(&p, 1, 290, -1);
    pair_grow(&p, 1, 3, 30, 7);
    for (int seq = 0; seq < 2; seq++) pair_next(&p, seq, 4, 1, NULL);
    pair_rm(&p, 0, 300, 320);
    pair_next(&p, 0, 4, 3, NULL);
    pair_grow(&p, 0, 5, 100, 100);
    pair_next(&p, 0, 4, 3, NULL);
    for (int last = 519; last < 700; last += 50) { /* newest rows that are gone leave room for others */
        pair_rm(&p, 0, last - 40, last - 10);
        pair_grow(&p, 0, 6, 50, last % 100 < 50 ? 50 : 9);
        pair_next(&p, 0, 4, 1, NULL);
    }
    for (int i = 0; i < 8; i++) { /* blocks of which little is left */
        pair_rm(&p, 1, kvf_seq_pos_max(p.c, 1) - 100, -1);
        pair_grow(&p, 1, (uint64_t)i + 6, 140, 35);
        pair_next(&p, 1, 4, i % 2 ? 40 : 1, NULL);
    }
    pair_close(&p);
}

static void test_sequences(void **state)
{
    (void)state;
    sequences("knorm:budget=150", 1);
    sequences("window:budget=150", 0);
}

/* Holes in coded rows put blocks of `window` and of layers with a window of their own into chains, where rows leave one by one and
 * blocks are coded again; `stored` as above. */
static void torn(const char *k, const char *v, int stored)
{
    pair p = {0};
    ts_model_init(&p.m, 2, 4, 2, 32, 32, k, v);
    p.m.layers[1].window = 200;
    p.m.params.window_keep = 30;
    p.m.params.evict = "window:budget=250,sink=6";
    pair_open(&p);
    oracle_policy(p.o, 0, 250, 6, 64);
    int sealed = -1;
    pair_grow(&p, 0, 1, 450, 90);
    for (int i = 0; i < 220; i++) {
        const int last = 449 + i;
        if (i % 40 == 0) pair_rm(&p, 0, last - 160, last - 130 + i / 4); /* of blocks of the table at first, then of chains */
        if (stored && (i % 40 == 0 || oracle_sealed(p.o, 0) != sealed)) pair_see_stored(&p, 0), sealed = oracle_sealed(p.o, 0);
        pair_next(&p, 0, 2, i % 20 == 7 ? 40 : 1, NULL);
        pair_grow(&p, 0, 1, 1, 1);
    }
    kvf_stats_t s = {.size = sizeof s};
    ts_ok(kvf_stats(p.c, &s));
    assert_int_equal(s.rows_recoded > 0, stored);
    pair_close(&p);
}

static void test_torn_windows(void **state)
{
    (void)state;
    torn("q4_0", "turbo3", 0);
    torn("kivi4", "kivi2", 1);
    torn("kivi2:group=16", "uni4", 1);
}

/* Layers that read the rows of another, with and without a window; latent ones, whose values are part of their keys; exact rows of 8
 * bits, which are ranked and coded as the window holds them. Holes in coded rows come in the middle. */
typedef struct shape {
    const char *k, *v;
    int latent, exact_bits, stored;
} shape;

static void check_shape(const shape *s, int by_length)
{
    pair p = {0};
    ts_model_init(&p.m, 4, 4, 2, 32, 32, s->k, s->v);
    p.m.layers[1].share = p.m.layers[2].share = 0;
    p.m.layers[1].window = 50, p.m.layers[1].q_heads = 8;
    p.m.layers[3].window = 100, p.m.layers[3].v_in_k = s->latent;
    for (int i = 0; s->latent && i < 3; i++) p.m.layers[i].v_in_k = 1, p.m.layers[i].v_dim = 16;
    p.m.params.window_keep = 200, p.m.params.exact_bits = s->exact_bits;
    p.m.params.evict = by_length ? "knorm:budget=150,sink=6" : "window:budget=150,sink=6";
    pair_open(&p);
    oracle_policy(p.o, by_length, 150, 6, 64);
    pair_grow(&p, 0, 1, 330, 330); /* rows that no window has held are coded, too */
    for (int i = 0; i < 140; i++) {
        if (i == 70) pair_rm(&p, 0, 290, 300);
        if (s->stored && i % 10 == 0) pair_see_stored(&p, 0);
        if (i % 10 == 0) pair_next(&p, 0, 2, i % 40 ? 1 : 20, NULL);
        pair_grow(&p, 0, 1, 1, 1);
    }
    kvf_evicted_t e = {.size = sizeof e};
    ts_ok(kvf_evicted(p.c, 2, &e)); /* answers for its owner */
    assert_true(e.evicted >= 460 - 150 - 63);
    pair_close(&p);
}

/* Under sanitizers: four shapes, and no other test. */
#ifdef TESTS_SANITIZED
enum { FIRST = 6, STEP = 3 };
#else
enum { FIRST = 0, STEP = 1 };
#endif

static void test_shapes(void **state)
{
    static const shape shapes[] = {{"f16", "f16", 1, 16, 0},
                                   {"q8_0", "q8_0", 1, 8, 0},
                                   {"q8_0:rot=h", "q8_0", 0, 8, 0},
                                   {"q4_0", "turbo3", 0, 16, 0},
                                   {"uni4", "kivi4", 0, 8, 1}};
    (void)state;
    for (int i = 0; i < 2 * COUNT(shapes); i += STEP) check_shape(&shapes[i / 2], i % 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window_steps), cmocka_unit_test(test_moved_rows),
        cmocka_unit_test(test_stored_rows),  cmocka_unit_test(test_batch_sees_what_its_commit_drops),
        cmocka_unit_test(test_sequences),    cmocka_unit_test(test_torn_windows),
        cmocka_unit_test(test_shapes),
    };
    return ts_on_every_cpu("oracle_evict", tests + FIRST, sizeof tests / sizeof *tests - FIRST);
}
