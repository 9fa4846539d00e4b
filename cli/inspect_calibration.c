/* SPDX-License-Identifier: MIT
 * kvfold inspect, of a calibration file: where it comes from, what each layer is like, and in which heads the direction of the queries
 * ranks keys and in which it does not.
 */
#include "inspect.h"
#include "calibrate.h"
#include "plot.h"

#include <jansson.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Below this rank correlation a score says little of what attention will look at. */
static const double RANKS_LITTLE = 0.3;

/* What is less is drawn here: nobody can tell on a logarithmic axis. */
static const double PROFILE_LEAST = 0.01;

enum { DRAWN_HEADS = 4 }; /* more lines than theirs cannot be told apart */

typedef struct view {
    const char *path;
    kvf_llama_calibration *c;
    kvf_llama_calibration_info info;
} view;

/* ---- numbers ----------------------------------------------------------------------------------------------------------------- */

/* Array `what` of a layer's heads; NULL when the file has none. */
static const float *array(const view *v, int32_t il, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", il, what);
    return kvf_llama_calibration_array(v->c, name, NULL);
}

static double mean_of(const float *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; x && i < n; i++) sum += (double)x[i] / n;
    return sum;
}

/* NAN: the file does not say. */
static double rank_of(const view *v, int32_t il, int score, int32_t head)
{
    char what[32];
    snprintf(what, sizeof what, "rank.%s", calibrate_score_name[score]);
    const float *x = array(v, il, what);
    return x ? (double)x[head] : NAN;
}

/* Of keys (0) or values (1) of a layer; 0 where there are none. NAN: the file does not say. */
static double loss_of(const view *v, int32_t il, int side)
{
    const float *x = array(v, il, "sensitivity");
    return !*v->info.sensitivity ? NAN : x ? (double)x[side] : 0;
}

static double mean_rank(const view *v, int32_t il, int score, int32_t heads)
{
    double sum = 0;
    for (int32_t h = 0; h < heads; h++) sum += rank_of(v, il, score, h) / heads;
    return sum;
}

/* Share of the keys' energy that is their mean, over all heads. */
static double mean_share(const kvf_calibrated_layer *l)
{
    double mean = 0, rest = 0;
    for (int32_t i = 0; l->k_mean && l->k_rms && i < l->kv_heads * l->k_dim; i++)
        mean += (double)l->k_mean[i] * (double)l->k_mean[i], rest += (double)l->k_rms[i] * (double)l->k_rms[i];
    return mean + rest > 0 ? mean / (mean + rest) : 0;
}

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The widest channel over the middle one, of the head with the most. */
static double unevenness(const float *rms, int32_t heads, int32_t dim)
{
    float sorted[1024];
    double most = 0;
    for (int32_t h = 0; rms && h < heads; h++) {
        memcpy(sorted, rms + (size_t)h * (size_t)dim, (size_t)dim * sizeof *sorted);
        qsort(sorted, (size_t)dim, sizeof *sorted, by_size);
        const double middle = (double)sorted[dim / 2], ratio = middle > 0 ? (double)sorted[dim - 1] / middle : 0;
        most = ratio > most ? ratio : most;
    }
    return most;
}

static bool ranks_known(const view *v, int32_t il)
{
    return array(v, il, "rank.q") != NULL;
}

/* Does the direction of the queries rank the keys of this head worse than something that needs no calibration, or hardly at all? False
 * where that is not known. */
static bool ranks_badly(const view *v, int32_t il, int32_t head)
{
    const double q = rank_of(v, il, CALIBRATE_QUERIES, head);
    return q < RANKS_LITTLE || q < rank_of(v, il, CALIBRATE_NORM, head) || q < rank_of(v, il, CALIBRATE_RECENT, head);
}

/* ---- table ------------------------------------------------------------------------------------------------------------------- */

/* As --codebooks names it. Of a single KV head both forms are the same. */
static const char *book_name(const kvf_calibrated_layer *l, int i, char name[32])
{
    const kvf_codebook *b = &l->codebooks[i];
    snprintf(name, 32, "%c%dx%d%s", b->side == KVF_K ? 'k' : 'v', b->sub, b->bits, b->heads > 1 ? "h" : "");
    return name;
}

static void print_books(const kvf_calibrated_layer *l)
{
    char name[32];
    for (int i = 0; i < l->n_codebooks; i++) printf(" %s", book_name(l, i, name));
}

static void print_layer(const view *v, int32_t il)
{
    const kvf_calibrated_layer *l = kvf_llama_calibration_layer(v->c, il);
    if (!l) return;
    printf("  %5d %8d %7d %7d", il, l->kv_heads, l->k_dim, l->v_dim);
    if (l->k_mean)
        printf(" %9.0f %%", 100 * mean_share(l));
    else
        printf(" %11s", "not known");
    printf(" %7.1f %7.1f", unevenness(l->k_rms, l->kv_heads, l->k_dim), unevenness(l->q_rms, l->kv_heads, l->k_dim));
    if (array(v, il, "q_one_sided"))
        printf(" %8.0f %%", 100 * mean_of(array(v, il, "q_one_sided"), l->kv_heads));
    else
        printf(" %10s", "not known");
    for (int s = 0; s < CALIBRATE_SCORES_N && ranks_known(v, il); s++) printf(" %8.2f", mean_rank(v, il, s, l->kv_heads));
    if (!ranks_known(v, il)) printf(" %35s", "not known");
    print_books(l);
    printf("\n");
}

static void print_bad_heads(const view *v)
{
    int bad = 0, heads = 0;
    for (int32_t il = 0; il < v->info.n_layers; il++) {
        const kvf_calibrated_layer *l = kvf_llama_calibration_layer(v->c, il);
        for (int32_t h = 0; l && h < l->kv_heads && ranks_known(v, il); h++, heads++) {
            if (!ranks_badly(v, il, h)) continue;
            printf(bad++ ? ", %d/%d (%.2f)"
                         : "\nheads whose keys are better not ranked by it (layer/head, its figure): %d/%d (%.2f)",
                   il, h, rank_of(v, il, CALIBRATE_QUERIES, h));
        }
    }
    if (heads == 0) {
        printf("\nhow keys are ranked is not known: kvfold calibrate says why when it makes such a file\n");
        return;
    }
    printf(bad ? "\n%d of %d heads: below %.1f, or short keys or recency rank better there\n"
               : "\nheads whose keys are better not ranked by it: %d of %d (below %.1f, or short keys or recency rank better)\n",
           bad, heads, RANKS_LITTLE);
}

/* The sides that suffer most, worst first. */
static void print_losses(const view *v)
{
    enum { WORST = 5 };
    const int32_t n = 2 * v->info.n_layers;
    double all = 0;
    if (!*v->info.sensitivity) return;
    bool *told = cli_alloc((size_t)n + 1, sizeof *told);
    for (int32_t i = 0; i < n; i++) all += loss_of(v, i / 2, i % 2);
    cli_print("\nwhat few bits cost, mean KLD with keys or values of one layer alone as %s, over %d tokens: %.2e together\n",
              v->info.sensitivity, v->info.sensitivity_context, all);
    for (int k = 0; k < WORST && all > 0; k++) {
        int32_t worst = -1;
        for (int32_t i = 0; i < n; i++)
            if (!told[i] && (worst < 0 || loss_of(v, i / 2, i % 2) > loss_of(v, worst / 2, worst % 2))) worst = i;
        if (worst < 0 || !(loss_of(v, worst / 2, worst % 2) > 0)) break;
        told[worst] = true;
        printf("%s%s of layer %d (%.2e)", k ? ", " : "most by ", worst % 2 ? "values" : "keys", worst / 2,
               loss_of(v, worst / 2, worst % 2));
    }
    if (all > 0) printf("\n");
    free(told);
}

static int print_table(const view *v)
{
    const kvf_llama_calibration_info *i = &v->info;
    cli_print("%s: calibration of a %s model with %d layers\n", v->path, i->architecture, i->n_layers);
    cli_print("weights %016llx, text %016llx, %d positions of %lld tokens in chunks of %d, seed %llu, kvfold %s, libllama %s\n\n",
              (unsigned long long)i->model_hash, (unsigned long long)i->text_hash, i->positions, (long long)i->tokens, i->context,
              (unsigned long long)i->seed, i->kvfold, i->libllama);
    printf("  %5s %8s %7s %7s %11s %15s %10s %35s\n", "", "", "", "", "mean's", "widest channel", "queries",
           "how keys are ranked (Spearman) by");
    printf("  %5s %8s %7s %7s %11s %7s %7s %10s %8s %8s %8s %8s\n", "layer", "kv heads", "k size", "v size", "share", "keys",
           "queries", "one-sided", "queries", "norm", "recency", "keys");
    for (int32_t il = 0; il < i->n_layers; il++) print_layer(v, il);
    printf("\nmean's share: of the keys' energy, before RoPE. widest channel: its spread over the middle one's, of the head with "
           "the most.\n"
           "one-sided: queries on one side of their direction; 50 %% means that there is none. Ranks: means over heads; 1 is "
           "perfect.\n");
    print_bad_heads(v);
    print_losses(v);
    return cli_finish(CLI_DONE);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------------------- */

static json_t *real_or_null(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *head_object(const view *v, int32_t il, int32_t h)
{
    json_t *ranks = json_object();
    const float *one_sided = array(v, il, "q_one_sided");
    for (int s = 0; s < CALIBRATE_SCORES_N; s++)
        json_object_set_new(ranks, calibrate_score_name[s], real_or_null(rank_of(v, il, s, h)));
    return json_pack("{s:o, s:o, s:o}", "one_sided", real_or_null(one_sided ? (double)one_sided[h] : NAN), "rank", ranks,
                     "ranks_badly", ranks_known(v, il) ? json_boolean(ranks_badly(v, il, h)) : json_null());
}

static json_t *layer_object(const view *v, int32_t il)
{
    const kvf_calibrated_layer *l = kvf_llama_calibration_layer(v->c, il);
    json_t *heads = json_array(), *books = json_array();
    char name[32];
    for (int32_t h = 0; l && h < l->kv_heads; h++) json_array_append_new(heads, head_object(v, il, h));
    for (int i = 0; l && i < l->n_codebooks; i++) json_array_append_new(books, json_string(book_name(l, i, name)));
    json_t *losses = json_pack("{s:o, s:o}", "keys", real_or_null(loss_of(v, il, 0)), "values", real_or_null(loss_of(v, il, 1)));
    return json_pack("{s:i, s:i, s:i, s:i, s:b, s:f, s:f, s:f, s:o, s:o, s:o}", "layer", il, "kv_heads", l ? l->kv_heads : 0,
                     "k_dim", l ? l->k_dim : 0, "v_dim", l ? l->v_dim : 0, "centred", l && l->k_mean, "mean_share",
                     l ? mean_share(l) : 0.0, "k_unevenness", l ? unevenness(l->k_rms, l->kv_heads, l->k_dim) : 0.0,
                     "q_unevenness", l ? unevenness(l->q_rms, l->kv_heads, l->k_dim) : 0.0, "heads", heads, "codebooks", books,
                     "sensitivity", losses);
}

static int print_object(const view *v)
{
    const kvf_llama_calibration_info *i = &v->info;
    char model[20], text[20];
    json_t *layers = json_array();
    for (int32_t il = 0; il < i->n_layers; il++) json_array_append_new(layers, layer_object(v, il));
    snprintf(model, sizeof model, "%016llx", (unsigned long long)i->model_hash);
    snprintf(text, sizeof text, "%016llx", (unsigned long long)i->text_hash);
    return cli_print_json(json_pack("{s:o, s:o, s:s, s:s, s:i, s:I, s:i, s:I, s:o, s:o, s:o, s:i, s:o}", "calibration",
                                    cli_json_text(v->path), "architecture", cli_json_text(i->architecture), "model_hash", model,
                                    "text_hash", text, "positions", i->positions, "tokens", (json_int_t)i->tokens, "context",
                                    i->context, "seed", (json_int_t)i->seed, "kvfold", cli_json_text(i->kvfold), "libllama",
                                    cli_json_text(i->libllama), "sensitivity_codec", cli_json_text(i->sensitivity),
                                    "sensitivity_context", i->sensitivity_context, "layers", layers));
}

/* ---- pictures ---------------------------------------------------------------------------------------------------------------- */

static void add_profile(plot *p, const char *name, const float *x, int32_t n, bool absolute)
{
    plot_series *s = x ? plot_series_named(p, name, PLOT_LINES) : NULL;
    for (int32_t i = 0; s && i < n; i++) {
        double y = absolute ? fabs((double)x[i]) : (double)x[i];
        y = y > PROFILE_LEAST ? y : PROFILE_LEAST;
        plot_add(s, i, y, y, y, NULL);
    }
}

static int draw_one(plot *p, const char *folder)
{
    const plot_end end = plot_draw(p, folder); /* has said why not */
    plot_free(p);
    return end == PLOT_DRAWN ? CLI_GO : CLI_CANNOT;
}

static int draw_channels(const view *v, int32_t il, const char *folder)
{
    const kvf_calibrated_layer *l = kvf_llama_calibration_layer(v->c, il);
    plot p = {.log_y = true};
    char name[PLOT_NAME];
    if (!l) return CLI_GO;
    snprintf(p.file, sizeof p.file, "channels-%d", il);
    snprintf(p.title, sizeof p.title, "Channels of layer %d: %.120s", il, v->path);
    if (l->kv_heads > DRAWN_HEADS)
        snprintf(p.title, sizeof p.title, "Channels of layer %d, heads 0 to %d of %d: %.100s", il, DRAWN_HEADS - 1, l->kv_heads,
                 v->path);
    snprintf(p.x, sizeof p.x, "channel"), snprintf(p.y, sizeof p.y, "magnitude");
    for (int32_t h = 0; h < l->kv_heads && h < DRAWN_HEADS; h++) {
        const size_t at = (size_t)h * (size_t)l->k_dim;
        const float *arrays[] = {l->k_mean, l->k_rms, l->q_rms, array(v, il, "k_max"), l->k_lambda};
        static const char *const names[] = {"|mean of the keys|", "spread of the keys", "size of the queries",
                                            "largest of the keys", "lambda of the keys"};
        for (int i = 0; i < 5; i++) {
            snprintf(name, sizeof name, "%s, head %d", names[i], h);
            add_profile(&p, name, arrays[i] ? arrays[i] + at : NULL, l->k_dim, i == 0);
        }
    }
    return draw_one(&p, folder);
}

static int draw_ranks(const view *v, const char *folder)
{
    static const char *const names[] = {"direction of the queries", "short keys", "recency", "direction of the keys"};
    plot p = {.n_series = 0};
    snprintf(p.file, sizeof p.file, "ranks");
    snprintf(p.title, sizeof p.title, "How scores rank keys: %.120s", v->path);
    snprintf(p.x, sizeof p.x, "layer"), snprintf(p.y, sizeof p.y, "rank correlation with mean attention; band: all heads");
    for (int s = 0; s < CALIBRATE_SCORES_N; s++)
        for (int32_t il = 0; il < v->info.n_layers; il++) {
            const kvf_calibrated_layer *l = kvf_llama_calibration_layer(v->c, il);
            double low = 1, high = -1;
            for (int32_t h = 0; l && h < l->kv_heads; h++)
                low = fmin(low, rank_of(v, il, s, h)), high = fmax(high, rank_of(v, il, s, h));
            if (l && ranks_known(v, il))
                plot_add(plot_series_named(&p, names[s], PLOT_LINES), il, mean_rank(v, il, s, l->kv_heads), low, high, NULL);
        }
    return draw_one(&p, folder);
}

static int draw_losses(const view *v, const char *folder)
{
    static const char *const names[] = {"keys", "values"};
    plot p = {.log_y = true};
    if (!*v->info.sensitivity) return CLI_GO;
    snprintf(p.file, sizeof p.file, "sensitivity");
    snprintf(p.title, sizeof p.title, "One side of one layer alone as %s: %.100s", v->info.sensitivity, v->path);
    snprintf(p.x, sizeof p.x, "layer"), snprintf(p.y, sizeof p.y, "mean KLD");
    for (int side = 0; side < 2; side++)
        for (int32_t il = 0; il < v->info.n_layers; il++) {
            const double y = loss_of(v, il, side);
            if (y > 0) plot_add(plot_series_named(&p, names[side], PLOT_LINES), il, y, y, y, NULL);
        }
    return draw_one(&p, folder);
}

static int draw(const view *v, const char *folder)
{
    struct stat st;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        cli_error("cannot make the folder '%s': %s", folder, strerror(errno));
        return CLI_CANNOT;
    }
    if (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode)) {
        cli_error("--plot: '%s' is no folder", folder);
        return CLI_CANNOT;
    }
    int code = draw_ranks(v, folder);
    if (code == CLI_GO) code = draw_losses(v, folder);
    for (int32_t il = 0; code == CLI_GO && il < v->info.n_layers; il++) code = draw_channels(v, il, folder);
    return code;
}

/* ------------------------------------------------------------------------------------------------------------------------------ */

int inspect_calibration(const char *path, bool json, const char *folder)
{
    char error[512] = "";
    view v = {.path = path, .info = {.size = sizeof v.info}};
    cli_capture_begin();
    int rc = kvf_llama_calibration_load(path, NULL, NULL, &v.c, error, sizeof error);
    cli_capture_end();
    if (rc != KVF_OK) {
        cli_error("%s", error);
        return cli_exit_of(rc);
    }
    kvf_llama_calibration_about(v.c, &v.info);
    int code = folder ? draw(&v, folder) : CLI_GO;
    if (code == CLI_GO) code = json ? print_object(&v) : print_table(&v);
    kvf_llama_calibration_free(&v.c);
    return code;
}
