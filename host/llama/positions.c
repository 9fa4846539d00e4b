/* SPDX-License-Identifier: MIT
 * How far a sequence may go. Without a policy every token stays, and the context is full when n_ctx of them are there. A policy lets
 * tokens go and positions count on: then the model's training length is the end, as nothing beyond it was ever learnt. */
#include "adapter.h"

/* Does a layer keep all that it ever saw? */
static int keeps_everything(const kvf_llama *h)
{
    for (int32_t i = 0; i < h->n_attn; i++) {
        kvf_evicted_t e = {.size = sizeof e};
        if (!h->attn[i].window && kvf_evicted(h->cache, i, &e) == KVF_OK && !e.pruned) return 1;
    }
    return 0;
}

/* Tokens of a sequence that leave no more than n_ctx to be kept: a share of them may. */
static int64_t longest(const kvf_llama *h, int64_t most)
{
    int64_t low = h->n_ctx, high = most;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2 + 1;
        kvf_evict_info info;
        if (kvf_evict_check(h->evict, h->sink < 0 ? 4 : h->sink, h->recent < 0 ? 64 : h->recent, middle, &info, NULL, 0) !=
            KVF_OK)
            return h->n_ctx;
        if (info.bytes || info.budget <= h->n_ctx)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

void kvfi_host_set_positions(kvf_llama *h)
{
    const int64_t trained = llama_model_n_ctx_train(h->model);
    h->n_positions = h->n_ctx;
    if (!h->evict || trained <= h->n_ctx || h->long_rope == 1 || keeps_everything(h)) return;
    h->n_positions = longest(h, trained);
}
