/* SPDX-License-Identifier: MIT
 * The program: finds the sub-command in the one table and calls it. */
#include "cli.h"
#include "result.h"
#include "version.h"

#include <string.h>

typedef struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} command;

static const command commands[] = {
#define CLI_COMMAND(name, summary) {#name, summary, cmd_##name},
#include "commands.def"
#undef CLI_COMMAND
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static const command *find(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    }
    return NULL;
}

static void print_help(FILE *f)
{
    fprintf(f, "kvfold: run GGUF models on stock libllama with the KV cache folded into 1 to 8 bits\n\n"
               "usage: kvfold COMMAND [OPTIONS]\n\ncommands:\n");
    for (int i = 0; i < N_COMMANDS; i++) fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(f, "  %-10s %s\n\n", "help", "this text, or the options of a command: kvfold help run");
    fprintf(f, "  --version  version, build, libllama, instruction sets\n"
               "  --help     this text\n\n"
               "exit codes: 0 done (also after Ctrl-C), 1 wrong use, 2 cannot be done, 3 input damaged\n");
}

static int unknown(const char *name)
{
    const command *best = &commands[0];
    for (int i = 1; i < N_COMMANDS; i++) {
        if (cli_distance(name, commands[i].name) < cli_distance(name, best->name)) best = &commands[i];
    }
    if (cli_near(name, best->name))
        cli_error("unknown command '%s'; the nearest is '%s' (kvfold --help lists all)", name, best->name);
    else
        cli_error("unknown command '%s' (kvfold --help lists all)", name);
    return CLI_USAGE;
}

static int help(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stdout);
        return cli_finish(CLI_DONE);
    }
    const command *c = find(argv[1]);
    if (!c) return unknown(argv[1]);
    char option[] = "--help";
    char *args[] = {argv[1], option, NULL};
    return c->run(2, args);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    result_command(argc, argv);
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) return cli_print_version(argc - 1, argv + 1);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) return help(argc - 1, argv + 1);
    const command *c = find(name);
    return c ? c->run(argc - 1, argv + 1) : unknown(name);
}
