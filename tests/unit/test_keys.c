/* SPDX-License-Identifier: MIT
 * What is said of keys: the rule that centres them, the share of their mean, and the warning where a codec cannot cope with it. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DIM = 64, ROWS = 300 };

typedef struct said {
    int n;
    char text[8][320];
} said;

static void listen(void *user, kvf_log_level level, const char *text)
{
    said *s = user;
    assert_int_equal(level, KVF_LOG_WARN);
    if (s->n < 8) snprintf(s->text[s->n], sizeof s->text[0], "%s", text);
    s->n++;
}

/* One batch of `n` rows of all layers: keys are `bias` in every channel of the layers in `biased` (a bit mask), plus small noise. */
static void feed(kvf_cache *c, int layers, int first, int n, unsigned biased, float bias)
{
    static float keys[4][ROWS * DIM], values[4][ROWS * DIM], q[ROWS * DIM], out[ROWS * DIM]; /* staged by reference */
    kvf_token tokens[ROWS];
    for (int i = 0; i < n; i++) tokens[i] = (kvf_token){.pos = first + i};
    assert_int_equal(kvf_batch_begin(c, tokens, n), KVF_OK);
    kvf_view side = {.type = KVF_F32, .token_stride = DIM * sizeof(float), .head_stride = DIM * sizeof(float)};
    for (int l = 0; l < layers; l++) {
        float *k = keys[l], *v = values[l];
        for (int i = 0; i < n * DIM; i++) {
            uint64_t r = ts_mix((uint64_t)(l * 100000 + first * DIM + i));
            k[i] = (biased >> l & 1 ? bias : 0) + (float)(int)(r % 1001) / 500 - 1;
            q[i] = (float)(int)(r >> 32 & 1023) / 512 - 1;
            v[i] = (float)(int)(r >> 48 & 1023) / 512 - 1;
        }
        kvf_attention a;
        kvf_attention_init(&a);
        a.layer = l, a.scale = 0.125f, a.out = out, a.out_token_stride = a.out_head_stride = DIM * sizeof(float);
        a.q = a.k = a.v = side;
        a.q.data = q, a.k.data = k, a.v.data = v;
        assert_int_equal(kvf_attend(c, &a), KVF_OK);
        assert_int_equal(kvf_batch_append(c, l, &a.k, &a.v, NULL), KVF_OK);
    }
    assert_int_equal(kvf_batch_commit(c), KVF_OK);
}

static kvf_keys_t keys_of(const kvf_cache *c, int layer)
{
    kvf_keys_t keys = {.size = sizeof keys};
    assert_int_equal(kvf_keys(c, layer, &keys), KVF_OK);
    return keys;
}

static kvf_cache *open_cache(ts_model *m, const char *k, said *s)
{
    ts_model_init(m, 1, 1, 1, DIM, DIM, k, "f16");
    m->params.log = listen, m->params.log_user = s;
    return ts_create(m);
}

static void rows_of_one_batch(const char *k, float bias, kvf_keys_t *keys, said *s)
{
    ts_model m;
    kvf_cache *c = open_cache(&m, k, s);
    *keys = keys_of(c, 0);
    assert_true(keys->mean_share == -1 && !keys->risky);
    feed(c, 1, 0, 192, 1, bias);
    *keys = keys_of(c, 0);
    kvf_cache_free(&c);
}

/* Noise of variance 1/3 around a constant: its share is bias^2 / (bias^2 + 1/3). */
static void the_share_of_the_mean(void **state)
{
    (void)state;
    static const float biases[] = {0, 0.5f, 1, 4};
    for (int i = 0; i < 4; i++) {
        said s = {0};
        kvf_keys_t keys;
        rows_of_one_batch("kivi4", biases[i], &keys, &s);
        const double b = (double)biases[i] * (double)biases[i], want = b / (b + 1.0 / 3);
        assert_true(fabs(keys.mean_share - want) < 0.05);
        assert_int_equal(keys.risky, 0); /* a scale and a minimum for each channel */
        assert_int_equal(s.n, 0);
    }
}

static void coarse_codes_without_a_centre_are_risky(void **state)
{
    (void)state;
    static const struct {
        const char *k;
        float bias;
        int rule, risky;
    } cases[] = {
        {"uni4", 4, KVF_KEYS_PLAIN_MEAN, 0},
        {"uni4:centre=none", 4, KVF_KEYS_AS_THEY_ARE, 1},
        {"q4_0", 4, KVF_KEYS_AS_THEY_ARE, 1},
        {"q4_0", 0.5f, KVF_KEYS_AS_THEY_ARE, 0},
        {"q8_0", 4, KVF_KEYS_AS_THEY_ARE, 0},
        {"f16", 4, KVF_KEYS_AS_THEY_ARE, 0},
        {"q4_0:centre=block", 4, KVF_KEYS_BLOCK_MEAN, 0},
        {"turbo3:centre=none", 4, KVF_KEYS_AS_THEY_ARE, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        said s = {0};
        kvf_keys_t keys;
        rows_of_one_batch(cases[i].k, cases[i].bias, &keys, &s);
        assert_int_equal(keys.rule, cases[i].rule);
        assert_int_equal(keys.risky, cases[i].risky);
        assert_int_equal(s.n, cases[i].risky);
        if (s.n) assert_non_null(strstr(s.text[0], "layers 0 (1 in all)"));
    }
}

/* Said once, with the layers that it is about. */
static void the_warning_names_layers(void **state)
{
    (void)state;
    ts_model m;
    said s = {0};
    ts_model_init(&m, 4, 1, 1, DIM, DIM, "q4_0", "f16");
    m.params.log = listen, m.params.log_user = &s;
    m.layers[3].k = "kivi4";
    kvf_cache *c = ts_create(&m);
    feed(c, 4, 0, 192, 0xa, 4);
    feed(c, 4, 192, 64, 0xf, 4);
    assert_int_equal(s.n, 1);
    assert_non_null(strstr(s.text[0], "layers 1 (1 in all)"));
    assert_int_equal(keys_of(c, 1).risky, 1);
    assert_int_equal(keys_of(c, 0).risky, 0);
    assert_true(keys_of(c, 3).mean_share > 0.95 && !keys_of(c, 3).risky);
    kvf_cache_free(&c);
}

/* A long prompt leaves the window of a layer behind before its first blocks are sealed: it is judged by the first that is. */
static void windowed_layers_are_judged_too(void **state)
{
    (void)state;
    ts_model m;
    said s = {0};
    ts_model_init(&m, 2, 1, 1, DIM, DIM, "q4_0", "f16");
    m.params.log = listen, m.params.log_user = &s, m.params.window_keep = 0;
    m.layers[1].window = 100;
    kvf_cache *c = ts_create(&m);
    feed(c, 2, 0, 256, 3, 4);
    assert_int_equal(s.n, 1);
    assert_non_null(strstr(s.text[0], "layers 0-1 (2 in all)"));
    feed(c, 2, 256, 64, 3, 4);
    assert_int_equal(s.n, 1);
    kvf_cache_free(&c);
}

/* Keys whose rotation cannot be described: every block carries its mean, and the record is longer by it. */
static void unknown_rotation_is_centred_by_block(void **state)
{
    (void)state;
    ts_model m;
    kvf_spec_info prompt, block;
    said told = {0};
    ts_model_init(&m, 1, 1, 1, DIM, DIM, "uni4", "f16");
    m.layers[0].rope_style = KVF_ROPE_UNKNOWN;
    m.params.log = listen, m.params.log_user = &told;
    kvf_cache *c = ts_create(&m);
    assert_int_equal(told.n, 1);
    assert_non_null(strstr(told.text[0], "layers 0 (1 in all): how RoPE turns the keys is not known"));
    assert_int_equal(keys_of(c, 0).rule, KVF_KEYS_BLOCK_MEAN);
    feed(c, 1, 0, 256, 1, 4);
    assert_int_equal(kvf_spec_check("uni4", KVF_K, DIM, &prompt, NULL, 0), KVF_OK);
    assert_int_equal(kvf_spec_check("uni4:centre=block", KVF_K, DIM, &block, NULL, 0), KVF_OK);
    assert_true(block.block_bytes > prompt.block_bytes);
    kvf_stats_t s = {.size = sizeof s};
    assert_int_equal(kvf_stats(c, &s), KVF_OK);
    assert_true(fabs(s.bits_code_k - block.bits_code) < 1e-9);
    float x[DIM];
    for (int pos = 10; pos < 128; pos += 7) { /* a step is about a quarter of the noise's deviation, not of the bias */
        assert_int_equal(kvf_seq_read(c, 0, 0, KVF_K, 0, pos, x), KVF_OK);
        for (int d = 0; d < DIM; d++) {
            uint64_t r = ts_mix((uint64_t)(pos * DIM + d));
            assert_true(fabs((double)x[d] - (4 + (double)(int)(r % 1001) / 500 - 1)) < 0.6);
        }
    }
    kvf_cache_free(&c);
    m.layers[0].rope_dims = 2;
    assert_int_equal(ts_try(&m, &c), KVF_E_ARG);
    assert_non_null(strstr(m.error, "rope"));
}

static void bad_questions(void **state)
{
    (void)state;
    ts_model m;
    said s = {0};
    kvf_cache *c = open_cache(&m, "uni4", &s);
    kvf_keys_t keys = {.size = sizeof keys};
    assert_int_equal(kvf_keys(NULL, 0, &keys), KVF_E_ARG);
    assert_int_equal(kvf_keys(c, 0, NULL), KVF_E_ARG);
    assert_int_equal(kvf_keys(c, -1, &keys), KVF_E_ARG);
    assert_int_equal(kvf_keys(c, 1, &keys), KVF_E_ARG);
    keys.size--;
    assert_int_equal(kvf_keys(c, 0, &keys), KVF_E_VERSION);
    kvf_cache_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_share_of_the_mean),
        cmocka_unit_test(coarse_codes_without_a_centre_are_risky),
        cmocka_unit_test(the_warning_names_layers),
        cmocka_unit_test(windowed_layers_are_judged_too),
        cmocka_unit_test(unknown_rotation_is_centred_by_block),
        cmocka_unit_test(bad_questions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
