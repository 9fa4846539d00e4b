/* SPDX-License-Identifier: MIT
 * A result as a table for people, as Markdown, and as CSV. Losing rows are printed like all others. */
#include "result.h"

#include <jansson.h>

#include <math.h>
#include <string.h>

/* ---- cells ---------------------------------------------------------------------------------------------------------------- */

static void ratio_cell(const json_t *row, char *text, size_t size)
{
    const char *verdict = result_string(row, "verdict");
    double low = result_real(row, "ratio_low"), high = result_real(row, "ratio_high");
    if (!verdict[0])
        snprintf(text, size, "-");
    else if (strcmp(verdict, "baseline") == 0)
        snprintf(text, size, "the baseline");
    else if (json_is_false(json_object_get(row, "distinguishable")))
        snprintf(text, size, "%s (%.2f to %.2f)", verdict, low, high);
    else
        snprintf(text, size, "%.2f (%.2f to %.2f)", result_real(row, "ratio"), low, high);
}

static void ceiling_cell(const json_t *row, char *text, size_t size)
{
    double memory = result_real(row, "ceiling"), amdahl = result_real(row, "amdahl");
    double least = memory > 0 && amdahl > 0 ? fmin(memory, amdahl) : fmax(memory, amdahl);
    if (least > 0)
        snprintf(text, size, "%.2f %s", least, least == memory ? "memory" : "Amdahl");
    else
        snprintf(text, size, "-");
}

void result_cell(const json_t *row, const result_column *c, char *text, size_t size)
{
    const json_t *value = json_object_get(row, c->key);
    double x = json_number_value(value);
    snprintf(text, size, "-");
    if (c->kind == RESULT_RATIO)
        ratio_cell(row, text, size);
    else if (c->kind == RESULT_CEILING)
        ceiling_cell(row, text, size);
    else if (c->kind == RESULT_TEXT)
        snprintf(text, size, "%s", result_string(row, c->key));
    else if (!json_is_number(value))
        return;
    else if (c->kind == RESULT_NUMBER)
        snprintf(text, size, "%.*f", c->digits, x);
    else if (c->kind == RESULT_PERCENT)
        snprintf(text, size, "%.*f %%", c->digits, 100 * x);
    else if (c->kind == RESULT_MIB)
        snprintf(text, size, "%.*f", c->digits, x / 1048576);
    else
        snprintf(text, size, "%.*e", c->digits, x);
}

bool result_is_words(const result_column *c)
{
    return c->kind == RESULT_TEXT || c->kind == RESULT_RATIO || c->kind == RESULT_CEILING;
}

bool result_of_run(const json_t *row, size_t run)
{
    return (size_t)json_integer_value(json_object_get(row, "run")) == run;
}

bool result_is_empty(const json_t *rows, size_t run, const result_column *c)
{
    size_t i;
    json_t *row;
    char text[RESULT_CELL];
    json_array_foreach(rows, i, row)
    {
        if (!result_of_run(row, run)) continue;
        result_cell(row, c, text, sizeof text);
        if (text[0] && strcmp(text, "-") != 0) return false;
    }
    return true;
}

/* ---- whole tables --------------------------------------------------------------------------------------------------------- */

enum { COLUMNS = 24 };

typedef struct sheet {
    const result_column *column;
    int width[COLUMNS], n; /* 0: nothing in it */
} sheet;

static int columns_of(const char *s) /* characters, not bytes */
{
    int n = 0;
    for (; *s; s++) n += (*s & 0xc0) != 0x80;
    return n;
}

static void find_widths(sheet *s, const json_t *rows, size_t run)
{
    size_t i;
    json_t *row;
    char text[RESULT_CELL];
    for (s->n = 0; s->n < COLUMNS && s->column[s->n].key; s->n++) {
        const result_column *c = &s->column[s->n];
        s->width[s->n] = result_is_empty(rows, run, c) ? 0 : columns_of(c->head);
        if (s->width[s->n] == 0) continue;
        json_array_foreach(rows, i, row)
        {
            if (!result_of_run(row, run)) continue;
            result_cell(row, c, text, sizeof text);
            if (columns_of(text) > s->width[s->n]) s->width[s->n] = columns_of(text);
        }
    }
}

static void add_line(cli_text *to, const sheet *s, const json_t *row, bool markdown)
{
    char text[RESULT_CELL];
    for (int i = 0; i < s->n; i++) {
        const result_column *c = &s->column[i];
        if (s->width[i] == 0) continue;
        snprintf(text, sizeof text, "%s", c->head);
        if (row) result_cell(row, c, text, sizeof text);
        for (char *bar = text; markdown && (bar = strchr(bar, '|')) != NULL;) *bar = '/'; /* would end the cell */
        int blanks = s->width[i] - columns_of(text), words = result_is_words(c);
        cli_text_format(to, "%s%*s%s%*s%s", markdown ? "| " : "", words ? 0 : blanks, "", text, words ? blanks : 0, "",
                        markdown ? " " : "  ");
    }
    while (!markdown && to->length && to->data[to->length - 1] == ' ') to->data[--to->length] = 0;
    cli_text_format(to, "%s\n", markdown ? "|" : "");
}

static void add_rule(cli_text *to, const sheet *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->width[i]) cli_text_format(to, "%s", result_is_words(&s->column[i]) ? "|---" : "|--:");
    cli_text_format(to, "|\n");
}

static void add_table(cli_text *to, sheet *s, const json_t *rows, size_t run, bool markdown)
{
    size_t i;
    json_t *row;
    find_widths(s, rows, run);
    add_line(to, s, NULL, markdown);
    if (markdown) add_rule(to, s);
    json_array_foreach(rows, i, row) if (result_of_run(row, run)) add_line(to, s, row, markdown);
}

static bool has_rows(const json_t *rows, size_t run)
{
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) if (result_of_run(row, run)) return true;
    return false;
}

static void add_run(cli_text *to, sheet *s, const json_t *result, size_t run, bool markdown)
{
    size_t i;
    const json_t *o = json_array_get(json_object_get(result, "runs"), run);
    json_t *note;
    cli_text_format(to, "\n%s%s\n%s", markdown ? "### " : "", result_string(o, "title"), markdown ? "\n" : "");
    json_array_foreach(json_object_get(o, "notes"), i, note)
        cli_text_format(to, "%s%s\n", markdown ? "- " : "", json_string_value(note));
    cli_text_add(to, "\n", 1);
    add_table(to, s, json_object_get(result, "rows"), run, markdown);
    for (const result_more *m = result_mores; m->key; m++) {
        sheet more = {.column = m->column};
        const json_t *rows = json_object_get(result, m->key);
        if (!has_rows(rows, run)) continue;
        cli_text_format(to, "\n%s%s\n\n", markdown ? "#### " : "", m->head);
        add_table(to, &more, rows, run, markdown);
    }
}

/* Do rows of one run rest on the same number of samples, or positions? */
static bool is_uneven(const json_t *result, const char *key)
{
    size_t i, k;
    json_t *a, *b, *rows = json_object_get(result, "rows");
    json_array_foreach(rows, i, a) json_array_foreach(rows, k, b)
    {
        if (json_object_get(a, "run") && !json_equal(json_object_get(a, "run"), json_object_get(b, "run"))) continue;
        if (json_is_number(json_object_get(a, key)) && json_is_number(json_object_get(b, key)) &&
            result_real(a, key) != result_real(b, key))
            return true;
    }
    return false;
}

void result_remarks(const json_t *result, cli_text *to)
{
    size_t i;
    json_t *row, *sentence;
    if (json_is_true(json_object_get(result, "interrupted"))) cli_text_format(to, "Interrupted: this is not all.\n");
    if (is_uneven(result, "positions") || is_uneven(result, "samples"))
        cli_text_format(to, "Uneven: rows of one table rest on different numbers of positions or samples.\n");
    json_array_foreach(json_object_get(result, "rows"), i, row)
    {
        const json_t *run =
            json_array_get(json_object_get(result, "runs"), (size_t)json_integer_value(json_object_get(row, "run")));
        if (result_string(row, "doubts")[0])
            cli_text_format(to, "DOUBTFUL %s (%s): %s\n", result_string(row, "name"), result_string(run, "title"),
                            result_string(row, "doubts"));
    }
    json_array_foreach(json_object_get(result, "refused"), i, sentence)
        cli_text_format(to, "Refused: %s\n", json_string_value(sentence));
}

static void add_remarks(cli_text *to, const json_t *result, bool markdown)
{
    cli_text lines = {0};
    result_remarks(result, &lines);
    for (const char *line = lines.data; line && *line; line = strchr(line, '\n') + 1)
        cli_text_format(to, "%s%.*s\n", markdown ? "- " : "", (int)strcspn(line, "\n"), line);
    if (markdown && lines.length) cli_text_add(to, "\n", 1);
    cli_text_free(&lines);
}

static void add_all(const json_t *result, const result_table *table, cli_text *to, bool markdown)
{
    sheet s = {.column = table->column};
    const json_t *m = json_object_get(result, "machine");
    if (markdown) cli_text_format(to, "`%s`, %s\n\n", result_string(result, "command"), result_string(result, "date"));
    cli_text_format(to, "%s, %.0f processors, last-level cache %s\n", result_string(m, "processor"), result_real(m, "processors"),
                    cli_bytes((int64_t)result_real(m, "last_level_cache")));
    cli_text_format(to, "kvfold %s (build %s, %s), libllama %s, ggml %s\n", result_string(m, "kvfold"), result_string(m, "build"),
                    result_string(m, "cpu"), result_string(m, "libllama"), result_string(m, "ggml"));
    for (size_t run = 0; run < json_array_size(json_object_get(result, "runs")); run++) add_run(to, &s, result, run, markdown);
    cli_text_add(to, "\n", 1);
    add_remarks(to, result, markdown);
    if (table->last) cli_text_format(to, "%s\n", table->last);
}

void result_text(const json_t *result, const result_table *table, cli_text *to)
{
    add_all(result, table, to, false);
}

void result_markdown(const json_t *result, const result_table *table, cli_text *to)
{
    add_all(result, table, to, true);
}

/* ---- CSV ------------------------------------------------------------------------------------------------------------------ */

/* Adds the keys of o's plain values to the list. */
static void collect_keys(json_t *keys, json_t *o)
{
    const char *key;
    json_t *value;
    json_object_foreach(o, key, value) if (!json_is_array(value) && !json_is_object(value))
        json_object_set_new(keys, key, json_null());
}

static void add_field(cli_text *to, const char *text)
{
    bool quoted = strpbrk(text, ",\"\n\r") != NULL;
    if (quoted) cli_text_add(to, "\"", 1);
    for (; *text; text++) cli_text_add(to, *text == '"' ? "\"\"" : text, *text == '"' ? 2 : 1);
    if (quoted) cli_text_add(to, "\"", 1);
}

static void add_value(cli_text *to, const json_t *value)
{
    if (json_is_string(value))
        add_field(to, json_string_value(value));
    else if (json_is_integer(value))
        cli_text_format(to, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        cli_text_format(to, "%.15g", json_real_value(value));
    else if (json_is_boolean(value))
        cli_text_format(to, "%s", json_is_true(value) ? "true" : "false");
}

void result_csv(const json_t *result, cli_text *to)
{
    size_t i;
    const char *key;
    json_t *row, *value, *keys = json_object(), *runs = json_object_get(result, "runs"), *rows = json_object_get(result, "rows");
    json_array_foreach(runs, i, row) collect_keys(keys, row);
    json_array_foreach(rows, i, row) collect_keys(keys, row);
    bool first = true;
    json_object_foreach(keys, key, value)
    {
        cli_text_format(to, "%s", first ? "" : ",");
        add_field(to, key);
        first = false;
    }
    cli_text_add(to, "\n", 1);
    json_array_foreach(rows, i, row)
    {
        const json_t *run = json_array_get(runs, (size_t)json_integer_value(json_object_get(row, "run")));
        first = true;
        json_object_foreach(keys, key, value)
        {
            cli_text_format(to, "%s", first ? "" : ",");
            const json_t *own = json_object_get(row, key);
            add_value(to, own ? own : json_object_get(run, key));
            first = false;
        }
        cli_text_add(to, "\n", 1);
    }
    json_decref(keys);
}
