/* SPDX-License-Identifier: MIT
 * Trellis codes: levels that are centroids, the error on normal vectors, norm rules, odd vectors, kernels against definitions.
 * `test_trellis fit` makes the levels anew: a new src/codec/tcq/levels.def on standard output. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "base/half.h"
#include "codec/codec.h"
#include "codec/shared/codebook.h"
#include "codec/shared/part.h"
#include "codec/tcq/viterbi.h"
#include "codec_inputs.h"
#include "cpu/isa.h"
#include "gpu/kernels/trellis.h"
#include "statistics.h"

enum { STATES = KVFI_TRELLIS_STATES, LANES = KVFI_TRELLIS_LANES };

/* ---- levels ---------------------------------------------------------------------------------------------------------------- */

enum { CHANNELS = 128, SEEDS = 3, ROUNDS = 30, LESSONS = 100 };

static kvfi_kernels kernels;

/* What falls to the states: normal numbers on their best paths. s and 255 - s are taken together. */
typedef struct cells {
    double sum[STATES / 2], square[STATES / 2], miss;
    long n[STATES / 2], all;
} cells;

/* Numbers are drawn, and sums added up, for 4 lanes after 4: that is how the levels were made. */
#define EACH_NUMBER                                                                                                              \
    for (int f = 0; f < LANES; f += 4)                                                                                           \
        for (int d = 0; d < CHANNELS; d++)                                                                                       \
            for (int i = f; i < f + 4; i++)

static void add_paths(cells *to, int bits, const float *level, int times, uint64_t seed)
{
    static float y[CHANNELS][LANES];
    static uint8_t state[CHANNELS][LANES];
    for (int k = 0; k < times; k++) {
        EACH_NUMBER y[d][i] = (float)normal(&seed);
        kvfi_trellis_paths(kernels.paths, bits, level, CHANNELS, (const float(*)[LANES])y, state);
        EACH_NUMBER
        {
            const int s = state[d][i], mirror = s >= STATES / 2, cell = mirror ? STATES - 1 - s : s;
            const double x = mirror ? -(double)y[d][i] : (double)y[d][i], off = (double)y[d][i] - (double)level[s];
            to->sum[cell] += x, to->square[cell] += x * x, to->n[cell]++;
            to->miss += off * off, to->all++;
        }
    }
}

static double quantile(double p)
{
    double low = -9, high = 9;
    for (int i = 0; i < 60; i++) {
        const double mid = (low + high) / 2;
        if (erfc(-mid / sqrt(2)) / 2 < p)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static void set_level(float *level, int cell, double x)
{
    level[cell] = (float)x, level[STATES - 1 - cell] = (float)-x;
}

/* The 2^bits states that follow one state start as quantiles spread over the whole density, each time other ones, in another order:
 * where a code means about the same after every state, the iteration stays 7 % worse. */
static void first_levels(int bits, float *level, uint64_t *seed)
{
    const int groups = STATES >> bits;
    int order[STATES], turn[STATES];
    for (int h = 0; h < groups; h++) {
        const int j = (int)(ci_next(seed) >> 33) % (h + 1);
        order[h] = order[j], order[j] = h;
        turn[h] = (int)(ci_next(seed) >> 40) % (1 << bits);
    }
    for (int s = 0; s < STATES / 2; s++)
        set_level(level, s, 0.95 * quantile(((s % (1 << bits) ^ turn[s >> bits]) * groups + order[s >> bits] + 0.5) / STATES));
}

/* Lloyd's iteration: paths for the levels, then levels for the paths. Returns the error on numbers of its own. */
static double fit(int bits, uint64_t seed, float *level)
{
    first_levels(bits, level, &seed);
    for (int round = 0; round < ROUNDS; round++) {
        cells c = {0};
        add_paths(&c, bits, level, LESSONS, 1000 + (uint64_t)round);
        for (int i = 0; i < STATES / 2; i++)
            if (c.n[i]) set_level(level, i, c.sum[i] / (double)c.n[i]);
    }
    cells last = {0};
    add_paths(&last, bits, level, 5 * LESSONS, 77);
    return last.miss / (double)last.all;
}

static void print_fit(int bits)
{
    float level[STATES], best[STATES];
    double least = HUGE_VAL, top = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        const double error = fit(bits, seed, level);
        fprintf(stderr, "%d bits, start %d: %.5f\n", bits, (int)seed, error);
        if (error < least) least = error, memcpy(best, level, sizeof best);
    }
    for (int s = 0; s < STATES / 2; s++)
        if (fabs((double)best[s]) > top) top = fabs((double)best[s]); /* fmax here is more than gcc 12 for AArch64 can take */
    printf("KVFI_TRELLIS(%d, %.9gf", bits, (double)(float)(top / 127));
    for (int s = 0; s < STATES / 2; s++) printf(",%s%.0f", s % 16 ? " " : "\n             ", (double)best[s] * 127 / top);
    printf(")\n");
}

static void read_levels(int bits, kvf_part *part, float *level)
{
    char spec[16];
    snprintf(spec, sizeof spec, "tcq%d", bits);
    assert_int_equal(kvfi_part_setup(spec, KVF_V, CHANNELS, part, NULL, 0), KVF_OK);
    for (int s = 0; s < STATES; s++) level[s] = (float)part->table[s] * part->unit;
}

/* Each level is the mean of what falls to it: within the standard error of that mean, half an integer of rounding, and what one more
 * round of the iteration, which converges slowly and was stopped, would still move: 0.01. */
static void levels_are_centroids(void **state)
{
    (void)state;
    for (int bits = 1; bits <= 4; bits++) {
        kvf_part part;
        float level[STATES];
        cells c = {0};
        read_levels(bits, &part, level);
        add_paths(&c, bits, level, 200, 5);
        for (int i = 0; i < STATES / 2; i++) {
            assert_true(level[STATES - 1 - i] == -level[i] && abs(part.table[i]) <= 127 && c.n[i] > 50);
            const double n = (double)c.n[i], centre = c.sum[i] / n, error = sqrt((c.square[i] / n - centre * centre) / n);
            if (fabs(centre - (double)level[i]) > ERRORS * error + (double)part.unit / 2 + 0.01)
                fail_msg("%d bits, state %d: level %.4f, mean %.4f +- %.4f of %ld", bits, i, (double)level[i], centre, error,
                         c.n[i]);
        }
    }
}

/* ---- the error on random vectors --------------------------------------------------------------------------------------------- */

/* `told` is what other vectors (seed 78, as many) had when the levels were made: two such means are apart by their two standard errors,
 * whence the root of 2. The best quantiser that codes each coordinate alone has Lloyd's and Max's error, and no code whatever goes below
 * 4^-bits for a long normal vector (Shannon): a trellis of 256 states must come more than half of the way, in decibels. */
static void errors_of_random_vectors(void **state)
{
    (void)state;
    static const struct {
        int bits, dim;
        double told;
    } known[] = {{1, 64, 0.28663},  {2, 64, 0.07573},  {3, 64, 0.02001},  {4, 64, 0.00557},
                 {1, 256, 0.28350}, {2, 256, 0.07627}, {3, 256, 0.02027}, {4, 256, 0.00570}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char spec[32];
        double level[128];
        snprintf(spec, sizeof spec, "tcq%d:norm=n0", known[i].bits);
        const mean m = sphere_error(spec, known[i].dim, known[i].dim == 64 ? 24 : 8);
        const double scalar = kvfi_lloyd_max(known[i].bits, known[i].dim, level), within = ERRORS * standard_error(&m);
        print_message("%s, %3d channels: error %.5f +- %.5f, Lloyd-Max %.5f (%.1f %% less), Shannon %.5f\n", spec, known[i].dim,
                      mean_of(&m), standard_error(&m), scalar, 100 * (1 - mean_of(&m) / scalar), pow(4, -known[i].bits));
        assert_true(fabs(mean_of(&m) - known[i].told) < sqrt(2) * within);
        assert_true(mean_of(&m) + within < sqrt(scalar * pow(4, -known[i].bits)));
    }
}

/* Row by row, to within the f16 scale and f32 sums: what each rule keeps. */
static void norm_rules_row_by_row(void **state)
{
    (void)state;
    static _Alignas(64) unsigned char record[CI_TOKENS * 128 * 2];
    static float x[CI_TOKENS * 128], y[CI_TOKENS * 128];
    const double near = 0x1p-11 + 1e-5;
    ci_fill(x, 128, CI_GAUSS, 3);
    for (int bits = 1; bits <= 4; bits++)
        for (int norm = 1; norm <= 3; norm++) {
            char spec[64];
            snprintf(spec, sizeof spec, "tcq%d:norm=n%d", bits, norm);
            assert_int_equal(kvf_op_encode(spec, KVF_V, 128, x, record), KVF_OK);
            assert_int_equal(kvf_op_decode(spec, KVF_V, 128, record, y), KVF_OK);
            for (int t = 0; t < CI_TOKENS; t++) {
                double xx = 0, xy = 0, yy = 0;
                for (int i = t * 128; i < t * 128 + 128; i++)
                    xx += (double)x[i] * (double)x[i], xy += (double)x[i] * (double)y[i], yy += (double)y[i] * (double)y[i];
                assert_true(fabs((norm == 1 ? sqrt(yy / xx) : norm == 2 ? xy / xx : xy / yy) - 1) < near);
            }
        }
}

/* ---- kernels ------------------------------------------------------------------------------------------------------------------- */

/* Random codes, table and scales. */
static uint8_t *make_record(kvf_side side, int bits, int dim, kvf_part *part)
{
    uint64_t seed = (uint64_t)(bits * 100 + dim);
    *part = (kvf_part){.kind = KVF_KIND_TRELLIS, .side = side, .bits = bits, .t_group = 1, .unit = 0.03f};
    kvfi_part_layout(part, dim);
    for (int i = 0; i < STATES; i++) part->table[i] = (int16_t)(ci_uniform(&seed) * 127.9);
    uint8_t *record = ci_alloc(part->bytes);
    for (size_t i = 0; i < part->scale_offset; i++) record[i] = (uint8_t)(ci_next(&seed) >> 32);
    for (int t = 0; t < CI_TOKENS; t++) kvfi_halves(record, part->scale_offset)[t] = kvfi_half_saturated((float)ci_gauss(&seed));
    return record;
}

/* The scalar kernels are the definitions of gpu/kernels/trellis.h, bit for bit. */
static void check_kernels(kvf_side side, int bits, int dim)
{
    enum { VECTORS = 9 };
    kvfi_kernels k;
    kvf_part part;
    uint64_t seed = 4;
    uint8_t *record = make_record(side, bits, dim, &part);
    const kvfi_shape s = kvfi_shape_of(&part);
    const kvfi_kind_ops *ops = &k.kind[KVF_KIND_TRELLIS];
    const size_t pad = (size_t)part.dim_pad, n = pad * CI_TOKENS;
    float *tile = ci_alloc(n * sizeof *tile), *m = ci_alloc(VECTORS * n * sizeof *m), *out = ci_alloc(VECTORS * n * sizeof *out);
    kvfi_kernels_scalar(&k);
    void *prepared = ci_alloc(ops->prepared_bytes(&part, VECTORS));
    for (size_t i = 0; i < VECTORS * (side == KVF_K ? pad : CI_TOKENS); i++)
        m[i] = side == KVF_K && i % pad >= (size_t)dim ? 0 : (float)ci_gauss(&seed);
    ops->unfold(&part, record, tile);
    if (side == KVF_K) ops->prepare(&part, m, pad, VECTORS, prepared), ops->score(&part, record, prepared, VECTORS, out);
    if (side == KVF_V) ops->mix(&part, record, m, VECTORS, out, pad);
    for (int t = 0; t < CI_TOKENS; t++)
        for (int c = 0; c < part.dim_pad; c++)
            assert_true(tile[kvfi_half_index(&s, t, c)] == kvfi_value_trellis(&s, record, t, c));
    for (int v = 0; v < VECTORS; v++) {
        for (int t = 0; t < CI_TOKENS && side == KVF_K; t++)
            assert_true(out[v * CI_TOKENS + t] == kvfi_score_trellis(&s, record, m + (size_t)v * pad, t));
        for (int c = 0; c < dim && side == KVF_V; c++)
            assert_true(out[(size_t)v * pad + (size_t)c] == kvfi_mix_trellis(&s, record, m + v * CI_TOKENS, c));
    }
    free(record), free(tile), free(m), free(out), free(prepared);
}

static void scalar_kernels_are_the_definitions(void **state)
{
    (void)state;
    static const int dims[] = {8, 9, 16, 40, 64, 72, 80, 130};
    for (int bits = 1; bits <= 4; bits++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            if (bits * dims[d] >= 32) check_kernels(KVF_K, bits, dims[d]), check_kernels(KVF_V, bits, dims[d]);
}

static void what_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"tcq", "tcq0", "tcq5", "tcq2:group=32", "tcq2:outliers=8", "tcq2:norm=n4"};
    char error[256];
    kvf_spec_info info;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(kvf_spec_check(bad[i], KVF_K, 64, NULL, error, sizeof error), KVF_E_SPEC);
    for (int bits = 1; bits <= 4; bits++) { /* 32 bits a vector */
        char spec[8], least[64];
        const int dim = (32 + bits - 1) / bits;
        snprintf(spec, sizeof spec, "tcq%d", bits);
        snprintf(least, sizeof least, "at least %d channels, not %d", dim, dim - 1);
        assert_int_equal(kvf_spec_check(spec, KVF_K, dim - 1, NULL, error, sizeof error), KVF_E_UNSUPPORTED);
        assert_non_null(strstr(error, least));
        assert_int_equal(kvf_spec_check(spec, KVF_K, dim, &info, NULL, 0), KVF_OK);
    }
    assert_int_equal(kvf_spec_check("tcq2", KVF_K, 64, &info, NULL, 0), KVF_OK);
    assert_string_equal(info.canonical, "tcq2:norm=n1,rot=h1,seed=0,centre=prompt,scale=prompt");
    assert_int_equal(kvf_spec_check("tcq3:rot=none", KVF_V, 64, &info, NULL, 0), KVF_OK);
    assert_string_equal(info.canonical, "tcq3:norm=n2,rot=none,seed=0");
}

int main(int argc, char **argv)
{
    if (kvfi_kernels_select(NULL, &kernels, NULL, 0)) return 1; /* $KVFOLD_CPU */
    if (argc > 1 && !strcmp(argv[1], "fit")) {
        printf("/* SPDX-License-Identifier: MIT\n * Levels of states 0 to 127, in units; made by `test_trellis fit`.\n"
               " * KVFI_TRELLIS(bits, unit, levels) */\n");
        for (int bits = 1; bits <= 4; bits++) print_fit(bits);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_centroids),  cmocka_unit_test(errors_of_random_vectors),
        cmocka_unit_test(norm_rules_row_by_row), cmocka_unit_test(scalar_kernels_are_the_definitions),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
