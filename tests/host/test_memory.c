/* SPDX-License-Identifier: MIT
 * Memory of a real model, read from the live process: what the cache says it uses is what the formula says, what the kernel has
 * really mapped for it, and what the process grows by; and the whole is smaller than plain libllama at the same context and batch.
 * Each arm runs in its own process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "child.h"
#include "real.h"

#include <math.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#endif

enum { MODEL_LAYERS = 30, MODEL_KV_HEADS = 3, MODEL_HEAD = 64 }; /* SmolLM2-135M */

static double mib(int64_t bytes)
{
    return (double)bytes / 1048576;
}

static const char *model_path(real_model which)
{
#ifdef SANITIZED
    print_message("skipped: the address sanitizer's own memory cannot be told from ours\n");
    skip();
#endif
    const char *why, *path = real_path(which, false, &why);
    if (!path) {
        print_message("skipped: %s\n", why);
        skip();
    }
    return path;
}

static void run_fold(const char *path, int32_t n_ctx, const int32_t *stops, int n, child_figures *f)
{
    child c;
    assert_int_equal(child_start(&c, CHILD_FOLD, path, n_ctx, stops, n), 0);
    for (int i = 0; i < n; i++) {
        assert_int_equal(child_next(&c, &f[i]), 0);
        print_message("kivi4/kivi4, %d of %d tokens: accounted %.2f MiB (formula %.2f), resident %.2f, host %.2f, f16 %.2f, "
                      "anonymous %.2f, "
                      "peak %.2f\n",
                      (int)f[i].tokens, (int)n_ctx, mib(f[i].accounted), mib(f[i].formula), mib(f[i].resident), mib(f[i].host),
                      mib(f[i].f16), mib(f[i].anonymous), mib(f[i].peak));
    }
    assert_int_equal(child_wait(&c), 0);
}

/* Peak of plain libllama after one batch, the smaller of flash attention on and off. */
static int64_t plain_peak(const char *path, int32_t n_ctx)
{
    static const child_arm arms[] = {CHILD_PLAIN, CHILD_PLAIN_FLASH};
    int32_t stop = REAL_BATCH;
    int64_t best = INT64_MAX;
    for (int i = 0; i < 2; i++) {
        child c;
        child_figures f;
        assert_int_equal(child_start(&c, arms[i], path, n_ctx, &stop, 1), 0);
        assert_int_equal(child_next(&c, &f), 0);
        assert_int_equal(child_wait(&c), 0);
        print_message("plain, %d tokens, flash attention %s: anonymous %.2f MiB, peak %.2f\n", (int)n_ctx, i ? "on" : "off",
                      mib(f.anonymous), mib(f.peak));
        if (f.peak < best) best = f.peak;
    }
    return best;
}

static void check_figures(const child_figures *f)
{
    assert_true(f->formula > 0);
    assert_int_equal(f->accounted, f->formula);
    assert_int_equal(f->host_cells, 256);
    double ratio = (double)f->resident / (double)f->accounted;
    if (!(fabs(ratio - 1) <= 0.10)) fail_msg("resident is %.3f of accounted at %d tokens", ratio, (int)f->tokens);
}

static void check_share(const child_figures *f, double most)
{
    double share = (double)(f->accounted + f->host) / (double)f->f16;
    print_message("accounted + host at %d tokens: %.1f %% of f16\n", (int)f->tokens, 100 * share);
    assert_true(share <= most);
}

static void check_peak(const child_figures *f, int64_t plain)
{
    print_message("peak at %d tokens: %.2f MiB, plain %.2f\n", (int)f->tokens, mib(f->peak), mib(plain));
    assert_true(f->peak > 0 && f->peak < plain);
}

/* ---- tests ---------------------------------------------------------------------------------------------------------------- */

static void test_smollm2_at_8192(void **state)
{
    (void)state;
    static const int32_t stops[] = {2048, 8192};
    const char *path = model_path(REAL_SMOLLM2);
    child_figures f[2];
    run_fold(path, 8192, stops, 2, f);
    check_figures(&f[0]);
    check_figures(&f[1]);
    assert_int_equal(f[1].f16, 8192LL * MODEL_LAYERS * MODEL_KV_HEADS * MODEL_HEAD * 2 * 2);
    check_share(&f[1], 0.38);

    double tokens = 8192 - 2048, want = (double)(f[1].formula - f[0].formula) / tokens;
    double resident = (double)(f[1].resident - f[0].resident) / tokens,
           process = (double)(f[1].anonymous - f[0].anonymous) / tokens;
    print_message("bytes a token from 2,048 to 8,192: formula %.1f, resident %.1f, process %.1f, f16 %d\n", want, resident,
                  process, MODEL_LAYERS * MODEL_KV_HEADS * MODEL_HEAD * 2 * 2);
    assert_true(fabs(resident / want - 1) <= 0.03);
    assert_true(fabs(process / want - 1) <= 0.03);
    check_peak(&f[1], plain_peak(path, 8192));
}

static void test_smollm2_at_4096(void **state)
{
    (void)state;
    static const int32_t stops[] = {4096};
    const char *path = model_path(REAL_SMOLLM2);
    child_figures f;
    run_fold(path, 4096, stops, 1, &f);
    check_figures(&f);
    assert_int_equal(f.f16, 4096LL * MODEL_LAYERS * MODEL_KV_HEADS * MODEL_HEAD * 2 * 2);
    check_share(&f, 0.42);
    check_peak(&f, plain_peak(path, 4096));
}

/* Most layers have a window, so most of the context is in three of eighteen. */
static void test_gemma_at_2048(void **state)
{
    (void)state;
    static const int32_t stops[] = {600, 900, 2048};
    const char *path = model_path(REAL_GEMMA);
    child_figures f[3];
    run_fold(path, 2048, stops, 3, f);
    for (int i = 0; i < 3; i++) check_figures(&f[i]);
    assert_int_equal(f[2].f16, (3 * 2048 + 15 * 768) * 256LL * 2 * 2); /* one KV head; 512 + a batch of 255, in cells of 256 */
    check_peak(&f[2], plain_peak(path, 2048));
}

int main(int argc, char **argv)
{
    int code = child_main(argc, argv);
    if (code >= 0) return code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2_at_8192),
        cmocka_unit_test(test_smollm2_at_4096),
        cmocka_unit_test(test_gemma_at_2048),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
