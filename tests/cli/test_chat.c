/* SPDX-License-Identifier: MIT
 * Conversations: what is fed turn by turn, with the replies between, is the text that the template makes of the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/run.h"

enum { MOST = 256, SIZE = 8192 };

static void ask(chat *c, const char *user, cli_text *all)
{
    assert_int_equal(chat_ask(c, user, all), CLI_GO);
}

static void reply(chat *c, const char *text, cli_text *all)
{
    cli_text_add(all, text, strlen(text));
    chat_reply(c, text);
}

static void converse(const char *name, const char *system, const char *lead, cli_text *all)
{
    chat c;
    char text[128];
    run_settings set = {.chat_template = name, .system = system};
    assert_int_equal(chat_open(&c, NULL, &set), CLI_GO);
    assert_string_equal(c.name, name);
    ask(&c, "One?", all);
    snprintf(text, sizeof text, "%sFirst.", lead);
    reply(&c, text, all);
    ask(&c, "Two?", all);
    snprintf(text, sizeof text, "%sSecond.", lead);
    reply(&c, text, all);
    ask(&c, "Three?", all);
    chat_close(&c);
}

static void apply(const char *name, const struct llama_chat_message *message, size_t n, char *text)
{
    memset(text, 0, SIZE);
    assert_in_range(llama_chat_apply_template(name, message, n, true, text, SIZE - 1), 1, SIZE - 1);
}

/* What a model has to generate before its reply so that the history looks as the template writes it: a space, a tag. False when
 * the template opens a reply with something that it leaves out of the history. */
static bool find_lead(const char *whole, const char *opened, char *lead, size_t size)
{
    size_t n = strlen(opened);
    const char *content = strstr(whole, "First.");
    if (strncmp(whole, opened, n) != 0) return false;
    assert_non_null(content);
    snprintf(lead, size, "%.*s", (int)(content - whole - (ptrdiff_t)n), whole + n);
    return true;
}

/* 1 when the template could be checked. */
static int check(const char *name, const char *system)
{
    const struct llama_chat_message message[] = {{"system", system}, {"user", "One?"},         {"assistant", "First."},
                                                 {"user", "Two?"},   {"assistant", "Second."}, {"user", "Three?"}};
    char whole[SIZE], opened[SIZE], lead[64];
    size_t skip = system == NULL;
    apply(name, message + skip, 6 - skip, whole);
    apply(name, message + skip, 2 - skip, opened);
    if (!find_lead(whole, opened, lead, sizeof lead)) return 0;
    cli_text all = {0};
    converse(name, system, lead, &all);
    if (strcmp(all.data, whole) != 0)
        print_error("template %s%s\n  whole: %s\n  turns: %s\n", name, system ? " with a system message" : "", whole, all.data);
    assert_string_equal(all.data, whole);
    cli_text_free(&all);
    return 1;
}

static void test_every_template(void **state)
{
    (void)state;
    const char *names[MOST];
    int32_t n = llama_chat_builtin_templates(names, MOST);
    assert_in_range(n, 10, MOST);
    int checked = 0;
    for (int32_t i = 0; i < n; i++) checked += check(names[i], NULL) + check(names[i], "Be brief.");
    assert_true(checked >= 2 * n - 4);
}

/* A reply that the template trims is fed once, as it was generated; the text after it is not disturbed. */
static void test_trimmed_reply(void **state)
{
    (void)state;
    chat c;
    run_settings set = {.chat_template = "gemma"};
    cli_text first = {0}, second = {0};
    assert_int_equal(chat_open(&c, NULL, &set), CLI_GO);
    ask(&c, "One?", &first);
    chat_reply(&c, "  First.\n\n");
    ask(&c, "Two?", &second);
    assert_string_equal(second.data, "<end_of_turn>\n<start_of_turn>user\nTwo?<end_of_turn>\n<start_of_turn>model\n");
    chat_close(&c);
    cli_text_free(&first);
    cli_text_free(&second);
}

static void test_raw(void **state)
{
    (void)state;
    chat c;
    run_settings set = {.raw = true, .system = "Rules."};
    cli_text all = {0};
    assert_int_equal(chat_open(&c, NULL, &set), CLI_GO);
    ask(&c, "One", &all);
    reply(&c, " two", &all);
    ask(&c, " three", &all);
    assert_string_equal(all.data, "Rules.\n\nOne two three");
    chat_close(&c);
    cli_text_free(&all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_template),
        cmocka_unit_test(test_trimmed_reply),
        cmocka_unit_test(test_raw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
