/* SPDX-License-Identifier: MIT
 * Prompt in, text out: batches of the prompt, sampling, streaming.
 */
#include "run.h"
#include "progress.h"
#include "tokens.h"

#include <stdlib.h>
#include <string.h>

const char *run_stop_name(run_stop stop)
{
    static const char *const name[] = {
#define RUN_STOP(name, text) text,
        RUN_STOPS(RUN_STOP)
#undef RUN_STOP
    };
    return name[stop];
}

static double seconds(void)
{
    return (double)llama_time_us() * 1e-6;
}

/* ---- opening --------------------------------------------------------------------------------------------------------------- */

static void find_ends(generator *g)
{
    g->end = cli_alloc((size_t)g->n_vocab, sizeof *g->end);
    for (llama_token id = 0; id < g->n_vocab; id++) {
        if (llama_vocab_is_eog(g->s->vocab, id)) g->end[g->n_end++] = id;
    }
}

int generator_open(generator *g, session *s, const chat *c, const run_settings *set)
{
    *g = (generator){.s = s, .chat = c, .set = set};
    g->n_vocab = llama_vocab_n_tokens(s->vocab);
    if (g->n_vocab <= 0) {
        cli_error("'%s' has no vocabulary, so it cannot read or write text", set->model);
        return CLI_CANNOT;
    }
    g->candidate = cli_alloc((size_t)g->n_vocab, sizeof *g->candidate);
    find_ends(g);
    g->sampler = generator_sampler(set, g->n_vocab);
    g->batch = llama_batch_init(s->host.n_batch, 0, 1);
    return CLI_GO;
}

void generator_close(generator *g)
{
    if (g->sampler) llama_sampler_free(g->sampler);
    if (g->batch.token) llama_batch_free(g->batch);
    free(g->candidate);
    free(g->end);
    free(g->turn);
    cli_text_free(&g->held);
    cli_text_free(&g->text);
}

run_stop generator_stop(const generator *g)
{
    return g->n_turns ? g->turn[g->n_turns - 1].stop : STOP_NONE;
}

/* ---- decoding -------------------------------------------------------------------------------------------------------------- */

static int64_t tokens_held(const generator *g)
{
    return (int64_t)kvf_llama_pos_max(g->s->fold, 0) + 1;
}

/* One host batch. CLI_GO (also when Ctrl-C stopped it) or an exit code. */
static int decode(generator *g, const llama_token *token, int32_t n, bool last)
{
    int32_t pos = (int32_t)tokens_held(g);
    struct llama_batch *b = &g->batch;
    for (int32_t i = 0; i < n; i++) {
        b->token[i] = token[i];
        b->pos[i] = pos + i;
        b->n_seq_id[i] = 1;
        b->seq_id[i][0] = 0;
        b->logits[i] = last && i == n - 1;
    }
    b->n_tokens = n;
    int rc = kvf_llama_decode(g->s->fold, *b);
    if (rc == KVF_OK || cli_interrupted()) return CLI_GO;
    cli_error("%s", kvf_llama_error(g->s->fold));
    return cli_exit_of(rc);
}

static int prefill(generator *g, const llama_token *token, int64_t n)
{
    int32_t step = g->s->host.n_batch;
    progress bar = progress_begin("prompt", "tokens", n > step ? n : 0);
    double start = seconds();
    int code = CLI_GO;
    int64_t fed = 0;
    while (code == CLI_GO && fed < n && !cli_interrupted()) {
        int64_t count = n - fed < step ? n - fed : step;
        code = decode(g, token + fed, (int32_t)count, fed + count == n);
        if (code == CLI_GO && !cli_interrupted()) fed += count;
        progress_set(&bar, fed);
    }
    progress_end(&bar);
    g->prefill_seconds += seconds() - start;
    g->prefill_tokens += fed;
    return code;
}

/* ---- a turn ---------------------------------------------------------------------------------------------------------------- */

static run_turn *add_turn(generator *g)
{
    run_turn *grown = cli_alloc(g->n_turns + 1, sizeof *grown);
    if (g->n_turns > 0) memcpy(grown, g->turn, g->n_turns * sizeof *grown);
    free(g->turn);
    g->turn = grown;
    if (g->n_turns > 0) cli_text_add(&g->text, "\n", 1); /* between turns */
    run_turn *t = &g->turn[g->n_turns++];
    t->kept = tokens_held(g);
    t->text = g->text.length;
    return t;
}

/* The policy, where there is one that lets tokens go. */
static const char *dropping(const generator *g, char *text, size_t size)
{
    text[0] = '\0';
    if (g->s->kv.evicts) snprintf(text, size, ", dropped ones counted (--evict %s)", g->s->kv.evict);
    return text;
}

void generator_say_full(const generator *g)
{
    char policy[256];
    if (generator_stop(g) != STOP_CONTEXT) return;
    fflush(stdout); /* the text first, where both go to one terminal */
    if (g->s->positions > g->s->context)
        cli_note("all %lld positions that the model can use are used up: generation stops (--evict %s)",
                 (long long)g->s->positions, g->s->kv.evict);
    else
        cli_note("the context of %lld tokens (-c) is full: generation stops, as no position is used again%s. Give a larger -c to "
                 "go on",
                 (long long)g->s->context, dropping(g, policy, sizeof policy));
}

/* A turn that does not fit: fatal for the first one, the end of the conversation for a later one. */
static int does_not_fit(const generator *g, run_turn *t, int64_t n)
{
    t->stop = STOP_CONTEXT;
    char policy[256];
    if (g->n_turns > 1) return CLI_GO;
    if (g->s->positions > g->s->context)
        cli_error("the prompt has %lld tokens, and the model has positions for %lld, dropped ones counted", (long long)n,
                  (long long)g->s->positions);
    else
        cli_error("the prompt has %lld tokens, the context (-c) holds %lld%s. Give -c %lld or more", (long long)n,
                  (long long)g->s->positions, dropping(g, policy, sizeof policy), (long long)n + 1);
    return CLI_CANNOT;
}

static run_stop why_stop(const generator *g, const run_turn *t)
{
    if (cli_interrupted()) return STOP_INTERRUPTED;
    if (g->set->predict >= 0 && t->generated >= g->set->predict) return STOP_LENGTH;
    return g->has_pending && tokens_held(g) >= g->s->positions ? STOP_CONTEXT : STOP_NONE;
}

static int feed_pending(generator *g)
{
    if (!g->has_pending) return CLI_GO;
    int code = decode(g, &g->pending, 1, true);
    if (code == CLI_GO && !cli_interrupted()) {
        g->has_pending = false;
        g->decode_tokens++;
    }
    return code;
}

/* Samples and shows the next token. It stays pending: it enters the cache only when something follows it. */
static int next_token(generator *g, run_turn *t)
{
    llama_token token;
    int code = generator_sample(g, &token);
    if (code != CLI_GO) return code;
    if (llama_vocab_is_eog(g->s->vocab, token)) {
        t->stop = STOP_END;
        return CLI_GO;
    }
    size_t before = g->text.length;
    t->generated++;
    g->pending = token;
    g->has_pending = true;
    code = generator_emit_token(g, token);
    if (generator_reversed(g, t->text, before)) t->stop = STOP_REVERSE;
    return code;
}

static int generate(generator *g, run_turn *t)
{
    double start = seconds();
    int code = CLI_GO;
    while (code == CLI_GO && (t->stop = why_stop(g, t)) == STOP_NONE) {
        code = feed_pending(g);
        if (code != CLI_GO || cli_interrupted()) continue;
        code = next_token(g, t);
        if (t->stop != STOP_NONE) break;
    }
    g->decode_seconds += seconds() - start;
    if (code == CLI_GO) code = generator_emit(g, "", 0, true);
    return code;
}

/* ---- tokens ---------------------------------------------------------------------------------------------------------------- */

/* Some templates write the beginning-of-text token that the tokenizer adds as well. */
static int32_t trim_bos(const struct llama_vocab *vocab, llama_token *token, int32_t n)
{
    llama_token bos = llama_vocab_bos(vocab);
    if (n < 2 || bos == LLAMA_TOKEN_NULL || token[0] != bos || token[1] != bos) return n;
    memmove(token, token + 1, (size_t)(n - 1) * sizeof *token);
    return n - 1;
}

/* Tokens of the text, after the pending one if there is one. Returns how many, with the list to be freed; -1 on failure. */
static int64_t tokenize(generator *g, const char *text, size_t length, llama_token **token)
{
    bool first = tokens_held(g) == 0 && !g->has_pending;
    if (length > INT32_MAX / 2) {
        cli_error("the prompt has %zu bytes, more than the %d that can be tokenized", length, INT32_MAX / 2);
        return -1;
    }
    int32_t shift = g->has_pending, n = cli_tokenize(g->s->vocab, text, length, first, true, shift, token);
    if (n < 0) {
        cli_error("libllama cannot tokenize the prompt");
        free(*token);
        *token = NULL;
        return -1;
    }
    if (shift) **token = g->pending;
    return shift + (first ? trim_bos(g->s->vocab, *token, n) : n);
}

void generator_start(generator *g)
{
    if (!g->started) report_start(g->s, g->chat);
    g->started = true;
}

/* As in llama.cpp, the prompt counts for penalties too. */
static void accept(generator *g, const llama_token *token, int64_t n)
{
    for (int64_t i = g->has_pending; i < n; i++) llama_sampler_accept(g->sampler, token[i]);
}

int generate_turn(generator *g, const char *text, size_t length)
{
    llama_token *token = NULL;
    run_turn *t = add_turn(g);
    int64_t n = tokenize(g, text, length, &token);
    if (n < 0) return CLI_CANNOT;
    int code = CLI_GO;
    if (n == 0) {
        cli_error("the prompt has no tokens: there is nothing to continue");
        code = CLI_USAGE;
    } else if (t->kept + n > g->s->positions) {
        code = does_not_fit(g, t, n);
    } else {
        generator_start(g);
        accept(g, token, n);
        t->prompt = n - g->has_pending;
        g->has_pending = false;
        code = prefill(g, token, n);
        if (code == CLI_GO) code = generate(g, t);
    }
    free(token);
    return code;
}
