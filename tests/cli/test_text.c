/* SPDX-License-Identifier: MIT
 * Strings of the program: UTF-8, escapes, sizes, edit distance. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/run.h"

static int step(const char *bytes)
{
    return cli_utf8_step(bytes, strlen(bytes));
}

static void test_utf8_step(void **state)
{
    (void)state;
    assert_int_equal(step("a"), 1);
    assert_int_equal(step("\xC3\xA9"), 2);
    assert_int_equal(step("\xE2\x82\xAC"), 3);
    assert_int_equal(step("\xF0\x9F\x98\x80"), 4);
    assert_int_equal(step("\xF4\x8F\xBF\xBF"), 4);
    /* Cut off: more bytes may come. */
    assert_int_equal(step(""), 0);
    assert_int_equal(step("\xC3"), 0);
    assert_int_equal(step("\xE2\x82"), 0);
    assert_int_equal(step("\xF0\x9F\x98"), 0);
    /* Never valid: continuation first, overlong, surrogate, above U+10FFFF, broken in the middle. */
    assert_int_equal(step("\x80"), -1);
    assert_int_equal(step("\xC0\xAF"), -1);
    assert_int_equal(step("\xC1\xBF"), -1);
    assert_int_equal(step("\xE0\x9F\xBF"), -1);
    assert_int_equal(step("\xED\xA0\x80"), -1);
    assert_int_equal(step("\xF0\x8F\xBF\xBF"), -1);
    assert_int_equal(step("\xF4\x90\x80\x80"), -1);
    assert_int_equal(step("\xF5\x80\x80\x80"), -1);
    assert_int_equal(step("\xC3("), -1);
    assert_int_equal(step("\xE2\x82("), -1);
    assert_int_equal(step("\xF0\x9F\x98("), -1);
}

/* Against a plain reading of RFC 3629: all code points come through, nothing else does. */
static void test_utf8_all(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        unsigned char u[4];
        int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        static const unsigned char lead[] = {0, 0x00, 0xC0, 0xE0, 0xF0};
        for (int i = n - 1; i > 0; i--) u[i] = (unsigned char)(0x80 | (c >> (6 * (n - 1 - i)) & 0x3F));
        u[0] = (unsigned char)(lead[n] | c >> (6 * (n - 1)));
        int wanted = c >= 0xD800 && c < 0xE000 ? -1 : n;
        if (cli_utf8_step((const char *)u, (size_t)n) != wanted) fail_msg("U+%04X", (unsigned)c);
    }
}

static void test_utf8_add(void **state)
{
    (void)state;
    cli_text t = {0};
    assert_int_equal(cli_utf8_add(&t, "a\xFF\xC3\xA9", 4), 1);
    assert_string_equal(t.data, "a\xEF\xBF\xBD\xC3\xA9");
    assert_int_equal(cli_utf8_add(&t, "\xE2\x82", 2), 2);
    assert_string_equal(t.data, "a\xEF\xBF\xBD\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD");
    assert_int_equal(t.length, strlen(t.data));
    cli_text_free(&t);
    assert_null(t.data);
}

static void test_text_grows(void **state)
{
    (void)state;
    cli_text t = {0};
    for (int i = 0; i < 1000; i++) cli_text_format(&t, "%d,", i % 10);
    assert_int_equal(t.length, 2000);
    assert_true(t.capacity > t.length);
    assert_memory_equal(t.data, "0,1,2,3,", 8);
    assert_memory_equal(t.data + 1980, "0,1,2,3,", 8);
    assert_int_equal(t.data[2000], 0);
    cli_text_add(&t, "\0x", 2);
    assert_int_equal(t.length, 2002);
    assert_int_equal(t.data[2001], 'x');
    cli_text_free(&t);
}

static void unescaped(const char *from, const char *to)
{
    char text[64];
    strcpy(text, from);
    cli_unescape(text);
    assert_string_equal(text, to);
}

static void test_unescape(void **state)
{
    (void)state;
    unescaped("plain", "plain");
    unescaped("a\\nb\\tc\\rd", "a\nb\tc\rd");
    unescaped("\\\\n", "\\n");
    unescaped("\\\"\\'", "\"'");
    unescaped("\\x41\\xe2\\x82\\xAC", "A\xE2\x82\xAC");
    unescaped("\\x4", "\\x4");
    unescaped("\\xg1", "\\xg1");
    unescaped("\\q", "\\q");
    unescaped("end\\", "end\\");
}

static void test_distance(void **state)
{
    (void)state;
    assert_int_equal(cli_distance("", ""), 0);
    assert_int_equal(cli_distance("abc", ""), 3);
    assert_int_equal(cli_distance("", "abc"), 3);
    assert_int_equal(cli_distance("kitten", "sitting"), 3);
    assert_int_equal(cli_distance("--modle", "--model"), 2);
    assert_int_equal(cli_distance("flaw", "lawn"), 2);
}

static void test_bytes(void **state)
{
    (void)state;
    assert_string_equal(cli_bytes(0), "0 B");
    assert_string_equal(cli_bytes(1023), "1023 B");
    assert_string_equal(cli_bytes(1024), "1.0 KiB");
    assert_string_equal(cli_bytes(23592960), "22.5 MiB");
    assert_string_equal(cli_bytes((int64_t)3 << 40), "3.0 TiB");
    assert_string_equal(cli_bytes(-1), "unknown");
    const char *a = cli_bytes(1), *b = cli_bytes(2);
    assert_string_equal(a, "1 B");
    assert_string_equal(b, "2 B");
}

static void test_exit_codes(void **state)
{
    (void)state;
    assert_int_equal(cli_exit_of(0), CLI_DONE);
    assert_int_equal(cli_exit_of(-2), CLI_USAGE);
    assert_int_equal(cli_exit_of(-3), CLI_CANNOT);
    assert_int_equal(cli_exit_of(-4), CLI_CANNOT);
    assert_int_equal(cli_exit_of(-13), CLI_DAMAGED);
}

/* A character that spans tokens appears once it is complete; what stays incomplete becomes U+FFFD at the end. */
static void test_stream(void **state)
{
    (void)state;
    run_settings set = {.json = true}; /* nothing to stdout */
    generator g = {.set = &set};
    assert_int_equal(generator_emit(&g, "a\xE2", 2, false), CLI_GO);
    assert_string_equal(g.text.data, "a");
    assert_int_equal(generator_emit(&g, "\x82", 1, false), CLI_GO);
    assert_string_equal(g.text.data, "a");
    assert_int_equal(generator_emit(&g, "\xAC!", 2, false), CLI_GO);
    assert_string_equal(g.text.data, "a\xE2\x82\xAC!");
    assert_int_equal(generator_emit(&g, "\xFF\xC3", 2, false), CLI_GO);
    assert_string_equal(g.text.data, "a\xE2\x82\xAC!\xEF\xBF\xBD");
    assert_int_equal(generator_emit(&g, "", 0, true), CLI_GO);
    assert_string_equal(g.text.data, "a\xE2\x82\xAC!\xEF\xBF\xBD\xEF\xBF\xBD");
    generator_close(&g);
}

static bool stops(const char *before, const char *piece, size_t begin)
{
    run_settings set = {.json = true, .reverse = {.item = {"User:", ""}, .n = 2}};
    generator g = {.set = &set};
    generator_emit(&g, before, strlen(before), false);
    generator_emit(&g, piece, strlen(piece), false);
    bool stop = generator_reversed(&g, begin, strlen(before));
    generator_close(&g);
    return stop;
}

static void test_reverse_prompt(void **state)
{
    (void)state;
    assert_true(stops("hello Us", "er: and", 0));
    assert_true(stops("hello User", ":", 0));
    assert_true(stops("", "User:", 0));
    assert_false(stops("hello Us", "er", 0));
    assert_false(stops("User: hello", " there", 0)); /* was there before */
    assert_false(stops("User", ":", 4));             /* began in the turn before */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utf8_step),      cmocka_unit_test(test_utf8_all),   cmocka_unit_test(test_utf8_add),
        cmocka_unit_test(test_text_grows),     cmocka_unit_test(test_unescape),   cmocka_unit_test(test_distance),
        cmocka_unit_test(test_bytes),          cmocka_unit_test(test_exit_codes), cmocka_unit_test(test_stream),
        cmocka_unit_test(test_reverse_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
