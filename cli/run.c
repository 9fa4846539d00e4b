/* SPDX-License-Identifier: MIT
 * kvfold run: one prompt, or a conversation that keeps its cache; then the report.
 */
#include "run.h"

#include <errno.h>
#include <string.h>

#define WORD(names, value, member, help) CLI_WORD(names, value, run_settings, member, help)
#define COUNT(names, member, least, most, initial, help) CLI_COUNT(names, run_settings, member, least, most, initial, help)
#define NUMBER(names, member, least, most, initial, help) CLI_NUMBER(names, run_settings, member, least, most, initial, help)
#define ON(names, member, help) CLI_SWITCH(CLI_ON, names, run_settings, member, help)
#define OFF(names, member, help) CLI_SWITCH(CLI_OFF, names, run_settings, member, help)

static const cli_option options[] = {
    CLI_HEAD("model and prompt"),
    WORD("-m --model", "FILE", model, "model, a GGUF file (the first one of a split model)"),
    WORD("-p --prompt", "TEXT", prompt,
         "prompt; without -p and -f, lines are read from stdin, one turn each (a \\ at the end continues the line)"),
    WORD("-f --file", "FILE", file,
         "file with the prompt, - for stdin; with -p too, the file comes first, then an empty line, then -p"),
    WORD("-sys --system-prompt", "TEXT", system, "system message of the chat template"),
    ON("-e --escape", escape, "turn \\n, \\t, \\\\ and the like in -p, -sys and -r into what they mean; the default"),
    OFF("--no-escape", escape, "take -p, -sys and -r as they are"),
    WORD("--chat-template", "NAME", chat_template,
         "chat template of libllama by name, as chatml (default: the one that the model brings)"),
    ON("--raw -no-cnv --no-conversation", raw, "no chat template: continue the text as it is"),
    ON("-cnv --conversation", conversation, "go on with turns from stdin after -p or -f; the cache is kept"),
    CLI_WORDS("-r --reverse-prompt", "TEXT", run_settings, reverse,
              "end the answer once it contains TEXT; may be given several times"),

    CLI_HEAD("size and speed"),
    COUNT("-n --predict --n-predict", predict, -1, INT32_MAX, "-1",
          "tokens to generate in a turn; -1: until the model ends or the context is full"),
    COUNT("-c --ctx-size", context, 0, KV_CONTEXT_MOST, "0",
          "tokens that the folded context holds; 0: the training length. When it is full, generation stops; with a policy "
          "(--evict) "
          "that bounds what is kept it goes on up to the training length"),
    COUNT("-b --batch-size", batch, 0, 65536, "0",
          "rows of one batch, which libllama keeps unfolded; 0: 255. Rows and sequences are fitted to a multiple of 256"),
    COUNT("-ub --ubatch-size", ubatch, 0, 65536, "0", "the same as -b here; the smaller one holds"),
    COUNT("-t --threads", threads, 0, 256, "0", "threads; 0: as many as there are, half above four"),
    COUNT("-tb --threads-batch", threads_batch, 0, 256, "0", "threads for prompts; 0: as -t"),
    COUNT("-ngl --gpu-layers --n-gpu-layers", gpu_layers, -1, 4096, "0",
          "layers whose weights go to a GPU, -1: all; the folded cache and its attention stay on the processor"),
    CLI_ONE_OF("-fa --flash-attn", "MODE", run_settings, flash, "on auto", "auto",
               "Folding replaces libllama's flash attention, so it cannot be off", "on or auto: both mean on here"),
    {.names = "-nkvo --no-kv-offload", .kind = CLI_IGNORED, .help = "accepted; the cache is in main memory anyway"},
    OFF("-nr --no-repack", repack, "libllama keeps weights in the order of the file"),

    CLI_HEAD("sampling"),
    COUNT("-s --seed", seed, -1, UINT32_MAX, "-1", "seed; -1: another one each time"),
    NUMBER("--temp --temperature", temp, 0, 1000, "0.8", "temperature; 0: always the likeliest token"),
    COUNT("--top-k", top_k, 0, INT32_MAX, "40", "the N likeliest tokens only; 0: all"),
    NUMBER("--top-p", top_p, 0, 1, "0.95", "the likeliest tokens that make up X together; 1: all"),
    NUMBER("--min-p", min_p, 0, 1, "0.05", "tokens at least X times as likely as the likeliest; 0: all"),
    NUMBER("--repeat-penalty", repeat, 0.01, 100, "1", "makes repeated tokens less likely; 1: off"),
    COUNT("--repeat-last-n", repeat_last, 0, INT32_MAX, "64", "newest tokens that count as repeated"),
    ON("--ignore-eos", ignore_eos, "never end by itself"),

    KV_OPTIONS(run_settings),
    KV_CALIBRATION(run_settings),

    CLI_HEAD("positions (for contexts above the training length)"),
    CLI_ONE_OF("--rope-scaling", "KIND", run_settings, rope_scaling, "none linear yarn", NULL, NULL,
               "none, linear or yarn (default: as the model says)"),
    NUMBER("--rope-scale", rope_scale, 0, 1e6, "0", "stretch positions X times; 0: as the model says"),
    NUMBER("--rope-freq-base", rope_base, 0, 1e12, "0", "base frequency; 0: as the model says"),
    NUMBER("--rope-freq-scale", rope_freq_scale, 0, 1e6, "0", "1 / --rope-scale; 0: as the model says"),
    COUNT("--yarn-orig-ctx", yarn_context, 0, INT32_MAX, "0", "YaRN: original context; 0: as the model says"),
    NUMBER("--yarn-ext-factor", yarn_ext, -1, 1e6, "-1", "YaRN: extrapolation mix; -1: as libllama says"),
    NUMBER("--yarn-attn-factor", yarn_attn, -1, 1e6, "-1", "YaRN: scale of attention; -1: as libllama says"),
    NUMBER("--yarn-beta-slow", yarn_slow, -1, 1e6, "-1", "YaRN: high correction dimension; -1: as libllama says"),
    NUMBER("--yarn-beta-fast", yarn_fast, -1, 1e6, "-1", "YaRN: low correction dimension; -1: as libllama says"),

    CLI_HEAD("output"),
    ON("--display-prompt", display_prompt, "print the text that is fed, too"),
    OFF("--no-display-prompt", display_prompt, "do not; the default"),
    OFF("--no-report", report, "stdout is the generated text, a line end after each turn, and nothing else"),
    ON("--json", json, "stdout is one JSON object with text and report"),
    ON("-v --verbose", verbose, "show the log of libllama, on stderr"),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "run",
    .usage = "-m FILE [-p TEXT | -f FILE] [OPTIONS]",
    .about = "Generates text with a folded cache. Text, then report, go to stdout; all else to stderr. Without a prompt it is a\n"
             "conversation: turns are read from stdin, and the cache is kept from turn to turn. Ctrl-C ends it with the report.",
    .options = options,
};

/* ---- prompt ---------------------------------------------------------------------------------------------------------------- */

static int read_prompt_file(const char *path, cli_text *prompt)
{
    cli_text raw = {0};
    int code = cli_read_file(path, &raw);
    const char *zero = code == CLI_GO && raw.length ? memchr(raw.data, '\0', raw.length) : NULL;
    if (zero) {
        cli_error("'%s' is no text: byte %lld is zero", path, (long long)(zero - raw.data));
        code = CLI_DAMAGED;
    }
    if (code == CLI_GO && raw.length > 0 && raw.data[raw.length - 1] == '\n')
        raw.length--; /* the end of the last line is no part of the text */
    if (code == CLI_GO && cli_utf8_add(prompt, raw.data, raw.length) > 0)
        cli_warn("'%s' is not UTF-8 everywhere: what is not became U+FFFD", path);
    cli_text_free(&raw);
    return code;
}

/* The first prompt into `prompt`; its data stays NULL when neither -p nor -f is given. */
static int first_prompt(const run_settings *set, cli_text *prompt)
{
    int code = CLI_GO;
    if (set->file) code = read_prompt_file(set->file, prompt);
    if (code == CLI_GO && set->file && set->prompt && prompt->length > 0) cli_text_add(prompt, "\n\n", 2);
    if (code == CLI_GO && set->prompt && cli_utf8_add(prompt, set->prompt, strlen(set->prompt)) > 0)
        cli_warn("-p is not UTF-8 everywhere: what is not became U+FFFD");
    if (code == CLI_GO && (set->file || set->prompt) && prompt->length == 0) {
        cli_error("the prompt is empty%s%s%s: there is nothing to continue", set->file ? " ('" : "", set->file ? set->file : "",
                  set->file ? "')" : "");
        code = CLI_USAGE;
    }
    return code;
}

/* The next turn from stdin: a line, or several joined by a \ at the end. False at the end of input. */
static bool read_turn(cli_text *line)
{
    int c;
    line->length = 0;
    if (cli_is_terminal(stdin)) fputs("\n> ", stderr);
    while (!cli_interrupted() && (c = getchar()) != EOF) {
        bool more = line->length > 0 && line->data[line->length - 1] == '\\';
        if (c == '\n' && !more) return true;
        if (c == '\n') line->length--;
        char byte = (char)c;
        cli_text_add(line, &byte, 1);
    }
    return line->length > 0 && !cli_interrupted();
}

/* ---- turns ----------------------------------------------------------------------------------------------------------------- */

static int turn(generator *g, chat *c, const char *user)
{
    cli_text text = {0};
    int code = chat_ask(c, user, &text);
    if (code == CLI_GO && g->set->display_prompt && !g->set->json) fwrite(text.data, 1, text.length, stdout);
    if (code == CLI_GO) code = generate_turn(g, text.data, text.length);
    if (code == CLI_GO) {
        const run_turn *t = &g->turn[g->n_turns - 1];
        chat_reply(c, g->text.data ? g->text.data + t->text : "");
        if (!g->set->json) putchar('\n');
        generator_say_full(g);
    }
    cli_text_free(&text);
    return code;
}

static bool over(const generator *g)
{
    run_stop stop = generator_stop(g);
    return stop == STOP_CONTEXT || stop == STOP_INTERRUPTED || cli_interrupted();
}

/* What was read as valid text; false when there is nothing to ask. */
static bool clean_turn(const cli_text *raw, cli_text *line)
{
    line->length = 0;
    if (raw->length > 0 && memchr(raw->data, '\0', raw->length)) {
        cli_warn("a line of stdin is no text, as it has a zero byte: it is left out");
        return false;
    }
    if (cli_utf8_add(line, raw->data, raw->length) > 0) cli_warn("stdin is not UTF-8 everywhere: what is not became U+FFFD");
    return line->length > 0;
}

static int turns_from_stdin(generator *g, chat *c)
{
    cli_text raw = {0}, line = {0};
    int code = CLI_GO;
    while (code == CLI_GO && !over(g) && read_turn(&raw)) {
        if (!clean_turn(&raw, &line)) continue;
        if (!c->form) cli_text_add(&line, "\n", 1);
        code = turn(g, c, line.data);
    }
    if (code == CLI_GO && ferror(stdin) && !cli_interrupted()) {
        cli_error("cannot read stdin: %s", strerror(errno));
        code = CLI_CANNOT;
    }
    cli_text_free(&raw);
    cli_text_free(&line);
    return code;
}

static int converse(session *s, const run_settings *set, chat *c, generator *g, const cli_text *prompt)
{
    int code = chat_open(c, s->model, set);
    if (code == CLI_GO) code = generator_open(g, s, c, set);
    if (code != CLI_GO) return code;
    if (prompt->length > 0)
        code = turn(g, c, prompt->data);
    else
        generator_start(g);
    if (code == CLI_GO && (set->conversation || prompt->length == 0)) code = turns_from_stdin(g, c);
    return code;
}

/* ---- the command ----------------------------------------------------------------------------------------------------------- */

static void unescape_settings(run_settings *set)
{
    /* argv may be changed: the strings are our own. */
    if (!set->escape) return;
    if (set->prompt) cli_unescape((char *)(uintptr_t)set->prompt);
    if (set->system) cli_unescape((char *)(uintptr_t)set->system);
    for (int i = 0; i < set->reverse.n; i++) cli_unescape((char *)(uintptr_t)set->reverse.item[i]);
}

static int run(const run_settings *set)
{
    session s = {0};
    chat c = {0};
    generator g = {.s = &s, .set = set};
    cli_text prompt = {0};
    int code = first_prompt(set, &prompt);
    if (code == CLI_GO) code = session_open(&s, set);
    if (code == CLI_GO) code = converse(&s, set, &c, &g, &prompt);
    if (code == CLI_GO || cli_interrupted()) code = report_print(&g);
    generator_close(&g);
    chat_close(&c);
    session_close(&s);
    cli_text_free(&prompt);
    return cli_finish(code);
}

/* Options that contradict each other. */
static int check_together(const run_settings *set)
{
    const bool stretched = set->rope_scale > 0 || set->rope_freq_scale > 0;
    if (set->raw && set->chat_template)
        cli_error("--raw means no chat template, so --chat-template %s cannot be meant too", set->chat_template);
    else if (set->json && !set->report)
        cli_error("--json prints the report, so --no-report cannot be meant too");
    else if (set->rope_scale > 0 && set->rope_freq_scale > 0)
        cli_error("--rope-freq-scale is 1 / --rope-scale: give one of the two");
    else if (stretched && set->rope_scaling && strcmp(set->rope_scaling, "none") == 0)
        cli_error("--rope-scaling none leaves positions as they are, so %s cannot be meant too",
                  set->rope_scale > 0 ? "--rope-scale" : "--rope-freq-scale");
    else
        return CLI_GO;
    return CLI_USAGE;
}

int cmd_run(int argc, char **argv)
{
    run_settings set = {.escape = true, .report = true, .repack = true};
    kv_settings_init(&set.kv);
    int code = cli_parse(&syntax, &set, argc, argv);
    if (code != CLI_GO) return code;
    code = check_together(&set);
    if (code != CLI_GO) return code;
    unescape_settings(&set);
    session_begin(set.verbose);
    code = run(&set);
    llama_backend_free();
    return code;
}
