/* SPDX-License-Identifier: MIT
 * kvfold bench compare: what changed between two saved results. Times of different runs cannot be compared, as machines differ from
 * day to day; how a row stood to the baseline of its own run can. */
#include "bench.h"
#include "result.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 20240229 }; /* of the bootstrap: the same two files give the same table */

typedef struct settings {
    const char *file[2];
    result_settings out;
} settings;

static const cli_option options[] = {
    RESULT_OPTIONS(settings),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "bench compare",
    .usage = "A.json B.json [OPTIONS]",
    .about = "Compares two results that --save wrote, row by row: how many times as fast as its baseline was it in A, and in B?\n"
             "The noise of both runs counts; times alone are never compared, as machines differ from day to day. Of results of\n"
             "kvfold quality: is the mean divergence less or more in B than in A?",
    .options = options,
};

/* ---- which rows belong together ------------------------------------------------------------------------------------------- */

/* What a row is, besides its name; looked up in the row, then in its run. Two rows of one name that differ in any of these are two
 * experiments. */
static const char *const identity[] = {
    "phase",  "model", "model_hash", "q_heads", "kv_heads", "head_dim",    "context",    "queries",     "depth",  "threads",
    "tokens", "batch", "pool",       "values",  "texts",    "text_hashes", "text_hash",  "score",       "chunks", "seal_each",
    "k",      "v",     "sink",       "window",  "evict",    "layers",      "exact_bits", "calibration", "cpu"};
enum { N_IDENTITY = sizeof identity / sizeof *identity };

static const json_t *run_of(const json_t *result, const json_t *row)
{
    return json_array_get(json_object_get(result, "runs"), (size_t)json_integer_value(json_object_get(row, "run")));
}

static const json_t *look_up(const json_t *result, const json_t *row, const char *key)
{
    const json_t *own = json_object_get(row, key);
    return own ? own : json_object_get(run_of(result, row), key);
}

/* Results that were saved before there were batches say nothing of queries: one was asked. */
static bool is_same(const char *key, const json_t *u, const json_t *v)
{
    if (u && v) return json_equal(u, v);
    return u == v || (strcmp(key, "queries") == 0 && json_integer_value(u ? u : v) == 1);
}

/* NULL, or the first thing in which they differ. */
static const char *difference(const json_t *a, const json_t *x, const json_t *b, const json_t *y)
{
    for (int i = 0; i < N_IDENTITY; i++) {
        if (!is_same(identity[i], look_up(a, x, identity[i]), look_up(b, y, identity[i]))) return identity[i];
    }
    return NULL;
}

static bool same_kind(const json_t *a, const json_t *x, const json_t *b, const json_t *y)
{
    return !difference(a, x, b, y);
}

/* The last thing in which a row of that name is another one in b, where it is the same otherwise; NULL: there is none. */
static const char *nearly(const json_t *a, const json_t *x, const json_t *b)
{
    size_t i;
    json_t *row;
    const char *what = NULL;
    json_array_foreach(json_object_get(b, "rows"), i, row)
    {
        if (strcmp(result_string(row, "name"), result_string(x, "name")) == 0) what = difference(a, x, b, row);
    }
    return what;
}

/* The row of b that is what row x of a is, but called `name`. */
static const json_t *find(const json_t *a, const json_t *x, const json_t *b, const char *name)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(b, "rows"), i, row)
    {
        if (strcmp(result_string(row, "name"), name) == 0 && same_kind(a, x, b, row)) return row;
    }
    return NULL;
}

/* The row called `name` that stands beside this one: in its run, and of several the next one, as bench ops writes pairs. */
static const json_t *base_of(const json_t *result, const json_t *x, const char *name)
{
    size_t i;
    json_t *row;
    const json_t *found = NULL;
    bool passed = false;
    json_array_foreach(json_object_get(result, "rows"), i, row)
    {
        passed = passed || row == x;
        if (strcmp(result_string(row, "name"), name) != 0 || !json_equal(json_object_get(row, "run"), json_object_get(x, "run")))
            continue;
        if (passed) return row;
        found = row;
    }
    return found;
}

/* ---- comparing ------------------------------------------------------------------------------------------------------------ */

static int samples(const json_t *row, double *us)
{
    const json_t *list = json_object_get(row, "us");
    size_t n = json_array_size(list);
    if (n > MEASURE_SAMPLES_MAX) n = MEASURE_SAMPLES_MAX;
    for (size_t i = 0; i < n; i++) us[i] = json_number_value(json_array_get(list, i));
    return (int)n;
}

typedef struct side {
    const json_t *result, *row, *base;
    double us[MEASURE_SAMPLES_MAX], base_us[MEASURE_SAMPLES_MAX], floor;
    measure_pair pair;
    char why[80];
} side;

/* False when there are no samples to judge by. */
static bool load_side(side *s)
{
    int n = samples(s->row, s->us), n_base = samples(s->base, s->base_us);
    s->pair = (measure_pair){s->base_us, s->us, n < n_base ? n : n_base};
    const json_t *floor = look_up(s->result, s->row, "noise_floor");
    s->floor = json_is_null(floor) ? INFINITY : json_number_value(floor);
    return s->pair.n > 0;
}

static const double Z99 = 2.5758; /* 99 %, both sides */

/* Positions of block i, as quality cuts a chunk of `score` positions into blocks of 8. */
static double block_length(size_t i, int score)
{
    enum { BLOCK = 8 };
    int in_chunk = (int)(i % (size_t)((score + BLOCK - 1) / BLOCK)) * BLOCK;
    return score - in_chunk < BLOCK ? score - in_chunk : BLOCK;
}

/* Standard error of the mean difference, from the same blocks of the same text; < 0: they are not there. */
static double paired_error(const json_t *a, const json_t *b, int score, double apart)
{
    const json_t *x = json_object_get(a, "kld_blocks"), *y = json_object_get(b, "kld_blocks");
    size_t n = json_array_size(x);
    double positions = 0, squares = 0;
    if (n < 2 || n != json_array_size(y) || score < 1 || result_real(a, "positions") != result_real(b, "positions")) return -1;
    for (size_t i = 0; i < n; i++) {
        double length = block_length(i, score);
        double d = json_number_value(json_array_get(y, i)) - json_number_value(json_array_get(x, i)) - apart * length;
        positions += length;
        squares += d * d;
    }
    return sqrt((double)n / (double)(n - 1) * squares) / positions;
}

/* Of quality, nothing is random but which text was read. Both read the same, so blocks are compared with the same blocks; where a
 * result has none, the errors of both means are added, which is too wide for one text, never too narrow. */
static json_t *loss_json(const json_t *a, const json_t *b, int score)
{
    double apart = result_real(b, "kld_mean") - result_real(a, "kld_mean"), paired = paired_error(a, b, score, apart);
    double error = Z99 * (paired >= 0 ? paired : hypot(result_real(a, "kld_error"), result_real(b, "kld_error")));
    bool known = paired >= 0 || (json_object_get(a, "kld_error") && json_object_get(b, "kld_error"));
    const char *verdict = apart < -error ? "less loss" : apart > error ? "more loss" : "not distinguishable";
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:b}", "name", result_string(a, "name"), "kld_a",
                     result_real(a, "kld_mean"), "kld_b", result_real(b, "kld_mean"), "kld_apart", apart, "kld_apart_error",
                     error, "ppl_ratio_a", result_real(a, "ppl_ratio"), "ppl_ratio_b", result_real(b, "ppl_ratio"), "loss",
                     known ? verdict : "too few positions", "paired", (int)(paired >= 0));
}

/* Stood most of its samples beside other work? */
static bool is_busy(const side *s)
{
    return 2 * result_real(look_up(s->result, s->row, "other_load"), "marked") > s->pair.n;
}

static json_t *row_json(const side *a, const side *b)
{
    measure_ratio r;
    const char *verdict = "not distinguishable";
    measure_compare_runs(&a->pair, &b->pair, (1 + a->floor) * (1 + b->floor) - 1, SEED, &r);
    bool enough = a->pair.n >= MEASURE_SAMPLES_MIN && b->pair.n >= MEASURE_SAMPLES_MIN, base = a->row == a->base;
    bool busy = is_busy(a) || is_busy(b), known = isfinite(a->floor) && isfinite(b->floor);
    if (r.distinguishable) verdict = r.ratio > 1 ? "faster" : "slower";
    if (!known) verdict = "no noise floor";
    if (busy) verdict = "busy machine";
    if (!enough) verdict = "too few samples";
    if (base) verdict = "baseline";
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:b}", "name", result_string(a->row, "name"), "ratio_a",
                     cli_json_real(measure_median(a->base_us, a->pair.n) / measure_median(a->us, a->pair.n)), "ratio_b",
                     cli_json_real(measure_median(b->base_us, b->pair.n) / measure_median(b->us, b->pair.n)), "us_a",
                     cli_json_real(measure_median(a->us, a->pair.n)), "us_b", cli_json_real(measure_median(b->us, b->pair.n)),
                     "ratio", cli_json_real(r.ratio), "ratio_low", cli_json_real(r.low), "ratio_high", cli_json_real(r.high),
                     "verdict", verdict, "distinguishable", enough && known && !busy && !base && r.distinguishable);
}

/* NULL, or why this row of a is left out. */
static const char *compare_row(side *a, side *b, json_t *out, int run)
{
    const char *base = result_string(a->row, "base");
    b->row = find(a->result, a->row, b->result, result_string(a->row, "name"));
    const char *what = b->row ? NULL : nearly(a->result, a->row, b->result);
    if (what) {
        snprintf(a->why, sizeof a->why, "not compared, as '%s' differs", what);
        return a->why;
    }
    if (!b->row) return "only in A";
    if (json_object_get(a->row, "kld_mean") && json_object_get(b->row, "kld_mean")) {
        result_add_row(out, run, loss_json(a->row, b->row, (int)json_integer_value(look_up(a->result, a->row, "score"))));
        return NULL;
    }
    a->base = base_of(a->result, a->row, base);
    b->base = base_of(b->result, b->row, base);
    if (!a->base || !b->base) return "its baseline in A is not in B";
    if (!load_side(a) || !load_side(b)) return "without samples";
    json_t *row = row_json(a, b);
    const char *phase = result_string(a->row, "phase");
    if (phase[0]) json_object_set_new(row, "phase", json_string(phase));
    result_add_row(out, run, row);
    return NULL;
}

/* A run of the result for each run of A. */
static void compare_run(side *a, side *b, size_t number, json_t *out)
{
    size_t i;
    json_t *row, *from = json_array_get(json_object_get(a->result, "runs"), number);
    json_t *run = json_object();
    int at = result_add_run(out, run, result_string(from, "title"));
    json_array_foreach(json_object_get(a->result, "rows"), i, row)
    {
        if ((size_t)json_integer_value(json_object_get(row, "run")) != number) continue;
        a->row = row;
        const char *why = compare_row(a, b, out, at);
        if (why) result_add_note(run, "%s: %s", result_string(row, "name"), why);
    }
}

static void note_differences(const json_t *a, const json_t *b, json_t *out)
{
    static const char *const keys[] = {"processor", "processors", "cpu", "kvfold", "build", "compiler", "libllama", "ggml"};
    const json_t *x = json_object_get(a, "machine"), *y = json_object_get(b, "machine");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *u = json_object_get(x, keys[i]), *v = json_object_get(y, keys[i]);
        if (!u || !v || json_equal(u, v)) continue;
        char *was = json_dumps(u, JSON_ENCODE_ANY), *is = json_dumps(v, JSON_ENCODE_ANY);
        if (was && is) result_add_note(out, "differs: %s, A %s, B %s", keys[i], was, is);
        free(was);
        free(is);
    }
}

/* What a reader must know of either result: interruption, doubts, what was refused; and load, run by run. */
static void note_remarks(const json_t *o, const char *name, json_t *out)
{
    size_t i;
    json_t *run;
    cli_text lines = {0};
    result_remarks(o, &lines);
    for (const char *line = lines.data; line && *line; line = strchr(line, '\n') + 1)
        result_add_note(out, "%s: %.*s", name, (int)strcspn(line, "\n"), line);
    cli_text_free(&lines);
    json_array_foreach(json_object_get(o, "runs"), i, run)
    {
        double marked = result_real(json_object_get(run, "other_load"), "marked");
        if (marked > 0)
            result_add_note(out, "%s: %.0f rounds beside other load or at a low frequency: %s", name, marked,
                            result_string(run, "title"));
    }
}

static void note_only_in_b(const json_t *a, const json_t *b, json_t *out)
{
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(b, "rows"), i, row)
    {
        if (!find(b, row, a, result_string(row, "name"))) result_add_note(out, "%s: only in B", result_string(row, "name"));
    }
}

static int compare(json_t *a_result, json_t *b_result, const settings *s)
{
    if (strcmp(result_string(a_result, "kind"), result_string(b_result, "kind")) != 0) {
        cli_error("'%s' is of kind %s and '%s' of kind %s: there is nothing to compare", s->file[0],
                  result_string(a_result, "kind"), s->file[1], result_string(b_result, "kind"));
        return CLI_USAGE;
    }
    json_t *out = result_new("compare", SEED);
    json_object_set_new(out, "a", cli_json_text(s->file[0]));
    json_object_set_new(out, "b", cli_json_text(s->file[1]));
    side *two = cli_alloc(2, sizeof *two);
    two[0].result = a_result;
    two[1].result = b_result;
    for (size_t i = 0; i < json_array_size(json_object_get(a_result, "runs")); i++) compare_run(&two[0], &two[1], i, out);
    free(two);
    if (json_array_size(json_object_get(out, "rows")) == 0) {
        cli_error("'%s' and '%s' have no row in common", s->file[0], s->file[1]);
        json_decref(out);
        return CLI_CANNOT;
    }
    json_t *first = json_array_get(json_object_get(out, "runs"), 0);
    note_differences(a_result, b_result, first);
    note_only_in_b(a_result, b_result, first);
    note_remarks(a_result, "A", first);
    note_remarks(b_result, "B", first);
    return result_out(out, &s->out);
}

int bench_compare(int argc, char **argv)
{
    settings s = {0};
    int code, files = 0;
    while (files < 2 && argc > 1 && argv[1][0] != '-') { /* both names come first */
        s.file[files++] = argv[1];
        argv++, argc--;
    }
    code = cli_parse(&syntax, &s, argc, argv);
    if (code != CLI_GO) return code;
    if (files < 2) {
        cli_error("bench compare: two saved results are needed, A.json B.json, before any option");
        return CLI_USAGE;
    }
    code = result_check(&s.out, s.file, 2);
    if (code != CLI_GO) return code;
    json_t *a = result_read(s.file[0], &code), *b = a ? result_read(s.file[1], &code) : NULL;
    if (b) code = compare(a, b, &s);
    json_decref(a);
    json_decref(b);
    return code;
}
