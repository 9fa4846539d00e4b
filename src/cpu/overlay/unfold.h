/* SPDX-License-Identifier: MIT
 * Coded records to tiles on any overlay, bit for bit as scalar code does it. The including file defines before it, static, and
 * force-inlined where the name ends in _of:
 *   widen(from, n, to)           n halves to f32, n a multiple of 16
 *   tile_scaled_of(panel, bits, look, entries, g, q0, nq, scale, min, zero, tile, stride)
 *       tile[4 * q + j][i] = code * scale[i] + min[i], or (code - zero) * scale[i], or (entry * unit) * scale[i]: 16 lanes, all
 *       roundings as in scalar code
 *   tile_folded_of(panel, bits, look, entries, g, q0, nq, scale, min, zero, tile, stride)
 *       the same with scale[4 * q + j], min[4 * q + j] */
#ifndef KVFI_OVERLAY_UNFOLD_H
#define KVFI_OVERLAY_UNFOLD_H

#include "cpu/overlay/record.h"

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
                tile_scaled(&p, &e, g, begin, end - begin, scale + lane, min ? min + lane : NULL, zero_of(x->part), tile + lane,
                            (size_t)x->lanes);
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

#endif
