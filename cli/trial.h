/* SPDX-License-Identifier: MIT
 * One experiment of the bench: arms beside each other in one run, the baseline against itself, the ceilings, and what may be said.
 * Every sub-command of bench goes through here, so that the protocol exists once.
 */
#ifndef KVFOLD_CLI_TRIAL_H
#define KVFOLD_CLI_TRIAL_H

#include "measure.h"

#include <stdbool.h>
#include <stddef.h>

struct json_t;

enum { TRIAL_ROWS_MOST = 80 };

typedef struct trial_row {
    char name[96];
    bool candidate;  /* may be the baseline: the fastest of those is */
    measure_arm arm; /* `us` is the trial's */
    double bytes;    /* that one call cannot help reading; 0: unknown */
    double amdahl;   /* no ratio of this row can be above, by the share that it works on; 0: unknown */
    measure_summary time;
    measure_ratio ratio; /* against the baseline */
    bool failed;         /* its arm failed: no figure of this row means anything */
    double ceiling;      /* no ratio of this row can be above, by bytes / what memory gave; 0: unknown */
} trial_row;

typedef struct trial {
    trial_row row[TRIAL_ROWS_MOST];
    int n_rows;
    int threads, samples;
    uint64_t seed;     /* of orders and bootstraps */
    const char *label; /* of a line on stderr with the time left; NULL: silent */
    bool moves;        /* arms change as they run (a sequence grows): all run equally often, and only in rounds with all others */

    /* Another arm that does what row i does, for the comparison of the baseline with itself. NULL: the same arm, run twice.
     * 0, or -1: trial_run then fails without a sentence. */
    int (*twin)(void *user, int i, measure_arm *twin);
    void *user;
    measure_arm reader; /* sums up memory; run NULL: no ceiling by memory */
    double read_bytes;

    /* out */
    int baseline;
    int repeated; /* the row that was timed against itself: the fastest candidate at first sight */
    int floor_of; /* the row whose noise the floor is; another one than the baseline only where arms change */
    measure_ratio against_itself;
    double
        floor; /* of the noise: the worse of the baseline against itself before and during the rounds; infinite: nobody knows */
    measure_summary read;
    measure_rounds rounds;
    double *us; /* [row][samples], freed by trial_free */
} trial;

/* 0, or -1 after a sentence: no candidate, out of memory, or the twin failed. An arm that fails on the way costs its own row only,
 * one whose twin does costs all claims. */
int trial_run(trial *t, const measure_io *io);
void trial_free(trial *t);

double trial_read_rate(const trial *t); /* GB/s that memory gave, 0: unknown */
double trial_rate(const trial_row *r);  /* GB/s, 0: unknown */

/* What the instrument holds against a row, "" when nothing: work put off, inputs reused, memory taken while timed, faster than
 * memory. Into a text of TRIAL_DOUBTS bytes. */
enum { TRIAL_DOUBTS = 300 };
const char *trial_doubts(const trial *t, int i, char *text);

/* Fields that every row and every run of a result has. */
struct json_t *trial_row_json(const trial *t, int i);
struct json_t *trial_json(const trial *t);
struct json_t *trial_self_json(const trial *t);
struct json_t *trial_load_json(const measure_rounds *r); /* what the machine did meanwhile */

/* Does more than half of the samples stand beside other work? Then no row is judged. */
bool trial_is_busy(const trial *t);

#endif
