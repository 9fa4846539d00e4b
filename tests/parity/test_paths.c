/* SPDX-License-Identifier: MIT
 * The trellis search: steps from any costs, and records of the codec. Everything is exact, draws included. */
#include "codec/tcq/viterbi.h"
#include "parity.h"

#include <stdio.h>

enum { STATES = KVFI_TRELLIS_STATES, LANES = KVFI_TRELLIS_LANES, STEPS = 40 };

/* ---- steps ------------------------------------------------------------------------------------------------------------------------ */

/* What a search may meet: costs that differ, few different ones, one state that is allowed, all alike; and numbers whose squares do so. */
#define KINDS(X)                                                                                                                 \
    X(NORMAL, "normal")                                                                                                          \
    X(DRAWS, "small integers: many costs are equal")                                                                             \
    X(ALIKE, "all equal")                                                                                                        \
    X(BARRED, "one state only")                                                                                                  \
    X(HUGE_ONES, "squares near and above the largest float")                                                                     \
    X(DENORMAL, "squares that are denormal or zero")

typedef enum start_kind {
#define KIND_ENUM(name, text) name,
    KINDS(KIND_ENUM)
#undef KIND_ENUM
        KIND_COUNT
} start_kind;

static const char *const kind_name[] = {
#define KIND_NAME(name, text) text,
    KINDS(KIND_NAME)
#undef KIND_NAME
};

static float number(start_kind of, uint64_t *state)
{
    const double g = ci_gauss(state);
    switch (of) {
    case DRAWS: return (float)nearbyint(g);
    case ALIKE: return 1;
    case HUGE_ONES: return (float)(g * 1.5e19);
    case DENORMAL: return (float)(g * 3e-23);
    default: return (float)(g * 50);
    }
}

static float start(start_kind of, int s, int i, uint64_t *state)
{
    const float x = number(of, state);
    return of == BARRED ? (s == i * 37 % STATES ? 0 : 1e30f) : x * x;
}

static void check_steps(const kvfi_kernels *scalar, const kvfi_kernels *fast, int bits, start_kind of, int n)
{
    uint64_t seed = (uint64_t)(bits * 1000 + (int)of * 100 + n);
    const size_t costs = STATES * LANES * sizeof(float), choices = (size_t)n * sizeof(kvfi_came_from);
    px_input levels = px_input_make(STATES * sizeof(float), 4), in = px_input_make((size_t)n * LANES * sizeof(float), 8);
    px_output want = px_output_make(costs, 0), got = px_output_make(costs, 12);
    px_output want_from = px_output_make(choices, 0), got_from = px_output_make(choices, 4);
    float *level = levels.data, *y = in.data;
    for (int s = 0; s < STATES; s++) level[s] = number(of, &seed);
    for (int i = 0; i < n * LANES; i++) y[i] = number(of, &seed);
    for (int i = 0; i < STATES * LANES; i++) want.data[i] = got.data[i] = start(of, i / LANES, i % LANES, &seed);
    px_at("%s: %d bits, %s, %d steps", fast->name, bits, kind_name[of], n);
    scalar->paths(bits, level, n, (const float(*)[LANES])y, (float(*)[LANES])want.data, (kvfi_came_from *)want_from.data);
    fast->paths(bits, level, n, (const float(*)[LANES])y, (float(*)[LANES])got.data, (kvfi_came_from *)got_from.data);
    for (int i = 0; i < STATES * LANES; i++) px_same(PX_PATHS, got.data[i], want.data[i], "cost", i / LANES, i % LANES);
    const int words = bits == 3 ? 3 : 4, all = words * LANES; /* that mean something */
    for (int d = 0; d < n; d++)
        for (int i = 0; i < all; i++) {
            const uint32_t g = ((kvfi_came_from *)got_from.data)[d][i / LANES][i % LANES];
            const uint32_t w = ((kvfi_came_from *)want_from.data)[d][i / LANES][i % LANES];
            if (g != w)
                fail_msg("%s, %d bits, %s: step %d, word %d: %08x, not %08x", fast->name, bits, kind_name[of], d, i, g, w);
        }
    px_output_free(&want, "scalar costs");
    px_output_free(&got, "the costs");
    px_output_free(&want_from, "scalar choices");
    px_output_free(&got_from, "the choices");
    px_input_free(&levels);
    px_input_free(&in);
}

static void steps(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    assert_true(fast->paths != scalar->paths);
    for (int bits = 1; bits <= 4; bits++)
        for (int of = 0; of < KIND_COUNT; of++)
            for (int n = 0; n <= STEPS; n += n < 3 ? 1 : 37) check_steps(scalar, fast, bits, (start_kind)of, n);
}

static void test_steps(void **state)
{
    (void)state;
    px_each_set(steps);
}

/* Of equals the lowest: all costs alike, every choice is state h of those before group h; then one other is made cheaper. */
static void lowest_of_equals(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    static float level[STATES], y[1][LANES], cost[STATES][LANES];
    static kvfi_came_from from[1];
    (void)scalar;
    for (int bits = 1; bits <= 4; bits++)
        for (int k = 0; k < 1 << bits; k++) {
            const int h = 5 * k % (STATES >> bits);
            for (int s = 0; s < STATES; s++)
                for (int i = 0; i < LANES; i++) cost[s][i] = i == 3 && s % (STATES >> bits) == h && s >> (8 - bits) >= k ? 1 : 2;
            px_at("%s: %d bits, from number %d on cheaper", fast->name, bits, k);
            fast->paths(bits, level, 1, (const float(*)[LANES])y, cost, from);
            for (int g = 0; g < STATES >> bits; g++)
                for (int i = 0; i < LANES; i++)
                    for (int j = 0; j < bits; j++)
                        assert_int_equal(from[0][g / 32 * bits + j][i] >> g % 32 & 1, i == 3 && g == h ? k >> j & 1 : 0);
        }
}

static void test_lowest_of_equals(void **state)
{
    (void)state;
    px_each_set(lowest_of_equals);
}

/* ---- records ---------------------------------------------------------------------------------------------------------------------- */

static void check_record(const kvfi_kernels *fast, int bits, kvf_side side, int dim, ci_kind kind, double size)
{
    kvf_part part;
    char spec[16];
    uint8_t *record[2];
    float *x = ci_alloc((size_t)dim * KVF_BLOCK * 2 * sizeof *x);
    snprintf(spec, sizeof spec, "tcq%d", bits);
    assert_int_equal(kvfi_part_setup(spec, side, dim, &part, NULL, 0), KVF_OK);
    for (int of = 0; of < 2; of++) {
        record[of] = ci_alloc(part.bytes);
        memset(record[of], of ? 0xa5 : 0, part.bytes);
        ci_fill(x, dim, kind, (uint64_t)dim);
        for (int i = 0; i < dim * KVF_BLOCK; i++) x[i] = (float)(x[i] * size);
        part.kernels = of ? fast : NULL;
        part.codec->encode(&part, x, record[of]);
    }
    for (size_t i = 0; i < part.bytes; i++)
        if (record[0][i] != record[1][i])
            fail_msg("%s, %s, side %d, %d channels, %s times %g: byte %zu differs", fast->name, spec, (int)side, dim,
                     ci_kind_name[kind], size, i);
    free(record[0]), free(record[1]), free(x);
}

/* Every kind of input, every head size, bits and sides by turns; some smaller and some larger than f16 numbers are. */
static void records(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    static const int dims[] = {32, 40, 64, 72, 96, 128, 256};
    static const double sizes[] = {1, 1e-40, 1e30, 1};
    int round = 0;
    (void)scalar;
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int input = 0; input < CI_KIND_COUNT; input++, round++)
            if ((round + input) % (CI_SHARE > 4 ? 9 : dims[d] > 72 ? 3 : 1) == 0)
                check_record(fast, 1 + round % 4, (kvf_side)(round / 4 % 2), dims[d], (ci_kind)input, sizes[round / 8 % 4]);
}

static void test_records(void **state)
{
    (void)state;
    px_each_set(records);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps), cmocka_unit_test(test_lowest_of_equals),
                                       cmocka_unit_test(test_records)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
