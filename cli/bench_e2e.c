/* SPDX-License-Identifier: MIT
 * kvfold bench e2e: whole models, plain and folded. */
#include "bench_e2e.h"
#include "machine.h"
#include "model_file.h"
#include "result.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

enum { DEPTHS_MOST = 16 };

typedef struct settings {
    cli_list models;
    const char *file, *list, *depths;
    int64_t predict, prompt, samples, first, processes, batch, threads, pool, seed;
    kv_settings kv;
    result_settings out;
} settings;

static const cli_option options[] = {
    CLI_HEAD("what is timed"),
    CLI_WORDS("-m --model", "FILE", settings, models, "model, a GGUF file; may be given several times"),
    CLI_WORD("-f --file", "FILE", settings, file, "text that fills the history (default: seeded tokens)"),
    CLI_WORD("-d --depth", "N[,N...]", settings, depths, "tokens of history; several give several tables (default 512,2048)"),
    CLI_WORD(
        "--kv", "K/V[,K/V...]", settings, list,
        "our arms, or presets; sink=N, window=N and evict=POLICY:... at the end of an arm hold for it alone; @FILE is the arm "
        "of a profile (default: that of --profile, or f16/f16,kivi4/kivi4,uni4/uni4)"),
    CLI_COUNT("--sink", settings, kv.sink, 0, 64, NULL, "first tokens that stay exact (default 4)"),
    CLI_COUNT("--window --recent", settings, kv.recent, 0, 65536, NULL, "newest tokens that stay exact (default 64)"),
    KV_WINDOW_TYPE(settings),
    CLI_COUNT("-n --predict", settings, predict, 1, 4096, "16", "tokens of one sample of decoding"),
    CLI_COUNT("-p --prompt", settings, prompt, 1, 65536, NULL, "tokens of one sample of prefill (default: one batch)"),
    CLI_HEAD("how"),
    CLI_COUNT("-t --threads", settings, threads, 1, 256, NULL, "threads of all arms (default: one a core)"),
    CLI_COUNT("-ub --ubatch-size", settings, batch, 1, 65536, "255",
              "rows of a batch, fitted to 256 times a whole number less 1, the same for all arms"),
    CLI_COUNT("--samples", settings, samples, MEASURE_SAMPLES_MIN, 200, "9", "samples of each arm, at least 9"),
    CLI_COUNT("--first", settings, first, 1, 200, "9", "samples of the time to the first token, after one that is not counted"),
    CLI_COUNT("--processes", settings, processes, 1, E2E_PROCESSES_MOST - 1, "1",
              "processes of each arm whose memory is measured; 5 allow a claim"),
    CLI_COUNT("--pool", settings, pool, 1, 1 << 20, NULL,
              "MiB that are summed up to find what memory gives (default: twice the last-level cache)"),
    CLI_WORD("--cpu", "SET", settings, kv.cpu, "instruction set of our arms, as scalar or avx2 (default: the best present)"),
    KV_PROFILE(settings),
    KV_CALIBRATION(settings),
    BENCH_SEED(settings),
    RESULT_OPTIONS(settings),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "bench e2e",
    .usage = "-m FILE [-m FILE...] [OPTIONS]",
    .about = "Times whole models: decoding and prefill at several depths, the time to the first token, and memory. Plain "
             "libllama, with\n"
             "and without flash attention and with its own quantised caches, is an arm like ours. Each arm is a process of its "
             "own; they\n"
             "take turns sample by sample, and a second process of the baseline gives the noise floor. Texts are compared byte "
             "for byte.",
    .options = options,
};

static int run_all(const settings *s, e2e_plan *plan, const int *depth, int n)
{
    int code = CLI_GO;
    for (int m = 0; code == CLI_GO && m < s->models.n; m++)
        for (int i = 0; code == CLI_GO && i < n && !cli_interrupted(); i++) code = e2e_run(plan, s->models.item[m], depth[i]);
    if (cli_interrupted()) json_object_set_new(plan->result, "interrupted", json_true());
    return code;
}

/* Rows of a batch that a folded cache gets when so many are asked for, with one sequence: whole steps of the host's padding, less the
 * row that the sequence has left over (docs/cli.md, Batches). Plain arms get the same. */
static int64_t fitted(int64_t batch)
{
    enum { STEP = 256 };
    int64_t steps = (batch + 1 + STEP / 2) / STEP;
    return (steps > 0 ? steps : 1) * STEP - 1;
}

static int run(const settings *s, const cli_arms *arms, const int *depth, int n)
{
    size_t cache = machine_last_level_cache();
    e2e_plan plan = {.set = {.file = s->file,
                             .kv = &s->kv,
                             .predict = (int)s->predict,
                             .prompt = (int)(s->prompt ? s->prompt : fitted(s->batch)),
                             .samples = (int)s->samples,
                             .first = (int)s->first,
                             .processes = (int)s->processes,
                             .batch = (int)fitted(s->batch),
                             .threads = (int)s->threads,
                             .seed = bench_seed(s->seed)},
                     .arms = arms,
                     .pool = s->pool ? (size_t)s->pool << 20 : 2 * cache};
    plan.result = result_new("e2e", plan.set.seed);
    result_set_cpu(plan.result, s->kv.cpu);
    cli_catch_interrupt();
    int code = run_all(s, &plan, depth, n);
    return result_end(plan.result, code, plan.refused || plan.wrong, &s->out);
}

/* Each model is looked at before the first one is measured for minutes. */
static int check_models(const settings *s)
{
    int code = CLI_GO;
    if (s->models.n == 0) {
        cli_error("bench e2e: which model? -m FILE");
        return CLI_USAGE;
    }
    for (int i = 0; code == CLI_GO && i < s->models.n; i++) {
        model_file file = {0};
        code = model_file_open(&file, s->models.item[i]);
        model_file_close(&file);
    }
    cli_text text = {0};
    if (code == CLI_GO && s->file) code = cli_read_file(s->file, &text);
    cli_text_free(&text);
    return code;
}

int bench_e2e(int argc, char **argv)
{
    int depth[DEPTHS_MOST], n;
    settings s = {.threads = cli_threads_default(), .depths = "512,2048"};
    char own[CLI_ARM_NAME + 1];
    kv_settings_init(&s.kv);
    int code = cli_parse(&syntax, &s, argc, argv);
    if (code == CLI_GO) code = bench_numbers("--depth", s.depths, 1, 1 << 24, depth, &n, DEPTHS_MOST);
    if (code == CLI_GO) code = check_models(&s);
    if (code == CLI_GO) code = result_check(&s.out, s.models.item, s.models.n);
    if (code == CLI_GO) code = cli_save_apart(s.out.save, s.file);
    if (code == CLI_GO) code = kv_settings_apart(s.out.save, &s.kv);
    if (code != CLI_GO) return code;
    cli_arms *arms = cli_alloc(1, sizeof *arms);
    if (!s.list) s.list = cli_arms_usual(&s.kv, "f16/f16,kivi4/kivi4,uni4/uni4", own);
    code = cli_arms_make(arms, s.list, &s.kv);
    if (code == CLI_GO) code = cli_arms_apart(s.out.save, arms);
    for (int i = 0; i < s.models.n && code == CLI_GO; i++) cli_arms_meet(arms, s.models.item[i]);
    if (code == CLI_GO) code = run(&s, arms, depth, n);
    cli_arms_free(arms);
    free(arms);
    return code;
}
