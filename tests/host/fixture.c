/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static fixture current;
static char folder[256];

const char *fixture_folder(void)
{
    if (!folder[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/kvfold-XXXXXX", base ? base : "/tmp");
        assert_non_null(mkdtemp(folder));
    }
    return folder;
}

float *fixture_logits(int32_t n_vocab, int32_t rows)
{
    float *p = malloc((size_t)n_vocab * (size_t)rows * sizeof *p);
    assert_non_null(p);
    return p;
}

/* The file may go as soon as it is mapped. */
struct llama_model *fixture_load(const char *name, enum ggml_type weights)
{
    char path[512], error[512] = "";
    const gen_model *m = gen_model_find(name);
    assert_non_null(m);
    snprintf(path, sizeof path, "%s/%s.gguf", fixture_folder(), name);
    int rc = gen_model_write(m, weights, path, error, sizeof error);
    assert_string_equal(error, "");
    assert_int_equal(rc, 0);
    struct llama_model *model = arm_load(path);
    remove(path);
    assert_non_null(model);
    return model;
}

static void forget(void)
{
    if (current.model) llama_model_free(current.model);
    free(current.wide);
    free(current.single);
    memset(&current, 0, sizeof current);
}

static void run_wide(fixture *f)
{
    arm_options o;
    arm a;
    arm_options_init(&o, 1024, NULL, NULL);
    assert_int_equal(arm_open(&a, f->model, &o), KVF_OK);
    for (int32_t pos = 0; pos < TEXT_TOKENS; pos += TEXT_TOKENS / 4)
        assert_int_equal(arm_feed(&a, f->text, pos, TEXT_TOKENS / 4, 0, f->wide + (size_t)pos * (size_t)f->n_vocab), 0);
    arm_close(&a);
}

static void run_single(fixture *f)
{
    arm_options o;
    arm a;
    arm_options_init(&o, 1024, NULL, NULL);
    assert_int_equal(arm_open(&a, f->model, &o), KVF_OK);
    assert_int_equal(arm_feed(&a, f->text, 0, PREFILL_TOKENS, 0, f->single), 0);
    for (int32_t pos = PREFILL_TOKENS; pos < PREFILL_TOKENS + DECODE_TOKENS; pos++)
        assert_int_equal(arm_feed(&a, f->text, pos, 1, 0, f->single + (size_t)pos * (size_t)f->n_vocab), 0);
    arm_close(&a);
}

fixture *fixture_get(const char *name)
{
    uint32_t state = 1;
    if (current.spec && !strcmp(current.spec->name, name)) return &current;
    forget();
    current.model = fixture_load(name, GGML_TYPE_F32);
    current.spec = gen_model_find(name);
    current.n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(current.model));
    for (int32_t i = 0; i < TEXT_TOKENS; i++) {
        state = state * 1664525u + 1013904223u;
        current.text[i] = (llama_token)(state >> 24);
    }
    if (current.spec->refused) return &current;
    current.wide = fixture_logits(current.n_vocab, TEXT_TOKENS);
    current.single = fixture_logits(current.n_vocab, PREFILL_TOKENS + DECODE_TOKENS);
    run_wide(&current);
    run_single(&current);
    return &current;
}

int fixture_free(void **state)
{
    (void)state;
    forget();
    if (folder[0]) rmdir(folder);
    folder[0] = 0;
    return 0;
}

void fixture_open(arm *a, const fixture *f, const arm_options *o)
{
    if (arm_open(a, f->model, o)) fail_msg("%s, %s: %s", f->spec->name, o->k ? o->k : "plain", a->error);
}

void fixture_feed(arm *a, const fixture *f, int32_t pos, int32_t n, float *logits)
{
    int rc = arm_feed(a, f->text, pos, n, 0, logits ? logits + (size_t)pos * (size_t)f->n_vocab : NULL);
    if (rc)
        fail_msg("%s: decode of positions %d to %d returns %d: %s", f->spec->name, (int)pos, (int)(pos + n - 1), rc,
                 a->fold ? kvf_llama_error(a->fold) : "");
}

void fixture_expect_same(const fixture *f, const char *what, const float *x, const float *y, int32_t from, int32_t to)
{
    size_t at = (size_t)from * (size_t)f->n_vocab, n = (size_t)(to - from) * (size_t)f->n_vocab;
    if (memcmp(x + at, y + at, n * sizeof *x))
        fail_msg("%s: %s: logits differ from the clean run, by %.2e", f->spec->name, what,
                 arm_worst(x, y, from, to, f->n_vocab, NULL));
}
