/* SPDX-License-Identifier: MIT
 * Hashes of packed records, recorded once: a change of any byte of any codec shows here, on every target and compiler.
 * `test_golden_blocks print` writes a new blocks.def to standard output, for a change that docs/FORMAT.md announces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>

#include "../unit/books.h"
#include "../unit/codec_inputs.h"

typedef struct golden {
    const char *spec;
    kvf_side side;
    int dim;
    uint64_t hash;
} golden;

static const golden table[] = {
#define GOLDEN_BLOCK(spec, side, dim, hash) {spec, side, dim, hash},
#include "blocks.def"
#undef GOLDEN_BLOCK
};
enum { ENTRIES = sizeof table / sizeof *table };

static const int dims[] = {2, 40, 64, 80, 128, 256, 576};
enum { DIMS = sizeof dims / sizeof *dims };

/* Formats that no example of a codec shows. */
static const struct {
    const char *spec;
    unsigned sides;
} more[] = {{"turbo7", 3},
            {"rvq5", 3},
            {"uni4:rot=haar", 3},
            {"uni4:centre=block", 1},
            {"turbo2:norm=n3", 3},
            {"vecinfer2:feedback=query", 1},
            {"vecinfer1:feedback=query", 1}};

static void each_spec(void (*f)(const char *, kvf_side, void *), void *user)
{
    ci_each_spec(f, user);
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        for (int side = KVF_K; side <= KVF_V; side++)
            if (more[i].sides >> side & 1) f(more[i].spec, (kvf_side)side, user);
}

/* Of the records of all inputs, one after the other. */
static uint64_t hash_records(const char *spec, kvf_side side, int dim)
{
    kvf_spec_info info;
    uint64_t hash = CI_HASH_START;
    assert_int_equal(kvf_spec_check(spec, side, dim, &info, NULL, 0), KVF_OK);
    float *x = ci_alloc((size_t)(CI_TOKENS * dim) * sizeof *x);
    void *record = ci_alloc(info.block_bytes);
    for (int kind = 0; kind < CI_KIND_COUNT; kind++) {
        ci_fill(x, dim, (ci_kind)kind, 2024);
        memset(record, 0xee, info.block_bytes);
        assert_int_equal(tb_encode(spec, side, dim, x, record), KVF_OK);
        hash = ci_hash(record, info.block_bytes, hash);
    }
    free(x), free(record);
    return hash;
}

/* KVFOLD_GOLDEN_SHARE=N: every N-th record, where a processor is emulated or a sanitizer watches; every spec still has some. */
static int share(void)
{
    const char *n = getenv("KVFOLD_GOLDEN_SHARE");
    return n && atoi(n) > 1 ? atoi(n) : 1;
}

static void check_spec(const char *spec, kvf_side side, void *user)
{
    int *seen = user;
    for (int d = 0; d < DIMS; d++) {
        const golden *found = NULL;
        if (!ci_fits(spec, dims[d])) continue;
        for (int i = 0; i < ENTRIES; i++)
            if (!strcmp(table[i].spec, spec) && table[i].side == side && table[i].dim == dims[d]) found = &table[i];
        if (!found) fail_msg("blocks.def has no entry for %s, side %d, head size %d", spec, (int)side, dims[d]);
        ++*seen;
        if ((found - table) % share()) continue;
        uint64_t hash = hash_records(spec, side, dims[d]);
        if (hash != found->hash)
            fail_msg("%s, side %d, head size %d: hash %016" PRIx64 ", recorded %016" PRIx64, spec, (int)side, dims[d], hash,
                     found->hash);
    }
}

static void records_are_what_they_were(void **state)
{
    (void)state;
    int seen = 0;
    each_spec(check_spec, &seen);
    assert_int_equal(seen, ENTRIES); /* nothing is recorded that no longer exists */
}

static void print_spec(const char *spec, kvf_side side, void *user)
{
    (void)user;
    for (int d = 0; d < DIMS; d++)
        if (ci_fits(spec, dims[d]))
            printf("GOLDEN_BLOCK(\"%s\", %s, %d, 0x%016" PRIx64 ")\n", spec, side == KVF_K ? "KVF_K" : "KVF_V", dims[d],
                   hash_records(spec, side, dims[d]));
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "print")) {
        printf("/* SPDX-License-Identifier: MIT\n * FNV-1a hashes of the records of all inputs of codec_inputs.h, seed 2024; "
               "made by "
               "`test_golden_blocks print`.\n * GOLDEN_BLOCK(spec, side, head size, hash) */\n");
        each_spec(print_spec, NULL);
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(records_are_what_they_were)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
