/* SPDX-License-Identifier: MIT
 * What a folded run under a policy must keep, from the policy's definition and the exact rows that its attention was given: in double
 * precision, sharing no code with the library. Between two batches that seal at most one block the cache's own set is taken for
 * granted, so that ties which rounding decides do not run on. */
#ifndef KVF_TESTS_WATCH_H
#define KVF_TESTS_WATCH_H

#include "fixture.h"

enum { WATCH_LAYERS = 8, WATCH_HEADS = 8, WATCH_DIM = 64, WATCH_SINK = 4, WATCH_RECENT = 64 };

typedef enum watch_rule { WATCH_WINDOW, WATCH_KNORM, WATCH_QFILTERS, WATCH_H2O, WATCH_SNAPKV } watch_rule;

/* One layer of the model: rows as attention saw them, and what the cache held after the last batch. */
typedef struct watch_layer {
    int32_t index; /* in the cache; -1: it has no attention */
    float q[TEXT_TOKENS][WATCH_HEADS][WATCH_DIM], k[TEXT_TOKENS][WATCH_HEADS][WATCH_DIM];
    double mass[WATCH_HEADS][TEXT_TOKENS]; /* attention received, as the policy sums it */
    int8_t alive[WATCH_HEADS][TEXT_TOKENS];
    double scale;
    int32_t used; /* a choice was made after the last batch */
} watch_layer;

typedef struct watch {
    watch_rule rule;
    int32_t budget, n_layers, q_heads, kv_heads, dim, next, choices, dropped;
    const float *direction[WATCH_LAYERS]; /* by layer of the model, [kv_heads][dim] */
    watch_layer *layer;                   /* [WATCH_LAYERS], by layer of the model */
} watch;

/* For kvf_llama_params.observe; user is the watch. */
void watch_rows(void *user, const kvf_llama_rows *rows);

/* Rows [w->next, w->next + n) were decoded: compares what the cache holds with what the policy says, and fails the test. */
void watch_check(watch *w, kvf_cache *cache, int32_t n);

#endif
