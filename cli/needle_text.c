/* SPDX-License-Identifier: MIT
 * Notes that nobody has read before: sentences put together by lot, so that nothing in them can be known or guessed. */
#include "measure_random.h"
#include "needle.h"
#include "tokens.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(a) ((int)(sizeof(a) / sizeof(a)[0]))

#define PICK(state, list) (list)[measure_below(state, COUNT(list))]

/* ---- sentences ----------------------------------------------------------------------------------------------------------------- */

static void add_note(cli_text *t, uint64_t *r)
{
    static const char *const who[] = {"The baker",  "A carpenter",  "My neighbour", "The old gardener", "A young clerk",
                                      "The miller", "Her cousin",   "The postman",  "A tired sailor",   "The teacher",
                                      "Our cook",   "The watchman", "A painter",    "The librarian",    "His aunt"};
    static const char *const did[] = {"carried",  "mended", "painted", "sold",    "forgot",  "borrowed", "cleaned",
                                      "measured", "hid",    "found",   "weighed", "dropped", "wrapped",  "counted"};
    static const char *const what[] = {"two baskets of pears", "a wooden ladder",     "the kitchen clock", "a bundle of letters",
                                       "three loaves",         "an iron kettle",      "a pair of boots",   "the garden bench",
                                       "a sack of flour",      "the yellow curtains", "a small drum",      "an old map"};
    static const char *const where[] = {"behind the mill",    "near the market",   "by the river",     "in the attic",
                                        "under the bridge",   "at the station",    "next to the well", "on the upper floor",
                                        "outside the chapel", "beside the orchard"};
    static const char *const when[] = {"before breakfast",       "on a rainy evening", "early in the week", "when the bells rang",
                                       "after the first frost",  "towards noon",       "while it snowed",   "late in the autumn",
                                       "on the day of the fair", "without a word"};
    cli_text_format(t, "%s %s %s %s %s.\n", PICK(r, who), PICK(r, did), PICK(r, what), PICK(r, where), PICK(r, when));
}

/* Fact i of NEEDLE_PLACES. */
static void add_place(cli_text *t, int i)
{
    static const char *const colour[] = {"red",    "green", "blue", "white",  "black",  "brown",
                                         "golden", "grey",  "pink", "orange", "silver", "violet"};
    static const char *const thing[] = {"gate",   "boat", "chest",  "tower",  "cabinet", "door",
                                        "cellar", "barn", "locker", "garage", "trunk",   "shed"};
    cli_text_format(t, "The code of the %s %s is", colour[i % COUNT(colour)], thing[i / COUNT(colour) % COUNT(thing)]);
}

/* ---- tokens -------------------------------------------------------------------------------------------------------------------- */

typedef struct builder {
    const struct llama_vocab *vocab;
    llama_token *token;
    int32_t n, room;
    bool failed;
} builder;

/* Tokens of a sentence; free them. */
static llama_token *tokens_of(builder *b, const cli_text *t, bool begin, int32_t *n)
{
    llama_token *list = NULL;
    *n = cli_tokenize(b->vocab, t->data, t->length, begin, false, 0, &list);
    if (*n < 0) b->failed = true, *n = 0;
    return list;
}

static void append(builder *b, const llama_token *token, int32_t n)
{
    if (b->n + n > b->room) b->failed = true;
    if (b->failed) return;
    memcpy(b->token + b->n, token, (size_t)n * sizeof *token);
    b->n += n;
}

/* A planted fact: its tokens, and the token of the notes before which it belongs. */
typedef struct fact {
    llama_token *token;
    int32_t n, at;
} fact;

typedef struct question {
    llama_token *begin, *end;
    int32_t n_begin, n_end;
} question;

static void make_fact(builder *b, fact *f, int place, uint32_t code, int32_t at)
{
    cli_text t = {0};
    add_place(&t, place);
    cli_text_format(&t, " %u.\n", code);
    f->token = tokens_of(b, &t, false, &f->n);
    f->at = at;
    cli_text_free(&t);
}

static void make_question(builder *b, question *q, int place)
{
    cli_text t = {0};
    cli_text_format(&t, "Notes of the village. Some of them tell a code.\n");
    q->begin = tokens_of(b, &t, true, &q->n_begin);
    t.length = 0;
    cli_text_format(&t, "End of the notes. One code was asked for.\n");
    add_place(&t, place);
    q->end = tokens_of(b, &t, false, &q->n_end);
    cli_text_free(&t);
}

/* Notes until `most` tokens are there; a fact goes before the first note that would begin behind its place. */
static void add_notes(builder *b, uint64_t seed, int32_t most, const fact *facts, int n)
{
    bool placed[NEEDLE_PLACES] = {false};
    int32_t notes = 0;
    for (bool more = true; more && !b->failed;) {
        cli_text t = {0};
        int32_t length;
        add_note(&t, &seed);
        llama_token *list = tokens_of(b, &t, false, &length);
        more = notes + length <= most;
        for (int i = 0; i < n; i++) {
            if (placed[i] || (more && facts[i].at > notes)) continue;
            append(b, facts[i].token, facts[i].n);
            placed[i] = true;
        }
        if (more) append(b, list, length), notes += length;
        free(list);
        cli_text_free(&t);
    }
}

/* Different places, by a walk through all of them. */
static int place_of(uint64_t seed, int i)
{
    return (int)((seed * 7919 + (uint64_t)i * 55) % NEEDLE_PLACES); /* 55 and 144 have no common divisor */
}

bool needle_make(needle_prompt *p, const needle_task *task, const struct llama_vocab *vocab)
{
    builder b = {vocab, cli_alloc((size_t)task->length, sizeof *b.token), 0, task->length, false};
    fact *facts = cli_alloc((size_t)task->needles, sizeof *facts);
    uint64_t r = task->seed * 2 + 1;
    question q;
    int32_t notes = task->length - NEEDLE_ANSWER;
    make_question(&b, &q, place_of(task->seed, 0));
    notes -= q.n_begin + q.n_end;
    for (int i = 0; i < task->needles; i++) {
        const uint32_t code = 1000 + (uint32_t)measure_below(&r, 9000), lot = (uint32_t)measure_below(&r, 1000);
        if (i == 0) snprintf(p->answer, sizeof p->answer, "%u", code);
        make_fact(&b, &facts[i], place_of(task->seed, i), code, 0);
        notes -= facts[i].n;
        facts[i].at = (int32_t)lot;
    }
    for (int i = 0; i < task->needles; i++) facts[i].at = (int32_t)((i ? facts[i].at / 1000.0 : task->depth) * notes);
    append(&b, q.begin, q.n_begin);
    if (notes < 0) b.failed = true;
    add_notes(&b, task->seed + 1000, notes, facts, task->needles);
    append(&b, q.end, q.n_end);
    for (int i = 0; i < task->needles; i++) free(facts[i].token);
    free(facts), free(q.begin), free(q.end);
    p->token = b.token, p->n = b.n;
    if (b.failed) free(b.token), p->token = NULL;
    return !b.failed;
}
