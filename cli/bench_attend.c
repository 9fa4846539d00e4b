/* SPDX-License-Identifier: MIT
 * kvfold bench attend: attention of one decoded token, our codecs beside libllama's own caches, in one run. */
#include "arms.h"
#include "bench.h"

#include <kvfold.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXTS_MOST = 16, SEED = 20240229 };

typedef struct settings {
    int64_t q_heads, kv_heads, head_dim, threads, samples;
    const char *contexts;
    const char *list;
    kv_settings kv;
    bool json;
} settings;

#define AT(field) offsetof(settings, field)
static const cli_option options[] = {
    {.kind = CLI_HEADING, .help = "what is timed"},
    {"--q-heads", "N", CLI_INTEGER, AT(q_heads), 1, 1024, "32", NULL, NULL, "query heads"},
    {"--kv-heads", "N", CLI_INTEGER, AT(kv_heads), 1, 1024, "8", NULL, NULL, "key and value heads; divides the query heads"},
    {"--head-dim", "N", CLI_INTEGER, AT(head_dim), 1, 1024, "128", NULL, NULL, "channels of a head"},
    {"--context", "N[,N...]", CLI_STRING, AT(contexts), 0, 0, "4096", NULL, NULL, "tokens that the query sees; several give several tables"},
    {"--kv", "K/V[,K/V...]", CLI_STRING, AT(list), 0, 0, "f16/f16,q8_0/q8_0,q4_0/q4_0,kivi4/kivi4,kivi2/kivi2", NULL, NULL,
     "our rows: codecs of keys and values, or presets; a piece with = before any : or / continues the one before it"},
    {"--sink", "S", CLI_INTEGER, AT(kv.sink), 0, 64, NULL, NULL, NULL, "first tokens that stay exact (default: 4)"},
    {"--window --recent", "R", CLI_INTEGER, AT(kv.recent), 0, 65536, NULL, NULL, NULL, "newest tokens that stay exact (default: 64)"},
    {.kind = CLI_HEADING, .help = "how"},
    {"-t --threads", "N", CLI_INTEGER, AT(threads), 1, 256, NULL, NULL, NULL, "threads of all rows (default: one a core)"},
    {"--samples", "N", CLI_INTEGER, AT(samples), MEASURE_SAMPLES_MIN, MEASURE_SAMPLES_MAX, "15", NULL, NULL, "samples of each row"},
    {"--cpu", "SET", CLI_STRING, AT(kv.cpu), 0, 0, NULL, NULL, NULL, "instruction set of our rows, as scalar or avx2 (default: the best present)"},
    {"--json", NULL, CLI_ON, AT(json), 0, 0, NULL, NULL, NULL, "one JSON object on stdout"},
    {.kind = CLI_HEADING},
};

static const cli_syntax syntax = {
    .command = "bench attend",
    .usage = "[OPTIONS]",
    .about = "Times the attention of one decoded token on folded caches and on libllama's own, with and without flash attention, in\n"
             "one run: samples interleaved in shuffled order, inputs that rotate through more memory than the caches hold, the\n"
             "baseline against itself first, and the read limit of memory beside every row. Results are checked in the same run.",
    .options = options,
};

/* ---- options -------------------------------------------------------------------------------------------------------------- */

static int parse_contexts(const char *list, int *context, int *n)
{
    *n = 0;
    for (const char *p = list;; p++) {
        char *end;
        long tokens = strtol(p, &end, 10);
        if (end == p || (*end && *end != ',') || tokens < 2 || tokens > 1 << 24 || *n == CONTEXTS_MOST) {
            cli_error("--context: '%s' is not a list of at most %d numbers from 2 to %d", list, CONTEXTS_MOST, 1 << 24);
            return CLI_USAGE;
        }
        context[(*n)++] = (int)tokens;
        p = end;
        if (!*p) return CLI_GO;
    }
}

static int check(const settings *s)
{
    if (s->q_heads % s->kv_heads) {
        cli_error("--q-heads %d is not a multiple of --kv-heads %d", (int)s->q_heads, (int)s->kv_heads);
        return CLI_USAGE;
    }
#ifndef _OPENMP
    if (s->threads > 1) {
        cli_error("--threads %d: this build has no OpenMP, so our rows would run on one thread and those of libllama on more; "
                  "use --threads 1", (int)s->threads);
        return CLI_CANNOT;
    }
#endif
    return CLI_GO;
}

/* ---- arms ----------------------------------------------------------------------------------------------------------------- */

static void refuse(bench_report *report, const char *reason)
{
    for (int i = 0; i < report->n_refused; i++)
        if (strcmp(report->refused[i].reason, reason) == 0) return; /* said at another context */
    if (report->n_refused < BENCH_ROWS_MOST) snprintf(report->refused[report->n_refused++].reason, sizeof report->refused->reason, "%s", reason);
    cli_warn("%s", reason);
}

static void create_rows(bench_result *r, const bench_data *d, const cli_arms *arms, size_t pool, bench_report *report)
{
    char error[600];
    for (int i = 0; i < arms->n; i++) {
        bench_row *row = &r->row[r->n_rows];
        *row = (bench_row){.ours = 1};
        if (bench_fold_create(&arms->arm[i], d, pool, &row->arm, error, sizeof error) == 0) r->n_rows++;
        else refuse(report, error);
    }
    for (int i = 0, code; r->n_rows < BENCH_ROWS_MOST; i++) {
        bench_row *row = &r->row[r->n_rows];
        *row = (bench_row){0};
        if ((code = bench_peer_create(i, d, pool, &row->arm, error, sizeof error)) == 1) break;
        if (code == 0) r->n_rows++;
        else refuse(report, error);
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
    r->interrupted = cli_interrupted();
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

static int one_context(const settings *s, const cli_arms *arms, bench_report *report, int context)
{
    measure_io io = measure_system;
    bench_shape shape = report->shape;
    bench_result *r = &report->result[report->n_results];
    size_t pool = 2 * report->cache;
    shape.context = context;
    io.stop = stop;
    int code = check_memory(&shape, arms->n, pool);
    bench_data *d = code == CLI_GO ? bench_data_create(&shape, SEED) : NULL;
    if (!d) {
        if (code == CLI_GO) cli_error("out of memory");
        return CLI_CANNOT;
    }
    *r = (bench_result){.context = context};
    create_rows(r, d, arms, pool, report);
    code = measure_context(&io, r, d, pool, (int)s->samples);
    release_rows(r);
    bench_data_free(d);
    report->n_results += code == CLI_GO;
    return code;
}

/* A wrong row is as bad as a refused one: the table is printed, then the exit code says that something cannot be done. */
static int judge(const bench_report *report)
{
    int code = report->n_refused ? CLI_CANNOT : CLI_DONE;
    for (int c = 0; c < report->n_results; c++)
        for (int i = 0; i < report->result[c].n_rows; i++) {
            const bench_row *row = &report->result[c].row[i];
            if (!row->ours || row->error <= BENCH_ERROR_LIMIT) continue;
            cli_error("%s at %d tokens: the result is wrong (relative error %.1e, at most %.1e is right)", row->arm.name,
                      report->result[c].context, row->error, BENCH_ERROR_LIMIT);
            code = CLI_CANNOT;
        }
    return code;
}

static int run_all(const settings *s, const cli_arms *arms, const int *context, int n, bench_report *report)
{
    int code = CLI_GO;
    for (int i = 0; code == CLI_GO && i < n && !cli_interrupted(); i++) code = one_context(s, arms, report, context[i]);
    if (report->n_results == 0) return code == CLI_GO ? CLI_DONE : code;
    int printed = CLI_DONE;
    if (s->json) printed = cli_print_json(bench_json(report));
    else bench_print(report);
    if (code == CLI_GO) code = judge(report);
    return printed == CLI_DONE ? cli_finish(code) : printed;
}

int bench_attend(int argc, char **argv)
{
    settings s = {.threads = cli_threads_default()};
    kv_settings_init(&s.kv);
    int context[CONTEXTS_MOST], n, code = cli_parse(&syntax, &s, argc, argv);
    if (code == CLI_GO) code = check(&s);
    if (code == CLI_GO) code = parse_contexts(s.contexts, context, &n);
    cli_arms *arms = cli_alloc(1, sizeof *arms);
    if (code == CLI_GO) code = cli_arms_make(arms, s.list, &s.kv);
    if (code == CLI_GO) {
        bench_report *report = cli_alloc(1, sizeof *report);
        report->shape = (bench_shape){(int)s.q_heads, (int)s.kv_heads, (int)s.head_dim, 0, (int)s.threads};
        report->cache = bench_last_level_cache();
        report->result = cli_alloc((size_t)n, sizeof *report->result);
        cli_catch_interrupt();
        code = run_all(&s, arms, context, n, report);
        cli_arms_free(arms);
        free(report->result);
        free(report);
    }
    free(arms);
    return code;
}
