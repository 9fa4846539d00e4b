/* SPDX-License-Identifier: MIT
 * The rows of one table of `bench attend`: made, timed in one interleaved run, checked. */
#include "arms.h"
#include "bench.h"
#include "result.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct attend_row {
    bench_arm arm;
    const kv_choice *ours; /* NULL: libllama's */
    double error;          /* before the rounds; see bench_error */
    size_t floats;         /* of one output */
} attend_row;

typedef struct attend_run {
    attend_row row[TRIAL_ROWS_MOST];
    int n_rows;
    trial trial;
} attend_run;

enum { DEPTH = 64 }; /* room for that of a run, as text */

int bench_stop(void *user)
{
    (void)user;
    return cli_interrupted();
}

/* ---- arms ----------------------------------------------------------------------------------------------------------------- */

static void create_rows(attend_run *r, const bench_data *d, bench_plan *plan)
{
    char error[600];
    for (int i = 0; i < plan->arms->n; i++) {
        attend_row *row = &r->row[r->n_rows];
        *row = (attend_row){.ours = &plan->arms->arm[i]};
        if (bench_fold_create(row->ours, plan->arms->name[i], d, plan->pool, &row->arm, error, sizeof error) == 0) {
            r->n_rows++;
            continue;
        }
        result_refuse(plan->result, error);
        plan->refused = true;
    }
    for (int i = 0, code; r->n_rows < TRIAL_ROWS_MOST; i++) {
        attend_row *row = &r->row[r->n_rows];
        *row = (attend_row){0};
        if ((code = bench_peer_create(i, d, plan->pool, &row->arm, error, sizeof error)) == 1) break;
        if (code == 0)
            r->n_rows++;
        else
            result_refuse(plan->result, error);
    }
}

static void release_rows(attend_run *r)
{
    for (int i = 0; i < r->n_rows; i++) r->row[i].arm.release(r->row[i].arm.self);
}

static void run_row(void *self)
{
    attend_row *row = self;
    row->arm.run(row->arm.self);
}

/* NaN everywhere: what an arm does not write is seen. */
static void wipe(void *self)
{
    attend_row *row = self;
    for (int l = 0; l < row->arm.layers; l++) memset(row->arm.output(row->arm.self, l), 0xff, row->floats * sizeof(float));
}

static uint64_t digest(void *self, int layer)
{
    attend_row *row = self;
    return measure_digest(row->arm.output(row->arm.self, layer), row->floats * sizeof(float));
}

static int has_failed(void *self)
{
    attend_row *row = self;
    return row->arm.failed && row->arm.failed(row->arm.self);
}

/* Relative errors above which a row of libllama computes something else: its 4-bit rows are off by 3e-2. */
static const double PEER_LIMIT = 0.1;

static bool is_right(const attend_row *row, double error)
{
    return error >= 0 && error <= (row->ours ? BENCH_ERROR_LIMIT : PEER_LIMIT);
}

static void fill_trial(attend_run *r, const bench_data *d, const bench_plan *plan)
{
    r->trial = (trial){
        .n_rows = r->n_rows, .threads = d->shape.threads, .samples = plan->samples, .seed = plan->seed, .label = "attend"};
    for (int i = 0; i < r->n_rows; i++) {
        attend_row *row = &r->row[i];
        trial_row *t = &r->trial.row[i];
        row->floats = bench_floats(&d->shape);
        wipe(row);
        run_row(row);
        row->error = bench_error(&row->arm, d);
        snprintf(t->name, sizeof t->name, "%s", row->arm.name);
        t->candidate = !row->ours && is_right(row, row->error); /* nothing is set against a row that is wrong */
        t->bytes = (double)row->arm.bytes;
        t->arm = (measure_arm){.run = run_row,
                               .arm = row,
                               .calls = row->arm.layers,
                               .prepare = wipe,
                               .digest = digest,
                               .failed = has_failed,
                               .call_bytes = (double)row->arm.bytes,
                               .pool = (double)plan->pool};
    }
}

/* ---- what comes out ------------------------------------------------------------------------------------------------------- */

void bench_load_notes(json_t *run, const measure_rounds *r)
{
    if (r->busy)
        result_add_note(run,
                        "other load: in %d of the %d rounds kept, others took up to %.0f %% as much processor time as a row's "
                        "threads could",
                        r->busy, r->rounds, 100 * r->worst);
    if (r->slow)
        result_add_note(run, "%d of the %d rounds kept ran at a lower frequency than the median one (%.0f to %.0f MHz)", r->slow,
                        r->rounds, r->mhz_min, r->mhz_max);
    if (r->repeated) result_add_note(run, "%d more rounds were thrown away for such reasons and taken again", r->repeated);
    if ((r->unseen & MEASURE_NO_OTHER) && (r->unseen & MEASURE_NO_WAITED))
        result_add_note(run, "LOAD COULD NOT BE WATCHED: this system does not say what else its processors do");
    else if (r->unseen)
        result_add_note(run, "load could be watched in part only: this system does not say all of it (not_watched in the JSON)");
}

void bench_notes(json_t *run, const trial *t)
{
    const measure_ratio *self = &t->against_itself;
    if (isfinite(t->floor))
        result_add_note(run, "noise floor %.1f %%: %s against itself %.3f (99 %% interval %.3f to %.3f)", 100 * t->floor,
                        t->row[t->floor_of].name, self->ratio, self->low, self->high);
    else
        result_add_note(run, "NO NOISE FLOOR: what repeats the baseline failed, so nothing is claimed");
    if (isfinite(t->floor) && t->floor_of != t->baseline)
        result_add_note(run, "that is the fastest at first sight; %s, the baseline, was faster in the rounds",
                        t->row[t->baseline].name);
    if (t->reader.run)
        result_add_note(run, "memory gives %.1f GB/s (read-only sum in the same rounds; best %.1f)", trial_read_rate(t),
                        t->read_bytes / t->read.min * 1e-3);
    bench_load_notes(run, &t->rounds);
    if (trial_is_busy(t))
        result_add_note(run, "BUSY MACHINE: most samples are marked, so no row is judged; repeat this when it is idle");
}

/* "4096 tokens", or of a batch "512 queries on 8192 tokens": those before it. */
static const char *depth(const bench_shape *s, char text[DEPTH])
{
    if (s->queries == 1)
        snprintf(text, DEPTH, "%d tokens", s->context);
    else
        snprintf(text, DEPTH, "%d queries on %d tokens", s->queries, bench_history(s));
    return text;
}

static void add_shape(json_t *o, const bench_shape *s)
{
    json_object_set_new(o, "q_heads", json_integer(s->q_heads));
    json_object_set_new(o, "kv_heads", json_integer(s->kv_heads));
    json_object_set_new(o, "head_dim", json_integer(s->head_dim));
    json_object_set_new(o, "context", json_integer(s->context));
    json_object_set_new(o, "queries", json_integer(s->queries));
}

static void report(const attend_run *r, const bench_data *d, bench_plan *plan)
{
    char title[160], tokens[DEPTH];
    const bench_shape *s = &d->shape;
    json_t *run = trial_json(&r->trial);
    add_shape(run, s);
    json_object_set_new(run, "pool", json_integer((json_int_t)plan->pool));
    snprintf(title, sizeof title, "%d query heads, %d KV heads, head size %d, %s, %d thread%s, %d samples", s->q_heads,
             s->kv_heads, s->head_dim, depth(s, tokens), s->threads, s->threads == 1 ? "" : "s", r->trial.rounds.rounds);
    int number = result_add_run(plan->result, run, title);
    bench_notes(run, &r->trial);
    for (int i = 0; i < r->n_rows; i++) {
        const attend_row *row = &r->row[i];
        json_t *o = trial_row_json(&r->trial, i);
        double error = r->trial.row[i].failed ? -1 : fmax(row->error, bench_error(&row->arm, d));
        bool wrong = !is_right(row, error) || !is_right(row, row->error);
        json_object_set_new(o, "context", json_integer(s->context));
        json_object_set_new(o, "queries", json_integer(s->queries));
        json_object_set_new(o, "cpu", json_string(row->arm.cpu));
        json_object_set_new(o, "error", error < 1e300 ? json_real(error) : json_null());
        json_object_set_new(o, "wrong", json_string(wrong ? "WRONG" : ""));
        if (row->ours) bench_fold_fields(row->ours, o);
        result_add_row(plan->result, number, o);
        plan->wrong |= wrong;
        if (wrong)
            cli_error("%s at %s: the result is wrong (relative error %.1e, at most %.1e is right)", row->arm.name,
                      depth(s, tokens), error, row->ours ? BENCH_ERROR_LIMIT : PEER_LIMIT);
    }
}

/* ---- one run -------------------------------------------------------------------------------------------------------------- */

/* Everything is held at once, as rows are interleaved: refuse before the machine starts to swap. */
static int check_memory(const bench_shape *s, const cli_arms *arms, size_t pool)
{
    char tokens[DEPTH];
    int64_t available = cli_memory_available();
    size_t f16 = (size_t)s->context * (size_t)s->kv_heads * (size_t)s->head_dim * 4, need = 2 * f16 + pool, bytes;
    need += (size_t)bench_query_rows(s) * (size_t)s->q_heads * (size_t)s->head_dim * sizeof(float);
    for (int i = 0; (bytes = bench_peer_bytes(i, s, pool)) != 0; i++) need += bytes;
    for (int i = 0; i < arms->n; i++) need += bench_fold_bytes(&arms->arm[i], s, pool);
    if (available < 0 || need < (size_t)available) return CLI_GO;
    cli_error("%s need about %s at once, and %s are free; take a shorter --context, a smaller --pool or fewer --kv",
              depth(s, tokens), cli_bytes((int64_t)need), cli_bytes(available));
    return CLI_CANNOT;
}

static int measure_rows(attend_run *r, const bench_data *d, bench_plan *plan)
{
    bench_arm reader;
    char tokens[DEPTH];
    measure_io io = measure_system;
    io.stop = bench_stop;
    if (bench_read_create(plan->pool, d->shape.threads, &reader) != 0) {
        cli_error("out of memory");
        return CLI_CANNOT;
    }
    cli_note("%d/%d heads x %d, %s, %d threads: the baseline against itself, then %d rows", d->shape.q_heads, d->shape.kv_heads,
             d->shape.head_dim, depth(&d->shape, tokens), d->shape.threads, r->n_rows);
    fill_trial(r, d, plan);
    r->trial.reader = (measure_arm){.run = reader.run, .arm = reader.self, .calls = 1};
    r->trial.read_bytes = (double)reader.bytes;
    int code = trial_run(&r->trial, &io) == 0 ? CLI_GO : CLI_CANNOT;
    if (code == CLI_GO) report(r, d, plan);
    trial_free(&r->trial);
    reader.release(reader.self);
    return code;
}

int bench_rows(bench_plan *plan, const bench_shape *shape)
{
    int code = check_memory(shape, plan->arms, plan->pool);
    if (code != CLI_GO) return code;
    attend_run *r = cli_alloc(1, sizeof *r);
    bench_data *d = bench_data_create(shape, plan->seed);
    if (d) {
        create_rows(r, d, plan);
        code = measure_rows(r, d, plan);
        release_rows(r);
        bench_data_free(d);
    } else {
        cli_error("out of memory");
        code = CLI_CANNOT;
    }
    free(r);
    return code;
}
