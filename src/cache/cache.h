/* SPDX-License-Identifier: MIT
 * The cache object. Knows codecs only through kvf_part and the kernel table. */
#ifndef KVFI_CACHE_H
#define KVFI_CACHE_H

#include "cache/geometry.h"
#include "cache/pool.h"
#include "cpu/kernels.h"

#include <stdatomic.h>

/* A sequence: rows in blocks (the table), then the open rows in the exact window.
 * Positions are first + i inside a block and open_pos + i inside the window; a cut opens a new block with a first of its own. */
typedef struct kvfi_sequence {
    int32_t start;      /* first position ever given */
    int32_t next;       /* next position; lowered by a cut only */
    int32_t used;       /* 0: empty */
    int32_t n_blocks;   /* table rows */
    int32_t gone;       /* blocks whose table row was taken out, as no layer held a row of theirs any more */
    int32_t table_rows; /* capacity */
    int32_t open;       /* rows in the window */
    int32_t open_pos;   /* position of the first of them */
    int32_t wasted;     /* rows that blocks have room for behind a cut */
    int32_t open_slot;  /* its slot in the ring, a multiple of 64 */
    int32_t has_sink;   /* the sink holds the first rows of block 0 */
    int32_t torn; /* with a policy: rows were removed from blocks of the table, which leaves holes. 1: stores that pack put those
                            blocks into their chains before the next choice; 2: and every block since */
    uint64_t sink_alive; /* bit i: sink row i was not removed */
    uint8_t *table;
    uint8_t *chains;    /* of stores that pack (chain.h): one after the other, each with room for as many links */
    int32_t chain_room; /* links */
    uint8_t *exact;     /* sink and window of every store */
    int32_t learned;    /* rows that have entered the estimates, at most KVFI_EPOCH_LAST */
    int32_t query_copy; /* which copy of the query sums is the committed one */
    int32_t n_sets;
    uint32_t sets[KVFI_EPOCHS]; /* table sets, in the pool `tables` */
    int32_t mass_used;          /* a choice was made with the masses of the newest queries: the next ones begin anew */
    int32_t policy_end;         /* the policy has dropped rows knowing of those before this position; 0: none yet */
    int32_t *left_to;           /* [n_stores] last position that was freed because it left that store's window; -1: none */
    int32_t *evicted;           /* [n_stores] rows that each head has lost to the policy */
    int32_t *first_block;       /* [n_stores] blocks before it have left that store's window and are freed */
    int32_t *n_links;           /* [n_stores] links of its chain */
    uint64_t *open_dead;        /* bit i of the open rows: removed; window_rows / 64 words */
} kvfi_sequence;

/* Rows of the open batch that belong to one sequence: order[first .. first + count). */
typedef struct kvfi_run {
    int32_t seq, first, count;
    int32_t seals; /* blocks that the commit will seal */
} kvfi_run;

typedef struct kvfi_staged {
    kvf_view k, v;
    const int32_t *cells;
    int32_t done;
} kvfi_staged;

typedef struct kvfi_batch {
    int32_t n; /* 0: none open */
    int32_t n_runs;
    kvf_token *tokens;   /* [max_batch] */
    int32_t *order;      /* [max_batch] rows grouped by sequence */
    kvfi_run *runs;      /* [max_sequences] */
    uint8_t *queried;    /* [n_layers] its queries have entered the pending sums */
    kvfi_staged *staged; /* [n_stores] */
    int32_t *scored; /* [n_stores] commit: of the run that is stored, the link that has the scores of its first sealed block */
    int32_t spoilt;  /* masses of its queries are not finite: it can only be aborted */
    int64_t saturated;
} kvfi_batch;

/* Vectors first .. first + count of one (sequence, KV head): vector v is query head v % group of row v / group of the run. */
typedef struct kvfi_item {
    int32_t run, head, first, count;
} kvfi_item;

typedef struct kvfi_attend {
    int32_t open;
    kvf_attention request;
    int32_t n_items, spans, parts;
    int32_t walks;           /* parts that walk: items x spans. The others sum up masses, and need the results of all walks: */
    int32_t mass_spans;      /* shares of each head's chain, a part each; 0: there are none */
    int32_t adds_mass;       /* 1: masses are asked for */
    kvfi_item *items;        /* [max_items] */
    uint8_t *partials;       /* [max_parts] */
    atomic_int walked, done; /* parts */
    atomic_flag *part_taken; /* [max_items or max_parts] each part is done once, however often it is asked for */
    atomic_flag *slot_busy;  /* [threads] */
    uint8_t *slots;          /* [threads] */
    uint8_t *coded;          /* seal_each */
    float *norms;            /* [max_items][2][KVFI_VECTORS] largest score and sum of each vector, where masses are kept */
    atomic_int bad_mass;
    int32_t by_row; /* the request's rows are indexed by batch row, not by the host's cell */
} kvfi_attend;

struct kvf_cache {
    kvf_allocator a;
    kvfi_geometry g;
    char cpu[16];
    void (*log)(void *user, kvf_log_level level, const char *text);
    void *log_user;
    uint8_t *fixed;           /* one region: the arrays below, in the order of kvfi_fixed_bytes */
    kvfi_pool tables;         /* table sets: estimates of one epoch of one sequence, shared by its copies */
    kvfi_pool *pools;         /* [n_stores] */
    kvfi_sequence *sequences; /* [max_sequences] */
    kvfi_batch batch;
    kvfi_attend attend;
    int32_t reserved_sequences; /* 0: not reserved, grows */
    int32_t reserved_batch;
    int64_t reserved_tokens;
    int64_t saturated, saturated_scales;
    int64_t recoded; /* rows of one head that compaction coded again */
    char error[320];
};

/* Bytes of the fixed region and the object itself. */
size_t kvfi_fixed_bytes(const kvfi_geometry *g);

/* Checks what kvf_cache_create and kvf_bytes refuse alike and fills allocator and geometry. */
int kvfi_geometry_open(const kvf_params *p, kvf_allocator *a, kvfi_geometry *g);

/* Leaves a sentence and returns code. */
int kvfi_fail(kvf_cache *c, int code, const char *format, ...)
#ifdef __GNUC__
    __attribute__((format(printf, 3, 4)))
#endif
    ;

static inline uint8_t *kvfi_row(const kvf_cache *c, const kvfi_sequence *s, int32_t block)
{
    return s->table + (size_t)block * c->g.row_bytes;
}
static inline int32_t *kvfi_row_first(uint8_t *row)
{
    return (int32_t *)(void *)row;
}
static inline int32_t *kvfi_row_epoch(uint8_t *row)
{
    return (int32_t *)(void *)(row + 4);
}
static inline uint32_t *kvfi_row_ids(const kvf_cache *c, uint8_t *row)
{
    return (uint32_t *)(void *)(row + c->g.row_ids);
}
static inline uint64_t *kvfi_row_valid(const kvf_cache *c, uint8_t *row)
{
    return (uint64_t *)(void *)(row + c->g.row_valid);
}

/* Rows of a sequence up to the open ones, counted by blocks sealed: what decides about sealing and estimates. */
static inline int64_t kvfi_rows_sealed(const kvfi_sequence *s)
{
    return ((int64_t)s->gone + s->n_blocks) * KVF_BLOCK;
}

static inline int32_t kvfi_popcount(uint64_t x)
{
    x -= x >> 1 & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    return (int32_t)(((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u >> 56);
}

/* Bit i: row i of 64, of which the first has position `first`, lies in [p0, p1). */
static inline uint64_t kvfi_range_bits(int64_t first, int64_t p0, int64_t p1)
{
    int64_t lo = p0 - first, hi = p1 - first;
    lo = lo < 0 ? 0 : lo > KVF_BLOCK ? KVF_BLOCK : lo;
    hi = hi < 0 ? 0 : hi > KVF_BLOCK ? KVF_BLOCK : hi;
    if (lo >= hi) return 0;
    uint64_t below_hi = hi == KVF_BLOCK ? ~(uint64_t)0 : ((uint64_t)1 << hi) - 1;
    return below_hi & ~(((uint64_t)1 << lo) - 1);
}

/* Blocks beyond the tokens reserved, for each sequence: a deep cut leaves a block partly empty, and its rest counts as free. */
enum { KVFI_SPARE_BLOCKS = 8 };

/* Rows of full-attention layers that memory is held for, over all sequences: what kvf_reserve limits. */
int64_t kvfi_rows_in_use(const kvf_cache *c);

/* Makes room for a sequence's exact store, so many rows of its table and links of its chains: KVF_OK, KVF_E_NOMEM or KVF_E_FULL (sentence
 * left). */
int kvfi_sequence_room(kvf_cache *c, int32_t seq, int64_t rows, int64_t links);

/* Makes room for `seals` more blocks of every store and, where rows move between blocks, for a copy of all that `copied` holds (NULL:
 * none). The same results. */
int kvfi_pools_room(kvf_cache *c, int32_t seals, const kvfi_sequence *copied);

/* Stores the batch of every store and run (all checked before; cannot fail). */
void kvfi_seal_batch(kvf_cache *c);

/* The policy (evict.c): scores the rows of the j-th block that a run seals, x[64][dim] of one head; and, after a run was
 * stored, drops rows for each of the `seals` blocks that it sealed, in their order, and gives back blocks and table rows that hold
 * nothing any more, be it for the policy or because they left a window. Until a block is adopted, its scores lie in the place behind the
 * chain that it would have if nothing were dropped. */
void kvfi_score_rows(kvf_cache *c, const kvfi_sequence *s, int32_t store, int32_t j, int32_t head, const float *x);
void kvfi_evict_rows(kvf_cache *c, kvfi_sequence *s, int32_t seals);

/* Memory that nothing lies in any more (trim.c): after rows of the sequence's blocks were removed, all of it; after a commit, but for what
 * the next ones will use, so that decoding asks the system for nothing. */
void kvfi_trim_removed(kvf_cache *c, const kvfi_sequence *s);
void kvfi_trim_committed(kvf_cache *c);

/* Rows that the head of a store that has most holds of a sequence, exact ones included. */
int64_t kvfi_rows_kept(const kvf_cache *c, const kvfi_sequence *s, int32_t store);

/* After blocks were cut short or went away. */
void kvfi_count_wasted(const kvf_cache *c, kvfi_sequence *s);

/* What is said of keys (keys.c): x[64][dim] of one head of the first block that a store seals; and of the stores that are new to it. */
void kvfi_watch_keys(const kvf_cache *c, kvfi_store *st, const float *x);
void kvfi_say_risky(kvf_cache *c);
void kvfi_say_unturned(kvf_cache *c);
void kvfi_say_unknown_turns(const kvf_cache *c);

/* Estimates (learn.c). pend: before a batch of run r; queries: of the open attention; rows: at commit, before sealing. */
int kvfi_learn_room(kvf_cache *c);
void kvfi_learn_pend(kvf_cache *c, const kvfi_run *r);
void kvfi_learn_queries(kvf_cache *c);
void kvfi_learn_rows(kvf_cache *c, kvfi_sequence *s, const kvfi_run *r);
void kvfi_forget_sets(kvf_cache *c, kvfi_sequence *s);
/* What is left of the sequence has entered no estimate: those to come are as in a sequence that never was longer. */
void kvfi_learn_again(kvf_cache *c, kvfi_sequence *s);

static inline const uint8_t *kvfi_table(const kvf_cache *c, const kvfi_sequence *s, int32_t epoch, const kvfi_store *store)
{
    return (store->self ? kvfi_pool_data(&c->tables, s->sets[epoch]) : c->g.known) + store->table;
}
static inline int kvfi_table_turns(const uint8_t *table)
{
    return *(const int64_t *)(const void *)table != 0;
}
static inline double *kvfi_table_c0(const uint8_t *table, const kvfi_store *store, int32_t head)
{
    return (double *)(uintptr_t)(table + sizeof(int64_t) + (size_t)head * store->table_head);
}
static inline float *kvfi_table_scale(const uint8_t *table, const kvfi_store *store, int32_t head)
{
    return (float *)(void *)(kvfi_table_c0(table, store, head) + store->k.head_dim);
}

/* Centre of a segment of positions, centre[dim], and the channel scale of an epoch: what was subtracted from keys, and what they were
 * divided by. */
const float *kvfi_key_stages(const kvf_cache *c, const kvfi_sequence *s, const kvfi_store *st, int32_t epoch, int64_t segment,
                             int32_t head, float *centre);

/* Token t of a record of `part` that was unfolded to `tile`: transform and block mean undone, x[dim]; stages of the prompt are not. */
void kvfi_decoded_row(const kvf_cache *c, const kvf_part *part, const void *record, const float *tile, int32_t t, float *x);

/* seal_each: the rows of the open request become what coding makes of them (seal_each.c). */
void kvfi_code_request(kvf_cache *c);

/* The stages before the codec's own, on rows x[n][dim] of keys, and their way back. */
static inline void kvfi_stage_rows(float *x, int32_t n, int32_t dim, const float *centre, const float *scale)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t d = 0; d < dim; d++) x[i * dim + d] = (x[i * dim + d] - centre[d]) / scale[d];
}
static inline void kvfi_unstage_rows(float *x, int32_t n, int32_t dim, const float *centre, const float *scale)
{
    for (int32_t i = 0; i < n; i++)
        for (int32_t d = 0; d < dim; d++) x[i * dim + d] = x[i * dim + d] * scale[d] + centre[d];
}

/* Row i of the open rows (window, then batch) of one side of a store, as f16 into out[dim]. */
typedef struct kvfi_open_rows {
    const kvf_cache *c;
    const kvfi_sequence *s;
    const kvfi_run *run;
    const kvf_view *view;
    const int32_t *cells;
    const uint8_t *window; /* [kv_heads][window_rows][row_bytes] */
    size_t row_bytes;
    int32_t dim;
} kvfi_open_rows;
kvfi_open_rows kvfi_open_keys(const kvf_cache *c, const kvfi_sequence *s, const kvfi_run *r, int store);
void kvfi_read_open(const kvfi_open_rows *o, int32_t i, int32_t head, uint16_t *out);

/* One part of an attention; slot is scratch of one thread. */
void kvfi_walk(kvf_cache *c, const kvfi_item *item, int32_t span, uint8_t *slot, uint8_t *partial);

/* Is the item all of a decoded row's head, whose walk leaves weights for its masses? */
static inline int kvfi_gathers(const kvf_cache *c, const kvfi_item *item)
{
    return c->attend.adds_mass && c->batch.runs[item->run].count == 1 &&
           item->count == c->g.layers[c->attend.request.layer].group;
}

/* Adds what the vectors of an item attend to, after its walk, to the pending masses: of share `span` of the chain, with the last one of
 * open rows, too. Items of one head and span not at the same time. */
void kvfi_walk_mass(kvf_cache *c, int32_t item, int32_t span, int32_t spans, uint8_t *slot);

/* Merges `spans` partials of an item and writes the result. */
void kvfi_merge_spans(kvf_cache *c, const kvfi_item *item, const uint8_t *partials, int32_t spans);

/* Hash of all that a sequence holds: positions, validity, sink, blocks, window. Equal content, equal hash. */
uint64_t kvfi_cache_hash(const kvf_cache *c, int32_t seq);

#endif
