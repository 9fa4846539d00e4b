/* SPDX-License-Identifier: MIT
 * The table of docs/codecs/README.md: bits and errors of every example of every codec on three kinds of seeded vectors. It must be what
 * `test_codec_table print` writes. Arithmetic is exact up to square roots, so it is the same on every machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "base/memory.h"
#include "base/random.h"
#include "calib/kmeans.h"
#include "codec_inputs.h"
#include "kvfold_calibration.h"

enum { DIM = 128, BLOCKS = 8, TABLE = 1 << 16 };

typedef enum kind { NORMAL, STRONG, BIASED, KINDS } kind;

/* Normal; every 16th channel 8 times larger; every 16th channel shifted by 8. */
static double value(kind k, double normal, int c)
{
    const int marked = c % 16 == 5;
    return k == STRONG && marked ? 8 * normal : k == BIASED && marked ? normal + 8 : normal;
}

static void fill(kind k, int block, float *x)
{
    const uint64_t start = kvfi_random_start(7, (uint32_t)block);
    for (int i = 0; i < CI_TOKENS * DIM; i += 2) {
        double normal[2];
        kvfi_random_normals(start, (uint64_t)i / 2, normal);
        for (int j = 0; j < 2; j++) x[i + j] = (float)ci_half(value(k, normal[j], (i + j) % DIM));
    }
}

/* What product codes are calibrated on: 24 other blocks of each kind, keys without centre or scale as everywhere here. */
static const kvf_calibrated_layer *calibrated(const char *spec, kvf_side side)
{
    enum { TRAINED = 24 };
    static kvf_codebook book = {.heads = 1};
    static kvf_calibrated_layer layer = {.size = sizeof layer, .kv_heads = 1, .n_codebooks = 1, .codebooks = &book};
    static float centroids[8 << 12], *x;
    kvf_spec_info info;
    const kvf_allocator a = kvfi_system_allocator();
    kvfi_training_rows sets[KINDS * TRAINED];
    assert_int_equal(kvf_spec_check(spec, side, DIM, &info, NULL, 0), KVF_OK);
    if (sscanf(info.canonical, "vecinfer:sub=%d,bits=%d", &book.sub, &book.bits) != 2) return NULL;
    if (!x) x = ci_alloc(KINDS * TRAINED * CI_TOKENS * DIM * sizeof *x);
    for (int i = 0; i < KINDS * TRAINED; i++) {
        float *at = x + i * CI_TOKENS * DIM;
        sets[i] = (kvfi_training_rows){.x = at, .n = CI_TOKENS};
        fill((kind)(i % KINDS), BLOCKS + i, at);
    }
    assert_int_equal(kvfi_train_codebook(side, DIM, book.sub, book.bits, sets, KINDS * TRAINED, 1, centroids, &a), KVF_OK);
    book.side = side, book.centroids = centroids;
    return &layer;
}

/* Mean of |x - decoded|^2 / |x|^2 over tokens. */
static double error_of(const char *spec, kvf_side side, const kvf_calibrated_layer *known, kind k)
{
    static float x[CI_TOKENS * DIM], y[CI_TOKENS * DIM];
    static _Alignas(64) unsigned char record[CI_TOKENS * DIM * 4];
    double sum = 0;
    for (int b = 0; b < BLOCKS; b++) {
        fill(k, b, x);
        assert_int_equal(kvf_op_encode_calibrated(spec, side, DIM, known, 0, x, record), KVF_OK);
        assert_int_equal(kvf_op_decode_calibrated(spec, side, DIM, known, 0, record, y), KVF_OK);
        for (int t = 0; t < CI_TOKENS; t++) {
            double xx = 0, dd = 0;
            for (int i = t * DIM; i < t * DIM + DIM; i++)
                xx += (double)x[i] * x[i], dd += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
            sum += dd / xx;
        }
    }
    return sum / (BLOCKS * CI_TOKENS);
}

static size_t add_row(char *text, size_t used, const char *spec, kvf_side side)
{
    kvf_spec_info info;
    assert_int_equal(kvf_spec_check(spec, side, DIM, &info, NULL, 0), KVF_OK);
    used += (size_t)snprintf(text + used, TABLE - used, "| `%s` | %s | %.3f | %zu |", spec, side == KVF_K ? "K" : "V",
                             info.bits_code, info.block_bytes);
    const kvf_calibrated_layer *known = calibrated(spec, side);
    for (int k = 0; k < KINDS; k++)
        used += (size_t)snprintf(text + used, TABLE - used, " %.2g |", error_of(spec, side, known, (kind)k));
    return used + (size_t)snprintf(text + used, TABLE - used, "\n");
}

/* Both sides, one row where they do not differ. */
static void make_table(char *text)
{
    kvf_codec_info info;
    size_t used = (size_t)snprintf(text, TABLE,
                                   "| spec | side | bits | bytes | normal | strong | biased |\n|---|---|---|---|---|---|---|\n");
    for (int32_t i = 0; kvf_codec_list(i, &info) == KVF_OK; i++) {
        const char *list = info.examples;
        char spec[64];
        while (ci_word(&list, spec))
            for (int side = KVF_K; side <= KVF_V; side++)
                if (info.sides >> side & 1) used = add_row(text, used, spec, (kvf_side)side);
    }
}

static void the_page_holds_the_table(void **state)
{
    (void)state;
    static char table[TABLE], page[TABLE];
    const char *source = getenv("KVFOLD_SOURCE");
    char path[4096];
    snprintf(path, sizeof path, "%s/docs/codecs/README.md", source ? source : ".");
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s cannot be read", path);
    page[fread(page, 1, sizeof page - 1, f)] = '\0';
    fclose(f);
    make_table(table);
    if (!strstr(page, table)) fail_msg("the table of docs/codecs/README.md is not the one that `test_codec_table print` writes");
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "print")) {
        static char table[TABLE];
        make_table(table);
        fputs(table, stdout);
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_page_holds_the_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
