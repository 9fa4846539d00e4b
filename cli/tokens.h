/* SPDX-License-Identifier: MIT
 * Text to tokens.
 */
#ifndef KVFOLD_CLI_TOKENS_H
#define KVFOLD_CLI_TOKENS_H

#include <llama.h>

#include <stddef.h>

/* Tokens of length bytes, behind `front` places that the caller fills; *list is the caller's to free, failure or not. begin: what the
 * model puts before a text is added, and what it would put behind one is left out. special: names of special tokens are read as those.
 * Returns how many tokens there are, without `front`; negative when libllama cannot tell. length is at most INT32_MAX / 2. */
int32_t cli_tokenize(const struct llama_vocab *vocab, const char *text, size_t length, bool begin, bool special, int32_t front,
                     llama_token **list);

/* The token with the largest logit of n, of equals the first; *gap, which may be NULL: how far it is above the next. */
llama_token cli_likeliest(const float *logits, int32_t n, double *gap);

#endif
