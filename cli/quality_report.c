/* SPDX-License-Identifier: MIT
 * The result of `kvfold quality` for people.
 */
#include "quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_TOKENS = 10 };

/* ---- pieces ---------------------------------------------------------------------------------------------------------------- */

/* Sink and window of an arm, as "4/64" or, with --seal-each, "4/no"; "-" of libllama's. */
static const char *exact(const quality_run *run, const quality_arm *arm)
{
    static char text[32];
    if (arm->host) return "-";
    if (run->set->seal_each)
        snprintf(text, sizeof text, "%d/no", arm->choice.sink);
    else
        snprintf(text, sizeof text, "%d/%d", arm->choice.sink, arm->choice.recent);
    return text;
}

static const char *verdict(const quality_result *r)
{
    return r->verdict == QUALITY_AT_FLOOR ? "at the floor" : "";
}

/* A figure of ten characters, "-" where it is not known. */
static const char *tiny(double x)
{
    static char text[8][16];
    static int next;
    next = (next + 1) % 8;
    if (isfinite(x))
        snprintf(text[next], sizeof text[0], "%.2e", x);
    else
        snprintf(text[next], sizeof text[0], "-");
    return text[next];
}

/* Window of every arm of ours: only then is what a query sees coded the same as in single steps. */
static bool decode_faithful(const quality_run *run)
{
    for (int i = 0; i < run->n_arms; i++)
        if (!run->arm[i].host && run->arm[i].choice.recent % QUALITY_BATCH != 0) return false;
    return true;
}

static void print_head(const quality_run *run)
{
    const quality_input *in = &run->in;
    printf("%s: next-token distributions against %s, threads %d; context %d, the last %d positions of each chunk judged\n",
           cli_file_name(run->set->model), run->reference.name, run->s->threads, in->context, in->score);
    for (int i = 0; i < in->n_texts; i++) {
        const quality_text *t = &in->text[i];
        printf("text %d: %s, bytes %lld to %lld, %d tokens, %d chunk%s\n", i + 1, t->name, (long long)t->first,
               (long long)(t->first + t->bytes - 1), t->tokens, t->chunks, t->chunks == 1 ? "" : "s");
    }
    if (run->set->seal_each)
        printf("batches of %d aligned tokens\n", QUALITY_BATCH);
    else if (decode_faithful(run))
        printf("decode-faithful: batches of %d aligned tokens, so that a query sees coded what it sees coded in single steps\n",
               QUALITY_BATCH);
    else
        printf("batches of %d aligned tokens; not decode-faithful where a window is no multiple of %d: up to %d tokens fewer are "
               "coded then than in single steps\n",
               QUALITY_BATCH, QUALITY_BATCH, QUALITY_BATCH - 1);
    if (run->interrupted) printf("INTERRUPTED: what follows rests on the positions that were finished (column n)\n");
}

static void print_reference(const quality_run *run)
{
    quality_result r;
    quality_summarise(run, &run->reference, &r);
    printf("\n%s: PPL %.4f ± %.4f", run->reference.name, r.ppl.mean, r.ppl.error);
    quality_summarise(run, &run->prefill, &r);
    if (run->prefill.n_points > 0)
        printf("; in an ordinary prefill, batches of %d: PPL %.4f ± %.4f", run->prefill.rows, r.ppl.mean, r.ppl.error);
    printf("\n");
    if (run->floor.failure[0]) printf("no floor: %s\n", run->floor.failure);
    if (run->floor.n_points == 0) return;
    quality_summarise(run, &run->floor, &r);
    printf("floor, libllama's own difference between batches of %d and of %d with the same f16 cache: mean KLD %.2e ± %.1e, 99 "
           "%% %s, "
           "same top %.2f %%\n",
           run->floor.rows, QUALITY_BATCH, r.kld.mean, r.kld.error, tiny(r.kld_share[1]), 100 * r.same_top.mean);
}

/* ---- table ----------------------------------------------------------------------------------------------------------------- */

/* Longest name, for the first column; `more` adds an arm that is not among them. */
static int name_width(const quality_run *run)
{
    int width = 12;
    for (int i = 0; i < run->n_arms; i++) {
        int n = (int)strlen(run->arm[i].name);
        if (n > width) width = n;
    }
    return width;
}

static void print_row(const quality_run *run, const quality_arm *arm, const quality_result *r, int width)
{
    printf("%-*s %7s", width, arm->name, exact(run, arm));
    if (arm->bits_code > 0)
        printf(" %6.3f %6.3f %7.3f", arm->bits_code, arm->bits_per_value, arm->with_host);
    else
        printf(" %6s %6s %7s", "-", "-", "-");
    printf(" %6lld %9.4f ±%7.4f %8.5f ±%7.5f", (long long)r->n, r->ppl.mean, r->ppl.error, r->ratio.mean, r->ratio.error);
    printf(" %9.2e ±%8.1e %9s %9s %9s %9.2e", r->kld.mean, r->kld.error, tiny(r->kld_share[0]), tiny(r->kld_share[1]),
           tiny(r->kld_share[2]), r->kld_max);
    printf(" %7.2f ±%5.2f  %s\n", 100 * r->same_top.mean, 100 * r->same_top.error, verdict(r));
}

static void print_main(const quality_run *run, const quality_result *result, int width)
{
    printf("\n%-*s %7s %6s %6s %7s %6s %9s %8s %8s %8s %9s %9s %9s %9s %9s %9s %7s %6s\n", width, "K/V", "S/R", "bits", "all-in",
           "w.host", "n", "PPL", "", "ratio", "", "KLD mean", "", "median", "99 %", "99.9 %", "max", "top %", "");
    for (int i = 0; i < run->n_arms; i++)
        if (run->arm[i].n_points > 0) print_row(run, &run->arm[i], &result[i], width);
    for (int i = 0; i < run->n_arms; i++)
        if (run->arm[i].failure[0]) printf("%-*s cannot be measured: %s\n", width, run->arm[i].name, run->arm[i].failure);
    if (run->set->seal_each) printf("no window: queries see even their own batch coded (--seal-each)\n");
    for (int i = 0; !run->set->seal_each && i < run->n_arms; i++)
        if (!run->arm[i].host && run->arm[i].choice.recent == 0 && run->arm[i].n_points > 0) {
            printf("R 0: 0 to 63 of the newest tokens are exact, as blocks of 64 are sealed whole\n");
            break;
        }
}

static void print_changes(const quality_run *run, const quality_result *result, int width)
{
    printf("\nchange of the probability of the text's next token, percent points\n%-*s %9s %8s %9s", width, "K/V", "mean", "",
           "rms");
    for (int p = 0; p < QUALITY_CHANGE_N; p++) printf(" %8s", quality_change_name[p]);
    printf("\n");
    for (int i = 0; i < run->n_arms; i++) {
        const quality_result *r = &result[i];
        if (run->arm[i].n_points == 0) continue;
        printf("%-*s %9.4f ±%7.4f %9.4f", width, run->arm[i].name, 100 * r->change.mean, 100 * r->change.error,
               100 * sqrt(r->change_square.mean));
        for (int p = 0; p < QUALITY_CHANGE_N; p++)
            if (isfinite(r->change_at[p]))
                printf(" %8.3f", 100 * r->change_at[p]);
            else
                printf(" %8s", "-");
        printf("\n");
    }
}

static void print_depth(const quality_run *run, const quality_result *result, int width)
{
    printf("\nby depth: mean KLD and same top of positions\n%-*s", width, "K/V");
    for (int b = 0; b < QUALITY_BUCKETS; b++)
        printf(" %14d to %-12d", quality_bucket_from(run, b), quality_bucket_from(run, b + 1) - 1);
    printf("\n");
    for (int i = 0; i < run->n_arms; i++) {
        if (run->arm[i].n_points == 0) continue;
        printf("%-*s", width, run->arm[i].name);
        for (int b = 0; b < QUALITY_BUCKETS; b++) {
            const quality_part *p = &result[i].bucket[b];
            printf("   %9.2e ±%7.1e %6.2f", p->kld.mean, p->kld.error, 100 * p->same_top.mean);
        }
        printf("\n");
    }
}

static void print_texts(const quality_run *run, const quality_result *result, int width)
{
    if (run->in.n_texts < 2) return;
    printf("\nby text: mean KLD and same top\n");
    for (int i = 0; i < run->n_arms; i++) {
        if (run->arm[i].n_points == 0) continue;
        for (int t = 0; t < run->in.n_texts; t++) {
            const quality_part *p = &result[i].text[t];
            printf("%-*s %9.2e ±%7.1e %6.2f  %s\n", width, t ? "" : run->arm[i].name, p->kld.mean, p->kld.error,
                   100 * p->same_top.mean, cli_file_name(run->in.text[t].name));
        }
    }
}

static void print_worst_one(const quality_run *run, const quality_arm *arm, int64_t point)
{
    int chunk;
    int32_t pos;
    quality_words w;
    const quality_point *p = &arm->point[point];
    quality_place(run, point, &chunk, &pos);
    quality_words_at(run, arm, point, TEXT_TOKENS, &w);
    printf("  %9.2e chunk %d, %d: …%s| next '%s' %.3f → %.3f; likeliest '%s'", p->kld, chunk + 1, pos, w.before.data, w.next.data,
           p->p_reference, p->p, w.top_reference.data);
    if (p->same_top)
        printf(", unchanged\n");
    else
        printf(" → '%s'\n", w.top.data);
    quality_words_free(&w);
}

static void print_worst(const quality_run *run, const quality_result *result)
{
    if (run->set->worst > 0)
        printf("\nworst positions: KLD, place, text before, next token and its probability, likeliest token\n");
    for (int i = 0; i < run->n_arms; i++) {
        if (result[i].n_worst > 0) printf("%s\n", run->arm[i].name);
        for (int w = 0; w < result[i].n_worst; w++) print_worst_one(run, &run->arm[i], result[i].worst[w]);
    }
}

static void print_generation(const quality_arm *arm, int width)
{
    const quality_generation *g = &arm->generation;
    if (!g->done) return;
    printf("%-*s %6d of %-4d", width, arm->name, g->same_tokens, g->tokens);
    for (int i = 0; i < QUALITY_CHECKS; i++) printf(" %8d of %-3d", g->passed[i], g->asked[i]);
    printf("\n");
}

static void print_generations(const quality_run *run, int width)
{
    if (!run->answer) return;
    printf("\nwritten greedily: tokens as the reference's from the start, then answers that are right; what the reference gets "
           "wrong "
           "is the model's\n%-*s %14s",
           width, "K/V", "same tokens");
    for (int i = 0; i < QUALITY_CHECKS; i++) printf(" %15s", quality_check_name[i]);
    printf("\n");
    print_generation(&run->reference, width);
    for (int i = 0; i < run->n_arms; i++) print_generation(&run->arm[i], width);
}

static quality_result *results(const quality_run *run)
{
    quality_result *result = cli_alloc((size_t)run->n_arms, sizeof *result);
    for (int i = 0; i < run->n_arms; i++) quality_summarise(run, &run->arm[i], &result[i]);
    return result;
}

void quality_print_table(const quality_run *run)
{
    quality_result *result = results(run);
    int width = name_width(run);
    print_head(run);
    print_reference(run);
    print_main(run, result, width);
    print_changes(run, result, width);
    print_depth(run, result, width);
    print_texts(run, result, width);
    print_generations(run, width);
    print_worst(run, result);
    printf(
        "\nS/R: first and newest tokens that stay exact. bits: of the codes; all-in: of the folded cache at this context, exact "
        "rows,\n"
        "tables and scratch included; w.host: and the cells that libllama keeps beside it. ±: one standard error, of runs of %d "
        "neighbouring\n"
        "positions. KLD in nats; -: too few positions for that percentile. top: share of positions whose likeliest token is that "
        "of "
        "%s.\n"
        "at the floor: mean KLD not above that of libllama's own cache in other batches (99 %% bootstrap); exact caches read "
        "less.\n",
        QUALITY_BLOCK, run->reference.name);
    free(result);
}
