/* SPDX-License-Identifier: MIT
 * What memory gives: every line of a buffer loaded once and added up, with as many threads as the arms use. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { AHEAD = 64, UNROLL = 8 }; /* lines */

typedef struct line {
    uint64_t word[8];
} line;

typedef struct reader {
    line *data;
    size_t lines;
    int threads;
    volatile uint64_t sum;
} reader;

/* One word of each line is enough to bring the line in, and leaves the rate to memory and not to the width of a register. */
static uint64_t sum_lines(const line *p, size_t n)
{
    uint64_t sum[UNROLL] = {0}, total = 0;
    for (size_t i = 0; i + UNROLL <= n; i += UNROLL)
        for (size_t u = 0; u < UNROLL; u++) {
            __builtin_prefetch(p + i + u + AHEAD);
            sum[u] += p[i + u].word[u];
        }
    for (size_t u = 0; u < UNROLL; u++) total += sum[u];
    return total;
}

static void run(void *self)
{
    reader *r = self;
    size_t share = r->lines / (size_t)r->threads / UNROLL * UNROLL;
    uint64_t total = 0;
#pragma omp parallel for schedule(static, 1) num_threads(r->threads) reduction(+ : total)
    for (int i = 0; i < r->threads; i++) total += sum_lines(r->data + (size_t)i * share, share);
    r->sum = total;
}

static void release(void *self)
{
    reader *r = self;
    free(r->data);
    free(r);
}

int bench_read_create(size_t bytes, int threads, bench_arm *arm)
{
    reader *r = calloc(1, sizeof *r);
    if (!r) return -1;
    r->lines = bytes / sizeof(line);
    r->threads = threads;
    r->data = aligned_alloc(sizeof(line), r->lines * sizeof(line));
    if (!r->data) {
        free(r);
        return -1;
    }
    memset(r->data, 1, r->lines * sizeof(line));
    *arm = (bench_arm){.bytes = r->lines * sizeof(line), .layers = 1, .self = r, .run = run, .release = release};
    snprintf(arm->name, sizeof arm->name, "read-only sum");
    return 0;
}
