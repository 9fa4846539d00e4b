/* SPDX-License-Identifier: MIT
 * A cache and its oracle, fed alike and compared. */
#ifndef TESTS_PAIR_H
#define TESTS_PAIR_H

#include "../unit/support.h"
#include "oracle_attention.h"

typedef struct pair {
    ts_model m; /* set by the test before pair_open */
    kvf_cache *c;
    oracle *o;
    double bound; /* allowed error; pair_open sets it from the codecs and the instruction set */
    double worst; /* largest error over bound so far */
} pair;

void pair_open(pair *p);
void pair_close(pair *p);

/* Allowed error of an attention with these codecs, as a share of the largest output, and of 1 + |lse|. */
double pair_bound(const char *k, const char *v, const char *cpu);

/* Appends to both, in batches of `chunk`. With attend, each batch is compared first. */
void pair_feed(pair *p, const ts_row *rows, int n, int chunk, const ts_how *how, int attend);
/* The same in one batch whose attention is asked for, as a prompt's is, and not compared. */
void pair_prompt(pair *p, const ts_row *rows, int n);
/* From now on the oracle sees of the rows held what kvf_seq_read tells of them: what is stored is taken for granted, and only the
 * attention over it, and which rows those are, is judged. For codecs that estimate stages from the prompt, or code rows again. */
void pair_see_stored(pair *p, int32_t seq);
void pair_grow(pair *p, int32_t seq, uint64_t tag, int n, int chunk);
/* Attends with a batch of these rows, compares every layer, aborts. */
void pair_attend(pair *p, const ts_row *rows, int n, const ts_how *how);
/* The same with n rows after the end of one sequence. */
void pair_next(pair *p, int32_t seq, uint64_t tag, int n, const ts_how *how);
/* Compares what an attended batch holds of one layer with the oracle. */
void pair_compare(pair *p, const ts_batch *b, int layer);
void pair_rm(pair *p, int32_t seq, int32_t p0, int32_t p1);
void pair_cp(pair *p, int32_t src, int32_t dst);

#endif
