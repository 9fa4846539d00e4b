/* SPDX-License-Identifier: MIT
 * Who gets the bits.
 */
#include "tune.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t tune_bytes(const tune_item *items, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += items[i].bytes[items[i].level];
    return sum;
}

double tune_loss(const tune_item *items, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += items[i].loss[items[i].level];
    return sum;
}

/* The best raise of one item that costs at most `left`: to any higher level, as one that gains little may hide one that gains much. */
static double best_raise(const tune_item *t, int levels, int64_t left, int *to)
{
    double best = 0;
    for (int b = t->level + 1; b < levels; b++) {
        const int64_t cost = t->bytes[b] - t->bytes[t->level];
        const double gain = t->loss[t->level] - t->loss[b];
        if (cost > left || gain <= 0) continue;
        const double rate = cost > 0 ? gain / (double)cost : INFINITY;
        if (rate > best) best = rate, *to = b;
    }
    return best;
}

bool tune_greedy(tune_item *items, int n, int levels, int64_t budget)
{
    for (int i = 0; i < n; i++) items[i].level = 0;
    int64_t left = budget - tune_bytes(items, n);
    if (left < 0) return false;
    for (;;) {
        double best = 0;
        int which = -1, level = 0;
        for (int i = 0; i < n; i++) {
            int to = 0;
            const double rate = best_raise(&items[i], levels, left, &to);
            if (rate > best) best = rate, which = i, level = to;
        }
        if (which < 0) return true;
        left -= items[which].bytes[level] - items[which].bytes[items[which].level];
        items[which].level = level;
    }
}

/* ---- closed form ------------------------------------------------------------------------------------------------------------- */

static int nearest(double x, const int *choices, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (fabs(choices[i] - x) < fabs(choices[best] - x)) best = i;
    return best;
}

/* One step in direction `by` where it is missed most; false when no item has one left. */
static bool step(const double *raw, int *at, int n, const int *choices, int n_choices, int by)
{
    int which = -1;
    double most = 0;
    for (int i = 0; i < n; i++) {
        if (at[i] + by < 0 || at[i] + by >= n_choices) continue;
        const double missed = by * (raw[i] - choices[at[i]]);
        if (which < 0 || missed > most) which = i, most = missed;
    }
    if (which >= 0) at[which] += by;
    return which >= 0;
}

static int64_t sum_of(const int *at, int n, const int *choices)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += choices[at[i]];
    return sum;
}

void tune_ratequant(const double *w, int n, double mean, double beta, const int *choices, int n_choices, int *bits)
{
    double *raw = cli_alloc((size_t)n + 1, sizeof *raw), middle = 0;
    int *at = cli_alloc((size_t)n + 1, sizeof *at);
    const int64_t goal = (int64_t)nearbyint(mean * n);
    for (int i = 0; i < n; i++) raw[i] = log(w[i] > 0 ? w[i] : 1e-30), middle += raw[i] / n;
    for (int i = 0; i < n; i++) {
        raw[i] = mean + (raw[i] - middle) / log(beta);
        at[i] = nearest(fmin(fmax(raw[i], choices[0]), choices[n_choices - 1]), choices, n_choices);
    }
    while (sum_of(at, n, choices) < goal && step(raw, at, n, choices, n_choices, 1)) {}
    while (sum_of(at, n, choices) > goal && step(raw, at, n, choices, n_choices, -1)) {}
    for (int i = 0; i < n; i++) bits[i] = choices[at[i]];
    free(raw), free(at);
}
