/* SPDX-License-Identifier: MIT
 * Dropping rows by policy, last of all in a commit. One choice belongs to each block that was sealed, and it is made as if the batch had
 * ended where that block became due: it knows the blocks up to this one and counts R newer rows. So how rows are cut into batches cannot
 * change what stays. Of every head, rows that are not protected go by ascending score, equal ones by ascending position, until the
 * budget is met; rows that stay are not touched. */
#include "cache/cache.h"

#include <string.h>

/* One choice: table rows 0 .. blocks - 1 of one store, positions low <= p < high may go. */
typedef struct choice {
    kvf_cache *c;
    const kvfi_sequence *s;
    const kvfi_store *st;
    int32_t blocks;
    int64_t low, high, budget;
} choice;

void kvfi_score_rows(kvf_cache *c, const kvfi_store *st, uint8_t *row, int32_t head, const float *x)
{
    uint16_t *scores = kvfi_row_scores(c, row, st, head);
    kvfi_scored r = {.evict = &c->g.evict, .layer = st->layer, .head = head, .dim = st->k.head_dim};
    for (int32_t t = 0; scores && t < KVF_BLOCK; t++) {
        r.pos = *kvfi_row_first(row) + t, r.key = x + t * r.dim;
        scores[t] = r.evict->policy->score(&r);
    }
}

static uint64_t *alive_of(const choice *o, int32_t block, int32_t head)
{
    return &kvfi_row_valid(o->c, kvfi_row(o->c, o->s, block))[o->st->first_head + head];
}

/* Living rows of a block that may go. */
static uint64_t eligible(const choice *o, int32_t block, int32_t head)
{
    const int64_t first = *kvfi_row_first(kvfi_row(o->c, o->s, block));
    return *alive_of(o, block, head) & kvfi_range_bits(first, o->low, o->high);
}

/* Counts of eligible scores by `byte` (1: the high one), of those whose high byte is `high` when the low one is counted. */
static void count_scores(const choice *o, int32_t head, int byte, uint32_t high, int32_t counts[256])
{
    memset(counts, 0, 256 * sizeof *counts);
    for (int32_t b = 0; b < o->blocks; b++) {
        const uint64_t rows = eligible(o, b, head);
        const uint16_t *scores = kvfi_row_scores(o->c, kvfi_row(o->c, o->s, b), o->st, head);
        for (int t = 0; rows && t < KVF_BLOCK; t++)
            if ((rows >> t & 1) && (byte || scores[t] >> 8 == high)) counts[byte ? scores[t] >> 8 : scores[t] & 255]++;
    }
}

/* The bin in which the drop-th smallest lies; *drop becomes how many are taken from that bin. */
static uint32_t find_bin(const int32_t counts[256], int32_t *drop)
{
    uint32_t bin = 0;
    for (; bin < 255 && *drop > counts[bin]; bin++) *drop -= counts[bin];
    return bin;
}

/* Rows of a block whose score is below the threshold, and of those that are equal to it the first *ties. */
static uint64_t below(const uint16_t *scores, uint64_t rows, uint32_t threshold, int32_t *ties)
{
    uint64_t gone = 0;
    for (int t = 0; rows && t < KVF_BLOCK; t++) {
        if (!(rows >> t & 1)) continue;
        const uint32_t score = scores ? scores[t] : threshold;
        if (score < threshold)
            gone |= (uint64_t)1 << t;
        else if (score == threshold && *ties > 0)
            gone |= (uint64_t)1 << t, --*ties;
    }
    return gone;
}

static void drop_lowest(const choice *o, int32_t head, int32_t drop)
{
    int32_t counts[256], ties = drop;
    uint32_t threshold = 0;
    if (o->c->g.n_scored) {
        count_scores(o, head, 1, 0, counts);
        const uint32_t high = find_bin(counts, &ties);
        count_scores(o, head, 0, high, counts);
        threshold = high << 8 | find_bin(counts, &ties);
    }
    for (int32_t b = 0; b < o->blocks; b++)
        *alive_of(o, b, head) &=
            ~below(kvfi_row_scores(o->c, kvfi_row(o->c, o->s, b), o->st, head), eligible(o, b, head), threshold, &ties);
}

/* Rows of a head above its budget that may go. The exact rows count: the living sink, and R newer ones. */
static int32_t surplus(const choice *o, int32_t head)
{
    int64_t held = o->c->g.recent + (o->s->has_sink ? kvfi_popcount(o->s->sink_alive) : 0), may_go = 0;
    for (int32_t b = 0; b < o->blocks; b++) {
        held += kvfi_popcount(*alive_of(o, b, head));
        may_go += kvfi_popcount(eligible(o, b, head));
    }
    const int64_t over = held - o->budget;
    return (int32_t)(over <= 0 ? 0 : over < may_go ? over : may_go);
}

/* The choice that belongs to table row `block`. */
static void choose(kvf_cache *c, kvfi_sequence *s, int32_t block)
{
    const int32_t first = *kvfi_row_first(kvfi_row(c, s, block));
    const int64_t next = (int64_t)first + KVF_BLOCK + c->g.recent;
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        choice o = {c,
                    s,
                    st,
                    block + 1,
                    (int64_t)s->start + c->g.evict.sink,
                    next - c->g.evict.recent,
                    kvfi_budget_at(&c->g, s->start, first)};
        int32_t drop = 0;
        for (int32_t h = 0; st->evicts && h < st->kv_heads; h++) {
            drop = surplus(&o, h); /* the same for each: they began alike, and a removal takes a row from all */
            if (drop) drop_lowest(&o, h, drop);
        }
        s->evicted[i] += drop;
        if (drop) s->policy_end = (int32_t)next;
    }
}

/* Frees the blocks of which no head holds a row. Is any layer's block of this table row left? */
static int sweep_row(kvf_cache *c, uint8_t *row)
{
    int left = 0;
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        uint32_t *id = &kvfi_row_ids(c, row)[i];
        uint64_t any = !st->evicts;
        for (int32_t h = 0; h < st->kv_heads; h++) any |= kvfi_row_valid(c, row)[st->first_head + h];
        if (!any && *id != KVFI_NO_BLOCK) {
            kvfi_pool_drop(&c->pools[i], &c->a, *id, 0);
            *id = KVFI_NO_BLOCK;
        }
        left |= *id != KVFI_NO_BLOCK;
    }
    return left;
}

/* Table rows of which nothing is left are taken out, so that a stream does not grow. */
static void sweep(kvf_cache *c, kvfi_sequence *s)
{
    int32_t kept = 0;
    const int32_t n = s->n_blocks;
    for (int32_t b = 0; b < n; b++) {
        uint8_t *row = kvfi_row(c, s, b);
        if (sweep_row(c, row)) {
            if (kept < b) memcpy(kvfi_row(c, s, kept), row, c->g.row_bytes);
            kept++;
            continue;
        }
        for (int i = 0; i < c->g.n_stores; i++) s->first_block[i] -= s->first_block[i] > kept;
    }
    s->n_blocks = kept, s->gone += n - kept;
}

void kvfi_evict_rows(kvf_cache *c, kvfi_sequence *s, int32_t seals)
{
    for (int32_t block = s->n_blocks - seals; block < s->n_blocks; block++) choose(c, s, block);
    sweep(c, s);
    kvfi_count_wasted(c, s);
}
