/* SPDX-License-Identifier: MIT
 * The envelope of a result: what it is, where it comes from, saved and read. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "result.h"
#include "machine.h"
#include "measure.h"

#include <jansson.h>
#include <kvfold_llama.h>

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static cli_text command;

/* A word as a shell would read it. */
static void add_word(cli_text *t, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./,:=+@%";
    if (word[0] && word[strspn(word, plain)] == 0) {
        cli_text_add(t, word, strlen(word));
        return;
    }
    cli_text_add(t, "'", 1);
    for (; *word; word++) cli_text_add(t, *word == '\'' ? "'\\''" : word, *word == '\'' ? 4 : 1);
    cli_text_add(t, "'", 1);
}

void result_command(int argc, char **argv)
{
    cli_text_free(&command);
    for (int i = 0; i < argc; i++) {
        if (i) cli_text_add(&command, " ", 1);
        add_word(&command, i == 0 ? cli_file_name(argv[i]) : argv[i]);
    }
}

json_t *result_new(const char *kind, uint64_t seed)
{
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *o = json_object();
    json_object_set_new(o, "format", json_integer(RESULT_FORMAT));
    json_object_set_new(o, "kind", json_string(kind));
    json_object_set_new(o, "command", cli_json_text(command.data ? command.data : ""));
    json_object_set_new(o, "date", json_string(date));
    json_object_set_new(o, "seed", json_integer((json_int_t)seed));
    json_object_set_new(o, "machine", machine_json());
    json_object_set_new(o, "runs", json_array());
    json_object_set_new(o, "rows", json_array());
    json_object_set_new(o, "refused", json_array());
    return o;
}

void result_hash_text(char text[RESULT_HASH], uint64_t hash)
{
    snprintf(text, RESULT_HASH, "%016llx", (unsigned long long)hash);
}

json_t *result_hash_json(uint64_t hash)
{
    char text[RESULT_HASH];
    result_hash_text(text, hash);
    return json_string(text);
}

uint64_t result_hash_of_model(const char *path)
{
    uint64_t hash;
    return kvf_llama_model_hash(path, &hash, NULL, 0) == KVF_OK ? hash : 0;
}

uint64_t result_hash_of_file(const char *path)
{
    enum { PIECE = 1 << 16, PIECES = 64 };
    FILE *f = fopen(path, "rb");
    unsigned char *bytes = f ? cli_alloc(PIECE, 1) : NULL;
    uint64_t part[2] = {0, 0};
    off_t size = f && fseeko(f, 0, SEEK_END) == 0 ? ftello(f) : 0;
    for (int i = 0; i < PIECES && size > 0; i++) {
        if (fseeko(f, size / PIECES * i, SEEK_SET) != 0) break;
        part[1] = measure_digest(bytes, fread(bytes, 1, PIECE, f));
        part[0] = measure_digest(part, sizeof part);
    }
    part[1] = (uint64_t)size;
    if (f) fclose(f);
    free(bytes);
    return size > 0 ? measure_digest(part, sizeof part) : 0;
}

void result_set_cpu(json_t *result, const char *cpu)
{
    if (cpu) json_object_set_new(json_object_get(result, "machine"), "cpu", json_string(cpu));
}

int result_add_run(json_t *result, json_t *run, const char *title)
{
    json_t *runs = json_object_get(result, "runs");
    json_object_set_new(run, "title", cli_json_text(title));
    json_array_append_new(runs, run);
    return (int)json_array_size(runs) - 1;
}

void result_add_note(json_t *run, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!json_object_get(run, "notes")) json_object_set_new(run, "notes", json_array());
    json_array_append_new(json_object_get(run, "notes"), cli_json_text(text));
}

void result_add_row(json_t *result, int run, json_t *row)
{
    json_object_set_new(row, "run", json_integer(run));
    json_array_append_new(json_object_get(result, "rows"), row);
}

void result_refuse(json_t *result, const char *sentence)
{
    size_t i;
    json_t *list = json_object_get(result, "refused"), *old;
    json_array_foreach(list, i, old) if (strcmp(json_string_value(old), sentence) == 0) return;
    json_array_append_new(list, cli_json_text(sentence));
    cli_warn("%s", sentence);
}

/* ---- files ---------------------------------------------------------------------------------------------------------------- */

int result_save(const json_t *result, const char *path)
{
    char *bytes = json_dumps(result, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    cli_text t = {0};
    if (!bytes) {
        cli_error("cannot save '%s': the result cannot be written as JSON", path);
        return CLI_CANNOT;
    }
    cli_text_format(&t, "%s\n", bytes);
    int code = cli_save(path, t.data, t.length);
    cli_text_free(&t);
    free(bytes);
    return code;
}

static bool is_string(const json_t *x)
{
    return json_is_string(x);
}

static bool is_sample(const json_t *x)
{
    return json_is_number(x) && json_number_value(x) > 0;
}

/* A list of such values, or nothing at all. */
static bool is_list(const json_t *list, bool (*is)(const json_t *))
{
    size_t i;
    json_t *x;
    if (list && !json_is_array(list)) return false;
    json_array_foreach(list, i, x) if (!is(x)) return false;
    return true;
}

static bool is_run(const json_t *run)
{
    return json_is_object(run) && is_list(json_object_get(run, "notes"), is_string);
}

static bool is_row(const json_t *row)
{
    return json_is_string(json_object_get(row, "name")) && json_is_integer(json_object_get(row, "run")) &&
           is_list(json_object_get(row, "us"), is_sample);
}

/* What a file says of itself is believed in its values, not in its form. */
static const char *what_is_wrong(const json_t *o)
{
    size_t i;
    json_t *row, *runs = json_object_get(o, "runs"), *rows = json_object_get(o, "rows");
    if (!json_is_string(json_object_get(o, "kind")) || !json_is_array(rows) || !json_is_array(runs)) return "no result of kvfold";
    if (json_integer_value(json_object_get(o, "format")) != RESULT_FORMAT) return "a result in another format than 1";
    if (!is_list(runs, is_run)) return "a result with a run that is none: notes are sentences";
    if (!is_list(rows, is_row)) return "a result with a row that is none: it has a name, the number of a run, and times above 0";
    if (!is_list(json_object_get(o, "refused"), is_string)) return "a result whose list of what was refused holds no sentences";
    json_array_foreach(rows, i, row) if (!json_array_get(runs,
                                                         (size_t)json_integer_value(json_object_get(
                                                             row, "run")))) return "a result with a row that belongs to no run";
    return NULL;
}

json_t *result_read(const char *path, int *code)
{
    cli_text t = {0};
    json_error_t error;
    *code = cli_read_file(path, &t);
    if (*code != CLI_GO) return NULL;
    json_t *o = json_loadb(t.data ? t.data : "", t.length, 0, &error);
    cli_text_free(&t);
    *code = CLI_DAMAGED;
    if (!o) {
        cli_error("'%s' is no JSON: line %d: %s", path, error.line, error.text);
        return NULL;
    }
    const char *wrong = what_is_wrong(o);
    if (!wrong) {
        *code = CLI_GO;
        return o;
    }
    cli_error("'%s' is %s", path, wrong);
    json_decref(o);
    return NULL;
}

/* ---- out ------------------------------------------------------------------------------------------------------------------ */

int result_check(const result_settings *s, const char *const *in, int n)
{
    int code = s->save ? cli_save_check(s->save) : CLI_GO;
    return code == CLI_GO ? cli_save_apart_all(s->save, in, n) : code;
}

const char *result_form(const result_settings *s)
{
    return s->json ? "json" : s->csv ? "csv" : s->form;
}

int result_print(json_t *result, const char *form)
{
    const result_table *table = result_table_of(result_string(result, "kind"));
    if (strcmp(form, "json") == 0) return cli_print_json(json_incref(result));
    cli_text t = {0};
    if (strcmp(form, "csv") == 0)
        result_csv(result, &t);
    else if (strcmp(form, "md") == 0)
        result_markdown(result, table, &t);
    else
        result_text(result, table, &t);
    int code = cli_write(t.data ? t.data : "", t.length);
    cli_text_free(&t);
    return code == CLI_GO ? CLI_DONE : code;
}

int result_out(json_t *result, const result_settings *s)
{
    int saved = s->save ? result_save(result, s->save) : CLI_GO;
    int code = result_print(result, result_form(s));
    json_decref(result);
    return saved == CLI_GO ? code : saved;
}

int result_end(json_t *result, int code, bool wrong, const result_settings *s)
{
    if (code != CLI_GO && json_array_size(json_object_get(result, "rows")) == 0) {
        json_decref(result);
        return code;
    }
    int printed = result_out(result, s);
    if (code == CLI_GO) code = wrong ? CLI_CANNOT : CLI_DONE;
    return printed == CLI_DONE ? cli_finish(code) : printed;
}

double result_real(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

const char *result_string(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}
