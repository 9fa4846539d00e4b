/* SPDX-License-Identifier: MIT
 * One table of options feeds the parser, --help, the defaults and the error messages of a sub-command.
 */
#ifndef KVFOLD_CLI_OPTIONS_H
#define KVFOLD_CLI_OPTIONS_H

#include "cli.h"

typedef enum cli_kind {
    CLI_HEADING, /* no option: `help` is a line of --help */
    CLI_ON,      /* no value; sets a bool */
    CLI_OFF,     /* no value; clears a bool */
    CLI_IGNORED, /* no value; accepted because it is what happens anyway */
    CLI_INTEGER, /* int64_t, least to most */
    CLI_REAL,    /* double, least to most */
    CLI_STRING,  /* const char * into argv */
    CLI_REPEAT,  /* cli_list of strings, may be given several times */
    CLI_CHOICE,  /* const char *, one of `choices` */
} cli_kind;

enum { CLI_LIST_MOST = 32, CLI_OPTIONS_MOST = 128 /* rows of a table */ };
typedef struct cli_list {
    const char *item[CLI_LIST_MOST];
    int n;
} cli_list;

typedef struct cli_option {
    const char *names; /* separated by spaces: "-m --model" */
    const char *value; /* name of the value in --help, NULL: none */
    cli_kind kind;
    size_t field;        /* offset in the settings */
    double least, most;  /* of numbers */
    const char *initial; /* default, parsed like a value; NULL: the settings stay as they are */
    const char *choices; /* separated by spaces */
    const char *why;     /* CLI_CHOICE: why other values are refused; NULL: nothing to add */
    const char *help;
} cli_option;

/* Rows of a table, each with what its kind needs. S: the struct of the settings. */
#define CLI_HEAD(text)                                                                                                           \
    {                                                                                                                            \
        .kind = CLI_HEADING, .help = text                                                                                        \
    }
#define CLI_SWITCH(kind_, names_, S, member, help_)                                                                              \
    {                                                                                                                            \
        .names = names_, .kind = kind_, .field = offsetof(S, member), .help = help_                                              \
    }
#define CLI_WORD(names_, value_, S, member, help_)                                                                               \
    {                                                                                                                            \
        .names = names_, .value = value_, .kind = CLI_STRING, .field = offsetof(S, member), .help = help_                        \
    }
#define CLI_WORDS(names_, value_, S, member, help_)                                                                              \
    {                                                                                                                            \
        .names = names_, .value = value_, .kind = CLI_REPEAT, .field = offsetof(S, member), .help = help_                        \
    }
#define CLI_COUNT(names_, S, member, least_, most_, initial_, help_)                                                             \
    {                                                                                                                            \
        .names = names_, .value = "N", .kind = CLI_INTEGER, .field = offsetof(S, member), .least = least_, .most = most_,        \
        .initial = initial_, .help = help_                                                                                       \
    }
#define CLI_NUMBER(names_, S, member, least_, most_, initial_, help_)                                                            \
    {                                                                                                                            \
        .names = names_, .value = "X", .kind = CLI_REAL, .field = offsetof(S, member), .least = least_, .most = most_,           \
        .initial = initial_, .help = help_                                                                                       \
    }
#define CLI_ONE_OF(names_, value_, S, member, choices_, initial_, why_, help_)                                                   \
    {                                                                                                                            \
        .names = names_, .value = value_, .kind = CLI_CHOICE, .field = offsetof(S, member), .initial = initial_,                 \
        .choices = choices_, .why = why_, .help = help_                                                                          \
    }
#define CLI_END                                                                                                                  \
    {                                                                                                                            \
        .kind = CLI_HEADING                                                                                                      \
    }

typedef struct cli_syntax {
    const char *command;
    const char *usage;         /* what follows the name of the command */
    const char *about;         /* one paragraph */
    const cli_option *options; /* the last one is CLI_END */
    bool positional;           /* one bare word is allowed; it goes to the string field below */
    size_t positional_field;
    const char *notes; /* printed below the options, may be NULL */
} cli_syntax;

/* Sets the defaults, then reads argv[1..]. CLI_GO, CLI_DONE after --help, or CLI_USAGE after a sentence. */
int cli_parse(const cli_syntax *syntax, void *settings, int argc, char **argv);

#endif
