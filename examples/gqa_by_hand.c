/* SPDX-License-Identifier: MIT
 * Grouped-query attention through the cache against a plain loop over the same numbers: how far off is each codec?
 * Two sequences in one cache, batches of uneven size, the work shared out by hand (parts may go to any threads). */
#include "kvfold.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { SEQS = 2, TOKENS = 700, HEADS = 2, GROUP = 4, QUERY_HEADS = HEADS * GROUP, DIM = 96 };

typedef struct tokens {
    float k[TOKENS][HEADS][DIM], v[TOKENS][HEADS][DIM], q[TOKENS][QUERY_HEADS][DIM];
} tokens;
static tokens data[SEQS];

static float noise(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*state >> 40) / 16777216.0f - 0.5f;
    }
    return sum * 1.7320508f; /* variance 1 */
}

static void fill(tokens *t, uint64_t seed)
{
    float *all = &t->k[0][0][0];
    for (size_t i = 0; i < sizeof *t / sizeof *all; i++) all[i] = noise(&seed);
}

/* The definition, in double: softmax over all tokens up to `last`. */
static void plain_loop(const tokens *t, int last, int head, double out[DIM])
{
    double score[TOKENS], max = -INFINITY, sum = 0;
    for (int j = 0; j <= last; j++) {
        score[j] = 0;
        for (int d = 0; d < DIM; d++) score[j] += (double)t->q[last][head][d] * (double)t->k[j][head / GROUP][d] / sqrt(DIM);
        if (score[j] > max) max = score[j];
    }
    for (int d = 0; d < DIM; d++) out[d] = 0;
    for (int j = 0; j <= last; j++) {
        double w = exp(score[j] - max);
        sum += w;
        for (int d = 0; d < DIM; d++) out[d] += w * (double)t->v[j][head / GROUP][d];
    }
    for (int d = 0; d < DIM; d++) out[d] /= sum;
}

/* Tokens at .. at+n of both sequences in one batch: rows of sequence 0 first. Returns the last output of each. */
static int feed(kvf_cache *c, int at, int n, float last[SEQS][QUERY_HEADS][DIM])
{
    static float k[SEQS * TOKENS][HEADS][DIM], v[SEQS * TOKENS][HEADS][DIM], q[SEQS * TOKENS][QUERY_HEADS][DIM],
        out[SEQS * TOKENS][QUERY_HEADS][DIM];
    static kvf_token rows[SEQS * TOKENS];
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; i < n; i++) {
            int r = s * n + i;
            rows[r] = (kvf_token){s, at + i};
            for (int d = 0; d < DIM; d++) {
                for (int h = 0; h < HEADS; h++) k[r][h][d] = data[s].k[at + i][h][d], v[r][h][d] = data[s].v[at + i][h][d];
                for (int h = 0; h < QUERY_HEADS; h++) q[r][h][d] = data[s].q[at + i][h][d];
            }
        }
    kvf_attention a;
    kvf_plan plan;
    kvf_attention_init(&a);
    a.q = (kvf_view){q, KVF_F32, 0, sizeof q[0], sizeof q[0][0]};
    a.k = (kvf_view){k, KVF_F32, 0, sizeof k[0], sizeof k[0][0]};
    a.v = (kvf_view){v, KVF_F32, 0, sizeof v[0], sizeof v[0][0]};
    a.scale = 1 / sqrtf(DIM);
    a.out = out[0][0], a.out_token_stride = sizeof out[0], a.out_head_stride = sizeof out[0][0];
    int rc = kvf_batch_begin(c, rows, SEQS * n);
    if (!rc) rc = kvf_attend_begin(c, &a, &plan);
    for (int i = 0; !rc && i < plan.parts; i++) kvf_attend_part(&plan, i); /* any thread, any order */
    if (!rc) rc = kvf_attend_end(&plan);
    if (!rc) rc = kvf_batch_append(c, 0, &a.k, &a.v, NULL);
    if (!rc) rc = kvf_batch_commit(c);
    for (int s = 0; s < SEQS; s++)
        for (int h = 0; h < QUERY_HEADS; h++)
            for (int d = 0; d < DIM; d++) last[s][h][d] = out[s * n + n - 1][h][d];
    return rc;
}

static double relative_error(float last[SEQS][QUERY_HEADS][DIM])
{
    double off = 0, all = 0, exact[DIM];
    for (int s = 0; s < SEQS; s++)
        for (int h = 0; h < QUERY_HEADS; h++) {
            plain_loop(&data[s], TOKENS - 1, h, exact);
            for (int d = 0; d < DIM; d++) off += pow((double)last[s][h][d] - exact[d], 2), all += exact[d] * exact[d];
        }
    return sqrt(off / all);
}

static int try_codec(const char *spec, double limit)
{
    kvf_layer layer;
    kvf_params p;
    kvf_cache *c;
    char why[200] = "";
    kvf_layer_init(&layer);
    layer.q_heads = QUERY_HEADS, layer.kv_heads = HEADS, layer.k_dim = layer.v_dim = DIM;
    kvf_params_init(&p);
    p.n_layers = 1, p.layers = &layer, p.k = p.v = spec, p.max_sequences = SEQS, p.max_batch = SEQS * TOKENS, p.threads = 2;
    p.error = why, p.error_size = sizeof why;
    if (kvf_cache_create(&c, &p)) {
        fprintf(stderr, "%s: %s\n", spec, why);
        return 1;
    }
    static float last[SEQS][QUERY_HEADS][DIM];
    const int sizes[] = {1, 2, 60, 1, 200, 435, 1}; /* together TOKENS */
    int rc = 0;
    for (int at = 0, i = 0; !rc && at < TOKENS; at += sizes[i++]) rc = feed(c, at, sizes[i], last);
    if (rc) fprintf(stderr, "%s: %s\n", spec, kvf_cache_error(c));
    double error = rc ? 1 : relative_error(last);
    kvf_stats_t s = {.size = sizeof s};
    kvf_stats(c, &s);
    printf("%-12s %6.3f bits a value   relative error %.5f (limit %g)\n", spec, s.bits_code, error, limit);
    kvf_cache_free(&c);
    return error > limit;
}

int main(void)
{
    for (int s = 0; s < SEQS; s++) fill(&data[s], 7 + (uint64_t)s);
    /* Gaussian noise is the hardest input there is; limits are about twice what uniform quantisation noise predicts. */
    return try_codec("f16", 0.001) | try_codec("q8_0", 0.012) | try_codec("kivi4", 0.19) | try_codec("q4_0", 0.2);
}
