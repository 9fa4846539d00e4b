/* SPDX-License-Identifier: MIT
 * Another process that is told what to do line by line and answers each with one line.
 */
#ifndef KVFOLD_CLI_CHILD_H
#define KVFOLD_CLI_CHILD_H

#include "cli.h"

typedef struct child {
    long pid; /* 0: none */
    FILE *to, *from;
    cli_text line; /* the last answer, without its line end */
} child;

/* Starts this very program with other arguments (NULL-terminated, without the program's name). 0, or -1 with errno set. */
int child_start(child *c, const char *const *args);

/* Starts PROGRAM from the search path; its stdout is `from`. */
int child_start_program(child *c, const char *program, const char *const *args);

/* Sends one line; NULL when it cannot. Waits for the answer: NULL when the process ended instead. */
const char *child_ask(child *c, const char *format, ...) CLI_PRINTF(2, 3);
const char *child_answer(child *c);

/* Closes the pipes and waits. Returns the exit status, 128 + signal for one that was killed, -1 when there was none. */
int child_end(child *c);

/* In the child: Ctrl-C is the parent's business. */
void child_ignore_interrupt(void);

#endif
