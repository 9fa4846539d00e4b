/* SPDX-License-Identifier: MIT
 * Products with packed codes in f32, for sets without integer dot products of bytes (overlay/planes.h is for the others).
 * Included by one file of an overlay, everything static: the walk over a record is written once, the arithmetic inside it once
 * per instruction set.
 *   out[v][lane] += sum_r m[v][r] * value[r][lane],  m = query over channels (keys) or weights over tokens (values).
 * The unit of a table's entries goes into the multipliers.
 *
 * The including file defines before it (static, and force-inlined where the name ends in _of: those are compiled anew for each
 * width of codes and way of looking up, and dots for each number of vectors):
 *   byte_weight[4]               what the multiplier of each byte of a lane is scaled by beforehand (powers of two): a code that
 *                                is converted where it stands in its lane, without a shift, comes out too large. Not for entries.
 *   dots_of(panel, bits, look, entries, g, q0, nq, nv, m, stride, t, ahead)      nv <= VECTORS
 *       t[v][i] = sum over quads q0 .. q0+nq-1 of m[v][4 * (q - q0) + j] / byte_weight[j] * code[4 * q + j][lane i of group g],
 *       or m * entry;  each quad also fetches the next bytes of `ahead`
 *   fold(scale, min, zero, weight, live, n, m, stride, nv, folded, folded_stride, bias)
 *       folded[v][r] = m[v][r] * scale[r] * weight[r % 4];  bias[v] = sum_r m[v][r] * min[r], where min NULL stands for
 *       -zero * scale;  for r < live: the rest of the n is padding and gives zeros
 *   add_scaled(t, nv, scale, min, zero, sums, sums_stride, out, stride)
 *       out[v][i] += scale[i] * t[v][i] + min[i] * sums[v], or scale[i] * (t[v][i] - zero * sums[v])    for the 16 lanes i
 *   add_biased(t, nv, bias, out, stride)
 *       out[v][i] += t[v][i] + bias[v]
 * and what overlay/unfold.h wants. */
#ifndef KVFI_OVERLAY_CODED_H
#define KVFI_OVERLAY_CODED_H

#include "cpu/overlay/unfold.h"

#define DOTS_VECTORS(bits, look, nv)                                                                                             \
    case nv:                                                                                                                     \
        dots_of(p, bits, look, e, g, q0, nq, nv, m, stride, t, next);                                                            \
        break;
#define DOTS(bits, look)                                                                                                         \
    static void dots##bits##look(const panel *p, const entries *e, int g, int q0, int nq, int nv, const float *m, size_t stride, \
                                 float t[][16], ahead *next)                                                                     \
    {                                                                                                                            \
        switch (nv) {                                                                                                            \
            DOTS_VECTORS(bits, look, 1)                                                                                          \
            DOTS_VECTORS(bits, look, 2)                                                                                          \
            DOTS_VECTORS(bits, look, 3)                                                                                          \
            DOTS_VECTORS(bits, look, 4)                                                                                          \
        }                                                                                                                        \
    }
WIDTHS(DOTS)

static void dots(const panel *p, const entries *e, int g, int q0, int nq, int nv, const float *m, size_t stride, float t[][16],
                 ahead *next)
{
    switch (WIDTH(p->bits, e->look)) {
#define DOTS_CASE(bits, look)                                                                                                    \
    case WIDTH(bits, look): dots##bits##look(p, e, g, q0, nq, nv, m, stride, t, next); break;
        WIDTHS(DOTS_CASE)
    }
}

/* What multipliers are scaled by on their way to dots. */
static void weights_of(const kvf_part *part, float weight[4])
{
    for (int j = 0; j < 4; j++) weight[j] = part->kind == KVF_KIND_TABLE ? part->unit : byte_weight[j];
}

/* sums[v][i] = sum of m[v] over run i of the reduction. */
static void run_sums(const matrix *x, const float *m, size_t stride, int nv, float *sums, size_t sums_stride)
{
    for (int v = 0; v < nv; v++)
        for (int i = 0; i < x->runs; i++) {
            float part[4] = {0};
            int r = i * x->run, end = run_end(x, i);
            for (; r + 4 <= end; r += 4)
                for (int j = 0; j < 4; j++) part[j] += m[(size_t)v * stride + (size_t)(r + j)];
            for (; r < end; r++) part[0] += m[(size_t)v * stride + (size_t)r];
            sums[(size_t)v * sums_stride + (size_t)i] = (part[0] + part[1]) + (part[2] + part[3]);
        }
}

/* Multipliers of a run as whole quads: where a run does not end on a quad, a copy with zeros in place of its neighbours. */
static const float *whole_quads(const float *m, size_t *stride, int nv, int begin, int end, float *room)
{
    if (!(begin % 4) && !(end % 4)) return m + begin;
    const int first = begin & ~3, quads = (end + 3) / 4 - begin / 4;
    memset(room, 0, (size_t)nv * (size_t)quads * 16);
    for (int v = 0; v < nv; v++)
        memcpy(room + v * quads * 4 + (begin - first), m + (size_t)v * *stride + begin, (size_t)(end - begin) * sizeof *m);
    *stride = (size_t)quads * 4;
    return room;
}

/* out[v][r] = m[v][r] * weight[r % 4], n a multiple of 4. */
static void weigh(const kvf_part *part, const float *m, size_t stride, int n, int nv, float *out, size_t out_stride)
{
    float weight[4];
    weights_of(part, weight);
    for (int v = 0; v < nv; v++)
        for (int r = 0; r < n; r++) out[(size_t)v * out_stride + (size_t)r] = m[(size_t)v * stride + (size_t)r] * weight[r % 4];
}

/* Scale along the lanes: run by run of the reduction. m is weighed, sums are not. nv <= VECTORS. */
static void product_across(const matrix *x, const float *m, size_t stride, const float *sums, size_t sums_stride, int nv,
                           float *out, size_t out_stride, ahead *next)
{
    spread room;
    entries e;
    fill_entries(x->part, &e);
    float quads[VECTORS * (MOST_DIM + 8)], t[VECTORS][16];
    for (int chunk = 0; chunk * 64 < x->lanes; chunk++) {
        const panel p = open_panel(x->part, x->codes, chunk, &room);
        for (int i = 0; i < x->runs; i++) {
            const int begin = i * x->run, end = run_end(x, i);
            size_t m_stride = stride;
            const float *run_m = whole_quads(m, &m_stride, nv, begin, end, quads);
            const uint16_t *scale = row_of(x, x->scale, i), *min = row_of(x, x->min, i);
            for (int g = 0; g < p.groups; g++) {
                const int lane = chunk * 64 + g * 16;
                dots(&p, &e, g, begin / 4, (end + 3) / 4 - begin / 4, nv, run_m, m_stride, t, next);
                add_scaled(t, nv, scale + lane, min ? min + lane : NULL, zero_of(x->part), sums + i, sums_stride, out + lane,
                           out_stride);
            }
        }
    }
}

static void add_some(float t[][16], int nv, const float *bias, int begin, int end, float *out, size_t stride)
{
    for (int v = 0; v < nv; v++)
        for (int i = begin; i < end; i++) out[(size_t)v * stride + (size_t)i] += t[v][i] + bias[v];
}

/* Scale along the reduction: run by run of the lanes. nv <= VECTORS. */
static void product_along(const matrix *x, const float *m, size_t stride, int nv, float *out, size_t out_stride, ahead *next)
{
    spread room;
    panel p = {{0}, 0, 0};
    entries e;
    const int live = x->part->side == KVF_K ? x->part->dim : KVF_BLOCK;
    float folded[VECTORS][MOST_DIM], bias[VECTORS], t[VECTORS][16], weight[4];
    fill_entries(x->part, &e);
    weights_of(x->part, weight);
    for (int lane = 0, run = -1; lane < x->lanes; lane += 16) {
        if (lane % 64 == 0) p = open_panel(x->part, x->codes, lane / 64, &room);
        for (int i = run_of(x, lane); i <= run_of(x, lane + 15); i++) {
            if (i != run)
                fold(row_of(x, x->scale, i), row_of(x, x->min, i), zero_of(x->part), weight, live, x->reduction, m, stride, nv,
                     folded[0], MOST_DIM, bias);
            run = i;
            dots(&p, &e, lane % 64 / 16, 0, x->reduction / 4, nv, folded[0], MOST_DIM, t, next);
            const int begin = i * x->run - lane, end = run_end(x, i) - lane;
            if (begin <= 0 && end >= 16)
                add_biased(t, nv, bias, out + lane, out_stride);
            else
                add_some(t, nv, bias, begin > 0 ? begin : 0, end < 16 ? end : 16, out + lane, out_stride);
        }
    }
}

/* ---- the entries of the table -------------------------------------------------------------------------------------------- */

/* Prepared queries: q[n][dim_pad]; for TOKEN and TABLE keys weighed, and with the sum over each channel group behind,
 * sums[n][n_cg]. What other arithmetic needs once per head (integer planes) will belong here too. */
static size_t coded_prepared_bytes(const kvf_part *part, int32_t n)
{
    size_t floats = (size_t)n * (size_t)(part->dim_pad + (by_token(part) ? part->n_cg : 0));
    return (floats * sizeof(float) + 63) / 64 * 64;
}

static void coded_prepare(const kvf_part *part, const float *q, size_t stride, int32_t n, void *prepared)
{
    const size_t dim = (size_t)part->dim_pad;
    float *copy = prepared;
    if (!by_token(part)) {
        for (int v = 0; v < n; v++) memcpy(copy + (size_t)v * dim, q + (size_t)v * stride, dim * sizeof *q);
        return;
    }
    const matrix x = {.part = part, .reduction = part->dim_pad, .run = part->c_group, .runs = part->n_cg, .across = 1};
    run_sums(&x, q, stride, n, copy + (size_t)n * dim, (size_t)part->n_cg);
    weigh(part, q, stride, part->dim_pad, n, copy, dim);
}

static void coded_score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *s)
{
    const matrix x = open_record(part, record);
    const size_t dim = (size_t)part->dim_pad, runs = (size_t)x.runs;
    const float *q = prepared, *sums = q + (size_t)n * dim;
    ahead next = look_ahead(&x, record);
    memset(s, 0, (size_t)n * KVF_BLOCK * sizeof *s);
    for (int v = 0, nv; v < n; v += nv, next.step = 0) {
        float *out = s + v * KVF_BLOCK;
        nv = take_vectors(n - v, VECTORS);
        if (x.across)
            product_across(&x, q + (size_t)v * dim, dim, sums + (size_t)v * runs, runs, nv, out, KVF_BLOCK, &next);
        else
            product_along(&x, q + (size_t)v * dim, dim, nv, out, KVF_BLOCK, &next);
    }
}

static void coded_mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    const matrix x = open_record(part, record);
    ahead next = look_ahead(&x, record);
    for (int v = 0, nv; v < n; v += nv, next.step = 0) {
        const float *m = w + v * KVF_BLOCK;
        float *out = acc + (size_t)v * stride, weighed[VECTORS][KVF_BLOCK], sums[VECTORS][KVF_BLOCK];
        nv = take_vectors(n - v, VECTORS);
        if (x.across) {
            weigh(part, m, KVF_BLOCK, KVF_BLOCK, nv, weighed[0], KVF_BLOCK);
            run_sums(&x, m, KVF_BLOCK, nv, sums[0], KVF_BLOCK);
            product_across(&x, weighed[0], KVF_BLOCK, sums[0], KVF_BLOCK, nv, out, stride, &next);
        } else {
            product_along(&x, m, KVF_BLOCK, nv, out, stride, &next);
        }
    }
}

static const kvfi_kind_ops coded_ops = {coded_prepared_bytes, coded_prepare, coded_score, coded_mix, coded_unfold, 0};

#endif
