/* SPDX-License-Identifier: MIT
 * The rows of one table: made, timed in one interleaved run, checked. */
#include "arms.h"
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 20240229 };

/* ---- arms ----------------------------------------------------------------------------------------------------------------- */

static void refuse(bench_report *report, bool ours, const char *reason)
{
    for (int i = 0; i < report->n_refused; i++)
        if (strcmp(report->refused[i].reason, reason) == 0) return; /* said at another context */
    if (report->n_refused == BENCH_ROWS_MOST) return;
    bench_refusal *r = &report->refused[report->n_refused++];
    snprintf(r->reason, sizeof r->reason, "%s", reason);
    r->ours = ours;
    cli_warn("%s", reason);
}

static void create_rows(bench_result *r, const bench_data *d, const cli_arms *arms, size_t pool, bench_report *report)
{
    char error[600];
    for (int i = 0; i < arms->n; i++) {
        bench_row *row = &r->row[r->n_rows];
        *row = (bench_row){.ours = 1};
        if (bench_fold_create(&arms->arm[i], d, pool, &row->arm, error, sizeof error) == 0)
            r->n_rows++;
        else
            refuse(report, true, error);
    }
    for (int i = 0, code; r->n_rows < BENCH_ROWS_MOST; i++) {
        bench_row *row = &r->row[r->n_rows];
        *row = (bench_row){0};
        if ((code = bench_peer_create(i, d, pool, &row->arm, error, sizeof error)) == 1) break;
        if (code == 0)
            r->n_rows++;
        else
            refuse(report, false, error);
    }
}

static void release_rows(bench_result *r)
{
    for (int i = 0; i < r->n_rows; i++) r->row[i].arm.release(r->row[i].arm.self);
}

/* ---- measuring ------------------------------------------------------------------------------------------------------------ */

static int stop(void *user)
{
    (void)user;
    return cli_interrupted();
}

static measure_arm timed(const bench_arm *arm, double *us)
{
    return (measure_arm){arm->run, arm->self, arm->layers, us};
}

/* Which row of libllama is fastest, from a few samples; -1: there is none. */
static int find_baseline(const measure_io *io, const bench_result *r, int threads)
{
    enum { SAMPLES = 3 };
    int best = -1;
    double least = INFINITY;
    for (int i = 0; i < r->n_rows; i++) {
        double us[SAMPLES];
        measure_arm arm = timed(&r->row[i].arm, us);
        measure_rounds rounds;
        if (r->row[i].ours) continue;
        measure_run(io, &arm, 1, SAMPLES, threads, SEED, &rounds);
        double fastest = us[0];
        for (int k = 1; k < rounds.rounds; k++) fastest = fmin(fastest, us[k]);
        if (fastest < least) {
            least = fastest;
            best = i;
        }
    }
    return best;
}

static void measure_against_itself(const measure_io *io, bench_result *r, int threads, int samples, double *us)
{
    measure_arm twice[2];
    measure_rounds rounds;
    for (int i = 0; i < 2; i++) twice[i] = timed(&r->row[r->baseline].arm, us + i * samples);
    measure_run(io, twice, 2, samples, threads, SEED, &rounds);
    measure_compare(us, us + samples, rounds.rounds, 0, SEED, &r->against_itself);
    r->floor = measure_floor(&r->against_itself);
}

/* The fastest row of libllama by the medians of the run itself, so that no row of libllama beats the baseline. */
static void choose_baseline(bench_result *r)
{
    for (int i = 0; i < r->n_rows; i++)
        if (!r->row[i].ours && r->row[i].time.median < r->row[r->baseline].time.median) r->baseline = i;
}

static void measure_rows(const measure_io *io, bench_result *r, const bench_arm *reader, int threads, int samples, double *us)
{
    measure_arm all[BENCH_ROWS_MOST + 1];
    int n = r->n_rows;
    for (int i = 0; i < n; i++) all[i] = timed(&r->row[i].arm, us + i * samples);
    all[n] = timed(reader, us + n * samples);
    measure_run(io, all, n + 1, samples, threads, SEED + 1, &r->rounds);
    for (int i = 0; i < n; i++) measure_summarise(all[i].us, r->rounds.rounds, SEED, &r->row[i].time);
    measure_summarise(all[n].us, r->rounds.rounds, SEED, &r->read);
    choose_baseline(r);
    for (int i = 0; i < n; i++)
        measure_compare(all[r->baseline].us, all[i].us, r->rounds.rounds, r->floor, SEED, &r->row[i].ratio);
}

/* Times and checks whatever rows there are. */
static int measure_context(const measure_io *io, bench_result *r, const bench_data *d, size_t pool, int samples)
{
    bench_arm reader;
    int threads = d->shape.threads;
    double *us = malloc((size_t)(r->n_rows + 2) * (size_t)samples * sizeof *us);
    if (!us || bench_read_create(pool, threads, &reader) != 0) {
        free(us);
        cli_error("out of memory");
        return CLI_CANNOT;
    }
    cli_note("%d tokens: the baseline against itself, then %d rows", r->context, r->n_rows);
    r->baseline = r->repeated = find_baseline(io, r, threads);
    r->read_bytes = reader.bytes;
    if (r->baseline >= 0) {
        measure_against_itself(io, r, threads, samples, us);
        measure_rows(io, r, &reader, threads, samples, us);
    }
    reader.release(reader.self);
    free(us);
    if (r->baseline < 0) {
        cli_error("no row of libllama can run here, so there is nothing to compare with");
        return CLI_CANNOT;
    }
    for (int i = 0; i < r->n_rows; i++) r->row[i].error = bench_error(&r->row[i].arm, d);
    return CLI_GO;
}

/* ---- one context ---------------------------------------------------------------------------------------------------------- */

/* Everything is held at once, as rows are interleaved: refuse before the machine starts to swap. */
static int check_memory(const bench_shape *s, int arms, size_t pool)
{
    int64_t available = cli_memory_available();
    size_t f16 = (size_t)s->context * (size_t)s->kv_heads * (size_t)s->head_dim * 4, need = 2 * f16 + pool, bytes;
    for (int i = 0; (bytes = bench_peer_bytes(i, s, pool)) != 0; i++) need += bytes;
    need += (size_t)arms * (pool + 2 * f16);
    if (available < 0 || need < (size_t)available) return CLI_GO;
    cli_error("%d tokens need about %s at once, and %s are free; take a shorter --context or fewer --kv", s->context,
              cli_bytes((int64_t)need), cli_bytes(available));
    return CLI_CANNOT;
}

int bench_context(bench_report *report, const cli_arms *arms, int context, int samples)
{
    measure_io io = measure_system;
    bench_shape shape = report->shape;
    bench_result *r = &report->result[report->n_results];
    shape.context = context;
    io.stop = stop;
    int code = check_memory(&shape, arms->n, report->pool);
    if (code != CLI_GO) return code;
    bench_data *d = bench_data_create(&shape, SEED);
    if (!d) {
        cli_error("out of memory");
        return CLI_CANNOT;
    }
    *r = (bench_result){.context = context};
    create_rows(r, d, arms, report->pool, report);
    code = measure_context(&io, r, d, report->pool, samples);
    release_rows(r);
    bench_data_free(d);
    report->n_results += code == CLI_GO;
    return code;
}
