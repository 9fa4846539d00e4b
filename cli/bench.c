/* SPDX-License-Identifier: MIT */
#include "bench.h"
#include "cli.h"

#include <string.h>

int cmd_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "attend") == 0) return bench_attend(argc - 1, argv + 1);
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) return bench_attend(argc, argv);
    if (argc > 1)
        cli_error("bench: unknown subject '%s'; there is: attend", argv[1]);
    else
        cli_error("bench: what? There is: attend (kvfold bench attend --help lists its options)");
    return CLI_USAGE;
}
