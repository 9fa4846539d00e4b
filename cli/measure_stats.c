/* SPDX-License-Identifier: MIT
 * What may be said about samples: medians, bootstrap intervals, and verdicts. */
#include "measure.h"
#include "measure_random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RESAMPLES = 4000 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void measure_sort(double *x, size_t n)
{
    qsort(x, n, sizeof *x, by_value);
}

static double median_in_place(double *x, int n)
{
    measure_sort(x, (size_t)n);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

double measure_median(const double *x, int n)
{
    double copy[MEASURE_SAMPLES_MAX];
    memcpy(copy, x, (size_t)n * sizeof *x);
    return median_in_place(copy, n);
}

/* Sorts estimate[RESAMPLES]; its 99 % percentile interval. */
static void interval(double *estimate, double *low, double *high)
{
    static const double tail = 0.005;
    measure_sort(estimate, RESAMPLES);
    *low = estimate[(int)(tail * RESAMPLES)];
    *high = estimate[RESAMPLES - 1 - (int)(tail * RESAMPLES)];
}

/* 99 % percentile interval of median(base) / median(x), resampling rounds. */
static void bootstrap(const double *base, const double *x, int n, uint64_t seed, double *low, double *high)
{
    double estimate[RESAMPLES], a[MEASURE_SAMPLES_MAX], b[MEASURE_SAMPLES_MAX];
    for (int r = 0; r < RESAMPLES; r++) {
        for (int i = 0; i < n; i++) {
            int pick = measure_below(&seed, n);
            a[i] = base[pick];
            b[i] = x[pick];
        }
        double m = median_in_place(b, n);
        estimate[r] = median_in_place(a, n) / m;
    }
    interval(estimate, low, high);
}

int measure_order(int n)
{
    double below = 0, binomial = pow(0.5, n); /* of fewer than k samples below the median */
    int k = 0;
    for (; 2 * (k + 1) <= n; k++) {
        below += binomial;
        if (2 * below > 0.01) break;
        binomial *= (double)(n - k) / (k + 1);
    }
    return k > 0 ? k - 1 : 0;
}

void measure_summarise(const double *us, int n, measure_summary *s)
{
    double sorted[MEASURE_SAMPLES_MAX];
    int k = measure_order(n);
    memcpy(sorted, us, (size_t)n * sizeof *us);
    *s = (measure_summary){.median = median_in_place(sorted, n)};
    s->min = sorted[0];
    s->max = sorted[n - 1];
    s->noise = 0.5 * (sorted[n - 1 - k] - sorted[k]) / s->median;
}

static void judge(measure_ratio *r, double floor)
{
    r->distinguishable = (r->low > 1 && r->ratio > 1 + floor) || (r->high < 1 && r->ratio < 1 / (1 + floor));
}

void measure_compare(const double *base, const double *x, int n, double floor, uint64_t seed, measure_ratio *r)
{
    bootstrap(base, x, n, seed, &r->low, &r->high);
    r->ratio = measure_median(base, n) / measure_median(x, n);
    judge(r, floor);
}

/* median(base) / median(x) of one resampling of the rounds. */
static double resampled_ratio(const measure_pair *p, uint64_t *seed)
{
    double a[MEASURE_SAMPLES_MAX], b[MEASURE_SAMPLES_MAX];
    for (int i = 0; i < p->n; i++) {
        int pick = measure_below(seed, p->n);
        a[i] = p->base[pick];
        b[i] = p->x[pick];
    }
    double base = median_in_place(a, p->n);
    return base / median_in_place(b, p->n);
}

static double plain_ratio(const measure_pair *p)
{
    return measure_median(p->base, p->n) / measure_median(p->x, p->n);
}

void measure_compare_runs(const measure_pair *a, const measure_pair *b, double floor, uint64_t seed, measure_ratio *r)
{
    double estimate[RESAMPLES];
    for (int i = 0; i < RESAMPLES; i++) {
        double before = resampled_ratio(a, &seed);
        estimate[i] = resampled_ratio(b, &seed) / before;
    }
    interval(estimate, &r->low, &r->high);
    r->ratio = plain_ratio(b) / plain_ratio(a);
    judge(r, floor);
}

double measure_floor(const measure_ratio *against_itself)
{
    return fmax(against_itself->high - 1, 1 / against_itself->low - 1);
}

/* ---- memory --------------------------------------------------------------------------------------------------------------- */

static double choose(int n, int k)
{
    double c = 1;
    for (int i = 1; i <= k; i++) c *= (double)(n - k + i) / i;
    return c;
}

static void range(const double *x, int n, double *min, double *max)
{
    *min = *max = x[0];
    for (int i = 1; i < n; i++) *min = fmin(*min, x[i]), *max = fmax(*max, x[i]);
}

void measure_memory(const double *base, int n_base, const double *x, int n, double least, measure_bytes *m)
{
    double base_min, base_max, min, max;
    range(base, n_base, &base_min, &base_max);
    range(x, n, &min, &max);
    *m = (measure_bytes){measure_median(base, n_base) - measure_median(x, n), base_min - max, base_max - min, 0, 0};
    /* Of two arms that do not differ, one lies wholly below the other in 2 of choose(n + n_base, n) orders. */
    m->enough = 2 / choose(n + n_base, n) <= 0.01;
    m->distinguishable = m->enough && (m->low > least || m->high < -least);
}

double measure_amdahl(double share)
{
    return share < 1 ? 1 / (1 - fmax(share, 0)) : INFINITY;
}
