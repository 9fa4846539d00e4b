/* SPDX-License-Identifier: MIT */
#include "arms.h"

#include <stdlib.h>
#include <string.h>

static bool continues(const char *piece)
{
    return piece[strcspn(piece, "=:/,")] == '=';
}

size_t cli_arm_length(const char *list)
{
    const char *p = list + strcspn(list, ",");
    while (*p && continues(p + 1)) p += 1 + strcspn(p + 1, ",");
    return (size_t)(p - list);
}

/* ---- options of an arm: ",sink=N", ",window=N" and ",evict=POLICY:..." at its end -------------------------------------------- */

/* The value of a piece "name=N" into *field; false when the piece is another one. */
static bool is_option(const char *piece, const char *name, int64_t most, int64_t *field, int *code)
{
    size_t n = strlen(name);
    if (strncmp(piece, name, n) != 0 || piece[n] != '=') return false;
    char *end;
    long long value = strtoll(piece + n + 1, &end, 10);
    if (end == piece + n + 1 || *end || value < 0 || value > most) {
        cli_error("--kv: '%s' is not a whole number from 0 to %lld", piece, (long long)most);
        *code = CLI_USAGE;
    }
    *field = value;
    return true;
}

/* Cuts the options of the arm off its end, as no codec has an option of these names. */
static int take_options(char *arm, kv_settings *one)
{
    int code = CLI_GO;
    char *policy = strstr(arm, ",evict=");
    if (policy) one->evict = policy + strlen(",evict="), *policy = '\0';
    for (char *comma; code == CLI_GO && (comma = strrchr(arm, ',')) != NULL; *comma = '\0') {
        if (!is_option(comma + 1, "sink", 64, &one->sink, &code) && !is_option(comma + 1, "window", 65536, &one->recent, &code))
            break;
    }
    return code;
}

/* ---- lists ----------------------------------------------------------------------------------------------------------------- */

int cli_arm_make(kv_choice *choice, const char *text, size_t n, const kv_settings *others)
{
    char arm[CLI_ARM_NAME];
    if (n >= sizeof arm) {
        cli_error("--kv: an arm longer than %zu characters", sizeof arm - 1);
        return CLI_USAGE;
    }
    if (n == 0) {
        cli_error("--kv: an empty arm; arms are written K/V, as kivi4/kivi4, or as the name of a preset");
        return CLI_USAGE;
    }
    snprintf(arm, sizeof arm, "%.*s", (int)n, text);
    kv_settings one = *others;
    one.kv = arm;
    int code = take_options(arm, &one);
    if (arm[0] == '@') one.kv = NULL, one.profile = arm + 1;
    return code == CLI_GO ? kv_choice_make(choice, &one) : code;
}

static int add(cli_arms *arms, const char *text, size_t n, const kv_settings *others)
{
    if (arms->n == CLI_ARMS_MOST) {
        cli_error("--kv: more than %d arms", CLI_ARMS_MOST);
        return CLI_USAGE;
    }
    int code = cli_arm_make(&arms->arm[arms->n], text, n, others);
    if (code != CLI_GO) return code;
    snprintf(arms->name[arms->n++], CLI_ARM_NAME, "%.*s", (int)n, text);
    return CLI_GO;
}

/* A path that is too long is one character longer than arms may be, and refused as such. */
const char *cli_arms_usual(const kv_settings *s, const char *usual, char *own)
{
    if (!s->profile) return usual;
    snprintf(own, CLI_ARM_NAME + 1, "@%s", s->profile);
    return own;
}

/* A choice points into itself, so it stays where it was made. */
int cli_arms_make(cli_arms *arms, const char *list, const kv_settings *others)
{
    int code = CLI_GO;
    arms->n = 0;
    for (const char *p = list; code == CLI_GO; p++) {
        size_t n = cli_arm_length(p);
        code = add(arms, p, n, others);
        p += n;
        if (!*p) break;
    }
    if (code != CLI_GO) cli_arms_free(arms);
    return code;
}

int cli_arms_apart(const char *out, const cli_arms *arms)
{
    int code = CLI_GO;
    for (int i = 0; i < arms->n && code == CLI_GO; i++) code = kv_choice_apart(out, &arms->arm[i]);
    return code;
}

void cli_arms_meet(const cli_arms *arms, const char *model)
{
    kv_choices_meet(arms->arm, sizeof *arms->arm, arms->n, NULL, model);
}

void cli_arms_free(cli_arms *arms)
{
    for (int i = 0; i < arms->n; i++) kv_choice_free(&arms->arm[i]);
    arms->n = 0;
}
