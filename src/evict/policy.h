/* SPDX-License-Identifier: MIT
 * Which rows stay. A policy ranks rows by a score; it sees positions and exact keys, never records, blocks or sequences. The cache
 * (src/cache/evict.c) counts, protects and drops by rank: of what is not protected the lowest scores go, among equal ones the lowest
 * positions. */
#ifndef KVFI_POLICY_H
#define KVFI_POLICY_H

#include "codec/codec.h"

typedef struct kvfi_policy kvfi_policy;

/* Queries whose attention to a row is summed up. */
typedef enum kvfi_mass_rule {
    KVFI_MASS_NONE,
    KVFI_MASS_ALL,   /* all since the row came */
    KVFI_MASS_NEWEST /* those since the last choice, at most the newest 64 of a batch */
} kvfi_mass_rule;

/* A policy with its budget, fixed at creation. */
typedef struct kvfi_evict {
    const kvfi_policy *policy;
    int32_t tokens;       /* rows that a head keeps; 0: a share, or what fits into bytes */
    int32_t share;        /* of all rows, in thousandths */
    int64_t bytes;        /* that the cache may take with all its sequences; 0: not limited. The cache finds the tokens */
    int32_t sink, recent; /* rows that are protected at both ends: at least those that the cache holds exactly */
    int32_t seed;
    char protect[40];    /* layers that keep everything, as "0-1+29"; "": none */
    char layers[40];     /* layers with budgets of their own, as "2-5:512+28:256"; "": none */
    char canonical[200]; /* the spec with every option written out */
} kvfi_evict;

/* One row of one KV head. The key is what the exact window holds, before it is coded. */
typedef struct kvfi_scored {
    const kvfi_evict *evict;
    int32_t layer, head, pos, dim;
    const float *key;       /* [dim] */
    const float *direction; /* [dim], of the head's queries: at most 1 / sqrt(dim) long; NULL unless the policy needs it */
} kvfi_scored;

struct kvfi_policy {
    const char *name;
    const char *summary;        /* one line */
    const char *examples;       /* separated by one space; each is a valid spec */
    const char *const *options; /* beyond budget, sink and recent; NULL-terminated */
    int32_t keeps_all;          /* 1: nothing is ever dropped; takes no options */
    int32_t mass;               /* kvfi_mass_rule: rows are ranked by the attention that they received; there is no score then */
    int32_t needs_direction;    /* 1: the score needs kvf_calibrated_layer.q_direction */
    /* Score of a row, computed once, when its block is sealed, and kept in 2 bytes; high ones stay. Exact arithmetic: the same on every
     * target. NULL: all equal, so the oldest go, and nothing is kept. */
    uint16_t (*score)(const kvfi_scored *row);
};

/* i past the end gives NULL. */
const kvfi_policy *kvfi_policy_at(int32_t i);

/* Parses a spec as "knorm:budget=1024,recent=256,sink=4"; NULL is "none". sink and recent are those of the cache. On error returns
 * KVF_E_SPEC and leaves a sentence; error may be NULL. */
int kvfi_evict_setup(const char *text, int32_t sink, int32_t recent, kvfi_evict *e, char *error, size_t error_size);

/* Rows that a head keeps of `rows` with so many tokens or else that share: never fewer than are protected. */
int64_t kvfi_evict_rows_kept(const kvfi_evict *e, int32_t tokens, int32_t share, int64_t rows);

/* Does layer i keep everything? How many tokens does the spec give it alone? 0: none. And the last layer that is named as the one or
 * the other; -1: none. */
int kvfi_evict_protects(const kvfi_evict *e, int32_t layer);
int32_t kvfi_evict_layer_budget(const kvfi_evict *e, int32_t layer);
int32_t kvfi_evict_last_protected(const kvfi_evict *e);
int32_t kvfi_evict_last_budget(const kvfi_evict *e);

/* Does every row have a rank of its own, other than its position? */
static inline int kvfi_evict_ranks(const kvfi_evict *e)
{
    return e->policy->score || e->policy->mass;
}

static inline int kvfi_evicts(const kvfi_evict *e)
{
    return !e->policy->keeps_all;
}

#endif
