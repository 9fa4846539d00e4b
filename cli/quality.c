/* SPDX-License-Identifier: MIT
 * kvfold quality: how far folded caches move the next-token distribution, many arms in one run.
 */
#include "quality.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

#define WORD(names, value, member, help) CLI_WORD(names, value, quality_settings, member, help)
#define COUNT(names, member, least, most, initial, help) CLI_COUNT(names, quality_settings, member, least, most, initial, help)
#define SWITCH(kind, names, member, help) CLI_SWITCH(kind, names, quality_settings, member, help)

static const cli_option options[] = {
    CLI_HEAD("model and text"),
    WORD("-m --model", "FILE", model, "model, a GGUF file (the first one of a split model)"),
    CLI_WORDS("-f --file", "FILE", quality_settings, files,
              "UTF-8 text to judge on, - for stdin; may be given several times: the table is over all, each has its own row too"),
    WORD("--slice", "FIRST:BYTES", slice, "take that range of bytes of each file (default: all)"),
    COUNT("-c --ctx-size", context, 0, KV_CONTEXT_MOST, "0",
          "tokens of a chunk, and of the cache; 0: 2048, or the training length where that is less"),
    COUNT("--score", score, 0, INT32_MAX - 1024, "0",
          "last positions of each chunk that are judged; 0: all of its second half that have a next token"),
    COUNT("--chunks", chunks, 0, 1 << 20, "1", "chunks of each file, from its start; 0: as many as it has"),

    CLI_HEAD("arms"),
    WORD("--kv", "ARM[,ARM...]", list,
         "caches to judge: K/V, as kivi4/kivi4, or a preset, or libllama's own, as llama-q8_0 or llama-q8_0/q4_0. A piece with = "
         "before any : or / continues the arm before it; sink=N and window=N there hold for that arm alone, and evict=POLICY:... "
         "as its last piece; @FILE is the arm of a profile (default: llama-q8_0, "
         "llama-q4_0 and all presets)"),
    WORD("--arms", "FILE", arms_file, "file with more arms, one a line; # begins a comment"),
    CLI_WORDS("--kv-layer", "LAYERS=K/V", quality_settings, kv.layers,
              "other codecs for some layers of all our arms, as 0,1,29=q8_0; may be given several times"),
    COUNT("--sink", kv.sink, 0, 64, NULL, "first tokens that stay exact (default: the preset's, 4)"),
    COUNT("--window --recent", kv.recent, 0, 65536, NULL, "newest tokens that stay exact (default: the preset's, 64)"),
    KV_WINDOW_TYPE(quality_settings),
    KV_PROFILE(quality_settings),
    KV_CALIBRATION(quality_settings),
    KV_EVICT(quality_settings, "; positions are judged from where every budget of all arms binds"),
    SWITCH(CLI_ON, "--seal-each", seal_each,
           "our arms keep no window, and a query sees even the tokens of its own batch coded, itself included: comparable with "
           "caches "
           "that keep no window; for judging only"),
    COUNT("--floor", floor, 0, QUALITY_BATCH - 1, "32",
          "rows of a batch of the floor arm, the f16 cache filled by other batches: what it reads is arithmetic, not cache; 0: "
          "none"),

    SWITCH(CLI_ON, "--generate", generate,
           "also let the model write with each cache: free text against the reference's, planted facts, sums, JSON"),

    CLI_HEAD("how"),
    COUNT("-t --threads", threads, 0, 256, "0", "threads; 0: as many as there are, half above four"),
    COUNT("-ngl --gpu-layers --n-gpu-layers", gpu_layers, -1, 4096, "0",
          "layers whose weights go to a GPU, -1: all; caches and their attention stay on the processor"),
    WORD("--cpu", "SET", kv.cpu, "instruction set of our arms, as scalar or avx2 (default: the best present, or KVFOLD_CPU)"),
    COUNT("--resident", resident, 0, QUALITY_ARMS_MOST, "0",
          "arms in memory at once; more take further passes over the text, each with the reference again; 0: as memory allows"),
    COUNT("-s --seed", seed, 0, UINT32_MAX, "1", "seed of the bootstrap that compares arms with the floor"),

    RESULT_OPTIONS(quality_settings),
    COUNT("--worst", worst, 0, QUALITY_WORST_MOST, "3", "positions with the largest divergence that are shown of each arm"),
    SWITCH(CLI_ON, "-v --verbose", verbose, "show the log of libllama, on stderr"),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "quality",
    .usage = "-m FILE -f TEXT [OPTIONS]",
    .about =
        "Judges caches by the next-token distributions that a text gives with them, against libllama's f16 cache on the same\n"
        "tokens: perplexity, KL divergence, same likeliest token. Arms run in lockstep, fed as decoding feeds them. Ctrl-C ends\n"
        "with the positions that are finished. Exit code 2 when an arm could not run; the others still do.",
    .options = options,
};

/* ---- settings -------------------------------------------------------------------------------------------------------------- */

static int missing(const char *what)
{
    cli_error("quality: %s is missing: kvfold quality -m model.gguf -f text.txt", what);
    return CLI_USAGE;
}

static int check(quality_settings *set)
{
    if (!set->model) return missing("-m FILE");
    if (set->files.n == 0) return missing("-f TEXT");
    set->kv.no_window = set->seal_each;
    const char *const in[] = {set->model, set->arms_file};
    int code = result_check(&set->out, in, 2);
    if (code == CLI_GO) code = cli_save_apart_all(set->out.save, set->files.item, set->files.n);
    return code == CLI_GO ? kv_settings_apart(set->out.save, &set->kv) : code;
}

int64_t quality_arm_binds_at(const quality_arm *arm, const quality_settings *set)
{
    kvf_evict_info info;
    const int32_t sink = arm->choice.sink, recent = set->seal_each ? 0 : arm->choice.recent;
    int64_t n = KVF_BLOCK + recent;
    if (arm->host || !arm->choice.evicts) return 0;
    while (n < set->context && kvf_evict_check(arm->choice.evict, sink, recent, n, &info, NULL, 0) == KVF_OK && info.budget >= n)
        n += KVF_BLOCK;
    return n;
}

bool quality_arm_budgets_bytes(const quality_arm *arm)
{
    kvf_evict_info info = {0};
    return !arm->host && kvf_evict_check(arm->choice.evict, arm->choice.sink, arm->choice.recent, 0, &info, NULL, 0) == KVF_OK &&
           info.bytes > 0;
}

/* Blocks are coded once they leave the window, the first one not before the estimates of its stages (128 tokens): an arm of fewer tokens is
 * an f16 cache, whatever it is called. */
static void warn_of_nothing_coded(const quality_run *run, const quality_settings *set)
{
    enum { ESTIMATED = 128 };
    for (int i = 0; i < run->n_arms; i++) {
        const quality_arm *arm = &run->arm[i];
        const int64_t exact = arm->choice.sink + arm->choice.recent + KVF_BLOCK;
        if (arm->host || set->seal_each || set->context > (exact > ESTIMATED ? exact : ESTIMATED)) continue;
        cli_warn("%s: within %lld tokens (-c) next to nothing is coded: its figures are those of exact rows", arm->name,
                 (long long)set->context);
    }
}

/* Where no policy has dropped anything yet there is nothing to judge of one. */
static int judge_after_budgets(const quality_run *run, quality_settings *set)
{
    for (int i = 0; i < run->n_arms; i++) {
        if (quality_arm_budgets_bytes(&run->arm[i])) {
            cli_error("%s: quality judges budgets of tokens or a share; kvfold plan says how many tokens such a budget is",
                      run->arm[i].name);
            return CLI_USAGE;
        }
        const int64_t n = quality_arm_binds_at(&run->arm[i], set), most = set->context - 1 - n;
        if (set->score <= most) continue;
        if (most < 1) {
            if (n < set->context)
                cli_error(
                    "%s: its budget binds from position %lld on, which leaves none of %lld (-c) to judge; give a larger -c or a "
                    "smaller budget",
                    run->arm[i].name, (long long)n, (long long)set->context);
            else
                cli_error(
                    "%s: a budget that does not bind within %lld tokens (-c) cannot be judged; give a larger -c or a smaller "
                    "one",
                    run->arm[i].name, (long long)set->context);
            return CLI_USAGE;
        }
        cli_note("%s: its budget binds from position %lld on, so only the last %lld positions are judged", run->arm[i].name,
                 (long long)n, (long long)most);
        set->score = most;
    }
    return CLI_GO;
}

/* Context and score, now that the model is known. */
static int choose_sizes(quality_run *run, quality_settings *set)
{
    int64_t trained = run->s->shape.context;
    if (set->context == 0) set->context = trained > 0 && trained < 2048 ? trained : 2048;
    if (set->score == 0) set->score = set->context - 1 - set->context / 2;
    if (set->context < 2) {
        cli_error("-c %lld: a chunk needs 2 tokens at least, one to judge and one before it", (long long)set->context);
        return CLI_USAGE;
    }
    if (set->score < 1 || set->score > set->context - 1) {
        cli_error("--score %lld: a chunk of %lld tokens (-c) has 1 to %lld positions with a next token", (long long)set->score,
                  (long long)set->context, (long long)set->context - 1);
        return CLI_USAGE;
    }
    warn_of_nothing_coded(run, set);
    int code = judge_after_budgets(run, set);
    run->in.context = (int32_t)set->context;
    run->in.score = (int32_t)set->score;
    return code;
}

/* ---- output ---------------------------------------------------------------------------------------------------------------- */

/* An arm that could not run: 2. One that coded nothing is said, as its figures would be read as a codec's. */
static int judge(const quality_run *run)
{
    int code = CLI_DONE;
    for (int i = 0; i < run->n_arms; i++) {
        const quality_arm *arm = &run->arm[i];
        if (arm->failure[0]) code = CLI_CANNOT;
        if (run->answer && !arm->failure[0] && !arm->generation.done && !run->interrupted) code = CLI_CANNOT;
        if (arm->n_points > 0 && arm->bits_code > 0 && arm->body == 0)
            cli_warn("%s: %d tokens are too few for a packed block: all are exact, nothing was measured of the codec", arm->name,
                     run->in.context);
    }
    return code;
}

/* The table for people shows more than those of other results: depth, texts, positions. */
static int finish(const quality_run *run)
{
    const result_settings *out = &run->set->out;
    bool table = strcmp(result_form(out), "table") == 0;
    json_t *o = quality_json(run);
    int saved = out->save ? result_save(o, out->save) : CLI_GO;
    if (table) quality_print_table(run);
    int printed = table ? cli_finish(CLI_DONE) : result_print(o, result_form(out)), code = judge(run);
    json_decref(o);
    if (printed != CLI_DONE) return printed;
    return saved == CLI_GO ? code : saved;
}

/* ---- the command ----------------------------------------------------------------------------------------------------------- */

static int load(quality_run *run, quality_settings *set)
{
    run_settings load = {
        .model = set->model, .threads = set->threads, .context = set->context, .gpu_layers = set->gpu_layers, .repack = true};
    load.kv = set->kv;
    return session_load(run->s, &load);
}

static bool anything_judged(const quality_run *run)
{
    for (int i = 0; i < run->n_arms; i++)
        if (run->arm[i].n_points > 0) return true;
    return false;
}

static int measure(quality_run *run, quality_settings *set, cli_text *raw)
{
    int code = quality_arms_make(run->arm, &run->n_arms, set);
    if (code == CLI_GO) code = quality_read(&run->in, raw, set);
    if (code == CLI_GO) code = load(run, set);
    if (code == CLI_GO) quality_arms_meet(run->arm, run->n_arms, set);
    if (code == CLI_GO) code = choose_sizes(run, set);
    if (code == CLI_GO) code = quality_tokenize(&run->in, raw, run->s->vocab, set);
    if (code != CLI_GO) return code;
    quality_arm_plain(&run->reference, "llama-f16", QUALITY_BATCH);
    quality_arm_plain(&run->prefill, "ordinary prefill", QUALITY_PREFILL);
    quality_arm_plain(&run->floor, "floor", (int32_t)set->floor);
    code = quality_run_all(run);
    if (code == CLI_GO && set->generate && !cli_interrupted()) quality_generate(run);
    if (code != CLI_GO && !anything_judged(run)) return code;
    int printed = finish(run); /* what is finished is not lost with a reference that fails later */
    return code == CLI_GO ? printed : code;
}

static void free_run(quality_run *run)
{
    for (int i = 0; i < run->n_arms; i++) quality_arm_free(&run->arm[i]);
    quality_arm_free(&run->reference);
    quality_arm_free(&run->prefill);
    quality_arm_free(&run->floor);
    quality_input_free(&run->in);
    session_close(run->s);
    free(run->arm);
    free(run->answer);
}

int cmd_quality(int argc, char **argv)
{
    quality_settings set = {0};
    kv_settings_init(&set.kv);
    int code = cli_parse(&syntax, &set, argc, argv);
    if (code == CLI_GO) code = check(&set);
    if (code != CLI_GO) return code;
    session s = {0};
    quality_run run = {.set = &set, .s = &s};
    cli_text raw[CLI_LIST_MOST] = {{0}};
    run.arm = cli_alloc(QUALITY_ARMS_MOST, sizeof *run.arm);
    session_begin(set.verbose);
    code = measure(&run, &set, raw);
    free_run(&run);
    for (int i = 0; i < CLI_LIST_MOST; i++) cli_text_free(&raw[i]);
    llama_backend_free();
    return cli_finish(code);
}
