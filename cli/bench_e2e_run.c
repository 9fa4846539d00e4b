/* SPDX-License-Identifier: MIT
 * One model at one depth: a process for each arm, which take turns sample by sample. Decoding goes on from sample to sample, all
 * arms in step, so that sealing is paid for where it falls due; where that was is said. Prefill is cut back to the depth before each
 * sample. An arm that fails loses its row, not those of the others. */
#include "bench_e2e.h"
#include "measure_random.h"
#include "result.h"

#include <gguf.h>
#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const PHASE[] = {"decode", "prefill"};

/* What one sample of an arm is: commands to its process. */
typedef struct step {
    e2e_arm *arm;
    char prepare[48], run[48];
} step;

typedef struct run {
    e2e_plan *plan;
    const char *model;
    uint64_t model_hash, text_hash; /* 0: there is no text */
    int depth, n;
    e2e_arm arm[TRIAL_ROWS_MOST], twin;
    int twin_of;                        /* -1: not started */
    double shallow[2][TRIAL_ROWS_MOST]; /* us a token of candidates with next to no history: decoding, prefill; 0: unknown */
    int shallow_marked[2];              /* rounds of that beside other load */
    int from;                           /* tokens of history before the first round of decoding that counts */
    step step[TRIAL_ROWS_MOST + 1];
    int batch[TRIAL_ROWS_MOST]; /* rows of a batch */
    trial trial;
    bench_arm reader;
} run;

/* ---- steps ---------------------------------------------------------------------------------------------------------------- */

static void do_prepare(void *self)
{
    step *s = self;
    if (s->prepare[0]) e2e_ask(s->arm, s->prepare);
}

static void do_run(void *self)
{
    step *s = self;
    e2e_ask(s->arm, s->run);
}

/* A process that is gone answers at once: its times are none. */
static int has_failed(void *self)
{
    return ((step *)self)->arm->failed[0] != 0;
}

static measure_arm step_arm(step *s, e2e_arm *arm, int tokens)
{
    s->arm = arm;
    return (measure_arm){.run = do_run, .arm = s, .calls = tokens, .prepare = do_prepare, .failed = has_failed};
}

/* Not 0: nothing is left to be measured. */
static int stop(void *user)
{
    const run *r = user;
    int alive = 0;
    for (int i = 0; i < r->n; i++) alive += !r->arm[i].failed[0];
    return cli_interrupted() || alive == 0;
}

/* What the arms' processes do is no load of others. */
static int processes(const run *r, long *pid)
{
    int n = 0;
    for (int i = 0; i < r->n; i++)
        if (r->arm[i].child.pid) pid[n++] = r->arm[i].child.pid;
    if (r->twin_of >= 0 && r->twin.child.pid) pid[n++] = r->twin.child.pid;
    return n;
}

static void load(void *user, measure_load *l)
{
    long pid[TRIAL_ROWS_MOST + 1];
    measure_system_load(pid, processes(user, pid), l);
}

static double mhz(void *user)
{
    long pid[TRIAL_ROWS_MOST + 1];
    return measure_system_mhz(pid, processes(user, pid));
}

static measure_io io_of(run *r)
{
    measure_io io = measure_system;
    io.load = load;
    io.stop = stop;
    io.mhz = mhz;
    io.user = r;
    return io;
}

/* ---- arms ----------------------------------------------------------------------------------------------------------------- */

static void start_arms(run *r)
{
    const e2e_plan *plan = r->plan;
    for (int i = 0; bench_plain_at(i) || i < plan->arms->n + 4; i++) {
        e2e_arm *a = &r->arm[r->n];
        int ours = i;
        *a = (e2e_arm){.plain = bench_plain_at(i)};
        if (!a->plain) {
            for (int k = 0; bench_plain_at(k); k++) ours--;
            if (ours >= plan->arms->n) break;
            a->choice = &plan->arms->arm[ours];
        }
        snprintf(a->name, sizeof a->name, "%s", a->plain ? a->plain->name : plan->arms->name[ours]);
        cli_note("%s", a->name);
        if (r->n < TRIAL_ROWS_MOST && e2e_start(a, &plan->set, r->model, r->depth) == 0) {
            r->n++;
            continue;
        }
        result_refuse(plan->result, a->failed);
        r->plan->refused |= a->choice != NULL;
        e2e_end(a);
    }
}

/* The history into every arm, in shuffled order, each alone on the machine. The first time is not counted: pages are touched and
 * weights read then. */
static int fill_arms(run *r)
{
    int order[TRIAL_ROWS_MOST];
    uint64_t seed = r->plan->set.seed;
    for (int i = 0; i < r->n; i++) order[i] = i;
    for (int k = 0; k <= r->plan->set.first; k++) {
        measure_shuffle(order, r->n, &seed);
        for (int i = 0; i < r->n && !stop(r); i++) e2e_fill(&r->arm[order[i]], r->depth, k > 0);
    }
    return stop(r) ? -1 : 0;
}

/* A second process for what will be the baseline, at the same token as the first one. */
static int start_twin(void *user, int i, measure_arm *twin)
{
    run *r = user;
    const e2e_settings *set = &r->plan->set;
    char command[48];
    json_t *report = e2e_report(&r->arm[i]);
    int behind = report ? (int)result_real(report, "held") - r->depth : 0;
    if (r->trial.moves) r->from = r->depth + behind + MEASURE_WARM_UPS * set->predict;
    json_decref(report);
    if (r->twin_of != i) {
        if (r->twin_of >= 0) e2e_end(&r->twin);
        r->twin = (e2e_arm){.plain = r->arm[i].plain, .choice = r->arm[i].choice};
        r->twin_of = i;
        snprintf(r->twin.name, sizeof r->twin.name, "%s", r->arm[i].name);
        if (e2e_start(&r->twin, set, r->model, r->depth) == 0 && e2e_fill(&r->twin, r->depth, false) == 0 && behind > 0) {
            snprintf(command, sizeof command, "decode %d", behind);
            e2e_ask(&r->twin, command);
        }
    }
    if (!r->twin.failed[0]) {
        step *s = &r->step[TRIAL_ROWS_MOST];
        *s = *(step *)r->trial.row[i].arm.arm;
        *twin = step_arm(s, &r->twin, r->trial.row[i].arm.calls);
        return 0;
    }
    return -1; /* the sentence is printed by who asked for the run */
}

/* ---- Amdahl --------------------------------------------------------------------------------------------------------------- */

/* Candidates with next to no history: what is left when attention to the history costs nothing. */
static int measure_shallow(run *r, int phase)
{
    const e2e_settings *set = &r->plan->set;
    measure_arm arm[TRIAL_ROWS_MOST];
    double us[TRIAL_ROWS_MOST][MEASURE_SAMPLES_MIN];
    measure_rounds rounds;
    measure_io io = io_of(r);
    int tokens = phase == 0 ? set->predict : set->prompt, n = 0, of[TRIAL_ROWS_MOST];
    for (int i = 0; i < r->n; i++) {
        step *s = &r->step[i];
        if (!r->arm[i].plain) continue;
        snprintf(s->prepare, sizeof s->prepare, phase == 0 ? "prefill 0 1" : "cut 0");
        snprintf(s->run, sizeof s->run, phase == 0 ? "decode %d" : "prefill 0 %d", tokens);
        arm[n] = step_arm(s, &r->arm[i], tokens);
        arm[n].us = us[n];
        of[n++] = i;
    }
    if (n == 0 || measure_run(&io, arm, n, MEASURE_SAMPLES_MIN, set->threads, set->seed, &rounds) != 0) return -1;
    for (int k = 0; k < n; k++) r->shallow[phase][of[k]] = measure_median(us[k], rounds.rounds);
    r->shallow_marked[phase] = rounds.marked;
    return stop(r) ? -1 : 0;
}

/* Bytes of weights that each token reads: an embedding that is not the output matrix too is only looked up. */
static double weights_read(const char *model, double all)
{
    struct gguf_init_params p = {.no_alloc = true};
    struct gguf_context *g = gguf_init_from_file(model, p);
    int64_t embedding = g ? gguf_find_tensor(g, "token_embd.weight") : -1;
    if (embedding >= 0 && gguf_find_tensor(g, "output.weight") >= 0) all -= (double)gguf_get_tensor_size(g, embedding);
    gguf_free(g);
    return all;
}

/* ---- trials --------------------------------------------------------------------------------------------------------------- */

static void set_up_trial(run *r, int phase)
{
    const e2e_settings *set = &r->plan->set;
    trial *t = &r->trial;
    *t = (trial){.n_rows = r->n,
                 .threads = set->threads,
                 .samples = set->samples,
                 .seed = set->seed,
                 .moves = phase == 0,
                 .label = PHASE[phase]};
    t->twin = start_twin;
    t->user = r;
    t->reader = (measure_arm){.run = r->reader.run, .arm = r->reader.self, .calls = 1};
    t->read_bytes = (double)r->reader.bytes;
    for (int i = 0; i < r->n; i++) {
        step *s = &r->step[i];
        *s = (step){0};
        if (phase == 1) snprintf(s->prepare, sizeof s->prepare, "cut %d", r->depth);
        if (phase == 0)
            snprintf(s->run, sizeof s->run, "decode %d", set->predict);
        else
            snprintf(s->run, sizeof s->run, "prefill %d %d", r->depth, set->prompt);
        snprintf(t->row[i].name, sizeof t->row[i].name, "%.95s", r->arm[i].name);
        t->row[i].candidate = r->arm[i].plain != NULL;
        t->row[i].arm = step_arm(s, &r->arm[i], phase == 0 ? set->predict : set->prompt);
    }
}

/* Decoding reads weights and cache once a token. */
static void find_bytes(run *r)
{
    for (int i = 0; i < r->n; i++) {
        json_t *o = e2e_report(&r->arm[i]);
        if (!o) continue;
        r->batch[i] = (int)result_real(o, "batch");
        r->trial.row[i].bytes =
            weights_read(r->model, result_real(o, "weights")) + result_real(o, "accounted") + result_real(o, "host");
        json_decref(o);
    }
}

static void find_amdahl(run *r, int phase)
{
    trial *t = &r->trial;
    double shallow = r->shallow[phase][t->baseline], base = t->row[t->baseline].time.median;
    for (int i = 0; shallow > 0 && i < r->n; i++) {
        double limit = measure_amdahl(1 - shallow / base);
        t->row[i].amdahl = limit > 1 + t->floor ? limit : 1 + t->floor; /* it is not known any better than that */
    }
}

/* ---- what comes out ------------------------------------------------------------------------------------------------------- */

static void put_bytes(json_t *o, const json_t *report, const char *key)
{
    const json_t *value = json_object_get(report, key);
    json_object_set_new(o, key, value ? json_incref((json_t *)(uintptr_t)value) : json_null());
}

static json_t *numbers(const double *x, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, cli_json_real(x[i]));
    return list;
}

/* Time to the first token, and against that of the baseline; the samples of all arms were taken in turns. */
static void add_first(const e2e_arm *a, const e2e_arm *base, uint64_t seed, json_t *o)
{
    measure_summary s;
    measure_ratio ratio;
    json_object_set_new(o, "first_samples", json_integer(a->fills));
    if (a->fills == 0 || a->fills != base->fills) return;
    measure_summarise(a->first_ms, a->fills, &s);
    measure_compare(base->first_ms, a->first_ms, a->fills, 0, seed, &ratio);
    if (a->fills < MEASURE_SAMPLES_MIN) s.noise = NAN; /* as few have no interval */
    json_object_set_new(o, "first_ms", cli_json_real(s.median));
    json_object_set_new(o, "first_ms_min", cli_json_real(s.min));
    json_object_set_new(o, "first_ms_max", cli_json_real(s.max));
    json_object_set_new(o, "first_noise", cli_json_real(s.noise));
    json_object_set_new(o, "first_ratio", cli_json_real(ratio.ratio));
    json_object_set_new(o, "first_ratio_low", cli_json_real(ratio.low));
    json_object_set_new(o, "first_ratio_high", cli_json_real(ratio.high));
    json_object_set_new(o, "first_ms_all", numbers(a->first_ms, a->fills));
}

static void add_memory(run *r, int i, json_t *o)
{
    static const char *const keys[] = {"accounted", "resident_cache", "host",           "f16",  "anonymous", "resident",
                                       "peak",      "bits_code",      "bits_per_value", "held", "text"};
    e2e_arm *a = &r->arm[i], *base = &r->arm[r->trial.baseline];
    char verdict[E2E_VERDICT];
    measure_bytes m;
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) put_bytes(o, a->end, keys[k]);
    e2e_memory_verdict(base->peak, base->processes, a->peak, a->processes, verdict, &m);
    json_object_set_new(o, "memory_verdict", json_string(a == base ? "the baseline" : verdict));
    json_object_set_new(o, "peak_saved", cli_json_real(m.saved));
    json_object_set_new(o, "processes", json_integer(a->processes));
    json_object_set_new(o, "peaks", numbers(a->peak, a->processes));
    add_first(a, base, r->plan->set.seed, o);
}

/* Plain libllama with an f16 cache and without flash attention, which would sum up single rows in f16; the baseline when there is
 * none. */
static const e2e_arm *reference(const run *r)
{
    for (int i = 0; i < r->n; i++)
        if (!r->trial.row[i].failed && r->arm[i].plain && r->arm[i].plain->type == GGML_TYPE_F16 &&
            r->arm[i].plain->flash == LLAMA_FLASH_ATTN_TYPE_DISABLED)
            return &r->arm[i];
    return &r->arm[r->trial.baseline];
}

static bool is_exact(const e2e_arm *a)
{
    if (a->plain) return a->plain->type == GGML_TYPE_F16;
    const kv_choice *c = a->choice;
    return strcmp(c->k, "f16") == 0 && strcmp(c->v, "f16") == 0 && c->exact_bits == 16 && !c->evicts && !c->layers.data;
}

static void wrong(run *r, json_t *o, const e2e_arm *a, const char *mark, const char *why)
{
    json_object_set_new(o, "wrong", json_string(mark));
    cli_error("%s at depth %d: %s", a->name, r->depth, why);
    r->plan->wrong = true;
}

/* Arms without loss may differ only where two tokens are nearly as likely; what follows that is another text. */
static void judge_text(run *r, const e2e_arm *a, const e2e_arm *other, json_t *o, char *verdict)
{
    double gap;
    bool near;
    char why[400];
    size_t n = strlen(verdict);
    if (e2e_first_difference(other->end, a->end, &gap, &near) < 0) return;
    snprintf(verdict + n, E2E_VERDICT - n, near ? ", a near tie (%.2f)" : ", no near tie (%.2f)", gap);
    json_object_set_new(o, "text_gap", cli_json_real(gap));
    snprintf(why, sizeof why, "another text than %s writes, at a token that is likelier than the next by %.2f nats", other->name,
             gap);
    if (!near) wrong(r, o, a, "another text", why);
}

static void add_text(run *r, int i, json_t *o)
{
    e2e_arm *a = &r->arm[i];
    const e2e_arm *other = reference(r);
    char verdict[E2E_VERDICT], twin[E2E_VERDICT];
    const char *text = result_string(a->end, "text");
    bool exact = is_exact(a) && is_exact(other);
    bool same = e2e_text_verdict(result_string(other->end, "text"), text, exact, verdict);
    if (!same && exact) judge_text(r, a, other, o, verdict);
    json_object_set_new(o, "text_verdict", json_string(a == other ? "the reference" : verdict));
    json_object_set_new(o, "text_same", json_boolean(same));
    if (i != r->twin_of || r->twin.failed[0] || e2e_text_verdict(result_string(r->twin.end, "text"), text, true, twin)) return;
    wrong(r, o, a, "its twin differs", "a second process of the same arm wrote another text: nothing here can be trusted");
}

static void add_rows(run *r, int number, int phase)
{
    for (int i = 0; i < r->n; i++) {
        const trial_row *row = &r->trial.row[i];
        if (row->failed) continue;
        json_t *o = trial_row_json(&r->trial, i);
        json_object_set_new(o, "name", json_string(r->arm[i].name));
        json_object_set_new(o, "phase", json_string(PHASE[phase]));
        json_object_set_new(o, "tokens_per_s", cli_json_real(1e6 / row->time.median));
        json_object_set_new(o, "tokens_per_s_min", cli_json_real(1e6 / row->time.max));
        json_object_set_new(o, "tokens_per_s_max", cli_json_real(1e6 / row->time.min));
        json_object_set_new(o, "noise_floor", cli_json_real(r->trial.floor));
        json_object_set_new(o, "batch", json_integer(r->batch[i]));
        if (r->arm[i].choice) bench_fold_fields(r->arm[i].choice, o);
        if (phase == 0) {
            add_memory(r, i, o);
            add_text(r, i, o);
        }
        result_add_row(r->plan->result, number, o);
    }
}

/* Tokens of history in the middle of what was timed, of the phase. */
static void add_depth(const run *r, int phase, json_t *o)
{
    const e2e_settings *set = &r->plan->set;
    int to = phase == 0 ? (int)result_real(r->arm[r->trial.baseline].end, "held") : r->depth + set->prompt;
    int from = phase == 0 ? r->from : r->depth;
    json_object_set_new(o, "depth", json_integer(r->depth));
    json_object_set_new(o, "depth_from", json_integer(from));
    json_object_set_new(o, "depth_to", json_integer(to));
    json_object_set_new(o, "depth_mean", json_real(0.5 * (from + to)));
}

static int new_run(run *r, int phase)
{
    char title[300];
    const e2e_settings *set = &r->plan->set;
    const char *name = cli_file_name(r->model);
    json_t *o = trial_json(&r->trial);
    json_object_set_new(o, "phase", json_string(PHASE[phase]));
    json_object_set_new(o, "model", cli_json_text(name));
    json_object_set_new(o, "model_hash", result_hash_json(r->model_hash));
    if (set->file)
        json_object_set_new(o, "text_hash", result_hash_json(r->text_hash));
    else
        json_object_set_new(o, "text_seed", json_integer((json_int_t)set->seed));
    add_depth(r, phase, o);
    json_object_set_new(o, "tokens", json_integer(phase == 0 ? set->predict : set->prompt));
    json_object_set_new(o, "batch", json_integer(set->batch));
    snprintf(title, sizeof title,
             "%.120s: %s at depth %d (tokens %.0f to %.0f), %d tokens a sample, batches of %d, %d thread%s, "
             "%d samples",
             name, PHASE[phase], r->depth, result_real(o, "depth_from"), result_real(o, "depth_to"),
             phase == 0 ? set->predict : set->prompt, set->batch, set->threads, set->threads == 1 ? "" : "s",
             r->trial.rounds.rounds);
    int number = result_add_run(r->plan->result, o, title);
    if (!set->file) result_add_note(o, "the text is seeded tokens, none of them chosen to repeat");
    bench_notes(o, &r->trial);
    if (r->shallow_marked[phase] > 0)
        result_add_note(o, "ceilings by Amdahl: %d of %d rounds without history stood beside other load",
                        r->shallow_marked[phase], MEASURE_SAMPLES_MIN);
    return number;
}

static void refuse(run *r, const char *why, const char *what)
{
    char sentence[1100];
    snprintf(sentence, sizeof sentence, "%s (%s, depth %d)", why, what, r->depth);
    result_refuse(r->plan->result, sentence);
    r->plan->refused = true;
}

/* ---- one run -------------------------------------------------------------------------------------------------------------- */

static void end_of_text(run *r)
{
    for (int i = 0; i < r->n; i++) {
        r->arm[i].end = e2e_report(&r->arm[i]);
        e2e_add_process(&r->arm[i], r->arm[i].end);
    }
    r->twin.end = r->twin_of >= 0 ? e2e_report(&r->twin) : NULL;
    if (r->twin_of >= 0) e2e_add_process(&r->arm[r->twin_of], r->twin.end);
}

/* One more process of an arm, that only fills its cache. False when that cannot be: then there is one figure less. */
static bool one_more(run *r, int i)
{
    const e2e_settings *set = &r->plan->set;
    e2e_arm again = {.plain = r->arm[i].plain, .choice = r->arm[i].choice};
    char decode[48];
    int room = e2e_room(set) / 2;
    snprintf(again.name, sizeof again.name, "%s", r->arm[i].name);
    snprintf(decode, sizeof decode, "decode %d", room < set->predict ? room : set->predict);
    if (e2e_start(&again, set, r->model, r->depth) == 0 && e2e_fill(&again, r->depth, false) == 0 &&
        e2e_ask(&again, decode) == 0) {
        json_t *report = e2e_report(&again);
        e2e_add_process(&r->arm[i], report);
        json_decref(report);
    }
    bool ok = !again.failed[0];
    if (!ok) refuse(r, again.failed, "one of its further processes");
    e2e_end(&again);
    return ok;
}

/* For memory. An arm of which one fails gets no more; its row stays. */
static void more_processes(run *r)
{
    bool gone[TRIAL_ROWS_MOST] = {false};
    for (int k = 1; k < r->plan->set.processes; k++)
        for (int i = 0; i < r->n && !stop(r); i++) gone[i] = gone[i] || r->trial.row[i].failed || !one_more(r, i);
}

static void refuse_failed(run *r, const char *what)
{
    for (int i = 0; i < r->n; i++)
        if (r->arm[i].failed[0]) refuse(r, r->arm[i].failed, what);
    if (r->twin.failed[0]) refuse(r, r->twin.failed, "the second process of the baseline");
}

static int measure_phase(run *r, int phase)
{
    measure_io io = io_of(r);
    set_up_trial(r, phase);
    if (phase == 0) find_bytes(r);
    int code = stop(r) ? -1 : trial_run(&r->trial, &io);
    if (code == 0 && phase == 0) end_of_text(r);
    if (code == 0 && phase == 0) more_processes(r);
    if (code == 0) {
        find_amdahl(r, phase);
        add_rows(r, new_run(r, phase), phase);
    }
    trial_free(&r->trial);
    return code;
}

static int all_phases(run *r)
{
    if (r->n == 0) {
        cli_error("'%s': no arm can run", r->model);
        return CLI_CANNOT;
    }
    cli_note("%s, depth %d: %d arms", r->model, r->depth, r->n);
    int code = measure_shallow(r, 0) || measure_shallow(r, 1) || fill_arms(r) || measure_phase(r, 0) || measure_phase(r, 1);
    refuse_failed(r, "it failed on the way");
    return code && !cli_interrupted() ? CLI_CANNOT : CLI_GO;
}

int e2e_run(e2e_plan *plan, const char *model, int depth)
{
    run *r = cli_alloc(1, sizeof *r);
    *r = (run){.plan = plan, .model = model, .depth = depth, .twin_of = -1};
    r->model_hash = result_hash_of_model(model);
    if (plan->set.file) r->text_hash = result_hash_of_file(plan->set.file);
    int code = CLI_CANNOT;
    if (bench_read_create(plan->pool, plan->set.threads, &r->reader) == 0) {
        start_arms(r);
        code = all_phases(r);
        r->reader.release(r->reader.self);
    } else {
        cli_error("out of memory");
    }
    for (int i = 0; i < r->n; i++) e2e_end(&r->arm[i]);
    if (r->twin_of >= 0) e2e_end(&r->twin);
    free(r);
    return code;
}
