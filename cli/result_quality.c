/* SPDX-License-Identifier: MIT
 * A result of `kvfold quality` in the form of all others: its arms as rows of one run. */
#include "result.h"

#include <jansson.h>

#include <stdarg.h>

/* ---- a row ----------------------------------------------------------------------------------------------------------------- */

/* What of an arm becomes a number of its row: o[outer][inner], or o[outer]. */
static const struct {
    const char *key, *outer, *inner;
} numbers[] = {
    {"bits_code", "bits_code", NULL},
    {"bits_per_value", "bits_per_value", NULL},
    {"positions", "positions", NULL},
    {"ppl", "ppl", "mean"},
    {"ppl_error", "ppl", "error"},
    {"ppl_ratio", "ppl_ratio", "mean"},
    {"ppl_ratio_error", "ppl_ratio", "error"},
    {"kld_mean", "kld", "mean"},
    {"kld_error", "kld", "error"},
    {"kld_median", "kld", "median"},
    {"kld_p99", "kld", "p99"},
    {"kld_p99_9", "kld", "p99_9"},
    {"kld_max", "kld", "max"},
    {"same_top", "same_top", "mean"},
    {"same_top_error", "same_top", "error"},
    {"change_mean", "probability_change", "mean"},
    {"change_rms", "probability_change", "rms"},
};

static void add_numbers(json_t *row, const json_t *arm)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        json_t *value = json_object_get(arm, numbers[i].outer);
        if (numbers[i].inner) value = json_object_get(value, numbers[i].inner);
        if (json_is_number(value)) json_object_set(row, numbers[i].key, value);
    }
}

static void set_text(json_t *row, const char *key, const char *format, ...) CLI_PRINTF(3, 4);
static void set_text(json_t *row, const char *key, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    json_object_set_new(row, key, cli_json_text(text));
}

/* Sink and window: "4/64", or "4/no" where nothing is exact at the end. */
static void add_exact(json_t *row, const json_t *arm)
{
    if (json_is_true(json_object_get(arm, "libllama"))) return;
    json_object_set(row, "sink", json_object_get(arm, "sink"));
    json_object_set(row, "window", json_object_get(arm, "window"));
    if (json_is_true(json_object_get(arm, "seal_each")))
        set_text(row, "exact", "%.0f/no", result_real(arm, "sink"));
    else
        set_text(row, "exact", "%.0f/%.0f", result_real(arm, "sink"), result_real(arm, "window"));
}

/* What the model wrote with this cache, as "7 of 8". */
static void add_written(json_t *row, json_t *generation)
{
    const char *key;
    json_t *check;
    if (!generation) return;
    set_text(row, "same_tokens", "%.0f of %.0f", result_real(generation, "same_tokens"), result_real(generation, "tokens"));
    json_object_foreach(generation, key, check) if (json_is_object(check))
        set_text(row, key, "%.0f of %.0f", result_real(check, "passed"), result_real(check, "asked"));
}

static json_t *row_of(const json_t *arm)
{
    json_t *row = json_object();
    const char *failure = result_string(arm, "failure");
    json_object_set_new(row, "name", json_string(result_string(arm, "name")));
    json_object_set(row, "libllama", json_object_get(arm, "libllama"));
    json_object_set(row, "k", json_object_get(arm, "k"));
    json_object_set(row, "v", json_object_get(arm, "v"));
    add_exact(row, arm);
    add_numbers(row, arm);
    add_written(row, json_object_get(arm, "generation"));
    if (failure[0]) set_text(row, "remark", "cannot be measured: %s", failure);
    if (json_is_true(json_object_get(arm, "at_floor"))) set_text(row, "remark", "at the floor");
    return row;
}

/* ---- the run --------------------------------------------------------------------------------------------------------------- */

/* "jargon.txt 300000:16384, german.txt 0:9000": names and bytes, as --slice takes them. */
static void add_texts(cli_text *to, const json_t *texts)
{
    size_t i;
    json_t *text;
    json_array_foreach(texts, i, text)
        cli_text_format(to, "%s%s %.0f:%.0f", i ? ", " : "", cli_file_name(result_string(text, "file")),
                        result_real(text, "first"), result_real(text, "bytes"));
}

static void add_notes(json_t *run, const json_t *o)
{
    const json_t *ppl = json_object_get(json_object_get(o, "reference"), "ppl");
    const json_t *prefill = json_object_get(json_object_get(o, "ordinary_prefill"), "ppl");
    const json_t *floor = json_object_get(json_object_get(o, "floor"), "kld");
    if (ppl)
        result_add_note(run, "libllama's f16 cache: perplexity %.4f ± %.4f; in an ordinary prefill %.4f",
                        result_real(ppl, "mean"), result_real(ppl, "error"), result_real(prefill, "mean"));
    if (floor)
        result_add_note(run, "floor, the same cache filled by other batches: KLD %.2e ± %.1e", result_real(floor, "mean"),
                        result_real(floor, "error"));
    if (json_is_true(json_object_get(o, "seal_each")))
        result_add_note(run, "no window: queries see even their own batch coded (--seal-each)");
}

static json_t *run_of(const json_t *o, const char *model, const char *texts)
{
    static const char *const same[] = {"context", "score", "chunks", "seal_each"};
    json_t *run = json_object();
    json_object_set_new(run, "model", cli_json_text(model));
    json_object_set_new(run, "texts", cli_json_text(texts));
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) json_object_set(run, same[i], json_object_get(o, same[i]));
    return run;
}

void result_add_quality(json_t *o)
{
    size_t i;
    cli_text title = {0}, texts = {0};
    json_t *arm;
    const char *model = cli_file_name(result_string(json_object_get(o, "model"), "file"));
    add_texts(&texts, json_object_get(o, "texts"));
    json_t *run = run_of(o, model, texts.data ? texts.data : "");
    cli_text_format(&title, "%s, %.0f tokens of %s%s", model, result_real(o, "context"), texts.data ? texts.data : "a text",
                    json_is_true(json_object_get(o, "seal_each")) ? ", no window" : "");
    int number = result_add_run(o, run, title.data);
    add_notes(run, o);
    json_array_foreach(json_object_get(o, "arms"), i, arm) result_add_row(o, number, row_of(arm));
    cli_text_free(&title);
    cli_text_free(&texts);
}
