/* SPDX-License-Identifier: MIT
 * From the samples of a layer to its part of the file. */
#include "calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const calibrate_score_name[CALIBRATE_SCORES_N] = {
#define CALIBRATE_SCORE(name, text) text,
    CALIBRATE_SCORES(CALIBRATE_SCORE)
#undef CALIBRATE_SCORE
};

/* ---- codebooks asked for ----------------------------------------------------------------------------------------------------- */

/* heads 0: as many tables as the layer has KV heads. */
static bool add_book(calibrate_books *b, kvf_side side, int sub, int bits, int heads)
{
    for (int i = 0; i < b->n; i++) {
        const kvf_codebook *o = &b->book[i];
        if (o->side == (int32_t)side && o->sub == sub && o->bits == bits && o->heads == heads) return false;
    }
    if (b->n == CALIBRATE_BOOKS) return false;
    b->book[b->n++] = (kvf_codebook){.side = side, .sub = sub, .bits = bits, .heads = heads};
    return true;
}

/* One or two digits, the first not 0; 0 when there is none. scanf would take signs and blanks, too. */
static int read_count(const char **p)
{
    int n = 0;
    if (**p == '0') return 0;
    for (int i = 0; i < 2 && **p >= '0' && **p <= '9'; i++) n = 10 * n + *(*p)++ - '0';
    return n;
}

/* "4x8", "v8x12", "k4x8h"; moves *p behind it. */
static bool take_book(calibrate_books *books, const char **p)
{
    const char side = **p == 'k' || **p == 'v' ? *(*p)++ : 0;
    const int sub = read_count(p);
    if (*(*p)++ != 'x') return false;
    const int bits = read_count(p), heads = **p == 'h' ? 0 : 1;
    *p += !heads;
    if ((sub != 2 && sub != 4 && sub != 8) || bits < 1 || bits > 12) return false;
    return (side == 'v' || add_book(books, KVF_K, sub, bits, heads)) && (side == 'k' || add_book(books, KVF_V, sub, bits, heads));
}

int calibrate_books_parse(calibrate_books *books, const char *text)
{
    *books = (calibrate_books){.n = 0};
    for (const char *p = text; p && *p; p += *p == ',') {
        if (take_book(books, &p) && (*p == ',' ? p[1] : !*p)) continue;
        cli_error(
            "--codebooks: '%s' is not a list like 4x8,v8x12: channels of a sub-vector (2, 4 or 8) x bits (1 to 12), for one "
            "side with k or v before it, h behind it for a table of every KV head, each once and %d at most",
            text, CALIBRATE_BOOKS);
        return CLI_USAGE;
    }
    return CLI_GO;
}

/* ---- samples ----------------------------------------------------------------------------------------------------------------- */

/* [slots][heads][dim] f16 -> out[heads][slots][dim]. */
static void unpack(const ggml_fp16_t *x, int32_t heads, int32_t dim, int32_t n, float *out)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t h = 0; h < heads; h++)
            ggml_fp16_to_fp32_row(x + ((size_t)i * (size_t)heads + (size_t)h) * (size_t)dim,
                                  out + ((size_t)h * (size_t)n + (size_t)i) * (size_t)dim, dim);
}

static bool reads(const calibrate_collection *c, int32_t reader, int32_t owner)
{
    return c->layer[reader].q && c->layer[reader].owner == owner;
}

static int32_t group_of(const kvf_llama_layer_t *l)
{
    return l->q_heads / l->kv_heads;
}

/* Queries of all layers that read the keys of `il`: out[kv_heads][all groups][n][k_dim]. */
static float *unpack_queries(const calibrate_collection *c, int32_t il, int32_t group)
{
    const kvf_llama_layer_t *s = &c->layer[il].info;
    const size_t head = (size_t)c->filled * (size_t)s->k_dim;
    float *all = cli_alloc((size_t)s->kv_heads * (size_t)group * head, sizeof *all);
    int32_t before = 0;
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (!reads(c, i, il)) continue;
        const int32_t own = group_of(&c->layer[i].info);
        float *x = cli_alloc((size_t)s->kv_heads * (size_t)own * head, sizeof *x);
        unpack(c->layer[i].q, s->kv_heads * own, s->k_dim, c->filled, x);
        for (int32_t h = 0; h < s->kv_heads; h++)
            memcpy(all + ((size_t)h * (size_t)group + (size_t)before) * head, x + (size_t)(h * own) * head,
                   (size_t)own * head * sizeof *x);
        free(x);
        before += own;
    }
    return all;
}

static kvf_samples unpack_layer(const calibrate_collection *c, int32_t il)
{
    const calibrate_layer *l = &c->layer[il];
    const kvf_llama_layer_t *s = &l->info;
    const size_t rows = (size_t)c->filled * (size_t)s->kv_heads;
    float *k = cli_alloc(rows * (size_t)s->k_dim, sizeof *k), *v = cli_alloc(rows * (size_t)s->v_dim, sizeof *v);
    int32_t group = 0;
    for (int32_t i = 0; i < c->n_layers; i++) group += reads(c, i, il) ? group_of(&c->layer[i].info) : 0;
    unpack(l->k, s->kv_heads, s->k_dim, c->filled, k);
    unpack(l->v, s->kv_heads, s->v_dim, c->filled, v);
    kvf_samples out = {.size = sizeof out, .kv_heads = s->kv_heads, .group = group, .k_dim = s->k_dim, .v_dim = s->v_dim};
    out.rope_dims = s->rope_freq ? s->rope_dims : 0, out.rope_style = s->rope_style, out.rope_freq = s->rope_freq;
    out.n = c->filled, out.pos = c->pos, out.k = k, out.v = v, out.q = unpack_queries(c, il, group);
    return out;
}

static void free_samples(kvf_samples *s)
{
    free((void *)(uintptr_t)s->q), free((void *)(uintptr_t)s->k), free((void *)(uintptr_t)s->v);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------------------- */

typedef struct placed {
    double x;
    int32_t i;
} placed;

static int by_value(const void *a, const void *b)
{
    const double x = ((const placed *)a)->x, y = ((const placed *)b)->x;
    return (x > y) - (x < y);
}

static void to_ranks(const double *x, int32_t n, double *rank)
{
    placed *p = cli_alloc((size_t)n, sizeof *p);
    for (int32_t i = 0; i < n; i++) p[i] = (placed){x[i], i};
    qsort(p, (size_t)n, sizeof *p, by_value);
    for (int32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && !(p[end].x > p[i].x);) end++;
        for (int32_t j = i; j < end; j++) rank[p[j].i] = (i + end - 1) / 2.0;
    }
    free(p);
}

double calibrate_spearman(const double *x, const double *y, int32_t n)
{
    double *rx = cli_alloc((size_t)n + 1, sizeof *rx), *ry = cli_alloc((size_t)n + 1, sizeof *ry), xy = 0, xx = 0, yy = 0;
    to_ranks(x, n, rx), to_ranks(y, n, ry);
    for (int32_t i = 0; i < n; i++) {
        const double a = rx[i] - (n - 1) / 2.0, b = ry[i] - (n - 1) / 2.0;
        xy += a * b, xx += a * a, yy += b * b;
    }
    free(rx), free(ry);
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 0;
}

static double score_of(calibrate_score score, const float *keys, int32_t dim, int32_t pos, const kvf_learnt *l, size_t at)
{
    const float *direction = (score == CALIBRATE_QUERIES ? l->q_direction : l->k_direction) + at;
    double sum = 0;
    if (score == CALIBRATE_RECENT) return pos;
    for (int32_t d = 0; d < dim; d++) {
        const double k = (double)keys[(size_t)d * CALIBRATE_RANK_MOST + (size_t)pos];
        sum += score == CALIBRATE_NORM ? -k * k : k * (double)direction[d];
    }
    return sum;
}

/* Keys of which a rank is made: those that enough queries of the last chunk came after. */
static int32_t ranked_keys(const calibrate_collection *c)
{
    return c->ranked - CALIBRATE_RANK_LEAST - CALIBRATE_SKIP;
}

const char *calibrate_unranked(const calibrate_collection *c)
{
    if (c->biased) return c->biased;
    return ranked_keys(c) > 1 ? NULL : "the chunk that ranks keys is too short";
}

/* A key's weight counts where at least CALIBRATE_RANK_LEAST queries came after it; it is the mean over those that could see it. */
static void rank_head(const calibrate_collection *c, const calibrate_layer *l, int32_t head, calibrate_result *r)
{
    double weight[CALIBRATE_RANK_MOST], score[CALIBRATE_RANK_MOST];
    const size_t at = (size_t)head * (size_t)l->info.k_dim;
    const int32_t n = ranked_keys(c);
    for (int32_t i = 0; i < n; i++) {
        const int32_t pos = i + CALIBRATE_SKIP;
        int32_t after = c->ranked - pos;
        if (l->info.window && after > l->info.window) after = l->info.window;
        weight[i] = l->weight[(size_t)head * CALIBRATE_RANK_MOST + (size_t)pos] / after;
    }
    for (int s = 0; s < CALIBRATE_SCORES_N; s++) {
        for (int32_t i = 0; i < n; i++)
            score[i] = score_of((calibrate_score)s, l->keys + at * CALIBRATE_RANK_MOST, l->info.k_dim, i + CALIBRATE_SKIP,
                                &r->learnt, at);
        r->rank[s][head] = (float)calibrate_spearman(score, weight, n);
    }
}

/* ---- all of a layer ---------------------------------------------------------------------------------------------------------- */

/* Is there a codebook of keys, for whose codes the second moment of the queries serves? */
static bool codes_keys(const calibrate_books *books)
{
    for (int i = 0; i < books->n; i++)
        if (books->book[i].side == KVF_K) return true;
    return false;
}

static void make_room(calibrate_result *r, const kvf_llama_layer_t *s, bool moment, bool ranked)
{
    const size_t heads = (size_t)s->kv_heads, n = heads * (size_t)s->k_dim;
    float **array[] = {&r->learnt.k_mean,      &r->learnt.k_rms, &r->learnt.q_rms,      &r->learnt.k_lambda,
                       &r->learnt.q_direction, &r->learnt.k_max, &r->learnt.k_direction};
    float *at = r->arrays = cli_alloc(7 * n + heads * (1 + CALIBRATE_SCORES_N), sizeof *at);
    r->learnt.size = sizeof r->learnt;
    for (int i = 0; i < 7; i++, at += n) *array[i] = at;
    r->learnt.one_sided = at, at += heads;
    for (int i = 0; i < CALIBRATE_SCORES_N; i++, at += heads) r->rank[i] = ranked ? at : NULL;
    if (moment) r->learnt.q_moment = r->moment = cli_alloc(n * (size_t)s->k_dim, sizeof *r->moment);
}

static int failed(int32_t il, int rc, const char *error)
{
    cli_error("layer %d: %s", il, error[0] ? error : kvf_strerror(rc));
    return cli_exit_of(rc);
}

int calibrate_learn(const calibrate_collection *c, int32_t il, const calibrate_books *books, uint64_t seed, calibrate_result *r)
{
    char error[300] = "";
    const calibrate_layer *l = &c->layer[il];
    const bool ranked = !calibrate_unranked(c);
    make_room(r, &l->info, codes_keys(books), ranked);
    kvf_samples s = unpack_layer(c, il);
    int rc = kvf_calibrate_layer(&s, &r->learnt, error, sizeof error);
    for (int32_t h = 0; h < l->info.kv_heads && ranked && !rc; h++) rank_head(c, l, h, r);
    for (int i = 0; i < books->n && !rc && !cli_interrupted(); i++) {
        kvf_codebook b = books->book[i];
        if (!b.heads) b.heads = l->info.kv_heads;
        if (b.side == KVF_K && !r->learnt.turns && s.rope_style != KVF_ROPE_UNKNOWN)
            continue; /* no cache could centre those keys */
        r->book[i] = cli_alloc(((size_t)b.heads * (size_t)b.sub) << b.bits, sizeof **r->book);
        rc = kvf_calibrate_codebook(&s, &b, r->learnt.turns ? r->learnt.k_mean : NULL, r->learnt.k_lambda, seed + (uint64_t)il,
                                    r->book[i], error, sizeof error);
    }
    free_samples(&s);
    return rc ? failed(il, rc, error) : CLI_GO;
}

void calibrate_result_free(calibrate_result *r)
{
    for (int i = 0; i < CALIBRATE_BOOKS; i++) free(r->book[i]);
    free(r->arrays), free(r->moment);
    *r = (calibrate_result){.arrays = NULL};
}
