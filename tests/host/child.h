/* SPDX-License-Identifier: MIT
 * One arm in a process of its own: memory can be judged only where nothing else has left its traces. The test program runs itself
 * with arguments; the child stops at given numbers of tokens and says its own figures, and the parent reads those that the kernel
 * keeps of the live child. */
#ifndef KVF_TESTS_CHILD_H
#define KVF_TESTS_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

typedef enum child_arm { CHILD_PLAIN, CHILD_PLAIN_FLASH, CHILD_FOLD } child_arm;

/* At one stop. Bytes. */
typedef struct child_figures {
    int64_t tokens;
    /* what the child says; 0 for plain arms */
    int64_t accounted, formula, host, resident, f16;
    int32_t host_cells;
    /* what the kernel says of it */
    int64_t anonymous; /* resident memory that is no file */
    int64_t peak;      /* largest resident size so far */
} child_figures;

typedef struct child {
    pid_t pid;
    FILE *from, *to;
} child;

/* In main: the exit code of a child, or -1 when the program was not started as one. */
int child_main(int argc, char **argv);

/* Starts a child on a context of n_ctx tokens. It feeds pseudo-random tokens up to each of the n_stops; a plain arm decodes one
 * batch and stops once, whatever the stops are. 0, or -1. */
int child_start(child *c, child_arm which, const char *model, int32_t n_ctx, const int32_t *stops, int n_stops);

/* Waits for the next stop, reads everything and lets the child go on. 0, or -1 when it ended. */
int child_next(child *c, child_figures *f);

/* 0 when the child ended well. */
int child_wait(child *c);

#endif
