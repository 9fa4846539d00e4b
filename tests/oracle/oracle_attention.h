/* SPDX-License-Identifier: MIT
 * What a cache must answer, in double precision, from the definitions of kvfold.h alone. A sequence is a list of rows, each
 * with its exact f16 values and the values that attention sees: those same ones while the row is exact, those of the decoded
 * record once its block of 64 is sealed. The dense softmax over that list is the answer. */
#ifndef TESTS_ORACLE_ATTENTION_H
#define TESTS_ORACLE_ATTENTION_H

#include "kvfold.h"

typedef struct oracle oracle;

/* Keeps the pointer; layers, sink, recent and codec names are read from it. */
oracle *oracle_new(const kvf_params *p);
void oracle_free(oracle *o);

/* Appends one row: k[layer] is [kv_heads][k_dim], v[layer] [kv_heads][v_dim] (ignored for v_in_k and sharing layers). */
void oracle_append(oracle *o, int seq, int pos, const float *const *k, const float *const *v);
/* Seals what is due. Called once a batch: a batch sees its own rows exact. */
void oracle_seal(oracle *o);
/* From now on, whenever a block is sealed, each head of the layers without a window drops rows until it has `budget` left, R newer ones
 * counted: the longest keys (by_length) or else the oldest, but none of the first `sink` and the newest `recent`. */
void oracle_policy(oracle *o, int by_length, int budget, int sink, int recent);
/* Says what attention sees of one head of one row from now on: for codecs whose stored numbers depend on more than their block. */
void oracle_see(oracle *o, int seq, int pos, int layer, kvf_side side, int head, const float *x);
/* 1 when the head still has the row: neither removed nor dropped by the policy. */
int oracle_holds(const oracle *o, int seq, int pos, int layer, int head);
void oracle_rm(oracle *o, int seq, int p0, int p1);
void oracle_cp(oracle *o, int src, int dst);
int oracle_pos_max(const oracle *o, int seq);
int oracle_rows(const oracle *o, int seq);   /* that are alive */
int oracle_sealed(const oracle *o, int seq); /* blocks */

/* One layer's attention of a batch of n rows. q [n][q_heads][k_dim], k [n][kv_heads][k_dim], v [n][kv_heads][v_dim]: plain. */
typedef struct oracle_query {
    int layer, n;
    const kvf_token *tokens;
    const float *q, *k, *v;
    const double *bias; /* [n][n] of an explicit mask, -inf hides; NULL: same sequence, causal, window, ALiBi */
    double scale, softcap;
    const float *slopes, *sinks;
    double *out; /* [n][q_heads][v_dim] */
    double *lse; /* [n][q_heads] */
} oracle_query;

void oracle_attend(const oracle *o, const oracle_query *a);

#endif
