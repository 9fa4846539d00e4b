/* SPDX-License-Identifier: MIT
 * Every codec against its oracle: codes, scales, minima and values of every record; scores and mixed sums of the scalar kernels.
 * */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "../unit/codec_inputs.h"
#include "codec/codec.h"
#include "cpu/isa.h"
#include "oracle_codec.h"

/* Limits, each with its reason.
 * SUM: a sum of n products in f32 carries at most about n + 1 roundings of 2^-24 of the sum of magnitudes; folding scale and
 *      minimum adds a handful, and each of at most 64 groups one more.
 * TURN: the library rotates in f32, the oracle by a matrix in double: a code may be the neighbour where the quotient lies this
 *      close to a boundary, and a scale the neighbouring f16. */
#define SUM_LIMIT(n) (((n) + 80) * 0x1p-24)
#define TURN_LIMIT 2e-3

typedef struct work {
    long values, moved;
} work;

static void compare_exact(const oracle_plan *p, const oracle_value *want, const oracle_value *got, const char *spec, int kind)
{
    for (int i = 0; i < CI_TOKENS * p->dim; i++) {
        const oracle_value *w = &want[i], *g = &got[i];
        if (w->code == g->code && w->scale == g->scale && w->min == g->min && w->value == g->value) continue;
        fail_msg("%s, %s, head size %d, input '%s', token %d, channel %d: code %d scale %g min %g value %g, oracle %d %g %g %g",
                 spec, p->keys ? "keys" : "values", p->dim, ci_kind_name[kind], i / p->dim, i % p->dim, g->code, g->scale, g->min,
                 g->value, w->code, w->scale, w->min, w->value);
    }
}

static void compare_turned(const oracle_plan *p, const oracle_value *want, const oracle_value *got, const char *spec, work *count)
{
    for (int i = 0; i < CI_TOKENS * p->dim; i++) {
        const oracle_value *w = &want[i], *g = &got[i];
        if (count) count->values++;
        if (count) count->moved += w->code != g->code;
        if (fabs(g->scale - w->scale) <= fabs(w->scale) * 0x1p-10 + 0x1p-24 &&
            (w->code == g->code || ((abs(w->code - g->code) == 1 || p->family == ORACLE_RVQ) && w->near < TURN_LIMIT) ||
             fabs(w->scale) < 0x1p-20))
            continue;
        /* a peak of the other sign: +peak and -peak were equal to within rounding, so q4_0 may be mirrored */
        if (p->family == ORACLE_Q4_0 && fabs(g->scale + w->scale) <= fabs(w->scale) * 0x1p-10) continue;
        fail_msg("%s, head size %d, token %d, channel %d: code %d scale %g, oracle %d %g", spec, p->dim, i / p->dim, i % p->dim,
                 g->code, g->scale, w->code, w->scale);
    }
}

static void attend(const oracle_plan *p, const kvf_part *part, const void *record, const oracle_value *values, uint64_t seed)
{
    enum { VECTORS = 3 };
    kvfi_kernels k;
    kvfi_kernels_scalar(&k);
    const kvfi_kind_ops *ops = &k.kind[part->kind];
    size_t pad = (size_t)part->dim_pad;
    float *q = ci_alloc(VECTORS * pad * sizeof *q), *acc = ci_alloc(VECTORS * pad * sizeof *acc);
    float w[VECTORS * CI_TOKENS], s[VECTORS * CI_TOKENS];
    void *prepared = ci_alloc(ops->prepared_bytes(part, VECTORS));
    double size;
    for (int v = 0; v < VECTORS; v++) {
        for (int c = 0; c < p->dim; c++) q[(size_t)v * pad + (size_t)c] = (float)ci_gauss(&seed);
        for (int t = 0; t < CI_TOKENS; t++) w[v * CI_TOKENS + t] = (float)fabs(ci_gauss(&seed));
    }
    if (p->keys) {
        ops->prepare(part, q, pad, VECTORS, prepared);
        ops->score(part, record, prepared, VECTORS, s);
        for (int i = 0; i < VECTORS * CI_TOKENS; i++) {
            double want = oracle_score(p, values, q + (size_t)(i / CI_TOKENS) * pad, i % CI_TOKENS, &size);
            if (!(fabs(s[i] - want) <= SUM_LIMIT(p->dim) * size))
                fail_msg("%s, head size %d: score %g, oracle %g", part->canonical, p->dim, (double)s[i], want);
        }
    } else {
        ops->mix(part, record, w, VECTORS, acc, pad);
        for (int i = 0; i < VECTORS * p->dim; i++) {
            double want = oracle_mix(p, values, w + i / p->dim * CI_TOKENS, i % p->dim, &size);
            assert_true(fabs(acc[(size_t)(i / p->dim) * pad + (size_t)(i % p->dim)] - want) <= SUM_LIMIT(CI_TOKENS) * size);
        }
    }
    free(q), free(acc), free(prepared);
}

/* Where a level lies so close to halfway between two integers that both are right (tables_are_the_best_ones says how close), the
 * oracle goes on with the library's choice. */
static void share_roundings(oracle_plan *plan, const kvf_part *part)
{
    if (plan->family != ORACLE_TURBO && plan->family != ORACLE_RVQ) return;
    for (int i = 0; i < 1 << plan->bits; i++)
        if (abs(plan->entry[i] - part->table[i]) == 1) plan->entry[i] = part->table[i];
    if (fabs(plan->unit - (double)part->unit) <= plan->unit * 1e-5) plan->unit = (double)part->unit;
}

static void one(const char *spec, kvf_side side, int dim, ci_kind kind, work *count)
{
    oracle_plan plan;
    kvf_part part;
    if (!ci_fits(spec, dim)) return;
    if (!oracle_read_spec(spec, side == KVF_K, dim, &plan)) fail_msg("no oracle knows '%s'", spec);
    assert_int_equal(kvfi_part_setup(spec, side, dim, &part, NULL, 0), KVF_OK);
    assert_int_equal(part.bytes, oracle_bytes(&plan));
    share_roundings(&plan, &part);
    size_t n = (size_t)(CI_TOKENS * dim), coded = (size_t)(CI_TOKENS * plan.dim);
    float *x = ci_alloc(n * sizeof *x);
    oracle_value *want = ci_alloc(coded * sizeof *want), *got = ci_alloc(coded * sizeof *got);
    unsigned char *record = ci_alloc(part.bytes);
    memset(record, 0xa5, part.bytes);
    ci_fill(x, dim, kind, 11);
    assert_int_equal(kvf_op_encode(spec, side, dim, x, record), KVF_OK);
    assert_true(oracle_padding_is_zero(&plan, record));
    oracle_encode(&plan, x, want);
    oracle_unpack(&plan, record, got);
    const int norms =
        plan.family == ORACLE_UNI || plan.family == ORACLE_TURBO || plan.family == ORACLE_RVQ || plan.family == ORACLE_TCQ;
    if (norms) oracle_settle(&plan, x, got, TURN_LIMIT, (int)kind, want);
    if (strcmp(plan.rotation.name, "none") || norms) /* also without rotation: norms are f32 sums, the oracle's double */
        compare_turned(&plan, want, got, spec, kind == CI_GAUSS ? count : NULL);
    else
        compare_exact(&plan, want, got, spec, (int)kind);
    attend(&plan, &part, record, got, (uint64_t)(dim * 31 + (int)kind));
    free(x), free(want), free(got), free(record);
}

static void all_inputs(const char *spec, kvf_side side, void *user)
{
    if (ci_sum(spec) || ci_product(spec)) return; /* test_oracle_sum, test_oracle_product */
    for (int d = 0; d < CI_DIMS; d++)
        for (int kind = 0; kind < CI_KIND_COUNT; kind++)
            if (ci_takes(spec, side, d, kind)) one(spec, side, ci_dims[d], (ci_kind)kind, user);
}

static void every_codec_agrees_with_its_oracle(void **state)
{
    (void)state;
    work count = {0, 0};
    assert_true(ci_each_spec(all_inputs, &count) > 20);
    /* rotated codes of ordinary inputs: neighbours are rare */
    assert_true(count.values > 100000 && count.moved * 10000 < count.values);
}

/* Options that no example names: every norm rule at every number of bits, turned and not. */
static void norm_rules_agree_with_their_oracle(void **state)
{
    (void)state;
    static const int sizes[] = {1, 40, 64, 128};
    work count = {0, 0};
    char spec[64];
    for (int bits = 2; bits <= 8; bits++)
        for (int i = 0; i < 16; i++)
            for (int kind = 0; kind < CI_KIND_COUNT; kind++) {
                snprintf(spec, sizeof spec, "uni%d:norm=n%d%s", bits, i % 4, i & 4 ? ",rot=none" : "");
                one(spec, i & 8 ? KVF_V : KVF_K, sizes[(i + kind) % 4], (ci_kind)kind, &count);
            }
    for (int bits = 1; bits <= 8; bits++)
        for (int i = 0; i < 16; i++)
            for (int kind = 0; kind < CI_KIND_COUNT; kind++) {
                snprintf(spec, sizeof spec, "turbo%d:norm=n%d%s", bits, i % 4, i & 4 ? ",rot=none" : "");
                one(spec, i & 8 ? KVF_V : KVF_K, sizes[(i + kind) % 4], (ci_kind)kind, &count);
            }
    assert_true(count.values > 100000 && count.moved * 10000 < count.values);
}

/* The mean that a block carries: no example names it, as values have none. */
static void block_means_agree_with_their_oracle(void **state)
{
    (void)state;
    static const char *const specs[] = {"q8_0:centre=block",      "q4_0:rot=h1,centre=block", "uni4:centre=block,scale=none",
                                        "turbo3:centre=block",    "rvq4:centre=block,rot=h2", "tcq2:centre=block",
                                        "q4_0:centre=block,rot=h"};
    static const int sizes[] = {40, 64, 72, 128};
    work count = {0, 0};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        for (int kind = 0; kind < CI_KIND_COUNT; kind++) {
            if (kind == CI_PLUS_100 || kind == CI_MINUS_100 || kind == CI_CLOSE)
                continue; /* nothing but roundings is left of them */
            one(specs[i], KVF_K, sizes[(i + (size_t)kind) % 4], (ci_kind)kind, &count);
        }
    assert_true(count.values > 10000);
}

/* A mean a hundred times the spread: the error is one of what spreads, where the whole key would leave one of the mean. */
static void a_block_mean_takes_the_mean_out(void **state)
{
    (void)state;
    static const char *const specs[] = {"q4_0", "q8_0", "uni4", "turbo4", "rvq4", "tcq4", "prod4"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        float x[CI_TOKENS * 64], back[CI_TOKENS * 64];
        double error[2] = {0, 0}, mean[64];
        uint64_t seed = 3;
        for (int c = 0; c < 64; c++) mean[c] = 100 * ci_gauss(&seed);
        for (int j = 0; j < CI_TOKENS * 64; j++) x[j] = (float)ci_half(ci_gauss(&seed) + mean[j % 64]);
        for (int centred = 0; centred < 2; centred++) {
            char spec[64];
            kvf_spec_info info;
            snprintf(spec, sizeof spec, "%s:centre=%s", specs[i], centred ? "block" : "none");
            assert_int_equal(kvf_spec_check(spec, KVF_K, 64, &info, NULL, 0), KVF_OK);
            void *record = ci_alloc(info.block_bytes);
            assert_int_equal(kvf_op_encode(spec, KVF_K, 64, x, record), KVF_OK);
            assert_int_equal(kvf_op_decode(spec, KVF_K, 64, record, back), KVF_OK);
            for (int j = 0; j < CI_TOKENS * 64; j++) error[centred] += ((double)x[j] - back[j]) * ((double)x[j] - back[j]);
            free(record);
        }
        if (!(error[1] * 100 < error[0])) fail_msg("%s: error %g, with the mean taken out %g", specs[i], error[0], error[1]);
    }
}

/* The table of turbo at every number of bits against levels from another way of integrating. Both round a level to the nearest
 * integer, and may differ where it lies this close to halfway between two: the library interpolates its integrals, which leaves
 * up to 1e-5 of the deviation, and an entry is 1/127 or 1/16383 of the outermost level (1.9 and more). */
static void tables_are_the_best_ones(void **state)
{
    (void)state;
    static const int sizes[] = {2, 4, 5, 16, 40, 64, 80, 128, 256, 576, 1024};
    for (int bits = 1; bits <= 8; bits++)
        for (size_t d = 0; d < sizeof sizes / sizeof *sizes; d++) {
            oracle_plan plan;
            kvf_part part;
            char spec[16];
            double c[128], top = bits > 5 ? 16383 : 127, halfway = 1e-5 * top / 1.9;
            snprintf(spec, sizeof spec, "turbo%d", bits);
            assert_true(oracle_read_spec(spec, 1, sizes[d], &plan));
            assert_int_equal(kvfi_part_setup(spec, KVF_K, sizes[d], &part, NULL, 0), KVF_OK);
            assert_true(oracle_levels(bits, plan.dim, c) > 0);
            assert_true(oracle_residue(bits, plan.dim, c) < 1e-12); /* they are what they should be: centroids of their cells */
            int n = 1 << (bits - 1);
            assert_true(fabs((double)part.unit - plan.unit) <= plan.unit * 1e-5);
            for (int i = 0; i < n; i++) {
                double exact = c[i] / c[n - 1] * top;
                assert_int_equal(part.table[n - 1 - i], -part.table[n + i]);
                if (fabs(part.table[n + i] - exact) > 0.5 + halfway)
                    fail_msg("turbo%d, %d channels: entry %d is %d, the level is %.6f", bits, sizes[d], n + i, part.table[n + i],
                             exact);
            }
        }
}

/* A value decoded through the public operation is what the oracle reads from the record, turned back where it was turned. */
static void decode_one(const char *spec, kvf_side side, void *user)
{
    (void)user;
    if (ci_sum(spec) || ci_product(spec)) return;
    for (int d = 0; d < CI_DIMS; d++) {
        oracle_plan plan;
        kvf_part part;
        int dim = ci_dims[d];
        if (!ci_fits(spec, dim) || !oracle_read_spec(spec, side == KVF_K, dim, &plan))
            continue; /* every_codec_agrees asked which */
        assert_int_equal(kvfi_part_setup(spec, side, dim, &part, NULL, 0), KVF_OK);
        share_roundings(&plan, &part);
        size_t n = (size_t)(CI_TOKENS * dim);
        float *x = ci_alloc(n * sizeof *x), *back = ci_alloc(n * sizeof *back);
        oracle_value *got = ci_alloc((size_t)(CI_TOKENS * plan.dim) * sizeof *got);
        void *record = ci_alloc(oracle_bytes(&plan));
        ci_fill(x, dim, CI_GAUSS, 3);
        assert_int_equal(kvf_op_encode(spec, side, dim, x, record), KVF_OK);
        assert_int_equal(kvf_op_decode(spec, side, dim, record, back), KVF_OK);
        oracle_unpack(&plan, record, got);
        for (int t = 0; t < CI_TOKENS; t++) {
            double row[CI_DIM_MAX], turned[CI_DIM_MAX];
            for (int c = 0; c < plan.dim; c++)
                row[c] = got[t * plan.dim + c].value + (plan.mean ? oracle_mean(&plan, record, c) : 0);
            oracle_rotate_back(&plan.rotation, row, turned);
            for (int c = 0; c < dim; c++) {
                double limit =
                    strcmp(plan.rotation.name, "none") || plan.mean ? 1e-5 : 0; /* f32 sums against a matrix in double */
                assert_true(fabs(back[t * dim + c] - turned[c]) <= limit);
            }
        }
        free(x), free(back), free(got), free(record);
    }
}

static void decoding_means_what_the_record_says(void **state)
{
    (void)state;
    ci_each_spec(decode_one, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_codec_agrees_with_its_oracle), cmocka_unit_test(tables_are_the_best_ones),
        cmocka_unit_test(norm_rules_agree_with_their_oracle), cmocka_unit_test(block_means_agree_with_their_oracle),
        cmocka_unit_test(a_block_mean_takes_the_mean_out),    cmocka_unit_test(decoding_means_what_the_record_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
