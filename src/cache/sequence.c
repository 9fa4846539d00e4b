/* SPDX-License-Identifier: MIT
 * Sequences: remove, copy, keep. Positions are looked up, never derived from the number of rows kept. */
#include "cache/mass.h"

#include <string.h>

static kvfi_sequence *find(kvf_cache *c, int32_t seq)
{
    if (seq >= 0 && seq < c->g.max_sequences) return &c->sequences[seq];
    kvfi_fail(c, KVF_E_ARG, "sequence %d; allowed are 0 to %d", (int)seq, (int)c->g.max_sequences - 1);
    return NULL;
}

static int no_batch(kvf_cache *c, const char *what)
{
    return c->batch.n ? kvfi_fail(c, KVF_E_STATE, "%s: a batch is open; commit or abort it first", what) : KVF_OK;
}

int32_t kvf_seq_pos_max(const kvf_cache *c, int32_t seq)
{
    if (!c || seq < 0 || seq >= c->g.max_sequences || !c->sequences[seq].used) return -1;
    return c->sequences[seq].next - 1;
}

/* ---- what may be removed ---------------------------------------------------------------------------------------------------- */

/* Rows of the sink that a cut at p0 leaves, when it leaves nothing coded: then the clean state can be rebuilt from them. */
static int cut_in_sink(const kvf_cache *c, const kvfi_sequence *s, int32_t p0)
{
    uint64_t all = c->g.sink == KVF_BLOCK ? ~(uint64_t)0 : ((uint64_t)1 << c->g.sink) - 1;
    return s->has_sink && s->sink_alive == all && (int64_t)p0 - s->start <= c->g.sink;
}

/* Would a cut at p0 leave only rows that are coded nowhere and in no estimate? */
static int forgets(const kvf_cache *c, const kvfi_sequence *s, int32_t p0)
{
    const int uncoded = !s->has_sink && !kvfi_rows_sealed(s);
    return (int64_t)p0 - s->start <= KVFI_SKIP && (uncoded || cut_in_sink(c, s, p0));
}

/* Windowed layers: after a cut at p0 the next query sees positions above p0 - window; blocks freed must lie before that. */
static int check_windows(kvf_cache *c, const kvfi_sequence *s, int32_t seq, int32_t p0)
{
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        const int64_t gone = s->left_to[i];
        if (!st->window || gone < 0) continue;
        if (gone > (int64_t)p0 - st->window)
            return kvfi_fail(
                c, KVF_E_UNSUPPORTED,
                "sequence %d cannot be cut at position %d: layer %d has a window of %d and has freed rows up to position "
                "%lld (window_keep is %d)",
                (int)seq, (int)p0, (int)st->layer, (int)st->window, (long long)gone, (int)c->g.keep);
    }
    return KVF_OK;
}

/* How many rows precede a position of the window, or a coded one counted by its block. */
static int64_t row_index(const kvfi_sequence *s, int32_t pos)
{
    return kvfi_rows_sealed(s) + pos - s->open_pos;
}

int kvf_can(kvf_cache *c, kvf_ability what, int32_t seq, int32_t pos)
{
    if (!c) return KVF_E_ARG;
    c->error[0] = 0;
    const kvfi_sequence *s = find(c, seq);
    if (!s) return KVF_E_ARG;
    if (what == KVF_CAN_SHIFT) {
        kvfi_fail(c, KVF_E_UNSUPPORTED, "positions cannot be shifted: coded keys hold their rotation");
        return 0;
    }
    if (what != KVF_CAN_RM && what != KVF_CAN_RM_EXACT)
        return kvfi_fail(c, KVF_E_ARG, "ability %d; allowed are KVF_CAN_RM, KVF_CAN_RM_EXACT, KVF_CAN_SHIFT", (int)what);
    if (!s->used || pos >= s->next || pos <= s->start) return 1;
    if (check_windows(c, s, seq, pos)) return 0;
    if (what == KVF_CAN_RM_EXACT && c->g.table_bytes && row_index(s, pos) < s->learned && !forgets(c, s, pos)) {
        kvfi_fail(c, KVF_E_UNSUPPORTED, "sequence %d: rows from position %d on have entered the estimates of the first %d rows",
                  (int)seq, (int)pos, KVFI_EPOCH_LAST);
        return 0;
    }
    if (what == KVF_CAN_RM_EXACT && kvfi_evicts(&c->g.evict) && c->g.evict.policy->mass) {
        kvfi_fail(c, KVF_E_UNSUPPORTED, "sequence %d: what queries attended to stays in the ranks of policy %s when they are cut",
                  (int)seq, c->g.evict.policy->name);
        return 0;
    }
    if (what == KVF_CAN_RM || cut_in_sink(c, s, pos)) return 1;
    if (pos < s->policy_end) {
        kvfi_fail(c, KVF_E_UNSUPPORTED,
                  "sequence %d: the policy has dropped rows knowing of those up to position %d; a cut at %d does not "
                  "bring them back",
                  (int)seq, (int)s->policy_end - 1, (int)pos);
        return 0;
    }
    if (pos >= s->open_pos) return 1;
    kvfi_fail(c, KVF_E_UNSUPPORTED, "sequence %d: rows from position %d to %d are coded; a cut there keeps them so", (int)seq,
              (int)pos, (int)s->open_pos - 1);
    return 0;
}

/* ---- removal ----------------------------------------------------------------------------------------------------------------- */

static void drop_row_blocks(kvf_cache *c, uint8_t *row)
{
    for (int i = 0; i < c->g.n_stores; i++) {
        uint32_t *id = &kvfi_row_ids(c, row)[i];
        if (*id != KVFI_NO_BLOCK) kvfi_pool_drop(&c->pools[i], *id);
        *id = KVFI_NO_BLOCK;
    }
}

static void clear_open(kvf_cache *c, kvfi_sequence *s, int32_t pos)
{
    s->open = 0, s->open_slot = 0, s->open_pos = pos;
    memset(s->open_dead, 0, (size_t)c->g.window_rows / 8);
}

static void drop_blocks_from(kvf_cache *c, kvfi_sequence *s, int32_t block)
{
    for (int32_t b = block; b < s->n_blocks; b++) drop_row_blocks(c, kvfi_row(c, s, b));
    if (s->n_blocks > block) s->n_blocks = block;
    for (int i = 0; i < c->g.n_stores; i++)
        if (s->first_block[i] > s->n_blocks) s->first_block[i] = s->n_blocks;
}

/* A sequence of which nothing is coded: no policy has worked on it, no window has moved over it. */
static void drop_all_blocks(kvf_cache *c, kvfi_sequence *s)
{
    drop_blocks_from(c, s, 0);
    kvfi_chain_clear(c, s);
    s->gone = s->policy_end = s->mass_used = s->torn = 0;
    for (int i = 0; i < c->g.n_stores; i++) s->left_to[i] = -1, s->evicted[i] = 0;
}

static void clear_sequence(kvf_cache *c, kvfi_sequence *s)
{
    drop_all_blocks(c, s);
    clear_open(c, s, 0);
    s->used = s->has_sink = s->wasted = 0, s->sink_alive = 0;
    kvfi_forget_sets(c, s);
    s->start = s->next = 0;
    if (!c->reserved_sequences) {
        kvfi_release(&c->a, s->exact, c->g.sequence_bytes);
        kvfi_release(&c->a, s->table, (size_t)s->table_rows * c->g.row_bytes);
        kvfi_release(&c->a, s->chains, (size_t)s->chain_room * c->g.chain_bytes);
        s->exact = s->table = s->chains = NULL, s->table_rows = s->chain_room = 0;
    } else {
        kvfi_trim(&c->a, s->exact, c->g.sequence_bytes);
    }
    kvfi_trim_removed(c, s);
}

/* Marks the rows of a block dead; a block without a living row is free. */
static void kill_in_block(kvf_cache *c, kvfi_sequence *s, uint8_t *row, int64_t p0, int64_t p1)
{
    uint64_t dead = kvfi_range_bits(*kvfi_row_first(row), p0, p1);
    if (!dead) return;
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        uint64_t any = 0, hit = 0, *valid = kvfi_row_valid(c, row) + st->first_head;
        for (int32_t h = 0; h < st->kv_heads; h++) hit |= valid[h] & dead, any |= valid[h] &= ~dead;
        uint32_t *id = &kvfi_row_ids(c, row)[i];
        if (*id == KVFI_NO_BLOCK) continue;
        if (any && hit && st->packs) s->torn = 1;
        if (any) continue;
        kvfi_pool_drop(&c->pools[i], *id);
        *id = KVFI_NO_BLOCK;
    }
}

static void kill_range(kvf_cache *c, kvfi_sequence *s, int64_t p0, int64_t p1)
{
    for (int32_t b = 0; b < s->n_blocks; b++) kill_in_block(c, s, kvfi_row(c, s, b), p0, p1);
    kvfi_chain_kill(c, s, p0, p1);
    if (s->has_sink) s->sink_alive &= ~kvfi_range_bits(s->start, p0, p1);
    for (int32_t w = 0; w < c->g.window_rows / KVF_BLOCK; w++) {
        int64_t first = (int64_t)s->open_pos + w * KVF_BLOCK, end = (int64_t)s->open_pos + s->open;
        s->open_dead[w] |= kvfi_range_bits(first, p0, p1 < end ? p1 : end);
    }
}

/* All rows that stay are in the sink: they become the window again, as in a sequence that never was longer. */
static void reopen_from_sink(kvf_cache *c, kvfi_sequence *s, int32_t rows)
{
    drop_all_blocks(c, s);
    clear_open(c, s, s->start);
    for (int i = 0; i < c->g.n_stores; i++) {
        const kvfi_store *st = &c->g.stores[i];
        for (int32_t h = 0; h < st->kv_heads; h++) {
            size_t window = (size_t)h * (size_t)c->g.window_rows, sink = (size_t)h * (size_t)c->g.sink;
            memcpy(s->exact + st->window_k + window * st->k_row, s->exact + st->sink_k + sink * st->k_row,
                   (size_t)rows * st->k_row);
            memcpy(s->exact + st->window_v + window * st->v_row, s->exact + st->sink_v + sink * st->v_row,
                   (size_t)rows * st->v_row);
        }
    }
    if (c->g.evict.policy->mass) kvfi_mass_forget(c, s);
    s->open = rows, s->has_sink = 0, s->sink_alive = 0;
}

static void cut_open(kvf_cache *c, kvfi_sequence *s, int32_t rows)
{
    s->open = rows;
    for (int32_t w = 0; w < c->g.window_rows / KVF_BLOCK; w++)
        s->open_dead[w] &= kvfi_range_bits((int64_t)w * KVF_BLOCK, 0, rows);
}

/* Room in blocks behind the positions where later blocks, or the window, take over. Between two blocks others may be gone. */
void kvfi_count_wasted(const kvf_cache *c, kvfi_sequence *s)
{
    s->wasted = 0;
    for (int32_t b = 0; b < s->n_blocks; b++) {
        int32_t following = b + 1 < s->n_blocks ? *kvfi_row_first(kvfi_row(c, s, b + 1)) : s->open_pos;
        int32_t end = *kvfi_row_first(kvfi_row(c, s, b)) + KVF_BLOCK;
        s->wasted += end > following ? end - following : 0;
    }
}

/* Of the rows that the policy has dropped, those behind a cut are nobody's loss: no more than are missing before it. */
static void bound_evicted(const kvf_cache *c, kvfi_sequence *s, int32_t p0)
{
    for (int i = 0; i < c->g.n_stores; i++) {
        const int64_t missing = (int64_t)p0 - s->start - kvfi_rows_kept(c, s, i);
        if (s->evicted[i] > missing) s->evicted[i] = (int32_t)missing;
    }
}

/* Removes everything from p0 on; start < p0 < next. */
static void cut(kvf_cache *c, kvfi_sequence *s, int32_t p0)
{
    const int forget = forgets(c, s, p0);
    if (p0 >= s->open_pos) {
        cut_open(c, s, p0 - s->open_pos);
    } else if (cut_in_sink(c, s, p0)) {
        reopen_from_sink(c, s, p0 - s->start);
    } else {
        int32_t keep = s->n_blocks;
        kill_range(c, s, p0, (int64_t)s->next);
        while (keep > 0 && *kvfi_row_first(kvfi_row(c, s, keep - 1)) >= p0) keep--;
        drop_blocks_from(c, s, keep);
        clear_open(c, s, p0);
    }
    if (forget) kvfi_learn_again(c, s);
    kvfi_count_wasted(c, s);
    s->next = p0;
    if (s->policy_end > p0) bound_evicted(c, s, p0);
    if (s->policy_end > p0) s->policy_end = p0; /* what was dropped knowing of later rows is gone, but so are these */
}

int kvf_seq_rm(kvf_cache *c, int32_t seq, int32_t p0, int32_t p1)
{
    if (!c) return KVF_E_ARG;
    c->error[0] = 0;
    kvfi_sequence *s = find(c, seq);
    int rc = s ? no_batch(c, "rm") : KVF_E_ARG;
    if (rc) return rc;
    if (!s->used || (p1 >= 0 && p1 <= p0) || p0 >= s->next) return KVF_OK;
    int to_end = p1 < 0 || p1 >= s->next;
    if (to_end && p0 <= s->start) {
        clear_sequence(c, s);
        return KVF_OK;
    }
    const int coded = p0 < s->open_pos;
    if (to_end) rc = check_windows(c, s, seq, p0);
    if (rc) return rc;
    if (to_end)
        cut(c, s, p0);
    else
        kill_range(c, s, p0, p1);
    if (coded) kvfi_trim_removed(c, s);
    return KVF_OK;
}

int kvf_seq_keep(kvf_cache *c, int32_t seq)
{
    if (!c) return KVF_E_ARG;
    c->error[0] = 0;
    if (!find(c, seq)) return KVF_E_ARG;
    int rc = no_batch(c, "keep");
    for (int32_t i = 0; i < c->g.max_sequences && !rc; i++)
        if (i != seq && c->sequences[i].used) clear_sequence(c, &c->sequences[i]);
    return rc;
}

/* ---- copy -------------------------------------------------------------------------------------------------------------------- */

static int check_copy(kvf_cache *c, int32_t src, int32_t dst)
{
    const kvfi_sequence *from = find(c, src), *to = find(c, dst);
    if (!from || !to) return KVF_E_ARG;
    int rc = no_batch(c, "cp");
    if (rc) return rc;
    if (src == dst || to->used)
        return kvfi_fail(c, KVF_E_ARG, "cp: sequence %d must be empty and differ from %d", (int)dst, (int)src);
    if (c->reserved_sequences && kvfi_rows_in_use(c) + from->open > c->reserved_tokens)
        return kvfi_fail(c, KVF_E_FULL, "cp: the %d exact rows of sequence %d do not fit in the %lld tokens that were reserved",
                         (int)from->open, (int)src, (long long)c->reserved_tokens);
    if (!from->used) return KVF_OK;
    rc = kvfi_pools_room(c, 0, from);
    return rc ? rc : kvfi_sequence_room(c, dst, from->n_blocks, kvfi_chain_to_come(c, from));
}

int kvf_seq_cp(kvf_cache *c, int32_t src, int32_t dst)
{
    if (!c) return KVF_E_ARG;
    c->error[0] = 0;
    int rc = check_copy(c, src, dst);
    if (rc || !c->sequences[src].used) return rc;
    kvfi_sequence *to = &c->sequences[dst], *from = &c->sequences[src];
    kvfi_sequence own = *to; /* its memory */
    *to = *from;
    to->table = own.table, to->table_rows = own.table_rows, to->exact = own.exact;
    to->chains = own.chains, to->chain_room = own.chain_room, to->n_links = own.n_links;
    to->open_dead = own.open_dead, to->first_block = own.first_block, to->left_to = own.left_to, to->evicted = own.evicted;
    kvfi_chain_copy(c, to, from);
    memcpy(to->open_dead, from->open_dead, (size_t)c->g.window_rows / 8);
    memcpy(to->first_block, from->first_block, (size_t)c->g.n_stores * sizeof *to->first_block);
    memcpy(to->left_to, from->left_to, (size_t)c->g.n_stores * sizeof *to->left_to);
    memcpy(to->evicted, from->evicted, (size_t)c->g.n_stores * sizeof *to->evicted);
    if (from->n_blocks) memcpy(to->table, from->table, (size_t)from->n_blocks * c->g.row_bytes);
    memcpy(to->exact, from->exact, c->g.sequence_bytes);
    for (int32_t e = 0; e < to->n_sets; e++) kvfi_pool_share(&c->tables, to->sets[e]);
    for (int32_t b = 0; b < to->n_blocks; b++)
        for (int i = 0; i < c->g.n_stores; i++) {
            uint32_t id = kvfi_row_ids(c, kvfi_row(c, to, b))[i];
            if (id != KVFI_NO_BLOCK) kvfi_pool_share(&c->pools[i], id);
        }
    return KVF_OK;
}
