/* SPDX-License-Identifier: MIT
 * The two real models and the text, for tests that need them. They are found by environment variables: KVFOLD_MODELS names a
 * folder of GGUF files (smollm2 and gemma in their names, f32 too in those with widened weights), KVFOLD_TEXT the text. */
#ifndef KVF_TESTS_REAL_H
#define KVF_TESTS_REAL_H

#include "arm.h"
#include "slices.h"

typedef enum real_model {
    REAL_SMOLLM2,
    REAL_GEMMA,
    REAL_MODELS,
    REAL_KEY_BIAS = REAL_MODELS /* SmolLM2, f32, with a constant of 60 in the eight slowest-turning channels of every key */
} real_model;

/* Path of a model, NULL with a sentence in *why when it is not there. Valid until the next call. */
const char *real_path(real_model which, bool f32, const char **why);

/* The model, loaded. Skips the running test with a sentence when the file is not there, fails it when it does not load. */
struct llama_model *real_load(real_model which, bool f32);

/* Exactly n tokens of a slice, after the BOS token if the model asks for one. Skips when the text is not there. The caller frees. */
llama_token *real_tokens(const struct llama_model *model, const slice *s, int32_t n);

/* Opens an arm on n_ctx tokens: folded, or plain (k NULL) with the same batch size. Fails the test on failure. */
void real_open(arm *a, struct llama_model *model, int32_t n_ctx, const char *k, const char *v);

/* Threads of the arms opened from now on, 0: as many as this process may use, at most 4. */
void real_fix_threads(int32_t n);

/* Context parameters of a plain arm, with or without flash attention. */
struct llama_context_params real_context(int32_t n_ctx, bool flash);

/* Decodes tokens[from .. to) of sequence 0 in batches of `batch`, without logits. Fails the test on failure. */
void real_feed(arm *a, const llama_token *tokens, int32_t from, int32_t to, int32_t batch);

/* Rows of a host batch that leave 256 cells without padding: the adapter's default, used by plain arms too. */
enum { REAL_BATCH = 255 };

#endif
