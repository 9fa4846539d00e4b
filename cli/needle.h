/* SPDX-License-Identifier: MIT
 * The parts of `kvfold needle`: texts with planted facts, and whether a model finds them with a cache.
 */
#ifndef KVFOLD_CLI_NEEDLE_H
#define KVFOLD_CLI_NEEDLE_H

#include "quality.h"

typedef struct needle_settings {
    const char *model, *lengths, *list;
    int64_t depths, needles, seeds, threads, gpu_layers;
    bool verbose;
    kv_settings kv; /* the same for all our arms */
    result_settings out;
} needle_settings;

/* ---- needle_text.c ---------------------------------------------------------------------------------------------------------- */

enum { NEEDLE_PLACES = 144, NEEDLE_ANSWER = 8 }; /* facts that can be told apart; tokens that an answer may take */

/* A text of at most `length` tokens with room for the answer: notes of everyday things, `needles` facts among them, then the question for
 * the first fact. That one stands at `depth` (0 to 1) of the notes, the others at depths by lot. The same seed gives the same notes and facts at
 * every depth. */
typedef struct needle_task {
    int32_t length, needles;
    double depth;
    uint64_t seed;
} needle_task;

typedef struct needle_prompt {
    llama_token *token; /* [n], to be freed */
    int32_t n;
    char answer[8]; /* the digits */
} needle_prompt;

/* False when the model cannot tokenize it, or the facts and the question alone are too long. */
bool needle_make(needle_prompt *p, const needle_task *task, const struct llama_vocab *vocab);

#endif
