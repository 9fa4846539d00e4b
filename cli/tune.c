/* SPDX-License-Identifier: MIT
 * kvfold tune: codecs layer by layer, for a given number of bits or bytes.
 */
#include "profile.h"
#include "tune.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WORD(names, value, member, help) CLI_WORD(names, value, tune_settings, member, help)
#define COUNT(names, member, least, most, initial, help) CLI_COUNT(names, tune_settings, member, least, most, initial, help)

static const cli_option options[] = {
    CLI_HEAD("model and text"),
    WORD("-m --model", "FILE", model, "model, a GGUF file; f32 weights show what the cache loses (kvfold widen)"),
    CLI_WORDS(
        "-f --file", "FILE", tune_settings, files,
        "UTF-8 text to measure on and to judge the result on; may be given several times, and each is measured and judged on"),
    WORD("--slice", "FIRST:BYTES", slice, "take that range of bytes of each file (default: all)"),
    COUNT("-c --ctx-size", context, 256, 1 << 20, "1024", "tokens of a chunk; in fewer hardly any is coded"),
    COUNT("--score", score, 0, 1 << 20, "0", "last positions of each chunk that are judged; 0: its second half"),
    COUNT("--chunks", chunks, 1, 1 << 16, "1", "chunks of each text, from its start, that sensitivities are measured on"),
    COUNT("--held-out", held_out, 0, 1 << 16, "1",
          "chunks of each text, next behind those, that the result is judged on; 0: do not judge it"),

    CLI_HEAD("target"),
    CLI_NUMBER("--bits", tune_settings, bits, 0, 8, NULL,
               "as many bytes as this many bits a value would take in all layers, as 3 or 2.5; from --least to --most"),
    WORD("--bytes", "SIZE", bytes, "bytes of the whole cache at --tokens, as 24MiB"),
    COUNT("--tokens", tokens, 0, INT32_MAX, "0", "length of the cache that --bytes is for; 0: the training length"),
    WORD("--codec", "NAME", codec, "family of codecs, without its number of bits (default turbo)"),
    COUNT("--least", least, 1, 8, "1", "fewest bits of a side"),
    COUNT("--most", most, 1, 8, "6", "most bits of a side"),
    COUNT("--probe", probe, 1, 8, "2", "bits at which single layers are measured"),
    CLI_ONE_OF("--rule", "RULE", tune_settings, rule, "greedy ratequant", "greedy", NULL,
               "greedy: measured sensitivities, the step that gains most for its bytes; ratequant: that closed form of them"),
    WORD("--measured", "FILE", measured, "take the sensitivities from a result that --save kept, and measure none"),
    WORD("--write", "FILE", profile, "where the profile goes; other commands take it with --profile"),

    CLI_HEAD("how"),
    KV_CALIBRATION(tune_settings),
    COUNT("-t --threads", threads, 0, 256, "0", "threads; 0: as many as there are, half above four"),
    COUNT("-s --seed", seed, 0, UINT32_MAX, "1", "seed of the bootstrap that bounds the gain"),
    RESULT_OPTIONS(tune_settings),
    CLI_SWITCH(CLI_ON, "-v --verbose", tune_settings, verbose, "show the log of libllama, on stderr"),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "tune",
    .usage = "-m FILE -f TEXT --bits N [OPTIONS]",
    .about =
        "Finds out how much each layer's keys and values suffer from few bits, gives each as many as a target allows, and judges "
        "the\n"
        "result on chunks that were held out, against the same bits in all layers. Reads about 2 x layers chunks with each side "
        "of\n"
        "each layer coded alone: minutes for a small model. The result lists the sensitivities; kvfold report draws them.",
    .options = options,
};

/* ---- what is tuned ----------------------------------------------------------------------------------------------------------- */

static int wrong(const char *sentence)
{
    cli_error("tune: %s", sentence);
    return CLI_USAGE;
}

static int check(const tune_settings *set)
{
    if (!set->model) return wrong("-m FILE is missing: kvfold tune -m model.gguf -f text.txt --bits 3");
    if (set->files.n == 0) return wrong("-f TEXT is missing: kvfold tune -m model.gguf -f text.txt --bits 3");
    if ((set->bits > 0) == (set->bytes != NULL)) return wrong("one target is needed: --bits N or --bytes SIZE");
    if (set->least > set->most) return wrong("--least is above --most");
    const char *const in[] = {set->model, set->measured, set->kv.calibration}, *const out[] = {set->profile, set->out.save};
    int code = set->profile ? cli_save_check(set->profile) : CLI_GO;
    if (code == CLI_GO) code = result_check(&set->out, NULL, 0);
    for (int i = 0; i < 2 && code == CLI_GO; i++) {
        code = cli_save_apart_all(out[i], in, 3);
        if (code == CLI_GO) code = cli_save_apart_all(out[i], set->files.item, set->files.n);
    }
    return code == CLI_GO ? cli_save_apart(set->out.save, set->profile) : code;
}

/* ---- what comes out ---------------------------------------------------------------------------------------------------------- */

static int write_profile(const tuner *t)
{
    cli_text out = {0};
    tune_profile(t->item, t->n, (const char(*)[TUNE_NAME])t->name, &out);
    if (t->origin.calibration[0]) cli_text_format(&out, "calibration %s\n", t->origin.calibration);
    cli_text_format(&out, "model %s\n# %s, %lld bytes ", t->origin.model, t->set->model,
                    (long long)(t->base + tune_bytes(t->item, t->n)));
    if (t->tokens > 0)
        cli_text_format(&out, "of the cache at %lld tokens, by %s\n", (long long)t->tokens, t->set->rule);
    else
        cli_text_format(&out, "in 64 tokens of all layers, by %s\n", t->set->rule);
    int code = cli_save(t->set->profile, out.data, out.length);
    cli_text_free(&out);
    return code;
}

static void add_rows(tuner *t)
{
    for (int i = 0; i < t->n; i++) {
        const tune_item *item = &t->item[i];
        result_add_row(t->result, t->run,
                       json_pack("{s:s, s:i, s:f, s:s, s:i}", "name", item->side == KVF_K ? "keys" : "values", "layer",
                                 item->layer, "kld_mean", item->sensitivity, "codec", t->name[item->level], "bits",
                                 t->bits[item->level]));
    }
}

static json_t *run_object(const tuner *t)
{
    json_t *ratios = json_array();
    for (int side = 0; side < 2; side++)
        for (int b = 0; b < t->levels; b++)
            json_array_append_new(ratios, json_pack("{s:s, s:i, s:f}", "side", side ? "values" : "keys", "bits", t->bits[b],
                                                    "ratio", t->ratio[side][b]));
    const tune_origin *from = &t->origin;
    return json_pack("{s:o, s:s, s:s, s:s, s:i, s:i, s:I, s:s, s:s, s:f, s:o, s:o}", "model", cli_json_text(t->set->model),
                     "model_hash", from->model, "text_hash", from->text, "calibration_hash", from->calibration, "context",
                     from->context, "score", from->score, "chunks", (json_int_t)from->chunks, "probe", t->name[t->probe], "rule",
                     t->set->rule, "predicted", tune_loss(t->item, t->n), "ratios", ratios, "gains", json_array());
}

static int finish(tuner *t)
{
    char title[200];
    int code = CLI_GO;
    t->result = result_new("sensitivity", (uint64_t)t->set->seed);
    snprintf(title, sizeof title, "Layers of %.120s alone at %s", t->set->model, t->name[t->probe]);
    json_t *run = run_object(t);
    json_incref(run);
    t->run = result_add_run(t->result, run, title);
    if (t->set->held_out > 0) code = tune_judge(t, run);
    json_decref(run);
    if (code != CLI_GO) {
        json_decref(t->result);
        return code;
    }
    t->finished = true;
    tune_choose(t, t->set->rule); /* judging tried both */
    add_rows(t);
    if (t->set->profile) code = write_profile(t);
    if (code == CLI_GO) code = result_out(t->result, &t->set->out);
    return code;
}

/* ---- the command ------------------------------------------------------------------------------------------------------------- */

static int read_text(tuner *t, cli_text *raw)
{
    t->q = (quality_settings){.model = t->set->model,
                              .files = t->set->files,
                              .slice = t->set->slice,
                              .context = t->set->context,
                              .score = t->set->score,
                              .threads = t->set->threads,
                              .seed = t->set->seed,
                              .kv = t->set->kv};
    if (t->q.score == 0) t->q.score = t->q.context - 1 - t->q.context / 2;
    if (t->q.score > t->q.context - 1) return wrong("--score is more than a chunk has positions with a next token");
    t->text.context = (int32_t)t->q.context, t->text.score = (int32_t)t->q.score;
    return quality_read(&t->text, raw, &t->q);
}

static int tune(tuner *t, cli_text *raw)
{
    run_settings load = {.model = t->set->model, .threads = t->set->threads, .context = t->set->context, .repack = true};
    load.kv = t->set->kv;
    int code = read_text(t, raw);
    if (code == CLI_GO) code = session_load(&t->s, &load);
    if (code == CLI_GO) code = tune_list_items(t);
    if (code == CLI_GO) code = tune_find_levels(t, 2);
    if (code == CLI_GO) code = tune_find_budget(t);
    if (code == CLI_GO) code = tune_find_origin(t);
    if (code == CLI_GO && t->set->measured) code = tune_read_measured(t, t->set->measured);
    t->q.held_out = t->set->held_out, t->q.chunks = t->origin.chunks + t->q.held_out;
    if (code == CLI_GO) code = quality_tokenize(&t->text, raw, t->s.vocab, &t->q);
    if (code == CLI_GO && !t->set->measured) code = tune_measure(t);
    if (code == CLI_GO && !tune_choose(t, t->set->rule)) code = wrong("the target is below the fewest bits (--least)");
    return code == CLI_GO ? finish(t) : code;
}

int cmd_tune(int argc, char **argv)
{
    tune_settings set = {0};
    tuner t = {.set = &set};
    cli_text raw[CLI_LIST_MOST] = {{0}};
    kv_settings_init(&set.kv);
    int code = cli_parse(&syntax, &set, argc, argv);
    if (code == CLI_GO) code = check(&set);
    if (code != CLI_GO) return code;
    session_begin(set.verbose);
    code = tune(&t, raw);
    if (!t.finished && cli_interrupted()) code = cli_stopped();
    session_close(&t.s);
    quality_input_free(&t.text);
    free(t.item);
    for (int i = 0; i < CLI_LIST_MOST; i++) cli_text_free(&raw[i]);
    llama_backend_free();
    return cli_finish(code);
}
