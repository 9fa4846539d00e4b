/* SPDX-License-Identifier: MIT
 * Reading rows back as attention sees them: exact ones as they are, packed ones decoded, with transform and stages undone. */
#include "base/half.h"
#include "cache/chain.h"
#include "cache/rows.h"
#include "codec/shared/part.h"
#include "codec/shared/rotation.h"
#include "codec/shared/stages.h"

#include <string.h>

typedef struct reader {
    kvf_cache *c;
    const kvfi_sequence *s;
    const kvfi_store *st;
    int32_t store, side, head, dim;
    const uint8_t *unfolded; /* the record that is in the tile; NULL: none yet */
} reader;

/* One exact row. */
static void read_exact(const reader *r, size_t offset, size_t row_bytes, size_t row, float *out)
{
    kvfi_row_get(r->c->g.exact_bits, r->s->exact + offset + row * row_bytes, r->dim, out);
}

static int from_sink(const reader *r, int64_t pos, float *out)
{
    const int64_t i = pos - r->s->start;
    if (!r->s->has_sink || i < 0 || i >= r->c->g.sink || !(r->s->sink_alive >> i & 1)) return 0;
    const int values = r->side == KVF_V && !r->st->v_in_k;
    read_exact(r, values ? r->st->sink_v : r->st->sink_k, values ? r->st->v_row : r->st->k_row,
               (size_t)r->head * (size_t)r->c->g.sink + (size_t)i, out);
    return 1;
}

static int from_window(const reader *r, int64_t pos, float *out)
{
    const int64_t i = pos - r->s->open_pos;
    if (i < 0 || i >= r->s->open || (r->s->open_dead[i / KVF_BLOCK] >> i % KVF_BLOCK & 1)) return 0;
    const int values = r->side == KVF_V && !r->st->v_in_k;
    const size_t slot = (size_t)((r->s->open_slot + i) % r->c->g.window_rows);
    read_exact(r, values ? r->st->window_v : r->st->window_k, values ? r->st->v_row : r->st->k_row,
               (size_t)r->head * (size_t)r->c->g.window_rows + slot, out);
    return 1;
}

/* A row in a block. */
typedef struct place {
    uint32_t id;
    int32_t t, epoch;
    int64_t segment; /* whose centre was subtracted */
} place;

static void undo_stages(const reader *r, const place *at, float *x)
{
    float centre[1024];
    const float *scale = kvfi_key_stages(r->c, r->s, r->st, at->epoch, at->segment, r->head, centre);
    kvfi_unstage_rows(x, 1, r->st->k.head_dim, centre, scale);
}

void kvfi_decoded_row(const kvf_cache *c, const kvf_part *part, const void *record, const float *tile, int32_t t, float *x)
{
    for (int32_t d = 0; d < part->dim; d++)
        x[d] =
            part->side == KVF_V ? tile[(size_t)t * (size_t)part->dim_pad + (size_t)d] : tile[(size_t)d * KVF_BLOCK + (size_t)t];
    kvfi_add_mean(part, record, x);
    kvfi_rotate_back(&part->rot, c->g.kernels.hadamard, x, (size_t)part->dim, 1);
}

/* The whole record is decoded, once for rows that follow each other. */
static void from_block(reader *r, const place *at, float *out)
{
    const int values = r->side == KVF_V && !r->st->v_in_k;
    kvf_part room;
    const kvf_part *part = kvfi_part_of(values ? &r->st->v : &r->st->k, r->head, &room);
    const uint8_t *record = kvfi_pool_data(&r->c->pools[r->store], at->id) + (size_t)r->head * r->st->record_bytes;
    float *tile = (float *)(void *)(r->c->attend.slots + r->c->g.slot_tile_k), x[1024];
    if (values) record += r->st->k.bytes;
    if (r->unfolded != record) r->c->g.kernels.kind[part->kind].unfold(part, record, tile);
    r->unfolded = record;
    kvfi_decoded_row(r->c, part, record, tile, at->t, x);
    if (!values && r->st->staged) undo_stages(r, at, x);
    memcpy(out, x, (size_t)r->dim * sizeof *out);
}

static int from_body(reader *r, int64_t pos, float *out)
{
    for (int32_t b = r->s->first_block[r->store]; b < r->s->n_blocks; b++) {
        uint8_t *row = kvfi_row(r->c, r->s, b);
        const int64_t t = pos - *kvfi_row_first(row);
        const uint32_t id = kvfi_row_ids(r->c, row)[r->store];
        if (t < 0 || t >= KVF_BLOCK || id == KVFI_NO_BLOCK) continue;
        if (!(kvfi_row_valid(r->c, row)[r->st->first_head + r->head] >> t & 1)) continue;
        const place at = {id, (int32_t)t, *kvfi_row_epoch(row), *kvfi_row_first(row) / KVFI_SEGMENT};
        from_block(r, &at, out);
        return 1;
    }
    return 0;
}

static int from_chain(reader *r, int64_t pos, float *out)
{
    for (int32_t i = 0; i < r->s->n_links[r->store]; i++) {
        const kvfi_link *link = kvfi_link_at(r->s, r->st, i);
        const kvfi_bin *bin = &link->bin[r->head];
        const uint64_t found = bin->alive & kvfi_bin_range(bin, pos, pos + 1);
        if (!found) continue;
        const int32_t t = kvfi_popcount(found - 1);
        const place at = {link->id, t, bin->epoch, kvfi_bin_segment(bin, t)};
        from_block(r, &at, out);
        return 1;
    }
    return 0;
}

static int check_read(kvf_cache *c, int32_t seq, int32_t layer, kvf_side side, int32_t head, const float *out)
{
    if (seq < 0 || seq >= c->g.max_sequences)
        return kvfi_fail(c, KVF_E_ARG, "read: sequence %d; allowed are 0 to %d", (int)seq, (int)c->g.max_sequences - 1);
    if (layer < 0 || layer >= c->g.n_layers)
        return kvfi_fail(c, KVF_E_ARG, "read: layer %d; allowed are 0 to %d", (int)layer, (int)c->g.n_layers - 1);
    if (head < 0 || head >= c->g.layers[layer].kv_heads)
        return kvfi_fail(c, KVF_E_ARG, "read: layer %d, head %d; allowed are 0 to %d", (int)layer, (int)head,
                         (int)c->g.layers[layer].kv_heads - 1);
    if ((side != KVF_K && side != KVF_V) || !out)
        return kvfi_fail(c, KVF_E_ARG, "read: a side and a place for the row are needed");
    return c->attend.open ? kvfi_fail(c, KVF_E_STATE, "read: an attention is open; end it first") : KVF_OK;
}

int kvf_seq_read_range(kvf_cache *c, int32_t seq, int32_t layer, kvf_side side, int32_t head, int32_t pos, int32_t n, float *out)
{
    if (!c) return KVF_E_ARG;
    c->error[0] = 0;
    int rc = check_read(c, seq, layer, side, head, out);
    if (rc) return rc;
    if (n < 1) return kvfi_fail(c, KVF_E_ARG, "read: %d rows; 1 or more are needed", (int)n);
    const kvfi_layer *l = &c->g.layers[layer];
    reader r = {
        c, &c->sequences[seq], &c->g.stores[l->store], l->store, (int32_t)side, head, side == KVF_K ? l->k_dim : l->v_dim, NULL};
    for (int64_t p = pos; p < (int64_t)pos + n; p++, out += r.dim)
        if (!r.s->used || !(from_window(&r, p, out) || from_sink(&r, p, out) || from_body(&r, p, out) || from_chain(&r, p, out)))
            return kvfi_fail(c, KVF_E_POSITION, "read: layer %d, head %d holds no row at position %lld of sequence %d",
                             (int)layer, (int)head, (long long)p, (int)seq);
    return KVF_OK;
}

int kvf_seq_read(kvf_cache *c, int32_t seq, int32_t layer, kvf_side side, int32_t head, int32_t pos, float *out)
{
    return kvf_seq_read_range(c, seq, layer, side, head, pos, 1, out);
}
