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

int e2e_start(e2e_arm *a, const e2e_settings *s, const char *model, int depth)
{
    char number[6][24], kv[2 * KV_SPEC + 1];
    const char *args[32] = {"bench", "worker", "-m", model};
    int n = 4;
    const struct {
        const char *option;
        int value;
    } counts[] = {{"--depth", depth}, {"--room", e2e_room(s)}, {"--batch", s->batch}, {"-t", s->threads}};
    for (int i = 0; i < 4; i++) {
        snprintf(number[i], sizeof number[i], "%d", counts[i].value);
        args[n++] = counts[i].option;
        args[n++] = number[i];
    }
    if (s->file) args[n++] = "-f", args[n++] = s->file;
    if (a->plain) {
        args[n++] = "--arm", args[n++] = a->plain->name;
    } else {
        snprintf(kv, sizeof kv, "%s/%s", a->choice->k, a->choice->v);
        snprintf(number[4], sizeof number[4], "%d", (int)a->choice->sink);
        snprintf(number[5], sizeof number[5], "%d", (int)a->choice->recent);
        args[n++] = "--kv", args[n++] = kv, args[n++] = "--sink", args[n++] = number[4], args[n++] = "--recent";
        args[n++] = number[5];
        if (s->cpu) args[n++] = "--cpu", args[n++] = s->cpu;
        if (s->calibration) args[n++] = "--calibration", args[n++] = s->calibration;
    }
    if (child_start(&a->child, args) != 0) return fail(a, strerror(errno));
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

int e2e_fill(e2e_arm *a, int depth)
{
    char command[48];
    snprintf(command, sizeof command, "prefill 0 %d", depth);
    double start = measure_system.now(NULL);
    if (e2e_ask(a, command) != 0) return -1;
    if (a->fills < MEASURE_SAMPLES_MAX) a->first_ms[a->fills++] = 1e3 * (measure_system.now(NULL) - start);
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
