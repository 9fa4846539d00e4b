/* SPDX-License-Identifier: MIT
 * Results as people and programs see them: cells, tables, CSV, the command line that is kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/result.h"

#include <jansson.h>

#include <string.h>

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *o = json_loads(text, 0, &error);
    if (!o) fail_msg("%s", error.text);
    return o;
}

static void cell_is(const char *row, result_column column, const char *expected)
{
    char text[160];
    json_t *o = parse(row);
    result_cell(o, &column, text, sizeof text);
    assert_string_equal(text, expected);
    json_decref(o);
}

static void test_cells(void **state)
{
    (void)state;
    cell_is("{\"a\": 12.345}", (result_column){"a", "", RESULT_NUMBER, 1}, "12.3");
    cell_is("{\"a\": 0.128}", (result_column){"a", "", RESULT_PERCENT, 1}, "12.8 %");
    cell_is("{\"a\": 1572864}", (result_column){"a", "", RESULT_MIB, 2}, "1.50");
    cell_is("{\"a\": 0.00123}", (result_column){"a", "", RESULT_TINY, 1}, "1.2e-03");
    cell_is("{\"a\": null}", (result_column){"a", "", RESULT_NUMBER, 1}, "-");
    cell_is("{}", (result_column){"a", "", RESULT_MIB, 1}, "-");
    cell_is("{}", (result_column){"a", "", RESULT_TEXT, 0}, "");
}

/* A ratio is shown only where something may be said about it. */
static void test_ratio_cells(void **state)
{
    (void)state;
    const result_column ratio = {"ratio", "", RESULT_RATIO, 0}, ceiling = {"ceiling", "", RESULT_CEILING, 0};
    cell_is("{\"verdict\":\"baseline\",\"ratio\":1,\"distinguishable\":false}", ratio, "the baseline");
    cell_is("{\"verdict\":\"faster\",\"distinguishable\":true,\"ratio\":2,\"ratio_low\":1.9,\"ratio_high\":2.1}", ratio,
            "2.00 (1.90 to 2.10)");
    cell_is("{\"verdict\":\"not distinguishable\",\"distinguishable\":false,\"ratio\":1.4,\"ratio_low\":0.9,\"ratio_high\":2.1}",
            ratio, "not distinguishable (0.90 to 2.10)");
    cell_is("{\"verdict\":\"too few samples\",\"distinguishable\":false,\"ratio\":9,\"ratio_low\":8,\"ratio_high\":10}", ratio,
            "too few samples (8.00 to 10.00)");
    cell_is("{\"ceiling\":3,\"amdahl\":2.5}", ceiling, "2.50 Amdahl");
    cell_is("{\"ceiling\":3,\"amdahl\":null}", ceiling, "3.00 memory");
    cell_is("{\"ceiling\":2,\"amdahl\":2.5}", ceiling, "2.00 memory");
    cell_is("{}", ceiling, "-");
}

static json_t *small_result(void)
{
    return parse("{\"kind\":\"attend\",\"command\":\"kvfold x\",\"runs\":[{\"title\":\"one\",\"threads\":2,\"notes\":[\"n\"]},"
                 "{\"title\":\"a \\\"b\\\", c\",\"threads\":4}],\"rows\":["
                 "{\"run\":0,\"name\":\"x/y\",\"us_median\":1.5,\"us\":[1,2],\"distinguishable\":true},"
                 "{\"run\":1,\"name\":\"z\",\"us_median\":2,\"threads\":8,\"cpu\":\"avx2\"}]}");
}

static void test_csv(void **state)
{
    (void)state;
    json_t *o = small_result();
    cli_text t = {0};
    result_csv(o, &t);
    assert_string_equal(t.data, "title,threads,run,name,us_median,distinguishable,cpu\n"
                                "one,2,0,x/y,1.5,true,\n"
                                "\"a \"\"b\"\", c\",8,1,z,2,,avx2\n");
    cli_text_free(&t);
    json_decref(o);
}

/* Columns in which nothing stands are left out; each run has its own table. */
static void test_tables(void **state)
{
    (void)state;
    json_t *o = small_result();
    cli_text t = {0};
    result_markdown(o, result_table_of("attend"), &t);
    assert_non_null(strstr(t.data, "### one\n\n- n\n\n| K/V | us median |"));
    assert_non_null(strstr(t.data, "|---|--:|"));
    assert_non_null(strstr(t.data, "| x/y |       1.5 |"));
    assert_null(strstr(t.data, "GB/s"));
    t.length = 0;
    result_text(o, result_table_of("attend"), &t);
    assert_non_null(strstr(t.data, "\nK/V  us median\n"));
    cli_text_free(&t);
    json_decref(o);
}

/* What a reader must not miss: that it is not all, that rows rest on different amounts, doubts with their run, what was refused. */
static void test_remarks(void **state)
{
    (void)state;
    json_t *o = parse("{\"kind\":\"attend\",\"interrupted\":true,\"runs\":[{\"title\":\"one\"},{\"title\":\"two\"}],"
                      "\"refused\":[\"x: no\"],\"rows\":[{\"run\":0,\"name\":\"a\",\"samples\":9},{\"run\":0,\"name\":\"b\","
                      "\"samples\":4},{\"run\":1,\"name\":\"a\",\"samples\":9,\"doubts\":\"odd\"}]}");
    cli_text t = {0};
    static const char *const lines[] = {"Interrupted: this is not all.", "Uneven: ", "DOUBTFUL a (two): odd", "Refused: x: no"};
    for (int markdown = 0; markdown < 2; markdown++) {
        t.length = 0;
        (markdown ? result_markdown : result_text)(o, result_table_of("attend"), &t);
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
            if (!strstr(t.data, lines[i])) fail_msg("'%s' is not in '%s'", lines[i], t.data);
    }
    json_object_set_new(json_array_get(json_object_get(o, "rows"), 1), "run", json_integer(1)); /* other runs may be longer */
    json_object_set_new(json_array_get(json_object_get(o, "rows"), 1), "samples", json_integer(9));
    t.length = 0;
    result_text(o, result_table_of("attend"), &t);
    assert_null(strstr(t.data, "Uneven"));
    cli_text_free(&t);
    json_decref(o);
}

/* However long: what was measured must be measurable again. */
static void test_long_command(void **state)
{
    (void)state;
    static char word[9000];
    memset(word, 'x', sizeof word - 1);
    char *argv[] = {"kvfold", word};
    result_command(2, argv);
    json_t *o = result_new("ops", 7);
    assert_int_equal(strlen(result_string(o, "command")), 7 + sizeof word - 1);
    json_decref(o);
}

static void test_command(void **state)
{
    (void)state;
    char *argv[] = {"/usr/bin/kvfold", "run", "a b", "it's", "", "--kv=q4_0:rot=h,x/y"};
    result_command(6, argv);
    json_t *o = result_new("ops", 7);
    assert_string_equal(result_string(o, "command"), "kvfold run 'a b' 'it'\\''s' '' --kv=q4_0:rot=h,x/y");
    assert_int_equal(result_real(o, "format"), RESULT_FORMAT);
    assert_int_equal(result_real(o, "seed"), 7);
    json_decref(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells),        cmocka_unit_test(test_ratio_cells), cmocka_unit_test(test_csv),
        cmocka_unit_test(test_tables),       cmocka_unit_test(test_command),     cmocka_unit_test(test_remarks),
        cmocka_unit_test(test_long_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
