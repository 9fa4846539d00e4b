/* SPDX-License-Identifier: MIT
 * The adapter's own rules: what prepare sets and refuses, what attach checks, per-layer codecs, batches in every form that a
 * llama_batch may have, logits, a full context, a context used behind the handle's back, numbers, detaching.
 * Most on a small generated model; the real ones for what only they have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture.h"
#include "real.h"

#define MODEL "llama-64"

static arm opened(struct llama_model *model, const arm_options *o)
{
    arm a;
    if (arm_open(&a, model, o)) fail_msg("open: %s", a.error);
    return a;
}

static arm folded(struct llama_model *model, int32_t n_ctx, const char *k, const char *v)
{
    arm_options o;
    arm_options_init(&o, n_ctx, k, v);
    return opened(model, &o);
}

static void same(const float *x, const float *y, int32_t n_vocab, int32_t rows)
{
    assert_memory_equal(x, y, (size_t)n_vocab * (size_t)rows * sizeof *x);
}

/* Equal but for how many rows leave the last layer, which chooses another kernel there. */
static void close_to(const float *x, const float *y, int32_t n_vocab)
{
    assert_non_null(x);
    assert_true(arm_distance(x, y, n_vocab) < 1e-5);
}

/* ---- prepare -------------------------------------------------------------------------------------------------------------- */

static int prepare(struct llama_model *model, struct llama_context_params *c, const kvf_llama_params *p, char *why, size_t size)
{
    kvf_llama *h = NULL;
    int rc = kvf_llama_prepare(model, c, p, &h, why, size);
    assert_true((h != NULL) == (rc == KVF_OK));
    kvf_llama_free(&h);
    assert_null(h);
    return rc;
}

static void test_batch_fits(void **state)
{
    (void)state;
    static const struct {
        int32_t asked, n_seq, n_batch;
    } cases[] = {{0, 1, 255}, {255, 1, 255}, {512, 1, 511}, {1, 1, 255},   {600, 1, 511},  {700, 1, 767},
                 {0, 4, 252}, {0, 255, 257}, {1, 255, 257}, {0, 200, 312}, {2048, 2, 2046}};
    fixture *f = fixture_get(MODEL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct llama_context_params c = llama_context_default_params();
        kvf_llama_params p;
        kvf_llama_params_init(&p);
        p.n_batch = cases[i].asked, p.n_seq = cases[i].n_seq;
        assert_int_equal(prepare(f->model, &c, &p, NULL, 0), KVF_OK);
        assert_int_equal(c.n_batch, cases[i].n_batch);
        assert_int_equal(c.n_ubatch, cases[i].n_batch);
        assert_int_equal(c.n_ctx, cases[i].n_batch + cases[i].n_seq);
        assert_int_equal(c.n_ctx % 256, 0);
        assert_int_equal(c.n_seq_max, cases[i].n_seq);
        assert_int_equal(c.flash_attn_type, LLAMA_FLASH_ATTN_TYPE_ENABLED);
        assert_true(c.type_k == GGML_TYPE_F16 && c.type_v == GGML_TYPE_F16);
        assert_true(c.kv_unified && !c.swa_full && !c.offload_kqv && c.cb_eval);
    }
}

/* LongRoPE factors follow the folded context: 512 is where this model changes them. */
static void test_long_rope_cells(void **state)
{
    (void)state;
    static const struct {
        int64_t n_ctx;
        int32_t n_batch, cells;
    } cases[] = {{512, 0, 256}, {513, 0, 768}, {4096, 0, 768}, {4096, 1023, 1024}, {512, 1023, 512}};
    fixture *f = fixture_get("llama-longrope");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct llama_context_params c = llama_context_default_params();
        kvf_llama_params p;
        kvf_llama_params_init(&p);
        p.n_ctx = cases[i].n_ctx, p.n_batch = cases[i].n_batch;
        assert_int_equal(prepare(f->model, &c, &p, NULL, 0), KVF_OK);
        assert_int_equal(c.n_ctx, cases[i].cells);
        assert_true(c.n_batch < c.n_ctx);
    }
}

typedef void (*spoil)(struct llama_context_params *c, kvf_llama_params *p);

static void spoil_embeddings(struct llama_context_params *c, kvf_llama_params *p)
{
    (void)p;
    c->embeddings = true;
}
static void spoil_pooling(struct llama_context_params *c, kvf_llama_params *p)
{
    (void)p;
    c->pooling_type = LLAMA_POOLING_TYPE_MEAN;
}
static void spoil_causal(struct llama_context_params *c, kvf_llama_params *p)
{
    (void)p;
    c->attention_type = LLAMA_ATTENTION_TYPE_NON_CAUSAL;
}
static void spoil_draft(struct llama_context_params *c, kvf_llama_params *p)
{
    (void)p;
    c->ctx_type = LLAMA_CONTEXT_TYPE_MTP;
}
static void spoil_no_seq(struct llama_context_params *c, kvf_llama_params *p)
{
    (void)c;
    p->n_seq = 0;
}
static void spoil_many_seq(struct llama_context_params *c, kvf_llama_params *p)
{
    (void)c;
    p->n_seq = 257;
}
static void spoil_ctx(struct llama_context_params *c, kvf_llama_params *p)
{
    (void)c;
    p->n_ctx = -1;
}
static void spoil_batch(struct llama_context_params *c, kvf_llama_params *p)
{
    (void)c;
    p->n_batch = -5;
}
static void spoil_size(struct llama_context_params *c, kvf_llama_params *p)
{
    (void)c;
    p->size--;
}
static void spoil_layers(struct llama_context_params *c, kvf_llama_params *p)
{
    (void)c;
    p->kv_layer = "0,x=f16";
}

static void test_prepare_refuses(void **state)
{
    (void)state;
    static const struct {
        spoil how;
        int code;
        const char *word;
    } cases[] = {{spoil_embeddings, KVF_E_MODEL, "embeddings"},
                 {spoil_pooling, KVF_E_MODEL, "pools"},
                 {spoil_causal, KVF_E_MODEL, "causal"},
                 {spoil_draft, KVF_E_MODEL, "MTP"},
                 {spoil_no_seq, KVF_E_ARG, "1 to 256"},
                 {spoil_many_seq, KVF_E_ARG, "1 to 256"},
                 {spoil_ctx, KVF_E_ARG, "context"},
                 {spoil_batch, KVF_E_ARG, "-5"},
                 {spoil_size, KVF_E_VERSION, "version"},
                 {spoil_layers, KVF_E_ARG, "0,x"}};
    fixture *f = fixture_get(MODEL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char why[512] = "";
        struct llama_context_params c = llama_context_default_params(), before;
        kvf_llama_params p;
        kvf_llama_params_init(&p);
        cases[i].how(&c, &p);
        before = c;
        int rc = prepare(f->model, &c, &p, why, sizeof why);
        print_message("%d %s\n", rc, why);
        assert_int_equal(rc, cases[i].code);
        assert_non_null(strstr(why, cases[i].word));
        assert_memory_equal(&c, &before, sizeof c);
    }
}

/* ---- attach --------------------------------------------------------------------------------------------------------------- */

static void test_attach_refuses(void **state)
{
    (void)state;
    fixture *f = fixture_get(MODEL);
    struct llama_context_params c = llama_context_default_params(), changed;
    kvf_llama_params p;
    kvf_llama *h;
    kvf_llama_params_init(&p);
    assert_int_equal(kvf_llama_prepare(f->model, &c, &p, &h, NULL, 0), KVF_OK);
    assert_int_equal(kvf_llama_attach(h, NULL), KVF_E_ARG);
    assert_int_equal(kvf_llama_decode(h, llama_batch_get_one(f->text, 1)), KVF_E_STATE);
    changed = c, changed.n_ctx = 1024;
    struct llama_context *ctx = llama_init_from_model(f->model, changed);
    assert_int_equal(kvf_llama_attach(h, ctx), KVF_E_ARG);
    assert_non_null(strstr(kvf_llama_error(h), "1024"));
    llama_free(ctx);
    changed = c, changed.cb_eval = NULL; /* without our callback the probe sees nothing */
    ctx = llama_init_from_model(f->model, changed);
    assert_int_equal(kvf_llama_attach(h, ctx), KVF_E_ARG);
    assert_non_null(strstr(kvf_llama_error(h), "call back"));
    llama_free(ctx);
    ctx = llama_init_from_model(f->model, c);
    assert_int_equal(kvf_llama_attach(h, ctx), KVF_OK); /* a refusal leaves the handle usable */
    assert_int_equal(kvf_llama_attach(h, ctx), KVF_E_STATE);
    kvf_llama_detach(h);
    kvf_llama_detach(h);
    llama_free(ctx);
    kvf_llama_free(&h);
    kvf_llama_free(&h);
    kvf_llama_free(NULL);
}

/* Overrides on a model of `layers`; NULL or a word of the refusal. */
static void try_overrides(const char *model, const char *k, const char *text, const char *refusal, const char *expected)
{
    fixture *f = fixture_get(model);
    char why[512] = "", found[1024] = "";
    struct llama_context_params c = llama_context_default_params();
    kvf_llama_params p;
    kvf_llama *h;
    kvf_llama_params_init(&p);
    p.k = p.v = k, p.kv_layer = text, p.n_ctx = 512;
    int rc = kvf_llama_prepare(f->model, &c, &p, &h, why, sizeof why);
    struct llama_context *ctx = rc ? NULL : llama_init_from_model(f->model, c);
    if (!rc && (rc = kvf_llama_attach(h, ctx))) snprintf(why, sizeof why, "%s", kvf_llama_error(h));
    if (refusal) {
        print_message("%s: %s\n", text, why);
        assert_true(rc < 0);
        assert_non_null(strstr(why, refusal));
    } else {
        assert_string_equal(why, "");
        kvf_llama_layer_t l = {.size = sizeof l};
        for (int32_t i = 0; kvf_llama_layer(h, i, &l) == KVF_OK; i++)
            snprintf(found + strlen(found), sizeof found - strlen(found), "%.*s/%.*s ", (int)strcspn(l.k, ":"), l.k,
                     (int)strcspn(l.v, ":"), l.v);
        assert_string_equal(found, expected);
    }
    kvf_llama_detach(h);
    if (ctx) llama_free(ctx);
    kvf_llama_free(&h);
}

static void test_layer_codecs(void **state)
{
    (void)state;
    try_overrides(MODEL, "f16", "0,2=q8_0;1=kivi4/kivi2", NULL, "q8_0/q8_0 kivi4/kivi2 q8_0/q8_0 f16/f16 ");
    try_overrides(MODEL, "f16", "1-3=kivi4:group=64;2=f16/q4_0", NULL, "f16/f16 kivi4/kivi4 f16/q4_0 kivi4/kivi4 ");
    try_overrides(MODEL, "f16", "", NULL, "f16/f16 f16/f16 f16/f16 f16/f16 ");
    try_overrides(MODEL, "f16", "4=q8_0", "0 to 3", NULL);
    try_overrides(MODEL, "f16", "3-1=q8_0", "3 to 1", NULL);
    try_overrides(MODEL, "f16", "1", "'='", NULL);
    try_overrides(MODEL, "f16", "1,=q8_0", "1,", NULL);
    try_overrides(MODEL, "f16", "=q8_0", "list", NULL);
    try_overrides(MODEL, "f16", "1=", "codec", NULL);
    try_overrides(MODEL, "f16", "1=q8_0/", "codec", NULL);
    try_overrides(MODEL, "f16", "-1=q8_0", "list", NULL);
    try_overrides(MODEL, "f16", "99999999999999999999=q8_0", "0 to 3", NULL);
    try_overrides(MODEL, "f16", "2=nonsense9", "layer 2", NULL);
    try_overrides(MODEL, "kivi7", NULL, "layer 0", NULL);
    try_overrides("gemma4", "f16", "4=q8_0", "layer 2", NULL); /* layer 4 reads layer 2's rows */
    try_overrides("lfm2", "f16", "0=q8_0", "no attention", NULL);
}

/* ---- batches -------------------------------------------------------------------------------------------------------------- */

/* The least a llama_batch may hold: tokens, and defaults for all the rest. */
static void test_default_rows(void **state)
{
    (void)state;
    fixture *f = fixture_get(MODEL);
    size_t row = (size_t)f->n_vocab;
    float *logits = fixture_logits(f->n_vocab, 100);
    arm a = folded(f->model, 512, "f16", "f16"), b = folded(f->model, 512, "f16", "f16");
    assert_int_equal(arm_feed(&a, f->text, 0, 40, 0, logits), 0);
    assert_int_equal(kvf_llama_decode(b.fold, llama_batch_get_one(f->text, 40)), 0);
    close_to(kvf_llama_logits_ith(b.fold, 39), logits + 39 * row, f->n_vocab);
    close_to(kvf_llama_logits_ith(b.fold, -1), logits + 39 * row, f->n_vocab);
    assert_null(kvf_llama_logits_ith(b.fold, 38)); /* not asked for */
    assert_null(kvf_llama_logits_ith(b.fold, 40));
    assert_null(kvf_llama_logits_ith(b.fold, -2));
    assert_int_equal(arm_feed(&a, f->text, 40, 30, 0, logits), 0);
    assert_int_equal(kvf_llama_decode(b.fold, llama_batch_get_one(f->text + 40, 30)), 0);
    close_to(kvf_llama_logits_ith(b.fold, -1), logits + 29 * row, f->n_vocab);
    assert_int_equal(kvf_llama_pos_max(b.fold, 0), 69);
    arm_close(&a);
    arm_close(&b);
    free(logits);
}

/* Outputs scattered over a batch of three parts. */
static void test_scattered_outputs(void **state)
{
    (void)state;
    enum { ROWS = 600 };
    static const int32_t wanted[] = {0, 7, 254, 255, 256, 509, 510, 511, 598};
    const int32_t n = (int32_t)(sizeof wanted / sizeof *wanted);
    fixture *f = fixture_get(MODEL);
    size_t row = (size_t)f->n_vocab;
    float *logits = fixture_logits(f->n_vocab, ROWS);
    arm a = folded(f->model, 1024, "f16", "f16"), b = folded(f->model, 1024, "f16", "f16");
    assert_int_equal(arm_feed(&a, f->text, 0, ROWS, 0, logits), 0);
    struct llama_batch batch = llama_batch_init(ROWS, 0, 1);
    batch.n_tokens = ROWS;
    for (int32_t i = 0; i < ROWS; i++) {
        batch.token[i] = f->text[i], batch.pos[i] = i, batch.n_seq_id[i] = 1, batch.seq_id[i][0] = 0, batch.logits[i] = 0;
    }
    for (int32_t i = 0; i < n; i++) batch.logits[wanted[i]] = 1;
    assert_int_equal(kvf_llama_decode(b.fold, batch), 0);
    for (int32_t i = 0; i < n; i++) {
        const float *at = kvf_llama_logits_ith(b.fold, wanted[i]), *from_end = kvf_llama_logits_ith(b.fold, i - n);
        close_to(at, logits + (size_t)wanted[i] * row, f->n_vocab);
        assert_ptr_equal(at, from_end);
    }
    assert_null(kvf_llama_logits_ith(b.fold, 1));
    assert_null(kvf_llama_logits_ith(b.fold, 599));
    batch.pos[0] = 5; /* refused: the logits of before are gone, not wrong */
    assert_int_equal(kvf_llama_decode(b.fold, batch), KVF_E_POSITION);
    assert_null(kvf_llama_logits_ith(b.fold, 0));
    llama_batch_free(batch);
    arm_close(&a);
    arm_close(&b);
    free(logits);
}

static void test_bad_rows(void **state)
{
    (void)state;
    fixture *f = fixture_get(MODEL);
    arm a = folded(f->model, 512, "f16", "f16");
    llama_token bad[2] = {f->text[0], f->n_vocab};
    assert_int_equal(kvf_llama_decode(a.fold, llama_batch_get_one(bad, 2)), KVF_E_ARG);
    assert_non_null(strstr(kvf_llama_error(a.fold), "row 1"));
    bad[1] = -1;
    assert_int_equal(kvf_llama_decode(a.fold, llama_batch_get_one(bad, 2)), KVF_E_ARG);
    assert_int_equal(kvf_llama_decode(a.fold, llama_batch_get_one(bad, 0)), KVF_E_ARG);
    struct llama_batch two = llama_batch_init(1, 0, 2);
    two.n_tokens = 1, two.token[0] = f->text[0], two.pos[0] = 0, two.n_seq_id[0] = 2, two.logits[0] = 1;
    two.seq_id[0][0] = 0, two.seq_id[0][1] = 1;
    assert_int_equal(kvf_llama_decode(a.fold, two), KVF_E_UNSUPPORTED);
    llama_batch_free(two);
    llama_set_causal_attn(a.ctx, false);
    assert_int_equal(kvf_llama_decode(a.fold, llama_batch_get_one(f->text, 2)), KVF_E_UNSUPPORTED);
    llama_set_causal_attn(a.ctx, true);
    assert_int_equal(kvf_llama_pos_max(a.fold, 0), -1);
    assert_int_equal(kvf_llama_decode(a.fold, llama_batch_get_one(f->text, 2)), KVF_OK);
    assert_string_equal(kvf_llama_error(a.fold), "");
    arm_close(&a);
}

/* An empty sequence may start anywhere; the model sees distances only. */
static void test_starts_anywhere(void **state)
{
    (void)state;
    fixture *f = fixture_get(MODEL);
    float *near = fixture_logits(f->n_vocab, 60), *far = fixture_logits(f->n_vocab, 60);
    arm a = folded(f->model, 512, "f16", "f16");
    arm_row rows[60];
    for (int32_t start = 0; start <= 100000; start += 100000) {
        for (int32_t i = 0; i < 60; i++) rows[i] = (arm_row){.token = f->text[i], .pos = start + i};
        assert_int_equal(arm_decode(&a, rows, 40, start ? far : near), 0);
        assert_int_equal(arm_decode(&a, rows + 40, 20, (start ? far : near) + 40 * (size_t)f->n_vocab), 0);
        assert_int_equal(kvf_llama_pos_max(a.fold, 0), start + 59);
        assert_int_equal(arm_cut(&a, 0, 0), 0);
    }
    double worst = arm_worst(far, near, 0, 60, f->n_vocab, NULL);
    print_message("from position 100000 instead of 0: %.2e\n", worst);
    assert_true(worst < 2e-2); /* f32 angles at such positions */
    arm_close(&a);
    free(near);
    free(far);
}

/* ---- limits --------------------------------------------------------------------------------------------------------------- */

static void test_full_context(void **state)
{
    (void)state;
    enum { CONTEXT = 300 };
    fixture *f = fixture_get(MODEL);
    float *clean = fixture_logits(f->n_vocab, 1), *logits = fixture_logits(f->n_vocab, 1);
    arm a = folded(f->model, CONTEXT, "kivi4", "kivi4");
    assert_int_equal(kvf_llama_n_ctx(a.fold), CONTEXT);
    assert_int_equal(arm_feed(&a, f->text, 0, CONTEXT - 1, 0, NULL), 0);
    assert_int_equal(arm_feed(&a, f->text, CONTEXT - 1, 2, 0, NULL), KVF_E_FULL);
    assert_non_null(strstr(kvf_llama_error(a.fold), "300"));
    assert_int_equal(arm_feed(&a, f->text, CONTEXT - 1, 1, 0, clean), 0);
    assert_int_equal(arm_feed(&a, f->text, CONTEXT, 1, 0, NULL), KVF_E_FULL);
    assert_int_equal(kvf_llama_pos_max(a.fold, 0), CONTEXT - 1);
    for (int32_t cut = CONTEXT - 150; cut < CONTEXT - 138; cut++) { /* each leaves a block with one row, and yet all fit again */
        assert_int_equal(arm_cut(&a, 0, cut), 0);
        assert_int_equal(arm_feed(&a, f->text, cut, CONTEXT - cut, 0, NULL), 0);
        assert_int_equal(arm_feed(&a, f->text, CONTEXT, 1, 0, NULL), KVF_E_FULL);
    }
    assert_int_equal(arm_cut(&a, 0, 0), 0);
    assert_int_equal(arm_feed(&a, f->text, 0, CONTEXT - 1, 0, NULL), 0);
    assert_int_equal(arm_feed(&a, f->text, CONTEXT - 1, 1, 0, logits), 0);
    same(logits, clean, f->n_vocab, 1);
    arm_close(&a);
    free(clean);
    free(logits);
}

static void test_used_behind(void **state)
{
    (void)state;
    fixture *f = fixture_get(MODEL);
    arm a = folded(f->model, 512, "f16", "f16");
    assert_int_equal(arm_feed(&a, f->text, 0, 20, 0, NULL), 0);
    assert_int_equal(llama_decode(a.ctx, llama_batch_get_one(f->text + 20, 3)), 0);
    assert_int_equal(arm_feed(&a, f->text, 20, 3, 0, NULL), KVF_E_STATE);
    print_message("%s\n", kvf_llama_error(a.fold));
    assert_int_equal(kvf_llama_pos_max(a.fold, 0), 19);
    assert_int_equal(arm_cut(&a, 0, 0), 0); /* the way out */
    assert_int_equal(arm_feed(&a, f->text, 0, 20, 0, NULL), 0);
    arm_close(&a);
}

/* ---- numbers, and the end ------------------------------------------------------------------------------------------------- */

static void test_numbers(void **state)
{
    (void)state;
    enum { LAYERS = 4, ROW = 2 * 2 * 64 * 2 }; /* K and V of 2 heads of 64 in f16 */
    fixture *f = fixture_get(MODEL);
    arm a = folded(f->model, 1000, "kivi4", "f16");
    kvf_llama_stats_t s = {.size = sizeof s};
    assert_int_equal(kvf_llama_stats(a.fold, &s), KVF_OK);
    assert_int_equal(s.asks, 0);
    assert_int_equal(arm_feed(&a, f->text, 0, 300, 0, NULL), 0);
    assert_int_equal(kvf_llama_stats(a.fold, &s), KVF_OK);
    assert_int_equal(s.layers_total, LAYERS);
    assert_int_equal(s.layers_attention, LAYERS);
    assert_int_equal(s.layers_folded, LAYERS);
    assert_int_equal(s.host_cells, 256);
    assert_int_equal(s.n_batch, 255);
    assert_int_equal(s.host, (int64_t)256 * LAYERS * ROW);
    assert_int_equal(s.f16, (int64_t)1024 * LAYERS * ROW);
    assert_int_equal(s.stops, 2 * LAYERS); /* two parts */
    assert_true(s.asks > 20 * s.stops / 4 && s.attend_seconds > 0);
    kvf_stats_t cache = {.size = sizeof cache};
    assert_int_equal(kvf_stats(kvf_llama_cache(a.fold), &cache), KVF_OK);
    assert_int_equal(cache.tokens, 300);
    kvf_llama_layer_t l = {.size = sizeof l};
    assert_int_equal(kvf_llama_layer(a.fold, LAYERS, &l), KVF_E_ARG);
    s.size = 1;
    assert_int_equal(kvf_llama_stats(a.fold, &s), KVF_E_VERSION);
    arm_close(&a);
    fixture *windows = fixture_get("gemma3"); /* 128 wide; the sixth layer of seven is full */
    a = folded(windows->model, 2000, "f16", "f16");
    s.size = sizeof s;
    assert_int_equal(kvf_llama_stats(a.fold, &s), KVF_OK);
    assert_int_equal(s.f16, (int64_t)(2048 + 6 * 512) * 2 * 256 * 2);
    assert_int_equal(llama_n_seq_max(a.ctx), 2); /* the window probe needs two, and the caller has one all the same */
    assert_int_equal(arm_feed(&a, windows->text, 0, 1, 1, NULL), KVF_E_ARG);
    arm_close(&a);
}

static bool count_attention(struct ggml_tensor *t, bool ask, void *user)
{
    *(int *)user += !ask;
    return t->op == GGML_OP_FLASH_ATTN_EXT;
}

/* Afterwards the context is a plain one, byte for byte, with the caller's callback. */
static void test_detached_is_plain(void **state)
{
    (void)state;
    fixture *f = fixture_get(MODEL);
    float *plain = fixture_logits(f->n_vocab, 100), *logits = fixture_logits(f->n_vocab, 100);
    int calls = 0;
    arm_options o;
    arm_options_init(&o, 256, NULL, NULL);
    arm a = opened(f->model, &o);
    assert_int_equal(arm_feed(&a, f->text, 0, 100, 0, plain), 0);
    arm_close(&a);
    arm_options_init(&o, 512, "f16", "f16");
    o.cb_eval = count_attention, o.cb_user = &calls;
    a = opened(f->model, &o);
    assert_int_equal(calls, 0); /* the probe is not the caller's business */
    assert_int_equal(arm_feed(&a, f->text, 0, 200, 0, NULL), 0);
    assert_int_equal(calls, 4);
    kvf_llama_detach(a.fold);
    assert_null(kvf_llama_cache(a.fold));
    assert_int_equal(llama_memory_seq_pos_max(llama_get_memory(a.ctx), 0), -1);
    kvf_llama *handle = a.fold;
    a.fold = NULL;
    assert_int_equal(arm_feed(&a, f->text, 0, 100, 0, logits), 0);
    same(logits, plain, f->n_vocab, 100);
    assert_int_equal(calls, 8);
    arm_close(&a);
    kvf_llama_free(&handle);
    free(plain);
    free(logits);
}

typedef struct aborter {
    int at, seen;
} aborter;

static bool abort_at(void *user)
{
    aborter *a = user;
    return ++a->seen == a->at;
}

/* Decodes that end between the two calls for a node leave no node switched off: libllama uses its graph again. */
static void test_aborted_is_plain(void **state)
{
    (void)state;
    enum { ROWS = 24 };
    fixture *f = fixture_get(MODEL);
    float *plain = fixture_logits(f->n_vocab, ROWS), *logits = fixture_logits(f->n_vocab, ROWS);
    aborter end = {0};
    arm_options o;
    arm_options_init(&o, 256, NULL, NULL);
    arm a = opened(f->model, &o);
    assert_int_equal(arm_feed(&a, f->text, 0, ROWS, 0, plain), 0);
    arm_close(&a);
    arm_options_init(&o, 512, "f16", "f16");
    o.abort = abort_at, o.abort_user = &end;
    a = opened(f->model, &o);
    end.seen = 0;
    assert_int_equal(arm_feed(&a, f->text, 0, ROWS, 0, logits), 0);
    int calls = end.seen;
    assert_true(calls > 20);
    assert_int_equal(arm_cut(&a, 0, 0), 0);
    for (end.at = calls; end.at > 0; end.at--) { /* from the last layer to the first: a later one cannot mend an earlier one */
        end.seen = 0;
        assert_int_equal(arm_feed(&a, f->text, 0, ROWS, 0, logits), KVF_E_HOST);
        assert_int_equal(kvf_llama_pos_max(a.fold, 0), -1);
    }
    kvf_llama_detach(a.fold);
    kvf_llama *handle = a.fold;
    a.fold = NULL;
    assert_int_equal(arm_feed(&a, f->text, 0, ROWS, 0, logits), 0);
    same(logits, plain, f->n_vocab, ROWS);
    arm_close(&a);
    kvf_llama_free(&handle);
    free(plain);
    free(logits);
}

/* The host's own attention changes nothing but the time. */
static void test_host_attention_kept(void **state)
{
    (void)state;
    fixture *f = fixture_get(MODEL);
    float *clean = fixture_logits(f->n_vocab, 80), *logits = fixture_logits(f->n_vocab, 80);
    for (int keep = 0; keep < 2; keep++) {
        struct llama_context_params c = llama_context_default_params();
        kvf_llama_params p;
        arm a = {.model = f->model, .n_vocab = f->n_vocab};
        kvf_llama_params_init(&p);
        p.n_ctx = 512, p.k = p.v = "kivi4", p.keep_host_attention = keep;
        c.n_threads = c.n_threads_batch = 2;
        assert_int_equal(kvf_llama_prepare(f->model, &c, &p, &a.fold, NULL, 0), KVF_OK);
        a.ctx = llama_init_from_model(f->model, c);
        assert_int_equal(kvf_llama_attach(a.fold, a.ctx), KVF_OK);
        assert_int_equal(arm_feed(&a, f->text, 0, 200, 0, NULL), 0);
        assert_int_equal(arm_feed(&a, f->text, 200, 80, 0, keep ? logits : clean), 0);
        arm_close(&a);
    }
    same(logits, clean, f->n_vocab, 80);
    free(clean);
    free(logits);
}

/* ---- real models ---------------------------------------------------------------------------------------------------------- */

/* More context than the host has cells, a decode that the caller's callback stops in the middle, and the clean run again. */
typedef struct stopper {
    int at, seen;
} stopper;

static bool stop_at_layer(struct ggml_tensor *t, bool ask, void *user)
{
    stopper *s = user;
    if (ask) return t->op == GGML_OP_FLASH_ATTN_EXT;
    return ++s->seen != s->at;
}

static void test_smollm2_fails_and_goes_on(void **state)
{
    (void)state;
    enum { FIRST = 400, STEPS = 6 };
    struct llama_model *model = real_load(REAL_SMOLLM2, false);
    llama_token *text = real_tokens(model, &SLICE_A, FIRST + STEPS);
    int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    float *clean = fixture_logits(n_vocab, STEPS), *logits = fixture_logits(n_vocab, STEPS);
    stopper s = {0};
    arm_options o;
    arm_options_init(&o, 1024, "kivi4", "kivi4");
    o.cb_eval = stop_at_layer, o.cb_user = &s;
    arm a = opened(model, &o);
    assert_int_equal(llama_n_ctx(a.ctx), 256);
    assert_int_equal(arm_feed(&a, text, 0, FIRST, 0, NULL), 0);
    for (int32_t i = 0; i < STEPS; i++)
        assert_int_equal(arm_feed(&a, text, FIRST + i, 1, 0, clean + (size_t)i * (size_t)n_vocab), 0);
    assert_int_equal(arm_cut(&a, 0, 0), 0);
    assert_int_equal(arm_feed(&a, text, 0, FIRST, 0, NULL), 0);
    for (int32_t i = 0; i < STEPS; i++) {
        s = (stopper){.at = 1 + 7 * i}; /* the last in vain: 30 layers have answered before */
        int rc = s.at <= 30 ? arm_feed(&a, text, FIRST + i, 1, 0, logits) : 0;
        if (s.at <= 30) {
            assert_int_equal(rc, KVF_E_HOST);
            assert_null(kvf_llama_logits_ith(a.fold, -1));
            assert_int_equal(kvf_llama_pos_max(a.fold, 0), FIRST + i - 1);
        }
        s = (stopper){0};
        assert_int_equal(arm_feed(&a, text, FIRST + i, 1, 0, logits + (size_t)i * (size_t)n_vocab), 0);
    }
    same(logits, clean, n_vocab, STEPS);
    arm_close(&a);
    free(text);
    free(clean);
    free(logits);
    llama_model_free(model);
}

static void test_gemma_layers(void **state)
{
    (void)state;
    struct llama_model *model = real_load(REAL_GEMMA, false);
    arm a = folded(model, 4096, "f16", "f16");
    for (int32_t il = 0; il < 18; il++) {
        kvf_llama_layer_t l = {.size = sizeof l};
        int full = il % 6 == 5;
        assert_int_equal(kvf_llama_layer(a.fold, il, &l), KVF_OK);
        assert_int_equal(l.window, full ? 0 : 512);
        assert_true(l.rope_base == (full ? 1e6f : 1e4f) && l.rope_dims == 256);
        assert_true(l.q_heads == 4 && l.kv_heads == 1 && l.k_dim == 256 && l.v_dim == 256);
    }
    kvf_llama_stats_t s = {.size = sizeof s};
    assert_int_equal(kvf_llama_stats(a.fold, &s), KVF_OK);
    assert_int_equal(s.f16, (int64_t)(3 * 4096 + 15 * 768) * 1024);
    arm_close(&a);
    llama_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_fits),        cmocka_unit_test(test_prepare_refuses),
        cmocka_unit_test(test_attach_refuses),    cmocka_unit_test(test_default_rows),
        cmocka_unit_test(test_scattered_outputs), cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_starts_anywhere),   cmocka_unit_test(test_full_context),
        cmocka_unit_test(test_used_behind),       cmocka_unit_test(test_detached_is_plain),
        cmocka_unit_test(test_aborted_is_plain),  cmocka_unit_test(test_host_attention_kept),
        cmocka_unit_test(test_layer_codecs),      cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_long_rope_cells),   cmocka_unit_test(test_smollm2_fails_and_goes_on),
        cmocka_unit_test(test_gemma_layers),
    };
    return cmocka_run_group_tests_name("adapter basics", tests, NULL, fixture_free);
}
