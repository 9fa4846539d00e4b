/* SPDX-License-Identifier: MIT
 * Progress on stderr: a bar with the time left on a terminal, else a line for each quarter.
 */
#ifndef KVFOLD_CLI_PROGRESS_H
#define KVFOLD_CLI_PROGRESS_H

#include "cli.h"

typedef struct progress {
    const char *label, *unit;
    int64_t total, done;
    double start; /* seconds */
    int quarter;
    bool terminal;
} progress;

/* total 0: silent. */
progress progress_begin(const char *label, const char *unit, int64_t total);
void progress_set(progress *p, int64_t done);
void progress_end(progress *p);

#endif
