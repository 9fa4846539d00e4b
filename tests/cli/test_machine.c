/* SPDX-License-Identifier: MIT
 * The last-level caches of machines that are not this one. */
#define _XOPEN_SOURCE 700
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char folder[] = "/tmp/kvfold-machine-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static void put(int cpu, int index, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/cpu%d", folder, cpu);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/cpu%d/cache", folder, cpu);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/cpu%d/cache/index%d", folder, cpu, index);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/cpu%d/cache/index%d/%s", folder, cpu, index, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", text);
    fclose(f);
}

/* A second level of its own for each processor, a third for each pair: four processors have two of them. */
static void test_caches(void **state)
{
    (void)state;
    assert_int_equal(machine_caches_below(folder), 0);
    for (int cpu = 0; cpu < 4; cpu++) {
        char own[8];
        snprintf(own, sizeof own, "%d", cpu);
        put(cpu, 0, "level", "2"), put(cpu, 0, "size", "1024K"), put(cpu, 0, "shared_cpu_list", own);
        put(cpu, 1, "level", "3"), put(cpu, 1, "size", "32M"), put(cpu, 1, "shared_cpu_list", cpu < 2 ? "0-1" : "2-3");
    }
    assert_int_equal(machine_caches_below(folder), 2 * 32 << 20);
    assert_true(machine_last_level_cache() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_caches)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
