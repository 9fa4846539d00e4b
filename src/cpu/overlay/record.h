/* SPDX-License-Identifier: MIT
 * A packed record as a matrix codes[reduction][lane] (codec/shared/layout.h) with scales, as every overlay sees it.
 *
 * Where the scale stands decides how it is taken out of a product's inner loop:
 *   along the lanes     TOKEN keys, CHANNEL values: constant over a run of the reduction. The codes of the run are summed
 *                       first, then scaled lane by lane; the minimum meets the sum of the run's multipliers.
 *   along the reduction CHANNEL keys, TOKEN values: constant over a run of lanes. It is folded into the multipliers, and the
 *                       minimum becomes one number for the whole run of lanes.
 * TABLE and TRELLIS are arranged as TOKEN is, without a minimum.
 *
 * How a code becomes a number is `look`, a constant wherever it matters: 0 for the code itself, else an entry of a table: 3 for
 * tables of up to 8 entries, 4 of 16, 5 of 32 (in all of these an entry fits an int8), 8 for larger ones. It says nothing of how
 * wide the codes lie in memory (`bits`): a short chunk is spread to bytes first. */
#ifndef KVFI_OVERLAY_RECORD_H
#define KVFI_OVERLAY_RECORD_H

#include "cpu/overlay/panel.h"
#include "gpu/kernels/codes.h"

enum { MOST_DIM = 1024, VECTORS = 4 };

/* X(bits, look): widths and ways of looking up whose inner loops are compiled apart: shifts and masks are constants in them. */
#define UNIFORM(X) X(1, 0) X(2, 0) X(3, 0) X(4, 0) X(5, 0) X(6, 0) X(7, 0) X(8, 0)
#define LOOKED_UP(X) X(1, 3) X(2, 3) X(3, 3) X(4, 4) X(5, 5) X(6, 8) X(7, 8) X(8, 8)
#define LOOKED_UP_SPREAD(X) X(8, 3) X(8, 4) X(8, 5)
#define WIDTHS(X) UNIFORM(X) LOOKED_UP(X) LOOKED_UP_SPREAD(X)
#define WIDTH(bits, look) ((bits)*16 + (look))

/* Four multipliers of overlay/planes.h, eight bytes: four hi, four lo; or four int16 in the order of the instruction. */
typedef uint64_t quad;

enum { SECTION = 64 }; /* quads: multipliers lie in sections of so many, vector after vector in each */

#define TOP 32639.0f      /* the largest multiplier: 127 * 256 + 127; a section of them times bytes stays below 2^31 */
#define NOTHING 0x1p-110f /* TOP over less than this would be infinite */

/* A stretch of the reduction within one section and run, with what belongs to it, for lane 0 of the record and vector 0. */
typedef struct stretch {
    int q0, nq;                  /* its quads */
    const quad *m;               /* their multipliers; vector v at m + v * SECTION */
    const uint16_t *scale, *min; /* lane by lane; scale NULL: folded into the multipliers */
    const float *sum, *total;    /* of the integers and of the floats; vector v at [v * product.sum_stride] */
} stretch;

/* out[v][i] += sum over stretches of scale[i] * unit[v] * (t[v][i] - zero * sum[v]) + (min[i] + zero * scale[i]) * total[v],
 * with t = sum of multipliers times codes; without scale, bias[v] + the sum of unit[v] * t[v][i]. */
typedef struct product {
    const stretch *run;
    int runs;
    int pair, pairs; /* of groups of the panel */
    int lane, lanes; /* of the record: the first, and how many there are from it on; a multiple of 16 */
    size_t sum_stride, out_stride;
    float zero;
    const float *unit, *bias;
    float *out; /* of lane `lane` */
} product;

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

/* Are numbers entries of a table? */
static inline int is_looked_up(const kvf_part *part)
{
    return part->kind == KVF_KIND_TABLE || part->kind == KVF_KIND_TRELLIS;
}

static inline int by_token(const kvf_part *part)
{
    return part->kind == KVF_KIND_TOKEN || is_looked_up(part);
}

/* A table knows no zero code. */
static inline float zero_of(const kvf_part *part)
{
    return is_looked_up(part) ? 0.0f : part->zero;
}

static inline matrix open_record(const kvf_part *part, const void *record)
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
static inline int run_end(const matrix *x, int i)
{
    return i + 1 < x->runs ? (i + 1) * x->run : x->across ? x->reduction : x->lanes;
}

static inline int run_of(const matrix *x, int index)
{
    int i = index / x->run;
    return i < x->runs ? i : x->runs - 1;
}

static inline const uint16_t *row_of(const matrix *x, const uint16_t *base, int i)
{
    return base ? base + (size_t)i * (size_t)(x->across ? x->lanes : x->reduction) : NULL;
}

/* What will be read after this record, spread over the quads of the first block of vectors. */
static inline ahead look_ahead(const matrix *x, const void *record)
{
    const kvf_part *p = x->part;
    const size_t steps = (size_t)(x->reduction / 4) * (size_t)(x->lanes / 16);
    const uintptr_t at = (uintptr_t)record;
    if (!p->next_bytes) return (ahead){at, 0};
    return (ahead){at + (uintptr_t)p->next_offset, (p->next_bytes + steps - 1) / steps};
}

#endif
