/* SPDX-License-Identifier: MIT
 * Products with packed codes by integer dot products. Included by one file of each overlay that has them, everything static: the
 * walk over a record is written once, the arithmetic inside it once per instruction set.
 *   out[v][lane] += sum_r m[v][r] * value[r][lane],  m = query over channels (keys) or weights over tokens (values).
 *
 * Multipliers become 16-bit fixed point, m = unit * i with |i| <= TOP and one unit a vector (a vector and run, where the scale is
 * folded in): two planes of int8, i = 256 hi + lo, or the 16 bits themselves, as the instruction wants them. Sums of codes times i
 * are exact integers, so all sets that use this file give nearly the same floats; what differs from scalar code is the rounding of
 * each multiplier, at most unit / 2, and unit is the largest multiplier / TOP. Multipliers all below NOTHING count as zero.
 *
 * Codes are unsigned bytes. The zero code is taken off afterwards: sum i * (code - zero) = sum i * code - zero * sum i. Where a
 * minimum stands in its place, the middle of the codes is taken as zero and the minimum moved there, min + zero * scale: the
 * roundings of multipliers then meet numbers half as large, and of either sign. An entry of a table is looked up as a byte, 128 added; larger ones than int8 are two bytes, each a product of its own (`level`).
 *
 * The including file defines before it (static, and force-inlined where the name ends in _of):
 *   product_of(panel, bits, look, table, pair, nv, product, ahead)      nv <= VECTORS
 *       what `product` says (overlay/record.h), for the 32 lanes of groups 2 pair and 2 pair + 1 of the panel; each quad also
 *       fetches the next bytes of `ahead`. look 0: codes as they are; 4, 5: entries of `table`, of 16 or 32 bytes
 *   look_up(table, bits, n, bytes)      bytes[i] = table[bytes[i]] for n bytes, a multiple of 64
 *   limits(x, n, largest, total)        largest = max |x[i]|, total = sum |x[i]| (may be left out, 0, for n <= 256)
 *   to_quads(x, n, inverse, m)          m[i / 4] = x[i] * inverse rounded to integers; returns their sum. All n a multiple of 4
 *   fold(scale, min, zero, live, n, m, stride, nv, x, x_stride, bias)
 *       x[v][r] = m[v][r] * scale[r];  bias[v] = sum_r m[v][r] * (min[r] + zero * scale[r]) (min NULL: 0);  for r < live, the rest
 *       of the n is padding and gives zeros; n a multiple of 16
 *   fold_quads(scale, min, zero, n, m, stride, nv, quads, quads_stride, unit, bias)        n a multiple of 16, at most 256
 *       the same and then to_quads, bias[v] less unit[v] * zero * sum of the integers */
#ifndef KVFI_OVERLAY_PLANES_H
#define KVFI_OVERLAY_PLANES_H

#include "cpu/overlay/record.h"

/* X(bits, look): what inner loops are compiled for. A table of up to 16 entries is one of 16. */
#define PLANES(X) X(1, 0) X(2, 0) X(3, 0) X(4, 0) X(5, 0) X(6, 0) X(7, 0) X(8, 0) X(1, 4) X(2, 4) X(3, 4) X(4, 4) X(5, 5)
#define PLANES_WIDTH(bits, look) ((bits)*16 + (look))

#define PRODUCT_VECTORS(bits, look, nv)                                                                                          \
    case nv: product_of(p, bits, look, table, pair, nv, x, next); break;
#define PRODUCT(bits, look)                                                                                                      \
    static void product##bits##look(const panel *p, const uint8_t *table, int pair, int nv, const product *x, ahead *next)       \
    {                                                                                                                            \
        switch (nv) {                                                                                                            \
            PRODUCT_VECTORS(bits, look, 1)                                                                                       \
            PRODUCT_VECTORS(bits, look, 2)                                                                                       \
            PRODUCT_VECTORS(bits, look, 3)                                                                                       \
            PRODUCT_VECTORS(bits, look, 4)                                                                                       \
        }                                                                                                                        \
    }
PLANES(PRODUCT)

static void run_product(const panel *p, int look, const uint8_t *table, int pair, int nv, const product *x, ahead *next)
{
    switch (PLANES_WIDTH(p->bits, look)) {
#define PRODUCT_CASE(bits, look)                                                                                                 \
    case PLANES_WIDTH(bits, look): product##bits##look(p, table, pair, nv, x, next); break;
        PLANES(PRODUCT_CASE)
    }
}

/* ---- levels: which bytes stand for codes ----------------------------------------------------------------------------------- */

/* value = (byte - zero) * factor, where byte is the code or looked up. Tables of more than 32 entries have two levels. */
typedef struct level {
    int look, spread; /* spread: looked up before the product, not inside it */
    float factor, zero;
    _Alignas(64) uint8_t table[256];
} level;

static int open_levels(const kvf_part *part, level l[2])
{
    const int n = 1 << part->bits, two = part->bits > 5;
    l[0].look = l[0].spread = 0, l[0].factor = 1, l[0].zero = part->has_min ? 0.5f * (float)(n - 1) : part->zero;
    if (part->kind != KVF_KIND_TABLE) return 1;
    for (int i = 0; i < n; i++) {
        const int entry = part->table[i] + (two ? 32768 : 128);
        l[0].table[i] = (uint8_t)(two ? entry >> 8 : entry);
        if (two) l[1].table[i] = (uint8_t)entry;
    }
    for (int i = n; i < 32; i++) l[0].table[i] = 0;
    l[0].look = part->bits == 5 ? 5 : 4, l[0].spread = two, l[0].factor = part->unit * (two ? 256.0f : 1.0f), l[0].zero = 128;
    l[1].look = 0, l[1].spread = 1, l[1].factor = part->unit, l[1].zero = 0;
    return two ? 2 : 1;
}

/* Room for a chunk of bytes; one line more, because a pair of groups may reach beyond the last group. */
typedef struct plane_room {
    _Alignas(64) uint8_t byte[MOST_DIM / 4 * 4 * 64 + 64];
} plane_room;

/* A chunk with full lines, packed; a short one, or one to be looked up first, as bytes. *look: what is left to do for dots. */
static panel open_plane(const matrix *x, const level *l, int chunk, plane_room *room, int *look)
{
    panel p = packed_panel(x->part, x->codes, chunk);
    const int quads = x->reduction / 4, n = quads * p.groups * 64;
    const int table = x->part->kind == KVF_KIND_TABLE;
    *look = l->look;
    if (!(p.groups < 4 && (p.bits < 8 || table)) && !l->spread) return p;
    spread_codes(&p, quads, room->byte);
    if (table) look_up(l->table, p.bits, n, room->byte);
    memset(room->byte + n, 0, 64);
    *look = 0;
    return (panel){{room->byte}, 8, p.groups};
}

/* ---- multipliers ----------------------------------------------------------------------------------------------------------- */

/* The unit of n multipliers, and what they are multiplied with to become integers. */
static float unit_of(const float *x, int n, float *inverse)
{
    float largest, total, top = TOP;
    limits(x, n, &largest, &total);
    *inverse = 0;
    if (!(largest > NOTHING)) return 0;
    if (n > 256 && total * TOP > largest * SUM_MOST) top = SUM_MOST * (largest / total);
    *inverse = top / largest;
    return largest / top;
}

/* Quads that the runs of the reduction take: a run that ends inside one has its own copy of it. */
static int quads_before(const matrix *x, int run)
{
    if (x->run % 4 == 0) return run * x->run / 4;
    int n = 0;
    for (int i = 0; i < run; i++) n += (run_end(x, i) + 3) / 4 - i * x->run / 4;
    return n;
}

static int quads_of(const matrix *x)
{
    return quads_before(x, x->runs - 1) + (x->reduction + 3) / 4 - (x->runs - 1) * x->run / 4;
}

/* Multipliers of scales along the lanes, ready for a product: vectors of quads, units, and sums [runs] of the integers and of the
 * floats. */
typedef struct across {
    quad *m;
    float *unit, *sum, *total;
    size_t quads, runs;
} across;

static void prepare_run(const matrix *x, int run, const float *m, float inverse, quad *to, float *sum, float *total)
{
    float room[MOST_DIM + 8];
    const int begin = run * x->run, end = run_end(x, run), first = begin & ~3, n = ((end + 3) & ~3) - first;
    const float *from = m + begin;
    if (begin % 4 || end % 4) {
        memset(room, 0, (size_t)n * sizeof *room);
        memcpy(room + (begin - first), m + begin, (size_t)(end - begin) * sizeof *room);
        from = room;
    }
    *sum = to_quads(from, n, inverse, to);
    *total = 0;
    for (int r = begin; x->min && r < end; r++) *total += m[r];
}

static void prepare_across(const matrix *x, const float *m, size_t stride, int n, const across *to)
{
    for (int v = 0; v < n; v++, m += stride) {
        float inverse;
        to->unit[v] = unit_of(m, x->reduction, &inverse);
        for (int i = 0; i < x->runs; i++) {
            const size_t at = (size_t)v * to->runs + (size_t)i;
            prepare_run(x, i, m, inverse, to->m + (size_t)v * to->quads + quads_before(x, i), to->sum + at, to->total + at);
        }
    }
}

/* ---- products -------------------------------------------------------------------------------------------------------------- */

static void level_units(const level *l, const float *unit, int nv, float *out)
{
    for (int v = 0; v < nv; v++) out[v] = unit[v] * l->factor;
}

/* The runs of a record against vectors v and further of a. */
static void stretches(const matrix *x, const across *a, int v, stretch *run)
{
    for (int i = 0; i < x->runs; i++) {
        const int q0 = i * x->run / 4, before = quads_before(x, i);
        const size_t at = (size_t)v * a->runs + (size_t)i;
        run[i] = (stretch){q0, (run_end(x, i) + 3) / 4 - q0, a->m + (size_t)v * a->quads + before, row_of(x, x->scale, i),
                           row_of(x, x->min, i), a->sum + at, a->total + at};
    }
}

/* Scale along the lanes, for vectors v .. v + nv - 1 of a. */
static void product_across(const matrix *x, const across *a, int v, int nv, float *out, size_t stride, ahead *next)
{
    plane_room room;
    level l[2];
    stretch run[MOST_DIM];
    float unit[VECTORS];
    const int n_levels = open_levels(x->part, l);
    stretches(x, a, v, run);
    for (int e = 0; e < n_levels; e++) {
        product y = {.run = run, .runs = x->runs, .m_stride = a->quads, .sum_stride = a->runs, .out_stride = stride,
                     .zero = l[e].zero, .unit = unit};
        level_units(&l[e], a->unit + v, nv, unit);
        for (int chunk = 0, look; chunk * 64 < x->lanes; chunk++) {
            const panel p = open_plane(x, &l[e], chunk, &room, &look);
            for (int pair = 0; 2 * pair < p.groups; pair++) {
                y.lane = chunk * 64 + pair * 32, y.lanes = x->lanes - y.lane < 32 ? 16 : 32, y.out = out + y.lane;
                run_product(&p, look, l[e].table, pair, nv, &y, next);
            }
        }
    }
}

/* Multipliers of a run of lanes, its scales folded in. */
typedef struct folded {
    _Alignas(64) quad m[VECTORS][MOST_DIM / 4];
    float unit[VECTORS], bias[VECTORS];
} folded;

static void fold_run(const matrix *x, const level *l, int run, const float *m, size_t stride, int nv, folded *f)
{
    float scaled[VECTORS][MOST_DIM], inverse;
    const int live = x->part->side == KVF_K ? x->part->dim : KVF_BLOCK, n = x->reduction;
    const uint16_t *scale = row_of(x, x->scale, run), *min = row_of(x, x->min, run);
    if (live == n && n <= 256) {
        fold_quads(scale, min, l->zero, n, m, stride, nv, f->m[0], MOST_DIM / 4, f->unit, f->bias);
    } else {
        fold(scale, min, l->zero, live, n, m, stride, nv, scaled[0], MOST_DIM, f->bias);
        for (int v = 0; v < nv; v++) {
            f->unit[v] = unit_of(scaled[v], n, &inverse);
            f->bias[v] -= f->unit[v] * l->zero * to_quads(scaled[v], n, inverse, f->m[v]);
        }
    }
    if (x->part->kind != KVF_KIND_TABLE) return; /* which has no minimum, so its factor belongs to the bias as well */
    for (int v = 0; v < nv; v++) f->unit[v] *= l->factor, f->bias[v] *= l->factor;
}

/* Scale along the reduction: run by run of the lanes. nv <= VECTORS. */
static void product_along(const matrix *x, const float *m, size_t stride, int nv, float *out, size_t out_stride, ahead *next)
{
    plane_room room;
    level l[2];
    folded f;
    const int n_levels = open_levels(x->part, l);
    const stretch whole = {.q0 = 0, .nq = x->reduction / 4, .m = f.m[0]};
    for (int e = 0; e < n_levels; e++) {
        panel p = {{0}, 0, 0};
        for (int lane = 0, run = -1, look = 0; lane < x->lanes; lane += 32) {
            const int lanes = x->lanes - lane < 32 ? 16 : 32;
            if (lane % 64 == 0) p = open_plane(x, &l[e], lane / 64, &room, &look);
            for (int i = run_of(x, lane); i <= run_of(x, lane + lanes - 1); i++) {
                const int begin = i * x->run - lane, end = run_end(x, i) - lane, all = begin <= 0 && end >= lanes;
                float some[VECTORS][32] = {{0}};
                const product y = {.run = &whole, .runs = 1, .lane = lane, .lanes = lanes, .m_stride = MOST_DIM / 4, .unit = f.unit,
                                   .bias = f.bias, .out = all ? out + lane : some[0], .out_stride = all ? out_stride : 32};
                if (i != run) fold_run(x, &l[e], i, m, stride, nv, &f);
                run = i;
                run_product(&p, look, l[e].table, lane % 64 / 32, nv, &y, next);
                for (int v = 0; v < nv && !all; v++)
                    for (int j = begin > 0 ? begin : 0; j < (end < lanes ? end : lanes); j++)
                        out[(size_t)v * out_stride + (size_t)(lane + j)] += some[v][j];
            }
        }
    }
}

/* ---- the entries of the table ---------------------------------------------------------------------------------------------- */

/* What prepared queries of n vectors look like: for TOKEN and TABLE an `across`, for CHANNEL, which folds its scales in block by
 * block, the floats. */
static across across_at(const matrix *x, int n, void *memory)
{
    across a = {.m = memory, .quads = (size_t)quads_of(x), .runs = (size_t)x->runs};
    a.unit = (float *)(void *)(a.m + (size_t)n * a.quads);
    a.sum = a.unit + n;
    a.total = a.sum + (size_t)n * a.runs;
    return a;
}

static size_t across_bytes(const matrix *x, int n)
{
    return (size_t)n * ((size_t)quads_of(x) * sizeof(quad) + (1 + 2 * (size_t)x->runs) * sizeof(float));
}

/* Keys without a record: what prepare knows. */
static matrix key_matrix(const kvf_part *part)
{
    static const uint16_t some = 0; /* only whether there are minima counts */
    return (matrix){.part = part, .reduction = part->dim_pad, .lanes = KVF_BLOCK, .run = part->c_group, .runs = part->n_cg,
                    .across = 1, .min = part->has_min ? &some : NULL};
}

static size_t planes_prepared_bytes(const kvf_part *part, int32_t n)
{
    const matrix x = key_matrix(part);
    const size_t bytes = by_token(part) ? across_bytes(&x, n) : (size_t)n * (size_t)part->dim_pad * sizeof(float);
    return (bytes + 63) / 64 * 64;
}

static void planes_prepare(const kvf_part *part, const float *q, size_t stride, int32_t n, void *prepared)
{
    const matrix x = key_matrix(part);
    const size_t dim = (size_t)part->dim_pad;
    if (by_token(part)) {
        const across a = across_at(&x, n, prepared);
        prepare_across(&x, q, stride, n, &a);
        return;
    }
    for (int v = 0; v < n; v++) memcpy((float *)prepared + (size_t)v * dim, q + (size_t)v * stride, dim * sizeof *q);
}

static ahead look_further(const matrix *x, const void *record)
{
    ahead next = look_ahead(x, record);
    next.step *= 2; /* dots takes two groups of lanes at once */
    return next;
}

static void planes_score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *s)
{
    const matrix x = open_record(part, record);
    const size_t dim = (size_t)part->dim_pad;
    const across a = x.across ? across_at(&x, n, (void *)(uintptr_t)prepared) : (across){0};
    ahead next = look_further(&x, record);
    memset(s, 0, (size_t)n * KVF_BLOCK * sizeof *s);
    for (int v = 0, nv; v < n; v += nv, next.step = 0) {
        nv = take_vectors(n - v, VECTORS);
        if (x.across)
            product_across(&x, &a, v, nv, s + v * KVF_BLOCK, KVF_BLOCK, &next);
        else
            product_along(&x, (const float *)prepared + (size_t)v * dim, dim, nv, s + v * KVF_BLOCK, KVF_BLOCK, &next);
    }
}

static void planes_mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    const matrix x = open_record(part, record);
    ahead next = look_further(&x, record);
    for (int v = 0, nv; v < n; v += nv, next.step = 0) {
        _Alignas(64) uint64_t room[VECTORS * (2 * KVF_BLOCK + 1 + KVF_BLOCK)];
        const float *m = w + v * KVF_BLOCK;
        nv = take_vectors(n - v, VECTORS);
        if (x.across) {
            const across a = across_at(&x, nv, room);
            prepare_across(&x, m, KVF_BLOCK, nv, &a);
            product_across(&x, &a, 0, nv, acc + (size_t)v * stride, stride, &next);
        } else {
            product_along(&x, m, KVF_BLOCK, nv, acc + (size_t)v * stride, stride, &next);
        }
    }
}

static void planes_entries(kvfi_kind_ops *ops)
{
    ops->fixed_point = (int64_t)TOP;
    ops->prepared_bytes = planes_prepared_bytes;
    ops->prepare = planes_prepare;
    ops->score = planes_score;
    ops->mix = planes_mix;
}

#endif
