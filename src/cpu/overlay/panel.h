/* SPDX-License-Identifier: MIT
 * What the overlays share below their arithmetic: a view of up to 64 lanes of a code matrix, fetching ahead, blocks of vectors.
 * All static, because each overlay compiles it with flags of its own. */
#ifndef KVFI_OVERLAY_PANEL_H
#define KVFI_OVERLAY_PANEL_H

#include "codec/shared/layout.h"
#include "cpu/kernels.h"

#include <math.h>
#include <string.h>

/* Up to 64 lanes of a code matrix. plane[i] is the first line of a plane, or where the one before it ends. */
typedef struct panel {
    const uint8_t *plane[3];
    int bits, groups;
} panel;

/* What codes are looked up in, once as floats and, where they fit, once as bytes. */
typedef struct entries {
    int look; /* 0: codes are numbers. 3, 4, 5: a table of up to 8, 16, 32 bytes; 8: a larger one. overlay/record.h */
    float unit;
    _Alignas(32) int8_t byte[32];
    _Alignas(32) float wide[256];
} entries;

static inline void fill_entries(const kvf_part *part, entries *e)
{
    const int bits = part->bits, n = bits <= 5 ? 32 : 1 << bits;
    e->look = 0;
    if (part->kind != KVF_KIND_TABLE) return;
    e->look = bits <= 3 ? 3 : bits <= 5 ? bits : 8;
    e->unit = part->unit;
    for (int i = 0; i < n; i++) e->wide[i] = (float)part->table[i];
    for (int i = 0; i < 32; i++) e->byte[i] = (int8_t)part->table[i];
}

/* Where reading will go on, fetched while this record is multiplied: a record is used once a token, and waiting for its first
 * lines would take as long as the arithmetic. */
typedef struct ahead {
    uintptr_t at; /* a number, not a pointer: it may run past what exists */
    size_t step;  /* bytes a quad; 0: nothing known */
} ahead;

/* Lines for the short last chunk of a value record (64 tokens, at most 3 groups), one byte a code. */
typedef struct spread {
    _Alignas(64) uint8_t byte[KVF_BLOCK / 4 * 3 * 64];
} spread;

/* A short chunk packs other quads beside each other than a full one. Instead of a second inner loop it is spread to whole bytes
 * first, the arrangement of 8-bit codes, for which the number of groups is only a stride. */
static inline void spread_codes(const panel *from, int quads, uint8_t *to)
{
    const int fields = quads * from->groups;
    for (int i = 0, done = 0; i < 3 && kvfi_plane_width[from->bits][i]; i++) {
        const int width = kvfi_plane_width[from->bits][i], per = 8 / width;
        const uint64_t mask = 0x0101010101010101u * ((1u << width) - 1);
        for (int field = 0; field < fields; field++) {
            const int shift = width * (field % per);
            uint64_t word[8], sum[8] = {0};
            memcpy(word, from->plane[i] + field / per * 64, 64);
            if (i) memcpy(sum, to + field * 64, 64);
            for (int j = 0; j < 8; j++) sum[j] |= (word[j] >> shift & mask) << done;
            memcpy(to + field * 64, sum, 64);
        }
        done += width;
    }
}

/* As it lies in the record. Written member by member: a whole panel that is copied right after it was written waits for its parts to
 * reach the cache. */
static inline void packed_panel(const kvf_part *part, const uint8_t *codes, int chunk, panel *p)
{
    const int keys = part->side == KVF_K, reduction = keys ? part->dim_pad : KVF_BLOCK, lanes = keys ? KVF_BLOCK : part->dim_pad;
    const uint8_t *at = codes + (size_t)chunk * kvfi_codes_bytes(part->bits, reduction, 64);
    p->bits = part->bits;
    p->groups = lanes - chunk * 64 < 64 ? lanes / 16 % 4 : 4;
    for (int i = 0; i < 3; i++) {
        p->plane[i] = at;
        at += kvfi_codes_bytes(kvfi_plane_width[part->bits][i], reduction, p->groups * 16);
    }
}

static inline panel open_panel(const kvf_part *part, const uint8_t *codes, int chunk, spread *room)
{
    panel p;
    packed_panel(part, codes, chunk, &p);
    if (p.groups < 4 && p.bits < 8) {
        spread_codes(&p, (part->side == KVF_K ? part->dim_pad : KVF_BLOCK) / 4, room->byte);
        p.plane[0] = room->byte;
        p.bits = 8;
    }
    return p;
}

/* How far plane i of group g of a full chunk is to be shifted right for quad q: constant along the reduction, but for single
 * bits, where two quads share a byte. */
static inline int plane_shift(int width, int g, int q)
{
    return width == 4 ? 4 * (g & 1) : width == 2 ? 2 * g : width == 1 ? g + 4 * (q & 1) : 0;
}

/* The line where plane i of quad q of group g is: of a full chunk, or of bytes in a chunk of any size. */
static inline const uint8_t *plane_line(const panel *p, int i, int width, int g, int q)
{
    size_t line = width == 8   ? (size_t)(q * p->groups + g)
                  : width == 4 ? (size_t)(2 * q + g / 2)
                               : (size_t)(width == 2 ? q : q / 2);
    return p->plane[i] + 64 * line;
}

/* Vectors are taken in blocks whose sums fit the registers, at most `most`; five of four are three and two, not four and one. */
static inline int take_vectors(int left, int most)
{
    return left <= most ? left : left < 2 * most ? (left + 1) / 2 : most;
}

#endif
