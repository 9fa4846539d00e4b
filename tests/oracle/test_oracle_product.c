/* SPDX-License-Identifier: MIT
 * Product codes against double precision: indices are those of the nearest centroids, records are bit streams with nothing left over,
 * keys go through centre, lambda and Hadamard and come back, and attention on packed codes is that over the rows that are stored. */
#include "../unit/books.h"
#include "../unit/codec_inputs.h"
#include "cache/cache.h"
#include "oracle_rotation.h"
#include "pair.h"

#include <stdio.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

/* ---- one record ---------------------------------------------------------------------------------------------------------------- */

typedef struct plan {
    int sub, bits, per_head, dim;
    const float *book;
    oracle_rotation rotation;
} plan;

/* The spec as its words say it, not as the library reads it. */
static plan read_plan(const char *spec, kvf_side side, int dim)
{
    static const struct {
        const char *name;
        int sub, bits;
    } named[] = {{"vecinfer1.25", 8, 10}, {"vecinfer1.5", 8, 12}, {"vecinfer1", 8, 8}, {"vecinfer2", 4, 8}};
    plan p = {.dim = dim, .per_head = strstr(spec, "per=head") != NULL};
    if (sscanf(spec, "vecinfer:sub=%d,bits=%d", &p.sub, &p.bits) != 2)
        for (int i = COUNT(named); i-- > 0;)
            if (!strncmp(spec, named[i].name, strlen(named[i].name))) p.sub = named[i].sub, p.bits = named[i].bits;
    if (!strncmp(spec, "vecinfer1.25", 12)) p.sub = 8, p.bits = 10;
    if (!strncmp(spec, "vecinfer1.5", 11)) p.sub = 8, p.bits = 12;
    p.book = tb_book(side, p.sub, p.bits, p.per_head ? 1 : -1);
    assert_non_null(p.book);
    assert_true(oracle_read_rotation("", side == KVF_K ? "h" : "none", dim, &p.rotation));
    return p;
}

/* Bit after bit: index t of sub-vector m starts at bit 64 m bits + t bits of the record, low bit first. */
static int index_at(const plan *p, const unsigned char *record, int m, int t)
{
    int index = 0;
    for (int b = 0; b < p->bits; b++) {
        const int at = 64 * m * p->bits + t * p->bits + b;
        index |= (record[at / 8] >> at % 8 & 1) << b;
    }
    return index;
}

static double distance(const plan *p, const double *x, int i)
{
    double sum = 0;
    for (int j = 0; j < p->sub; j++) sum += (x[j] - (double)p->book[i * p->sub + j]) * (x[j] - (double)p->book[i * p->sub + j]);
    return sum;
}

/* The index is the nearest; another one only where the distances are equal to within roundings: those of the transform, and of sub
 * differences, squares and sums in f32. */
static int check_index(const plan *p, const double *x, double peak, int got, const char *spec, int m, int t)
{
    double least = HUGE_VAL, second = HUGE_VAL;
    int best = 0;
    for (int i = 0; i < 1 << p->bits; i++) {
        const double d = distance(p, x, i);
        if (d < least)
            second = least, least = d, best = i;
        else if (d < second)
            second = d;
    }
    const double off = distance(p, x, got), moved = 20 * 0x1p-24 * peak;
    const double most = 2 * (p->sub + 3) * 0x1p-24 * off + 4 * moved * sqrt(p->sub) * sqrt(off) + p->sub * moved * moved;
    if (got != best && off - least > most)
        fail_msg("%s, %d channels, sub-vector %d of token %d: centroid %d is %g away, but %d is %g", spec, p->dim, m, t, got, off,
                 best, least);
    return got != best;
}

static void check_decoded(const plan *p, const unsigned char *record, int t, const float *y, double peak, const char *spec)
{
    double coded[CI_DIM_MAX], want[CI_DIM_MAX];
    for (int c = 0; c < p->dim; c++) coded[c] = (double)p->book[index_at(p, record, c / p->sub, t) * p->sub + c % p->sub];
    oracle_rotate_back(&p->rotation, coded, want);
    for (int c = 0; c < p->dim; c++)
        if (fabs((double)y[c] - want[c]) > 40 * 0x1p-24 * (peak + 8)) /* centroids here are below 6 */
            fail_msg("%s, %d channels, token %d, channel %d: %g instead of %g", spec, p->dim, t, c, (double)y[c], want[c]);
}

typedef struct counts {
    long indices, ties;
} counts;

static void one_record(const char *spec, kvf_side side, int dim, ci_kind kind, counts *n)
{
    const plan p = read_plan(spec, side, dim);
    kvf_spec_info info;
    assert_int_equal(kvf_spec_check(spec, side, dim, &info, NULL, 0), KVF_OK);
    const int used = 8 * p.bits * (dim / p.sub);
    assert_int_equal(info.block_bytes, (used + 63) / 64 * 64);
    float *x = ci_alloc((size_t)(CI_TOKENS * dim) * sizeof *x), *y = ci_alloc((size_t)(CI_TOKENS * dim) * sizeof *y);
    unsigned char *record = ci_alloc(info.block_bytes);
    memset(record, 0xa5, info.block_bytes);
    ci_fill(x, dim, kind, 31);
    assert_int_equal(tb_encode(spec, side, dim, x, record), KVF_OK);
    assert_int_equal(tb_decode(spec, side, dim, record, y), KVF_OK);
    for (int i = used; i < (int)info.block_bytes; i++) assert_int_equal(record[i], 0);
    for (int t = 0; t < CI_TOKENS; t++) {
        double row[CI_DIM_MAX], turned[CI_DIM_MAX], peak = 0;
        for (int c = 0; c < dim; c++) row[c] = (double)x[t * dim + c];
        oracle_rotate(&p.rotation, row, turned);
        for (int c = 0; c < dim && side == KVF_K; c++) peak = fmax(peak, fabs(turned[c]));
        for (int m = 0; m < dim / p.sub; m++)
            n->ties += check_index(&p, turned + m * p.sub, peak, index_at(&p, record, m, t), spec, m, t), n->indices++;
        check_decoded(&p, record, t, y + t * dim, peak, spec);
    }
    free(x), free(y), free(record);
}

static void all_inputs(const char *spec, kvf_side side, void *user)
{
    static const int dims[] = {64, 72, 80, 128, 256};
    if (!ci_product(spec)) return;
    for (int d = 0; d < COUNT(dims); d++)
        for (int kind = 0; kind < CI_KIND_COUNT; kind++)
            if (ci_fits(spec, dims[d]) && (ci_takes(spec, side, d, kind) || (dims[d] == 64 && kind == CI_GAUSS)))
                one_record(spec, side, dims[d], (ci_kind)kind, user);
}

static void test_records(void **state)
{
    (void)state;
    counts n = {0};
    ci_each_spec(all_inputs, &n);
    assert_true(n.indices > 100000);
    assert_true(n.ties * 1000 < n.indices); /* rounding decides rarely */
}

static void test_sizes(void **state)
{
    static const struct {
        const char *spec;
        double bits;
    } want[] = {{"vecinfer2", 2}, {"vecinfer1.5", 1.5}, {"vecinfer1.25", 1.25}, {"vecinfer1", 1}, {"vecinfer:sub=2,bits=6", 3}};
    (void)state;
    for (int i = 0; i < COUNT(want); i++)
        for (int dim = 64; dim <= 256; dim *= 2)
            for (int side = KVF_K; side <= KVF_V; side++) {
                kvf_spec_info info;
                assert_int_equal(kvf_spec_check(want[i].spec, (kvf_side)side, dim, &info, NULL, 0), KVF_OK);
                assert_true(info.bits_code == want[i].bits);
            }
}

/* ---- caches ------------------------------------------------------------------------------------------------------------------------ */

/* Second moments of queries as codes see them, with what the format adds to them; and whether they are fed back. */
typedef struct seen {
    int fed;
    double s[64][64];
} seen;

/* What sub-vector m of y is coded as: y less the errors there that, with those e before it, make e' s e least. */
static void target(const seen *by, const plan *p, const double *y, const double *e, int m, double *out)
{
    static double a[64][65];
    const int first = m * p->sub, n = p->dim - first;
    memcpy(out, y + first, (size_t)p->sub * sizeof *out);
    if (!by->fed) return;
    for (int i = 0; i < n; i++) {
        a[i][n] = 0;
        for (int j = 0; j < n; j++) a[i][j] = by->s[first + i][first + j];
        for (int j = 0; j < first; j++) a[i][n] += by->s[first + i][j] * e[j];
    }
    for (int k = 0; k < n; k++) /* Gauss and Jordan; s is positive */
        for (int i = 0; i < n; i++)
            for (int j = n; i != k && j >= k; j--) a[i][j] -= a[i][k] / a[k][k] * a[k][j];
    for (int j = 0; j < p->sub; j++) out[j] += a[j][n] / a[j][j];
}

/* A stored key, its stages undone on both sides, is made of the centroids nearest to the key that was given, or to its targets. Adds the mean
 * squares of what e does to a score. */
static void check_stored(pair *p, const tb_known *known, const plan *shape, const float *given, int head, int pos, const seen *by,
                         double *loss)
{
    const kvf_layer *l = &p->m.layers[0];
    const float *mean = known->layers[0].k_mean + head * l->k_dim, *lambda = known->layers[0].k_lambda + head * l->k_dim;
    double in[256], out[256], y[256], z[256], e[256], peak = 0;
    float stored[256];
    ts_ok(kvf_seq_read(p->c, 0, 0, KVF_K, head, pos, stored));
    for (int c = 0; c < l->k_dim; c++) {
        in[c] = ((double)given[c] - (double)mean[c]) / (double)lambda[c];
        out[c] = ((double)stored[c] - (double)mean[c]) / (double)lambda[c];
    }
    oracle_rotate(&shape->rotation, in, y);
    oracle_rotate(&shape->rotation, out, z);
    for (int c = 0; c < l->k_dim; c++) peak = fmax(peak, fabs(y[c]));
    for (int m = 0; m < l->k_dim / shape->sub; m++) {
        int same = -1;
        for (int i = 0; i < 1 << shape->bits && same < 0; i++) {
            double off = 0;
            for (int j = 0; j < shape->sub; j++)
                off = fmax(off, fabs(z[m * shape->sub + j] - (double)shape->book[i * shape->sub + j]));
            if (off < 1e-4) same = i;
        }
        if (same < 0) fail_msg("head %d, position %d: sub-vector %d of the stored key is no centroid", head, pos, m);
        double goal[8];
        target(by, shape, y, e, m, goal);
        check_index(shape, goal, by->fed ? 8 * (peak + 8) : peak + 8, same, p->m.params.k, m, pos);
        for (int j = 0, c = m * shape->sub; j < shape->sub; j++, c++) e[c] = y[c] - (double)shape->book[same * shape->sub + j];
    }
    for (int i = 0; loss && i < shape->dim; i++)
        for (int j = 0; j < shape->dim; j++) *loss += e[i] * by->s[i][j] * e[j];
}

static void test_stages_of_keys(void **state)
{
    static const char *const specs[] = {"vecinfer2", "vecinfer1.5", "vecinfer2:per=head"};
    (void)state;
    for (int i = 0; i < COUNT(specs); i++) {
        pair p = {0};
        ts_row rows[200];
        ts_model_init(&p.m, 1, 6, 2, 64, 64, specs[i], "f16");
        tb_known *known = tb_know(&p.m, 1);
        ts_rows(rows, COUNT(rows), 0, 1, 0);
        pair_open(&p);
        pair_feed(&p, rows, COUNT(rows), COUNT(rows), NULL, 0);
        ts_batch *b = ts_batch_new(&p.m, rows, COUNT(rows), NULL);
        for (int head = 0; head < 2; head++) {
            plan shape = read_plan(specs[i], KVF_K, 64);
            if (shape.per_head) shape.book = tb_book(KVF_K, shape.sub, shape.bits, head);
            for (int pos = 4; pos < 128; pos++)
                check_stored(&p, known, &shape, b->k[0].plain + (pos * 2 + head) * 64, head, pos, &(seen){0}, NULL);
        }
        ts_batch_free(b);
        pair_close(&p);
        tb_forget(known);
    }
}

/* moment[64][64] of queries near three directions, and what becomes of it: H lambda (moment) lambda H and a quarter of its mean eigenvalue. */
static void make_seen(const plan *shape, const float *lambda, uint64_t seed, float *moment, seen *by)
{
    double u[3][64], turned[64], trace = 0;
    for (int r = 0; r < 3; r++)
        for (int d = 0; d < 64; d++) u[r][d] = 2 * ci_gauss(&seed);
    for (int i = 0; i < 64 * 64; i++) {
        double sum = i / 64 == i % 64;
        for (int r = 0; r < 3; r++) sum += u[r][i / 64] * u[r][i % 64];
        moment[i] = (float)sum;
    }
    for (int i = 0; i < 64; i++) {
        for (int j = 0; j < 64; j++) turned[j] = (double)moment[i * 64 + j] * (double)lambda[i] * (double)lambda[j];
        oracle_rotate(&shape->rotation, turned, by->s[i]);
    }
    for (int j = 0; j < 64; j++) {
        double column[64];
        for (int i = 0; i < 64; i++) column[i] = by->s[i][j];
        oracle_rotate(&shape->rotation, column, turned);
        for (int i = 0; i < 64; i++) by->s[i][j] = turned[i];
        trace += turned[j];
    }
    for (int i = 0; i < 64; i++) by->s[i][i] += 0.25 * trace / 64;
}

/* Loss of the keys of a cache that is told moments[2][64][64], of which by[2] are made. */
static double loss_with(const char *spec, const float *moments, const seen *by)
{
    pair p = {0};
    ts_row rows[200];
    double loss = 0;
    ts_model_init(&p.m, 1, 6, 2, 64, 64, spec, "f16");
    tb_known *known = tb_know(&p.m, 1);
    known->layers[0].q_moment = moments;
    ts_rows(rows, COUNT(rows), 0, 1, 0);
    pair_open(&p);
    pair_feed(&p, rows, COUNT(rows), COUNT(rows), NULL, 0);
    ts_batch *b = ts_batch_new(&p.m, rows, COUNT(rows), NULL);
    for (int head = 0; head < 2; head++) {
        plan shape = read_plan(spec, KVF_K, 64);
        if (shape.per_head) shape.book = tb_book(KVF_K, shape.sub, shape.bits, head);
        for (int pos = 4; pos < 128; pos += 5)
            check_stored(&p, known, &shape, b->k[0].plain + (pos * 2 + head) * 64, head, pos, &by[head], &loss);
    }
    ts_batch_free(b);
    pair_close(&p);
    tb_forget(known);
    return loss;
}

/* Keys are coded by targets where moments are known, unless that is not wanted; and it is good for the scores. */
static void test_feedback(void **state)
{
    static const char *const specs[][2] = {{"vecinfer2", "vecinfer2:feedback=none"},
                                           {"vecinfer2:per=head", "vecinfer2:per=head,feedback=none"},
                                           {"vecinfer1.5", "vecinfer1.5:feedback=none"}};
    (void)state;
    for (int i = 0; i < COUNT(specs); i++) {
        ts_model m;
        static float moments[2][64 * 64];
        static seen by[2];
        const plan shape = read_plan(specs[i][0], KVF_K, 64);
        ts_model_init(&m, 1, 6, 2, 64, 64, specs[i][0], "f16");
        tb_known *known = tb_know(&m, 1); /* the same lambda each time */
        for (int h = 0; h < 2; h++) make_seen(&shape, known->layers[0].k_lambda + h * 64, 7 + (uint64_t)h, moments[h], &by[h]);
        tb_forget(known);
        by[0].fed = by[1].fed = 1;
        const double with = loss_with(specs[i][0], moments[0], by);
        by[0].fed = by[1].fed = 0;
        const double without = loss_with(specs[i][1], moments[0], by);
        if (with > 0.7 * without) fail_msg("%s: loss %g, without feedback %g", specs[i][0], with, without);
    }
}

static const int aims[] = {0, 1, 2, 63, 64, 65, 128, -1};

/* One or eight rows (packed codes, and tiles) after `history` rows: causal, all rows of the batch, and with a window of the layer. */
static void attend_after(pair *p, int history)
{
    const ts_how causal = {.point_at = aims}, all = {.mask = KVF_F32, .see_all = 1};
    pair_grow(p, 0, 1, history - oracle_pos_max(p->o, 0) - 1, 512);
    if (history) pair_see_stored(p, 0);
    for (int n = 1; n <= 8; n += 7) {
        pair_next(p, 0, 1, n, &causal);
        pair_next(p, 0, 1, n, &all);
    }
}

static void histories(const char *k, const char *v, int q_heads, int kv_heads, int dim, int window, int longest)
{
    static const int at[] = {0, 1, 2, 200, 4096};
    pair p = {0};
    ts_model_init(&p.m, 1, q_heads, kv_heads, dim, dim, k, v);
    p.m.layers[0].window = window;
    tb_known *known = tb_know(&p.m, 1);
    pair_open(&p);
    for (int i = 0; i < COUNT(at) && at[i] <= longest; i++) attend_after(&p, at[i]);
    pair_close(&p);
    tb_forget(known);
}

static void test_attention(void **state)
{
    (void)state;
    histories("vecinfer2", "vecinfer2", 32, 8, 64, 0, 4096);
    histories("vecinfer2", "vecinfer2", 32, 8, 64, 64, 200);
    histories("vecinfer2", "vecinfer1", 9, 3, 64, 0, 200);
    histories("vecinfer1.5", "vecinfer1.25", 7, 1, 72, 0, 200);
    histories("vecinfer1", "vecinfer1.5", 8, 2, 256, 0, 200);
    histories("vecinfer:sub=2,bits=5", "vecinfer:sub=2,bits=5", 4, 1, 96, 64, 200);
    histories("vecinfer2:per=head", "vecinfer2:per=head", 12, 4, 128, 0, 200);
    histories("vecinfer2", "vecinfer2", 4, 4, 64, 0, 200); /* every query head reads a KV head of its own */
    histories("vecinfer2:per=head", "vecinfer1", 14, 2, 64, 0, 200);
}

static void test_refusals(void **state)
{
    kvf_cache *c = NULL;
    ts_model m;
    (void)state;
    ts_model_init(&m, 2, 4, 2, 64, 64, "vecinfer2", "f16");
    assert_int_equal(ts_try(&m, &c), KVF_E_UNSUPPORTED);
    assert_non_null(strstr(m.error, "layer 0, keys"));
    assert_non_null(strstr(m.error, "`kvfold calibrate --codebooks 4x8`"));
    assert_true(ts_bytes(&m, 100) < 0);
    ts_model_init(&m, 2, 4, 2, 64, 64, "f16", "vecinfer:sub=8,bits=7");
    tb_known *known = tb_know(&m, 0);
    assert_int_equal(ts_try(&m, &c), KVF_E_UNSUPPORTED); /* there are books, but none of that geometry */
    assert_non_null(strstr(m.error, "values"));
    assert_non_null(strstr(m.error, "`kvfold calibrate --codebooks 8x7`"));
    m.params.k = "vecinfer2", m.params.v = "f16";
    known->layers[1].k_lambda = NULL;
    assert_int_equal(ts_try(&m, &c), KVF_E_UNSUPPORTED);
    assert_non_null(strstr(m.error, "k_lambda"));
    m.params.k = "vecinfer2:feedback=query";
    assert_int_equal(ts_try(&m, &c), KVF_E_UNSUPPORTED);
    assert_non_null(strstr(m.error, "needs q_moment of a calibration file"));
    tb_forget(known);
}

/* Codebooks that codecs use are counted, others not kept; and the estimate is what is used. */
static void test_bytes(void **state)
{
    ts_model m;
    (void)state;
    ts_model_init(&m, 2, 4, 2, 64, 64, "vecinfer1.5", "vecinfer2");
    tb_known *known = tb_know(&m, 1);
    kvf_cache *c = ts_create(&m);
    ts_grow(c, &m, 0, 1, 700, 100);
    kvf_stats_t s = {.size = sizeof s};
    ts_ok(kvf_stats(c, &s));
    assert_int_equal(s.accounted, ts_bytes(&m, 700));
    assert_true(s.bits_code_k == 1.5 && s.bits_code_v == 2);
    for (int i = 0; i < 2; i++) {
        assert_true(c->g.stores[i].k.sub == 8 && c->g.stores[i].k.bits == 12);
        assert_true(c->g.stores[i].v.sub == 4 && c->g.stores[i].v.bits == 8);
    }
    assert_int_equal(c->g.books_bytes, 2 * ((8 << 12) + (4 << 8)) * sizeof(float));
    assert_in_range(c->g.calibration.bytes, 1, 2 * (2 * 2 * 64 * sizeof(float) + 1024)); /* mean and lambda of 2 x 64 channels */
    kvf_cache_free(&c);
    static float moments[2][64 * 64];
    const int64_t plain = ts_bytes(&m, 0);
    known->layers[1].q_moment = moments[0]; /* half of 64 x 56 factors a head, and nothing for codecs that do not ask */
    assert_int_equal(ts_bytes(&m, 0) - plain, 2 * 64 * 56 / 2 * 4);
    m.params.k = "vecinfer1.5:feedback=none";
    assert_int_equal(ts_bytes(&m, 0), plain);
    tb_forget(known);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records),  cmocka_unit_test(test_sizes),     cmocka_unit_test(test_stages_of_keys),
        cmocka_unit_test(test_feedback), cmocka_unit_test(test_attention), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bytes),
    };
    return ts_on_every_cpu("oracle_product", tests, sizeof tests / sizeof *tests);
}
