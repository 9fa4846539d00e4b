/* SPDX-License-Identifier: MIT
 * Logits to a token, a token to text on stdout.
 */
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct llama_sampler *generator_sampler(const run_settings *set, int32_t n_vocab)
{
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (set->repeat != 1.0)
        llama_sampler_chain_add(chain,
                                llama_sampler_init_penalties(n_vocab, (int32_t)set->repeat_last, (float)set->repeat, 0, 0));
    if (set->temp <= 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_greedy());
        return chain;
    }
    llama_sampler_chain_add(chain, llama_sampler_init_top_k((int32_t)set->top_k));
    llama_sampler_chain_add(chain, llama_sampler_init_top_p((float)set->top_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_min_p((float)set->min_p, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp((float)set->temp));
    uint32_t seed = set->seed < 0 ? LLAMA_DEFAULT_SEED : (uint32_t)set->seed;
    llama_sampler_chain_add(chain, llama_sampler_init_dist(seed));
    return chain;
}

int generator_sample(generator *g, llama_token *token)
{
    const float *logits = kvf_llama_logits_ith(g->s->fold, -1);
    if (!logits) {
        cli_error("libllama gave no logits for the last token");
        return CLI_CANNOT;
    }
    for (llama_token id = 0; id < g->n_vocab; id++) {
        if (isnan(logits[id])) {
            cli_error("the model computes NaN: the weights in '%s' are damaged", g->set->model);
            return CLI_DAMAGED;
        }
        g->candidate[id] = (llama_token_data){.id = id, .logit = logits[id], .p = 0};
    }
    for (int32_t i = 0; g->set->ignore_eos && i < g->n_end; i++) g->candidate[g->end[i]].logit = -INFINITY;
    llama_token_data_array list = {.data = g->candidate, .size = (size_t)g->n_vocab, .selected = -1, .sorted = false};
    llama_sampler_apply(g->sampler, &list);
    if (list.selected < 0 || (size_t)list.selected >= list.size) {
        cli_error("the samplers chose no token");
        return CLI_CANNOT;
    }
    *token = list.data[list.selected].id;
    llama_sampler_accept(g->sampler, *token);
    return CLI_GO;
}

/* ---- text ------------------------------------------------------------------------------------------------------------------ */

/* Bytes before a sequence that is cut off by the end. */
static size_t complete(const cli_text *t)
{
    size_t done = 0;
    while (done < t->length) {
        int step = cli_utf8_step(t->data + done, t->length - done);
        if (step == 0) break;
        done += (size_t)(step > 0 ? step : 1);
    }
    return done;
}

/* Adds bytes to the text and shows what is complete; the rest waits for the next token, unless this is the end. CLI_GO, or an
 * exit code when stdout is broken. */
int generator_emit(generator *g, const char *bytes, size_t n, bool end)
{
    size_t shown = g->text.length;
    cli_text_add(&g->held, bytes, n);
    size_t done = end ? g->held.length : complete(&g->held);
    cli_utf8_add(&g->text, g->held.data, done);
    memmove(g->held.data, g->held.data + done, g->held.length - done);
    g->held.length -= done;
    if (g->set->json || g->text.length == shown) return CLI_GO;
    return cli_write(g->text.data + shown, g->text.length - shown);
}

int generator_emit_token(generator *g, llama_token token)
{
    char small[256];
    int32_t n = llama_token_to_piece(g->s->vocab, token, small, sizeof small, 0, false);
    if (n >= 0) return generator_emit(g, small, (size_t)n, false);
    char *large = cli_alloc((size_t)-n, 1);
    n = llama_token_to_piece(g->s->vocab, token, large, -n, 0, false);
    int code = n < 0 ? CLI_GO : generator_emit(g, large, (size_t)n, false);
    free(large);
    return code;
}

/* Did the text from `begin` on just come to contain a reverse prompt? Looks only where the newest bytes take part. */
bool generator_reversed(const generator *g, size_t begin, size_t before)
{
    for (int i = 0; i < g->set->reverse.n; i++) {
        const char *wanted = g->set->reverse.item[i];
        size_t n = strlen(wanted), from = before > begin + n ? before - n : begin;
        if (n > 0 && g->text.length > from && strstr(g->text.data + from, wanted)) return true;
    }
    return false;
}
