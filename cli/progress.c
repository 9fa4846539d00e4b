/* SPDX-License-Identifier: MIT */
#include "progress.h"

#include <llama.h>

enum { BAR = 30 };

static double now(void)
{
    return (double)llama_time_us() * 1e-6;
}

progress progress_begin(const char *label, const char *unit, int64_t total)
{
    progress p = {.label = label, .unit = unit, .total = total, .start = now(), .terminal = cli_is_terminal(stderr)};
    return p;
}

static double time_left(const progress *p)
{
    double spent = now() - p->start;
    return p->done > 0 ? spent * (double)(p->total - p->done) / (double)p->done : 0;
}

static void show_bar(progress *p)
{
    int full = (int)(p->done * BAR / p->total);
    fprintf(stderr, "\r%s [", p->label);
    for (int i = 0; i < BAR; i++) fputc(i < full ? '#' : '.', stderr);
    fprintf(stderr, "] %lld/%lld %s, %.0f s left   ", (long long)p->done, (long long)p->total, p->unit, time_left(p));
}

static void show_line(progress *p)
{
    int quarter = (int)(p->done * 4 / p->total);
    if (quarter > p->quarter)
        fprintf(stderr, "kvfold: %s %lld of %lld %s, %.0f s left\n", p->label, (long long)p->done, (long long)p->total, p->unit,
                time_left(p));
    p->quarter = quarter;
}

void progress_set(progress *p, int64_t done)
{
    p->done = done;
    if (p->total <= 0) return;
    if (p->terminal)
        show_bar(p);
    else
        show_line(p);
    fflush(stderr);
}

void progress_end(progress *p)
{
    if (p->total > 0 && p->terminal) fprintf(stderr, "\r%*s\r", BAR + 60, "");
}
