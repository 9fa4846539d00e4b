/* SPDX-License-Identifier: MIT
 * kvfold report: saved results as one page, as pictures, and as Markdown. */
#include "options.h"
#include "page.h"
#include "pictures.h"
#include "result.h"

#include <jansson.h>

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

typedef struct settings {
    const char *folder, *markdown;
} settings;

static const cli_option options[] = {
    CLI_HEAD("options"),
    CLI_WORD("-o --output", "FOLDER", settings, folder,
             "where report.html and the pictures go, made when it is not there (default: report)"),
    CLI_WORD("--markdown", "FILE", settings, markdown, "also write all tables and their commands as Markdown"),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "report",
    .usage = "RESULT.json [RESULT.json...] [OPTIONS]",
    .about = "Turns results that --save wrote into one page that needs no other file (report.html), and into pictures, each as "
             "SVG and\n"
             "PNG, drawn by gnuplot: loss and perplexity against bits, speed and time against depth, memory against context.",
    .options = options,
};

static int save_page(const settings *s, const json_t *results, const pictures *p, int drawn)
{
    cli_text page = {0}, path = {0};
    page_html(results, p, s->folder, &page);
    cli_text_format(&path, "%s/report.html", s->folder);
    int code = cli_save(path.data, page.data, page.length);
    if (code == CLI_GO) printf("%s: %d pictures, %zu results\n", path.data, drawn, json_array_size(results));
    cli_text_free(&page);
    cli_text_free(&path);
    return code;
}

static int save_markdown(const settings *s, const json_t *results)
{
    size_t i;
    json_t *result;
    const char *last = "";
    cli_text t = {0};
    cli_text_format(
        &t, "# Measurements\n\nWritten by `kvfold report` from saved results; do not edit. Only figures of one table can be "
            "compared.\n");
    json_array_foreach(results, i, result)
    {
        const result_table *table = result_table_of(result_string(result, "kind"));
        if (!table) continue;
        cli_text_format(&t, strcmp(last, table->kind) == 0 ? "\n" : "\n## %s\n\n", table->kind);
        last = table->kind;
        result_markdown(result, table, &t);
    }
    int code = cli_save(s->markdown, t.data, t.length);
    cli_text_free(&t);
    return code;
}

/* One that cannot be drawn does not stop the others. */
static int draw_all(pictures *p, const char *folder)
{
    int drawn = 0;
    for (int i = 0; i < p->n; i++) {
        plot_end end = plot_draw(&p->plot[i], folder);
        if (end == PLOT_NO_PROGRAM) break;
        drawn += end == PLOT_DRAWN;
    }
    return drawn;
}

static int report(const settings *s, const json_t *results)
{
    pictures p;
    if (mkdir(s->folder, 0777) != 0 && errno != EEXIST) {
        cli_error("cannot make the folder '%s': %s", s->folder, strerror(errno));
        return CLI_CANNOT;
    }
    pictures_make(&p, results);
    int drawn = draw_all(&p, s->folder), code = save_page(s, results, &p, drawn); /* worth having without pictures, too */
    if (code == CLI_GO && s->markdown) code = save_markdown(s, results);
    if (code == CLI_GO && drawn < p.n) code = CLI_CANNOT;
    pictures_free(&p);
    return cli_finish(code == CLI_GO ? CLI_DONE : code);
}

/* Neither page nor Markdown may replace a result, nor one the other. */
static int check(const settings *s, char *const *file, int n)
{
    cli_text page = {0};
    cli_text_format(&page, "%s/report.html", s->folder);
    int code = cli_save_apart(s->markdown, page.data);
    for (int i = 0; i < n && code == CLI_GO; i++) {
        code = cli_save_apart(page.data, file[i]);
        if (code == CLI_GO) code = cli_save_apart(s->markdown, file[i]);
    }
    cli_text_free(&page);
    return code;
}

int cmd_report(int argc, char **argv)
{
    settings s = {.folder = "report"};
    json_t *results = json_array();
    char **file = argv + 1;
    int code, files = 0;
    while (argc > 1 && argv[1][0] != '-') files++, argv++, argc--; /* names come first */
    code = cli_parse(&syntax, &s, argc, argv);
    if (code == CLI_GO && files == 0) {
        cli_error("report: which results? Files that --save wrote, before any option");
        code = CLI_USAGE;
    }
    if (code == CLI_GO) code = check(&s, file, files);
    for (int i = 0; code == CLI_GO && i < files; i++) {
        json_t *one = result_read(file[i], &code);
        if (one && !result_table_of(result_string(one, "kind")))
            cli_warn("'%s' is of kind '%s', of which there are no tables: it is left out", file[i], result_string(one, "kind"));
        if (one) json_array_append_new(results, one);
    }
    if (code == CLI_GO) code = report(&s, results);
    json_decref(results);
    return code;
}
