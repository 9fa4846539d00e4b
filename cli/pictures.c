/* SPDX-License-Identifier: MIT */
#include "pictures.h"
#include "measure.h"
#include "result.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- finding the picture that a row belongs to ---------------------------------------------------------------------------- */

/* A picture is known by its title, within one result: figures of two results are of two machines or days, and never meet. The title of
 * a second one says so. */
static plot *picture(pictures *p, const char *stem, const char *title, const char *x, const char *y)
{
    int files = 0, titles = 0;
    size_t n = strlen(title);
    for (int i = 0; i < p->n; i++) {
        bool same = strncmp(p->plot[i].title, title, n) == 0 &&
                    (!p->plot[i].title[n] || strncmp(p->plot[i].title + n, " (result ", 9) == 0);
        if (same && i >= p->first) return &p->plot[i];
        titles += same;
        files += strncmp(p->plot[i].file, stem, strlen(stem)) == 0;
    }
    if (p->n == PICTURES_MOST) return NULL;
    plot *one = &p->plot[p->n++];
    *one = (plot){0};
    snprintf(one->file, sizeof one->file, "%s-%d", stem, files + 1);
    if (titles)
        snprintf(one->title, sizeof one->title, "%.170s (result %d)", title, titles + 1);
    else
        snprintf(one->title, sizeof one->title, "%s", title);
    snprintf(one->x, sizeof one->x, "%s", x);
    snprintf(one->y, sizeof one->y, "%s", y);
    return one;
}

static void add(plot *p, plot_kind kind, const char *series, double x, double y, double low, double high, const char *label)
{
    if (p) plot_add(plot_series_named(p, series, kind), x, y, low, high, label);
}

/* ---- quality -------------------------------------------------------------------------------------------------------------- */

void pictures_front(const plot_point *point, int n, bool *keep)
{
    for (int i = 0; i < n; i++) {
        keep[i] = true;
        for (int k = 0; k < n; k++) {
            bool no_worse = point[k].x <= point[i].x && point[k].y <= point[i].y;
            bool better = point[k].x < point[i].x || point[k].y < point[i].y;
            if (no_worse && better) keep[i] = false;
        }
    }
}

static void add_front(plot *p)
{
    plot_point all[PLOT_SERIES_MOST * 8] = {{.x = 0}};
    bool keep[PLOT_SERIES_MOST * 8];
    int n = 0;
    for (int i = 0; i < p->n_series; i++)
        for (int k = 0; k < p->series[i].n && n < PLOT_SERIES_MOST * 8; k++)
            if (!p->series[i].point[k].hollow) all[n++] = p->series[i].point[k];
    pictures_front(all, n, keep);
    for (int i = 0; i < n; i++)
        if (keep[i]) add(p, PLOT_FRONT, "Pareto front", all[i].x, all[i].y, 0, 0, NULL);
}

/* Codecs of one family look alike: "turbo" of turbo3/turbo2. */
static void family(const json_t *row, char *text, size_t size)
{
    const char *k = result_string(row, "k");
    int letters = (int)strspn(k, "abcdefghijklmnopqrstuvwxyz");
    if (json_is_true(json_object_get(row, "libllama")))
        snprintf(text, size, "libllama's own");
    else if (letters > 1)
        snprintf(text, size, "%.*s", letters < 40 ? letters : 40, k);
    else
        snprintf(text, size, "f16, q8_0, q4_0"); /* what is named after a type */
}

/* "uni4" for "uni4/uni4". */
static void short_name(const char *name, char *text, size_t size)
{
    const char *slash = strchr(name, '/');
    size_t half = slash ? (size_t)(slash - name) : 0;
    bool twice = slash && strlen(slash + 1) == half && strncmp(name, slash + 1, half) == 0;
    snprintf(text, size, "%.*s", twice ? (int)half : (int)strlen(name), name);
}

/* A value of 0 has no place on a logarithmic axis: what is below the arithmetic of the comparison, or below the noise of a text,
 * is drawn there. */
static const double KLD_LEAST = 1e-7, PPL_LEAST = 1e-4;

/* What cannot be told from no loss is hollow and no part of the front. */
static void add_loss(plot *p, const json_t *row, double value, double error, double least, bool hollow)
{
    char series[64], label[PLOT_NAME];
    double low = value - error, high = value + error;
    family(row, series, sizeof series);
    short_name(result_string(row, "name"), label, sizeof label);
    if (!p) return;
    p->log_x = p->log_y = true;
    plot_series *s = plot_series_named(p, series, PLOT_POINTS);
    plot_add(s, result_real(row, "bits_per_value"), value > least ? value : least, low > least ? low : least,
             high > least ? high : least, label);
    if (hollow) plot_hollow(s);
}

/* A perplexity below that of f16 is a change like one above. */
static void add_quality(pictures *p, const json_t *run, const json_t *row)
{
    char title[200];
    static const char x[] =
        "bits a value of the folded cache at this context (codes, exact rows, tables; without libllama's own cells)";
    double change = fabs(result_real(row, "ppl_ratio") - 1), error = result_real(row, "ppl_ratio_error");
    if (result_real(row, "bits_per_value") <= 0) return;
    if (json_is_number(json_object_get(row, "kld_mean"))) {
        snprintf(title, sizeof title, "Loss against bits: %.160s", result_string(run, "title"));
        add_loss(picture(p, "kld", title, x, "mean KL divergence from f16, nats; bars: standard error; hollow: at the floor"),
                 row, result_real(row, "kld_mean"), result_real(row, "kld_error"), KLD_LEAST,
                 strcmp(result_string(row, "remark"), "at the floor") == 0);
    }
    if (!json_object_get(row, "ppl_ratio")) return;
    snprintf(title, sizeof title, "Perplexity against bits: %.160s", result_string(run, "title"));
    add_loss(picture(p, "ppl", title, x, "|perplexity / that of f16 - 1|; bars: standard error; hollow: no more than twice that"),
             row, change, error, PPL_LEAST, change <= 2 * error);
}

/* ---- speed ---------------------------------------------------------------------------------------------------------------- */

/* The middle half of the samples; from the least to the most where only those are kept. */
static void spread(const json_t *row, double *low, double *high)
{
    const json_t *us = json_object_get(row, "us");
    int n = (int)json_array_size(us);
    *low = result_real(row, "us_min");
    *high = result_real(row, "us_max");
    if (n < 4) return;
    double *x = cli_alloc((size_t)n, sizeof *x);
    for (int i = 0; i < n; i++) x[i] = json_number_value(json_array_get(us, (size_t)i));
    measure_sort(x, (size_t)n);
    *low = x[n / 4];
    *high = x[n - 1 - n / 4];
    free(x);
}

static void add_attend(pictures *p, const json_t *run, const json_t *row)
{
    char title[200];
    double low, high;
    if (result_real(run, "queries") > 1) return; /* one token's time against depth; results of before have no such field */
    spread(row, &low, &high);
    snprintf(title, sizeof title, "Attention of one token, a layer: %.0f query and %.0f KV heads of size %.0f, threads %.0f",
             result_real(run, "q_heads"), result_real(run, "kv_heads"), result_real(run, "head_dim"),
             result_real(run, "threads"));
    plot *one = picture(p, "attend", title, "tokens of history", "microseconds (median; band: middle half of the samples)");
    if (one) one->log_x = one->log_y = true;
    add(one, PLOT_LINES, result_string(row, "name"), result_real(run, "context"), result_real(row, "us_median"), low, high, NULL);
}

/* Processes of each arm that a claim about peaks takes; see measure_memory. */
enum { CLAIM_PROCESSES = 5 };

/* The least or the most of the processes' peaks, 0: not there. */
static double peak_at(const json_t *row, bool most)
{
    size_t i;
    json_t *x, *peaks = json_object_get(row, "peaks");
    double found = 0;
    json_array_foreach(peaks, i, x)
    {
        double value = json_number_value(x);
        if (i == 0 || (most ? value > found : value < found)) found = value;
    }
    return found;
}

static void add_memory(pictures *p, const json_t *run, const json_t *row)
{
    char title[200];
    const double mib = 1048576;
    double low = peak_at(row, false) / mib, high = peak_at(row, true) / mib;
    double bytes = result_real(row, "accounted") + result_real(row, "host"), peak = result_real(row, "peak");
    snprintf(title, sizeof title, "Memory of the cache: %.80s", result_string(run, "model"));
    plot *one = picture(p, "cache", title, "tokens of history", "MiB, cells of the host included");
    double depth = result_real(row, "held");
    add(one, PLOT_LINES, result_string(row, "name"), depth, bytes / mib, bytes / mib, bytes / mib, NULL);
    snprintf(title, sizeof title, "Peak memory of the process: %.80s", result_string(run, "model"));
    one = picture(p, "peak", title, "tokens of history",
                  result_real(row, "processes") < CLAIM_PROCESSES
                      ? "MiB, weights included; fewer than 5 processes an arm: no claim"
                      : "MiB, weights included (middle and band: least to most of the processes)");
    peak = high > 0 ? 0.5 * (low + high) : peak / mib;
    add(one, PLOT_LINES, result_string(row, "name"), depth, peak, high > 0 ? low : peak, high > 0 ? high : peak, NULL);
}

static void add_e2e(pictures *p, const json_t *run, const json_t *row)
{
    char title[200];
    const char *phase = result_string(row, "phase"), *name = result_string(row, "name"), *model = result_string(run, "model");
    double depth = json_object_get(run, "depth_mean") ? result_real(run, "depth_mean") : result_real(run, "depth");
    double us = result_real(row, "us_median"), rate = result_real(row, "tokens_per_s"), low, high;
    spread(row, &low, &high);
    snprintf(title, sizeof title, "Speed of %s: %.80s, threads %.0f", phase, model, result_real(run, "threads"));
    plot *one = picture(p, phase, title, "tokens of history", "tokens a second (median; band: middle half of the samples)");
    if (one) one->log_x = true;
    add(one, PLOT_LINES, name, depth, rate, rate * us / high, rate * us / low, NULL);
    if (strcmp(phase, "decode") != 0) return;
    snprintf(title, sizeof title, "Time of a decoded token: %.80s, threads %.0f", model, result_real(run, "threads"));
    one = picture(p, "token", title, "tokens of history", "microseconds a token (median; band: middle half of the samples)");
    if (one) one->log_x = true;
    add(one, PLOT_LINES, name, depth, us, low, high, NULL);
    add_memory(p, run, row);
}

/* ---- layers, needles ------------------------------------------------------------------------------------------------------ */

static void add_sensitivity(pictures *p, const json_t *run, const json_t *row)
{
    char title[200];
    double kld = result_real(row, "kld_mean");
    snprintf(title, sizeof title, "Loss when one layer is coded: %.80s", result_string(run, "model"));
    plot *one = picture(p, "layers", title, "layer", "mean KL divergence");
    if (one) one->log_y = true;
    kld = kld > KLD_LEAST ? kld : KLD_LEAST;
    add(one, PLOT_LINES, result_string(row, "name"), result_real(row, "layer"), kld, kld, kld, NULL);
}

static void add_needle(pictures *p, const json_t *run, const json_t *row)
{
    char title[200];
    snprintf(title, sizeof title, "Planted facts that are found: %.60s, %.60s", result_string(run, "model"),
             result_string(row, "name"));
    plot *one = picture(p, "needle", title, "tokens of context", "where the fact stands, in per cent");
    if (one) one->log_x = true;
    add(one, PLOT_HEAT, "found", result_real(row, "context"), 100 * result_real(row, "position"), result_real(row, "found"), 0,
        NULL);
}

/* ---- all ------------------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *kind;
    void (*add)(pictures *p, const json_t *run, const json_t *row);
} kinds[] = {
    {"quality", add_quality}, {"attend", add_attend}, {"e2e", add_e2e}, {"sensitivity", add_sensitivity}, {"needle", add_needle}};

static void add_result(pictures *p, const json_t *result)
{
    size_t i;
    json_t *row, *runs = json_object_get(result, "runs");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (strcmp(kinds[k].kind, result_string(result, "kind")) != 0) continue;
        json_array_foreach(json_object_get(result, "rows"), i, row) kinds[k].add(
            p, json_array_get(runs, (size_t)json_integer_value(json_object_get(row, "run"))), row);
    }
}

static void drop_empty(pictures *p)
{
    int n = 0;
    for (int k = 0; k < p->n; k++) {
        if (!p->plot[k].n_series) continue;
        if (n < k) p->plot[n] = p->plot[k];
        n++;
    }
    p->n = n;
}

void pictures_make(pictures *p, const json_t *results)
{
    size_t i;
    json_t *result;
    *p = (pictures){.plot = cli_alloc(PICTURES_MOST, sizeof *p->plot)};
    json_array_foreach(results, i, result)
    {
        p->first = p->n;
        add_result(p, result);
    }
    for (int k = 0; k < p->n; k++) plot_clean(&p->plot[k]);
    drop_empty(p);
    for (int k = 0; k < p->n; k++)
        if (p->plot[k].series[0].kind == PLOT_POINTS) add_front(&p->plot[k]);
}

void pictures_free(pictures *p)
{
    for (int i = 0; i < p->n; i++) plot_free(&p->plot[i]);
    free(p->plot);
    *p = (pictures){0};
}
