/* SPDX-License-Identifier: MIT */
#include "profile.h"

#include <stdlib.h>
#include <string.h>

static const char HEAD[] = "# kvfold profile 1";

static int damaged(const char *path, int line, const char *what)
{
    cli_error("profile '%s', line %d: %s", path, line, what);
    return CLI_DAMAGED;
}

static int take_line(profile *p, const char *path, int number, char *line)
{
    if (strncmp(line, "model ", 6) == 0) {
        char *end;
        p->model = strtoull(line + 6, &end, 16);
        p->has_model = end == line + 22 && !*end;
        return p->has_model ? CLI_GO : damaged(path, number, "'model' is followed by 16 hexadecimal digits");
    }
    if (strncmp(line, "kv ", 3) == 0) {
        p->kv = line + 3;
        return CLI_GO;
    }
    if (!strchr(line, '=') || line[0] < '0' || line[0] > '9')
        return damaged(path, number, "it is none of 'model HASH', 'kv K/V' and 'LAYERS=K/V'");
    if (p->n_layers == PROFILE_LINES) return damaged(path, number, "there are too many lines");
    p->layers[p->n_layers++] = line;
    return CLI_GO;
}

static int parse(profile *p, const char *path)
{
    int code = CLI_GO, number = 1;
    if (p->text.length < strlen(HEAD) || strncmp(p->text.data, HEAD, strlen(HEAD)) != 0) {
        cli_error("'%s' is no profile: it does not begin with the line '%s'", path, HEAD);
        return CLI_DAMAGED;
    }
    for (char *line = p->text.data, *next; code == CLI_GO && *line; line = next, number++) {
        size_t n = strcspn(line, "\n");
        next = line + n + (line[n] == '\n');
        line[n] = '\0';
        line[strcspn(line, "#\r")] = '\0';
        for (n = strlen(line); n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t'); n--) line[n - 1] = '\0';
        if (*line) code = take_line(p, path, number, line);
    }
    return code == CLI_GO && !p->kv ? damaged(path, number, "the line 'kv K/V' is missing") : code;
}

int profile_parse(profile *p, const char *text, const char *name)
{
    *p = (profile){.kv = NULL};
    cli_text_add(&p->text, text, strlen(text));
    return parse(p, name);
}

int profile_read(profile *p, const char *path)
{
    *p = (profile){.kv = NULL};
    int code = cli_read_file(path, &p->text);
    return code == CLI_GO ? parse(p, path) : code;
}

void profile_free(profile *p)
{
    cli_text_free(&p->text);
    *p = (profile){.kv = NULL};
}
