/* SPDX-License-Identifier: MIT
 * What `kvfold calibrate` keeps of a text and learns from it, on rows that are made up here: which positions, whose rows, and that each
 * layer's results are of its own rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Layer 1 reads the keys of layer 0. Chunks are longer than batches, slots fewer than positions. */
enum { LAYERS = 3, SHARING = 1, Q_HEADS = 4, KV_HEADS = 2, DIM = 8, CHUNK = 320, CHUNKS = 4, SLOTS = 400, ROWS = 64 };
enum { OFFERED = CHUNKS * (CHUNK - CALIBRATE_SKIP) };

static const int owner_of[LAYERS] = {0, 0, 2};

/* A row says whose it is: layer, head, chunk and position. All are whole numbers below 2048, which f16 holds. */
static float q_at(int layer, int pos, int head, int d)
{
    return d == 0 ? 1 + pos : d == 1 ? (float)(layer == SHARING ? 900 : 100) : (float)(head + layer + 1);
}

static float k_at(int layer, int chunk, int pos, int head, int d)
{
    return d == 0 ? 1 + pos : d == 1 ? (float)(10 * layer + head) : d == 2 ? (float)chunk : 1;
}

/* Values of a layer are two points, of which no other layer has any. */
static float v_at(int layer, int pos)
{
    return (pos % 2 ? 1.0f : -1.0f) * 100.0f * (float)(layer + 1);
}

typedef struct fed {
    float q[ROWS][Q_HEADS][DIM], k[ROWS][KV_HEADS][DIM], v[ROWS][KV_HEADS][DIM];
    kvf_token tokens[ROWS];
    int32_t cells[ROWS];
} fed;

/* Cells are the batch's rows backwards: keys lie elsewhere than the queries of their tokens. */
static void fill(fed *f, int layer, int chunk, int from, int n)
{
    for (int i = 0; i < n; i++) {
        const int cell = f->cells[i] = n - 1 - i, pos = from + i;
        f->tokens[i] = (kvf_token){.pos = pos};
        for (int d = 0; d < DIM; d++) {
            for (int h = 0; h < Q_HEADS; h++) f->q[i][h][d] = q_at(layer, pos, h, d);
            for (int h = 0; h < KV_HEADS; h++)
                f->k[cell][h][d] = k_at(layer, chunk, pos, h, d), f->v[cell][h][d] = v_at(layer, pos);
        }
    }
}

static kvf_view view_of(const float *x, int heads)
{
    return (kvf_view){.data = x,
                      .type = KVF_F32,
                      .token_stride = (int64_t)heads * DIM * (int64_t)sizeof *x,
                      .head_stride = DIM * (int64_t)sizeof *x};
}

static void feed_chunk(calibrate_collection *c, int chunk, int tokens, int rows)
{
    static fed f[LAYERS];
    for (int from = 0; from < tokens; from += rows) {
        const int n = tokens - from < rows ? tokens - from : rows;
        c->drawn_layer = -1;
        for (int il = 0; il < LAYERS; il++) {
            fill(&f[il], il, chunk, from, n);
            const fed *own = &f[owner_of[il]];
            const kvf_llama_rows r = {.size = sizeof r,
                                      .layer = il,
                                      .owner = owner_of[il],
                                      .n = n,
                                      .tokens = f[il].tokens,
                                      .q = view_of(&f[il].q[0][0][0], Q_HEADS),
                                      .k = view_of(&own->k[0][0][0], KV_HEADS),
                                      .v = view_of(&own->v[0][0][0], KV_HEADS),
                                      .cells = f[il].cells,
                                      .scale = 1e-6f};
            calibrate_observe(c, &r);
        }
    }
}

static void collect(calibrate_collection *c, uint64_t seed, int rows)
{
    kvf_llama_layer_t info[LAYERS];
    for (int il = 0; il < LAYERS; il++)
        info[il] = (kvf_llama_layer_t){.size = sizeof *info,
                                       .attention = 1,
                                       .folded = 1,
                                       .q_heads = Q_HEADS,
                                       .kv_heads = KV_HEADS,
                                       .k_dim = DIM,
                                       .v_dim = DIM,
                                       .share = owner_of[il] == il ? -1 : owner_of[il]};
    calibrate_collect_make(c, info, LAYERS, SLOTS, ROWS, seed);
    for (int chunk = 0; chunk < CHUNKS; chunk++) feed_chunk(c, chunk, CHUNK, rows);
    c->ranking = true, c->ranked = CHUNK;
    feed_chunk(c, CHUNKS, CHUNK, rows);
}

/* ---- which positions ---------------------------------------------------------------------------------------------------------- */

static float f32(ggml_fp16_t x)
{
    float to;
    ggml_fp16_to_fp32_row(&x, &to, 1);
    return to;
}

static int chunk_in(const calibrate_collection *c, int slot)
{
    return (int)f32(c->layer[0].k[(size_t)slot * KV_HEADS * DIM + 2]);
}

/* Every chunk, and each half of it, has its share of the slots; what is left out is the start of chunks, and nothing is there twice. */
static void test_all_of_the_text(void **state)
{
    calibrate_collection c;
    int part[CHUNKS][2] = {{0}};
    bool seen[CHUNKS][CHUNK] = {{false}};
    (void)state;
    collect(&c, 1, ROWS);
    assert_int_equal(c.filled, SLOTS);
    assert_int_equal(c.seen, OFFERED);
    for (int s = 0; s < SLOTS; s++) {
        const int chunk = chunk_in(&c, s), pos = c.pos[s];
        assert_in_range(pos, CALIBRATE_SKIP, CHUNK - 1);
        assert_in_range(chunk, 0, CHUNKS - 1);
        assert_false(seen[chunk][pos]);
        seen[chunk][pos] = true, part[chunk][pos >= CHUNK / 2]++;
    }
    const double share = (double)SLOTS / (2 * CHUNKS), wide = 5 * sqrt(share); /* five standard deviations of a count */
    for (int i = 0; i < 2 * CHUNKS; i++)
        if (fabs(part[i / 2][i % 2] - share) > wide)
            fail_msg("chunk %d, half %d: %d positions, about %.0f are due", i / 2, i % 2, part[i / 2][i % 2], share);
    calibrate_collect_close(&c);
}

/* How many positions of two samples are the same ones. */
static int common(const calibrate_collection *a, const calibrate_collection *b)
{
    bool in[CHUNKS][CHUNK] = {{false}};
    int n = 0;
    for (int s = 0; s < SLOTS; s++) in[chunk_in(a, s)][a->pos[s]] = true;
    for (int s = 0; s < SLOTS; s++) n += in[chunk_in(b, s)][b->pos[s]];
    return n;
}

/* By lot, two samples share SLOTS * SLOTS / OFFERED positions. */
static void test_seeds(void **state)
{
    calibrate_collection a, b;
    const double due = (double)SLOTS * SLOTS / OFFERED;
    (void)state;
    collect(&a, 1, ROWS);
    for (uint64_t seed = 2; seed < 6; seed++) {
        collect(&b, seed, ROWS);
        if (fabs(common(&a, &b) - due) > 5 * sqrt(due))
            fail_msg("seed %d: %d positions of seed 1, about %.0f are due", (int)seed, common(&a, &b), due);
        calibrate_collect_close(&b);
    }
    calibrate_collect_close(&a);
}

static void test_batches(void **state)
{
    static const int sizes[] = {1, 7, 50};
    calibrate_collection a, b;
    const size_t kept = (size_t)SLOTS * KV_HEADS * DIM;
    (void)state;
    collect(&a, 3, ROWS);
    for (int i = 0; i < 3; i++) {
        collect(&b, 3, sizes[i]);
        assert_memory_equal(a.pos, b.pos, SLOTS * sizeof *a.pos);
        for (int il = 0; il < LAYERS; il++) {
            assert_memory_equal(a.layer[il].q, b.layer[il].q, (size_t)SLOTS * Q_HEADS * DIM * sizeof *a.layer[il].q);
            if (il == SHARING) continue;
            assert_memory_equal(a.layer[il].k, b.layer[il].k, kept * sizeof *a.layer[il].k);
            assert_memory_equal(a.layer[il].v, b.layer[il].v, kept * sizeof *a.layer[il].v);
        }
        calibrate_collect_close(&b);
    }
    calibrate_collect_close(&a);
}

/* ---- whose rows --------------------------------------------------------------------------------------------------------------- */

static void slot_is(const calibrate_collection *c, int il, int s)
{
    const calibrate_layer *l = &c->layer[il];
    const int pos = c->pos[s], chunk = chunk_in(c, s);
    for (int d = 0; d < DIM; d++) {
        for (int h = 0; h < Q_HEADS; h++)
            assert_true(f32(l->q[((size_t)s * Q_HEADS + (size_t)h) * DIM + (size_t)d]) == q_at(il, pos, h, d));
        for (int h = 0; l->k && h < KV_HEADS; h++) {
            const size_t at = ((size_t)s * KV_HEADS + (size_t)h) * DIM + (size_t)d;
            assert_true(f32(l->k[at]) == k_at(il, chunk, pos, h, d));
            assert_true(f32(l->v[at]) == v_at(il, pos));
        }
    }
}

/* Queries, keys and values of a slot are of one position, which is the one that is noted; so are the keys that are ranked. */
static void test_rows_of_a_position(void **state)
{
    calibrate_collection c;
    (void)state;
    collect(&c, 5, 48);
    assert_null(c.layer[SHARING].k);
    for (int il = 0; il < LAYERS; il++)
        for (int s = 0; s < SLOTS; s++) slot_is(&c, il, s);
    for (int il = 0; il < LAYERS; il += 2)
        for (int pos = 0; pos < CHUNK; pos++)
            for (int h = 0; h < KV_HEADS; h++)
                for (int d = 0; d < DIM; d++)
                    assert_true(c.layer[il].keys[((size_t)h * DIM + (size_t)d) * CALIBRATE_RANK_MOST + (size_t)pos] ==
                                k_at(il, CHUNKS, pos, h, d));
    calibrate_collect_close(&c);
}

/* All scores are nearly equal, so each query gives 1 / (pos + 1) to each key before it: those of both layers that read the keys. */
static void test_weights_of_all_readers(void **state)
{
    calibrate_collection c;
    (void)state;
    collect(&c, 5, ROWS);
    for (int il = 0; il < LAYERS; il += 2) {
        double sum = 0;
        for (int pos = 0; pos < CHUNK; pos++) sum += c.layer[il].weight[pos];
        assert_true(fabs(sum - (il == 0 ? 2 : 1) * (Q_HEADS / KV_HEADS) * CHUNK) < 1e-6 * CHUNK);
    }
    calibrate_collect_close(&c);
}

/* ---- what is learnt ----------------------------------------------------------------------------------------------------------- */

static void learn(const calibrate_collection *c, int il, const char *list, calibrate_result *r)
{
    calibrate_books books;
    *r = (calibrate_result){.arrays = NULL};
    assert_int_equal(calibrate_books_parse(&books, list), CLI_GO);
    assert_int_equal(calibrate_learn(c, il, &books, 1, r), CLI_GO);
}

/* Channel 1 of the queries tells layers apart: layer 0's keys are read by its own and by those of the layer that shares them. */
static void test_queries_of_sharing_layers(void **state)
{
    calibrate_collection c;
    calibrate_result r;
    (void)state;
    collect(&c, 5, ROWS);
    learn(&c, 0, NULL, &r);
    for (int h = 0; h < KV_HEADS; h++) {
        const double both = sqrt((100.0 * 100 + 900.0 * 900) / 2);
        assert_true(fabs((double)r.learnt.q_rms[h * DIM + 1] - both) < 1e-3 * both);
    }
    calibrate_result_free(&r);
    learn(&c, 2, NULL, &r);
    assert_true(fabs((double)r.learnt.q_rms[1] - 100) < 0.1);
    calibrate_result_free(&r);
    calibrate_collect_close(&c);
}

/* Centroids of values are the two points that the layer's own values are. */
static void test_books_of_each_layer(void **state)
{
    calibrate_collection c;
    calibrate_result r;
    (void)state;
    collect(&c, 5, ROWS);
    for (int il = 0; il < LAYERS; il += 2) {
        bool below = false, above = false;
        learn(&c, il, "v4x1h", &r);
        for (int i = 0; i < KV_HEADS * 2 * 4; i++) {
            assert_true(fabs(fabs((double)r.book[0][i]) - 100 * (il + 1)) < 0.1);
            below |= r.book[0][i]<0, above |= r.book[0][i]> 0;
        }
        assert_true(below && above);
        calibrate_result_free(&r);
    }
    calibrate_collect_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_of_the_text),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_rows_of_a_position),
        cmocka_unit_test(test_weights_of_all_readers),
        cmocka_unit_test(test_queries_of_sharing_layers),
        cmocka_unit_test(test_books_of_each_layer),
    };
    return cmocka_run_group_tests_name("calibrate", tests, NULL, NULL);
}
