/* SPDX-License-Identifier: MIT */
#include "oracle_sum.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_codec.h"

/* ---- random numbers ---- */

static uint64_t mix(uint64_t z)
{
    z ^= z >> 30, z *= 0xbf58476d1ce4e5b9u;
    z ^= z >> 27, z *= 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t entry(int seed, int stream, uint64_t i)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    return mix(mix(mix((uint64_t)seed + golden) + (uint64_t)stream * golden) + (i + 1) * golden);
}

static double sign_at(int seed, int stream, int c)
{
    return entry(seed, stream, (uint64_t)c / 64) >> c % 64 & 1 ? -1 : 1;
}

static double uniform(int seed, int stream, uint64_t i)
{
    return ((double)(entry(seed, stream, i) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal_at(int seed, int stream, uint64_t i)
{
    const uint64_t pair = i / 2;
    const double radius = sqrt(-2 * log(uniform(seed, stream, 2 * pair))),
                 angle = 2 * acos(-1) * uniform(seed, stream, 2 * pair + 1);
    return (double)(float)(radius * (i % 2 ? sin(angle) : cos(angle)));
}

/* ---- maps ---- */

static double hadamard(int i, int j, int n)
{
    return oracle_hadamard(n, i, j) / sqrt(n);
}

static int power_of_two(int dim)
{
    int p = 16;
    while (p < dim) p *= 2;
    return p;
}

/* Direction `row`: the row of H D2 H D1. */
static void direction(const os_plan *p, int which, int row, double *out)
{
    const int size = power_of_two(p->dim), block = row / size, stream = 65536 + 1024 * which;
    for (int c = 0; c < p->dim; c++) {
        out[c] = 0;
        if (p->iid) {
            out[c] = normal_at(p->seed, stream + 1023, (uint64_t)row * (uint64_t)((p->dim + 1) / 2 * 2) + (uint64_t)c);
            continue;
        }
        for (int k = 0; k < size; k++)
            out[c] += hadamard(row % size, k, size) * sign_at(p->seed, stream + 2 * block + 1, k) * hadamard(k, c, size);
        out[c] *= sign_at(p->seed, stream + 2 * block, c);
    }
}

/* All directions, kept: tests ask for the same few again and again. */
static const double *directions(const os_plan *p, int which, int rows)
{
    static struct {
        int dim, rows, iid, seed, which;
        double *map;
    } known[64];
    int i = 0;
    while (i < 63 && known[i].map &&
           (known[i].dim != p->dim || known[i].rows != rows || known[i].iid != p->iid || known[i].seed != p->seed ||
            known[i].which != which))
        i++;
    if (known[i].map && i < 63) return known[i].map;
    free(known[i].map);
    known[i].dim = p->dim, known[i].rows = rows, known[i].iid = p->iid, known[i].seed = p->seed, known[i].which = which;
    known[i].map = malloc((size_t)(rows * OS_DIM) * sizeof(double));
    if (!known[i].map) abort();
    for (int r = 0; r < rows; r++) direction(p, which, r, known[i].map + r * OS_DIM);
    return known[i].map;
}

static int seen(const os_plan *p, const os_matrix *m, int c)
{
    return m->select < 0 || p->outlier[c] == m->select;
}

/* Column `place` of the rotation of the selected channels. */
static void turned_column(const os_matrix *m, int place, double *out)
{
    double unit[OS_DIM] = {0};
    unit[place] = 1;
    oracle_rotate(&m->rot, unit, out);
}

static void make_map(os_plan *p, int which)
{
    os_matrix *m = &p->m[which];
    const double *all = m->sketch ? directions(p, which, m->size) : NULL;
    for (int c = 0, place = 0; c < p->dim; c++) {
        double column[OS_ROWS] = {0};
        for (int r = 0; r < m->size && all && seen(p, m, c); r++) column[r] = all[r * OS_DIM + c];
        if (!m->sketch && seen(p, m, c)) turned_column(m, place++, column);
        for (int r = 0; r < m->size; r++) m->map[r][c] = column[r];
    }
}

void os_map(const os_plan *p, const os_matrix *m, const double *x, double *out)
{
    for (int r = 0; r < m->size; r++) {
        out[r] = 0;
        for (int c = 0; c < p->dim; c++) out[r] += m->map[r][c] * x[c];
    }
}

void os_return(const os_plan *p, const os_matrix *m, const double *y, double *out)
{
    for (int r = 0; r < m->size; r++)
        for (int c = 0; c < p->dim; c++) out[c] += m->map[r][c] * y[r];
}

/* ---- plans ---- */

static void levels(os_matrix *m)
{
    double c[128];
    const int n = 1 << (m->bits - 1), top = m->bits > 5 ? 16383 : 127;
    oracle_levels(m->bits, m->size, c);
    for (int i = 0; i < n; i++) {
        m->entry[n + i] = (int)lround(c[i] * top / c[n - 1]);
        m->entry[n - 1 - i] = -m->entry[n + i];
    }
    m->table = 1;
    m->unit = (double)(float)(c[n - 1] / top);
}

static void directions_of(const os_plan *p, os_matrix *m, int rows)
{
    double mean = 2 / acos(-1);
    m->size = rows, m->bits = 1, m->sketch = 1;
    for (int n = 2; n < power_of_two(p->dim); n += 2) mean *= (double)n / (n + 1);
    m->unit = p->iid ? sqrt(acos(-1) / 2) / rows : 1 / (rows * mean);
}

static int number(const char *spec, const char *key, int fallback)
{
    const char *at = strstr(spec, key);
    return at ? atoi(at + strlen(key)) : fallback;
}

static size_t up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static void lay_out(os_plan *p)
{
    size_t at = 0;
    for (int i = 0; i < p->n; i++) {
        os_matrix *m = &p->m[i];
        m->width = (int)up((size_t)m->size, 16);
        m->codes = at;
        m->scales = at + up((size_t)(64 * m->width * m->bits / 8), 64);
        at = m->scales + 128;
    }
    p->set = at;
    p->bytes = at + (p->n_out ? up((size_t)(p->dim + 7) / 8, 64) : 0);
}

static void channels_of(const char *spec, os_matrix *m, int channels, int bits)
{
    if (!oracle_read_rotation(spec, "h1", channels, &m->rot)) abort();
    m->size = m->rot.size, m->bits = bits;
    levels(m);
}

int os_read_spec(const char *spec, int keys, int dim, os_plan *p)
{
    const int qjl = !strncmp(spec, "qjl", 3), prod = !strncmp(spec, "prod", 4), split = !qjl && !prod;
    memset(p, 0, sizeof *p);
    p->keys = keys, p->head_dim = dim, p->n = 1, p->prod = prod;
    if (!oracle_read_rotation(split ? "" : spec, prod ? "h1" : "none", dim, &p->rot) || p->rot.size > OS_DIM) return 0;
    p->dim = p->rot.size;
    p->iid = strstr(spec, "sketch=iid") != NULL;
    p->seed = number(spec, "seed=", 0), p->n_out = number(spec, "outliers=", 0);
    p->norm = number(spec, "norm=n", prod ? 3 : keys ? 1 : 2);
    p->m[0].select = p->m[1].select = -1;
    if (p->n_out) p->n = 2, p->m[0].select = 0, p->m[1].select = 1;
    if (prod) {
        p->n = 2;
        if (!oracle_read_rotation("", "none", p->dim, &p->m[0].rot)) return 0;
        p->m[0].size = p->dim, p->m[0].bits = spec[4] - '1';
        levels(&p->m[0]);
        directions_of(p, &p->m[1], (p->dim + 15) / 16 * 16);
    }
    for (int i = 0; i < p->n && qjl; i++) directions_of(p, &p->m[i], number(spec, "m=", (dim + 15) / 16 * 16));
    for (int i = 0; i < p->n && split; i++) channels_of(spec, &p->m[i], i ? p->n_out : dim - p->n_out, spec[5] - '0' + i);
    lay_out(p);
    return 1;
}

/* ---- records ---- */

void os_unpack(os_plan *p, const void *record)
{
    static int codes[64 * OS_ROWS];
    const unsigned char *bytes = record;
    for (int c = 0; c < p->dim; c++) p->outlier[c] = p->n_out ? bytes[p->set + (size_t)c / 8] >> c % 8 & 1 : 0;
    for (int i = 0; i < p->n; i++) {
        os_matrix *m = &p->m[i];
        oracle_codes(bytes + m->codes, m->bits, p->keys ? m->width : 64, p->keys ? 64 : m->width, codes);
        for (int t = 0; t < 64; t++) {
            m->scale[t] = oracle_half_at(record, m->scales + 2 * (size_t)t);
            for (int j = 0; j < m->width; j++) m->code[t][j] = p->keys ? codes[j * 64 + t] : codes[t * m->width + j];
        }
        make_map(p, i);
    }
}

int os_padding_is_zero(const os_plan *p, const void *record)
{
    const unsigned char *bytes = record;
    int stray = 0;
    for (int i = 0; i < p->n; i++) {
        const os_matrix *m = &p->m[i];
        for (int t = 0; t < 64; t++)
            for (int j = m->size; j < m->width; j++) stray |= m->code[t][j];
        for (size_t at = m->codes + (size_t)(64 * m->width * m->bits / 8); at < m->scales; at++) stray |= bytes[at];
    }
    for (int bit = p->n_out ? p->dim : 0; bit < (int)(p->bytes - p->set) * 8; bit++)
        stray |= bytes[p->set + (size_t)bit / 8] >> bit % 8 & 1;
    return !stray;
}

double os_coordinate(const os_matrix *m, int t, int j)
{
    if (m->table) return m->entry[m->code[t][j]] * m->unit * m->scale[t];
    return (m->code[t][j] ? 1 : -1) * m->unit * m->scale[t];
}
