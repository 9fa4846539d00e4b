/* SPDX-License-Identifier: MIT
 * How far next-token distributions move when the cache is folded. Decode-faithful: batches of exactly 64 aligned tokens. With a window
 * that is a multiple of 64, a query then sees the same tokens coded and the same exact as if the text had come one token at a time.
 * The arms run in lockstep, batch by batch; arm 0 is the reference. Includes nothing of the program's own measure of quality. */
#ifndef KVF_TESTS_LOCKSTEP_H
#define KVF_TESTS_LOCKSTEP_H

#include "real.h"

enum { LOCKSTEP_MOST = 16 };

/* Kullback-Leibler divergences in nats of one arm from arm 0. */
typedef struct tally {
    double sum, most;
    int32_t same_top, n;
} tally;

/* Feeds all arms and judges positions first .. n - 2: each has a next token in the text, as in llama.cpp's own measure. */
void lockstep(arm *arms, tally *tallies, int n_arms, const llama_token *tokens, int32_t n, int32_t first);

#endif
