/* SPDX-License-Identifier: MIT
 * kvfold bench attend: attention of one decoded token or of a batch, our codecs beside libllama's own caches, in one run. */
#include "arms.h"
#include "bench.h"
#include "machine.h"
#include "result.h"

#include <jansson.h>
#include <kvfold.h>

#include <stdlib.h>
#include <string.h>

enum { LIST_MOST = 16 };

typedef struct settings {
    int64_t q_heads, kv_heads, head_dim, samples;
    int64_t seed;
    int64_t pool; /* MiB, 0: twice the last-level cache */
    const char *contexts, *queries, *threads, *shapes;
    const char *list; /* NULL: every codec */
    kv_settings kv;
    result_settings out;
} settings;

static const cli_option options[] = {
    CLI_HEAD("what is timed"),
    CLI_COUNT("--q-heads", settings, q_heads, 1, 1024, "32", "query heads"),
    CLI_COUNT("--kv-heads", settings, kv_heads, 1, 1024, "8", "key and value heads; divides the query heads"),
    CLI_COUNT("--head-dim", settings, head_dim, 1, 1024, "128", "channels of a head"),
    CLI_WORD("--shape", "Q/KxD[,...]", settings, shapes,
             "several shapes at once, as 32/8x128,9/3x64; in place of the three above"),
    CLI_WORD("--context", "N[,N...]", settings, contexts,
             "tokens that the last query sees; several give several tables (default 4096)"),
    CLI_WORD(
        "--queries", "N[,N...]", settings, queries,
        "tokens of one batch, 1 to 4096: the last ones of the context, each sees itself and what is before it, as in prefill "
        "(default 1)"),
    CLI_WORD("--kv", "K/V[,K/V...]", settings, list,
             "our rows: codecs of keys and values, or presets; a piece with = before any : or / continues the arm before it "
             "(default: every codec of kvfold list, without options)"),
    CLI_COUNT("--sink", settings, kv.sink, 0, 64, NULL, "first tokens that stay exact (default 4)"),
    CLI_COUNT("--window --recent", settings, kv.recent, 0, 65536, NULL, "newest tokens that stay exact (default 64)"),
    CLI_HEAD("how"),
    CLI_WORD("-t --threads", "N[,N...]", settings, threads, "threads of all rows (default: one a core)"),
    CLI_COUNT("--samples", settings, samples, MEASURE_SAMPLES_MIN, MEASURE_SAMPLES_MAX, "15", "samples of each row, at least 9"),
    CLI_COUNT(
        "--pool", settings, pool, 1, 1 << 20, NULL,
        "MiB of keys and values that each row visits in turn (default: twice the last-level cache); in less, what is timed is "
        "the cache and not memory"),
    CLI_WORD("--cpu", "SET", settings, kv.cpu, "instruction set of our rows, as scalar or avx2 (default: the best present)"),
    BENCH_SEED(settings),
    RESULT_OPTIONS(settings),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "bench attend",
    .usage = "[OPTIONS]",
    .about =
        "Times the attention of one decoded token, or of a batch as in prefill, on folded caches and on libllama's own, with "
        "and\n"
        "without flash attention, in one run: samples interleaved in shuffled order, inputs that rotate through more memory "
        "than\n"
        "the caches hold, the baseline against itself first, and the read limit of memory beside every row. Results are checked\n"
        "in the same run.",
    .options = options,
};

/* ---- options -------------------------------------------------------------------------------------------------------------- */

/* What is timed: every shape at every context with every number of queries and of threads. */
typedef struct grid {
    bench_shape shape[LIST_MOST];
    int context[LIST_MOST], queries[LIST_MOST], threads[LIST_MOST], n_shapes, n_contexts, n_queries, n_threads;
} grid;

uint64_t bench_seed(int64_t asked)
{
    return asked ? (uint64_t)asked : 1 + (uint64_t)(measure_system.now(NULL) * 1e9) % UINT32_MAX;
}

int bench_numbers(const char *option, const char *list, long least, long most, int *number, int *n, int room)
{
    *n = 0;
    for (const char *p = list;; p++) {
        char *end;
        long value = strtol(p, &end, 10);
        if (end == p || (*end && *end != ',') || value < least || value > most || *n == room) {
            cli_error("%s: '%s' is not a list of at most %d numbers from %ld to %ld", option, list, room, least, most);
            return CLI_USAGE;
        }
        number[(*n)++] = (int)value;
        p = end;
        if (!*p) return CLI_GO;
    }
}

static int check_shape(const bench_shape *s)
{
    if (s->q_heads % s->kv_heads == 0) return CLI_GO;
    cli_error("--q-heads %d is not a multiple of --kv-heads %d", s->q_heads, s->kv_heads);
    return CLI_USAGE;
}

static int parse_shapes(const char *list, grid *g)
{
    for (const char *p = list;; p++) {
        bench_shape *s = &g->shape[g->n_shapes];
        int read = 0;
        *s = (bench_shape){0};
        bool fits = g->n_shapes < LIST_MOST && sscanf(p, "%4d/%4dx%4d%n", &s->q_heads, &s->kv_heads, &s->head_dim, &read) == 3 &&
                    s->q_heads > 0 && s->kv_heads > 0 && s->head_dim > 0 && s->q_heads <= 1024 && s->kv_heads <= 1024 &&
                    s->head_dim <= 1024;
        p += read;
        if (!fits || (*p && *p != ',')) {
            cli_error("--shape: '%s' is not a list of at most %d shapes QUERY_HEADS/KV_HEADSxHEAD_SIZE, each number 1 to 1024",
                      list, LIST_MOST);
            return CLI_USAGE;
        }
        if (check_shape(s) != CLI_GO) return CLI_USAGE;
        g->n_shapes++;
        if (!*p) return CLI_GO;
    }
}

static int check_threads(const grid *g)
{
#ifndef _OPENMP
    for (int i = 0; i < g->n_threads; i++)
        if (g->threads[i] > 1) {
            cli_error(
                "--threads %d: this build has no OpenMP, so our rows would run on one thread and those of libllama on more; "
                "use --threads 1",
                g->threads[i]);
            return CLI_CANNOT;
        }
#else
    (void)g;
#endif
    return CLI_GO;
}

static int check_queries(const grid *g)
{
    for (int i = 0; i < g->n_contexts * g->n_queries; i++) {
        int context = g->context[i / g->n_queries], queries = g->queries[i % g->n_queries];
        if (queries <= context) continue;
        cli_error("--queries %d is more than --context %d, which counts the tokens of the batch, too", queries, context);
        return CLI_USAGE;
    }
    return CLI_GO;
}

static int make_grid(const settings *s, grid *g)
{
    *g = (grid){.threads = {cli_threads_default()}, .n_threads = 1};
    int code = bench_numbers("--context", s->contexts, 2, 1 << 24, g->context, &g->n_contexts, LIST_MOST);
    if (code == CLI_GO) code = bench_numbers("--queries", s->queries, 1, BENCH_BATCH_MOST, g->queries, &g->n_queries, LIST_MOST);
    if (code == CLI_GO) code = check_queries(g);
    if (code == CLI_GO && s->threads) code = bench_numbers("--threads", s->threads, 1, 256, g->threads, &g->n_threads, LIST_MOST);
    if (code == CLI_GO && s->shapes) return parse_shapes(s->shapes, g);
    g->shape[g->n_shapes++] =
        (bench_shape){.q_heads = (int)s->q_heads, .kv_heads = (int)s->kv_heads, .head_dim = (int)s->head_dim};
    return code == CLI_GO ? check_shape(&g->shape[0]) : code;
}

/* f16 stands on the side that a codec is not made for. */
static void add_arm(cli_text *list, uint32_t sides, const char *spec, int n)
{
    for (int side = KVF_K; side <= KVF_V; side++) {
        bool fits = sides >> side & 1;
        cli_text_format(list, "%s%.*s", side == KVF_V ? "/" : "", fits ? n : 3, fits ? spec : "f16");
    }
}

void bench_every_codec(cli_text *list, bool arms)
{
    kvf_codec_info codec;
    for (int32_t i = 0; kvf_codec_list(i, &codec) == KVF_OK; i++)
        for (const char *p = codec.examples; *p; p += strspn(p, " ")) {
            int n = (int)strcspn(p, " ");
            if (!memchr(p, ':', (size_t)n)) {
                cli_text_format(list, "%s", list->length ? "," : "");
                if (arms)
                    add_arm(list, codec.sides, p, n);
                else
                    cli_text_add(list, p, (size_t)n);
            }
            p += n;
        }
}

static int make_arms(const settings *s, cli_arms *arms)
{
    cli_text all = {0};
    if (!s->list) bench_every_codec(&all, true);
    int code = cli_arms_make(arms, s->list ? s->list : all.data, &s->kv);
    for (int i = 0; code == CLI_GO && i < arms->n; i++)
        if (arms->arm[i].profile_path[0]) {
            cli_error("--kv: '@%s' is a profile, and one layer alone is timed here", arms->arm[i].profile_path);
            code = CLI_USAGE;
        }
    if (code == CLI_USAGE) cli_arms_free(arms);
    cli_text_free(&all);
    return code;
}

/* ---- runs ----------------------------------------------------------------------------------------------------------------- */

static int run_grid(const grid *g, bench_plan *plan)
{
    int code = CLI_GO;
    const int of_context = g->n_queries * g->n_threads, of_shape = g->n_contexts * of_context;
    for (int i = 0; code == CLI_GO && i < g->n_shapes * of_shape && !cli_interrupted(); i++) {
        bench_shape shape = g->shape[i / of_shape];
        shape.context = g->context[i / of_context % g->n_contexts];
        shape.queries = g->queries[i / g->n_threads % g->n_queries];
        shape.threads = g->threads[i % g->n_threads];
        code = bench_rows(plan, &shape);
    }
    if (cli_interrupted()) json_object_set_new(plan->result, "interrupted", json_true());
    return code;
}

/* Twice the last-level cache, or less where all rows would not fit into memory: virtual machines report the cache of their host. */
static size_t default_pool(size_t cache, int rows)
{
    int64_t available = cli_memory_available();
    size_t fits = available > 0 ? (size_t)available / 10 * 6 / (size_t)(rows + 2) : 2 * cache;
    if (fits >= 2 * cache) return 2 * cache;
    cli_warn("there is no memory for inputs of twice the last-level cache in each of %d rows: --pool %zu is taken", rows,
             fits >> 20);
    return fits;
}

static int run(const settings *s, const grid *g, const cli_arms *arms)
{
    size_t cache = machine_last_level_cache();
    int rows = arms->n;
    const bench_shape one = {.q_heads = 1, .kv_heads = 1, .head_dim = 32, .context = 2, .queries = 1, .threads = 1};
    for (int i = 0; bench_peer_bytes(i, &one, 1); i++) rows++;
    bench_plan plan = {.arms = arms,
                       .pool = s->pool ? (size_t)s->pool << 20 : default_pool(cache, rows),
                       .samples = (int)s->samples,
                       .seed = bench_seed(s->seed)};
    plan.result = result_new("attend", plan.seed);
    result_set_cpu(plan.result, s->kv.cpu);
    if (plan.pool < cache)
        cli_warn("--pool %zu is less than the last-level cache (%s): rows are timed from the cache, as no real model does",
                 plan.pool >> 20, cli_bytes((int64_t)cache));
    cli_catch_interrupt();
    int code = run_grid(g, &plan);
    return result_end(plan.result, code, plan.refused || plan.wrong, &s->out);
}

int bench_attend(int argc, char **argv)
{
    grid g;
    settings s = {.contexts = "4096", .queries = "1"};
    kv_settings_init(&s.kv);
    int code = cli_parse(&syntax, &s, argc, argv);
    if (code == CLI_GO) code = make_grid(&s, &g);
    if (code == CLI_GO) code = check_threads(&g);
    if (code == CLI_GO) code = result_check(&s.out, NULL, 0);
    if (code != CLI_GO) return code;
    cli_arms *arms = cli_alloc(1, sizeof *arms);
    code = make_arms(&s, arms);
    if (code == CLI_GO) {
        code = run(&s, &g, arms);
        cli_arms_free(arms);
    }
    free(arms);
    return code;
}
