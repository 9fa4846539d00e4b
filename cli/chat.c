/* SPDX-License-Identifier: MIT
 * Turns of a conversation as text for the model. libllama knows a fixed list of templates (it does not run Jinja); the model's
 * own text is matched against that list.
 */
#include "run.h"

#include <stdlib.h>
#include <string.h>

/* Stands for the last reply while the text after it is computed; no template trims or changes it. */
static const char MARK[] = "\x02reply\x03";

static char *copy(const char *text)
{
    size_t n = strlen(text) + 1;
    return memcpy(cli_alloc(n, 1), text, n);
}

static void add(chat *c, const char *role, const char *content)
{
    if (c->n == c->capacity) {
        c->capacity = c->capacity ? 2 * c->capacity : 16;
        struct llama_chat_message *grown = cli_alloc(c->capacity, sizeof *grown);
        if (c->n > 0) memcpy(grown, c->message, c->n * sizeof *grown);
        free(c->message);
        c->message = grown;
    }
    c->message[c->n++] = (struct llama_chat_message){.role = role, .content = copy(content)};
}

/* Applies a template; the caller frees the text. NULL when libllama does not know it. */
static char *apply(const char *form, const struct llama_chat_message *message, size_t n, bool open_reply)
{
    int32_t size = 1024;
    for (;;) {
        char *text = cli_alloc((size_t)size + 1, 1);
        int32_t needed = llama_chat_apply_template(form, message, n, open_reply, text, size);
        if (needed >= 0 && needed <= size) return text;
        free(text);
        if (needed < 0) return NULL;
        size = needed;
    }
}

/* ---- choosing the template ------------------------------------------------------------------------------------------------- */

static const char **built_in(int32_t *n)
{
    *n = llama_chat_builtin_templates(NULL, 0);
    const char **names = cli_alloc((size_t)*n, sizeof *names);
    llama_chat_builtin_templates(names, (size_t)*n);
    return names;
}

/* libllama does not say which template it recognised, so compare what each makes of a small conversation. */
static bool find_name(const char *form, char *name, size_t size)
{
    static const struct llama_chat_message probe[] = {{"system", "A"}, {"user", "B"}, {"assistant", "C"}, {"user", "D"}};
    char *wanted = apply(form, probe, 4, true);
    if (!wanted) return false;
    snprintf(name, size, "of the model");
    int32_t n;
    const char **names = built_in(&n);
    bool found = false;
    for (int32_t i = 0; i < n && !found; i++) {
        char *text = apply(names[i], probe, 4, true);
        found = text && strcmp(text, wanted) == 0;
        if (found) snprintf(name, size, "%s", names[i]);
        free(text);
    }
    free(names);
    free(wanted);
    return true;
}

static int use_named(chat *c, const char *wanted)
{
    int32_t n;
    const char **names = built_in(&n);
    cli_text all = {0};
    bool found = false;
    for (int32_t i = 0; i < n; i++) {
        found = found || strcmp(names[i], wanted) == 0;
        cli_text_format(&all, "%s%s", i ? ", " : "", names[i]);
    }
    if (found) {
        c->form = wanted;
        snprintf(c->name, sizeof c->name, "%s", wanted);
    } else {
        cli_error("--chat-template: '%s' is not known; known: %s", wanted, all.data ? all.data : "none");
    }
    cli_text_free(&all);
    free(names);
    return found ? CLI_GO : CLI_USAGE;
}

static int use_models_own(chat *c, const struct llama_model *model)
{
    const char *form = llama_model_chat_template(model, NULL);
    if (!form || !form[0]) {
        cli_note("the model has no chat template: the text is fed as it is (as with --raw)");
        return CLI_GO;
    }
    if (!find_name(form, c->name, sizeof c->name)) {
        cli_error("libllama does not know the chat template of this model: choose one with --chat-template NAME, or use --raw");
        return CLI_CANNOT;
    }
    c->form = form;
    return CLI_GO;
}

int chat_open(chat *c, const struct llama_model *model, const run_settings *set)
{
    int code = CLI_GO;
    *c = (chat){0};
    snprintf(c->name, sizeof c->name, "none");
    if (set->chat_template)
        code = use_named(c, set->chat_template);
    else if (!set->raw)
        code = use_models_own(c, model);
    if (code == CLI_GO && set->system) add(c, "system", set->system);
    return code;
}

void chat_close(chat *c)
{
    for (size_t i = 0; i < c->n; i++) free((void *)(uintptr_t)c->message[i].content);
    free(c->message);
    *c = (chat){0};
}

/* ---- turns ----------------------------------------------------------------------------------------------------------------- */

/* Text after the last reply, which stands at message n-2: it closes that reply and opens the next one. */
static const char *after_reply(const chat *c, char **whole)
{
    struct llama_chat_message *m = cli_alloc(c->n, sizeof *m);
    memcpy(m, c->message, c->n * sizeof *m);
    m[c->n - 2].content = MARK;
    *whole = apply(c->form, m, c->n, true);
    free(m);
    const char *mark = *whole ? strstr(*whole, MARK) : NULL;
    return mark ? mark + strlen(MARK) : NULL;
}

int chat_ask(chat *c, const char *user, cli_text *text)
{
    bool first = !c->answered;
    if (!c->form) {
        if (first && c->n > 0) /* -sys without a template */
            cli_text_format(text, "%s\n\n", c->message[0].content);
        cli_text_add(text, user, strlen(user));
        return CLI_GO;
    }
    add(c, "user", user);
    char *whole = NULL;
    const char *part = first ? (whole = apply(c->form, c->message, c->n, true)) : after_reply(c, &whole);
    if (part)
        cli_text_add(text, part, strlen(part));
    else
        cli_error("the chat template %s cannot continue a conversation: use --chat-template NAME, or --raw", c->name);
    free(whole);
    return part ? CLI_GO : CLI_CANNOT;
}

void chat_reply(chat *c, const char *reply)
{
    c->answered = true;
    if (c->form) add(c, "assistant", reply);
}
