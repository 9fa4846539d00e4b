/* SPDX-License-Identifier: MIT
 * The pieces of `kvfold run`: settings, session (model, context, folded cache), chat, generation, report.
 */
#ifndef KVFOLD_CLI_RUN_H
#define KVFOLD_CLI_RUN_H

#include "kv.h"
#include "model_file.h"
#include "shape.h"

#include <kvfold_llama.h>
#include <llama.h>

typedef struct run_settings {
    const char *model, *prompt, *file, *system, *chat_template, *flash, *rope_scaling;
    cli_list reverse;
    int64_t predict, context, batch, ubatch, threads, threads_batch, seed, gpu_layers, top_k, repeat_last, yarn_context;
    double temp, top_p, min_p, repeat, rope_base, rope_freq_scale, rope_scale;
    double yarn_ext, yarn_attn, yarn_slow, yarn_fast;
    bool raw, conversation, display_prompt, escape, report, json, verbose, ignore_eos, repack;
    kv_settings kv;
    void (*observe)(void *user, const kvf_llama_rows *rows); /* NULL: nobody watches the layers */
    void *observe_user;
} run_settings;

/* ---- session.c ------------------------------------------------------------------------------------------------------------- */

typedef struct session {
    model_file file;
    shape shape;
    kv_choice kv;
    kvf_llama_calibration *calibration; /* NULL: none */
    struct llama_model *model;
    const struct llama_vocab *vocab;
    struct llama_context *ctx;
    kvf_llama *fold;
    kvf_llama_stats_t host; /* as after attach */
    int64_t context;        /* tokens of the folded context */
    int64_t positions;      /* that may be used: more where a policy lets tokens go */
    int threads;
} session;

/* What every command does before libllama is used: its log, Ctrl-C, back ends. llama_backend_free ends it. */
void session_begin(bool verbose);
/* Checks the file and loads the model; there is no context yet. CLI_GO or an exit code. */
int session_load(session *s, const run_settings *set);
/* The same, and folds its cache. CLI_GO or an exit code. session_close is fine after either. */
int session_open(session *s, const run_settings *set);
void session_close(session *s);

/* ---- chat.c ---------------------------------------------------------------------------------------------------------------- */

typedef struct chat {
    const char *form; /* what llama_chat_apply_template takes; NULL: raw text */
    char name[64];    /* for people: "chatml"; "none" */
    struct llama_chat_message *message;
    size_t n, capacity;
    bool answered; /* the last message is a reply */
} chat;

/* Chooses the template: --chat-template, else the model's, else none (said once). CLI_GO or an exit code. */
int chat_open(chat *c, const struct llama_model *model, const run_settings *set);
void chat_close(chat *c);

/* The text to feed for the user's next message: only what follows the last reply. CLI_GO or an exit code. */
int chat_ask(chat *c, const char *user, cli_text *text);
void chat_reply(chat *c, const char *reply);

/* ---- generate.c ------------------------------------------------------------------------------------------------------------ */

#define RUN_STOPS(X)                                                                                                             \
    X(NONE, "none")                                                                                                              \
    X(END, "end")                 /* the model ended its text */                                                                 \
    X(LENGTH, "length")           /* -n */                                                                                       \
    X(CONTEXT, "context")         /* -c is full */                                                                               \
    X(REVERSE, "reverse_prompt")  /* -r */                                                                                       \
    X(INTERRUPTED, "interrupted") /* Ctrl-C */

typedef enum run_stop {
#define RUN_STOP(name, text) STOP_##name,
    RUN_STOPS(RUN_STOP)
#undef RUN_STOP
} run_stop;
const char *run_stop_name(run_stop stop);

typedef struct run_turn {
    int64_t kept;   /* tokens that were in the cache before it */
    int64_t prompt; /* tokens fed for it */
    int64_t generated;
    run_stop stop;
    size_t text; /* where its text begins in generator.text */
} run_turn;

typedef struct generator {
    session *s;
    const chat *chat;
    const run_settings *set;
    bool started; /* the line at the start was printed */
    struct llama_sampler *sampler;
    struct llama_batch batch;
    llama_token_data *candidate; /* [n_vocab] */
    int32_t n_vocab;
    llama_token *end; /* tokens that end generation, for --ignore-eos */
    int32_t n_end;
    llama_token pending; /* sampled and shown, but not yet in the cache */
    bool has_pending;
    cli_text held; /* bytes of an incomplete UTF-8 sequence */
    cli_text text; /* all generated text, valid UTF-8 */
    run_turn *turn;
    size_t n_turns;
    double prefill_seconds, decode_seconds;
    int64_t prefill_tokens, decode_tokens;
} generator;

int generator_open(generator *g, session *s, const chat *c, const run_settings *set);
void generator_close(generator *g);
/* Says on stderr, once, how the cache is folded. The first turn does it when it fits; a conversation does it at once. */
void generator_start(generator *g);

/* Feeds the text of a turn and generates the answer. CLI_GO, also when interrupted or full (see the turn's stop), or an exit
 * code. */
int generate_turn(generator *g, const char *text, size_t length);
run_stop generator_stop(const generator *g); /* of the last turn */
/* Says on stderr that the context is full, when that is why the last turn ended. */
void generator_say_full(const generator *g);

/* ---- sample.c -------------------------------------------------------------------------------------------------------------- */

/* The sampler chain of llama.cpp, in its order. */
struct llama_sampler *generator_sampler(const run_settings *set, int32_t n_vocab);
/* The next token from the logits of the last row. CLI_GO or an exit code. */
int generator_sample(generator *g, llama_token *token);

/* Adds bytes to the text and shows what is complete; the rest waits for the next token, unless this is the end. CLI_GO, or an
 * exit code when stdout is broken. */
int generator_emit(generator *g, const char *bytes, size_t n, bool end);
int generator_emit_token(generator *g, llama_token token);
/* Did the text from `begin` on come to contain a reverse prompt when it grew from `before` bytes? */
bool generator_reversed(const generator *g, size_t begin, size_t before);

/* ---- report.c -------------------------------------------------------------------------------------------------------------- */

/* Prints the closing report, or the JSON object. `g` may be without a folded cache when the run was interrupted early. */
int report_print(const generator *g);
/* One line on stderr at the start, and which layers are not folded. */
void report_start(const session *s, const chat *c);

#endif
