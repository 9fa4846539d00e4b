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
        if (p->has_model) return damaged(path, number, "a second 'model'");
        p->has_model = strlen(line + 6) == 16 && strspn(line + 6, "0123456789abcdefABCDEF") == 16; /* strtoull takes more */
        p->model = strtoull(line + 6, NULL, 16);
        return p->has_model ? CLI_GO : damaged(path, number, "'model' is followed by 16 hexadecimal digits");
    }
    if (strncmp(line, "kv ", 3) == 0) {
        if (p->kv) return damaged(path, number, "a second 'kv'");
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
    const size_t head = strlen(HEAD);
    if (p->text.length < head || strncmp(p->text.data, HEAD, head) != 0 || !strchr("\r\n", p->text.data[head])) {
        cli_error("'%s' is no profile: it does not begin with the line '%s'", path, HEAD);
        return CLI_DAMAGED;
    }
    if (strlen(p->text.data) != p->text.length) {
        cli_error("'%s' is no profile: byte %zu is 0x00", path, strlen(p->text.data));
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
