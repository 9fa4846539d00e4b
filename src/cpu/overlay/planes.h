/* SPDX-License-Identifier: MIT
 * Products with packed codes by integer multiplication. Included by one file of each overlay that has its own, everything static: the
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
 *   product_of(panel, bits, look, entry, nv, product, ahead)      nv <= VECTORS
 *       what `product` says (overlay/record.h), pair of groups by pair, groups 2 pair and 2 pair + 1 of the panel; each quad also
 *       fetches the next bytes of `ahead`. look 0: codes as they are; 4, 5: bytes from `entry`, 16 or 32 of them
 *   look_up(entry, bits, n, bytes)      bytes[i] = entry[bytes[i]] for n bytes, a multiple of 64
 *   look_up_states(entry, n, bytes)     the same with 256 entries, of which entry[255 - i] = 256 - entry[i]
 *   limits(x, n)                        max |x[i]|
 *   above_of(x, limit)                  bit i: |x[i]| > limit, for 16 floats
 *   to_quads(x, n, inverse, m)          m[i / 4] = x[i] * inverse rounded to integers; returns their sum. All n a multiple of 4
 *   fold_of(scale, min, zero, live, n, m, stride, nv, x, x_stride, bias)
 *       x[v][r] = m[v][r] * scale[r];  bias[v] = sum_r m[v][r] * (min[r] + zero * scale[r]) (min NULL: 0);  for r < live, the rest
 *       of the n is padding and gives zeros; n a multiple of 16
 *   fold_quads_of(scale, min, zero, n, m, stride, nv, quads, unit, bias, mean)      n a multiple of 16, at most a section
 *       the same and then to_quads, bias[v] less unit[v] * zero * sum of the integers; quads[v][SECTION]; unless mean is NULL,
 *       mean[v] = the mean of |x[v][r]| */
#ifndef KVFI_OVERLAY_PLANES_H
#define KVFI_OVERLAY_PLANES_H

#include "cpu/overlay/record.h"
#include "cpu/overlay/states.h"

/* X(bits, look): what inner loops are compiled for. A table of up to 16 entries is one of 16. */
#define PLANES(X) X(1, 0) X(2, 0) X(3, 0) X(4, 0) X(5, 0) X(6, 0) X(7, 0) X(8, 0) X(1, 4) X(2, 4) X(3, 4) X(4, 4) X(5, 5)
#define PLANES_WIDTH(bits, look) ((bits)*16 + (look))

#define PRODUCT_VECTORS(bits, look, nv)                                                                                          \
    case nv:                                                                                                                     \
        product_of(p, bits, look, entry, nv, x, next);                                                                           \
        break;
#define PRODUCT(bits, look)                                                                                                      \
    static void product##bits##look(const panel *p, const uint8_t *entry, int nv, const product *x, ahead *next)                 \
    {                                                                                                                            \
        switch (nv) {                                                                                                            \
            PRODUCT_VECTORS(bits, look, 1)                                                                                       \
            PRODUCT_VECTORS(bits, look, 2)                                                                                       \
            PRODUCT_VECTORS(bits, look, 3)                                                                                       \
            PRODUCT_VECTORS(bits, look, 4)                                                                                       \
        }                                                                                                                        \
    }
PLANES(PRODUCT)

static void run_product(const panel *p, int look, const uint8_t *entry, int nv, const product *x, ahead *next)
{
    switch (PLANES_WIDTH(p->bits, look)) {
#define PRODUCT_CASE(bits, look)                                                                                                 \
    case PLANES_WIDTH(bits, look): product##bits##look(p, entry, nv, x, next); break;
        PLANES(PRODUCT_CASE)
    }
}

/* ---- levels: which bytes stand for codes ----------------------------------------------------------------------------------- */

/* value = (byte - zero) * factor, where byte is the code or looked up. Tables of more than 32 entries have two levels; those of a
 * trellis are entries of an int8 for its states, one level. */
typedef struct level {
    int look, spread; /* spread: looked up before the product, not inside it */
    float factor, zero;
    _Alignas(64) uint8_t table[256];
} level;

static int open_levels(const kvf_part *part, level l[2])
{
    const int trellis = part->kind == KVF_KIND_TRELLIS, n = 1 << part->bits, two = part->bits > 5;
    l[0].look = l[0].spread = 0, l[0].factor = 1, l[0].zero = part->has_min ? 0.5f * (float)(n - 1) : part->zero;
    if (!is_looked_up(part)) return 1;
    for (int i = 0; trellis && i < 1 << STATE_BITS; i++) l[0].table[i] = (uint8_t)(part->table[i] + 128);
    for (int i = 0; i < 32 && !two && !trellis; i++) l[0].table[i] = (uint8_t)(part->table[i] + 128);
    for (int i = 0; i < n && two; i++) {
        const int entry = part->table[i] + 32768;
        l[0].table[i] = (uint8_t)(entry >> 8);
        l[1].table[i] = (uint8_t)entry;
    }
    l[0].look = part->bits == 5 ? 5 : 4, l[0].spread = two || trellis, l[0].factor = part->unit * (two ? 256.0f : 1.0f),
    l[0].zero = 128;
    l[1].look = 0, l[1].spread = 1, l[1].factor = part->unit, l[1].zero = 0;
    return two ? 2 : 1;
}

/* Room for a chunk of bytes; one line more, because a pair of groups may reach beyond the last group. */
typedef struct plane_room {
    _Alignas(64) uint8_t byte[MOST_DIM / 4 * 4 * 64 + 64];
} plane_room;

/* A chunk with full lines, packed; a short one, or one to be looked up first, as bytes. Returns what is left to look up for dots. */
static int spread_plane(const matrix *x, const level *l, int chunk, panel *p, plane_room *room)
{
    const int quads = x->reduction / 4, n = quads * p->groups * 64, trellis = x->part->kind == KVF_KIND_TRELLIS;
    spread_codes(p, quads, room->byte);
    if (trellis) make_states(x, chunk, p->groups, room->byte);
    if (trellis)
        look_up_states(l->table, n, room->byte);
    else if (is_looked_up(x->part))
        look_up(l->table, p->bits, n, room->byte);
    memset(room->byte + n, 0, 64);
    p->plane[0] = room->byte, p->bits = 8;
    return 0;
}

static inline int open_plane(const matrix *x, const level *l, int chunk, panel *p, plane_room *room)
{
    packed_panel(x->part, x->codes, chunk, p);
    if (p->groups == 4 && !l->spread) return l->look;
    if (p->bits == 8 && !is_looked_up(x->part)) return l->look;
    return spread_plane(x, l, chunk, p, room);
}

/* ---- multipliers ----------------------------------------------------------------------------------------------------------- */

/* What n multipliers are multiplied with to become integers, and the unit of those. */
static float unit_of(const float *x, int n, float *inverse)
{
    const float largest = limits(x, n);
    *inverse = largest > NOTHING ? TOP / largest : 0;
    return largest > NOTHING ? largest / TOP : 0;
}

/* Where multipliers lie: a run that ends inside a quad has its own copy of it, so that runs are whole quads; then they are cut at
 * the ends of sections. */
typedef struct piece {
    int run, begin, end; /* of the reduction */
    int place;           /* its first quad among all multipliers */
} piece;

static int pieces_of(const matrix *x, piece *out)
{
    int n = 0, place = 0;
    for (int i = 0; i < x->runs; i++)
        for (int begin = i * x->run, end = run_end(x, i); begin < end; n++) {
            const int room = SECTION - place % SECTION, stop = (begin / 4 + room) * 4;
            out[n] = (piece){i, begin, stop < end ? stop : end, place};
            place += (out[n].end + 3) / 4 - begin / 4;
            begin = out[n].end;
        }
    return n;
}

enum { PIECES = MOST_DIM + MOST_DIM / 4 / SECTION };

static size_t sections_of(const piece *p, int n)
{
    const piece *last = p + n - 1;
    return (size_t)(last->place + (last->end + 3) / 4 - last->begin / 4 + SECTION - 1) / SECTION;
}

/* Multipliers of scales along the lanes, ready for a product, in blocks of up to VECTORS vectors: m[sections][vectors][SECTION],
 * unit[vectors], and [vectors][pieces] sums of the integers and of the floats. */
typedef struct across {
    quad *m;
    float *unit, *sum, *total;
    size_t pieces;
} across;

static across across_at(size_t sections, size_t pieces, int nv, void *memory)
{
    across a = {.m = memory, .pieces = pieces};
    a.unit = (float *)(void *)(a.m + sections * (size_t)nv * SECTION);
    a.sum = a.unit + nv;
    a.total = a.sum + (size_t)nv * pieces;
    return a;
}

static size_t across_bytes(size_t sections, size_t pieces, int nv)
{
    return ((size_t)nv * (sections * SECTION * sizeof(quad) + (1 + 2 * pieces) * sizeof(float)) + 63) / 64 * 64;
}

static void prepare_piece(const matrix *x, const piece *p, const float *m, float inverse, quad *to, float *sum, float *total)
{
    float room[SECTION * 4];
    const int first = p->begin & ~3, n = ((p->end + 3) & ~3) - first;
    const float *from = m + p->begin;
    if (p->begin % 4 || p->end % 4) {
        memset(room, 0, (size_t)n * sizeof *room);
        memcpy(room + (p->begin - first), m + p->begin, (size_t)(p->end - p->begin) * sizeof *room);
        from = room;
    }
    *sum = to_quads(from, n, inverse, to);
    *total = 0;
    for (int r = p->begin; x->min && r < p->end; r++) *total += m[r];
}

static void prepare_across(const matrix *x, const piece *p, const float *m, size_t stride, int nv, const across *to)
{
    for (int v = 0; v < nv; v++, m += stride) {
        float inverse;
        to->unit[v] = unit_of(m, x->reduction, &inverse);
        for (size_t i = 0; i < to->pieces; i++) {
            const size_t at = (size_t)v * to->pieces + i, section = (size_t)(p[i].place / SECTION * nv + v);
            prepare_piece(x, p + i, m, inverse, to->m + section * SECTION + p[i].place % SECTION, to->sum + at, to->total + at);
        }
    }
}

/* ---- products -------------------------------------------------------------------------------------------------------------- */

static void stretches(const matrix *x, const piece *p, const across *a, int nv, stretch *run)
{
    for (size_t i = 0; i < a->pieces; i++) {
        const size_t section = (size_t)(p[i].place / SECTION * nv);
        run[i].q0 = p[i].begin / 4, run[i].nq = (p[i].end + 3) / 4 - p[i].begin / 4;
        run[i].m = a->m + section * SECTION + p[i].place % SECTION;
        run[i].scale = row_of(x, x->scale, p[i].run), run[i].min = row_of(x, x->min, p[i].run);
        run[i].sum = a->sum + i, run[i].total = a->total + i;
    }
}

/* Scale along the lanes, for the nv <= VECTORS vectors of a. */
static void product_across(const matrix *x, const piece *p, const across *a, int nv, float *out, size_t stride, ahead *next)
{
    plane_room room;
    level l[2];
    stretch run[PIECES];
    float unit[VECTORS];
    const int n_levels = open_levels(x->part, l);
    stretches(x, p, a, nv, run);
    for (int e = 0; e < n_levels; e++) {
        product y = {
            .run = run, .runs = (int)a->pieces, .sum_stride = a->pieces, .out_stride = stride, .zero = l[e].zero, .unit = unit};
        for (int v = 0; v < nv; v++) unit[v] = a->unit[v] * l[e].factor;
        for (int chunk = 0; chunk * 64 < x->lanes; chunk++) {
            panel plane;
            const int look = open_plane(x, &l[e], chunk, &plane, &room);
            y.pairs = (plane.groups + 1) / 2, y.lane = chunk * 64, y.lanes = x->lanes - y.lane, y.out = out + y.lane;
            run_product(&plane, look, l[e].table, nv, &y, next);
        }
    }
}

/* The number of vectors is a constant in what folds, and so is the length where it is that of a block. */
static void fold(const uint16_t *scale, const uint16_t *min, float zero, int live, int n, const float *m, size_t stride, int nv,
                 float *x, size_t x_stride, float *bias)
{
    switch (nv) {
#define FOLD(nv)                                                                                                                 \
    case nv: fold_of(scale, min, zero, live, n, m, stride, nv, x, x_stride, bias); break;
        FOLD(1)
        FOLD(2)
        FOLD(3)
        FOLD(4)
    }
}

static void fold_quads(const uint16_t *scale, const uint16_t *min, float zero, int n, const float *m, size_t stride, int nv,
                       quad *quads, float *unit, float *bias, float *mean)
{
    switch (nv) {
#define FOLD_QUADS(nv)                                                                                                           \
    case nv:                                                                                                                     \
        if (!mean)                                                                                                               \
            fold_quads_of(scale, min, zero, KVF_BLOCK, m, stride, nv, quads, unit, bias, NULL);                                  \
        else                                                                                                                     \
            fold_quads_of(scale, min, zero, n, m, stride, nv, quads, unit, bias, mean);                                          \
        break;
        FOLD_QUADS(1)
        FOLD_QUADS(2)
        FOLD_QUADS(3)
        FOLD_QUADS(4)
    }
}

/* What a multiplier is beyond the largest that became an integer. */
typedef struct peak {
    int r, vector;
    float excess;
} peak;

/* A few multipliers may stand far above the rest, as where keys have a channel with large scales and a query looks there. In units
 * of the largest the others would be rounded coarsely, and together they count. So integers reach PEAK times the mean magnitude; what
 * is above, at most one multiplier of PEAK, is cut off there and the excess multiplied in floats. */
enum { PEAK = 5, MOST_PEAKS = VECTORS * MOST_DIM / PEAK };

enum { SCALED = MOST_DIM + 16 }; /* floats from one vector to the next: no multiple of a page */

/* Multipliers of a run of lanes, its scales folded in: m[sections][VECTORS][SECTION]. */
typedef struct folded {
    _Alignas(64) quad m[MOST_DIM / 4 * VECTORS];
    float unit[VECTORS], bias[VECTORS];
    stretch run[MOST_DIM / 4 / SECTION];
    peak peak[MOST_PEAKS];
    int runs, peaks;
} folded;

/* Of n numbers, a multiple of 16, cut off at `most`. */
static float mean_magnitude(const float *x, int n, float most)
{
    float some[16] = {0};
    for (int r = 0; r < n; r += 16)
        for (int i = 0; i < 16; i++) some[i] += fabsf(x[r + i]) < most ? fabsf(x[r + i]) : most;
    for (int i = 0; i < 8; i++) some[i] += some[i + 8];
    for (int i = 0; i < 4; i++) some[i] += some[i + 4];
    return ((some[0] + some[1]) + (some[2] + some[3])) / (float)n;
}

/* Cuts the n multipliers x[nv][SCALED] off at limit[nv]. */
static void cut_peaks(float (*x)[SCALED], int n, int nv, const float *limit, folded *f)
{
    for (int first = 0; first < n; first += 16) {
        uint32_t above[VECTORS], any = 0;
        for (int v = 0; v < nv; v++) any |= above[v] = above_of(x[v] + first, limit[v]);
        for (int r = first; any; any >>= 1, r++)
            for (int v = 0; any & 1 && v < nv; v++) {
                const float all = x[v][r];
                if (!(above[v] >> (r - first) & 1)) continue;
                x[v][r] = copysignf(limit[v], all);
                f->peak[f->peaks++] = (peak){r, v, all - x[v][r]};
            }
    }
}

/* The mean is taken a second time without what peaks add to it. */
static void find_peaks(float (*x)[SCALED], int n, int nv, folded *f)
{
    float limit[VECTORS];
    int any = 0;
    for (int v = 0; v < nv; v++) {
        const float most = PEAK * mean_magnitude(x[v], n, INFINITY);
        limit[v] = INFINITY;
        if (!(limits(x[v], n) > most)) continue;
        const float few = PEAK * mean_magnitude(x[v], n, most);
        if (few > NOTHING) limit[v] = few, any = 1;
    }
    if (any) cut_peaks(x, n, nv, limit, f);
}

/* The codes of one r, less zero, of lanes begin .. end - 1 of a full chunk; zeros for the others of the same groups. */
static void codes_of(const panel *p, int r, float zero, int begin, int end, float *to)
{
    for (int g = begin / 16; g * 16 < end; g++) {
        uint32_t code[16] = {0};
        for (int i = 0, done = 0; i < 3 && kvfi_plane_width[p->bits][i]; i++) {
            const int width = kvfi_plane_width[p->bits][i], shift = 8 * (r % 4) + plane_shift(width, g, r / 4);
            const uint8_t *line = plane_line(p, i, width, g, r / 4);
            for (int lane = 0; lane < 16; lane++) {
                uint32_t four;
                memcpy(&four, line + 4 * lane, 4);
                code[lane] |= (four >> shift & ((1u << width) - 1)) << done;
            }
            done += width;
        }
        for (int lane = 0; lane < 16; lane++) to[16 * g + lane] = (float)(int32_t)code[lane] - zero;
    }
    for (int lane = begin & ~15; lane < begin; lane++) to[lane] = 0;
    for (int lane = end; lane % 16; lane++) to[lane] = 0;
}

/* Lanes begin .. end - 1 of a full chunk. */
static void add_peaks(const panel *p, const folded *f, float zero, int begin, int end, float *out, size_t stride)
{
    float code[64];
    for (int i = 0, r = -1; i < f->peaks; i++) {
        const peak *k = f->peak + i;
        float *o = out + (size_t)k->vector * stride;
        if (k->r != r) codes_of(p, r = k->r, zero, begin, end, code);
        for (int g = begin / 16; g * 16 < end; g++)
            for (int lane = 16 * g; lane < 16 * g + 16; lane++) o[lane] += k->excess * code[lane];
    }
}

static void fold_long(const matrix *x, const level *l, const uint16_t *scale, const uint16_t *min, const float *m, size_t stride,
                      int nv, folded *f)
{
    float scaled[VECTORS][SCALED], inverse;
    const int live = x->part->side == KVF_K ? x->part->dim : KVF_BLOCK, n = x->reduction;
    fold(scale, min, l->zero, live, n, m, stride, nv, scaled[0], SCALED, f->bias);
    if (x->part->side == KVF_K) find_peaks(scaled, n, nv, f);
    for (int v = 0; v < nv; v++) {
        f->unit[v] = unit_of(scaled[v], n, &inverse);
        for (int r = 0; r < n; r += 4 * SECTION) {
            const int some = n - r < 4 * SECTION ? n - r : 4 * SECTION;
            f->bias[v] -= f->unit[v] * l->zero * to_quads(scaled[v] + r, some, inverse, f->m + r / 4 * VECTORS + v * SECTION);
        }
    }
}

/* At once, where it is but one section and has no peaks. 0: neither done nor possible. */
static int fold_keys(const matrix *x, const level *l, const uint16_t *scale, const uint16_t *min, const float *m, size_t stride,
                     int nv, folded *f)
{
    float mean[VECTORS];
    int peaks = 0;
    if (x->reduction > 4 * SECTION || x->part->dim < x->reduction) return 0;
    fold_quads(scale, min, l->zero, x->reduction, m, stride, nv, f->m, f->unit, f->bias, mean);
    for (int v = 0; v < nv; v++) peaks |= f->unit[v] * TOP > PEAK * mean[v];
    return !peaks;
}

static void fold_run(const matrix *x, const level *l, int run, const float *m, size_t stride, int nv, folded *f)
{
    const uint16_t *scale = row_of(x, x->scale, run), *min = row_of(x, x->min, run);
    const int likely = f->peaks; /* the run before has the same channels */
    f->peaks = 0;
    if (x->part->side == KVF_V) /* a block of tokens; a weight far above the others is most of the result, so no peaks */
        fold_quads(scale, min, l->zero, KVF_BLOCK, m, stride, nv, f->m, f->unit, f->bias, NULL);
    else if (likely || !fold_keys(x, l, scale, min, m, stride, nv, f))
        fold_long(x, l, scale, min, m, stride, nv, f);
    if (!is_looked_up(x->part)) return; /* which has no minimum, so its factor belongs to the bias as well */
    for (int v = 0; v < nv; v++) f->unit[v] *= l->factor, f->bias[v] *= l->factor;
}

static void open_folded(const matrix *x, folded *f)
{
    const int quads = x->reduction / 4;
    f->runs = (quads + SECTION - 1) / SECTION, f->peaks = 0;
    for (int i = 0; i < f->runs; i++)
        f->run[i] = (stretch){.q0 = i * SECTION,
                              .nq = quads - i * SECTION < SECTION ? quads - i * SECTION : SECTION,
                              .m = f->m + i * SECTION * VECTORS};
}

/* Some lanes of a pair, where a run begins or ends inside it. */
static void product_some(const panel *p, int look, const level *l, int nv, product y, int begin, int end, ahead *next)
{
    float some[VECTORS][32] = {{0}}, *out = y.out;
    const size_t stride = y.out_stride;
    y.out = some[0], y.out_stride = 32;
    run_product(p, look, l->table, nv, &y, next);
    for (int v = 0; v < nv; v++)
        for (int j = begin; j < end; j++) out[(size_t)v * stride + (size_t)j] += some[v][j];
}

/* One chunk of lanes: all pairs at once while they lie in one run, else pair by pair and run by run. */
static void chunk_along(const matrix *x, const panel *p, int look, const level *l, int chunk, const float *m, size_t stride,
                        int nv, float *out, size_t out_stride, folded *f, int *folded_run, ahead *next)
{
    product y = {.run = f->run, .runs = f->runs, .out_stride = out_stride, .unit = f->unit, .bias = f->bias};
    for (int lane = chunk * 64, stop = x->lanes < lane + 64 ? x->lanes : lane + 64; lane < stop; lane += 32 * y.pairs) {
        const int whole = run_end(x, run_of(x, lane)) >= stop;
        y.lane = lane, y.lanes = stop - lane, y.pair = lane % 64 / 32, y.pairs = whole ? (y.lanes + 31) / 32 : 1,
        y.out = out + lane;
        if (!whole && y.lanes > 32) y.lanes = 32;
        for (int i = run_of(x, lane); i <= run_of(x, lane + y.lanes - 1); i++) {
            const int begin = i * x->run - lane, end = run_end(x, i) - lane;
            if (i != *folded_run) {
                fold_run(x, l, i, m, stride, nv, f);
                add_peaks(p, f, l->zero, i * x->run, run_end(x, i), out, out_stride);
            }
            *folded_run = i;
            if (begin <= 0 && end >= y.lanes)
                run_product(p, look, l->table, nv, &y, next);
            else
                product_some(p, look, l, nv, y, begin > 0 ? begin : 0, end < y.lanes ? end : y.lanes, next);
        }
    }
}

/* Scale along the reduction: run by run of the lanes. nv <= VECTORS. */
static void product_along(const matrix *x, const float *m, size_t stride, int nv, float *out, size_t out_stride, ahead *next)
{
    plane_room room;
    level l[2];
    folded f;
    const int n_levels = open_levels(x->part, l);
    open_folded(x, &f);
    for (int e = 0; e < n_levels; e++) {
        int folded_run = -1;
        for (int chunk = 0; chunk * 64 < x->lanes; chunk++) {
            panel p;
            const int look = open_plane(x, &l[e], chunk, &p, &room);
            chunk_along(x, &p, look, &l[e], chunk, m, stride, nv, out, out_stride, &f, &folded_run, next);
        }
    }
}

/* ---- the entries of the table ---------------------------------------------------------------------------------------------- */

/* Keys without a record: what prepare knows. */
static matrix key_matrix(const kvf_part *part)
{
    static const uint16_t some = 0; /* only whether there are minima counts */
    return (matrix){.part = part,
                    .reduction = part->dim_pad,
                    .lanes = KVF_BLOCK,
                    .run = part->c_group,
                    .runs = part->n_cg,
                    .across = 1,
                    .min = part->has_min ? &some : NULL};
}

/* Prepared queries: for TOKEN and TABLE blocks of `across`, for CHANNEL, which folds its scales in block by block, the floats. */
static size_t planes_prepared_bytes(const kvf_part *part, int32_t n)
{
    const matrix x = key_matrix(part);
    piece p[PIECES];
    if (!by_token(part)) return ((size_t)n * (size_t)part->dim_pad * sizeof(float) + 63) / 64 * 64;
    const int pieces = pieces_of(&x, p);
    size_t bytes = 0;
    for (int v = 0, nv; v < n; v += nv) {
        nv = take_vectors(n - v, VECTORS);
        bytes += across_bytes(sections_of(p, pieces), (size_t)pieces, nv);
    }
    return bytes;
}

static void planes_prepare(const kvf_part *part, const float *q, size_t stride, int32_t n, void *prepared)
{
    const matrix x = key_matrix(part);
    const size_t dim = (size_t)part->dim_pad;
    piece p[PIECES];
    const int pieces = by_token(part) ? pieces_of(&x, p) : 0;
    uint8_t *at = prepared;
    for (int v = 0, nv; pieces && v < n; v += nv) {
        nv = take_vectors(n - v, VECTORS);
        const across a = across_at(sections_of(p, pieces), (size_t)pieces, nv, at);
        prepare_across(&x, p, q + (size_t)v * stride, stride, nv, &a);
        at += across_bytes(sections_of(p, pieces), (size_t)pieces, nv);
    }
    for (int v = 0; !pieces && v < n; v++) memcpy((float *)prepared + (size_t)v * dim, q + (size_t)v * stride, dim * sizeof *q);
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
    piece p[PIECES];
    const int pieces = x.across ? pieces_of(&x, p) : 0;
    const uint8_t *at = prepared;
    ahead next = look_further(&x, record);
    memset(s, 0, (size_t)n * KVF_BLOCK * sizeof *s);
    for (int v = 0, nv; v < n; v += nv, next.step = 0) {
        nv = take_vectors(n - v, VECTORS);
        if (x.across) {
            const across a = across_at(sections_of(p, pieces), (size_t)pieces, nv, (void *)(uintptr_t)at);
            product_across(&x, p, &a, nv, s + v * KVF_BLOCK, KVF_BLOCK, &next);
            at += across_bytes(sections_of(p, pieces), (size_t)pieces, nv);
        } else {
            product_along(&x, (const float *)prepared + (size_t)v * dim, dim, nv, s + v * KVF_BLOCK, KVF_BLOCK, &next);
        }
    }
}

static void planes_mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    const matrix x = open_record(part, record);
    piece p[PIECES];
    const int pieces = x.across ? pieces_of(&x, p) : 0;
    ahead next = look_further(&x, record);
    for (int v = 0, nv; v < n; v += nv, next.step = 0) {
        _Alignas(64) uint64_t room[VECTORS * (2 * SECTION + 1 + KVF_BLOCK)]; /* at most one run a token */
        const float *m = w + v * KVF_BLOCK;
        nv = take_vectors(n - v, VECTORS);
        if (x.across) {
            const across a = across_at(sections_of(p, pieces), (size_t)pieces, nv, room);
            prepare_across(&x, p, m, KVF_BLOCK, nv, &a);
            product_across(&x, p, &a, nv, acc + (size_t)v * stride, stride, &next);
        } else {
            product_along(&x, m, KVF_BLOCK, nv, acc + (size_t)v * stride, stride, &next);
        }
    }
}

static void planes_of_kind(kvfi_kind_ops *ops, int many)
{
    ops->fixed_point = (int64_t)TOP;
    ops->many = many;
    ops->prepared_bytes = planes_prepared_bytes;
    ops->prepare = planes_prepare;
    ops->score = planes_score;
    ops->mix = planes_mix;
}

/* `many`: see kvfi_kind_ops. For each block of vectors anew, states of a trellis are made, and scales of channels folded into the
 * multipliers: there a tile is better for many. */
static void planes_entries(kvfi_kernels *k, int many)
{
    planes_of_kind(&k->kind[KVF_KIND_TOKEN], many);
    planes_of_kind(&k->kind[KVF_KIND_TABLE], many);
    planes_of_kind(&k->kind[KVF_KIND_CHANNEL], 0);
    planes_of_kind(&k->kind[KVF_KIND_TRELLIS], 0);
}

#endif
