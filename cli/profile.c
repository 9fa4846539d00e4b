/* SPDX-License-Identifier: MIT */
#include "profile.h"
#include "measure.h"

#include <kvfold_llama.h>

#include <stdlib.h>
#include <string.h>

static const char HEAD[] = "# kvfold profile 1";

static int damaged(const char *path, int line, const char *what)
{
    cli_error("profile '%s', line %d: %s", path, line, what);
    return CLI_DAMAGED;
}

/* strtoull takes more than digits. */
static int take_hash(const char *path, int number, const char *what, const char *digits, bool *has, uint64_t *hash)
{
    char sentence[80];
    const bool again = *has;
    *has = strlen(digits) == 16 && strspn(digits, "0123456789abcdefABCDEF") == 16;
    *hash = strtoull(digits, NULL, 16);
    if (*has && !again) return CLI_GO;
    snprintf(sentence, sizeof sentence, again ? "a second '%s'" : "'%s' is followed by 16 hexadecimal digits", what);
    return damaged(path, number, sentence);
}

static int take_line(profile *p, const char *path, int number, char *line)
{
    if (strncmp(line, "model ", 6) == 0) return take_hash(path, number, "model", line + 6, &p->has_model, &p->model);
    if (strncmp(line, "calibration ", 12) == 0)
        return take_hash(path, number, "calibration", line + 12, &p->has_calibration, &p->calibration);
    if (strncmp(line, "kv ", 3) == 0) {
        if (p->kv) return damaged(path, number, "a second 'kv'");
        p->kv = line + 3;
        return CLI_GO;
    }
    if (!strchr(line, '=') || line[0] < '0' || line[0] > '9')
        return damaged(path, number, "it is none of 'model HASH', 'calibration HASH', 'kv K/V' and 'LAYERS=K/V'");
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

/* A profile serves other weights of the same layers, but it was made for its own. */
static void doubt_model(const profile *p, const char *name, const char *model)
{
    uint64_t hash;
    if (!p->has_model || kvf_llama_model_hash(model, &hash, NULL, 0) != KVF_OK || hash == p->model) return;
    cli_warn("the profile '%s' was made for other weights (%016llx) than '%s' (%016llx)", name, (unsigned long long)p->model,
             model, (unsigned long long)hash);
}

static void doubt_calibration(const profile *p, const char *name, const char *calibration)
{
    cli_text bytes = {0};
    if (!p->has_calibration) return;
    if (!calibration) {
        cli_warn("the profile '%s' was tuned with a --calibration (%016llx), and none is given", name,
                 (unsigned long long)p->calibration);
        return;
    }
    if (cli_read_file(calibration, &bytes) == CLI_GO) {
        const uint64_t hash = measure_digest(bytes.data, bytes.length);
        if (hash != p->calibration)
            cli_warn("the profile '%s' was tuned with another --calibration (%016llx) than '%s' (%016llx)", name,
                     (unsigned long long)p->calibration, calibration, (unsigned long long)hash);
    }
    cli_text_free(&bytes);
}

void profile_doubt(const profile *p, const char *name, const char *model, const char *calibration)
{
    doubt_model(p, name, model);
    doubt_calibration(p, name, calibration);
}

void profile_free(profile *p)
{
    cli_text_free(&p->text);
    *p = (profile){.kv = NULL};
}
