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

static void fail(quality_arm *arm, const char *format, int32_t pos)
{
    snprintf(arm->failure, sizeof arm->failure, format, pos);
    quality_arm_close(arm);
}

static void judge(lockstep *l, quality_arm *arm, int32_t pos, int64_t index, int32_t next)
{
    const float *logits = quality_arm_logits(arm, pos);
    quality_point *point = &arm->point[index];
    if (logits) quality_compare(&l->reference, logits, next, point);
    if (!logits)
        fail(arm, "no logits at position %d", pos);
    else if (!isfinite(point->kld))
        fail(arm, "its logits at position %d are not finite", pos);
}

/* Judges those of positions from .. to - 1 that count. False when the reference itself cannot be used. */
static bool judge_rows(lockstep *l, int chunk, int32_t from, int32_t to, quality_arm **arm, int n)
{
    quality_run *run = l->run;
    int32_t first = first_judged(run), last = run->in.context - 2;
    for (int32_t pos = from > first ? from : first; pos < to && pos <= last; pos++) {
        int32_t next = run->in.chunk[chunk].token[pos + 1];
        const float *logits = quality_arm_logits(&run->reference, pos);
        if (!logits) fail(&run->reference, "no logits at position %d", pos);
        if (!alive(&run->reference)) return false;
        quality_reference_set(&l->reference, logits);
        if (!isfinite(l->reference.log_sum)) fail(&run->reference, "its logits at position %d are not finite", pos);
        if (!alive(&run->reference)) return false;
        for (int i = 0; i < n; i++)
            if (alive(arm[i])) judge(l, arm[i], pos, (int64_t)chunk * run->in.score + pos - first, next);
    }
    return alive(&run->reference);
}

/* ---- batches --------------------------------------------------------------------------------------------------------------- */

/* False when interrupted. An arm that fails is left behind. */
static bool feed(lockstep *l, quality_arm *arm, int chunk, int32_t at, int32_t rows)
{
    if (alive(arm)) quality_arm_feed(arm, l->run->in.chunk[chunk].token, at, l->run->in.context, first_judged(l->run));
    progress_set(&l->bar, l->done += rows);
    return !cli_interrupted();
}

/* The floor's batches are smaller: the rows of each are judged before the next one overwrites them. */
static bool run_floor(lockstep *l, int chunk, int32_t at, int32_t end)
{
    quality_arm *floor = &l->run->floor;
    for (int32_t piece = at; piece < end && alive(floor); piece += floor->rows) {
        int32_t to = piece + floor->rows < end ? piece + floor->rows : end;
        if (!feed(l, floor, chunk, piece, to - piece)) return false;
        if (alive(floor) && !judge_rows(l, chunk, piece, to, &floor, 1)) return true;
    }
    return true;
}

/* All arms read one batch; then they are judged on it. When that is interrupted, the batch counts for none of them. */
static void run_batch(lockstep *l, int chunk, int32_t at)
{
    quality_run *run = l->run;
    quality_arm *arm[QUALITY_ARMS_MOST + 2];
    int32_t end = at + QUALITY_BATCH < run->in.context ? at + QUALITY_BATCH : run->in.context, first = first_judged(run);
    int n = 0;
    if (l->first) arm[n++] = &run->reference;
    if (l->first) arm[n++] = &run->prefill;
    for (int i = 0; i < l->n; i++) arm[n++] = &l->arm[i];
    bool go = feed(l, &run->reference, chunk, at, end - at);
    for (int i = l->first; i < n; i++) go = go && feed(l, arm[i], chunk, at, end - at);
    if (l->first) go = go && run_floor(l, chunk, at, end);
    if (!go || !alive(&run->reference) || !judge_rows(l, chunk, at, end, arm, n)) return;
    l->n_points = (int64_t)chunk * run->in.score + (end - 1 > first ? end - 1 - first : 0);
    if (end == run->in.context) l->n_points = (int64_t)(chunk + 1) * run->in.score;
}

static void clear_all(lockstep *l)
{
    quality_arm_clear(&l->run->reference);
    if (alive(&l->run->prefill)) quality_arm_clear(&l->run->prefill);
    if (alive(&l->run->floor)) quality_arm_clear(&l->run->floor);
    for (int i = 0; i < l->n; i++)
        if (alive(&l->arm[i])) quality_arm_clear(&l->arm[i]);
}

/* CLI_GO, also when interrupted, or an exit code after a sentence: without the reference nothing more can be said, and what was said
 * stays. */
static int run_chunks(lockstep *l)
{
    quality_run *run = l->run;
    for (int i = 0; i < run->in.n_chunks && !cli_interrupted(); i++) {
        clear_all(l);
        for (int32_t at = 0; at < run->in.context && !cli_interrupted(); at += QUALITY_BATCH) {
            run_batch(l, i, at);
            if (alive(&run->reference)) continue;
            cli_error("'%s': the reference cannot go on: %s", run->set->model, run->reference.failure);
            return CLI_DAMAGED;
        }
        for (int a = 0; a < l->n && !cli_interrupted(); a++)
            if (alive(&l->arm[a])) quality_arm_count(&l->arm[a]);
    }
    return CLI_GO;
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
    int64_t n = (available - available / 8) / bytes - 6; /* the prefill arm's batch is four times as long */
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
        if (!cli_interrupted() && !quality_arm_open(arm, run->s, run->set) && !cli_interrupted())
            cli_note("%s: cannot be measured: %s", arm->name, arm->failure);
        make_points(run, arm);
    }
}

static void close_arm(const lockstep *l, quality_arm *arm)
{
    arm->n_points = arm->failure[0] || !arm->point ? 0 : l->n_points;
    quality_arm_close(arm);
}

static void close_group(lockstep *l)
{
    for (int i = 0; i < l->n; i++) close_arm(l, &l->arm[i]);
    if (!l->first) return;
    close_arm(l, &l->run->prefill);
    close_arm(l, &l->run->floor);
    l->run->reference.n_points = l->n_points;
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
    return (int64_t)run->in.context * run->in.n_chunks * (run->n_arms + groups + alive(&run->prefill) + alive(&run->floor));
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

static void open_control(quality_run *run, quality_arm *arm)
{
    if (!quality_arm_open(arm, run->s, run->set)) cli_note("%s: cannot be run: %s", arm->name, arm->failure);
    make_points(run, arm);
}

/* Arms that it left without a single position. */
static void blame_reference(quality_run *run)
{
    for (int i = 0; i < run->n_arms; i++) {
        quality_arm *arm = &run->arm[i];
        if (arm->n_points == 0 && !arm->failure[0])
            snprintf(arm->failure, sizeof arm->failure, "the reference failed: %.500s", run->reference.failure);
    }
}

int quality_run_all(quality_run *run)
{
    int64_t start = llama_time_us();
    if (!quality_arm_open(&run->reference, run->s, run->set)) {
        cli_error("libllama cannot run the reference, its own f16 cache: %s", run->reference.failure);
        return CLI_CANNOT;
    }
    make_points(run, &run->reference);
    open_control(run, &run->prefill);
    if (run->set->floor > 0) open_control(run, &run->floor);
    int code = run_groups(run);
    if (code != CLI_GO) blame_reference(run);
    run->interrupted = cli_interrupted();
    run->seconds = (double)(llama_time_us() - start) * 1e-6;
    return code;
}
