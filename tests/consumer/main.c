/* SPDX-License-Identifier: MIT
 * Uses the installed library: one layer, 200 tokens, one attention. */
#include <kvfold.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TOKENS = 200, DIM = 64 };

static kvf_view rows(const float (*x)[DIM])
{
    return (kvf_view){.data = x, .type = KVF_F32, .token_stride = sizeof *x, .head_stride = sizeof *x};
}

int main(void)
{
    static float k[TOKENS][DIM], v[TOKENS][DIM], out[TOKENS][DIM];
    for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < DIM; c++) {
            k[t][c] = (float)((t * 7 + c * 3) % 11) - 5.0f;
            v[t][c] = 1.0f;
        }
    }
    kvf_layer layer;
    kvf_layer_init(&layer);
    layer.q_heads = layer.kv_heads = 1;
    layer.k_dim = layer.v_dim = DIM;
    char error[256] = "";
    kvf_params p;
    kvf_params_init(&p);
    p.n_layers = 1;
    p.layers = &layer;
    p.k = p.v = "kivi4";
    p.error = error;
    p.error_size = sizeof error;

    kvf_cache *cache = NULL;
    kvf_token tokens[TOKENS];
    for (int t = 0; t < TOKENS; t++) tokens[t] = (kvf_token){.seq = 0, .pos = t};
    kvf_attention a;
    kvf_attention_init(&a);
    a.q = a.k = rows((const float(*)[DIM])k);
    a.v = rows((const float(*)[DIM])v);
    a.scale = 0.125f;
    a.out = &out[0][0];
    a.out_token_stride = a.out_head_stride = sizeof out[0];
    if (kvf_cache_create(&cache, &p) != KVF_OK || kvf_batch_begin(cache, tokens, TOKENS) != KVF_OK ||
        kvf_attend(cache, &a) != KVF_OK || kvf_batch_append(cache, 0, &a.k, &a.v, NULL) != KVF_OK ||
        kvf_batch_commit(cache) != KVF_OK) {
        fprintf(stderr, "%s%s\n", error, cache ? kvf_cache_error(cache) : "");
        return 1;
    }
    kvf_stats_t s = {.size = sizeof s};
    int good = kvf_stats(cache, &s) == KVF_OK && s.tokens == TOKENS && s.accounted == kvf_bytes(&p, TOKENS) &&
               fabsf(out[TOKENS - 1][0] - 1.0f) < 1e-3f;
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", KVF_VERSION_MAJOR, KVF_VERSION_MINOR, KVF_VERSION_PATCH);
    good = good && strcmp(version, kvf_version()) == 0;
    printf("kvfold %s: %lld tokens in %lld bytes, f16 %lld\n", kvf_version(), (long long)s.tokens, (long long)s.accounted,
           (long long)s.f16);
    kvf_cache_free(&cache);
    return good && !cache ? 0 : 1;
}
