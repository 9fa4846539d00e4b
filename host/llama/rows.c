/* SPDX-License-Identifier: MIT
 * The caller's batch: checked before the host sees it (the host would abort on some mistakes and misread others), cut into
 * parts that the host takes in one piece, and its logits kept across parts. */
#include "adapter.h"

#include <stdlib.h>
#include <string.h>

int kvfi_host_rows_room(kvf_llama *h, int32_t rows)
{
    if (rows <= h->rows_capacity) return KVF_OK;
    size_t n = (size_t)rows;
    int32_t *seq = realloc(h->row_seq, n * sizeof *seq);
    if (seq) h->row_seq = seq;
    int32_t *pos = realloc(h->row_pos, n * sizeof *pos);
    if (pos) h->row_pos = pos;
    int32_t *saved = realloc(h->row_saved, n * sizeof *saved);
    if (saved) h->row_saved = saved;
    int8_t *output = realloc(h->row_output, n * sizeof *output);
    if (output) h->row_output = output;
    if (!seq || !pos || !saved || !output) return kvfi_host_fail(h, KVF_E_NOMEM, "out of memory: a batch of %d rows", (int)rows);
    h->rows_capacity = rows;
    return KVF_OK;
}

static int check_row(kvf_llama *h, const struct llama_batch *b, int32_t i)
{
    if (b->token[i] < 0 || b->token[i] >= h->n_vocab)
        return kvfi_host_fail(h, KVF_E_ARG, "batch row %d: token %d; allowed are 0 to %d", (int)i, (int)b->token[i],
                              (int)h->n_vocab - 1);
    if (b->n_seq_id && b->n_seq_id[i] != 1)
        return kvfi_host_fail(h, KVF_E_UNSUPPORTED,
                              "batch row %d: belongs to %d sequences; a row of a folded cache belongs to one (copy "
                              "the sequence instead)",
                              (int)i, (int)b->n_seq_id[i]);
    int32_t seq = b->seq_id ? b->seq_id[i][0] : 0;
    if (seq < 0 || seq >= h->n_seq)
        return kvfi_host_fail(h, KVF_E_ARG, "batch row %d: sequence %d; allowed are 0 to %d", (int)i, (int)seq,
                              (int)h->n_seq - 1);
    if (h->lost[seq])
        return kvfi_host_fail(h, KVF_E_STATE,
                              "sequence %d was lost when a decode failed: its recurrent state could not be restored; remove it "
                              "(kvf_llama_seq_rm) and start again",
                              (int)seq);
    h->row_seq[i] = seq;
    return KVF_OK;
}

/* Each row continues its sequence; an empty sequence may start anywhere. */
static int check_position(kvf_llama *h, const struct llama_batch *b, int32_t i)
{
    int32_t seq = h->row_seq[i], next = h->next[seq], pos = b->pos ? b->pos[i] : next < 0 ? 0 : next;
    if (pos < 0 || pos == INT32_MAX || (next >= 0 && pos != next))
        return kvfi_host_fail(h, KVF_E_POSITION, "batch row %d: position %d of sequence %d; the next one is %d", (int)i, (int)pos,
                              (int)seq, next < 0 ? 0 : (int)next);
    h->row_pos[i] = pos;
    h->next[seq] = pos + 1;
    return KVF_OK;
}

static int check_length(kvf_llama *h, int32_t rows)
{
    int64_t held = 0, longest = 0;
    for (int32_t s = 0; s < h->n_seq; s++) {
        held += h->held[s];
        if (h->held[s] > longest) longest = h->held[s];
    }
    if (h->n_positions > h->n_ctx && longest + rows > h->n_positions)
        return kvfi_host_fail(h, KVF_E_FULL, "%d more tokens do not fit: %lld of the %lld positions of the model are used up",
                              (int)rows, (long long)longest, (long long)h->n_positions);
    if (h->n_positions == h->n_ctx && held + rows > h->n_ctx)
        return kvfi_host_fail(h, KVF_E_FULL, "%d more tokens do not fit: %lld of the %lld of the context are in use", (int)rows,
                              (long long)held, (long long)h->n_ctx);
    return KVF_OK;
}

/* Notes sequence, position and output of every row. Nothing has changed when this fails. */
int kvfi_host_check_batch(kvf_llama *h, const struct llama_batch *b)
{
    if (b->embd) return kvfi_host_fail(h, KVF_E_UNSUPPORTED, "batches with embeddings (images, audio) cannot be folded");
    if (b->n_tokens < 1 || !b->token) return kvfi_host_fail(h, KVF_E_ARG, "an empty batch");
    if (!llama_get_causal_attn(h->ctx))
        return kvfi_host_fail(h, KVF_E_UNSUPPORTED, "the context was set to attention that is not causal");
    int rc = kvfi_host_rows_room(h, b->n_tokens);
    for (int32_t s = 0; s < h->n_seq; s++) {
        int32_t last = kvf_seq_pos_max(h->cache, s);
        h->next[s] = last < 0 ? -1 : last + 1;
    }
    for (int32_t i = 0; i < b->n_tokens && !rc; i++) {
        rc = check_row(h, b, i);
        if (!rc) rc = check_position(h, b, i);
        h->row_output[i] = b->logits ? b->logits[i] != 0 : i == b->n_tokens - 1;
        h->row_saved[i] = -1;
    }
    if (!rc) rc = check_length(h, b->n_tokens);
    if (!rc) h->n_rows = b->n_tokens;
    return rc;
}

/* End of the part that starts at row `first`. Layers without attention make the host reorder sequences: one at a time there. */
int32_t kvfi_host_part_end(const kvf_llama *h, int32_t first)
{
    int32_t end = first + 1;
    while (end < h->n_rows && end - first < h->n_batch && (!h->hybrid || h->row_seq[end] == h->row_seq[first])) end++;
    return end;
}

struct llama_batch kvfi_host_part(kvf_llama *h, const struct llama_batch *b, int32_t first, int32_t end)
{
    for (int32_t i = first; i < end; i++) {
        int32_t j = i - first;
        h->tokens[j] = (kvf_token){.seq = h->row_seq[i], .pos = h->row_pos[i]};
        h->ids[j] = b->token[i];
        h->positions[j] = h->row_pos[i];
        h->seqs[j] = h->row_seq[i];
        h->outputs[j] = h->row_output[i];
    }
    return (struct llama_batch){.n_tokens = end - first,
                                .token = h->ids,
                                .pos = h->positions,
                                .n_seq_id = h->seq_counts,
                                .seq_id = h->seq_ptrs,
                                .logits = h->outputs};
}

/* Room for the logits that the host will drop: those of every part but the last. */
int kvfi_host_logits_room(kvf_llama *h)
{
    size_t rows = 0;
    for (int32_t first = 0, end; first < h->n_rows; first = end) {
        end = kvfi_host_part_end(h, first);
        for (int32_t i = first; i < end && end < h->n_rows; i++)
            if (h->row_output[i]) h->row_saved[i] = (int32_t)rows++;
    }
    if (rows <= h->saved_capacity) return KVF_OK;
    float *saved = realloc(h->saved, rows * (size_t)h->n_vocab * sizeof *saved);
    if (!saved) return kvfi_host_fail(h, KVF_E_NOMEM, "out of memory: logits of %zu rows of a batch that is split", rows);
    h->saved = saved, h->saved_capacity = rows;
    return KVF_OK;
}

/* Copies the logits of rows first .. end, the part that was just decoded. A host that samples by itself may have none. */
void kvfi_host_keep_logits(kvf_llama *h, int32_t first, int32_t end)
{
    for (int32_t i = first; i < end; i++) {
        if (h->row_saved[i] < 0) continue;
        const float *logits = llama_get_logits_ith(h->ctx, i - first);
        if (logits)
            memcpy(h->saved + (size_t)h->row_saved[i] * (size_t)h->n_vocab, logits, (size_t)h->n_vocab * sizeof *logits);
        else
            h->row_output[i] = 0;
    }
}

/* Row of the k-th output from the end (k < 0). */
static int32_t output_from_end(const kvf_llama *h, int32_t k)
{
    for (int32_t i = h->rows_done - 1; i >= 0; i--)
        if (h->row_output[i] && ++k == 0) return i;
    return -1;
}

const float *kvf_llama_logits_ith(kvf_llama *h, int32_t i)
{
    if (!h || !h->ctx) return NULL;
    if (i < 0) i = output_from_end(h, i);
    if (i < 0 || i >= h->rows_done || !h->row_output[i]) return NULL;
    if (h->row_saved[i] >= 0) return h->saved + (size_t)h->row_saved[i] * (size_t)h->n_vocab;
    return llama_get_logits_ith(h->ctx, i - h->last_first);
}
