/* SPDX-License-Identifier: MIT */
#include "bench_e2e.h"

#include <jansson.h>

#include <errno.h>
#include <string.h>

/* Warm-ups and samples at first sight, then warm-ups and samples with as many spare ones; see trial.c and measure.c. */
int e2e_room(const e2e_settings *s)
{
    int decoded = (2 + 2 * 3 + 2 + 2 * s->samples) * s->predict;
    return (decoded > s->prompt ? decoded : s->prompt) + 8;
}

static int fail(e2e_arm *a, const char *why)
{
    snprintf(a->failed, sizeof a->failed, "%s: %s", a->name, why);
    return -1;
}

static int understood(e2e_arm *a, const char *answer)
{
    if (answer && strcmp(answer, "ok") == 0) return 0;
    return fail(a, answer && strncmp(answer, "error ", 6) == 0 ? answer + 6 : "its process ended");
}

/* A list of words, NULL after the last one; numbers are written out in `text`. */
typedef struct words {
    const char *word[64];
    char text[16][24];
    int n, n_text;
} words;

static void add(words *w, const char *option, const char *value)
{
    if (!value) return;
    w->word[w->n++] = option;
    w->word[w->n++] = value;
}

static void add_number(words *w, const char *option, int64_t value)
{
    snprintf(w->text[w->n_text], sizeof w->text[0], "%lld", (long long)value);
    add(w, option, w->text[w->n_text++]);
}

/* Our arm as it was written, and what holds for all of them. */
static void add_fold(words *w, const e2e_arm *a, const kv_settings *kv)
{
    add(w, "--kv", a->name);
    if (kv->sink >= 0) add_number(w, "--sink", kv->sink);
    if (kv->recent >= 0) add_number(w, "--recent", kv->recent);
    add(w, "--window-type", kv->window_type);
    add(w, "--cpu", kv->cpu);
    add(w, "--profile", kv->profile);
    add(w, "--calibration", kv->calibration);
}

int e2e_start(e2e_arm *a, const e2e_settings *s, const char *model, int depth)
{
    words w = {.word = {"bench", "worker", "-m", model}, .n = 4};
    add_number(&w, "--depth", depth);
    add_number(&w, "--room", e2e_room(s));
    add_number(&w, "--batch", s->batch);
    add_number(&w, "-t", s->threads);
    add_number(&w, "--seed", (int64_t)s->seed);
    add(&w, "-f", s->file);
    if (a->plain)
        add(&w, "--arm", a->plain->name);
    else
        add_fold(&w, a, s->kv);
    if (child_start(&a->child, w.word) != 0) return fail(a, strerror(errno));
    return understood(a, child_answer(&a->child));
}

void e2e_end(e2e_arm *a)
{
    child_end(&a->child);
    json_decref(a->end);
    a->end = NULL;
}

int e2e_ask(e2e_arm *a, const char *command)
{
    return a->failed[0] ? -1 : understood(a, child_ask(&a->child, "%s", command));
}

int e2e_fill(e2e_arm *a, int depth, bool keep)
{
    char command[48];
    snprintf(command, sizeof command, "prefill 0 %d", depth);
    double start = measure_system.now(NULL);
    if (e2e_ask(a, command) != 0) return -1;
    if (keep && a->fills < MEASURE_SAMPLES_MAX) a->first_ms[a->fills++] = 1e3 * (measure_system.now(NULL) - start);
    return 0;
}

json_t *e2e_report(e2e_arm *a)
{
    const char *line = a->failed[0] ? NULL : child_ask(&a->child, "report");
    json_t *o = line ? json_loads(line, 0, NULL) : NULL;
    if (!o && !a->failed[0]) fail(a, "its process ended");
    return o;
}

void e2e_add_process(e2e_arm *a, const json_t *report)
{
    if (!report || a->processes == E2E_PROCESSES_MOST) return;
    a->peak[a->processes] = json_number_value(json_object_get(report, "peak"));
    a->anonymous[a->processes++] = json_number_value(json_object_get(report, "anonymous"));
}
