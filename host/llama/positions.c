/* SPDX-License-Identifier: MIT
 * How far a sequence may go. Without a policy every token stays, and the context is full when n_ctx of them are there. A policy lets
 * tokens go and positions count on: then the model's training length is the end, as nothing beyond it was ever learnt. That holds where
 * all sequences together keep no more than n_ctx in any layer; else they end with the context, as without a policy. */
#include "adapter.h"

/* What the layers keep of a sequence. */
typedef struct kept {
    int everything; /* a layer lets nothing go that it ever saw */
    int shares;     /* a layer keeps a share of all */
    int64_t budget; /* the largest one in tokens, 0: none */
} kept;

static kept look(const kvf_llama *h)
{
    kept k = {0};
    for (int32_t i = 0; i < h->n_attn; i++) {
        kvf_evicted_t e = {.size = sizeof e};
        if (h->attn[i].window || kvf_evicted(h->cache, i, &e) != KVF_OK) continue;
        k.everything |= !e.pruned, k.shares |= e.pruned && !e.budget;
        if (e.budget > k.budget) k.budget = e.budget;
    }
    return k;
}

/* Tokens of a sequence, at most `most`, of which a share is no more than `room`. Budgets of single layers are not above that. */
static int64_t longest(const kvf_llama *h, int64_t most, int64_t room)
{
    int64_t low = h->n_ctx, high = most;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2 + 1;
        kvf_evict_info info;
        if (kvf_evict_check(h->evict, h->sink, h->recent, middle, &info, NULL, 0) != KVF_OK) return h->n_ctx;
        if (info.budget <= room)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

void kvfi_host_set_positions(kvf_llama *h)
{
    const int64_t trained = llama_model_n_ctx_train(h->model), room = h->n_ctx / h->n_seq;
    h->n_positions = h->n_ctx;
    if (!h->evict || trained <= h->n_ctx || h->long_rope == 1) return;
    const kept k = look(h);
    if (k.everything || k.budget > room) return;
    h->n_positions = k.shares ? longest(h, trained, room) : trained;
}
