/* SPDX-License-Identifier: MIT */
#include "trial.h"
#include "cli.h"
#include "progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_SIGHT = 3 };

/* ---- which row is the baseline -------------------------------------------------------------------------------------------- */

static int fastest_candidate(const trial *t)
{
    int best = -1;
    for (int i = 0; i < t->n_rows; i++)
        if (t->row[i].candidate && !t->row[i].failed && (best < 0 || t->row[i].time.median < t->row[best].time.median)) best = i;
    return best;
}

static void find_failed(trial *t)
{
    for (int i = 0; i < t->n_rows; i++) {
        const measure_arm *a = &t->row[i].arm;
        t->row[i].failed = a->failed && a->failed(a->arm);
    }
}

/* From a few samples. Arms that change must all be run. */
static int at_first_sight(trial *t, const measure_io *io)
{
    measure_arm arm[TRIAL_ROWS_MOST];
    int of[TRIAL_ROWS_MOST], n = 0;
    double us[TRIAL_ROWS_MOST][FIRST_SIGHT];
    measure_rounds rounds;
    for (int i = 0; i < t->n_rows; i++) {
        if (!t->row[i].candidate && !t->moves) continue;
        arm[n] = t->row[i].arm;
        arm[n].us = us[n];
        of[n++] = i;
    }
    if (n == 0 || measure_run(io, arm, n, FIRST_SIGHT, t->threads, t->seed + 2, &rounds) != 0) return -1;
    for (int i = 0; i < n; i++) measure_summarise(us[i], rounds.rounds, &t->row[of[i]].time);
    find_failed(t);
    return fastest_candidate(t);
}

/* ---- the baseline against itself ------------------------------------------------------------------------------------------ */

static void keep_worse(trial *t, const double *a, const double *b, int n)
{
    measure_ratio r;
    measure_compare(a, b, n, 0, t->seed, &r);
    if (measure_floor(&r) < t->floor) return;
    t->floor = measure_floor(&r);
    t->against_itself = r;
    t->floor_of = t->repeated;
}

static int beside_itself(trial *t, const measure_io *io, const measure_arm *twin)
{
    double us[2][MEASURE_SAMPLES_MAX];
    measure_arm twice[2] = {t->row[t->repeated].arm, *twin};
    measure_rounds rounds;
    twice[0].us = us[0];
    twice[1].us = us[1];
    if (measure_run(io, twice, 2, t->samples, t->threads, t->seed, &rounds) != 0) return -1;
    keep_worse(t, us[0], us[1], rounds.rounds);
    return 0;
}

/* Another row than at first sight turned out to be the fastest: the noise that counts is its own, and that of the first stays the
 * least. Arms that change cannot be timed again alone; there the floor says whose it is. */
static int beside_itself_again(trial *t, const measure_io *io)
{
    if (t->moves || t->baseline == t->repeated) return 0;
    t->repeated = t->baseline;
    measure_arm twin = t->row[t->repeated].arm;
    if (t->twin && t->twin(t->user, t->repeated, &twin) != 0) return -1;
    return beside_itself(t, io, &twin);
}

/* ---- rounds --------------------------------------------------------------------------------------------------------------- */

/* No speed-up can beat memory: at best a row takes the time in which its bytes can be read. */
static void find_ceilings(trial *t)
{
    double rate = trial_read_rate(t), base = t->row[t->baseline].time.median;
    for (int i = 0; i < t->n_rows; i++) {
        trial_row *r = &t->row[i];
        r->ceiling = rate > 0 && r->bytes > 0 ? base / (r->bytes / rate * 1e-3) : 0;
    }
}

static int conclude(trial *t, const measure_io *io, const double *reader)
{
    int n = t->rounds.rounds;
    for (int i = 0; i < t->n_rows; i++) measure_summarise(t->us + i * t->samples, n, &t->row[i].time);
    if (t->reader.run) measure_summarise(reader, n, &t->read);
    find_failed(t);
    t->baseline = fastest_candidate(t); /* by the run itself, so that no candidate beats it */
    if (t->baseline < 0 || beside_itself_again(t, io) != 0) return -1;
    const double *base = t->us + t->baseline * t->samples;
    for (int i = 0; i < t->n_rows; i++) measure_compare(base, t->us + i * t->samples, n, t->floor, t->seed, &t->row[i].ratio);
    find_ceilings(t);
    return 0;
}

static void show(void *bar, int rounds)
{
    progress_set(bar, rounds);
}

static int run_shown(trial *t, const measure_io *io, measure_arm *all, int n)
{
    measure_io own = *io;
    progress bar = progress_begin(t->label, "rounds", t->label ? t->samples : 0);
    own.took = show;
    own.listener = &bar;
    int code = measure_run(&own, all, n, t->samples, t->threads, t->seed + 1, &t->rounds);
    progress_end(&bar);
    return code;
}

static int all_rounds(trial *t, const measure_io *io, const measure_arm *twin)
{
    measure_arm all[TRIAL_ROWS_MOST + 2];
    int n = t->n_rows;
    double *extra = t->us + n * t->samples;
    for (int i = 0; i < n; i++) {
        all[i] = t->row[i].arm;
        all[i].us = t->us + i * t->samples;
    }
    all[n] = *twin;
    all[n].us = extra;
    all[n + 1] = t->reader;
    all[n + 1].us = extra + t->samples;
    int code = run_shown(t, io, all, n + 1 + (t->reader.run != NULL));
    if (code != 0) return code;
    for (int i = 0; i < n; i++) t->row[i].arm = all[i];
    keep_worse(t, t->us + t->repeated * t->samples, extra, t->rounds.rounds);
    if (t->row[t->repeated].arm.failed && (all[t->repeated].failed(all[t->repeated].arm) || twin->failed(twin->arm)))
        t->floor = INFINITY; /* its samples are no measure of noise */
    return conclude(t, io, extra + t->samples);
}

int trial_run(trial *t, const measure_io *io)
{
    t->floor = 0;
    t->floor_of = 0;
    t->us = malloc((size_t)(t->n_rows + 2) * (size_t)t->samples * sizeof *t->us);
    t->baseline = t->repeated = t->us ? at_first_sight(t, io) : -1;
    if (t->baseline < 0) {
        cli_error("%s", t->us ? "there is no row to compare with" : "out of memory");
        return -1;
    }
    measure_arm twin = t->row[t->repeated].arm;
    if (t->twin && t->twin(t->user, t->repeated, &twin) != 0) return -1;
    int code = t->moves ? 0 : beside_itself(t, io, &twin);
    if (code == 0) code = all_rounds(t, io, &twin);
    if (code != 0) cli_error("%s", t->baseline < 0 ? "no row is left to compare with" : "out of memory");
    return code;
}

bool trial_is_busy(const trial *t)
{
    return 2 * t->rounds.marked > t->rounds.rounds;
}

void trial_free(trial *t)
{
    free(t->us);
    t->us = NULL;
}

/* ---- what is held against a row ------------------------------------------------------------------------------------------- */

double trial_read_rate(const trial *t)
{
    return t->read.median > 0 ? t->read_bytes / t->read.median * 1e-3 : 0;
}

double trial_rate(const trial_row *r)
{
    return r->bytes > 0 && r->time.median > 0 ? r->bytes / r->time.median * 1e-3 : 0;
}

CLI_PRINTF(2, 3)
static void doubt(char *text, const char *format, ...)
{
    size_t n = strlen(text);
    va_list args;
    if (n && n + 2 < TRIAL_DOUBTS) n += (size_t)snprintf(text + n, TRIAL_DOUBTS - n, "; ");
    va_start(args, format);
    vsnprintf(text + n, TRIAL_DOUBTS - n, format, args);
    va_end(args);
}

const char *trial_doubts(const trial *t, int i, char *text)
{
    static const double put_off_limit = 0.05, over_memory = 1.1;
    const measure_found *f = &t->row[i].arm.found;
    double best = t->read.min > 0 ? t->read_bytes / t->read.min * 1e-3 : 0;
    text[0] = 0;
    if (f->late) doubt(text, "in %d of %d samples results were not there when the timer stopped", f->late, f->judged);
    if (f->settling > put_off_limit * f->timed)
        doubt(text, "work of %.0f %% of a sample was put off until after it", 100 * f->settling / f->timed);
    if (f->reused) doubt(text, "only %d different inputs, less than the pool", f->distinct);
    if (f->faults >= 1) doubt(text, "%.0f page faults a call: memory is taken while the timer runs", f->faults);
    if (best > 0 && trial_rate(&t->row[i]) > over_memory * best)
        doubt(text, "%.1f times what memory gives: not read from memory", trial_rate(&t->row[i]) / best);
    return text;
}
