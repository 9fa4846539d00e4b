/* SPDX-License-Identifier: MIT */
#include "bench_e2e.h"
#include "cli.h"

#include <string.h>

typedef struct subject {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} subject;

static const subject subjects[] = {
#define BENCH_SUBJECT(name, summary) {#name, summary, bench_##name},
    BENCH_SUBJECTS
#undef BENCH_SUBJECT
};
enum { N_SUBJECTS = sizeof subjects / sizeof *subjects };

static int help(void)
{
    printf("usage: kvfold bench SUBJECT [OPTIONS]\n\nMeasures speed and memory by one protocol. SUBJECT is one of\n\n");
    for (int i = 0; i < N_SUBJECTS; i++) printf("  %-10s %s\n", subjects[i].name, subjects[i].summary);
    printf("\nkvfold bench SUBJECT --help lists the options.\n");
    return cli_finish(CLI_DONE);
}

int cmd_bench(int argc, char **argv)
{
    char names[128] = "";
    if (argc > 1 && strcmp(argv[1], "worker") == 0) return bench_worker(argc - 1, argv + 1); /* of e2e: not for people */
    for (int i = 0; i < N_SUBJECTS; i++) {
        if (argc > 1 && strcmp(argv[1], subjects[i].name) == 0) return subjects[i].run(argc - 1, argv + 1);
        size_t n = strlen(names);
        snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", subjects[i].name);
    }
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) return help();
    if (argc > 1)
        cli_error("bench: unknown subject '%s'; there are: %s", argv[1], names);
    else
        cli_error("bench: what? There are: %s (kvfold bench attend --help lists its options)", names);
    return CLI_USAGE;
}
