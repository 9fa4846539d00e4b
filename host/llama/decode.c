/* SPDX-License-Identifier: MIT
 * llama_decode on the folded cache. For each part of a batch: the host's cache is trimmed to the last row of every sequence,
 * the graph runs with our attention, and only after its success are the rows that the host stored taken over. */
#include "adapter.h"

#include <stdio.h>

/* Keeps the last row of each sequence: libllama checks positions by it and hangs recurrent state on it. */
static int trim_host(kvf_llama *h)
{
    llama_memory_t memory = llama_get_memory(h->ctx);
    for (int32_t s = 0; s < h->n_seq; s++) {
        llama_pos last = llama_memory_seq_pos_max(memory, s);
        if (last >= 0 && last != kvf_seq_pos_max(h->cache, s))
            return kvfi_host_fail(h, KVF_E_STATE,
                                  "sequence %d: libllama is at position %d and the folded cache at %d; the context was used "
                                  "without this handle",
                                  (int)s, (int)last, (int)kvf_seq_pos_max(h->cache, s));
        if (last > 0 && !llama_memory_seq_rm(memory, s, 0, last))
            return kvfi_host_fail(h, KVF_E_HOST, "libllama did not remove the rows of sequence %d before position %d", (int)s,
                                  (int)last);
    }
    return KVF_OK;
}

/* Takes the open batch out of the host again. Recurrent state is put back first: the host refuses to cut behind it. */
static void remove_from_host(kvf_llama *h, int32_t rows)
{
    llama_memory_t memory = llama_get_memory(h->ctx);
    for (int32_t i = 0; i < rows; i++) {
        int32_t seq = h->tokens[i].seq, seen = 0;
        for (int32_t j = 0; j < i && !seen; j++) seen = h->tokens[j].seq == seq;
        if (seen) continue;
        if (h->hybrid && kvfi_host_restore_state(h, seq)) h->lost[seq] = 1;
        if (!llama_memory_seq_rm(memory, seq, h->tokens[i].pos, INT32_MAX)) h->lost[seq] = 1;
        if (!h->lost[seq]) continue;
        llama_memory_seq_rm(memory, seq, 0, INT32_MAX);
        kvfi_host_log(h, KVF_LOG_WARN, "sequence %d is lost: a decode failed and libllama could not be stepped back", (int)seq);
    }
}

static int begin(kvf_llama *h, int32_t rows)
{
    int rc = kvf_batch_begin(h->cache, h->tokens, rows);
    if (rc == KVF_E_FULL) {
        h->reserved += h->n_batch; /* cuts have left blocks half empty; the context itself is not full */
        rc = kvf_reserve(h->cache, h->reserved, h->n_seq, h->n_batch);
        if (!rc) rc = kvf_batch_begin(h->cache, h->tokens, rows);
    }
    return rc ? kvfi_host_fail_cache(h, rc, "batch") : KVF_OK;
}

static int take_rows(kvf_llama *h)
{
    for (int32_t i = 0; i < h->n_attn; i++) {
        kvfi_host_layer *l = &h->attn[i];
        if (l->share >= 0) continue;
        int rc = kvf_batch_append(h->cache, i, &l->k_rows, l->v_in_k ? NULL : &l->v_rows, l->cells);
        if (!rc) continue;
        char where[48];
        snprintf(where, sizeof where, "layer %d of the model", (int)l->il);
        return kvfi_host_fail_cache(h, rc, where);
    }
    int rc = kvf_batch_commit(h->cache);
    return rc ? kvfi_host_fail_cache(h, rc, "commit") : KVF_OK;
}

static int decode_part(kvf_llama *h, struct llama_batch part)
{
    int rc = trim_host(h);
    if (!rc && h->hybrid) rc = kvfi_host_save_state(h, h->tokens[0].seq);
    if (!rc) rc = begin(h, part.n_tokens);
    if (rc) return rc;
    rc = kvfi_host_graph(h, KVFI_HOST_DECODE, part);
    if (!rc) rc = take_rows(h);
    if (rc) {
        kvf_batch_abort(h->cache);
        remove_from_host(h, part.n_tokens);
        return rc;
    }
    for (int32_t i = 0; i < part.n_tokens; i++) h->held[h->tokens[i].seq]++;
    return KVF_OK;
}

int kvf_llama_decode(kvf_llama *h, struct llama_batch batch)
{
    if (!h) return KVF_E_ARG;
    h->error[0] = 0;
    if (!h->ctx) return kvfi_host_fail(h, KVF_E_STATE, "decode: the handle is not attached");
    h->n_rows = h->rows_done = 0;
    int rc = kvfi_host_check_batch(h, &batch);
    if (!rc) rc = kvfi_host_logits_room(h);
    for (int32_t first = 0, end; first < h->n_rows && !rc; first = end) {
        end = kvfi_host_part_end(h, first);
        rc = decode_part(h, kvfi_host_part(h, &batch, first, end));
        if (rc) break;
        if (end < h->n_rows) kvfi_host_keep_logits(h, first, end);
        h->rows_done = end, h->last_first = first;
    }
    return rc;
}
