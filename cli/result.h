/* SPDX-License-Identifier: MIT
 * Results of measurements: one JSON object, whatever was measured, that says how it came about, can be printed in several forms,
 * saved without ever losing an older one, and read again.
 *
 *   format 1, kind ("attend"), command, date, seed, machine {}
 *   runs[]  what stands beside each other: title, notes[], and its fields
 *   rows[]  run (its number), name, and its fields
 *   refused[]  sentences
 */
#ifndef KVFOLD_CLI_RESULT_H
#define KVFOLD_CLI_RESULT_H

#include "options.h"

struct json_t;

enum { RESULT_FORMAT = 1 };

typedef struct result_settings {
    bool json, csv;
    const char *form; /* -o */
    const char *save;
} result_settings;

#define RESULT_OPTIONS(S)                                                                                                        \
    CLI_HEAD("what comes out"), CLI_SWITCH(CLI_ON, "--json", S, out.json, "one JSON object on stdout, samples included"),        \
        CLI_SWITCH(CLI_ON, "--csv", S, out.csv, "comma-separated values, a line for each row"),                                  \
        CLI_ONE_OF("-o --output", "FORM", S, out.form, "table md csv json", "table", NULL, "table, md (Markdown), csv or json"), \
        CLI_WORD("--save", "FILE", S, out.save, "keep the JSON object in FILE; an older FILE stays until the new one is whole")

typedef enum result_kind {
    RESULT_TEXT,
    RESULT_NUMBER,  /* `digits` after the point */
    RESULT_PERCENT, /* of a share */
    RESULT_MIB,     /* of bytes */
    RESULT_TINY,    /* 1.2e-3, `digits` after the point */
    RESULT_RATIO,   /* ratio, ratio_low, ratio_high and verdict of a row, in words */
    RESULT_CEILING, /* the lower one of ceiling and amdahl */
} result_kind;

enum { RESULT_CELL = 160 }; /* room for one, as text */

typedef struct result_column {
    const char *key, *head;
    result_kind kind;
    int digits;
} result_column;

/* The table of one kind of result; columns end with key NULL. `last`: what the columns mean, may be NULL. */
typedef struct result_table {
    const char *kind;
    const result_column *column;
    const char *last;
} result_table;

/* Further lists of a result, each with a table of its own below that of the run; the last one has key NULL. */
typedef struct result_more {
    const char *key, *head;
    const result_column *column;
} result_more;
extern const result_more result_mores[];

/* How this program was called, for `command`. Called once by main. */
void result_command(int argc, char **argv);

/* A result without runs and rows. Everything random in it comes from that seed. */
struct json_t *result_new(const char *kind, uint64_t seed);
/* A hash as 16 hexadecimal digits. */
enum { RESULT_HASH = 17 };
void result_hash_text(char text[RESULT_HASH], uint64_t hash);
struct json_t *result_hash_json(uint64_t hash);
/* kvf_llama_model_hash; 0 when it cannot be read. */
uint64_t result_hash_of_model(const char *path);
/* Of a file's size and of pieces of 64 KiB at its start and spread over the rest: enough to tell two texts apart, and quick. 0 when it
 * cannot be read. */
uint64_t result_hash_of_file(const char *path);
/* The instruction set that was asked for, NULL: the best present, which is there already. */
void result_set_cpu(struct json_t *result, const char *cpu);
/* Adds a run; takes `run`, borrows the title. Returns its number, to be given to the rows. */
int result_add_run(struct json_t *result, struct json_t *run, const char *title);
void result_add_note(struct json_t *run, const char *format, ...) CLI_PRINTF(2, 3);
void result_add_row(struct json_t *result, int run, struct json_t *row);
void result_refuse(struct json_t *result, const char *sentence); /* once each */

/* Could it be saved, and not over one of the files in[n] (NULL: none) that the command reads? Better said before a long run than after it.
 * CLI_GO, or CLI_CANNOT or CLI_USAGE after a sentence. */
int result_check(const result_settings *s, const char *const *in, int n);
/* Saves, then prints as asked for, and drops the reference. CLI_DONE or CLI_CANNOT after a sentence. */
int result_out(struct json_t *result, const result_settings *s);
/* The same at the end of a run that gave `code` (CLI_GO or an exit code) and in which something went `wrong`; a run without rows
 * shows nothing. The exit code of the program. */
int result_end(struct json_t *result, int code, bool wrong, const result_settings *s);
/* Its parts: CLI_GO or CLI_CANNOT; "table", "md", "csv" or "json"; CLI_DONE or CLI_CANNOT. */
int result_save(const struct json_t *result, const char *path);
const char *result_form(const result_settings *s);
int result_print(struct json_t *result, const char *form);

/* Reads a saved result; NULL after a sentence, with the exit code in *code. */
struct json_t *result_read(const char *path, int *code);

/* Puts the arms of a result of kvfold quality into runs and rows, as all results have them. */
void result_add_quality(struct json_t *result);

/* Does the row belong to that run? */
bool result_of_run(const struct json_t *row, size_t run);
/* Is there nothing to show in that column of the run's rows? */
bool result_is_empty(const struct json_t *rows, size_t run, const result_column *c);
/* Words begin at the left, numbers end at the right. */
bool result_is_words(const result_column *c);
/* One cell as text. */
void result_cell(const struct json_t *row, const result_column *c, char *text, size_t size);
/* Appends what a reader must know of the whole result, a line each: that it was interrupted, that rows rest on different numbers of
 * samples, doubts, what was refused. */
void result_remarks(const struct json_t *result, cli_text *lines);
/* Appends the result as table, Markdown or CSV. */
void result_text(const struct json_t *result, const result_table *table, cli_text *to);
void result_markdown(const struct json_t *result, const result_table *table, cli_text *to);
void result_csv(const struct json_t *result, cli_text *to);

/* The table of a kind, NULL: unknown. The list is in result_tables.c. */
const result_table *result_table_of(const char *kind);

/* Shorthands that give 0 and "" for what is not there. */
double result_real(const struct json_t *o, const char *key);
const char *result_string(const struct json_t *o, const char *key);

#endif
