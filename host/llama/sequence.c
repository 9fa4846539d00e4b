/* SPDX-License-Identifier: MIT
 * Sequences of cache and host together. The host holds at most the rows of the last batch; a cut behind them leaves it empty,
 * and an empty sequence may go on at any position. */
#include "adapter.h"

static int ready(kvf_llama *h)
{
    if (!h) return KVF_E_ARG;
    h->error[0] = 0;
    return h->ctx ? KVF_OK : kvfi_host_fail(h, KVF_E_STATE, "the handle is not attached");
}

static int check_seq(kvf_llama *h, int32_t seq)
{
    if (seq >= 0 && seq < h->n_seq) return KVF_OK;
    return kvfi_host_fail(h, KVF_E_ARG, "sequence %d; allowed are 0 to %d", (int)seq, (int)h->n_seq - 1);
}

/* Recurrent state can be stepped back only as far as the host keeps snapshots. */
static int state_allows(kvf_llama *h, int32_t seq, int32_t pos)
{
    int32_t last = kvf_seq_pos_max(h->cache, seq);
    if (!h->hybrid || pos <= 0 || pos > last || last - pos < (int32_t)llama_n_rs_seq(h->ctx)) return 1;
    kvfi_host_fail(h, KVF_E_UNSUPPORTED,
                   "sequence %d: the recurrent state of this model cannot be stepped back from position %d to %d", (int)seq,
                   (int)last, (int)pos - 1);
    return 0;
}

int kvf_llama_can(kvf_llama *h, kvf_ability what, int32_t seq, int32_t pos)
{
    int rc = ready(h);
    if (!rc) rc = check_seq(h, seq);
    if (rc) return rc;
    rc = kvf_can(h->cache, what, seq, pos);
    if (rc <= 0) return kvfi_host_fail_cache(h, rc, "cache");
    return what == KVF_CAN_SHIFT ? rc : state_allows(h, seq, pos);
}

static int remove_all(kvf_llama *h, int32_t seq)
{
    int rc = kvf_seq_rm(h->cache, seq, 0, -1);
    if (rc) return kvfi_host_fail_cache(h, rc, "remove");
    if (!llama_memory_seq_rm(llama_get_memory(h->ctx), seq, 0, INT32_MAX))
        return kvfi_host_fail(h, KVF_E_HOST, "libllama did not remove sequence %d", (int)seq);
    h->held[seq] = 0, h->lost[seq] = 0;
    return KVF_OK;
}

/* From p0 to the end. The host goes first: it may refuse, the cache has been asked. */
static int remove_tail(kvf_llama *h, int32_t seq, int32_t p0)
{
    int32_t last = kvf_seq_pos_max(h->cache, seq);
    if (p0 > last) return KVF_OK;
    if (kvf_can(h->cache, KVF_CAN_RM, seq, p0) != 1) return kvfi_host_fail_cache(h, KVF_E_UNSUPPORTED, "remove");
    if (!state_allows(h, seq, p0)) return KVF_E_UNSUPPORTED;
    if (!llama_memory_seq_rm(llama_get_memory(h->ctx), seq, p0, INT32_MAX))
        return kvfi_host_fail(h, KVF_E_UNSUPPORTED, "libllama cannot step sequence %d back to position %d", (int)seq,
                              (int)p0 - 1);
    int rc = kvf_seq_rm(h->cache, seq, p0, -1);
    if (rc) return kvfi_host_fail_cache(h, rc, "remove");
    h->held[seq] -= last - p0 + 1;
    if (h->held[seq] < 0) h->held[seq] = 0;
    return KVF_OK;
}

static int remove_middle(kvf_llama *h, int32_t seq, int32_t p0, int32_t p1)
{
    int rc = kvf_seq_rm(h->cache, seq, p0, p1);
    if (rc) return kvfi_host_fail_cache(h, rc, "remove");
    if (!llama_memory_seq_rm(llama_get_memory(h->ctx), seq, p0, p1))
        return kvfi_host_fail(h, KVF_E_HOST, "libllama did not remove positions %d to %d of sequence %d", (int)p0, (int)p1 - 1,
                              (int)seq);
    return KVF_OK;
}

int kvf_llama_seq_rm(kvf_llama *h, int32_t seq, int32_t p0, int32_t p1)
{
    int rc = ready(h);
    if (!rc) rc = check_seq(h, seq);
    if (rc) return rc;
    if (p0 < 0) p0 = 0;
    if (p1 >= 0 && p1 <= p0) return KVF_OK;
    int to_end = p1 < 0 || p1 > kvf_seq_pos_max(h->cache, seq);
    if (to_end) return p0 == 0 ? remove_all(h, seq) : remove_tail(h, seq, p0);
    return remove_middle(h, seq, p0, p1);
}

int kvf_llama_seq_cp(kvf_llama *h, int32_t src, int32_t dst)
{
    int rc = ready(h);
    if (!rc) rc = check_seq(h, src);
    if (!rc) rc = check_seq(h, dst);
    if (rc) return rc;
    if (h->lost[src] || h->lost[dst])
        return kvfi_host_fail(h, KVF_E_STATE, "sequence %d is lost; remove it first", (int)(h->lost[src] ? src : dst));
    rc = kvf_seq_cp(h->cache, src, dst);
    if (rc == KVF_E_FULL) { /* a policy's copies count in full, though they may share all they have for as long as they live */
        rc = kvf_reserve(h->cache, h->reserved + h->n_ctx, h->n_seq, h->n_batch);
        if (!rc) h->reserved += h->n_ctx, rc = kvf_seq_cp(h->cache, src, dst);
    }
    if (rc) return kvfi_host_fail_cache(h, rc, "copy");
    if (src != dst) llama_memory_seq_cp(llama_get_memory(h->ctx), src, dst, 0, INT32_MAX);
    h->held[dst] = h->held[src];
    return KVF_OK;
}

int kvf_llama_seq_keep(kvf_llama *h, int32_t seq)
{
    int rc = ready(h);
    if (!rc) rc = check_seq(h, seq);
    if (rc) return rc;
    rc = kvf_seq_keep(h->cache, seq);
    if (rc) return kvfi_host_fail_cache(h, rc, "keep");
    llama_memory_seq_keep(llama_get_memory(h->ctx), seq);
    for (int32_t s = 0; s < h->n_seq; s++)
        if (s != seq) h->held[s] = 0, h->lost[s] = 0;
    return KVF_OK;
}

int32_t kvf_llama_pos_max(const kvf_llama *h, int32_t seq)
{
    return h && h->cache && seq >= 0 && seq < h->n_seq ? kvf_seq_pos_max(h->cache, seq) : -1;
}
