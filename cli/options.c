/* SPDX-License-Identifier: MIT */
#include "options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------------------------------------- */

/* Walks over words separated by spaces: the next one goes to `word`; NULL when there is none left. */
static const char *next_word(const char *list, char *word, size_t size)
{
    list += strspn(list, " ");
    size_t n = strcspn(list, " ");
    if (n == 0) return NULL;
    snprintf(word, size, "%.*s", (int)n, list);
    return list + n;
}

static bool has_word(const char *list, const char *wanted)
{
    char word[64];
    for (const char *at = list; (at = next_word(at, word, sizeof word)) != NULL;) {
        if (strcmp(word, wanted) == 0) return true;
    }
    return false;
}

static bool is_end(const cli_option *o)
{
    return !o->names && !o->help;
}

static const cli_option *find(const cli_syntax *syntax, const char *name)
{
    for (const cli_option *o = syntax->options; !is_end(o); o++) {
        if (o->names && has_word(o->names, name)) return o;
    }
    return NULL;
}

static int unknown(const cli_syntax *syntax, const char *name)
{
    char word[64], best[64] = "--help";
    size_t least = cli_distance(name, best);
    for (const cli_option *o = syntax->options; !is_end(o); o++) {
        for (const char *at = o->names ? o->names : ""; (at = next_word(at, word, sizeof word)) != NULL;) {
            size_t d = cli_distance(name, word);
            if (d < least) {
                least = d;
                memcpy(best, word, sizeof best);
            }
        }
    }
    if (cli_near(name, best))
        cli_error("unknown option '%s'; the nearest is '%s' (kvfold help %s lists all)", name, best, syntax->command);
    else
        cli_error("unknown option '%s' (kvfold help %s lists all)", name, syntax->command);
    return CLI_USAGE;
}

/* ---- values ---------------------------------------------------------------------------------------------------------------- */

static int set_integer(const cli_option *o, const char *name, const char *value, void *field)
{
    char *end;
    errno = 0;
    long long x = strtoll(value, &end, 10);
    if (end == value || *end || errno || (double)x < o->least || (double)x > o->most) {
        cli_error("%s: '%s' is not a whole number from %.0f to %.0f", name, value, o->least, o->most);
        return CLI_USAGE;
    }
    *(int64_t *)field = x;
    return CLI_GO;
}

static int set_real(const cli_option *o, const char *name, const char *value, void *field)
{
    char *end;
    double x = strtod(value, &end);
    if (end == value || *end || !(x >= o->least && x <= o->most)) {
        cli_error("%s: '%s' is not a number from %g to %g", name, value, o->least, o->most);
        return CLI_USAGE;
    }
    *(double *)field = x;
    return CLI_GO;
}

static int add_to_list(const char *name, const char *value, cli_list *list)
{
    if (list->n == CLI_LIST_MOST) {
        cli_error("%s may be given %d times at most", name, CLI_LIST_MOST);
        return CLI_USAGE;
    }
    list->item[list->n++] = value;
    return CLI_GO;
}

static int set_choice(const cli_option *o, const char *name, const char *value, const char **field)
{
    if (!has_word(o->choices, value)) {
        cli_error("%s: '%s' is not possible; allowed: %s%s%s", name, value, o->choices, o->why ? ". " : "", o->why ? o->why : "");
        return CLI_USAGE;
    }
    *field = value;
    return CLI_GO;
}

static int set(const cli_option *o, const char *name, const char *value, void *settings)
{
    void *field = (char *)settings + o->field;
    switch (o->kind) {
    case CLI_ON:
    case CLI_OFF: *(bool *)field = o->kind == CLI_ON; return CLI_GO;
    case CLI_INTEGER: return set_integer(o, name, value, field);
    case CLI_REAL: return set_real(o, name, value, field);
    case CLI_STRING: *(const char **)field = value; return CLI_GO;
    case CLI_REPEAT: return add_to_list(name, value, field);
    case CLI_CHOICE: return set_choice(o, name, value, field);
    default: return CLI_GO;
    }
}

/* ---- --help ---------------------------------------------------------------------------------------------------------------- */

enum { HELP_COLUMN = 34, HELP_WIDTH = 118 };

static void print_wrapped(const char *text)
{
    char word[128];
    int column = HELP_COLUMN;
    for (const char *at = text; (at = next_word(at, word, sizeof word)) != NULL;) {
        int n = (int)strlen(word);
        if (column > HELP_COLUMN && column + 1 + n > HELP_WIDTH) {
            printf("\n%*s", HELP_COLUMN, "");
            column = HELP_COLUMN;
        }
        column += printf("%s%s", column > HELP_COLUMN ? " " : "", word);
    }
    putchar('\n');
}

static void print_option(const cli_option *o)
{
    char left[128], word[64];
    int n = 0;
    for (const char *at = o->names; (at = next_word(at, word, sizeof word)) != NULL;)
        n += snprintf(left + n, sizeof left - (size_t)n, "%s%s", n ? ", " : "", word);
    if (o->value) n += snprintf(left + n, sizeof left - (size_t)n, " %s", o->value);
    if (n > HELP_COLUMN - 3)
        printf("  %s\n%*s", left, HELP_COLUMN, "");
    else
        printf("  %-*s", HELP_COLUMN - 2, left);
    char text[1024];
    bool show = o->initial && o->initial[0];
    snprintf(text, sizeof text, "%s%s%s%s", o->help, show ? " (default " : "", show ? o->initial : "", show ? ")" : "");
    print_wrapped(text);
}

static int print_help(const cli_syntax *syntax)
{
    printf("usage: kvfold %s %s\n\n%s\n", syntax->command, syntax->usage, syntax->about);
    for (const cli_option *o = syntax->options; !is_end(o); o++) {
        if (o->kind == CLI_HEADING)
            printf("\n%s:\n", o->help);
        else
            print_option(o);
    }
    if (syntax->notes) printf("\n%s\n", syntax->notes);
    return cli_finish(CLI_DONE);
}

/* ---- the parser ------------------------------------------------------------------------------------------------------------ */

static int set_defaults(const cli_syntax *syntax, void *settings)
{
    int code = CLI_GO;
    for (const cli_option *o = syntax->options; code == CLI_GO && !is_end(o); o++) {
        if (o->initial && o->names) code = set(o, o->names, o->initial, settings);
    }
    return code;
}

static int positional(const cli_syntax *syntax, const char *word, void *settings)
{
    const char **field = (const char **)(void *)((char *)settings + syntax->positional_field);
    if (!syntax->positional || *field) {
        cli_error("unexpected word '%s' (kvfold help %s lists the options; text with spaces needs quotes)", word,
                  syntax->command);
        return CLI_USAGE;
    }
    *field = word;
    return CLI_GO;
}

/* Does a second value take the place of a first one that was on the command line, too? */
static bool is_repeated(const cli_syntax *syntax, const cli_option *o, bool *seen)
{
    const bool again = seen[o - syntax->options];
    seen[o - syntax->options] = true;
    return again && o->value && o->kind != CLI_REPEAT;
}

/* Reads the option at argv[*i], and its value: the next word, or what follows = in --name=value. */
static int read_option(const cli_syntax *syntax, void *settings, int argc, char **argv, int *i, bool *seen)
{
    char name[64];
    const char *word = argv[*i];
    const char *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
    snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - word) : (int)strlen(word), word);
    const cli_option *o = find(syntax, name);
    if (!o) return unknown(syntax, name);
    const char *value = NULL;
    if (o->value) {
        value = equals ? equals + 1 : *i + 1 < argc ? argv[++*i] : NULL;
        if (!value) {
            cli_error("%s needs a value: %s %s", name, name, o->value);
            return CLI_USAGE;
        }
    } else if (equals) {
        cli_error("%s takes no value", name);
        return CLI_USAGE;
    }
    if (is_repeated(syntax, o, seen)) cli_warn("%s is given more than once: the last one holds", name);
    return set(o, name, value, settings);
}

int cli_parse(const cli_syntax *syntax, void *settings, int argc, char **argv)
{
    bool seen[CLI_OPTIONS_MOST] = {false};
    int code = set_defaults(syntax, settings);
    for (int i = 1; code == CLI_GO && i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return print_help(syntax);
        if (argv[i][0] == '-' && argv[i][1])
            code = read_option(syntax, settings, argc, argv, &i, seen);
        else
            code = positional(syntax, argv[i], settings);
    }
    return code;
}
