/* SPDX-License-Identifier: MIT
 * kvfold needle: planted facts, asked for at the end of a text, over a grid of lengths and depths. libllama's f16 cache is asked first: what
 * the model cannot find with that, no cache can lose. */
#include "bench.h"
#include "needle.h"
#include "tokens.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

enum { LENGTHS_MOST = 16 };

static const cli_option options[] = {
    CLI_HEAD("what is asked"),
    CLI_WORD("-m --model", "FILE", needle_settings, model, "model, a GGUF file"),
    CLI_WORD("-c --ctx-size", "N[,N...]", needle_settings, lengths, "tokens of a text, question included (default 512,1024)"),
    CLI_COUNT("-d --depths", needle_settings, depths, 1, 101, "5",
              "places of the fact that is asked for, from the first note to the last"),
    CLI_COUNT("--needles", needle_settings, needles, 1, NEEDLE_PLACES, "1", "facts in a text; one of them is asked for"),
    CLI_COUNT("--seeds", needle_settings, seeds, 1, 1000, "3", "texts for each length and place"),
    CLI_HEAD("arms"),
    CLI_WORD(
        "--kv", "K/V[,K/V...]", needle_settings, list,
        "our arms, or presets, each with a policy of its own behind it, as uni4/uni4,evict=knorm:budget=512; @FILE is the arm of "
        "a profile (default: that of --profile, or f16/f16,uni4/uni4)"),
    CLI_COUNT("--sink", needle_settings, kv.sink, 0, 64, NULL, "first tokens that stay exact (default: the preset's, 4)"),
    CLI_COUNT("--window --recent", needle_settings, kv.recent, 0, 65536, NULL,
              "newest tokens that stay exact (default: the preset's, 64)"),
    KV_PROFILE(needle_settings),
    KV_CALIBRATION(needle_settings),
    CLI_HEAD("how"),
    CLI_COUNT("-t --threads", needle_settings, threads, 0, 256, "0", "threads; 0: as many as there are, half above four"),
    CLI_COUNT("-ngl --gpu-layers --n-gpu-layers", needle_settings, gpu_layers, -1, 4096, "0",
              "layers whose weights go to a GPU, -1: all; caches and their attention stay on the processor"),
    CLI_SWITCH(CLI_ON, "-v --verbose", needle_settings, verbose, "show the log of libllama, on stderr"),
    RESULT_OPTIONS(needle_settings),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "needle",
    .usage = "-m FILE [--kv K/V,evict=POLICY:...] [OPTIONS]",
    .about =
        "Plants facts in texts made by lot and asks for one at the end, over a grid of lengths and places. libllama's f16 cache "
        "is\n"
        "asked, too: what the model does not find with that, no cache can lose. Texts are fed in batches of 64 tokens, and a "
        "policy\n"
        "drops tokens while the text is read, before the question is known. kvfold report draws the grid.",
    .options = options,
};

/* Everything of one run. */
typedef struct needle_run {
    const needle_settings *set;
    quality_settings quality; /* what arms are made from; its context is the length in progress */
    session s;
    quality_arm *arm; /* [n_arms], libllama's first */
    int n_arms;
    json_t *result;
    int run;
    bool wrong;
    progress bar;
} needle_run;

/* ---- an answer ------------------------------------------------------------------------------------------------------------------- */

/* Appends what the model writes behind the prompt. False when it failed or was interrupted. */
static bool answer(const needle_run *run, quality_arm *arm, const needle_prompt *p, cli_text *text)
{
    for (int32_t at = 0; at < p->n; at += QUALITY_BATCH)
        if (!quality_arm_feed(arm, p->token, at, p->n, p->n - 1)) return false;
    for (int32_t pos = p->n - 1; pos < p->n + NEEDLE_ANSWER - 1; pos++) {
        char piece[64];
        const float *logits = quality_arm_logits(arm, pos);
        if (!logits) return false;
        const llama_token token = cli_likeliest(logits, llama_vocab_n_tokens(run->s.vocab), NULL);
        const int32_t n = llama_token_to_piece(run->s.vocab, token, piece, sizeof piece, 0, false);
        if (llama_vocab_is_eog(run->s.vocab, token)) return true;
        if (n > 0) cli_text_add(text, piece, (size_t)n);
        if (pos + 1 < p->n + NEEDLE_ANSWER - 1 && !quality_arm_feed_one(arm, token, pos + 1)) return false;
    }
    return true;
}

/* 1: found; 0: not; -1: it could not be asked. */
static int ask(needle_run *run, quality_arm *arm, const needle_task *task)
{
    needle_prompt p;
    cli_text text = {0};
    if (!needle_make(&p, task, run->s.vocab)) {
        snprintf(arm->failure, sizeof arm->failure, "%d tokens are too few for %d facts and the question", (int)task->length,
                 (int)task->needles);
        return -1;
    }
    cli_text_add(&text, "", 0);
    const bool done = quality_arm_clear(arm) && answer(run, arm, &p, &text);
    const int found = done ? quality_right(QUALITY_RECALL, text.data, p.answer) : -1;
    free(p.token);
    cli_text_free(&text);
    return found;
}

/* ---- the grid -------------------------------------------------------------------------------------------------------------------- */

static bool ask_cell(needle_run *run, quality_arm *arm, int length, int depth)
{
    const needle_settings *set = run->set;
    const double place = set->depths > 1 ? (double)depth / (double)(set->depths - 1) : 0.5;
    int found = 0;
    for (int64_t seed = 0; seed < set->seeds; seed++) {
        const needle_task task = {length, (int32_t)set->needles, place, (uint64_t)seed};
        const int one = ask(run, arm, &task);
        if (one < 0) return false;
        found += one;
        progress_set(&run->bar, run->bar.done + 1);
    }
    result_add_row(run->result, run->run,
                   json_pack("{s:s, s:s, s:i, s:f, s:f, s:i, s:I}", "name", arm->name, "evict",
                             arm->host ? "none" : arm->choice.evict, "context", length, "position", place, "found",
                             (double)found / (double)set->seeds, "right", found, "asked", (json_int_t)set->seeds));
    return true;
}

/* What keeps everything finds what none finds. */
static void warn_of_idle(const needle_run *run, const quality_arm *arm)
{
    const int64_t length = run->quality.context;
    if (arm->host || !arm->choice.evicts || quality_arm_budgets_bytes(arm)) return;
    if (quality_arm_binds_at(arm, &run->quality) < length) return;
    cli_warn("%s: its budget does not bind within %lld tokens: what it finds there says nothing of its policy", arm->name,
             (long long)length);
}

/* A context for each length, as one runs with: a policy that keeps a share keeps it of that. */
static bool ask_arm(needle_run *run, quality_arm *arm, const int *length, int n)
{
    bool go = true;
    for (int i = 0; go && i < n; i++) {
        run->quality.context = length[i];
        warn_of_idle(run, arm);
        go = quality_arm_open(arm, &run->s, &run->quality);
        for (int d = 0; go && d < run->set->depths; d++) go = ask_cell(run, arm, length[i], d);
        quality_arm_close(arm);
    }
    return go;
}

static int ask_all(needle_run *run, const int *length, int n)
{
    run->bar = progress_begin("needle", "questions", (int64_t)run->n_arms * n * run->set->depths * run->set->seeds);
    for (int i = 0; i < run->n_arms && !cli_interrupted(); i++) {
        char sentence[1024];
        if (ask_arm(run, &run->arm[i], length, n) || cli_interrupted()) continue;
        snprintf(sentence, sizeof sentence, "%s: %s", run->arm[i].name, run->arm[i].failure);
        result_refuse(run->result, sentence);
        run->wrong = true;
    }
    progress_end(&run->bar);
    if (cli_interrupted()) json_object_set_new(run->result, "interrupted", json_true());
    return CLI_GO;
}

/* ---- the command --------------------------------------------------------------------------------------------------------------- */

static int make_arms(needle_run *run)
{
    run->arm = cli_alloc(QUALITY_ARMS_MOST + 1, sizeof *run->arm);
    int code = quality_arms_make(run->arm + 1, &run->n_arms, &run->quality);
    quality_arm_plain(&run->arm[0], "llama-f16", QUALITY_BATCH);
    run->n_arms++;
    return code;
}

static int load(needle_run *run)
{
    const quality_settings *q = &run->quality;
    run_settings load = {.model = q->model, .threads = q->threads, .gpu_layers = q->gpu_layers, .repack = true};
    load.kv = q->kv;
    return session_load(&run->s, &load);
}

static int measure(needle_run *run, const int *length, int n)
{
    char title[160];
    int code = make_arms(run);
    if (code == CLI_GO) code = load(run);
    if (code != CLI_GO) return code;
    quality_arms_meet(run->arm, run->n_arms, &run->quality);
    const char *model = cli_file_name(run->set->model);
    run->result = result_new("needle", 0);
    snprintf(title, sizeof title, "%.100s, one of %lld facts asked for, %lld texts a place", model, (long long)run->set->needles,
             (long long)run->set->seeds);
    run->run = result_add_run(run->result,
                              json_pack("{s:o, s:I, s:I}", "model", cli_json_text(model), "needles",
                                        (json_int_t)run->set->needles, "seeds", (json_int_t)run->set->seeds),
                              title);
    code = ask_all(run, length, n);
    return result_end(run->result, code, run->wrong, &run->set->out);
}

static int run_command(const needle_settings *set, const int *length, int n)
{
    needle_run run = {.set = set};
    run.quality = (quality_settings){.model = set->model,
                                     .list = set->list,
                                     .threads = set->threads,
                                     .gpu_layers = set->gpu_layers,
                                     .kv = set->kv,
                                     .out = set->out};
    session_begin(set->verbose);
    int code = measure(&run, length, n);
    for (int i = 0; run.arm && i < run.n_arms; i++) quality_arm_free(&run.arm[i]);
    free(run.arm);
    session_close(&run.s);
    llama_backend_free();
    return code;
}

int cmd_needle(int argc, char **argv)
{
    int length[LENGTHS_MOST], n;
    char own[CLI_ARM_NAME + 1];
    needle_settings set = {.lengths = "512,1024"};
    kv_settings_init(&set.kv);
    int code = cli_parse(&syntax, &set, argc, argv);
    if (code == CLI_GO && !set.model) {
        cli_error("needle: -m FILE is missing: kvfold needle -m model.gguf --kv uni4/uni4,evict=knorm:budget=512");
        code = CLI_USAGE;
    }
    if (code == CLI_GO) code = bench_numbers("--ctx-size", set.lengths, 64, 1 << 24, length, &n, LENGTHS_MOST);
    if (code == CLI_GO) code = result_check(&set.out, &set.model, 1);
    if (code == CLI_GO) code = kv_settings_apart(set.out.save, &set.kv);
    if (!set.list) set.list = cli_arms_usual(&set.kv, "f16/f16,uni4/uni4", own);
    return code == CLI_GO ? run_command(&set, length, n) : code;
}
