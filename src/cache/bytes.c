/* SPDX-License-Identifier: MIT
 * Sizes before there is a cache: which blocks are kept of a sequence of n rows, what that takes, and the budget that fits so many bytes. */
#include "cache/cache.h"
#include "base/text.h"

int64_t kvfi_budget_at(const kvfi_geometry *g, const kvfi_store *s, int64_t start, int64_t first, int torn)
{
    return kvfi_evict_rows_kept(&g->evict, torn ? s->torn_budget : s->budget, g->evict.share,
                                first + KVF_BLOCK + g->recent - start);
}

/* Policy without scores: the protected first rows, and the newest. */
static kvfi_kept newest_blocks(const kvfi_geometry *g, const kvfi_store *s, int64_t sealed)
{
    const int64_t rows = sealed * KVF_BLOCK, coded_sink = g->evict.sink - g->sink;
    int64_t newest = kvfi_budget_at(g, s, 0, rows - KVF_BLOCK, 0) - g->recent - g->sink - coded_sink;
    if (newest > rows - g->evict.sink) newest = rows - g->evict.sink;
    if (newest < 0) newest = 0;
    int64_t head = coded_sink ? (g->evict.sink + KVF_BLOCK - 1) / KVF_BLOCK : 0;
    if (head > sealed) head = sealed;
    int64_t tail = newest ? (rows - newest) / KVF_BLOCK : sealed;
    return (kvfi_kept){head, tail < head ? head : tail};
}

kvfi_kept kvfi_kept_blocks(const kvfi_geometry *g, const kvfi_store *s, int64_t sealed, int64_t next, int torn)
{
    if (kvfi_in_chain(s, torn)) return (kvfi_kept){0, sealed};
    if (s->evicts && sealed) return newest_blocks(g, s, sealed);
    if (!s->window) return (kvfi_kept){0, 0};
    /* Block b is freed when 64 b + 63 <= next - keep - window. */
    int64_t reach = next - g->keep - s->window - (KVF_BLOCK - 1);
    int64_t freed = reach < 0 ? 0 : reach / KVF_BLOCK + 1;
    return (kvfi_kept){0, freed < sealed ? freed : sealed};
}

/* Epochs that `sealed` blocks of a sequence were coded with. */
static int64_t epochs_of(const kvfi_geometry *g, const kvfi_store *s, int64_t sealed)
{
    return s->self ? kvfi_epoch_of(sealed * KVF_BLOCK + g->recent) - kvfi_epoch_of(KVF_BLOCK + g->recent) + 1 : 1;
}

/* n rows in bins, of which all but one an epoch hold 64, or at least 32: pack.c. */
int64_t kvfi_chain_blocks(const kvfi_geometry *g, const kvfi_store *s, int64_t sealed, int torn)
{
    if (!sealed) return 0;
    const int64_t coded = sealed * KVF_BLOCK - g->sink, epochs = epochs_of(g, s, sealed);
    int64_t rows =
        s->evicts ? kvfi_budget_at(g, s, 0, (sealed - 1) * KVF_BLOCK, torn) - g->recent - g->sink : (int64_t)s->window + g->keep;
    if (rows > coded) rows = coded;
    if (rows < 0) rows = 0;
    const int64_t blocks = s->moves ? (rows + epochs * (KVF_BLOCK - 1)) / KVF_BLOCK : rows / (KVF_BLOCK / 2) + epochs;
    return blocks < sealed ? blocks : sealed;
}

/* Rows of the block table: without a policy every sealed block has one, else those of which a layer keeps something. */
static int64_t table_rows(const kvfi_geometry *g, int64_t sealed, int64_t rows, int torn)
{
    int64_t head = 0, tail = sealed;
    if (!kvfi_evicts(&g->evict)) return sealed;
    for (int i = 0; i < g->n_stores; i++) {
        const kvfi_kept k = kvfi_kept_blocks(g, &g->stores[i], sealed, rows, torn);
        if (k.head > head) head = k.head;
        if (k.tail < tail) tail = k.tail;
    }
    return tail < head ? sealed : head + sealed - tail;
}

static int64_t store_bytes(const kvfi_geometry *g, const kvfi_store *s, int64_t sealed, int64_t rows, int torn)
{
    const kvfi_kept k = kvfi_kept_blocks(g, s, sealed, rows, torn);
    const int64_t block = (int64_t)(s->block_bytes + KVFI_BLOCK_META);
    return (k.head + sealed - k.tail) * block +
           (kvfi_in_chain(s, torn) ? kvfi_chain_blocks(g, s, sealed, torn) * (block + (int64_t)s->link_bytes) : 0);
}

static int64_t longest_chain(const kvfi_geometry *g, int64_t sealed, int torn)
{
    int64_t most = 0;
    for (int i = 0; i < g->n_stores; i++) {
        const int64_t blocks = kvfi_in_chain(&g->stores[i], torn) ? kvfi_chain_blocks(g, &g->stores[i], sealed, torn) : 0;
        if (blocks > most) most = blocks;
    }
    return most;
}

static int64_t bytes_of(const kvfi_geometry *g, int64_t rows, int torn)
{
    int64_t sealed = kvfi_sealed(g, rows, rows), sum = (int64_t)g->fixed_bytes;
    if (!rows) return sum;
    sum += (int64_t)g->sequence_bytes + table_rows(g, sealed, rows, torn) * (int64_t)g->row_bytes;
    if (g->beside_bytes) sum += longest_chain(g, sealed, torn) * (int64_t)g->beside_bytes;
    if (g->table_bytes)
        for (int e = 0; e < KVFI_EPOCHS && KVFI_EPOCH_FIRST << e <= rows; e++) sum += (int64_t)g->table_bytes + KVFI_BLOCK_META;
    for (int i = 0; i < g->n_stores; i++) sum += store_bytes(g, &g->stores[i], sealed, rows, torn);
    return sum;
}

int64_t kvf_bytes(const kvf_params *p, int64_t n_tokens)
{
    kvf_allocator a;
    kvfi_geometry g;
    int rc = kvfi_geometry_open(p, &a, &g);
    if (rc) return rc;
    const int allowed = n_tokens >= 0 && n_tokens <= KVFI_TOKENS_MOST;
    if (!allowed) kvfi_sentence(p->error, p->error_size, "bytes: %lld tokens; allowed are 0 to 2^36", (long long)n_tokens);
    int64_t bytes = allowed ? bytes_of(&g, n_tokens, 0) : KVF_E_ARG;
    kvfi_geometry_free(&g, &a);
    return bytes;
}

/* ---- budgets in bytes ------------------------------------------------------------------------------------------------------------ */

/* The most that the cache takes, with so many tokens for the layers that have no budget of their own: when all its sequences are as long
 * as positions allow, at some length of 64, as blocks leave their windows between two that are sealed, and share nothing. */
static int64_t bytes_at(kvfi_geometry *g, int32_t tokens, int torn)
{
    int64_t most = 0;
    for (int i = 0; i < g->n_stores; i++)
        if (g->stores[i].evicts && !g->stores[i].own_budget) *(torn ? &g->stores[i].torn_budget : &g->stores[i].budget) = tokens;
    for (int32_t i = 0; i < KVF_BLOCK; i++) {
        const int64_t bytes = bytes_of(g, INT32_MAX - i, torn);
        if (bytes > most) most = bytes;
    }
    const int64_t fixed = (int64_t)g->fixed_bytes;
    return fixed + g->max_sequences * (most - fixed);
}

/* The most tokens, from `low` on, that fit. */
static void fit(kvfi_geometry *g, int32_t low, int torn)
{
    int32_t high = INT32_MAX;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2 + 1;
        if (bytes_at(g, middle, torn) <= g->evict.bytes)
            low = middle;
        else
            high = middle - 1;
    }
    bytes_at(g, low, torn);
}

int kvfi_fit_budget(kvfi_geometry *g, char *error, size_t error_size)
{
    const int32_t least = g->evict.sink + g->evict.recent;
    if (!g->evict.bytes) return KVF_OK;
    for (int i = 0; i < g->n_stores; i++)
        if (!g->stores[i].window && !g->stores[i].evicts) {
            kvfi_sentence(error, error_size,
                          "layer %d keeps everything and grows without end: a budget in bytes cannot hold then",
                          (int)g->stores[i].layer);
            return KVF_E_UNSUPPORTED;
        }
    for (int torn = 0; torn < 2; torn++) {
        const int64_t bytes = bytes_at(g, least, torn);
        if (bytes > g->evict.bytes) {
            kvfi_sentence(error, error_size,
                          "policy '%s': a budget of %lld bytes is too small: the %d tokens that are protected may take %lld with "
                          "all else%s%s",
                          g->evict.policy->name, (long long)g->evict.bytes, (int)least, (long long)bytes,
                          g->max_sequences > 1 ? ", in every sequence" : "", torn ? ", once rows were removed" : "");
            return KVF_E_SPEC;
        }
        fit(g, least, torn);
    }
    return KVF_OK;
}
