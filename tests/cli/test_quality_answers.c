/* SPDX-License-Identifier: MIT
 * How `quality --generate` judges what a model wrote. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/quality.h"

static void test_facts_and_sums(void **state)
{
    (void)state;
    assert_true(quality_right(QUALITY_RECALL, " 4817.\n", "4817"));
    assert_true(quality_right(QUALITY_RECALL, "Ingrid Solveig and", "Ingrid Solveig"));
    assert_false(quality_right(QUALITY_RECALL, " Ingrid", "Ingrid Solveig"));
    assert_false(quality_right(QUALITY_RECALL, " 48170", "4817"));
    assert_false(quality_right(QUALITY_RECALL, " 481", "4817"));
    assert_false(quality_right(QUALITY_RECALL, "the 4817", "4817"));
    assert_false(quality_right(QUALITY_RECALL, "", "4817"));
    assert_true(quality_right(QUALITY_ARITHMETIC, " 15\n3 + 4", "15"));
    assert_false(quality_right(QUALITY_ARITHMETIC, " 151", "15"));
    assert_false(quality_right(QUALITY_ARITHMETIC, " -15", "15"));
}

static void test_structure(void **state)
{
    (void)state;
    const char *answer = "{\"name\": \"Oscar\", \"age\": 44}";
    assert_true(quality_right(QUALITY_STRUCTURE, " {\"name\": \"Oscar\", \"age\": 44}\n", answer));
    assert_true(quality_right(QUALITY_STRUCTURE, "{ \"age\":44,\"name\":\"Oscar\"}", answer));         /* the order is free */
    assert_false(quality_right(QUALITY_STRUCTURE, " {\"name\": \"Oscar\", \"age\": 44", answer));      /* not closed */
    assert_false(quality_right(QUALITY_STRUCTURE, " {\"name\": \"Oscar\", \"age\": \"44\"}", answer)); /* a string */
    assert_false(quality_right(QUALITY_STRUCTURE, " {\"name\": \"Oscar\"}", answer));
    assert_false(quality_right(QUALITY_STRUCTURE, " {\"name\": \"Oskar\", \"age\": 44}", answer));
    assert_false(quality_right(QUALITY_STRUCTURE, "name: Oscar", answer));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_facts_and_sums),
        cmocka_unit_test(test_structure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
