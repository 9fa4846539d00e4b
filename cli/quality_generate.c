/* SPDX-License-Identifier: MIT
 * kvfold quality --generate: what the model writes with each cache. Small models fail some questions with an exact cache, too: the
 * reference's own rate is what an arm can lose from.
 */
#include "quality.h"
#include "tokens.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

enum { LOG_ENTRIES = 26, GREEDY_TOKENS = 64, ANSWER_TOKENS = 48, PROMPT_MOST = 1400 };

const char *const quality_check_name[QUALITY_CHECKS] = {"same text", "recall", "arithmetic", "structure"};
const char *const quality_check_key[QUALITY_CHECKS] = {"same_text", "recall", "arithmetic", "structure"};

typedef struct question {
    quality_check kind;
    const char *text, *answer;
} question;

static const question questions[] = {
#define QUALITY_FACT(entry, sentence, question, answer) {QUALITY_RECALL, question, answer},
#define QUALITY_QUESTION(kind, question, answer) {QUALITY_##kind, question, answer},
#include "quality_checks.def"
};
enum { QUESTIONS = sizeof questions / sizeof questions[0] };

/* ---- what precedes the questions ------------------------------------------------------------------------------------------- */

/* A harbour log with facts in it. The other entries are all different, so that none can be told from its place alone. */
static void add_log(cli_text *text)
{
    static const char *const wind[] = {"west", "north", "south", "east", "south-west"};
    static const char *const sight[] = {"two herring boats at the quay", "the crane under repair", "fog until noon",
                                        "a seal in the basin",           "the ferry late",         "rain on the roofs",
                                        "nets drying on the wall"};
    static const char *const end[] = {"Nothing was stolen.", "The lamp was lit at dusk.", "The tide came early.",
                                      "All ropes were checked."};
    cli_text_format(text, "The log of the harbour.\n");
    for (int i = 0; i < LOG_ENTRIES; i++) {
        const char *fact = NULL;
#define QUALITY_FACT(entry, sentence, question, answer) fact = i == (entry) ? sentence : fact;
#include "quality_checks.def"
        cli_text_format(text, "Entry %d. Wind from the %s, %s. %s\n", i, wind[i % 5], sight[i % 7], fact ? fact : end[i % 4]);
    }
}

static void add_examples(cli_text *text, quality_check kind)
{
#define QUALITY_EXAMPLE(k, line)                                                                                                 \
    if (kind == QUALITY_##k) cli_text_format(text, "%s\n", line);
#include "quality_checks.def"
}

static void add_setting(cli_text *text, quality_check kind)
{
    if (kind == QUALITY_GREEDY || kind == QUALITY_RECALL)
        add_log(text);
    else
        add_examples(text, kind);
}

/* ---- an answer ------------------------------------------------------------------------------------------------------------- */

typedef struct writer {
    const quality_run *run;
    quality_arm *arm;
    llama_token token[PROMPT_MOST]; /* of the prompt */
    int32_t n, held;                /* tokens of the prompt; those that the cache holds */
    llama_token answer[GREEDY_TOKENS];
    int32_t n_answer;
    cli_text text;
} writer;

static bool tokenize(writer *w, const char *setting, const char *text)
{
    cli_text all = {0};
    cli_text_format(&all, "%s%s", setting, text);
    llama_token *found;
    w->n = cli_tokenize(w->run->s->vocab, all.data, all.length, true, false, 0, &found);
    const bool fits = w->n > 0 && w->n <= PROMPT_MOST;
    if (fits) memcpy(w->token, found, (size_t)w->n * sizeof *found);
    free(found);
    cli_text_free(&all);
    if (fits) return true;
    snprintf(w->arm->failure, sizeof w->arm->failure, "a prompt of --generate has more than %d tokens", PROMPT_MOST);
    return false;
}

static void add_answer(writer *w, llama_token token)
{
    char piece[256];
    int32_t n = llama_token_to_piece(w->run->s->vocab, token, piece, sizeof piece, 0, false);
    w->answer[w->n_answer++] = token;
    if (n > 0) cli_text_add(&w->text, piece, (size_t)n);
}

/* The prompt in aligned batches, then single tokens, until the line or the text ends. False when it failed or was interrupted. */
static bool write_answer(writer *w, bool one_line)
{
    int32_t most = one_line ? ANSWER_TOKENS : GREEDY_TOKENS, at = w->held;
    w->n_answer = 0;
    w->text.length = 0;
    cli_text_add(&w->text, "", 0);
    w->arm->fed = 0;
    while (at < w->n) {
        int32_t aligned = (at / QUALITY_BATCH + 1) * QUALITY_BATCH, end = aligned < w->n ? aligned : w->n;
        if (!quality_arm_feed(w->arm, w->token, at, end, w->n - 1)) return false;
        at = end;
    }
    for (int32_t pos = w->n - 1;; pos++) {
        const float *logits = quality_arm_logits(w->arm, pos);
        llama_token token = logits ? cli_likeliest(logits, llama_vocab_n_tokens(w->run->s->vocab), NULL) : LLAMA_TOKEN_NULL;
        if (token == LLAMA_TOKEN_NULL || llama_vocab_is_eog(w->run->s->vocab, token)) return logits != NULL;
        add_answer(w, token);
        w->held = pos + 1;
        if (w->n_answer == most || (one_line && strchr(w->text.data, '\n'))) return true;
        if (!quality_arm_feed_one(w->arm, token, pos + 1)) return false;
    }
}

/* ---- is it right? ---------------------------------------------------------------------------------------------------------- */

static bool begins_with(const char *text, const char *answer)
{
    size_t n = strlen(answer);
    text += strspn(text, " ");
    bool digit = answer[n - 1] >= '0' && answer[n - 1] <= '9';
    return strncmp(text, answer, n) == 0 && !(digit && text[n] >= '0' && text[n] <= '9');
}

static bool same_object(const char *text, const char *answer)
{
    json_t *found = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL), *wanted = json_loads(answer, 0, NULL);
    bool same = found && wanted && json_equal(found, wanted);
    json_decref(found);
    json_decref(wanted);
    return same;
}

/* Tokens that the arm's text shares with the reference's, from the start. */
static int32_t shared(const writer *w, const quality_answer *reference)
{
    int32_t i = 0;
    while (i < w->n_answer && i < reference->n && w->answer[i] == reference->token[i]) i++;
    return i;
}

static bool greedy(writer *w, int index)
{
    quality_answer *reference = &w->run->answer[index];
    quality_generation *g = &w->arm->generation;
    if (w->arm == &w->run->reference) {
        memcpy(reference->token, w->answer, (size_t)w->n_answer * sizeof *w->answer);
        reference->n = w->n_answer;
    }
    int32_t same = shared(w, reference);
    g->same_tokens += same;
    g->tokens += reference->n;
    return same == reference->n && same == w->n_answer;
}

bool quality_right(quality_check kind, const char *text, const char *answer)
{
    return kind == QUALITY_STRUCTURE ? same_object(text, answer) : begins_with(text, answer);
}

static bool right(writer *w, int index)
{
    const question *q = &questions[index];
    return q->kind == QUALITY_GREEDY ? greedy(w, index) : quality_right(q->kind, w->text.data, q->answer);
}

/* ---- all questions --------------------------------------------------------------------------------------------------------- */

/* What follows the setting is cut off again, as a conversation that takes a turn back does; where a cache cannot, all begins anew. */
static bool ask(writer *w, const char *setting, int32_t n_setting, int index)
{
    bool long_text = questions[index].kind == QUALITY_GREEDY;
    if (!tokenize(w, setting, questions[index].text)) return false;
    if (w->held < n_setting || !quality_arm_cut(w->arm, n_setting)) {
        if (!w->arm->ctx || !quality_arm_clear(w->arm)) return false;
        w->held = 0;
    } else {
        w->held = n_setting;
    }
    if (!write_answer(w, !long_text)) return false;
    w->arm->generation.asked[questions[index].kind]++;
    w->arm->generation.passed[questions[index].kind] += right(w, index);
    return true;
}

/* Tokens of the setting that stay the same whatever follows: its last one may join with the question's first. */
static int32_t setting_tokens(writer *w, const char *setting)
{
    return tokenize(w, setting, "") && w->n > 1 ? w->n - 1 : 0;
}

static bool ask_all(writer *w, progress *bar)
{
    for (int kind = 0; kind < QUALITY_CHECKS; kind++) {
        cli_text setting = {0};
        add_setting(&setting, (quality_check)kind);
        int32_t n_setting = setting_tokens(w, setting.data);
        if (kind != QUALITY_RECALL) w->held = 0; /* its setting is that of the kind before it */
        bool go = n_setting > 0;
        for (int i = 0; go && i < QUESTIONS; i++) {
            if (questions[i].kind != (quality_check)kind) continue;
            go = ask(w, setting.data, n_setting, i);
            progress_set(bar, bar->done + 1);
        }
        cli_text_free(&setting);
        if (!go) return false;
    }
    return true;
}

static void generate(quality_run *run, quality_arm *arm, progress *bar)
{
    writer *w = cli_alloc(1, sizeof *w);
    quality_settings set = *run->set;
    set.context = PROMPT_MOST + GREEDY_TOKENS;
    w->run = run;
    w->arm = arm;
    if (quality_arm_open(arm, run->s, &set)) {
        arm->generation.done = ask_all(w, bar);
        quality_arm_close(arm);
    }
    if (arm != &run->reference && !arm->generation.done && !cli_interrupted())
        cli_error("--generate: %s cannot write: %s", arm->name, arm->failure[0] ? arm->failure : "unknown reason");
    cli_text_free(&w->text);
    free(w);
}

void quality_generate(quality_run *run)
{
    progress bar = progress_begin("generate", "questions", (int64_t)QUESTIONS * (run->n_arms + 1));
    run->answer = cli_alloc(QUESTIONS, sizeof *run->answer);
    quality_arm_close(&run->reference);
    generate(run, &run->reference, &bar);
    if (!run->reference.generation.done && !cli_interrupted())
        cli_error("--generate: the reference cannot write, so nothing was asked: %s",
                  run->reference.failure[0] ? run->reference.failure : "unknown reason");
    for (int i = 0; i < run->n_arms && run->reference.generation.done; i++)
        if (!run->arm[i].failure[0] && !cli_interrupted()) generate(run, &run->arm[i], &bar);
    progress_end(&bar);
    run->interrupted = run->interrupted || cli_interrupted();
}
