/* SPDX-License-Identifier: MIT
 * kvfold run: one prompt, or a conversation that keeps its cache; then the report.
 */
#include "run.h"

#include <errno.h>
#include <string.h>

#define AT(member) offsetof(run_settings, member)

static const cli_option options[] = {
    {.kind = CLI_HEADING, .help = "model and prompt"},
    {"-m --model", "FILE", CLI_STRING, AT(model), 0, 0, NULL, NULL, NULL, "model, a GGUF file (the first one of a split model)"},
    {"-p --prompt", "TEXT", CLI_STRING, AT(prompt), 0, 0, NULL, NULL, NULL,
     "prompt; without -p and -f, lines are read from stdin, one turn each (a \\ at the end continues the line)"},
    {"-f --file", "FILE", CLI_STRING, AT(file), 0, 0, NULL, NULL, NULL,
     "file with the prompt, - for stdin; with -p too, the file comes first, then an empty line, then -p"},
    {"-sys --system-prompt", "TEXT", CLI_STRING, AT(system), 0, 0, NULL, NULL, NULL, "system message of the chat template"},
    {"-e --escape", NULL, CLI_ON, AT(escape), 0, 0, NULL, NULL, NULL, "turn \\n, \\t, \\\\ ... in -p, -sys and -r into what they mean; the default"},
    {"--no-escape", NULL, CLI_OFF, AT(escape), 0, 0, NULL, NULL, NULL, "take -p, -sys and -r as they are"},
    {"--chat-template", "NAME", CLI_STRING, AT(chat_template), 0, 0, NULL, NULL, NULL,
     "chat template of libllama by name, as chatml (default: the one that the model brings)"},
    {"--raw -no-cnv --no-conversation", NULL, CLI_ON, AT(raw), 0, 0, NULL, NULL, NULL, "no chat template: continue the text as it is"},
    {"-cnv --conversation", NULL, CLI_ON, AT(conversation), 0, 0, NULL, NULL, NULL,
     "go on with turns from stdin after -p or -f; the cache is kept"},
    {"-r --reverse-prompt", "TEXT", CLI_REPEAT, AT(reverse), 0, 0, NULL, NULL, NULL,
     "end the answer once it contains TEXT; may be given several times"},

    {.kind = CLI_HEADING, .help = "size and speed"},
    {"-n --predict --n-predict", "N", CLI_INTEGER, AT(predict), -1, INT32_MAX, "-1", NULL, NULL,
     "tokens to generate in a turn; -1: until the model ends or the context is full"},
    {"-c --ctx-size", "N", CLI_INTEGER, AT(context), 0, INT32_MAX - 1024, "0", NULL, NULL,
     "tokens that the folded context holds; 0: the training length. When it is full, generation stops"},
    {"-b --batch-size", "N", CLI_INTEGER, AT(batch), 0, 65536, "0", NULL, NULL,
     "rows of one batch, which libllama keeps unfolded; 0: 255. Rows and sequences are fitted to a multiple of 256"},
    {"-ub --ubatch-size", "N", CLI_INTEGER, AT(ubatch), 0, 65536, "0", NULL, NULL, "the same as -b here; the smaller one holds"},
    {"-t --threads", "N", CLI_INTEGER, AT(threads), 0, 256, "0", NULL, NULL, "threads; 0: as many as there are, half above four"},
    {"-tb --threads-batch", "N", CLI_INTEGER, AT(threads_batch), 0, 256, "0", NULL, NULL, "threads for prompts; 0: as -t"},
    {"-ngl --gpu-layers --n-gpu-layers", "N", CLI_INTEGER, AT(gpu_layers), -1, 4096, "0", NULL, NULL,
     "layers whose weights go to a GPU, -1: all; the folded cache and its attention stay on the processor"},
    {"-fa --flash-attn", "MODE", CLI_CHOICE, AT(flash), 0, 0, "auto", "on auto",
     "Folding replaces libllama's flash attention, so it cannot be off", "on or auto: both mean on here"},
    {"-nkvo --no-kv-offload", NULL, CLI_IGNORED, 0, 0, 0, NULL, NULL, NULL, "accepted; the cache is in main memory anyway"},
    {"-nr --no-repack", NULL, CLI_OFF, AT(repack), 0, 0, NULL, NULL, NULL, "libllama keeps weights in the order of the file"},

    {.kind = CLI_HEADING, .help = "sampling"},
    {"-s --seed", "N", CLI_INTEGER, AT(seed), -1, UINT32_MAX, "-1", NULL, NULL, "seed; -1: another one each time"},
    {"--temp --temperature", "T", CLI_REAL, AT(temp), 0, 1000, "0.8", NULL, NULL, "temperature; 0: always the likeliest token"},
    {"--top-k", "K", CLI_INTEGER, AT(top_k), 0, INT32_MAX, "40", NULL, NULL, "the K likeliest tokens only; 0: all"},
    {"--top-p", "P", CLI_REAL, AT(top_p), 0, 1, "0.95", NULL, NULL, "the likeliest tokens that make up P together; 1: all"},
    {"--min-p", "P", CLI_REAL, AT(min_p), 0, 1, "0.05", NULL, NULL, "tokens at least P times as likely as the likeliest; 0: all"},
    {"--repeat-penalty", "X", CLI_REAL, AT(repeat), 0.01, 100, "1", NULL, NULL, "makes repeated tokens less likely; 1: off"},
    {"--repeat-last-n", "N", CLI_INTEGER, AT(repeat_last), -1, INT32_MAX, "64", NULL, NULL, "tokens that count as repeated"},
    {"--ignore-eos", NULL, CLI_ON, AT(ignore_eos), 0, 0, NULL, NULL, NULL, "never end by itself"},

    KV_OPTIONS(run_settings),

    {.kind = CLI_HEADING, .help = "positions (for contexts above the training length)"},
    {"--rope-scaling", "KIND", CLI_CHOICE, AT(rope_scaling), 0, 0, NULL, "none linear yarn", NULL, "default: as the model says"},
    {"--rope-scale", "X", CLI_REAL, AT(rope_scale), 0, 1e6, "0", NULL, NULL, "stretch positions X times; 0: as the model says"},
    {"--rope-freq-base", "X", CLI_REAL, AT(rope_base), 0, 1e12, "0", NULL, NULL, "base frequency; 0: as the model says"},
    {"--rope-freq-scale", "X", CLI_REAL, AT(rope_freq_scale), 0, 1e6, "0", NULL, NULL, "1 / --rope-scale; 0: as the model says"},
    {"--yarn-orig-ctx", "N", CLI_INTEGER, AT(yarn_context), 0, INT32_MAX, "0", NULL, NULL, "YaRN: original context; 0: as the model says"},
    {"--yarn-ext-factor", "X", CLI_REAL, AT(yarn_ext), -1, 1e6, "-1", NULL, NULL, "YaRN: extrapolation mix; -1: as libllama says"},
    {"--yarn-attn-factor", "X", CLI_REAL, AT(yarn_attn), -1, 1e6, "-1", NULL, NULL, "YaRN: scale of attention; -1: as libllama says"},
    {"--yarn-beta-slow", "X", CLI_REAL, AT(yarn_slow), -1, 1e6, "-1", NULL, NULL, "YaRN: high correction dimension; -1: as libllama says"},
    {"--yarn-beta-fast", "X", CLI_REAL, AT(yarn_fast), -1, 1e6, "-1", NULL, NULL, "YaRN: low correction dimension; -1: as libllama says"},

    {.kind = CLI_HEADING, .help = "output"},
    {"--display-prompt", NULL, CLI_ON, AT(display_prompt), 0, 0, NULL, NULL, NULL, "print the text that is fed, too"},
    {"--no-display-prompt", NULL, CLI_OFF, AT(display_prompt), 0, 0, NULL, NULL, NULL, "do not; the default"},
    {"--no-report", NULL, CLI_OFF, AT(report), 0, 0, NULL, NULL, NULL, "stdout is the generated text, a line end after each turn, and nothing else"},
    {"--json", NULL, CLI_ON, AT(json), 0, 0, NULL, NULL, NULL, "stdout is one JSON object with text and report"},
    {"-v --verbose", NULL, CLI_ON, AT(verbose), 0, 0, NULL, NULL, NULL, "show the log of libllama, on stderr"},
    {.kind = CLI_HEADING},
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
    if (set->file)
        code = read_prompt_file(set->file, prompt);
    if (code == CLI_GO && set->file && set->prompt && prompt->length > 0)
        cli_text_add(prompt, "\n\n", 2);
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
    if (cli_is_terminal(stdin))
        fputs("\n> ", stderr);
    while (!cli_interrupted() && (c = getchar()) != EOF) {
        bool more = line->length > 0 && line->data[line->length - 1] == '\\';
        if (c == '\n' && !more)
            return true;
        if (c == '\n')
            line->length--;
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
    if (code == CLI_GO && g->set->display_prompt && !g->set->json)
        fwrite(text.data, 1, text.length, stdout);
    if (code == CLI_GO)
        code = generate_turn(g, text.data, text.length);
    if (code == CLI_GO) {
        const run_turn *t = &g->turn[g->n_turns - 1];
        chat_reply(c, g->text.data ? g->text.data + t->text : "");
        if (!g->set->json)
            putchar('\n');
    }
    cli_text_free(&text);
    return code;
}

static bool over(const generator *g)
{
    run_stop stop = generator_stop(g);
    return stop == STOP_CONTEXT || stop == STOP_INTERRUPTED || cli_interrupted();
}

static int turns_from_stdin(generator *g, chat *c)
{
    cli_text raw = {0}, line = {0};
    int code = CLI_GO;
    while (code == CLI_GO && !over(g) && read_turn(&raw)) {
        line.length = 0;
        cli_utf8_add(&line, raw.data, raw.length);
        if (line.length == 0)
            continue;
        if (!c->form)
            cli_text_add(&line, "\n", 1);
        code = turn(g, c, line.data);
    }
    cli_text_free(&raw);
    cli_text_free(&line);
    return code;
}

static int converse(session *s, const run_settings *set, chat *c, generator *g, const cli_text *prompt)
{
    int code = chat_open(c, s->model, set);
    if (code == CLI_GO)
        code = generator_open(g, s, set);
    if (code != CLI_GO)
        return code;
    report_start(s, c);
    if (prompt->length > 0)
        code = turn(g, c, prompt->data);
    if (code == CLI_GO && (set->conversation || prompt->length == 0))
        code = turns_from_stdin(g, c);
    return code;
}

/* ---- the command ----------------------------------------------------------------------------------------------------------- */

static void unescape_settings(run_settings *set)
{
    /* argv may be changed: the strings are our own. */
    if (!set->escape)
        return;
    if (set->prompt)
        cli_unescape((char *)(uintptr_t)set->prompt);
    if (set->system)
        cli_unescape((char *)(uintptr_t)set->system);
    for (int i = 0; i < set->reverse.n; i++)
        cli_unescape((char *)(uintptr_t)set->reverse.item[i]);
}

static int run(const run_settings *set)
{
    session s = {0};
    chat c = {0};
    generator g = {.s = &s, .set = set};
    cli_text prompt = {0};
    int code = first_prompt(set, &prompt);
    if (code == CLI_GO)
        code = session_open(&s, set);
    if (code == CLI_GO)
        code = converse(&s, set, &c, &g, &prompt);
    if (code == CLI_GO || cli_interrupted())
        code = report_print(&g, &c);
    generator_close(&g);
    chat_close(&c);
    session_close(&s);
    cli_text_free(&prompt);
    return cli_finish(code);
}

int cmd_run(int argc, char **argv)
{
    run_settings set = {.escape = true, .report = true, .repack = true};
    kv_settings_init(&set.kv);
    int code = cli_parse(&syntax, &set, argc, argv);
    if (code != CLI_GO)
        return code;
    if (set.raw && set.chat_template) {
        cli_error("--raw means no chat template, so --chat-template %s cannot be meant too", set.chat_template);
        return CLI_USAGE;
    }
    unescape_settings(&set);
    cli_log_install(set.verbose);
    cli_catch_interrupt();
    ggml_backend_load_all();
    llama_backend_init();
    code = run(&set);
    llama_backend_free();
    return code;
}
