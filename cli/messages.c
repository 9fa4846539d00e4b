/* SPDX-License-Identifier: MIT
 * Notes, warnings, errors, and the log of libllama, on stderr; and results that quote a file, on stdout. */
#include "cli.h"

#include <kvfold.h>
#include <llama.h>

#include <stdarg.h>
#include <string.h>

enum { MAX_WARNINGS = 64 };

/* The program has one stderr, so its state is one object. */
static struct {
    bool verbose;
    bool capturing;
    char captured[512];
    enum ggml_log_level level; /* of the line that continuation pieces belong to */
    uint64_t warned[MAX_WARNINGS];
    int n_warned;
} state;

/* Names and options come from outside, and must not steer a terminal. */
static void put_plain(const char *text, FILE *f)
{
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        fputc((c < ' ' && c != '\n' && c != '\t') || c == 127 ? '?' : c, f);
    }
}

static void say(const char *prefix, const char *text)
{
    fflush(stdout); /* keeps the order when both streams end on one terminal */
    fprintf(stderr, "kvfold: %s", prefix);
    put_plain(text, stderr);
    fputc('\n', stderr);
}

static void print(const char *format, va_list args)
{
    char text[8192]; /* longer than any path; a longer sentence is cut */
    vsnprintf(text, sizeof text, format, args);
    say("", text);
}

void cli_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print(format, args);
    va_end(args);
}

void cli_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print(format, args);
    va_end(args);
}

void cli_print(const char *format, ...)
{
    char text[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put_plain(text, stdout);
}

static uint64_t hash(const char *text)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h;
}

static bool seen_before(const char *text)
{
    uint64_t h = hash(text);
    for (int i = 0; i < state.n_warned; i++) {
        if (state.warned[i] == h) return true;
    }
    if (state.n_warned < MAX_WARNINGS) state.warned[state.n_warned++] = h;
    return false;
}

void cli_warn(const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!seen_before(text)) say("warning: ", text);
}

/* ---- libllama -------------------------------------------------------------------------------------------------------------- */

/* Behind the names of libllama's functions and its general remarks, which tell a user nothing. */
static const char *what_it_says(const char *text)
{
    static const char names[] = "abcdefghijklmnopqrstuvwxyz0123456789_", remark[] = "error loading model: ";
    for (size_t n;; text += n) {
        n = strspn(text, names);
        n = n > 0 && strncmp(text + n, ": ", 2) == 0        ? n + 2
            : strncmp(text, remark, sizeof remark - 1) == 0 ? sizeof remark - 1
                                                            : 0;
        if (n == 0) return text;
    }
}

static void keep_first(const char *text)
{
    if (state.captured[0]) return;
    snprintf(state.captured, sizeof state.captured, "%s", what_it_says(text));
    state.captured[strcspn(state.captured, "\r\n")] = '\0';
}

static void on_log(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_CONT)
        level = state.level;
    else
        state.level = level;
    if (state.verbose) fputs(text, stderr);
    if (level != GGML_LOG_LEVEL_ERROR) return;
    if (state.capturing)
        keep_first(text);
    else if (!state.verbose && !cli_interrupted()) /* an interrupted decode fails by intent */
        fputs(text, stderr);
}

void cli_log_install(bool verbose)
{
    state.verbose = verbose;
    llama_log_set(on_log, NULL);
}

void cli_capture_begin(void)
{
    state.capturing = true;
    state.captured[0] = '\0';
}

const char *cli_capture_end(void)
{
    state.capturing = false;
    return state.captured;
}

int cli_exit_of(int kvf_code)
{
    switch (kvf_code) {
    case KVF_OK: return CLI_DONE;
    case KVF_E_SPEC:
    case KVF_E_ARG: return CLI_USAGE;
    case KVF_E_DAMAGED:
    case KVF_E_NONFINITE: return CLI_DAMAGED;
    default: return CLI_CANNOT;
    }
}
