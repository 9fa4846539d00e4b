/* SPDX-License-Identifier: MIT
 * The run of `kvfold quality`: all arms in lockstep, batch by batch.
 */
#include "quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one group of arms that are in memory together ------------------------------------------------------------------------- */

typedef struct lockstep {
    quality_run *run;
    quality_arm *arm; /* [n] of the group */
    int n;
    bool first; /* the group that the reference and the floor are judged with */
    quality_reference reference;
    int64_t n_points; /* complete positions of this pass */
    progress bar;
    int64_t done;
} lockstep;

static bool alive(const quality_arm *arm)
{
    return arm->ctx && !arm->failure[0];
}

/* Positions first .. context - 2 are judged: each has a next token in the text. */
static int32_t first_judged(const quality_run *run)
{
    return run->in.context - 1 - run->in.score;
}

void quality_place(const quality_run *run, int64_t point, int *chunk, int32_t *pos)
{
    *chunk = (int)(point / run->in.score);
    *pos = first_judged(run) + (int32_t)(point % run->in.score);
}

static void judge(lockstep *l, quality_arm *arm, int32_t pos, int32_t next)
{
    if (!alive(arm)) return;
    const float *logits = quality_arm_logits(arm, pos);
    quality_point *point = &arm->point[l->n_points];
    if (logits) quality_compare(&l->reference, logits, next, point);
    if (logits && isfinite(point->kld)) return;
    snprintf(arm->failure, sizeof arm->failure, logits ? "not finite: its logits at position %d" : "no logits at position %d",
             pos);
    quality_arm_close(arm);
}

static bool judge_batch(lockstep *l, const quality_chunk *c, int32_t at, int32_t end)
{
    quality_run *run = l->run;
    for (int32_t pos = at; pos < end; pos++) {
        if (pos < first_judged(run) || pos > run->in.context - 2) continue;
        const float *logits = quality_arm_logits(&run->reference, pos);
        if (!logits) {
            cli_error("libllama gives no logits at position %d", pos);
            return false;
        }
        quality_reference_set(&l->reference, logits);
        if (l->first) {
            judge(l, &run->reference, pos, c->token[pos + 1]);
            judge(l, &run->floor, pos, c->token[pos + 1]);
        }
        if (run->reference.failure[0]) {
            cli_error("'%s': %s", run->set->model, run->reference.failure);
            return false;
        }
        for (int i = 0; i < l->n; i++) judge(l, &l->arm[i], pos, c->token[pos + 1]);
        l->n_points++;
    }
    return true;
}

static bool feed(lockstep *l, quality_arm *arm, const quality_chunk *c, int32_t at)
{
    if (!alive(arm)) return !cli_interrupted();
    quality_arm_feed(arm, c->token, at, l->run->in.context, first_judged(l->run));
    progress_set(&l->bar, l->done += QUALITY_BATCH);
    return !cli_interrupted();
}

/* CLI_GO, also when interrupted: the positions of the batch in hand are then dropped, so that all arms have the same ones. */
static int run_batch(lockstep *l, const quality_chunk *c, int32_t at)
{
    quality_run *run = l->run;
    int32_t end = at + QUALITY_BATCH < run->in.context ? at + QUALITY_BATCH : run->in.context;
    bool go = feed(l, &run->reference, c, at);
    if (l->first) go = go && feed(l, &run->floor, c, at);
    for (int i = 0; i < l->n; i++) go = go && feed(l, &l->arm[i], c, at);
    if (!go) return CLI_GO;
    if (!alive(&run->reference)) {
        cli_error("the reference cannot go on: %s", run->reference.failure);
        return CLI_CANNOT;
    }
    return judge_batch(l, c, at, end) ? CLI_GO : CLI_DAMAGED;
}

static void clear_all(lockstep *l)
{
    quality_arm_clear(&l->run->reference);
    if (alive(&l->run->floor)) quality_arm_clear(&l->run->floor);
    for (int i = 0; i < l->n; i++)
        if (alive(&l->arm[i])) quality_arm_clear(&l->arm[i]);
}

static int run_chunks(lockstep *l)
{
    quality_run *run = l->run;
    int code = CLI_GO;
    for (int i = 0; code == CLI_GO && i < run->in.n_chunks && !cli_interrupted(); i++) {
        clear_all(l);
        for (int32_t at = 0; code == CLI_GO && at < run->in.context && !cli_interrupted(); at += QUALITY_BATCH)
            code = run_batch(l, &run->in.chunk[i], at);
        if (code != CLI_GO || cli_interrupted()) break;
        for (int a = 0; a < l->n; a++)
            if (alive(&l->arm[a])) quality_arm_count(&l->arm[a]);
    }
    return code;
}

/* ---- groups ---------------------------------------------------------------------------------------------------------------- */

/* Rough bytes of an arm: its cache as if it were f16, and the logits of a batch twice (libllama's result and its output). */
static int64_t arm_bytes(const quality_run *run)
{
    int64_t vocab = llama_vocab_n_tokens(run->s->vocab);
    return shape_f16(&run->s->shape, run->in.context) + 2 * QUALITY_BATCH * vocab * (int64_t)sizeof(float) + (32 << 20);
}

/* How many arms may be in memory at once, next to the reference and the floor. */
static int resident_most(const quality_run *run)
{
    int64_t available = cli_memory_available(), bytes = arm_bytes(run);
    if (run->set->resident > 0) return (int)run->set->resident;
    if (available < 0) return 4;
    int64_t n = (available - available / 8) / bytes - 6; /* the floor's batch is four times as long */
    return n < 1 ? 1 : n > QUALITY_ARMS_MOST ? QUALITY_ARMS_MOST : (int)n;
}

static void make_points(quality_run *run, quality_arm *arm)
{
    if (!arm->point) arm->point = cli_alloc((size_t)run->in.n_chunks * (size_t)run->in.score, sizeof *arm->point);
}

static void open_group(lockstep *l)
{
    quality_run *run = l->run;
    for (int i = 0; i < l->n; i++) {
        quality_arm *arm = &l->arm[i];
        if (!cli_interrupted() && !quality_arm_open(arm, run->s, run->set))
            cli_note("%s: cannot be measured: %s", arm->name, arm->failure);
        make_points(run, arm);
    }
}

static void close_group(lockstep *l)
{
    for (int i = 0; i < l->n; i++) {
        l->arm[i].n_points = l->arm[i].failure[0] ? 0 : l->n_points;
        quality_arm_close(&l->arm[i]);
    }
    if (!l->first) return;
    l->run->reference.n_points = l->n_points;
    l->run->floor.n_points = l->run->floor.failure[0] ? 0 : l->n_points;
    quality_arm_close(&l->run->floor);
}

static int run_group(lockstep *l, int first, int n)
{
    l->arm = l->run->arm + first;
    l->n = n;
    l->first = first == 0;
    l->n_points = 0;
    open_group(l);
    int code = run_chunks(l);
    close_group(l);
    return code;
}

static int64_t work(const quality_run *run, int groups)
{
    int64_t batches = (run->in.context + QUALITY_BATCH - 1) / QUALITY_BATCH;
    return batches * QUALITY_BATCH * run->in.n_chunks * (run->n_arms + groups + (run->floor.ctx != NULL));
}

static int run_groups(quality_run *run)
{
    int most = resident_most(run), code = CLI_GO;
    run->groups = run->n_arms > most ? (run->n_arms + most - 1) / most : 1;
    int size = (run->n_arms + run->groups - 1) / run->groups;
    lockstep l = {.run = run, .bar = progress_begin("quality", "tokens", work(run, run->groups))};
    l.reference.n = llama_vocab_n_tokens(run->s->vocab);
    l.reference.p = cli_alloc((size_t)l.reference.n, sizeof *l.reference.p);
    for (int g = 0; code == CLI_GO && g < run->groups && !cli_interrupted(); g++) {
        int first = g * size, n = run->n_arms - first < size ? run->n_arms - first : size;
        if (g == 0 || n > 0) code = run_group(&l, first, n);
    }
    progress_end(&l.bar);
    free(l.reference.p);
    return code;
}

int quality_run_all(quality_run *run)
{
    int64_t start = llama_time_us();
    if (!quality_arm_open(&run->reference, run->s, run->set)) {
        cli_error("libllama cannot run the reference, its own f16 cache: %s", run->reference.failure);
        return CLI_CANNOT;
    }
    make_points(run, &run->reference);
    if (run->set->floor) {
        quality_arm_open(&run->floor, run->s, run->set);
        make_points(run, &run->floor);
    }
    int code = run_groups(run);
    run->interrupted = cli_interrupted();
    run->seconds = (double)(llama_time_us() - start) * 1e-6;
    return code;
}
