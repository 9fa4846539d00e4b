/* SPDX-License-Identifier: MIT
 * kvfold bench attend: attention of one decoded token, our codecs beside libllama's own caches, in one run. */
#include "arms.h"
#include "bench.h"

#include <kvfold.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXTS_MOST = 16 };

typedef struct settings {
    int64_t q_heads, kv_heads, head_dim, threads, samples;
    int64_t pool; /* MiB, 0: twice the last-level cache */
    const char *contexts;
    const char *list; /* NULL: every codec */
    kv_settings kv;
    bool json;
} settings;

static const cli_option options[] = {
    CLI_HEAD("what is timed"),
    CLI_COUNT("--q-heads", settings, q_heads, 1, 1024, "32", "query heads"),
    CLI_COUNT("--kv-heads", settings, kv_heads, 1, 1024, "8", "key and value heads; divides the query heads"),
    CLI_COUNT("--head-dim", settings, head_dim, 1, 1024, "128", "channels of a head"),
    CLI_WORD("--context", "N[,N...]", settings, contexts,
             "tokens that the query sees; several give several tables (default 4096)"),
    CLI_WORD("--kv", "K/V[,K/V...]", settings, list,
             "our rows: codecs of keys and values, or presets; a piece with = before any : or / continues the arm before it "
             "(default: every codec of kvfold list, without options)"),
    CLI_COUNT("--sink", settings, kv.sink, 0, 64, NULL, "first tokens that stay exact (default 4)"),
    CLI_COUNT("--window --recent", settings, kv.recent, 0, 65536, NULL, "newest tokens that stay exact (default 64)"),
    CLI_HEAD("how"),
    CLI_COUNT("-t --threads", settings, threads, 1, 256, NULL, "threads of all rows (default: one a core)"),
    CLI_COUNT("--samples", settings, samples, MEASURE_SAMPLES_MIN, MEASURE_SAMPLES_MAX, "15", "samples of each row, at least 9"),
    CLI_COUNT(
        "--pool", settings, pool, 1, 1 << 20, NULL,
        "MiB of keys and values that each row visits in turn (default: twice the last-level cache); in less, what is timed is "
        "the cache and not memory"),
    CLI_WORD("--cpu", "SET", settings, kv.cpu, "instruction set of our rows, as scalar or avx2 (default: the best present)"),
    CLI_SWITCH(CLI_ON, "--json", settings, json, "one JSON object on stdout"),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "bench attend",
    .usage = "[OPTIONS]",
    .about =
        "Times the attention of one decoded token on folded caches and on libllama's own, with and without flash attention, in\n"
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
                  "use --threads 1",
                  (int)s->threads);
        return CLI_CANNOT;
    }
#endif
    return CLI_GO;
}

/* Every codec with every number of bits that its examples have: those that name no option. */
static void every_codec(cli_text *list)
{
    kvf_codec_info codec;
    for (int32_t i = 0; kvf_codec_list(i, &codec) == KVF_OK; i++)
        for (const char *p = codec.examples; *p; p += strspn(p, " ")) {
            size_t n = strcspn(p, " ");
            if (!memchr(p, ':', n)) cli_text_format(list, "%s%.*s/%.*s", list->length ? "," : "", (int)n, p, (int)n, p);
            p += n;
        }
}

static int make_arms(const settings *s, cli_arms *arms)
{
    cli_text all = {0};
    if (!s->list) every_codec(&all);
    int code = cli_arms_make(arms, s->list ? s->list : all.data, &s->kv);
    cli_text_free(&all);
    return code;
}

/* ---- what comes out ------------------------------------------------------------------------------------------------------- */

/* A row of ours that is wrong is as bad as one that was refused: the table is printed, then the exit code tells. */
static int judge(const bench_report *report)
{
    int code = CLI_DONE;
    for (int i = 0; i < report->n_refused; i++)
        if (report->refused[i].ours) code = CLI_CANNOT;
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
    if (report->pool < report->cache)
        cli_warn("--pool %d is less than the last-level cache (%s): rows are timed from the cache, as no real model does",
                 (int)s->pool, cli_bytes((int64_t)report->cache));
    for (int i = 0; code == CLI_GO && i < n && !cli_interrupted(); i++)
        code = bench_context(report, arms, context[i], (int)s->samples);
    report->interrupted = cli_interrupted();
    if (report->n_results == 0 && code != CLI_GO) return code;
    int printed = CLI_DONE;
    if (s->json)
        printed = cli_print_json(bench_json(report));
    else
        bench_print(report);
    if (code == CLI_GO) code = judge(report);
    return printed == CLI_DONE ? cli_finish(code) : printed;
}

static int run(const settings *s, const cli_arms *arms, const int *context, int n)
{
    bench_report *report = cli_alloc(1, sizeof *report);
    report->shape = (bench_shape){(int)s->q_heads, (int)s->kv_heads, (int)s->head_dim, 0, (int)s->threads};
    report->cache = bench_last_level_cache();
    report->pool = s->pool ? (size_t)s->pool << 20 : 2 * report->cache;
    report->result = cli_alloc((size_t)n, sizeof *report->result);
    cli_catch_interrupt();
    int code = run_all(s, arms, context, n, report);
    free(report->result);
    free(report);
    return code;
}

int bench_attend(int argc, char **argv)
{
    settings s = {.threads = cli_threads_default(), .contexts = "4096"};
    kv_settings_init(&s.kv);
    int context[CONTEXTS_MOST], n, code = cli_parse(&syntax, &s, argc, argv);
    if (code == CLI_GO) code = check(&s);
    if (code == CLI_GO) code = parse_contexts(s.contexts, context, &n);
    if (code != CLI_GO) return code;
    cli_arms *arms = cli_alloc(1, sizeof *arms);
    code = make_arms(&s, arms);
    if (code == CLI_GO) {
        code = run(&s, arms, context, n);
        cli_arms_free(arms);
    }
    free(arms);
    return code;
}
