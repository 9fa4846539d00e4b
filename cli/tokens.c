/* SPDX-License-Identifier: MIT */
#include "tokens.h"

#include "cli.h"

#include <math.h>
#include <stdlib.h>

/* There may be more tokens than bytes: some vocabularies spell a space in three. libllama says how many it wants, negated. */
int32_t cli_tokenize(const struct llama_vocab *vocab, const char *text, size_t length, bool begin, bool special, int32_t front,
                     llama_token **list)
{
    int32_t n = -((int32_t)length + 8);
    *list = NULL;
    for (int i = 0; i < 2 && n < 0 && n != INT32_MIN; i++) {
        int32_t room = -n;
        free(*list);
        *list = cli_alloc((size_t)front + (size_t)room, sizeof **list);
        n = llama_tokenize(vocab, text, (int32_t)length, *list + front, room, begin, special);
    }
    if (n > 0 && begin && llama_vocab_get_add_eos(vocab) && (*list)[front + n - 1] == llama_vocab_eos(vocab)) n--;
    return n;
}

llama_token cli_likeliest(const float *logits, int32_t n, double *gap)
{
    llama_token best = 0;
    float second = -INFINITY;
    for (llama_token t = 1; t < n; t++) {
        if (logits[t] > logits[best])
            second = logits[best], best = t;
        else if (logits[t] > second)
            second = logits[t];
    }
    if (gap) *gap = (double)logits[best] - (double)second;
    return best;
}
