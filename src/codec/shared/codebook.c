/* SPDX-License-Identifier: MIT */
#include "codec/shared/codebook.h"

#include "base/exact.h"

#include <math.h>
#include <string.h>

enum { CELLS = 2048, ROUNDS = 30, STEPS = 30, HALF_MOST = 128, COARSE = 8 };

/* Mass and moments of the density on [0, end] in equal cells, from the left: mass[i] = integral over the first i cells. */
typedef struct grid {
    double width, norm;
    int32_t dim;
    double mass[CELLS + 1], first[CELLS + 1], second[CELLS + 1];
} grid;

/* x^(n / 2), n at least 0, by squaring. */
static double half_power(double x, int32_t n)
{
    double power = n % 2 ? sqrt(x) : 1;
    for (n /= 2; n; n /= 2, x *= x)
        if (n % 2) power *= x;
    return power;
}

static double density(double t, int32_t dim)
{
    if (dim < 4) return kvfi_exp2(-0.72134752044448170 * t * t); /* exp(-t^2 / 2) */
    double inside = 1 - t * t / dim;
    return inside > 1e-300 ? half_power(inside, dim - 3) : 0;
}

/* Simpson's rule in each cell; normalised to a mass of 1/2 on the positive side. */
static void fill_grid(grid *g, int32_t dim)
{
    double end = dim >= 4 && sqrt((double)dim) < 7 ? sqrt((double)dim) : 7;
    g->width = end / CELLS, g->dim = dim;
    g->mass[0] = g->first[0] = g->second[0] = 0;
    double fb = density(0, dim);
    for (int i = 0; i < CELLS; i++) {
        double a = g->width * i, m = a + g->width / 2, b = a + g->width, w = g->width / 6;
        double fa = fb, fm = density(m, dim);
        fb = density(b, dim);
        g->mass[i + 1] = g->mass[i] + w * (fa + 4 * fm + fb);
        g->first[i + 1] = g->first[i] + w * (a * fa + 4 * m * fm + b * fb);
        g->second[i + 1] = g->second[i] + w * (a * a * fa + 4 * m * m * fm + b * b * fb);
    }
    g->norm = 0.5 / g->mass[CELLS];
    for (int i = 0; i <= CELLS; i++) g->mass[i] *= g->norm, g->first[i] *= g->norm, g->second[i] *= g->norm;
}

/* A running integral at t: inside a cell its increments change linearly, with the slope of the neighbours. */
static double at(const grid *g, const double *sum, double t)
{
    double x = t / g->width;
    if (x >= CELLS) return sum[CELLS];
    int i = (int)x;
    double u = x - i, left = i ? sum[i] - sum[i - 1] : sum[1] - sum[0], here = sum[i + 1] - sum[i],
           right = i + 1 < CELLS ? sum[i + 2] - sum[i + 1] : here;
    /* increments change linearly across the cell */
    double slope = (right - left) / 2;
    return sum[i] + here * u + slope * (u * u - u) / 2;
}

/* One round of Lloyd's iteration: thresholds midway, levels to the centroids of their cells. */
static void lloyd_round(const grid *g, int32_t n, double *levels)
{
    double low_mass = 0, low_first = 0;
    for (int32_t i = 0; i < n; i++) {
        double to = i + 1 < n ? (levels[i] + levels[i + 1]) / 2 : 1e9;
        double mass = at(g, g->mass, to), first = at(g, g->first, to);
        if (mass - low_mass > 1e-300) levels[i] = (first - low_first) / (mass - low_mass);
        low_mass = mass, low_first = first;
    }
}

/* One step of Newton's on  level_i * mass of cell i - first moment of cell i = 0,  a matrix of three diagonals. Lloyd's iteration
 * has the same fixed point, but with 128 levels it would need some ten thousand rounds. Returns the largest move. */
static double newton_step(const grid *g, int32_t n, double *levels)
{
    double above[HALF_MOST], move[HALF_MOST], low_mass = 0, low_first = 0, left = 0, most = 0;
    for (int32_t i = 0; i < n; i++) {
        double to = i + 1 < n ? (levels[i] + levels[i + 1]) / 2 : 1e9;
        double mass = at(g, g->mass, to), first = at(g, g->first, to);
        double right = i + 1 < n ? (levels[i] - to) / 2 * density(to, g->dim) * g->norm : 0;
        double pivot = mass - low_mass + left + right, rest = first - low_first - levels[i] * (mass - low_mass);
        if (i) pivot -= left * above[i - 1], rest -= left * move[i - 1];
        above[i] = right / pivot, move[i] = rest / pivot;
        low_mass = mass, low_first = first, left = right; /* the threshold lies as far above one level as below the next */
    }
    for (int32_t i = n - 1; i >= 0; i--) {
        if (i + 1 < n) move[i] -= above[i] * move[i + 1];
        levels[i] += move[i];
        if (fabs(move[i]) > most) most = fabs(move[i]);
    }
    return most;
}

static double error_of(const grid *g, int32_t n, const double *levels)
{
    double sum = 0, low[3] = {0, 0, 0};
    for (int32_t i = 0; i < n; i++) {
        double to = i + 1 < n ? (levels[i] + levels[i + 1]) / 2 : 1e9, c = levels[i];
        double high[3] = {at(g, g->mass, to), at(g, g->first, to), at(g, g->second, to)};
        sum += (high[2] - low[2]) - 2 * c * (high[1] - low[1]) + c * c * (high[0] - low[0]);
        memcpy(low, high, sizeof low);
    }
    return 2 * sum;
}

/* Start close to the answer, on a coarser grid: levels as dense as the cube root of the density (Panter and Dite 1951). */
static void start(const grid *g, int32_t n, double *levels)
{
    enum { PARTS = CELLS / COARSE };
    const double width = g->width * COARSE;
    double share[PARTS + 1] = {0};
    for (int i = 0; i < PARTS; i++) {
        double f = density(width * (i + 0.5), g->dim);
        share[i + 1] = share[i] + (f > 0 ? kvfi_power(f, 1.0 / 3) : 0);
    }
    for (int i = 0, cell = 0; i < n; i++) {
        double want = share[PARTS] * (i + 0.5) / n;
        while (share[cell + 1] < want) cell++;
        levels[i] = width * (cell + (want - share[cell]) / (share[cell + 1] - share[cell]));
    }
}

double kvfi_lloyd_max(int32_t bits, int32_t dim, double *levels)
{
    grid g;
    int32_t n = 1 << (bits - 1);
    fill_grid(&g, dim);
    start(&g, n, levels);
    for (int k = 0; k < ROUNDS; k++) lloyd_round(&g, n, levels);
    for (int k = 0; k < STEPS && newton_step(&g, n, levels) > 1e-12; k++) continue;
    return error_of(&g, n, levels);
}

/* ---- second stage ---------------------------------------------------------------------------------------------------------- */

/* Integrals from 0 to t, also for t below 0. */
static double odd(const grid *g, const double *sum, double t)
{
    return t < 0 ? -at(g, sum, -t) : at(g, sum, t);
}

/* Mass and first moment, around c, of the first stage's cell [from, to) where t - c lies in [low, high). */
static void part_of_cell(const grid *g, double c, double from, double to, double low, double high, double *mass, double *first)
{
    const double a = c + low > from ? c + low : from, b = c + high < to ? c + high : to;
    *mass = *first = 0;
    if (a >= b) return;
    *mass = odd(g, g->mass, b) - odd(g, g->mass, a);
    *first = at(g, g->first, b) - at(g, g->first, a) - c * *mass; /* all cells are above 0 */
}

/* Moments of the magnitude of the first stage's residual in [low, high). Cells below 0 are the mirror images of those above, so
 * what remains of both together is symmetric. */
static void residual_moments(const grid *g, int32_t n, const double *levels, double low, double high, double *mass, double *first)
{
    *mass = *first = 0;
    for (int32_t i = 0; i < n; i++) {
        const double from = i ? (levels[i - 1] + levels[i]) / 2 : 0, to = i + 1 < n ? (levels[i] + levels[i + 1]) / 2 : 1e9;
        double m, f;
        part_of_cell(g, levels[i], from, to, low, high, &m, &f);
        *mass += m, *first += f;
        part_of_cell(g, levels[i], from, to, -high, -low, &m, &f);
        *mass += m, *first -= f;
    }
}

void kvfi_lloyd_max_residual(int32_t bits, int32_t dim, const double *levels, int32_t second_bits, double *second)
{
    grid g;
    const int32_t n = 1 << (bits - 1), m = 1 << (second_bits - 1);
    fill_grid(&g, dim);
    for (int32_t i = 0; i < m; i++) second[i] = levels[0] * (i + 0.5) / m; /* the innermost cells are as wide as that */
    double most = 1;
    for (int k = 0; k < 2000 && most > 1e-12; k++) {
        double low = 0, mass, first;
        most = 0;
        for (int32_t i = 0; i < m; i++) {
            const double high = i + 1 < m ? (second[i] + second[i + 1]) / 2 : 1e9;
            residual_moments(&g, n, levels, low, high, &mass, &first);
            low = high;
            if (mass < 1e-300) continue;
            if (fabs(first / mass - second[i]) > most) most = fabs(first / mass - second[i]);
            second[i] = first / mass;
        }
    }
}

/* exp(-t), the same bits everywhere. */
static double exponential(double t)
{
    return kvfi_exp2(-1.4426950408889634 * t);
}

void kvfi_laplace_max(int32_t bits, double cut, double *levels)
{
    const int32_t n = 1 << (bits - 1);
    for (int32_t i = 0; i < n; i++) levels[i] = 4.0 * (i + 0.5) / n;
    double most = 1;
    for (int k = 0; k < 5000 && most > 1e-12; k++) {
        double low = 0;
        most = 0;
        for (int32_t i = 0; i < n; i++) {
            const double high = i + 1 < n ? (levels[i] + levels[i + 1]) / 2 : cut;
            const double a = exponential(low), b = exponential(high), centroid = ((1 + low) * a - (1 + high) * b) / (a - b);
            if (fabs(centroid - levels[i]) > most) most = fabs(centroid - levels[i]);
            levels[i] = centroid, low = high;
        }
    }
}
