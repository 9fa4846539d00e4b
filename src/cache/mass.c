/* SPDX-License-Identifier: MIT */
#include "cache/mass.h"

#include <string.h>

/* Calls f for every head of every store that keeps masses. */
#define EACH_HEAD(c, st, h)                                                                                                      \
    for (const kvfi_store *st = (c)->g.stores; st < (c)->g.stores + (c)->g.n_stores; st++)                                       \
        for (int32_t h = 0; st->mass && h < st->kv_heads; h++)

static int32_t links_of(const kvf_cache *c, const kvfi_sequence *s, const kvfi_store *st)
{
    return s->n_links[st - c->g.stores];
}

void kvfi_mass_clear_pending(kvf_cache *c, kvfi_sequence *s)
{
    const size_t open = (size_t)c->g.open_most * sizeof(float);
    EACH_HEAD(c, st, h)
    {
        memset(kvfi_open_mass(c, s, st, h, 1), 0, open);
        for (int32_t i = 0; i < links_of(c, s, st); i++) {
            kvfi_mass *m = kvfi_link_mass(kvfi_link_at(s, st, i), st, h);
            memset(m->pending, 0, sizeof m->pending);
        }
    }
}

static void add(float *sum, const float *pending, int32_t n, int fresh)
{
    for (int32_t i = 0; i < n; i++) sum[i] = (fresh ? 0 : sum[i]) + pending[i];
}

void kvfi_mass_promote(kvf_cache *c, kvfi_sequence *s, const kvfi_run *r)
{
    const int newest = c->g.evict.policy->mass == KVFI_MASS_NEWEST, fresh = newest && (s->mass_used || r->count >= KVF_BLOCK);
    EACH_HEAD(c, st, h)
    {
        float *sum = kvfi_open_mass(c, s, st, h, 0), *pending = kvfi_open_mass(c, s, st, h, 1);
        memset(sum + s->open, 0, (size_t)r->count * sizeof *sum);
        add(sum, pending, s->open + r->count, fresh);
        for (int32_t i = 0; i < links_of(c, s, st); i++) {
            kvfi_mass *m = kvfi_link_mass(kvfi_link_at(s, st, i), st, h);
            add(m->sum, m->pending, KVF_BLOCK, fresh);
        }
    }
    s->mass_used = 0;
}

void kvfi_mass_adopt(const kvf_cache *c, const kvfi_sequence *s, const kvfi_store *st, kvfi_link *link, int32_t first)
{
    for (int32_t h = 0; st->mass && h < st->kv_heads; h++) {
        kvfi_mass *m = kvfi_link_mass(link, st, h);
        memcpy(m->sum, kvfi_open_mass(c, s, st, h, 0) + first, sizeof m->sum);
        memset(m->pending, 0, sizeof m->pending);
    }
}

void kvfi_mass_shift(kvf_cache *c, kvfi_sequence *s, int32_t moved)
{
    EACH_HEAD(c, st, h)
    {
        float *sum = kvfi_open_mass(c, s, st, h, 0);
        memmove(sum, sum + moved, (size_t)s->open * sizeof *sum);
    }
}

void kvfi_mass_forget(kvf_cache *c, kvfi_sequence *s)
{
    EACH_HEAD(c, st, h) memset(kvfi_open_mass(c, s, st, h, 0), 0, (size_t)c->g.open_most * sizeof(float));
}

/* ---- ranks ----------------------------------------------------------------------------------------------------------------------- */

/* Average of what came since: a row at position p has been seen by next - p queries. */
static void rank_by_mean(const kvfi_sequence *s, const kvfi_store *st, int32_t n, int32_t head, int64_t next)
{
    for (int32_t i = 0; i < n; i++) {
        kvfi_link *link = kvfi_link_at(s, st, i);
        kvfi_mass *m = kvfi_link_mass(link, st, head);
        for (int32_t t = 0; t < KVF_BLOCK; t++) m->pending[t] = m->sum[t] / (float)(next - link->bin[head].pos[t]);
    }
}

/* A living row: the place it has, found again by position. */
typedef struct entry {
    int32_t pos, place; /* link * 64 + t */
} entry;

/* Heap sort by position: no memory but its own, and the same steps for the same rows. */
static void sift(entry *e, int32_t at, int32_t n)
{
    const entry moved = e[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && e[child + 1].pos > e[child].pos) child++;
        if (e[child].pos <= moved.pos) break;
        e[at] = e[child];
    }
    e[at] = moved;
}

static void sort(entry *e, int32_t n)
{
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift(e, i, n);
    for (int32_t i = n - 1; i > 0; i--) {
        const entry top = e[0];
        e[0] = e[i], e[i] = top;
        sift(e, 0, i);
    }
}

static int32_t list_rows(const kvfi_sequence *s, const kvfi_store *st, int32_t n, int32_t head, entry *e)
{
    int32_t rows = 0;
    for (int32_t i = 0; i < n; i++) {
        const kvfi_bin *bin = &kvfi_link_at(s, st, i)->bin[head];
        for (int32_t t = 0; t < KVF_BLOCK; t++)
            if (bin->alive >> t & 1) e[rows++] = (entry){bin->pos[t], i * KVF_BLOCK + t};
    }
    return rows;
}

static kvfi_mass *mass_of(const kvfi_sequence *s, const kvfi_store *st, int32_t head, const entry *e)
{
    return kvfi_link_mass(kvfi_link_at(s, st, e->place / KVF_BLOCK), st, head);
}

/* Mean over up to five neighbours. */
static void rank_by_pool(const kvfi_sequence *s, const kvfi_store *st, size_t sort_offset, int32_t n, int32_t head)
{
    entry *e = (entry *)(void *)(s->chains + (size_t)s->chain_room * sort_offset);
    const int32_t rows = list_rows(s, st, n, head, e);
    sort(e, rows);
    for (int32_t i = 0; i < rows; i++) {
        const int32_t from = i < 2 ? 0 : i - 2, to = i + 2 < rows ? i + 2 : rows - 1;
        float sum = 0;
        for (int32_t j = from; j <= to; j++) sum += mass_of(s, st, head, &e[j])->sum[e[j].place % KVF_BLOCK];
        mass_of(s, st, head, &e[i])->pending[e[i].place % KVF_BLOCK] = sum / (float)(to - from + 1);
    }
}

void kvfi_mass_rank(const kvf_cache *c, const kvfi_sequence *s, int32_t store, int32_t head, int64_t next)
{
    const kvfi_store *st = &c->g.stores[store];
    if (c->g.evict.policy->mass == KVFI_MASS_ALL)
        rank_by_mean(s, st, s->n_links[store], head, next);
    else
        rank_by_pool(s, st, c->g.sort_offset, s->n_links[store], head);
}
