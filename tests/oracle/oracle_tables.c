/* SPDX-License-Identifier: MIT */
#include "oracle_tables.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the best levels, by Newton's method on the conditions of Lloyd and Max ---- */

typedef struct sums {
    double mass, first, second;
} sums;

static double weight(double t, int dim)
{
    double rest = 1 - t * t / dim;
    if (dim < 4) return exp(-t * t / 2);
    return rest > 0 ? pow(rest, (dim - 3) / 2.0) : 0;
}

/* Moments of the weight on [from, to], by five points of Gauss and Legendre in each of `parts` pieces. */
static sums integrate(double from, double to, int parts, int dim)
{
    static const double at[3] = {0, 0.5384693101056831, 0.9061798459386640};
    static const double share[3] = {0.5688888888888889, 0.4786286704993665, 0.2369268850561891};
    sums s = {0, 0, 0};
    double half_width = (to - from) / parts / 2;
    for (int i = 0; i < parts; i++)
        for (int k = -2; k <= 2; k++) {
            double t = from + half_width * (2 * i + 1 + (k < 0 ? -at[-k] : at[k]));
            double w = share[abs(k)] * half_width * weight(t, dim);
            s.mass += w, s.first += w * t, s.second += w * t * t;
        }
    return s;
}

static double support(int dim)
{
    return dim >= 4 && dim < 100 ? sqrt(dim) : 10;
}

static sums cell_of(const double *c, int n, int i, int dim)
{
    if (i + 1 == n) return integrate(i ? (c[i - 1] + c[i]) / 2 : 0, support(dim), 400, dim);
    return integrate(i ? (c[i - 1] + c[i]) / 2 : 0, (c[i] + c[i + 1]) / 2, 8, dim);
}

/* One step on F_i = c_i mass_i - first_i, whose matrix has three diagonals. Returns the largest move. */
static double newton_step(double *c, int n, int dim)
{
    double diagonal[128], above[128], right[128], most = 0;
    for (int i = 0; i < n; i++) {
        sums s = cell_of(c, n, i, dim);
        double low = i ? (c[i - 1] + c[i]) / 2 : 0, high = i + 1 < n ? (c[i] + c[i + 1]) / 2 : 0;
        double at_low = i ? (low - c[i]) / 2 * weight(low, dim) : 0;
        double at_high = i + 1 < n ? (c[i] - high) / 2 * weight(high, dim) : 0;
        double pivot = s.mass + at_low + at_high, rest = s.first - c[i] * s.mass;
        if (i) pivot -= at_low * above[i - 1], rest -= at_low * right[i - 1];
        diagonal[i] = pivot;
        above[i] = at_high / diagonal[i];
        right[i] = rest / diagonal[i];
    }
    for (int i = n - 2; i >= 0; i--) right[i] -= above[i] * right[i + 1];
    for (int i = 0; i < n; i++) c[i] += right[i], most = fmax(most, fabs(right[i]));
    return most;
}

/* From where the cube root of the weight has equal shares, a few rounds of Lloyd's to be near enough, then Newton's. */
double oracle_levels(int bits, int dim, double *c)
{
    enum { STEPS = 20000 };
    int n = 1 << (bits - 1), i = 0;
    double end = support(dim), total = 0, sum = 0, error = 0;
    for (int k = 0; k < STEPS; k++) total += cbrt(weight((k + 0.5) * end / STEPS, dim));
    for (int k = 0; k < STEPS && i < n; k++) {
        sum += cbrt(weight((k + 0.5) * end / STEPS, dim));
        while (i < n && sum / total >= (i + 0.5) / n) c[i++] = (k + 0.5) * end / STEPS;
    }
    for (int k = 0; k < 30; k++)
        for (i = 0; i < n; i++) {
            sums s = cell_of(c, n, i, dim);
            c[i] = s.first / s.mass;
        }
    for (int k = 0; k < 20 && newton_step(c, n, dim) > 1e-14; k++) continue;
    for (i = 0, total = 0; i < n; i++) {
        sums s = cell_of(c, n, i, dim);
        error += s.second - 2 * c[i] * s.first + c[i] * c[i] * s.mass;
        total += s.mass;
    }
    return error / total;
}

double oracle_residue(int bits, int dim, const double *c)
{
    double most = 0;
    for (int i = 0; i < 1 << (bits - 1); i++) {
        sums s = cell_of(c, 1 << (bits - 1), i, dim);
        most = fmax(most, fabs(s.first / s.mass - c[i]));
    }
    return most;
}

/* Rounded to integers of which the outermost is 127 (up to 5 bits) or 16383. */
void oracle_turbo_table(oracle_plan *p)
{
    static struct { /* the tests ask for the same few again and again */
        int dim;
        double level[128];
    } known[9][32];
    int i = 0, n = 1 << (p->bits - 1);
    double top = p->bits > 5 ? 16383 : 127;
    if (p->bits < 1 || p->bits > 8) return;
    while (i < 31 && known[p->bits][i].dim && known[p->bits][i].dim != p->dim) i++;
    double *c = known[p->bits][i].level;
    if (known[p->bits][i].dim != p->dim) oracle_levels(p->bits, p->dim, c);
    known[p->bits][i].dim = p->dim;
    for (i = 0; i < n; i++) {
        p->entry[n + i] = (int)lround(c[i] * top / c[n - 1]);
        p->entry[n - 1 - i] = -p->entry[n + i];
    }
    p->unit = once(c[n - 1] / top);
}

/* Mass and first moment of |r| in [low, high), r what the first stage of n levels above 0 leaves. A cell below 0 mirrors one above,
 * so a cell's r below 0 counts as its mirror's above. */
static sums residual_of(const double *c, int n, double low, double high, int dim)
{
    sums all = {0, 0, 0};
    for (int i = 0; i < n; i++)
        for (int sign = -1; sign <= 1; sign += 2) {
            double from = c[i] + (sign > 0 ? low : -high), to = c[i] + (sign > 0 ? high : -low);
            from = fmax(from, i ? (c[i - 1] + c[i]) / 2 : 0);
            to = fmin(to, i + 1 < n ? (c[i] + c[i + 1]) / 2 : support(dim));
            if (from >= to) continue;
            sums s = integrate(from, to, i + 1 < n ? 2 : 30, dim);
            all.mass += s.mass, all.first += sign * (s.first - c[i] * s.mass);
        }
    return all;
}

/* Lloyd's rounds until nothing moves. */
static void fitted_second(const double *c, int bits, int second_bits, int dim, double *d)
{
    int m = 1 << (second_bits - 1);
    double most = 1;
    for (int i = 0; i < m; i++) d[i] = 0.3 * (i + 1) / m / (1 << (bits - 1));
    for (int k = 0; k < 1000 && most > 1e-8; k++) {
        double next[8];
        most = 0;
        for (int i = 0; i < m; i++) {
            sums s = residual_of(c, 1 << (bits - 1), i ? (d[i - 1] + d[i]) / 2 : 0, i + 1 < m ? (d[i] + d[i + 1]) / 2 : 20, dim);
            next[i] = s.mass > 0 ? s.first / s.mass : d[i];
            most = fmax(most, fabs(next[i] - d[i]));
        }
        memcpy(d, next, (size_t)m * sizeof *d);
    }
}

/* The optimum for exp(-t / scale), t up to 8 scales. Of exp(-t) the integral from a is exp(-a), of t exp(-t) it is (1 + a) exp(-a),
 * each less the same at b. */
static void laplace_second(double scale, int bits, double *d)
{
    int m = 1 << (bits - 1);
    for (int i = 0; i < m; i++) d[i] = 5.0 * (i + 1) / m;
    for (int k = 0; k < 500; k++) {
        double next[8];
        for (int i = 0; i < m; i++) {
            double a = i ? (d[i - 1] + d[i]) / 2 : 0, b = i + 1 < m ? (d[i] + d[i + 1]) / 2 : 8;
            next[i] = ((1 + a) * exp(-a) - (1 + b) * exp(-b)) / (exp(-a) - exp(-b));
        }
        memcpy(d, next, (size_t)m * sizeof *d);
    }
    for (int i = 0; i < m; i++) d[i] *= scale;
}

/* Entry of one stage: the level in units, to the nearest integer. */
static int stage_entry(const double *c, int bits, int code, double unit)
{
    int n = 1 << (bits - 1);
    return (int)floor((code < n ? -c[n - 1 - code] : c[code - n]) / unit + 0.5);
}

void oracle_rvq_table(oracle_plan *p, int earlier)
{
    static struct {
        int dim, bits, stage, earlier;
        oracle_plan plan;
    } known[256];
    int i = 0, rest = p->bits - p->stage;
    double c[8], d[8];
    while (i < 255 && known[i].dim &&
           (known[i].dim != p->dim || known[i].bits != p->bits || known[i].stage != p->stage || known[i].earlier != earlier))
        i++;
    if (!known[i].dim || i == 255) {
        oracle_levels(p->stage, p->dim, c);
        if (earlier)
            laplace_second(sqrt(3 * acos(-1)) / 2 * ldexp(1, -2 * p->stage) / sqrt(2), rest, d);
        else
            fitted_second(c, p->stage, rest, p->dim, d);
        double unit = (c[(1 << (p->stage - 1)) - 1] + d[(1 << (rest - 1)) - 1]) / ((p->bits > 5 ? 16383 : 127) - 0.5);
        for (int code = 0; code < 1 << p->bits; code++)
            p->entry[code] =
                stage_entry(c, p->stage, code % (1 << p->stage), unit) + stage_entry(d, rest, code >> p->stage, unit);
        p->unit = once(unit);
        known[i].dim = p->dim, known[i].bits = p->bits, known[i].stage = p->stage, known[i].earlier = earlier, known[i].plan = *p;
    }
    memcpy(p->entry, known[i].plan.entry, sizeof p->entry);
    p->unit = known[i].plan.unit;
}

/* ---- levels of tcq: the list is the definition ---- */

static const struct {
    double unit;
    signed char entry[128];
} trellis[] = {
#define KVFI_TRELLIS(bits, unit, ...) [bits] = {unit, {__VA_ARGS__}},
#include "codec/tcq/levels.def"
#undef KVFI_TRELLIS
};

void oracle_tcq_table(oracle_plan *p)
{
    p->unit = trellis[p->bits].unit;
    for (int s = 0; s < 256; s++) p->entry[s] = s < 128 ? trellis[p->bits].entry[s] : -trellis[p->bits].entry[255 - s];
}
