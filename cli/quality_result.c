/* SPDX-License-Identifier: MIT
 * What the positions of an arm add up to.
 */
#include "measure.h"
#include "quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const double quality_kld_share[QUALITY_KLD_N] = {0.5, 0.99, 0.999};
const char *const quality_kld_name[QUALITY_KLD_N] = {"median", "99 %", "99.9 %"};
const double quality_change_share[QUALITY_CHANGE_N] = {0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999};
const char *const quality_change_name[QUALITY_CHANGE_N] = {"0.1 %", "1 %",  "5 %",  "25 %",  "50 %",
                                                           "75 %",  "95 %", "99 %", "99.9 %"};

/* Confidence of what is said against the floor, and blocks below which nothing is. */
static const double CONFIDENCE = 0.99;
enum { BLOCKS_LEAST = 20 };

/* ---- one part of the points ------------------------------------------------------------------------------------------------ */

typedef struct collector {
    const quality_run *run;
    const quality_arm *arm;
    quality_series kld, same; /* of one block array */
} collector;

/* Blocks lie within a chunk: what ends one has nothing to do with what begins the next. */
static int64_t block_of(const quality_run *run, int64_t point)
{
    int64_t a_chunk = (run->in.score + QUALITY_BLOCK - 1) / QUALITY_BLOCK;
    return point / run->in.score * a_chunk + point % run->in.score / QUALITY_BLOCK;
}

static void collect(collector *c, int64_t point)
{
    c->kld.block[c->kld.n] = block_of(c->run, point);
    c->kld.x[c->kld.n++] = c->arm->point[point].kld;
    c->same.x[c->same.n++] = c->arm->point[point].same_top;
}

static quality_part part_of(collector *c)
{
    quality_part part = {c->kld.n, quality_blocked(&c->kld), quality_share_of(&c->same)};
    c->kld.n = c->same.n = 0;
    return part;
}

int32_t quality_bucket_from(const quality_run *run, int bucket)
{
    return run->in.context - 1 - run->in.score + (int32_t)((int64_t)run->in.score * bucket / QUALITY_BUCKETS);
}

static void by_depth(collector *c, quality_result *r)
{
    for (int b = 0; b < QUALITY_BUCKETS; b++) {
        for (int64_t i = 0; i < c->arm->n_points; i++) {
            int chunk;
            int32_t pos;
            quality_place(c->run, i, &chunk, &pos);
            if (pos >= quality_bucket_from(c->run, b) && pos < quality_bucket_from(c->run, b + 1)) collect(c, i);
        }
        r->bucket[b] = part_of(c);
    }
}

static void by_text(collector *c, quality_result *r)
{
    for (int t = 0; t < c->run->in.n_texts; t++) {
        for (int64_t i = 0; i < c->arm->n_points; i++)
            if (c->run->in.chunk[i / c->run->in.score].text == t) collect(c, i);
        r->text[t] = part_of(c);
    }
}

/* ---- all points ------------------------------------------------------------------------------------------------------------ */

static void perplexity(const quality_run *run, const quality_arm *arm, quality_series *x, quality_result *r)
{
    for (int64_t i = 0; i < r->n; i++) x->x[i] = arm->point[i].nll;
    r->ppl = quality_exp_of(quality_blocked(x));
    for (int64_t i = 0; i < r->n; i++) x->x[i] = arm->point[i].nll - run->reference.point[i].nll;
    r->ratio = quality_exp_of(quality_blocked(x));
}

static void changes(const quality_arm *arm, quality_series *x, quality_result *r)
{
    for (int64_t i = 0; i < r->n; i++) x->x[i] = pow(arm->point[i].p - arm->point[i].p_reference, 2);
    r->change_square = quality_blocked(x);
    for (int64_t i = 0; i < r->n; i++) x->x[i] = arm->point[i].p - arm->point[i].p_reference;
    r->change = quality_blocked(x);
    measure_sort(x->x, (size_t)r->n);
    for (int i = 0; i < QUALITY_CHANGE_N; i++) r->change_at[i] = quality_percentile_known(x->x, r->n, quality_change_share[i]);
}

static void divergence(const quality_arm *arm, quality_series *x, quality_result *r)
{
    for (int64_t i = 0; i < r->n; i++) x->x[i] = arm->point[i].same_top;
    r->same_top = quality_share_of(x);
    for (int64_t i = 0; i < r->n; i++) x->x[i] = arm->point[i].kld;
    r->kld = quality_blocked(x);
    measure_sort(x->x, (size_t)r->n);
    for (int i = 0; i < QUALITY_KLD_N; i++) r->kld_share[i] = quality_percentile_known(x->x, r->n, quality_kld_share[i]);
    r->kld_max = r->n > 0 ? x->x[r->n - 1] : NAN;
}

/* Insertion into a short sorted list; the earlier of two equal points stays first. Zeros are no bad positions. */
static void worst(const quality_run *run, const quality_arm *arm, quality_result *r)
{
    int most = (int)run->set->worst;
    for (int64_t i = 0; i < r->n; i++) {
        int at = r->n_worst;
        while (at > 0 && arm->point[r->worst[at - 1]].kld < arm->point[i].kld) at--;
        if (at >= most || arm->point[i].kld <= 0) continue;
        int last = r->n_worst < most ? r->n_worst++ : most - 1;
        memmove(&r->worst[at + 1], &r->worst[at], (size_t)(last - at) * sizeof r->worst[0]);
        r->worst[at] = i;
    }
}

/* At the floor: the mean is not above what libllama's own cache changes when it is filled by other batches, at 99 %. That is no limit
 * of what can be seen: batches of 64 rows and of fewer go through other arithmetic, and an exact cache of ours takes that of 64. */
static void against_floor(const quality_run *run, const quality_arm *arm, quality_series x, quality_result *r)
{
    if (x.n > run->floor.n_points) x.n = run->floor.n_points;
    r->verdict = QUALITY_NO_FLOOR;
    if (quality_blocks_of(&x) < BLOCKS_LEAST || arm == &run->floor) return;
    for (int64_t i = 0; i < x.n; i++) x.x[i] = arm->point[i].kld - run->floor.point[i].kld;
    r->above_floor = quality_bootstrap(&x, CONFIDENCE, (uint64_t)run->set->seed);
    r->verdict = r->above_floor.low > 0 ? QUALITY_ABOVE : QUALITY_AT_FLOOR;
}

void quality_summarise(const quality_run *run, const quality_arm *arm, quality_result *r)
{
    *r = (quality_result){.n = arm->n_points};
    size_t n = (size_t)r->n;
    quality_series x = {cli_alloc(2 * n, sizeof *x.x), cli_alloc(n, sizeof *x.block), r->n};
    collector c = {.run = run, .arm = arm, .kld = {x.x, x.block, 0}, .same = {x.x + n, x.block, 0}};
    by_depth(&c, r);
    by_text(&c, r);
    for (int64_t i = 0; i < r->n; i++) x.block[i] = block_of(run, i);
    perplexity(run, arm, &x, r);
    divergence(arm, &x, r);
    changes(arm, &x, r);
    worst(run, arm, r);
    against_floor(run, arm, x, r);
    free(x.x);
    free(x.block);
}

quality_interval quality_difference(const quality_run *run, const quality_arm *a, const quality_arm *b, double confidence,
                                    uint64_t seed)
{
    int64_t n = a->n_points < b->n_points ? a->n_points : b->n_points;
    quality_series x = {cli_alloc((size_t)n + 1, sizeof *x.x), cli_alloc((size_t)n + 1, sizeof *x.block), n};
    for (int64_t i = 0; i < n; i++) x.x[i] = a->point[i].kld - b->point[i].kld, x.block[i] = block_of(run, i);
    quality_interval interval = quality_bootstrap(&x, confidence, seed);
    free(x.x);
    free(x.block);
    return interval;
}

bool quality_bounds(const quality_run *run, int64_t points)
{
    return points > 0 && block_of(run, points - 1) + 1 >= BLOCKS_LEAST;
}

int64_t quality_block_sums(const quality_run *run, const quality_arm *arm, double *sum)
{
    int64_t b = -1;
    for (int64_t i = 0; i < arm->n_points; i++) {
        if (i == 0 || block_of(run, i) != block_of(run, i - 1)) sum[++b] = 0;
        sum[b] += arm->point[i].kld;
    }
    return b + 1;
}

/* ---- text ------------------------------------------------------------------------------------------------------------------ */

static void add_piece(const quality_run *run, llama_token token, cli_text *bytes)
{
    char piece[256];
    int32_t n = llama_token_to_piece(run->s->vocab, token, piece, sizeof piece, 0, true);
    if (n > 0) cli_text_add(bytes, piece, (size_t)n);
}

static void add_printable(const cli_text *bytes, cli_text *text)
{
    size_t from = text->length;
    if (bytes->length > 0) cli_utf8_add(text, bytes->data, bytes->length);
    for (size_t i = from; i < text->length; i++)
        if ((unsigned char)text->data[i] < 0x20 || text->data[i] == 0x7F) text->data[i] = ' ';
}

static void token_text(const quality_run *run, llama_token token, cli_text *text)
{
    cli_text bytes = {0};
    add_piece(run, token, &bytes);
    add_printable(&bytes, text);
    cli_text_free(&bytes);
}

/* The text that ends with the token at `pos`, control characters as spaces. */
static void context_text(const quality_run *run, int chunk, int32_t pos, int32_t tokens, cli_text *text)
{
    cli_text bytes = {0};
    int32_t from = pos + 1 > tokens ? pos + 1 - tokens : 0;
    for (int32_t i = from; i <= pos; i++) add_piece(run, run->in.chunk[chunk].token[i], &bytes);
    add_printable(&bytes, text);
    cli_text_free(&bytes);
}

void quality_words_at(const quality_run *run, const quality_arm *arm, int64_t point, int32_t tokens, quality_words *w)
{
    int chunk;
    int32_t pos;
    *w = (quality_words){0};
    quality_place(run, point, &chunk, &pos);
    context_text(run, chunk, pos, tokens, &w->before);
    token_text(run, run->in.chunk[chunk].token[pos + 1], &w->next);
    token_text(run, run->reference.point[point].top, &w->top_reference);
    token_text(run, arm->point[point].top, &w->top);
    cli_text *const all[] = {&w->before, &w->next, &w->top_reference, &w->top};
    for (int i = 0; i < 4; i++) cli_text_add(all[i], "", 0); /* at least "" */
}

void quality_words_free(quality_words *w)
{
    cli_text_free(&w->before);
    cli_text_free(&w->next);
    cli_text_free(&w->top_reference);
    cli_text_free(&w->top);
}
