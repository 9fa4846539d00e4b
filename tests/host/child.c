/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "child.h"
#include "real.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const ARM_NAME[] = {"plain", "plain-flash", "fold"};
static const char CODEC[] = "kivi4";
enum { THREADS = 2 }; /* on every machine: each thread has scratch of its own, which is accounted */

/* ---- child ---------------------------------------------------------------------------------------------------------------- */

/* What kvf_bytes says of a cache with the layers, batches and threads of this one. */
static int64_t formula(const arm *a, const kvf_llama_stats_t *s, int64_t tokens)
{
    kvf_params p;
    kvf_params_init(&p);
    kvf_layer *layers = calloc((size_t)s->layers_total, sizeof *layers);
    kvf_llama_layer_t info = {.size = sizeof info};
    int32_t n = 0;
    for (int32_t il = 0; layers && kvf_llama_layer(a->fold, il, &info) == KVF_OK; il++) {
        if (!info.attention) continue;
        kvf_layer_init(&layers[n]);
        layers[n].q_heads = info.q_heads, layers[n].kv_heads = info.kv_heads;
        layers[n].k_dim = info.k_dim, layers[n].v_dim = info.v_dim;
        layers[n].window = info.window;
        n++;
    }
    p.n_layers = n;
    p.layers = layers;
    p.k = p.v = CODEC;
    p.max_batch = s->n_batch;
    p.threads = THREADS;
    int64_t bytes = kvf_bytes(&p, tokens);
    free(layers);
    return bytes;
}

static int report(arm *a, int32_t tokens)
{
    child_figures f = {.tokens = tokens};
    if (a->fold) {
        kvf_llama_stats_t s = {.size = sizeof s};
        kvf_stats_t c = {.size = sizeof c};
        if (kvf_llama_stats(a->fold, &s) != KVF_OK || kvf_stats(kvf_llama_cache(a->fold), &c) != KVF_OK) return -1;
        f.accounted = c.accounted, f.resident = c.resident;
        f.host = s.host, f.f16 = s.f16, f.host_cells = s.host_cells;
        f.formula = formula(a, &s, tokens);
    }
    if (fwrite(&f, sizeof f, 1, stdout) != 1 || fflush(stdout) != 0) return -1;
    return getchar() == '\n' ? 0 : -1; /* the parent has read what the kernel knows */
}

static int feed(arm *a, int32_t from, int32_t to)
{
    llama_token tokens[REAL_BATCH];
    for (int32_t at = from; at < to; at += REAL_BATCH) {
        int32_t n = to - at < REAL_BATCH ? to - at : REAL_BATCH;
        arm_row rows[REAL_BATCH];
        for (int32_t i = 0; i < n; i++) {
            tokens[i] = 1000 + (at + i) * 31 % 5000;
            rows[i] = (arm_row){.token = tokens[i], .pos = at + i, .seq = 0};
        }
        if (arm_decode(a, rows, n, NULL) != 0) return -1;
    }
    return 0;
}

static int run_fold(struct llama_model *model, int32_t n_ctx, char **stops, int n_stops)
{
    arm a;
    int32_t done = 0, code = 0;
    real_open(&a, model, n_ctx, CODEC, CODEC);
    for (int i = 0; code == 0 && i < n_stops; i++) {
        int32_t to = atoi(stops[i]);
        code = feed(&a, done, to);
        if (code == 0) code = report(&a, done = to);
    }
    arm_close(&a);
    return code;
}

static int run_plain(struct llama_model *model, int32_t n_ctx, bool flash)
{
    arm a = {.model = model};
    a.ctx = llama_init_from_model(model, real_context(n_ctx, flash));
    int code = a.ctx ? feed(&a, 0, REAL_BATCH) : -1;
    if (code == 0) code = report(&a, REAL_BATCH);
    arm_close(&a);
    return code;
}

int child_main(int argc, char **argv)
{
    if (argc < 6 || strcmp(argv[1], "--child") != 0) return -1;
    struct llama_model *model = arm_load(argv[3]);
    if (!model) return 1;
    int32_t n_ctx = atoi(argv[4]);
    real_fix_threads(THREADS);
    int code = strcmp(argv[2], ARM_NAME[CHILD_FOLD]) == 0
                   ? run_fold(model, n_ctx, argv + 5, argc - 5)
                   : run_plain(model, n_ctx, strcmp(argv[2], ARM_NAME[CHILD_PLAIN_FLASH]) == 0);
    llama_model_free(model);
    return code ? 1 : 0;
}

/* ---- parent --------------------------------------------------------------------------------------------------------------- */

static void become(const int to_child[2], const int from_child[2], char **argv)
{
    dup2(to_child[0], STDIN_FILENO);
    dup2(from_child[1], STDOUT_FILENO);
    close(to_child[0]), close(to_child[1]);
    close(from_child[0]), close(from_child[1]);
    execv("/proc/self/exe", argv);
    _exit(127);
}

int child_start(child *c, child_arm which, const char *model, int32_t n_ctx, const int32_t *stops, int n_stops)
{
    enum { STOPS_MOST = 8 };
    char numbers[STOPS_MOST + 1][16],
        *argv[6 + STOPS_MOST] = {"test", "--child", (char *)ARM_NAME[which], (char *)model, numbers[STOPS_MOST]};
    int to_child[2], from_child[2];
    if (n_stops > STOPS_MOST || pipe(to_child) != 0 || pipe(from_child) != 0) return -1;
    snprintf(numbers[STOPS_MOST], sizeof numbers[0], "%d", (int)n_ctx);
    for (int i = 0; i < n_stops; i++) {
        snprintf(numbers[i], sizeof numbers[0], "%d", (int)stops[i]);
        argv[5 + i] = numbers[i];
    }
    fflush(NULL);
    c->pid = fork();
    if (c->pid == 0) become(to_child, from_child, argv);
    close(to_child[0]);
    close(from_child[1]);
    c->to = fdopen(to_child[1], "w");
    c->from = fdopen(from_child[0], "r");
    return c->pid > 0 && c->to && c->from ? 0 : -1;
}

/* A "Name: 123 kB" line of /proc/PID/status, in bytes; -1 when absent. */
static int64_t status_bytes(pid_t pid, const char *name)
{
    char path[64], line[256];
    long long kilobytes = -1;
    size_t n = strlen(name);
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && kilobytes < 0 && fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0 && line[n] == ':') kilobytes = atoll(line + n + 1);
    if (f) fclose(f);
    return kilobytes < 0 ? -1 : kilobytes * 1024;
}

int child_next(child *c, child_figures *f)
{
    if (fread(f, sizeof *f, 1, c->from) != 1) return -1;
    f->anonymous = status_bytes(c->pid, "RssAnon");
    f->peak = status_bytes(c->pid, "VmHWM");
    return fputc('\n', c->to) == '\n' && fflush(c->to) == 0 ? 0 : -1;
}

int child_wait(child *c)
{
    int status = 0;
    if (c->to) fclose(c->to);
    if (c->from) fclose(c->from);
    return waitpid(c->pid, &status, 0) == c->pid && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -1;
}
