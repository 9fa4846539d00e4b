/* SPDX-License-Identifier: MIT */
#include "arms.h"

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

static int add(cli_arms *arms, const char *text, size_t n, const kv_settings *others)
{
    char arm[256];
    if (arms->n == CLI_ARMS_MOST || n >= sizeof arm) {
        cli_error("--kv: more than %d arms, or one longer than %zu characters", CLI_ARMS_MOST, sizeof arm - 1);
        return CLI_USAGE;
    }
    if (n == 0) {
        cli_error("--kv: an empty arm; arms are written K/V, as kivi4/kivi4, or as the name of a preset");
        return CLI_USAGE;
    }
    snprintf(arm, sizeof arm, "%.*s", (int)n, text);
    kv_settings one = *others;
    one.kv = arm;
    int code = kv_choice_make(&arms->arm[arms->n], &one);
    if (code == CLI_GO) arms->n++;
    return code;
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

void cli_arms_free(cli_arms *arms)
{
    for (int i = 0; i < arms->n; i++) kv_choice_free(&arms->arm[i]);
    arms->n = 0;
}
