/* SPDX-License-Identifier: MIT
 * What is learnt from samples: mean before RoPE, spreads, smoothing, directions of queries, codebooks. Heads are synthetic, with what is to
 * be found planted; the rules that do not find it are kept here, as they are the reason for the one that does. */
#include "../oracle/oracle_self.h"
#include "calib/direction.h"
#include "kvfold_calibration.h"
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 64, N = 3000, GROUP = 3, HEADS = 2 };

static double gauss(uint64_t key)
{
    uint64_t h = ts_mix(key);
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += (double)(h >> (16 * i) & 0xFFFF) / 65536.0;
    return (sum - 2.0) * 1.7320508;
}

static double cosine(const float *a, const double *b, int n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int i = 0; i < n; i++) ab += (double)a[i] * b[i], aa += (double)a[i] * (double)a[i], bb += b[i] * b[i];
    return ab / sqrt(aa * bb);
}

static void unit(uint64_t seed, double *x)
{
    double length = 0;
    for (int d = 0; d < DIM; d++) x[d] = gauss(seed + (uint64_t)d), length += x[d] * x[d];
    for (int d = 0; d < DIM; d++) x[d] /= sqrt(length);
}

/* ---- a direction ---- */

typedef struct cloud {
    float x[N][DIM];
    double u[DIM], work[DIM * DIM + 2 * DIM], found[DIM];
} cloud;

/* Queries: drift of size `drift` along u (its sign flips with `flip` of them), and noise that is `wide` times stronger on channel 5. */
static cloud *make_cloud(uint64_t seed, double drift, double wide)
{
    cloud *c = calloc(1, sizeof *c);
    unit(seed, c->u);
    for (int i = 0; i < N; i++)
        for (int d = 0; d < DIM; d++) {
            const uint64_t key = ts_mix(seed + 1000003u * (uint64_t)i) + (uint64_t)d;
            c->x[i][d] =
                (float)(drift * (1 + 0.3 * gauss(ts_mix(seed ^ (uint64_t)i))) * c->u[d] + gauss(key) * (d == 5 ? wide : 1));
        }
    return c;
}

static double found_cosine(const cloud *c)
{
    float f[DIM];
    for (int d = 0; d < DIM; d++) f[d] = (float)c->found[d];
    return cosine(f, c->u, DIM);
}

static void test_planted_drift_is_found_with_its_sign(void **state)
{
    static const double drift[] = {3, -3, 6};
    (void)state;
    for (int i = 0; i < 3; i++) {
        cloud *c = make_cloud(77 + (uint64_t)i, drift[i], 2);
        const double share = kvfi_direction(c->x[0], N, DIM, c->work, c->found), sign = drift[i] > 0 ? 1 : -1;
        if (!(found_cosine(c) * sign > 0.99)) fail_msg("cosine %g", found_cosine(c));
        assert_true(share > 0.9);
        double length = 0;
        for (int d = 0; d < DIM; d++) length += c->found[d] * c->found[d];
        assert_true(fabs(length - 1) < 1e-12);
        free(c);
    }
}

/* Why queries are not centred: the drift is their mean. What is left has its largest spread elsewhere. */
static void test_centring_loses_the_drift(void **state)
{
    (void)state;
    cloud *c = make_cloud(77, 3, 2);
    for (int d = 0; d < DIM; d++) {
        double mean = 0;
        for (int i = 0; i < N; i++) mean += (double)c->x[i][d] / N;
        for (int i = 0; i < N; i++) c->x[i][d] -= (float)mean;
    }
    kvfi_direction(c->x[0], N, DIM, c->work, c->found);
    assert_true(fabs(found_cosine(c)) < 0.5);
    assert_true(fabs(c->found[5]) > 0.9);
    free(c);
}

static void test_rows_without_direction(void **state)
{
    (void)state;
    cloud *c = calloc(1, sizeof *c);
    assert_true(kvfi_direction(c->x[0], N, DIM, c->work, c->found) == 0.5);
    for (int d = 0; d < DIM; d++) assert_true(c->found[d] == 0);
    for (int i = 0; i < N; i++) c->x[i][9] = i % 2 ? 1 : -1; /* mean 0, one axis */
    const double share = kvfi_direction(c->x[0], N, DIM, c->work, c->found);
    assert_true(fabs(c->found[9]) > 1 - 1e-12 && share == 0.5);
    c->x[0][9] = 0, c->x[0][3] = -2; /* a single row is its own direction */
    kvfi_direction(c->x[0], 1, DIM, c->work, c->found);
    assert_true(fabs(c->found[3] + 1) < 1e-12);
    free(c);
}

/* ---- a layer ---- */

typedef struct layer {
    kvf_samples s;
    int32_t pos[N];
    double freq[DIM / 2], mean[HEADS][DIM], u[HEADS][GROUP][DIM];
    float q[HEADS][GROUP][N][DIM], k[HEADS][N][DIM], v[HEADS][N][DIM];
    float k_mean[HEADS][DIM], k_rms[HEADS][DIM], q_rms[HEADS][DIM], lambda[HEADS][DIM], direction[HEADS][DIM], k_max[HEADS][DIM],
        k_direction[HEADS][DIM], one_sided[HEADS], moment[HEADS][DIM][DIM];
    kvf_learnt out;
    char error[300];
} layer;

/* Keys R_pos (mean + noise), with a strong axis of their own that has nothing to do with where queries drift. */
static void make_row(layer *l, const oracle_rope *rope, int h, int i)
{
    double x[DIM], along = 4 * gauss(ts_mix((uint64_t)(h * N + i)) + 17);
    for (int d = 0; d < DIM; d++) {
        const uint64_t key = ts_mix((uint64_t)(h * N + i)) + (uint64_t)d;
        x[d] = l->mean[h][d] + gauss(key) * (1 + d % 4);
        l->v[h][i][d] = (float)gauss(key + 99);
        for (int g = 0; g < GROUP; g++)
            l->q[h][g][i][d] = (float)(4 * l->u[h][g][d] + 0.5 * gauss(key + 7000 + 64 * (uint64_t)g));
    }
    oracle_turn(rope, DIM, x, l->pos[i], x);
    for (int d = 0; d < DIM; d++) l->k[h][i][d] = (float)(x[d] + (d == 63 ? 8 + along : 0));
}

static layer *make_layer(void)
{
    layer *l = calloc(1, sizeof *l);
    const oracle_rope rope = {DIM, 1, l->freq};
    for (int i = 0; i < DIM / 2; i++) l->freq[i] = pow(10000, -2.0 * i / DIM);
    for (int i = 0; i < N; i++) l->pos[i] = 4 + (int)(ts_mix((uint64_t)i) % 2000);
    for (int h = 0; h < HEADS; h++) {
        for (int g = 0; g < GROUP; g++) unit(500 + 10 * (uint64_t)h + (uint64_t)g, l->u[h][g]);
        for (int d = 0; d < DIM; d++) l->mean[h][d] = 2 * gauss(900 + 64 * (uint64_t)h + (uint64_t)d);
        for (int i = 0; i < N; i++) make_row(l, &rope, h, i);
    }
    l->s = (kvf_samples){.size = sizeof l->s, .kv_heads = HEADS, .group = GROUP, .k_dim = DIM, .v_dim = DIM, .rope_dims = DIM};
    l->s.rope_style = KVF_ROPE_NEOX, l->s.rope_freq = l->freq, l->s.n = N, l->s.pos = l->pos;
    l->s.q = l->q[0][0][0], l->s.k = l->k[0][0], l->s.v = l->v[0][0];
    l->out = (kvf_learnt){.size = sizeof l->out, .k_mean = l->k_mean[0], .k_rms = l->k_rms[0], .q_rms = l->q_rms[0]};
    l->out.k_lambda = l->lambda[0], l->out.q_direction = l->direction[0], l->out.k_max = l->k_max[0];
    l->out.k_direction = l->k_direction[0], l->out.one_sided = l->one_sided, l->out.q_moment = l->moment[0][0];
    return l;
}

static void learn(layer *l)
{
    const int rc = kvf_calibrate_layer(&l->s, &l->out, l->error, sizeof l->error);
    if (rc) fail_msg("%d, %s", rc, l->error);
}

/* The centre that is subtracted from position p: the average over its segment, by the definition. */
static void centre_of(const layer *l, int h, int pos, double *centre)
{
    const oracle_rope rope = {DIM, 1, l->freq};
    double m[DIM], c0[DIM] = {0}, turned[DIM];
    for (int d = 0; d < DIM; d++) m[d] = (double)l->k_mean[h][d];
    for (int j = 0; j < 512; j++) {
        oracle_turn(&rope, DIM, m, j, turned);
        for (int d = 0; d < DIM; d++) c0[d] += turned[d] / 512;
    }
    oracle_centre(&rope, DIM, c0, pos / 512, centre);
}

static void test_mean_and_spreads(void **state)
{
    (void)state;
    layer *l = make_layer();
    const oracle_rope rope = {DIM, 1, l->freq};
    learn(l);
    assert_int_equal(l->out.turns, 1);
    for (int h = 0; h < HEADS; h++) {
        double mean[DIM] = {0}, square[DIM] = {0}, largest[DIM] = {0}, q[DIM] = {0}, x[DIM], centre[DIM];
        for (int i = 0; i < N; i++) {
            for (int d = 0; d < DIM; d++) x[d] = (double)l->k[h][i][d];
            oracle_turn(&rope, DIM, x, -l->pos[i], x);
            for (int d = 0; d < DIM; d++) mean[d] += x[d] / N;
        }
        for (int i = 0; i < N; i++) {
            centre_of(l, h, l->pos[i], centre);
            for (int d = 0; d < DIM; d++) {
                const double less = (double)l->k[h][i][d] - centre[d];
                square[d] += less * less / N, largest[d] = fmax(largest[d], fabs(less));
                for (int g = 0; g < GROUP; g++) q[d] += pow((double)l->q[h][g][i][d], 2) / (N * GROUP);
            }
        }
        for (int d = 0; d < DIM; d++) {
            const int pair = d < DIM / 2 ? d + DIM / 2 : d - DIM / 2;
            const double lambda = sqrt(fmax(largest[d], largest[pair]));
            if (fabs(l->k_mean[h][d] - mean[d]) > 1e-5 || fabs(l->k_rms[h][d] - sqrt(square[d])) > 1e-5 ||
                fabs(l->k_max[h][d] - largest[d]) > 1e-5 || fabs(l->q_rms[h][d] - sqrt(q[d])) > 1e-5 ||
                fabs(l->lambda[h][d] - lambda) > 1e-5)
                fail_msg("head %d, channel %d: mean %g %g, rms %g %g, max %g %g, query %g %g, lambda %g %g", h, d,
                         (double)l->k_mean[h][d], mean[d], (double)l->k_rms[h][d], sqrt(square[d]), (double)l->k_max[h][d],
                         largest[d], (double)l->q_rms[h][d], sqrt(q[d]), (double)l->lambda[h][d], lambda);
        }
    }
    free(l);
}

static void test_moment_of_queries(void **state)
{
    (void)state;
    layer *l = make_layer();
    learn(l);
    for (int h = 0; h < HEADS; h++)
        for (int a = 0; a < DIM; a += 7)
            for (int b = 0; b < DIM; b++) {
                double want = 0;
                for (int g = 0; g < GROUP; g++)
                    for (int i = 0; i < N; i++) want += (double)l->q[h][g][i][a] * (double)l->q[h][g][i][b] / (GROUP * N);
                if (fabs((double)l->moment[h][a][b] - want) > 1e-5)
                    fail_msg("head %d: %d, %d is %g, not %g", h, a, b, (double)l->moment[h][a][b], want);
                assert_true(l->moment[h][a][b] == l->moment[h][b][a]);
            }
    free(l);
}

/* The mean over the group of unit vectors, shorter than 1 where its heads disagree. Keys alone point elsewhere. */
static void test_direction_of_a_group(void **state)
{
    (void)state;
    layer *l = make_layer();
    learn(l);
    for (int h = 0; h < HEADS; h++) {
        double mean[DIM] = {0}, length = 0, want = 0;
        for (int d = 0; d < DIM; d++) {
            for (int g = 0; g < GROUP; g++) mean[d] += l->u[h][g][d] / GROUP;
            length += (double)l->direction[h][d] * (double)l->direction[h][d], want += mean[d] * mean[d];
        }
        assert_true(cosine(l->direction[h], mean, DIM) > 0.99);
        assert_true(fabs(sqrt(length) - sqrt(want)) < 0.02 && length < 0.9);
        assert_true(fabs(cosine(l->k_direction[h], mean, DIM)) < 0.5);
        assert_true(l->one_sided[h] > 0.99f);
    }
    free(l);
}

/* Keys that do not turn as described are noticed, and nothing breaks on channels that never move or on zeros. */
static void test_odd_inputs(void **state)
{
    (void)state;
    layer *l = make_layer();
    for (int i = 0; i < N; i++)
        for (int d = 0; d < DIM; d++)
            l->k[0][i][d] = l->k[1][i][d] = (float)(l->mean[0][d] + 0.1 * gauss((uint64_t)(i * DIM + d)));
    learn(l);
    assert_int_equal(l->out.turns, 0);
    l->s.rope_style = KVF_ROPE_UNKNOWN;
    learn(l);
    assert_int_equal(l->out.turns, 0);
    l->s.rope_style = KVF_ROPE_NEOX;
    memset(l->k, 0, sizeof l->k), memset(l->q, 0, sizeof l->q);
    learn(l);
    for (int d = 0; d < DIM; d++) {
        assert_true(l->lambda[1][d] == 1 && l->k_rms[1][d] == 0 && l->q_rms[1][d] == 0 && l->direction[1][d] == 0);
        assert_true(l->k_mean[0][d] == 0 && l->k_max[0][d] == 0);
    }
    for (int i = 0; i < N; i++)
        l->k[0][i][7] = 3, l->k[0][i][8] = (float)gauss((uint64_t)i); /* constant as cached, not before RoPE */
    l->s.n = 1;
    learn(l);
    for (int d = 0; d < DIM; d++) assert_true(isfinite(l->k_mean[0][d]) && l->lambda[0][d] > 0);
    free(l);
}

static void test_refusals(void **state)
{
    (void)state;
    layer *l = make_layer();
    l->k[1][5][3] = NAN;
    assert_int_equal(kvf_calibrate_layer(&l->s, &l->out, l->error, sizeof l->error), KVF_E_NONFINITE);
    assert_non_null(strstr(l->error, "keys"));
    l->k[1][5][3] = 0, l->v[0][0][0] = INFINITY;
    assert_int_equal(kvf_calibrate_layer(&l->s, &l->out, l->error, sizeof l->error), KVF_E_NONFINITE);
    l->v[0][0][0] = 0, l->s.n = 0;
    assert_int_equal(kvf_calibrate_layer(&l->s, &l->out, l->error, sizeof l->error), KVF_E_ARG);
    assert_non_null(strstr(l->error, "0 positions"));
    l->s.n = N, l->s.rope_dims = 63;
    assert_int_equal(kvf_calibrate_layer(&l->s, &l->out, NULL, 0), KVF_E_ARG);
    l->s.rope_dims = DIM, l->pos[9] = -1;
    assert_int_equal(kvf_calibrate_layer(&l->s, &l->out, NULL, 0), KVF_E_ARG);
    l->pos[9] = 9, l->s.size = 1;
    assert_int_equal(kvf_calibrate_layer(&l->s, &l->out, NULL, 0), KVF_E_VERSION);
    assert_int_equal(kvf_calibrate_layer(NULL, &l->out, NULL, 0), KVF_E_ARG);
    free(l);
}

/* ---- codebooks ---- */

/* Values of only four different sub-vectors a head: their own table has each, whatever the other head has. */
static void test_codebooks_hold_what_there_is(void **state)
{
    static float one[HEADS][16][4], all[256][4];
    (void)state;
    layer *l = make_layer();
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < N; i++)
            for (int d = 0; d < DIM; d++) l->v[h][i][d] = (float)(1 + h * 10 + (i + d / 4) % 4);
    kvf_codebook b = {.side = KVF_V, .sub = 4, .bits = 4, .heads = HEADS};
    ts_ok(kvf_calibrate_codebook(&l->s, &b, NULL, NULL, 1, one[0][0], l->error, sizeof l->error));
    for (int h = 0; h < HEADS; h++)
        for (int want = 0; want < 4; want++) {
            int seen = 0;
            for (int c = 0; c < 16; c++) seen |= fabsf(one[h][c][2] - (float)(1 + h * 10 + want)) < 1e-5f;
            if (!seen) fail_msg("head %d: no centroid at %d", h, 1 + h * 10 + want);
        }
    learn(l);
    b = (kvf_codebook){.side = KVF_K, .sub = 4, .bits = 8, .heads = 1};
    ts_ok(kvf_calibrate_codebook(&l->s, &b, l->k_mean[0], l->lambda[0], 1, all[0], l->error, sizeof l->error));
    double mean = 0, square = 0;
    for (int c = 0; c < 256; c++)
        for (int d = 0; d < 4; d++) mean += (double)all[c][d] / 1024, square += pow((double)all[c][d], 2) / 1024;
    assert_true(isfinite(square) && square > 0.05 && fabs(mean) < 0.3 * sqrt(square)); /* centred, divided */
    b.sub = 3;
    assert_int_equal(kvf_calibrate_codebook(&l->s, &b, NULL, NULL, 1, all[0], l->error, sizeof l->error), KVF_E_ARG);
    l->s.n = 2; /* fewer samples than centroids */
    b = (kvf_codebook){.side = KVF_K, .sub = 8, .bits = 8, .heads = 1};
    ts_ok(kvf_calibrate_codebook(&l->s, &b, NULL, NULL, 1, (float[256 * 8]){0}, l->error, sizeof l->error));
    free(l);
}

/* Keys whose rotation is not known are coded less the mean of their block, so books are trained on keys less their mean: a mean that is
 * given by hand makes the same book. Where rotation is known, none given is none taken off. */
static void test_books_where_rotation_is_unknown(void **state)
{
    static float by_hand[256][4], alone[256][4], plain[256][4];
    (void)state;
    layer *l = make_layer();
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < N; i++)
            for (int d = 0; d < DIM; d++) l->k[h][i][d] += (float)(10 + d % 3);
    l->s.rope_style = KVF_ROPE_UNKNOWN;
    learn(l);
    assert_int_equal(l->out.turns, 0);
    const kvf_codebook b = {.side = KVF_K, .sub = 4, .bits = 8, .heads = 1};
    ts_ok(kvf_calibrate_codebook(&l->s, &b, l->k_mean[0], l->lambda[0], 1, by_hand[0], l->error, sizeof l->error));
    ts_ok(kvf_calibrate_codebook(&l->s, &b, NULL, l->lambda[0], 1, alone[0], l->error, sizeof l->error));
    double mean = 0;
    for (int c = 0; c < 256; c++)
        for (int d = 0; d < 4; d++) {
            assert_true(fabsf(by_hand[c][d] - alone[c][d]) < 0.02f);
            mean += (double)alone[c][d] / 1024;
        }
    assert_true(fabs(mean) < 0.3);
    l->s.rope_style = KVF_ROPE_NEOX;
    ts_ok(kvf_calibrate_codebook(&l->s, &b, NULL, l->lambda[0], 1, plain[0], l->error, sizeof l->error));
    assert_memory_not_equal(plain, alone, sizeof alone);
    free(l);
}

/* What a book of keys needs is looked at by head and channel; every failure has a sentence. */
static void test_books_refused(void **state)
{
    static float book[256][4];
    (void)state;
    layer *l = make_layer();
    learn(l);
    const kvf_codebook b = {.side = KVF_K, .sub = 4, .bits = 8, .heads = 1};
    l->lambda[1][7] = 0;
    assert_int_equal(kvf_calibrate_codebook(&l->s, &b, NULL, l->lambda[0], 1, book[0], l->error, sizeof l->error), KVF_E_ARG);
    assert_string_equal(l->error, "calibrate: k_lambda of head 1 is 0 at channel 7; it must be finite and above 0");
    l->lambda[1][7] = 1e-30f; /* divided by that, keys are beyond what k-means takes */
    assert_int_equal(kvf_calibrate_codebook(&l->s, &b, NULL, l->lambda[0], 1, book[0], l->error, sizeof l->error),
                     KVF_E_NONFINITE);
    assert_non_null(strstr(l->error, "codebook of 4 channels x 8 bits for keys"));
    const kvf_codebook wide = {.side = KVF_V, .sub = 8, .bits = 4, .heads = 1};
    l->s.v_dim = 60;
    assert_int_equal(kvf_calibrate_codebook(&l->s, &wide, NULL, NULL, 1, book[0], l->error, sizeof l->error), KVF_E_UNSUPPORTED);
    assert_string_equal(l->error, "calibrate: heads of 60 channels cannot be cut into sub-vectors of 8");
    l->s.v_dim = DIM;
    l->k_mean[0][3] = NAN;
    assert_int_equal(kvf_calibrate_codebook(&l->s, &b, l->k_mean[0], NULL, 1, book[0], l->error, sizeof l->error),
                     KVF_E_NONFINITE);
    assert_non_null(strstr(l->error, "k_mean of head 0 is nan at channel 3"));
    free(l);
}

/* Positions far from 0 cost no more than near ones, and the segments between them no memory; a mean turns on as it should. */
static void test_far_positions(void **state)
{
    (void)state;
    layer *l = make_layer();
    float near[HEADS][DIM];
    learn(l);
    memcpy(near, l->k_rms, sizeof near);
    for (int i = 0; i < N; i++) l->pos[i] += 1 << 30;
    const oracle_rope rope = {DIM, 1, l->freq};
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < N; i++) make_row(l, &rope, h, i);
    learn(l);
    for (int h = 0; h < HEADS; h++)
        for (int d = 0; d < DIM; d++) assert_true(fabsf(l->k_rms[h][d] - near[h][d]) < 0.2f * near[h][d]);
    free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planted_drift_is_found_with_its_sign),
        cmocka_unit_test(test_centring_loses_the_drift),
        cmocka_unit_test(test_rows_without_direction),
        cmocka_unit_test(test_moment_of_queries),
        cmocka_unit_test(test_mean_and_spreads),
        cmocka_unit_test(test_books_where_rotation_is_unknown),
        cmocka_unit_test(test_books_refused),
        cmocka_unit_test(test_far_positions),
        cmocka_unit_test(test_direction_of_a_group),
        cmocka_unit_test(test_odd_inputs),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_codebooks_hold_what_there_is),
    };
    return cmocka_run_group_tests_name("calibrate", tests, NULL, NULL);
}
