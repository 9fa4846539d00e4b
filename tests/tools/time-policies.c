/* SPDX-License-Identifier: MIT
 * time-policies [ROWS [THREADS [KV_HEADS [GROUP [DIM [CODEC [POLICY [START]]]]]]]]
 * What a policy costs one layer, apart from any model: attention and commit of decoded tokens, and of a batch of a prompt, while every
 * head holds ROWS rows, beside a cache without a policy that holds as many. One choice belongs to 64 tokens, so a round is 64 tokens;
 * rounds of both take turns, and times and their ratio are those of the middle round. With one thread it is the processor's time, which
 * other programs disturb less. Rows are noise: what is timed does not depend on what they say. Positions begin at START - 1. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvfold_calibration.h"

enum { POOL = 4096, BATCH = 255, ROUNDS = 9, STEPS = 64 };

typedef struct setting {
    int32_t start, rows, threads, kv_heads, group, dim;
    const char *codec;
    float *q, *direction, *out;
    uint16_t *kv; /* [POOL][kv_heads][dim] f16 */
} setting;

/* Microseconds. */
typedef struct cost {
    double attend, commit, batch; /* a token; a token of a prompt, attention and commit */
} cost;

static double now(const setting *s)
{
    struct timespec t;
    clock_gettime(s->threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static void must(int code, const kvf_cache *c)
{
    if (!code) return;
    fprintf(stderr, "error %d: %s\n", code, c ? kvf_cache_error(c) : "");
    exit(1);
}

static uint64_t noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* f16 numbers of either sign with magnitudes from 2^-4 to 2. */
static void fill(setting *s)
{
    uint64_t state = 1;
    const size_t row = (size_t)s->kv_heads * (size_t)s->dim, queries = row * (size_t)s->group * BATCH;
    s->kv = malloc(POOL * row * sizeof *s->kv), s->q = malloc(queries * sizeof *s->q), s->out = malloc(queries * sizeof *s->out);
    s->direction = malloc(row * sizeof *s->direction);
    if (!s->kv || !s->q || !s->out || !s->direction) exit(1);
    for (size_t i = 0; i < POOL * row; i++) {
        const uint64_t x = noise(&state);
        s->kv[i] = (uint16_t)((x & 0x8000) | (11 + x % 5) << 10 | (x >> 16 & 1023));
    }
    for (size_t i = 0; i < queries; i++) s->q[i] = (float)noise(&state) * 0x1p-30f - 1;
    for (size_t i = 0; i < row; i++) s->direction[i] = (float)noise(&state) * 0x1p-30f - 1;
}

static kvf_cache *create(const setting *s, const char *evict)
{
    char error[512] = "";
    kvf_params p;
    kvf_layer layer;
    kvf_calibrated_layer known = {.size = sizeof known, .kv_heads = s->kv_heads, .k_dim = s->dim, .v_dim = s->dim};
    kvf_calibration calibration = {.size = sizeof calibration, .n_layers = 1, .layers = &known};
    kvf_cache *c = NULL;
    known.q_direction = s->direction;
    kvf_params_init(&p);
    kvf_layer_init(&layer);
    layer.q_heads = s->kv_heads * s->group, layer.kv_heads = s->kv_heads, layer.k_dim = layer.v_dim = s->dim;
    p.n_layers = 1, p.layers = &layer, p.k = p.v = s->codec, p.evict = evict, p.threads = s->threads, p.max_batch = BATCH;
    p.error = error, p.error_size = sizeof error;
    if (strncmp(evict, "qfilters", 8) == 0) p.calibration = &calibration;
    const int code = kvf_cache_create(&c, &p);
    if (code) fprintf(stderr, "%s: %s\n", evict, error);
    must(code, NULL);
    return c;
}

/* n rows: attention of them when asked for, then commit. */
static void step(const setting *s, kvf_cache *c, int32_t n, int attend, cost *sum)
{
    static int32_t cells[BATCH];
    static kvf_token tokens[BATCH];
    const int64_t head = s->dim, row = head * s->kv_heads, queries = row * s->group;
    const int32_t last = kvf_seq_pos_max(c, 0), pos = last < 0 ? s->start : last + 1;
    kvf_attention a;
    for (int32_t i = 0; i < n; i++) tokens[i] = (kvf_token){0, pos + i}, cells[i] = (pos + i) % POOL;
    kvf_attention_init(&a);
    a.q = (kvf_view){.data = s->q, .type = KVF_F32, .token_stride = 4 * queries, .head_stride = 4 * head};
    a.k = a.v = (kvf_view){.data = s->kv, .type = KVF_F16, .token_stride = 2 * row, .head_stride = 2 * head};
    a.cells = cells, a.scale = 1 / sqrtf((float)s->dim), a.out = s->out;
    a.out_token_stride = 4 * queries, a.out_head_stride = 4 * head;
    must(kvf_batch_begin(c, tokens, n), c);
    const double start = now(s);
    kvf_plan plan;
    if (attend) {
        must(kvf_attend_begin(c, &a, &plan), c);
#pragma omp parallel for schedule(dynamic, 1) num_threads(s->threads)
        for (int32_t i = 0; i < plan.parts; i++) kvf_attend_part(&plan, i);
        must(kvf_attend_end(&plan), c);
    }
    const double middle = now(s);
    must(kvf_batch_append(c, 0, &a.k, &a.v, cells), c);
    must(kvf_batch_commit(c), c);
    sum->attend += middle - start, sum->commit += now(s) - middle;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x)
{
    qsort(x, ROUNDS, sizeof *x, ascending);
    return x[ROUNDS / 2];
}

/* A cache with ROWS rows. */
static kvf_cache *filled(const setting *s, const char *evict)
{
    cost ignored = {0};
    kvf_cache *c = create(s, evict);
    for (int32_t n = 0; n < s->rows; n += BATCH)
        step(s, c, s->rows - n < BATCH ? s->rows - n : BATCH, n + 4 * BATCH > s->rows, &ignored);
    return c;
}

/* 64 decoded tokens, then a batch. */
static cost one_round(const setting *s, kvf_cache *c)
{
    cost sum = {0}, batch = {0};
    for (int i = 0; i < STEPS; i++) step(s, c, 1, 1, &sum);
    step(s, c, BATCH, 1, &batch);
    return (cost){sum.attend / STEPS, sum.commit / STEPS, (batch.attend + batch.commit) / BATCH};
}

/* A policy and none in turn, so that both meet the same machine; none goes back to ROWS each time. */
static void compare(const setting *s, const char *name)
{
    double x[7][ROUNDS];
    char evict[64];
    snprintf(evict, sizeof evict, "%s:budget=%d", name, (int)s->rows);
    kvf_cache *none = filled(s, "none"), *c = filled(s, evict);
    for (int r = 0; r < ROUNDS; r++) {
        const cost a = one_round(s, none), b = one_round(s, c);
        x[0][r] = a.attend, x[1][r] = a.commit, x[2][r] = b.attend, x[3][r] = b.commit;
        x[4][r] = (b.attend + b.commit) / (a.attend + a.commit), x[5][r] = a.batch, x[6][r] = b.batch / a.batch;
        must(kvf_seq_rm(none, 0, s->start + s->rows, -1), none);
    }
    printf("| `%s` | %.0f + %.1f | %.0f + %.1f | %.2f | %.0f | %.2f |\n", name, median(x[0]), median(x[1]), median(x[2]),
           median(x[3]), median(x[4]), median(x[5]), median(x[6]));
    fflush(stdout);
    kvf_cache_free(&none), kvf_cache_free(&c);
}

static int number(char **argv, int argc, int i, int otherwise)
{
    const int n = argc > i ? atoi(argv[i]) : otherwise;
    if (n < 1) exit(2);
    return n;
}

int main(int argc, char **argv)
{
    setting s = {.rows = number(argv, argc, 1, 8192), .threads = number(argv, argc, 2, 1), .kv_heads = number(argv, argc, 3, 3)};
    s.group = number(argv, argc, 4, 3), s.dim = number(argv, argc, 5, 64), s.codec = argc > 6 ? argv[6] : "uni4";
    s.start = number(argv, argc, 8, 1) - 1;
    fill(&s);
    printf("%d rows, %d threads, %d heads of %d channels, groups of %d, %s\n\n", (int)s.rows, (int)s.threads, (int)s.kv_heads,
           (int)s.dim, (int)s.group, s.codec);
    printf("| policy | none: attention + commit, us a token | policy | ratio | prompt, none, us a token | ratio |\n"
           "|---|---|---|---|---|---|\n");
    kvf_policy_info info;
    for (int32_t i = 0; !kvf_policy_list(i, &info); i++)
        if (strcmp(info.name, "none") && (argc < 8 || !strcmp(argv[7], info.name))) compare(&s, info.name);
    return 0;
}
