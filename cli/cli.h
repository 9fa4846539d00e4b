/* SPDX-License-Identifier: MIT
 * What the sub-commands of the program share. They use the public headers only.
 *
 * Rules: results go to stdout; progress, notes, warnings and errors go to stderr, a warning once. With --json, stdout is exactly
 * one JSON object. A function that returns an exit code has already said why on stderr.
 */
#ifndef KVFOLD_CLI_H
#define KVFOLD_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes, the same for every sub-command. CLI_GO is no exit code: it means "go on". */
enum cli_exit {
    CLI_GO = -1,
    CLI_DONE = 0,    /* also after Ctrl-C, where a part is of use */
    CLI_USAGE = 1,   /* wrong use: unknown option, impossible value, unknown codec, empty prompt */
    CLI_CANNOT = 2,  /* right use, but it cannot be done: missing file, full disk, prompt longer than the context */
    CLI_DAMAGED = 3, /* the input is damaged: not a GGUF, truncated */
};

/* Sub-commands: cmd_NAME(argc, argv) with argv[0] the name of the sub-command. Each understands --help. */
#define CLI_COMMAND(name, summary) int cmd_##name(int argc, char **argv);
#include "commands.def"
#undef CLI_COMMAND

#if defined(__GNUC__)
#define CLI_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define CLI_PRINTF(f, a)
#endif

/* ---- messages.c: everything that goes to stderr --------------------------------------------------------------------------- */

/* The one that goes to stdout: a result that quotes strings of a file. As in the others, control characters but for newline and tab become
 * question marks. */
void cli_print(const char *format, ...) CLI_PRINTF(1, 2);

void cli_error(const char *format, ...) CLI_PRINTF(1, 2);
void cli_note(const char *format, ...) CLI_PRINTF(1, 2);
void cli_warn(const char *format, ...) CLI_PRINTF(1, 2); /* the same text is printed once */

/* Sends the log of libllama to stderr: everything when verbose, else errors only. */
void cli_log_install(bool verbose);

/* Between the two, errors of libllama are kept, not printed; the end gives the first one ("" when none), valid until the next
 * begin. So that one failure gives one sentence. */
void cli_capture_begin(void);
const char *cli_capture_end(void);

/* Exit code for a kvf_error. */
int cli_exit_of(int kvf_code);

/* ---- text.c ---------------------------------------------------------------------------------------------------------------- */

/* A growing string, always terminated once something was added. Out of memory ends the program with CLI_CANNOT. */
typedef struct cli_text {
    char *data;
    size_t length, capacity;
} cli_text;

void cli_text_add(cli_text *t, const char *bytes, size_t n);
void cli_text_format(cli_text *t, const char *format, ...) CLI_PRINTF(2, 3);
void cli_text_free(cli_text *t);

void *cli_alloc(size_t count, size_t size); /* zeroed; ends the program when out of memory */

/* "23.6 MiB" into one of a few rotating buffers. */
const char *cli_bytes(int64_t bytes);

/* What follows the last slash. */
const char *cli_file_name(const char *path);

/* Edit distance, for "did you mean". */
size_t cli_distance(const char *a, const char *b);
bool cli_near(const char *a, const char *b); /* may a have been meant as b? */

/* Length of the valid UTF-8 sequence at p (1 to 4), 0 when it is cut off by the end, -1 when the first byte belongs to none. */
int cli_utf8_step(const char *p, size_t n);

/* Appends bytes as valid UTF-8: what is none becomes U+FFFD. Returns how many were replaced. */
size_t cli_utf8_add(cli_text *t, const char *bytes, size_t n);

/* Turns \n \t \r \\ \" \' and \xHH of a command line value into what they mean, in place. */
void cli_unescape(char *text);

/* Reads a file whole ("-": stdin). CLI_GO or an exit code. */
int cli_read_file(const char *path, cli_text *t);

/* ---- system.c -------------------------------------------------------------------------------------------------------------- */

int64_t cli_memory_available(void); /* bytes, -1 unknown */
int64_t cli_memory_total(void);
int64_t cli_memory_peak(void); /* largest resident size of this process so far */
int64_t cli_memory_resident(void);
int64_t cli_memory_anonymous(void); /* resident without files, as mapped weights are; -1 unknown */
int cli_threads_default(void);
bool cli_is_terminal(FILE *f);
bool cli_is_directory(const char *path);

/* A pipe, socket or device: opening it may wait for ever, and it cannot be read twice. */
bool cli_is_stream(const char *path);
void cli_catch_interrupt(void); /* Ctrl-C sets the flag; a second one ends the program at once */
bool cli_interrupted(void);
/* Ctrl-C ended what is of no use in part: says that nothing was written. CLI_CANNOT. */
int cli_stopped(void);

/* ---- out.c ----------------------------------------------------------------------------------------------------------------- */

struct json_t;
/* Prints the object and drops the reference. CLI_DONE, or CLI_CANNOT when stdout cannot be written. */
int cli_print_json(struct json_t *object);
/* Writes at once. CLI_GO, or CLI_CANNOT with a sentence. */
int cli_write(const char *bytes, size_t n);
/* Flushes stdout: `code`, or CLI_CANNOT with a sentence when something could not be written. */
int cli_finish(int code);
/* A number with four digits after the point (JSON readers need no more). */
struct json_t *cli_json_real(double x);
/* Text that may not be UTF-8, as a path. */
struct json_t *cli_json_text(const char *text);

/* ---- save.c: what is kept --------------------------------------------------------------------------------------------------- */

/* Writes a file. What was in it before is replaced only by the whole of the new bytes: they go to a file beside it, which then
 * takes its name. CLI_GO, or CLI_CANNOT after a sentence. */
int cli_save(const char *path, const char *bytes, size_t n);
/* Is there a folder to save in? CLI_GO, or CLI_CANNOT after a sentence: better said before a long run than after it. */
int cli_save_check(const char *path);
/* Is `out` the very file `other`, which is read or written, too, by whatever name, or would it be? CLI_GO, or CLI_USAGE after a sentence.
 * NULL is no file; pipes and devices are never the same. */
int cli_save_apart(const char *out, const char *other);
/* The same of all of other[n]. */
int cli_save_apart_all(const char *out, const char *const *other, int n);

#endif
