/* SPDX-License-Identifier: MIT */
#include "pair.h"

#include "codec/codec.h"
#include "cpu/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sums in f32 stay within 3e-5. Products in 16-bit fixed point (docs/DESIGN.md) round the query and the weights, which leaves 2e-4 of
 * the output, also where a query is aimed at one key. */
#define IN_FLOATS 3e-5
#define FIXED_POINT 2e-4
#define ONE_BIT (3 * FIXED_POINT) /* the step of kivi1 is the whole range of a group, and what is rounded has a step in it */

static double one_bound(const char *spec, kvf_side side, const char *cpu)
{
    kvfi_kernels kernels;
    kvf_part part;
    char error[256];
    if (kvfi_kernels_select(cpu, &kernels, error, sizeof error) || kvfi_part_setup(spec, side, 64, &part, error, sizeof error))
        fail_msg("%s", error);
    if (!kernels.kind[part.kind].fixed_point) return IN_FLOATS;
    return part.has_min && part.bits == 1 ? ONE_BIT : FIXED_POINT;
}

double pair_bound(const char *k, const char *v, const char *cpu)
{
    return fmax(one_bound(k, KVF_K, cpu), one_bound(v, KVF_V, cpu));
}

void pair_open(pair *p)
{
    p->c = ts_create(&p->m);
    p->o = oracle_new(&p->m.params);
    p->bound = 0;
    p->worst = 0;
    kvf_stats_t s = {.size = sizeof s};
    ts_ok(kvf_stats(p->c, &s));
    for (int i = 0; i < p->m.params.n_layers; i++) {
        const kvf_layer *l = &p->m.layers[i];
        p->bound = fmax(p->bound, pair_bound(l->k ? l->k : p->m.params.k, l->v ? l->v : p->m.params.v, s.cpu));
    }
}

void pair_close(pair *p)
{
    if (getenv("PAIR_WORST")) print_message("  %-12s %-12s %g\n", p->m.params.k, p->m.params.v, p->worst * p->bound);
    kvf_cache_free(&p->c);
    oracle_free(p->o);
    p->o = NULL;
}

static void compare(pair *p, const ts_batch *b, int layer, const float *got, const double *want, int width, const char *what)
{
    const kvf_layer *l = &p->m.layers[layer];
    int heads = l->q_heads;
    double unit = 1, bound = p->bound;
    for (int i = 0; i < b->n * heads * width; i++) unit = isfinite(want[i]) ? fmax(unit, fabs(want[i])) : unit;
    for (int i = 0; i < b->n * heads * width; i++) {
        double d = (double)got[i] == want[i] ? 0 : fabs((double)got[i] - want[i]) / unit / bound;
        if (d > p->worst) p->worst = d;
        if (d <= 1) continue;
        const ts_row *r = &b->rows[i / width / heads];
        fail_msg("%s: K %s, V %s, layer %d, row %d (sequence %d, position %d), head %d, channel %d: %.9g, expected %.9g", what,
                 l->k ? l->k : p->m.params.k, l->v ? l->v : p->m.params.v, layer, i / width / heads, r->seq, r->pos,
                 i / width % heads, i % width, (double)got[i], want[i]);
    }
}

void pair_compare(pair *p, const ts_batch *b, int layer)
{
    const kvf_layer *l = &p->m.layers[layer];
    size_t rows = (size_t)b->n * (size_t)l->q_heads;
    double *out = calloc(rows * (size_t)l->v_dim, sizeof *out), *lse = calloc(rows, sizeof *lse);
    assert_non_null(out);
    assert_non_null(lse);
    double scale = b->how.scale != 0.0f ? (double)b->how.scale : (double)(1.0f / sqrtf((float)l->k_dim));
    oracle_query a = {layer,
                      b->n,
                      b->tokens,
                      b->q[layer].plain,
                      b->k[layer].plain,
                      b->v[layer].plain,
                      b->bias,
                      scale,
                      (double)b->how.softcap,
                      b->how.slopes,
                      b->how.sinks,
                      out,
                      lse};
    oracle_attend(p->o, &a);
    compare(p, b, layer, b->lse[layer], lse, 1, "log-sum-exp");
    compare(p, b, layer, b->out[layer], out, l->v_dim, "output");
    free(out);
    free(lse);
}

static void attend(pair *p, ts_batch *b)
{
    for (int i = 0; i < p->m.params.n_layers; i++) {
        int code = ts_batch_attend(p->c, b, i);
        if (code != KVF_OK) fail_msg("attention, layer %d: %d, %s", i, code, kvf_cache_error(p->c));
        pair_compare(p, b, i);
    }
}

static void learn(pair *p, const ts_batch *b)
{
    for (int t = 0; t < b->n; t++) {
        const float *k[TS_LAYERS] = {0}, *v[TS_LAYERS] = {0};
        for (int i = 0; i < p->m.params.n_layers; i++) {
            const kvf_layer *l = &p->m.layers[i];
            k[i] = b->k[i].plain + (size_t)t * (size_t)(l->kv_heads * l->k_dim);
            if (!l->v_in_k) v[i] = b->v[i].plain + (size_t)t * (size_t)(l->kv_heads * l->v_dim);
        }
        oracle_append(p->o, b->rows[t].seq, b->rows[t].pos, k, v);
    }
    oracle_seal(p->o);
}

void pair_feed(pair *p, const ts_row *rows, int n, int chunk, const ts_how *how, int with_attention)
{
    for (int i = 0; i < n; i += chunk) {
        ts_batch *b = ts_batch_new(&p->m, rows + i, n - i < chunk ? n - i : chunk, how);
        ts_begin(p->c, b);
        if (with_attention) attend(p, b);
        ts_append_all(p->c, b);
        ts_ok(kvf_batch_commit(p->c));
        learn(p, b);
        ts_batch_free(b);
    }
}

void pair_prompt(pair *p, const ts_row *rows, int n)
{
    ts_batch *b = ts_batch_new(&p->m, rows, n, NULL);
    ts_begin(p->c, b);
    ts_attend_all(p->c, b);
    ts_append_all(p->c, b);
    ts_ok(kvf_batch_commit(p->c));
    learn(p, b);
    ts_batch_free(b);
}

static void see_row(pair *p, int32_t seq, int layer, kvf_side side, int head, int pos)
{
    float x[1024];
    const int code = kvf_seq_read(p->c, seq, layer, side, head, pos, x), holds = oracle_holds(p->o, seq, pos, layer, head);
    if (code != (holds ? KVF_OK : KVF_E_POSITION))
        fail_msg("layer %d, head %d, position %d: reading gives %d, but the row %s", layer, head, pos, code,
                 holds ? "stays" : "goes");
    if (holds) oracle_see(p->o, seq, pos, layer, side, head, x);
}

void pair_see_stored(pair *p, int32_t seq)
{
    for (int i = 0; i < p->m.params.n_layers; i++) {
        const kvf_layer *l = &p->m.layers[i];
        if (!ts_owns(&p->m, i)) continue;
        for (int side = KVF_K; side <= (l->v_in_k ? KVF_K : KVF_V); side++)
            for (int h = 0; h < l->kv_heads; h++)
                for (int pos = 0; pos <= oracle_pos_max(p->o, seq); pos++)
                    if (!l->window || pos > oracle_pos_max(p->o, seq) - l->window) see_row(p, seq, i, (kvf_side)side, h, pos);
    }
}

void pair_grow(pair *p, int32_t seq, uint64_t tag, int n, int chunk)
{
    if (n <= 0) return;
    ts_row *rows = calloc((size_t)n, sizeof *rows);
    assert_non_null(rows);
    ts_rows(rows, n, seq, tag, oracle_pos_max(p->o, seq) + 1);
    pair_feed(p, rows, n, chunk, NULL, 0);
    free(rows);
}

void pair_attend(pair *p, const ts_row *rows, int n, const ts_how *how)
{
    ts_batch *b = ts_batch_new(&p->m, rows, n, how);
    ts_begin(p->c, b);
    attend(p, b);
    ts_ok(kvf_batch_abort(p->c));
    ts_batch_free(b);
}

void pair_next(pair *p, int32_t seq, uint64_t tag, int n, const ts_how *how)
{
    ts_row *rows = calloc((size_t)n, sizeof *rows);
    assert_non_null(rows);
    ts_rows(rows, n, seq, tag, oracle_pos_max(p->o, seq) + 1);
    pair_attend(p, rows, n, how);
    free(rows);
}

void pair_rm(pair *p, int32_t seq, int32_t p0, int32_t p1)
{
    int code = kvf_seq_rm(p->c, seq, p0, p1);
    if (code != KVF_OK) fail_msg("kvf_seq_rm(%d, %d, %d): %d, %s", seq, p0, p1, code, kvf_cache_error(p->c));
    oracle_rm(p->o, seq, p0, p1);
}

void pair_cp(pair *p, int32_t src, int32_t dst)
{
    int code = kvf_seq_cp(p->c, src, dst);
    if (code != KVF_OK) fail_msg("kvf_seq_cp(%d, %d): %d, %s", src, dst, code, kvf_cache_error(p->c));
    oracle_cp(p->o, src, dst);
}
