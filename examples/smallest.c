/* SPDX-License-Identifier: MIT
 * The smallest use of kvfold: one layer, made-up numbers. Appends 1,000 tokens, asks one question, prints the bytes. */
#include "kvfold.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 2, QUERY_HEADS = 4, DIM = 64, TOKENS = 1000 };

static float k[TOKENS][HEADS][DIM], v[TOKENS][HEADS][DIM], q[TOKENS][QUERY_HEADS][DIM], out[TOKENS][QUERY_HEADS][DIM];

static void need(int rc, const kvf_cache *cache)
{
    if (rc == KVF_OK) return;
    fprintf(stderr, "%s: %s\n", kvf_strerror(rc), kvf_cache_error(cache));
    exit(1);
}

/* One batch: `n` rows from token `at` on. */
static void feed(kvf_cache *cache, int at, int n)
{
    kvf_token tokens[TOKENS];
    for (int i = 0; i < n; i++) tokens[i] = (kvf_token){0, at + i};
    kvf_view kv = {k[at], KVF_F32, 0, sizeof k[0], sizeof k[0][0]};
    kvf_view vv = {v[at], KVF_F32, 0, sizeof v[0], sizeof v[0][0]};
    kvf_attention a;
    kvf_attention_init(&a);
    a.q = (kvf_view){q[at], KVF_F32, 0, sizeof q[0], sizeof q[0][0]};
    a.k = kv, a.v = vv, a.scale = 1 / sqrtf(DIM);
    a.out = out[at][0], a.out_token_stride = sizeof out[0], a.out_head_stride = sizeof out[0][0];

    need(kvf_batch_begin(cache, tokens, n), cache);
    need(kvf_attend(cache, &a), cache); /* the rows attend to the folded history and to each other */
    need(kvf_batch_append(cache, 0, &kv, &vv, NULL), cache);
    need(kvf_batch_commit(cache), cache); /* only now are they stored and folded */
}

int main(void)
{
    for (int t = 0; t < TOKENS; t++)
        for (int d = 0; d < DIM; d++) {
            for (int h = 0; h < HEADS; h++)
                k[t][h][d] = sinf(0.7f * (float)(t * (h + 1) + d)), v[t][h][d] = cosf(0.3f * (float)(t + d));
            for (int h = 0; h < QUERY_HEADS; h++) q[t][h][d] = sinf(0.2f * (float)(t + h + d));
        }
    kvf_layer layer;
    kvf_layer_init(&layer);
    layer.q_heads = QUERY_HEADS, layer.kv_heads = HEADS, layer.k_dim = layer.v_dim = DIM;
    kvf_params params;
    char why[200];
    kvf_params_init(&params);
    params.n_layers = 1, params.layers = &layer, params.k = params.v = "kivi4";
    params.error = why, params.error_size = sizeof why;
    kvf_cache *cache;
    if (kvf_cache_create(&cache, &params)) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    for (int at = 0; at < TOKENS; at += 100) feed(cache, at, 100);

    kvf_stats_t s = {.size = sizeof s};
    need(kvf_stats(cache, &s), cache);
    printf("%lld tokens: %lld sink, %lld packed, %lld recent\n", (long long)s.tokens, (long long)s.tokens_sink,
           (long long)s.tokens_body, (long long)s.tokens_window);
    printf("codes %.2f bits a value, f16 would be %lld bytes\n", s.bits_code, (long long)s.f16);
    printf("last output starts %.4f %.4f %.4f\n", (double)out[TOKENS - 1][0][0], (double)out[TOKENS - 1][0][1],
           (double)out[TOKENS - 1][0][2]);
    kvf_cache_free(&cache);
    return 0;
}
