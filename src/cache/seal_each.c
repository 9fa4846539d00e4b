/* SPDX-License-Identifier: MIT
 * seal_each: before a layer's attention the rows of its batch are coded and decoded, block by block, as their sealing at commit will
 * code them, and the queries see the result. For judging codecs; one thread, no speed. Blocks use the newest estimates that exist
 * before the batch; where the batch itself completes an epoch, commit codes with the newer ones. */
#include "base/half.h"
#include "cache/cache.h"
#include "codec/shared/part.h"

#include <string.h>

/* One side of one head of up to 64 rows of the batch. */
typedef struct piece {
    kvf_cache *c;
    const kvfi_sequence *s;
    const kvfi_store *st;
    const kvf_part *part;
    const kvf_view *view;
    const int32_t *rows;    /* [n] batch rows */
    int32_t n, head, first; /* first: position of the first */
    float *out;             /* of the head's row 0 */
    size_t out_stride;      /* floats from one batch row to the next */
} piece;

static void load(const piece *p, float *x)
{
    const int32_t dim = p->part->head_dim, *cells = p->c->attend.request.cells;
    for (int32_t t = 0; t < p->n; t++) {
        const int64_t at = cells ? cells[p->rows[t]] : p->rows[t];
        const char *row = (const char *)p->view->data + at * p->view->token_stride + p->head * p->view->head_stride;
        kvfi_load_row(row, p->view->type == KVF_F32, dim, x + t * dim);
        for (int32_t d = 0; d < dim; d++) x[t * dim + d] = kvfi_half_to_float(kvfi_half_saturated(x[t * dim + d]));
    }
}

static void code(const piece *p)
{
    kvf_cache *c = p->c;
    float *x = (float *)(void *)c->attend.coded, *tile = x + (c->g.coded_rows / sizeof *x) / 2, centre[1024], row[1024];
    void *record = c->attend.coded + c->g.coded_record;
    const int32_t dim = p->part->head_dim, staged = p->part->side == KVF_K && p->st->staged;
    const float *scale =
        staged ? kvfi_key_stages(c, p->s, p->st, p->s->n_sets - 1, p->first / KVFI_SEGMENT, p->head, centre) : NULL;
    kvf_part room;
    const kvf_part *part = kvfi_part_of(p->part, p->head, &room);
    load(p, x);
    if (staged) kvfi_stage_rows(x, KVF_BLOCK, dim, centre, scale);
    part->codec->encode(part, x, record);
    c->g.kernels.kind[part->kind].unfold(part, record, tile);
    for (int32_t t = 0; t < KVF_BLOCK; t++) {
        kvfi_decoded_row(c, part, record, tile, t, row);
        if (staged) kvfi_unstage_rows(row, 1, dim, centre, scale);
        memcpy(p->out + (size_t)p->rows[t] * p->out_stride, row, (size_t)dim * sizeof *row);
    }
}

/* Rows before the first estimates, and those that do not fill a block, stay as they are. */
static void copy(const piece *p)
{
    const int32_t dim = p->part->head_dim;
    float *x = (float *)(void *)p->c->attend.coded;
    load(p, x);
    for (int32_t t = 0; t < p->n; t++) memcpy(p->out + (size_t)p->rows[t] * p->out_stride, x + t * dim, (size_t)dim * sizeof *x);
}

static void code_side(piece *p, kvf_view *view, float *out, int32_t heads)
{
    kvf_cache *c = p->c;
    const int32_t dim = p->part->head_dim;
    p->view = view, p->out_stride = (size_t)heads * (size_t)dim;
    for (int32_t i = 0; i < c->batch.n_runs; i++) {
        const kvfi_run *r = &c->batch.runs[i];
        p->s = &c->sequences[r->seq];
        for (int32_t at = 0; at < r->count; at += KVF_BLOCK)
            for (p->head = 0; p->head < heads; p->head++) {
                p->rows = c->batch.order + r->first + at, p->first = c->batch.tokens[p->rows[0]].pos;
                p->n = r->count - at < KVF_BLOCK ? r->count - at : KVF_BLOCK;
                p->out = out + (size_t)p->head * (size_t)dim;
                if (p->n < KVF_BLOCK || p->s->open % KVF_BLOCK || (c->g.first_seal && !p->s->n_sets))
                    copy(p);
                else
                    code(p);
            }
    }
    *view = (kvf_view){.data = out,
                       .token_stride = (int64_t)(p->out_stride * sizeof *out),
                       .head_stride = (int64_t)((size_t)dim * sizeof *out),
                       .type = KVF_F32};
}

void kvfi_code_request(kvf_cache *c)
{
    kvf_attention *a = &c->attend.request;
    const kvfi_layer *l = &c->g.layers[a->layer];
    const kvfi_store *st = &c->g.stores[l->store];
    float *rows = (float *)(void *)(c->attend.coded + c->g.coded_rows);
    piece p = {.c = c, .st = st, .part = &st->k};
    c->attend.by_row = c->g.seal_each;
    if (!c->g.seal_each) return;
    code_side(&p, &a->k, rows, l->kv_heads);
    if (st->v_in_k) return;
    p.part = &st->v;
    code_side(&p, &a->v, rows + (size_t)c->batch.n * (size_t)l->kv_heads * (size_t)l->k_dim, l->kv_heads);
}
