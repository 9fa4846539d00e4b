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
    {"with_host", "with_host", NULL},
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

/* What says which cache it is, and what compares it with the same blocks of another run. */
static void copy(json_t *row, const json_t *arm)
{
    static const char *const keys[] = {"evict", "layers", "calibration", "batch", "kld_blocks", "complete"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *value = json_object_get(arm, keys[i]);
        if (value) json_object_set(row, keys[i], value);
    }
}

static json_t *row_of(const json_t *arm)
{
    json_t *row = json_object();
    const char *failure = result_string(arm, "failure");
    json_object_set_new(row, "name", json_string(result_string(arm, "name")));
    json_object_set(row, "libllama", json_object_get(arm, "libllama"));
    json_object_set(row, "k", json_object_get(arm, "k"));
    json_object_set(row, "v", json_object_get(arm, "v"));
    copy(row, arm);
    add_exact(row, arm);
    add_numbers(row, arm);
    add_written(row, json_object_get(arm, "generation"));
    if (failure[0])
        set_text(row, "remark", "%s: %s", result_real(arm, "positions") > 0 ? "failed later" : "cannot be measured", failure);
    if (json_is_true(json_object_get(arm, "at_floor"))) set_text(row, "remark", "at the floor");
    return row;
}

/* ---- parts of an arm: by depth, by text, its worst positions ---------------------------------------------------------------- */

static void add_part(json_t *o, int run, const json_t *arm, const json_t *part, const char *what)
{
    json_t *row = json_object(), *kld = json_object_get(part, "kld"), *same = json_object_get(part, "same_top");
    json_object_set_new(row, "name", json_string(result_string(arm, "name")));
    json_object_set_new(row, "run", json_integer(run));
    json_object_set_new(row, "part", cli_json_text(what));
    json_object_set(row, "positions", json_object_get(part, "positions"));
    json_object_set(row, "kld_mean", json_object_get(kld, "mean"));
    json_object_set(row, "kld_error", json_object_get(kld, "error"));
    json_object_set(row, "same_top", json_object_get(same, "mean"));
    json_object_set(row, "same_top_error", json_object_get(same, "error"));
    json_array_append_new(json_object_get(o, "parts"), row);
}

static void add_parts(json_t *o, int run, const json_t *arm)
{
    char what[300];
    size_t i;
    json_t *part, *texts = json_object_get(arm, "texts");
    json_array_foreach(json_object_get(arm, "depth"), i, part)
    {
        snprintf(what, sizeof what, "positions %.0f to %.0f", result_real(part, "from"), result_real(part, "to"));
        add_part(o, run, arm, part, what);
    }
    if (json_array_size(texts) < 2) return;
    json_array_foreach(texts, i, part) add_part(o, run, arm, part, cli_file_name(result_string(part, "file")));
}

static void add_worst(json_t *o, int run, const json_t *arm)
{
    size_t i;
    json_t *position;
    json_array_foreach(json_object_get(arm, "worst"), i, position)
    {
        json_t *row = json_copy(position);
        json_object_set_new(row, "name", json_string(result_string(arm, "name")));
        json_object_set_new(row, "run", json_integer(run));
        json_array_append_new(json_object_get(o, "worst"), row);
    }
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
        result_add_note(run, "floor, libllama's own difference between batch sizes with that cache: KLD %.2e ± %.1e",
                        result_real(floor, "mean"), result_real(floor, "error"));
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
    json_t *hash = json_object_get(json_object_get(o, "model"), "hash"), *hashes = json_array(), *text;
    size_t i;
    json_array_foreach(json_object_get(o, "texts"), i, text) if (json_object_get(text, "hash"))
        json_array_append(hashes, json_object_get(text, "hash"));
    if (hash) json_object_set(run, "model_hash", hash);
    json_object_set_new(run, "text_hashes", hashes);
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
    json_object_set_new(o, "parts", json_array());
    json_object_set_new(o, "worst", json_array());
    json_array_foreach(json_object_get(o, "arms"), i, arm)
    {
        result_add_row(o, number, row_of(arm));
        add_parts(o, number, arm);
        add_worst(o, number, arm);
    }
    cli_text_free(&title);
    cli_text_free(&texts);
}
