/* SPDX-License-Identifier: MIT
 * kvfold bench ops: each operation alone, on one thread, against its plain form. */
#include "bench_ops.h"
#include "bench.h"
#include "machine.h"
#include "result.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct settings {
    int64_t head_dim, samples, pool, seed;
    const char *codecs; /* NULL: every one */
    result_settings out;
} settings;

static const cli_option options[] = {
    CLI_HEAD("what is timed"),
    CLI_COUNT("--head-dim", settings, head_dim, 32, 1024, "128",
              "channels of a head, a multiple of 32; one call handles 64 rows"),
    CLI_WORD("--codec", "CODEC[,...]", settings, codecs,
             "codecs that are encoded and decoded; none: no codec (default: every codec of kvfold list, without options)"),
    CLI_HEAD("how"),
    CLI_COUNT("--samples", settings, samples, MEASURE_SAMPLES_MIN, MEASURE_SAMPLES_MAX, "15", "samples of each row, at least 9"),
    CLI_COUNT("--pool", settings, pool, 1, 1 << 20, NULL,
              "MiB of inputs and results that the calls go through in turn (default: twice the last-level cache)"),
    BENCH_SEED(settings),
    RESULT_OPTIONS(settings),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "bench ops",
    .usage = "[OPTIONS]",
    .about = "Times each public operation alone, on one thread, beside its plain form: a textbook loop, or for encoding and\n"
             "decoding what a cache without codes does with the same rows. The results of both are compared in the same run.",
    .options = options,
};

/* ---- a pool of calls ------------------------------------------------------------------------------------------------------ */

typedef struct pool {
    uint8_t *in, *out[2]; /* results of each form; slot i of all belongs to one input */
    size_t slots;
    const bench_op *op;
    uint64_t blank; /* digest of a wiped result */
} pool;

static int pool_make(pool *p, const bench_op *op, size_t bytes, uint64_t seed)
{
    *p = (pool){.slots = bytes / (op->in_bytes + op->out_bytes) + 8, .op = op};
    p->in = aligned_alloc(64, p->slots * op->in_bytes);
    for (int f = 0; f < 2; f++) p->out[f] = aligned_alloc(64, p->slots * op->out_bytes);
    if (!p->in || !p->out[0] || !p->out[1]) return -1;
    for (size_t i = 0; i < p->slots; i++) op->fill(op, seed + i, p->in + i * op->in_bytes);
    for (int f = 0; f < 2; f++) memset(p->out[f], 0xff, p->slots * op->out_bytes);
    p->blank = measure_digest(p->out[0], op->out_bytes);
    return 0;
}

static void pool_free(pool *p)
{
    free(p->in);
    free(p->out[0]);
    free(p->out[1]);
}

/* One form of the operation on its way through the pool. */
typedef struct form {
    const pool *pool;
    uint8_t *out; /* the pool's, of this form */
    int (*run)(const bench_op *op, const void *in, void *out);
    size_t next;
    int calls, failed;
} form;

static uint8_t *out_of(const form *f, int call)
{
    return f->out + (f->next + (size_t)call) % f->pool->slots * f->pool->op->out_bytes;
}

/* Before a sample: on to the next inputs. Results are wiped half a pool ahead: what was wiped just now would lie in the caches, and
 * writing to it would be faster than to memory. */
static void advance(void *self)
{
    form *f = self;
    int ahead = (int)(f->pool->slots / 2);
    f->next = (f->next + (size_t)f->calls) % f->pool->slots;
    for (int i = 0; i < f->calls; i++) memset(out_of(f, ahead + i), 0xff, f->pool->op->out_bytes);
}

static uint64_t blank(void *self)
{
    return ((form *)self)->pool->blank;
}

static int has_failed(void *self)
{
    return ((form *)self)->failed;
}

static void run_form(void *self)
{
    form *f = self;
    const bench_op *op = f->pool->op;
    for (int i = 0; i < f->calls; i++) {
        const uint8_t *in = f->pool->in + (f->next + (size_t)i) % f->pool->slots * op->in_bytes;
        f->failed |= f->run(op, in, out_of(f, i)) != KVF_OK;
    }
}

static uint64_t digest(void *self, int call)
{
    form *f = self;
    return measure_digest(out_of(f, call), f->pool->op->out_bytes);
}

/* Calls that take about two milliseconds: enough for the clock, and few enough not to meet themselves in the pool. */
static int enough_calls(form *f)
{
    const measure_io *io = &measure_system;
    int most = (int)(f->pool->slots / 4), calls = 1;
    for (f->calls = 1; calls < most; calls *= 2) {
        f->calls = calls;
        double t0 = io->now(NULL);
        run_form(f);
        if (io->now(NULL) - t0 > 2e-3) break;
    }
    return calls < most ? calls : most < 1 ? 1 : most;
}

/* ---- one operation -------------------------------------------------------------------------------------------------------- */

typedef struct ops_plan {
    json_t *result;
    int run, samples;
    uint64_t seed;
    measure_rounds load; /* of all operations together */
    size_t pool;
    bench_arm reader;
    bool wrong;
} ops_plan;

static void add_row(ops_plan *plan, const trial *t, int i, const bench_op *op, double error)
{
    json_t *o = trial_row_json(t, i);
    bool wrong = i == 1 && !(error <= op->limit);
    json_object_set_new(o, "values", json_integer((json_int_t)op->values));
    json_object_set_new(o, "ns_per_value", cli_json_real(1e3 * t->row[i].time.median / (double)op->values));
    json_object_set_new(o, "noise_floor", cli_json_real(t->floor));
    json_object_set_new(o, "against_itself", trial_self_json(t));
    json_object_set_new(o, "read_gb_per_s", cli_json_real(trial_read_rate(t)));
    json_object_set_new(o, "other_load", trial_load_json(&t->rounds));
    if (i == 1) json_object_set_new(o, "error", isfinite(error) ? json_real(error) : json_null());
    json_object_set_new(o, "wrong", json_string(wrong ? "WRONG" : ""));
    result_add_row(plan->result, plan->run, o);
    plan->wrong |= wrong;
    if (wrong) cli_error("%s: the result is wrong (relative error %.1e, at most %.1e is right)", op->name, error, op->limit);
}

/* Of the first input, by both forms. */
static double check(const pool *p)
{
    const bench_op *op = p->op;
    uint8_t *plain = aligned_alloc(64, op->out_bytes), *out = p->out[1];
    double error = INFINITY;
    if (plain) {
        memset(plain, 0, op->out_bytes);
        memset(out, 0, op->out_bytes);
        int code = op->run(op, p->in, out), plain_code = op->plain(op, p->in, plain);
        if (code == KVF_OK && plain_code == KVF_OK) error = op->error(op, p->in, out, plain);
    }
    free(plain);
    return error;
}

/* What the machine did during all operations: the sum over them, which names no samples. */
static void add_load(measure_rounds *all, const measure_rounds *r)
{
    all->rounds += r->rounds;
    all->repeated += r->repeated;
    all->marked += r->marked;
    all->busy += r->busy;
    all->slow += r->slow;
    all->unseen |= r->unseen;
    all->worst = fmax(all->worst, r->worst);
    all->mhz_max = fmax(all->mhz_max, r->mhz_max);
    if (r->mhz_min > 0) all->mhz_min = all->mhz_min > 0 ? fmin(all->mhz_min, r->mhz_min) : r->mhz_min;
}

static int measure_pool(ops_plan *plan, const pool *p)
{
    const bench_op *op = p->op;
    form f[2] = {{.pool = p, .out = p->out[0], .run = op->plain}, {.pool = p, .out = p->out[1], .run = op->run}};
    measure_io io = measure_system;
    trial t = {.n_rows = 2, .threads = 1, .samples = plan->samples, .seed = plan->seed};
    io.stop = bench_stop;
    t.reader = (measure_arm){.run = plan->reader.run, .arm = plan->reader.self, .calls = 1};
    t.read_bytes = (double)plan->reader.bytes;
    for (int i = 0; i < 2; i++) {
        trial_row *row = &t.row[i];
        f[i].calls = enough_calls(&f[i]);
        snprintf(row->name, sizeof row->name, "%s", i == 0 ? op->plain_name : op->name);
        row->candidate = i == 0;
        row->bytes = (double)(op->in_bytes + op->out_bytes);
        row->arm = (measure_arm){.run = run_form,
                                 .arm = &f[i],
                                 .calls = f[i].calls,
                                 .prepare = advance,
                                 .digest = digest,
                                 .blank = blank,
                                 .failed = has_failed,
                                 .call_bytes = 1,
                                 .pool = f[i].calls}; /* every call has another input */
    }
    int code = trial_run(&t, &io);
    double error = f[1].failed ? INFINITY : check(p);
    if (code == 0) add_load(&plan->load, &t.rounds);
    for (int i = 1; code == 0 && i >= 0; i--) add_row(plan, &t, i, op, error);
    trial_free(&t);
    return code == 0 ? CLI_GO : CLI_CANNOT;
}

static int measure_op(ops_plan *plan, const bench_op *op)
{
    pool p;
    int code = CLI_CANNOT;
    if (pool_make(&p, op, plan->pool, plan->seed) == 0)
        code = measure_pool(plan, &p);
    else
        cli_error("out of memory");
    pool_free(&p);
    return code;
}

static int measure_all_of(ops_plan *plan, const settings *s, const char *spec)
{
    bench_op op;
    int code = CLI_GO;
    for (int i = 0; code == CLI_GO && !cli_interrupted() && bench_op_at(i, (int)s->head_dim, spec, &op); i++)
        code = measure_op(plan, &op);
    return code;
}

/* ---- all operations ------------------------------------------------------------------------------------------------------- */

static int next_spec(const char **list, char *spec, size_t size)
{
    size_t n = cli_arm_length(*list);
    if (n == 0) return 0;
    snprintf(spec, size, "%.*s", (int)n, *list);
    *list += n + ((*list)[n] == ',');
    return 1;
}

static int check_codecs(const settings *s)
{
    char spec[KV_SPEC], error[512];
    kvf_spec_info info;
    for (const char *p = s->codecs; next_spec(&p, spec, sizeof spec);) {
        bool keys = kvf_spec_check(spec, KVF_K, (int32_t)s->head_dim, &info, error, sizeof error) == KVF_OK;
        if (keys || kvf_spec_check(spec, KVF_V, (int32_t)s->head_dim, &info, error, sizeof error) == KVF_OK) continue;
        cli_error("--codec: %s", error);
        return CLI_USAGE;
    }
    return CLI_GO;
}

static int measure_all(ops_plan *plan, const settings *s)
{
    char spec[KV_SPEC];
    int code = measure_all_of(plan, s, NULL);
    for (const char *p = s->codecs; code == CLI_GO && next_spec(&p, spec, sizeof spec);) {
        cli_note("%s", spec);
        code = measure_all_of(plan, s, spec);
    }
    return code;
}

/* Rows name their own marked samples; there are none of all operations together. */
static void add_load_fields(const ops_plan *plan, json_t *run)
{
    json_t *load = trial_load_json(&(measure_rounds){.unseen = plan->load.unseen, .worst = plan->load.worst});
    json_object_set_new(load, "repeated", json_integer(plan->load.repeated));
    json_object_set_new(load, "marked", json_integer(plan->load.marked));
    json_object_set_new(load, "busy", json_integer(plan->load.busy));
    json_object_set_new(load, "slow", json_integer(plan->load.slow));
    json_object_del(load, "busy_samples");
    json_object_del(load, "slow_samples");
    json_object_set_new(run, "other_load", load);
    bench_load_notes(run, &plan->load);
}

static int run(const settings *s)
{
    size_t cache = machine_last_level_cache();
    ops_plan plan = {
        .pool = s->pool ? (size_t)s->pool << 20 : 2 * cache, .samples = (int)s->samples, .seed = bench_seed(s->seed)};
    char title[120];
    if (bench_read_create(plan.pool, 1, &plan.reader) != 0) {
        cli_error("out of memory");
        return CLI_CANNOT;
    }
    plan.result = result_new("ops", plan.seed);
    json_t *o = json_pack("{s:I, s:I, s:i}", "head_dim", (json_int_t)s->head_dim, "pool", (json_int_t)plan.pool, "threads", 1);
    snprintf(title, sizeof title, "64 rows of a head of size %d a call, 1 thread, %d samples", (int)s->head_dim, (int)s->samples);
    plan.run = result_add_run(plan.result, o, title);
    if (plan.pool < cache) result_add_note(o, "the pool is smaller than the last-level cache: times are those of the cache");
    cli_catch_interrupt();
    int code = measure_all(&plan, s);
    add_load_fields(&plan, o);
    if (cli_interrupted()) json_object_set_new(plan.result, "interrupted", json_true());
    plan.reader.release(plan.reader.self);
    return result_end(plan.result, code, plan.wrong, &s->out);
}

int bench_ops(int argc, char **argv)
{
    settings s = {0};
    cli_text all = {0};
    int code = cli_parse(&syntax, &s, argc, argv);
    if (code != CLI_GO) return code;
    if (s.head_dim % OPS_GROUP) {
        cli_error("--head-dim %d is not a multiple of %d", (int)s.head_dim, OPS_GROUP);
        return CLI_USAGE;
    }
    if (!s.codecs) bench_every_codec(&all, false);
    if (all.data) s.codecs = all.data;
    if (strcmp(s.codecs, "none") == 0) s.codecs = "";
    code = check_codecs(&s);
    if (code == CLI_GO) code = result_check(&s.out, NULL, 0);
    if (code == CLI_GO) code = run(&s);
    cli_text_free(&all);
    return code;
}
