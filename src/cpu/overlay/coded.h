/* SPDX-License-Identifier: MIT
 * The kinds of packed codes, uniform and looked up, in terms of operations that an instruction set provides. Included by one file
 * of each overlay, everything static: the walk over a record is written once, the arithmetic inside it once per instruction set.
 *
 * A record is a matrix codes[reduction][lane] (codec/shared/layout.h), and a product with it sums over the reduction:
 *   out[v][lane] += sum_r m[v][r] * value[r][lane],  m = query over channels (keys) or weights over tokens (values).
 * Where the scale stands decides how it is taken out of the inner loop:
 *   along the lanes     TOKEN keys, CHANNEL values: constant over a run of the reduction. The codes of the run are summed
 *                       first, then scaled lane by lane; the minimum meets the sum of the run's multipliers.
 *   along the reduction CHANNEL keys, TOKEN values: constant over a run of lanes. It is folded into the multipliers, and the
 *                       minimum becomes one number for the whole run of lanes.
 * TABLE is arranged as TOKEN is, without a minimum; the unit of its entries goes into the multipliers.
 *
 * How a code becomes a number is `look`, a constant wherever it matters: 0 for the code itself, else an entry of a table: 3 for
 * tables of up to 8 entries, 4 of 16, 5 of 32 (in all of these an entry fits an int8), 8 for larger ones. It says nothing of how
 * wide the codes lie in memory (`bits`): a short chunk is spread to bytes first.
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
 *   widen(from, n, to)           n halves to f32, n a multiple of 16
 *   add_scaled(t, nv, scale, min, zero, sums, sums_stride, out, stride)
 *       out[v][i] += scale[i] * t[v][i] + min[i] * sums[v], or scale[i] * (t[v][i] - zero * sums[v])    for the 16 lanes i
 *   add_biased(t, nv, bias, out, stride)
 *       out[v][i] += t[v][i] + bias[v]
 *   tile_scaled_of(panel, bits, look, entries, g, q0, nq, scale, min, zero, tile, stride)
 *       tile[4 * q + j][i] = code * scale[i] + min[i], or (code - zero) * scale[i], or (entry * unit) * scale[i]: 16 lanes, all
 *       roundings as in scalar code
 *   tile_folded_of(panel, bits, look, entries, g, q0, nq, scale, min, zero, tile, stride)
 *       the same with scale[4 * q + j], min[4 * q + j]
 */
#ifndef KVFI_OVERLAY_CODED_H
#define KVFI_OVERLAY_CODED_H

#include "cpu/overlay/panel.h"
#include "gpu/kernels/codes.h"

enum { MOST_DIM = 1024, VECTORS = 4 };

/* X(bits, look): widths and ways of looking up whose inner loops are compiled apart: shifts and masks are constants in them. */
#define UNIFORM(X) X(1, 0) X(2, 0) X(3, 0) X(4, 0) X(5, 0) X(6, 0) X(7, 0) X(8, 0)
#define LOOKED_UP(X) X(1, 3) X(2, 3) X(3, 3) X(4, 4) X(5, 5) X(6, 8) X(7, 8) X(8, 8)
#define LOOKED_UP_SPREAD(X) X(8, 3) X(8, 4) X(8, 5)
#define WIDTHS(X) UNIFORM(X) LOOKED_UP(X) LOOKED_UP_SPREAD(X)
#define WIDTH(bits, look) ((bits)*16 + (look))

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

static void tile_scaled(const panel *p, const entries *e, int g, int q0, int nq, const uint16_t *scale, const uint16_t *min,
                        float zero, float *tile, size_t stride)
{
    switch (WIDTH(p->bits, e->look)) {
#define TILE_SCALED(bits, look)                                                                                                  \
    case WIDTH(bits, look): tile_scaled_of(p, bits, look, e, g, q0, nq, scale, min, zero, tile, stride); break;
        WIDTHS(TILE_SCALED)
    }
}

static void tile_folded(const panel *p, const entries *e, int g, int q0, int nq, const float *scale, const float *min, float zero,
                        float *tile, size_t stride)
{
    switch (WIDTH(p->bits, e->look)) {
#define TILE_FOLDED(bits, look)                                                                                                  \
    case WIDTH(bits, look): tile_folded_of(p, bits, look, e, g, q0, nq, scale, min, zero, tile, stride); break;
        WIDTHS(TILE_FOLDED)
    }
}

/* A record as a matrix. */
typedef struct matrix {
    const kvf_part *part;
    const uint8_t *codes;
    const uint16_t *scale, *min; /* [runs][length of the other direction]; min NULL: zero counts */
    int reduction, lanes;
    int run; /* reduction indices or lanes that share a scale; the last run may be short */
    int runs;
    int across; /* 1: the scale stands along the lanes */
} matrix;

static int by_token(const kvf_part *part)
{
    return part->kind == KVF_KIND_TOKEN || part->kind == KVF_KIND_TABLE;
}

/* A table knows no zero code. */
static float zero_of(const kvf_part *part)
{
    return part->kind == KVF_KIND_TABLE ? 0.0f : part->zero;
}

/* What multipliers are scaled by on their way to dots. */
static void weights_of(const kvf_part *part, float weight[4])
{
    for (int j = 0; j < 4; j++) weight[j] = part->kind == KVF_KIND_TABLE ? part->unit : byte_weight[j];
}

static matrix open_record(const kvf_part *part, const void *record)
{
    const uint8_t *bytes = record;
    const int keys = part->side == KVF_K, token = by_token(part);
    matrix x = {.part = part, .codes = bytes, .scale = (const uint16_t *)(const void *)(bytes + part->scale_offset)};
    if (part->has_min) x.min = (const uint16_t *)(const void *)(bytes + part->min_offset);
    x.reduction = keys ? part->dim_pad : KVF_BLOCK;
    x.lanes = keys ? KVF_BLOCK : part->dim_pad;
    x.run = token ? part->c_group : part->t_group;
    x.runs = token ? part->n_cg : part->n_tg;
    x.across = keys == token;
    return x;
}

/* Where run i ends; padding belongs to the last one. */
static int run_end(const matrix *x, int i)
{
    return i + 1 < x->runs ? (i + 1) * x->run : x->across ? x->reduction : x->lanes;
}

static int run_of(const matrix *x, int index)
{
    int i = index / x->run;
    return i < x->runs ? i : x->runs - 1;
}

static const uint16_t *row_of(const matrix *x, const uint16_t *base, int i)
{
    return base ? base + (size_t)i * (size_t)(x->across ? x->lanes : x->reduction) : NULL;
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
        for (int r = 0; r < n; r++)
            out[(size_t)v * out_stride + (size_t)r] = m[(size_t)v * stride + (size_t)r] * weight[r % 4];
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

/* One value, straight from the definition. */
static float value_at(const matrix *x, int r, int lane)
{
    const int run = run_of(x, x->across ? r : lane), at = x->across ? lane : r;
    const int i = kvfi_code_get(x->codes, x->part->bits, x->reduction, x->lanes, r, lane);
    const float code = (float)i, scale = kvfi_half_to_float(row_of(x, x->scale, run)[at]);
    if (x->part->kind == KVF_KIND_TABLE) return (float)x->part->table[i] * x->part->unit * scale;
    return x->min ? code * scale + kvfi_half_to_float(row_of(x, x->min, run)[at]) : (code - x->part->zero) * scale;
}

/* Runs that end inside a quad or a group of lanes: rare, so element by element. */
static void unfold_plainly(const matrix *x, float *tile)
{
    for (int r = 0; r < x->reduction; r++)
        for (int lane = 0; lane < x->lanes; lane++) tile[r * x->lanes + lane] = value_at(x, r, lane);
}

static void unfold_across(const matrix *x, float *tile)
{
    spread room;
    entries e;
    fill_entries(x->part, &e);
    for (int chunk = 0; chunk * 64 < x->lanes; chunk++) {
        const panel p = open_panel(x->part, x->codes, chunk, &room);
        for (int i = 0; i < x->runs; i++) {
            const int begin = i * x->run / 4, end = run_end(x, i) / 4;
            const uint16_t *scale = row_of(x, x->scale, i), *min = row_of(x, x->min, i);
            for (int g = 0; g < p.groups; g++) {
                const int lane = chunk * 64 + g * 16;
                tile_scaled(&p, &e, g, begin, end - begin, scale + lane, min ? min + lane : NULL, zero_of(x->part),
                            tile + lane, (size_t)x->lanes);
            }
        }
    }
}

static void unfold_along(const matrix *x, float *tile)
{
    spread room;
    panel p = {{0}, 0, 0};
    entries e;
    float scale[MOST_DIM], min[MOST_DIM];
    fill_entries(x->part, &e);
    for (int lane = 0, run = -1; lane < x->lanes; lane += 16) {
        if (lane % 64 == 0) p = open_panel(x->part, x->codes, lane / 64, &room);
        if (run_of(x, lane) != run) {
            run = run_of(x, lane);
            widen(row_of(x, x->scale, run), x->reduction, scale);
            if (x->min) widen(row_of(x, x->min, run), x->reduction, min);
        }
        tile_folded(&p, &e, lane % 64 / 16, 0, x->reduction / 4, scale, x->min ? min : NULL, zero_of(x->part), tile + lane,
                    (size_t)x->lanes);
    }
}

/* Padded channels are defined to be zero, whatever their codes are. */
static void clear_padding(const kvf_part *part, float *tile)
{
    const size_t dim = (size_t)part->dim, pad = (size_t)part->dim_pad;
    if (part->side == KVF_K)
        memset(tile + dim * KVF_BLOCK, 0, (pad - dim) * KVF_BLOCK * sizeof *tile);
    else
        for (size_t t = 0; t < KVF_BLOCK; t++) memset(tile + t * pad + dim, 0, (pad - dim) * sizeof *tile);
}

/* What will be read after this record, spread over the quads of the first block of vectors. */
static ahead look_ahead(const matrix *x, const void *record)
{
    const kvf_part *p = x->part;
    const size_t steps = (size_t)(x->reduction / 4) * (size_t)(x->lanes / 16);
    const uintptr_t at = (uintptr_t)record;
    if (!p->next_bytes) return (ahead){at, 0};
    return (ahead){at + (uintptr_t)p->next_offset, (p->next_bytes + steps - 1) / steps};
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

static void coded_unfold(const kvf_part *part, const void *record, float *tile)
{
    const matrix x = open_record(part, record);
    if (x.run % (x.across ? 4 : 16) && x.runs > 1)
        unfold_plainly(&x, tile);
    else if (x.across)
        unfold_across(&x, tile);
    else
        unfold_along(&x, tile);
    clear_padding(part, tile);
}

static const kvfi_kind_ops coded_ops = {coded_prepared_bytes, coded_prepare, coded_score, coded_mix, coded_unfold};

#endif
