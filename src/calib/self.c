/* SPDX-License-Identifier: MIT */
#include "calib/self.h"
#include "base/exact.h"

#include <math.h>
#include <string.h>

void kvfi_pairs_init(kvfi_pair *pairs, int32_t dims, int32_t style, const double *freq)
{
    for (int32_t i = 0; i < dims / 2; i++) {
        kvfi_pair *p = &pairs[i];
        memset(p, 0, sizeof *p);
        p->a = style == KVF_ROPE_NORM ? 2 * i : i;
        p->b = style == KVF_ROPE_NORM ? 2 * i + 1 : i + dims / 2;
        p->freq = freq[i];
        kvfi_sincos(p->freq * KVFI_SEGMENT, &p->turn_sin, &p->turn_cos);
        for (int j = 0; j < KVFI_SEGMENT; j++) {
            double s, c;
            kvfi_sincos(p->freq * j, &s, &c);
            p->cos += c, p->sin += s, p->cc += c * c, p->cs += c * s, p->ss += s * s;
        }
        p->cos /= KVFI_SEGMENT, p->sin /= KVFI_SEGMENT;
        p->cc /= KVFI_SEGMENT, p->cs /= KVFI_SEGMENT, p->ss /= KVFI_SEGMENT;
    }
}

void kvfi_add_key(double *sums, const float *k, int32_t dim, const kvfi_pair *pairs, int32_t n_pairs, const double (*turns)[2])
{
    double *plain = sums, *square = sums + dim, *with_cos = sums + 2 * dim, *with_sin = sums + 3 * dim;
    for (int32_t c = 0; c < dim; c++) {
        plain[c] += (double)k[c];
        square[c] += (double)k[c] * (double)k[c];
    }
    for (int32_t i = 0; i < n_pairs; i++) {
        const int32_t a = pairs[i].a, b = pairs[i].b;
        with_cos[a] += (double)k[a] * turns[i][0], with_sin[a] += (double)k[a] * turns[i][1];
        with_cos[b] += (double)k[b] * turns[i][0], with_sin[b] += (double)k[b] * turns[i][1];
    }
}

void kvfi_add_query(double *sums, const float *q, int32_t dim)
{
    for (int32_t c = 0; c < dim; c++) sums[c] += (double)q[c] * (double)q[c];
}

/* Mean of the un-rotated keys of a pair: u_a = k_a cos + k_b sin, u_b = k_b cos - k_a sin. */
static void pair_mean(const kvfi_estimate *e, const kvfi_pair *p, double *a, double *b)
{
    const double *with_cos = e->keys + 2 * e->dim, *with_sin = e->keys + 3 * e->dim;
    *a = (with_cos[p->a] + with_sin[p->b]) / (double)e->n;
    *b = (with_cos[p->b] - with_sin[p->a]) / (double)e->n;
}

void kvfi_mean_energy(const kvfi_estimate *e, double *unrotated, double *plain)
{
    for (int32_t i = 0; i < e->n_pairs; i++) {
        const kvfi_pair *p = &e->pairs[i];
        double a, b, pa = e->keys[p->a] / (double)e->n, pb = e->keys[p->b] / (double)e->n;
        pair_mean(e, p, &a, &b);
        *unrotated += a * a + b * b;
        *plain += pa * pa + pb * pb;
    }
}

/* The two channels (a, b) of a pair as they are on average over a segment. */
static void turn_on_average(const kvfi_pair *p, double a, double b, double *c0)
{
    c0[p->a] = a * p->cos - b * p->sin;
    c0[p->b] = a * p->sin + b * p->cos;
}

/* Centre and variance of the two channels of a pair. */
static void pair_moments(const kvfi_estimate *e, int32_t i, double *c0, double *var)
{
    const kvfi_pair *p = &e->pairs[i];
    const double *square = e->keys + e->dim, *with_cos = e->keys + 2 * e->dim, *with_sin = e->keys + 3 * e->dim;
    const double cc = e->pair_sums[i][0], cs = e->pair_sums[i][1], ss = e->pair_sums[i][2], n = (double)e->n;
    double a, b;
    pair_mean(e, p, &a, &b);
    turn_on_average(p, a, b, c0);
    /* sum over rows of (k - R m)^2, R m = (a cos - b sin, a sin + b cos) */
    double ra = square[p->a] - 2 * (a * with_cos[p->a] - b * with_sin[p->a]) + (a * a * cc - 2 * a * b * cs + b * b * ss);
    double rb = square[p->b] - 2 * (a * with_sin[p->b] + b * with_cos[p->b]) + (a * a * ss + 2 * a * b * cs + b * b * cc);
    double va = a * a * p->cc - 2 * a * b * p->cs + b * b * p->ss - c0[p->a] * c0[p->a];
    double vb = a * a * p->ss + 2 * a * b * p->cs + b * b * p->cc - c0[p->b] * c0[p->b];
    var[p->a] = ra / n + va;
    var[p->b] = rb / n + vb;
}

/* (var / query)^power of mean squares, geometric mean 1. A channel without variance or queries takes no part: the ratio is kept within
 * 2^-20 .. 2^20 of the others' geometric mean. */
static void make_scale(const double *var, const double *query, int32_t dim, double power, float *scale)
{
    double log_ratio[1024], mean = 0;
    int32_t live = 0;
    for (int32_t c = 0; c < dim; c++) {
        log_ratio[c] = var[c] > 1e-30 && query[c] > 1e-30 ? kvfi_log2(var[c]) - kvfi_log2(query[c]) : NAN;
        if (log_ratio[c] == log_ratio[c]) mean += log_ratio[c], live++;
    }
    for (int32_t c = 0; c < dim; c++) {
        double x = log_ratio[c] == log_ratio[c] ? log_ratio[c] - mean / live : 0;
        x = x > 20 ? 20 : x < -20 ? -20 : x;
        scale[c] = (float)kvfi_exp2(power * x);
    }
}

void kvfi_make_table(const kvfi_estimate *e, int rotate, double *c0, float *scale)
{
    double var[1024], query[1024];
    for (int32_t c = 0; c < e->dim; c++) {
        query[c] = e->n_queries ? e->queries[c] / (double)e->n_queries : 0;
        c0[c] = e->keys[c] / (double)e->n;
        var[c] = e->keys[e->dim + c] / (double)e->n - c0[c] * c0[c];
        scale[c] = 1;
    }
    for (int32_t i = 0; rotate && i < e->n_pairs; i++) pair_moments(e, i, c0, var);
    if (e->scaled && e->n_queries) make_scale(var, query, e->dim, 0.175, scale);
    if (!e->centred) memset(c0, 0, (size_t)e->dim * sizeof *c0);
}

void kvfi_known_table(const kvfi_known *k, double *c0, float *scale)
{
    double var[1024], query[1024];
    for (int32_t c = 0; c < k->dim; c++) c0[c] = k->mean ? (double)k->mean[c] : 0, scale[c] = 1;
    for (int32_t i = 0; k->mean && i < k->n_pairs; i++) turn_on_average(&k->pairs[i], c0[k->pairs[i].a], c0[k->pairs[i].b], c0);
    if (k->lambda) memcpy(scale, k->lambda, (size_t)k->dim * sizeof *scale);
    if (!k->k_rms || !k->q_rms) return;
    for (int32_t c = 0; c < k->dim; c++) {
        var[c] = (double)k->k_rms[c] * (double)k->k_rms[c];
        query[c] = (double)k->q_rms[c] * (double)k->q_rms[c];
    }
    make_scale(var, query, k->dim, 0.25, scale);
}

enum { ABREAST = 8 };

/* Up to 8 pairs side by side: a turn waits for the one before. */
static void turn_some(double *centre, const kvfi_pair *pairs, int32_t n, int64_t segments)
{
    double x[ABREAST] = {0}, y[ABREAST] = {0}, c[ABREAST] = {0}, s[ABREAST] = {0};
    for (int32_t i = 0; i < n; i++)
        x[i] = centre[pairs[i].a], y[i] = centre[pairs[i].b], c[i] = pairs[i].turn_cos, s[i] = pairs[i].turn_sin;
    for (int64_t k = 0; k < segments; k++)
        for (int32_t i = 0; i < ABREAST; i++) {
            const double turned = x[i] * c[i] - y[i] * s[i];
            y[i] = x[i] * s[i] + y[i] * c[i];
            x[i] = turned;
        }
    for (int32_t i = 0; i < n; i++) centre[pairs[i].a] = x[i], centre[pairs[i].b] = y[i];
}

void kvfi_turn(double *centre, const kvfi_pair *pairs, int32_t n_pairs, int64_t segments)
{
    for (int32_t i = 0; i < n_pairs; i += ABREAST)
        turn_some(centre, pairs + i, n_pairs - i < ABREAST ? n_pairs - i : ABREAST, segments);
}
