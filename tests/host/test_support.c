/* SPDX-License-Identifier: MIT
 * docs/SUPPORT.md claims what the list of tested models holds, no more and no less. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gen_model.h"

static char *read_document(void)
{
    char path[1024];
    const char *source = getenv("KVFOLD_SOURCE");
    snprintf(path, sizeof path, "%s/docs/SUPPORT.md", source ? source : ".");
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("no %s", path);
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 16) - 1, f) > 0);
    fclose(f);
    return text;
}

static void test_table(void **state)
{
    char *table = NULL, *document = read_document();
    size_t size = 0;
    (void)state;
    FILE *f = open_memstream(&table, &size);
    assert_non_null(f);
    gen_model_support(f);
    fclose(f);
    char *first = strchr(document, '|'), *end = first ? strstr(first, "\n\n") : NULL;
    assert_non_null(end);
    end[1] = 0;
    if (strcmp(first, table)) fail_msg("the table of docs/SUPPORT.md is not the one that gen-model --support prints");
    free(table);
    free(document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
