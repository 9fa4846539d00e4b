/* SPDX-License-Identifier: MIT */
#include "page.h"
#include "result.h"

#include <jansson.h>

#include <string.h>

static void add_escaped(cli_text *to, const char *text)
{
    for (; *text; text++) switch (*text) {
        case '&': cli_text_add(to, "&amp;", 5); break;
        case '<': cli_text_add(to, "&lt;", 4); break;
        case '>': cli_text_add(to, "&gt;", 4); break;
        case '"': cli_text_add(to, "&quot;", 6); break;
        default: cli_text_add(to, text, 1);
        }
}

static void add_element(cli_text *to, const char *element, const char *text)
{
    cli_text_format(to, "<%s>", element);
    add_escaped(to, text);
    cli_text_format(to, "</%.*s>", (int)strcspn(element, " "), element);
}

/* ---- pictures ------------------------------------------------------------------------------------------------------------- */

/* An address that holds the picture itself: only what a URL cannot hold is written as %XX. */
static void add_data_address(cli_text *to, const cli_text *svg)
{
    cli_text_format(to, "data:image/svg+xml,");
    for (size_t i = 0; i < svg->length; i++) {
        unsigned char c = (unsigned char)svg->data[i];
        if (c <= ' ' || c >= 0x7f || strchr("%#<>\"'&{}", c))
            cli_text_format(to, "%%%02X", c);
        else
            cli_text_add(to, (const char *)&c, 1);
    }
}

static void add_picture(cli_text *to, const plot *p, const char *folder)
{
    cli_text path = {0}, svg = {0};
    cli_text_format(&path, "%s/%s.svg", folder, p->file);
    if (cli_read_file(path.data, &svg) == CLI_GO) {
        cli_text_format(to, "<figure><img alt=\"");
        add_escaped(to, p->title);
        cli_text_format(to, "\" src=\"");
        add_data_address(to, &svg);
        cli_text_format(to, "\"></figure>\n");
    }
    cli_text_free(&path);
    cli_text_free(&svg);
}

/* ---- tables --------------------------------------------------------------------------------------------------------------- */

static void add_row(cli_text *to, const json_t *rows, size_t run, const result_column *column, const json_t *row)
{
    char text[RESULT_CELL];
    cli_text_format(to, "<tr>");
    for (const result_column *c = column; c->key; c++) {
        if (result_is_empty(rows, run, c)) continue;
        snprintf(text, sizeof text, "%s", c->head);
        if (row) result_cell(row, c, text, sizeof text);
        add_element(to, !row ? "th" : result_is_words(c) ? "td" : "td class=n", text);
    }
    cli_text_format(to, "</tr>\n");
}

static void add_table(cli_text *to, const json_t *rows, size_t run, const result_column *column)
{
    size_t i;
    json_t *row;
    cli_text_format(to, "<table>\n");
    add_row(to, rows, run, column, NULL);
    json_array_foreach(rows, i, row) if (result_of_run(row, run)) add_row(to, rows, run, column, row);
    cli_text_format(to, "</table>\n");
}

static bool has_rows(const json_t *rows, size_t run)
{
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) if (result_of_run(row, run)) return true;
    return false;
}

static void add_run(cli_text *to, const json_t *result, size_t run, const result_table *table)
{
    size_t i;
    json_t *note, *rows = json_object_get(result, "rows"), *o = json_array_get(json_object_get(result, "runs"), run);
    add_element(to, "h3", result_string(o, "title"));
    cli_text_format(to, "\n<ul>");
    json_array_foreach(json_object_get(o, "notes"), i, note) add_element(to, "li", json_string_value(note));
    cli_text_format(to, "</ul>\n");
    add_table(to, rows, run, table->column);
    for (const result_more *m = result_mores; m->key; m++) {
        if (!has_rows(json_object_get(result, m->key), run)) continue;
        cli_text_format(to, "<details>");
        add_element(to, "summary", m->head);
        add_table(to, json_object_get(result, m->key), run, m->column);
        cli_text_format(to, "</details>\n");
    }
}

static void add_remarks(cli_text *to, const json_t *result)
{
    cli_text lines = {0}, one = {0};
    result_remarks(result, &lines);
    for (const char *line = lines.data; line && *line; line = strchr(line, '\n') + 1) {
        one.length = 0;
        cli_text_add(&one, line, strcspn(line, "\n"));
        add_element(to, "p class=remark", one.data);
    }
    cli_text_free(&lines);
    cli_text_free(&one);
}

static void add_result(cli_text *to, const json_t *result)
{
    char line[400];
    const json_t *m = json_object_get(result, "machine");
    const result_table *table = result_table_of(result_string(result, "kind"));
    if (!table) return;
    add_element(to, "h2", table->kind);
    cli_text_format(to, "\n<p>");
    add_element(to, "code", result_string(result, "command"));
    snprintf(line, sizeof line, "; %s; %s, %.0f processors; kvfold %s (build %s, %s), libllama %s", result_string(result, "date"),
             result_string(m, "processor"), result_real(m, "processors"), result_string(m, "kvfold"), result_string(m, "build"),
             result_string(m, "cpu"), result_string(m, "libllama"));
    add_escaped(to, line);
    cli_text_format(to, "</p>\n");
    add_remarks(to, result);
    for (size_t run = 0; run < json_array_size(json_object_get(result, "runs")); run++) add_run(to, result, run, table);
    if (table->last) add_element(to, "p", table->last);
}

void page_html(const json_t *results, const pictures *p, const char *folder, cli_text *to)
{
    size_t i;
    json_t *result;
    cli_text_format(
        to, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>kvfold measurements</title>\n<style>\n"
            "body{font-family:sans-serif;max-width:75em;margin:2em auto;padding:0 1em;color:#222}\n"
            "table{border-collapse:collapse;font-size:85%%}th,td{padding:.2em .7em;border-bottom:1px solid #ddd;"
            "text-align:left}\ntd.n{text-align:right;font-variant-numeric:tabular-nums}\nfigure{margin:1em 0}"
            "img{max-width:100%%}\n.remark{font-weight:bold}code{background:#f3f3f3;padding:.1em .3em}\n</style></head><body>\n"
            "<h1>kvfold measurements</h1>\n");
    for (int k = 0; k < p->n; k++)
        if (p->plot[k].drawn) add_picture(to, &p->plot[k], folder);
    json_array_foreach(results, i, result) add_result(to, result);
    cli_text_format(to, "</body></html>\n");
}
