/* SPDX-License-Identifier: MIT
 * Dropping rows by policy, last of all in a commit. One choice belongs to each block that was sealed, and it is made as if the batch had
 * ended where that block became due: it knows the blocks up to this one and counts the R newer rows, those that live. So how rows are cut into batches cannot
 * change what stays. Of every head, rows that are not protected go by ascending score, equal ones by ascending position, until the
 * budget is met; rows that stay are not touched. */
#include "cache/mass.h"

#include <string.h>

/* One choice of one store: rows of its first n groups, positions low <= p < high may go. A group is 64 rows of a head: a block of the
 * table, or a bin of a chain. */
typedef struct choice {
    kvf_cache *c;
    const kvfi_sequence *s;
    const kvfi_store *st;
    int32_t n, chained;
    int64_t low, high, budget;
    int32_t exact; /* living rows of the sink, and of the R newest */
} choice;

typedef struct group {
    uint64_t *alive;
    const kvfi_bin *bin; /* NULL: a block of the table, without scores, */
    const float *mass;   /* what its rows are ranked by instead of scores; NULL: nothing */
    int32_t first;       /* whose rows have positions from here on */
} group;

void kvfi_score_rows(kvf_cache *c, const kvfi_sequence *s, int32_t store, int32_t j, int32_t head, const float *x)
{
    const kvfi_store *st = &c->g.stores[store];
    if (!st->evicts || !c->g.evict.policy->score) return;
    uint16_t *scores = kvfi_link_at(s, st, c->batch.scored[store] + j)->bin[head].score;
    kvfi_scored r = {.evict = &c->g.evict, .layer = st->layer, .head = head, .dim = st->k.head_dim};
    if (st->direction) r.direction = st->direction + (size_t)head * (size_t)r.dim;
    for (int32_t t = 0; t < KVF_BLOCK; t++) {
        r.pos = s->open_pos + j * KVF_BLOCK + t, r.key = x + t * r.dim;
        scores[t] = r.evict->policy->score(&r);
    }
}

static group group_at(const choice *o, int32_t i, int32_t head)
{
    if (o->chained) {
        kvfi_link *link = kvfi_link_at(o->s, o->st, i);
        kvfi_bin *bin = &link->bin[head];
        return (group){&bin->alive, bin, o->st->mass ? kvfi_link_mass(link, o->st, head)->pending : NULL, 0};
    }
    uint8_t *row = kvfi_row(o->c, o->s, i);
    return (group){&kvfi_row_valid(o->c, row)[o->st->first_head + head], NULL, NULL, *kvfi_row_first(row)};
}

/* Living rows of a group that may go. */
static uint64_t eligible(const choice *o, const group *g)
{
    if (!*g->alive) return 0;
    return *g->alive & (g->bin ? kvfi_bin_range(g->bin, o->low, o->high) : kvfi_range_bits(g->first, o->low, o->high));
}

/* Floats that are not negative are ordered as their bits. */
static uint64_t mass_rank(float mass, int32_t pos)
{
    uint32_t bits;
    memcpy(&bits, &mass, sizeof bits);
    return (uint64_t)bits << 32 | (uint32_t)pos;
}

/* What rows are ranked by: score, then position. No two of a head are equal. */
static uint64_t rank_of(const group *g, int t)
{
    if (g->mass) return mass_rank(g->mass[t], g->bin->pos[t]);
    return g->bin ? (uint64_t)g->bin->score[t] << 32 | (uint32_t)g->bin->pos[t] : (uint64_t)g->first + (uint64_t)t;
}

/* Of the eligible rows whose rank above bit `shift` + 8 is `above`, how many have which next 8 bits. */
static void count_ranks(const choice *o, int32_t head, int shift, uint64_t above, int32_t counts[256])
{
    memset(counts, 0, 256 * sizeof *counts);
    for (int32_t i = 0; i < o->n; i++) {
        const group g = group_at(o, i, head);
        const uint64_t rows = eligible(o, &g);
        for (int t = 0; rows && t < KVF_BLOCK; t++) {
            const uint64_t rank = rank_of(&g, t);
            if ((rows >> t & 1) && (shift == 56 || rank >> (shift + 8) == above)) counts[rank >> shift & 255]++;
        }
    }
}

/* The bin in which the drop-th smallest lies; *drop becomes how many are taken from that bin. */
static uint32_t find_bin(const int32_t counts[256], int32_t *drop)
{
    uint32_t bin = 0;
    for (; bin < 255 && *drop > counts[bin]; bin++) *drop -= counts[bin];
    return bin;
}

/* The highest rank among the `drop` lowest: a radix selection, byte by byte from the top, until a bin goes whole. */
static uint64_t threshold(const choice *o, int32_t head, int32_t drop)
{
    int32_t counts[256];
    uint64_t rank = 0;
    for (int shift = o->st->mass ? 56 : 40; shift >= 0; shift -= 8) {
        count_ranks(o, head, shift, rank, counts);
        const uint32_t bin = find_bin(counts, &drop);
        rank = rank << 8 | bin;
        if (counts[bin] == drop) return (rank << shift) + (((uint64_t)1 << shift) - 1);
    }
    return rank;
}

static void drop_lowest(const choice *o, int32_t head, int32_t drop)
{
    const uint64_t highest = threshold(o, head, drop);
    for (int32_t i = 0; i < o->n; i++) {
        const group g = group_at(o, i, head);
        const uint64_t rows = eligible(o, &g);
        uint64_t gone = 0;
        for (int t = 0; rows && t < KVF_BLOCK; t++) gone |= (uint64_t)(rank_of(&g, t) <= highest) << t;
        *g.alive &= ~(gone & rows);
    }
}

/* Rows that live of the sink and of the R that follow table row `block`: in later ones, or in the window. No choice has seen those yet, so
 * all heads have the same. */
static int32_t exact_rows(const kvf_cache *c, const kvfi_sequence *s, int32_t block)
{
    const int64_t p0 = (int64_t)*kvfi_row_first(kvfi_row(c, s, block)) + KVF_BLOCK, p1 = p0 + c->g.recent;
    const int64_t end = (int64_t)s->open_pos + s->open;
    int32_t rows = s->has_sink ? kvfi_popcount(s->sink_alive) : 0;
    for (int32_t b = block + 1; b < s->n_blocks; b++) {
        uint8_t *row = kvfi_row(c, s, b);
        rows += kvfi_popcount(*kvfi_row_valid(c, row) & kvfi_range_bits(*kvfi_row_first(row), p0, p1));
    }
    for (int32_t w = 0; w < c->g.window_rows / KVF_BLOCK; w++)
        rows += kvfi_popcount(~s->open_dead[w] & kvfi_range_bits((int64_t)s->open_pos + w * KVF_BLOCK, p0, p1 < end ? p1 : end));
    return rows;
}

/* Rows of a head above its budget that may go. */
static int32_t surplus(const choice *o, int32_t head)
{
    int64_t held = o->exact, may_go = 0;
    for (int32_t i = 0; i < o->n; i++) {
        const group g = group_at(o, i, head);
        held += kvfi_popcount(*g.alive);
        may_go += kvfi_popcount(eligible(o, &g));
    }
    const int64_t over = held - o->budget;
    return (int32_t)(over <= 0 ? 0 : over < may_go ? over : may_go);
}

/* Rows in chains leave a window one by one. */
static void leave_window(kvf_cache *c, kvfi_sequence *s, int32_t store, int64_t next)
{
    const int64_t last = next - c->g.keep - c->g.stores[store].window;
    if (kvfi_chain_kill_in(c, s, store, 0, last + 1) && s->left_to[store] < last) s->left_to[store] = (int32_t)last;
    kvfi_chain_pack(c, s, store);
}

/* The choice that belongs to table row `block`, whose chained blocks are in their chains by now. */
static void choose(kvf_cache *c, kvfi_sequence *s, int32_t block)
{
    const int32_t first = *kvfi_row_first(kvfi_row(c, s, block));
    const int64_t next = (int64_t)first + KVF_BLOCK + c->g.recent;
    const int32_t exact = exact_rows(c, s, block);
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        const int chained = kvfi_in_chain(st, s->torn);
        if (chained && st->window) leave_window(c, s, i, next);
        if (!st->evicts) continue;
        choice o = {.c = c, .s = s, .st = st, .n = chained ? s->n_links[i] : block + 1, .chained = chained, .exact = exact};
        o.low = (int64_t)s->start + c->g.evict.sink, o.high = next - c->g.evict.recent;
        o.budget = kvfi_budget_at(&c->g, st, s->start, first, s->torn);
        int32_t most = 0;
        for (int32_t h = 0; h < st->kv_heads; h++) {
            const int32_t drop = surplus(&o, h); /* the same for each, but where a removal met rows that only some still held */
            if (drop && st->mass) kvfi_mass_rank(c, s, i, h, s->next); /* masses know the whole batch */
            if (drop) drop_lowest(&o, h, drop);
            if (drop > most) most = drop;
        }
        s->evicted[i] += most;
        if (most) s->policy_end = (int32_t)next;
        if (chained) kvfi_chain_pack(c, s, i);
    }
}

/* Frees the blocks of which no head holds a row. Is any layer's block of this table row left? */
static int sweep_row(kvf_cache *c, uint8_t *row)
{
    int left = 0;
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        uint32_t *id = &kvfi_row_ids(c, row)[i];
        uint64_t any = !st->evicts || st->chained;
        for (int32_t h = 0; h < st->kv_heads; h++) any |= kvfi_row_valid(c, row)[st->first_head + h];
        if (!any && *id != KVFI_NO_BLOCK) {
            kvfi_pool_drop(&c->pools[i], *id);
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
    if (s->torn == 1 && seals) {
        for (int32_t b = 0; b < s->n_blocks - seals; b++) kvfi_chain_adopt(c, s, kvfi_row(c, s, b), 0);
        s->torn = 2;
    }
    for (int32_t j = 0; j < seals; j++) {
        const int32_t block = s->n_blocks - seals + j;
        kvfi_chain_adopt(c, s, kvfi_row(c, s, block), j * KVF_BLOCK);
        choose(c, s, block);
    }
    if (c->g.evict.policy->mass) kvfi_mass_shift(c, s, seals * KVF_BLOCK), s->mass_used |= seals > 0;
    sweep(c, s);
    kvfi_count_wasted(c, s);
}
