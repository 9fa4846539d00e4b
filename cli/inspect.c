/* SPDX-License-Identifier: MIT
 * kvfold inspect: the attention layers of a model file, from its header; or what a calibration file holds.
 */
#include "inspect.h"
#include "model_file.h"
#include "options.h"
#include "shape.h"

#include <jansson.h>

#include <string.h>

typedef struct inspect_settings {
    const char *model, *folder;
    bool json, verbose;
} inspect_settings;

static const cli_option options[] = {
    CLI_HEAD("options"),
    CLI_WORD("-m --model", "FILE", inspect_settings, model, "model, or a file of kvfold calibrate; -m may be left out"),
    CLI_WORD("--plot", "FOLDER", inspect_settings, folder,
             "of a calibration: also draw its ranks and the channels of every layer there (needs gnuplot)"),
    CLI_SWITCH(CLI_ON, "--json", inspect_settings, json, "one JSON object"),
    CLI_SWITCH(CLI_ON, "-v --verbose", inspect_settings, verbose, "show the log of libllama, on stderr"),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "inspect",
    .usage = "-m FILE [OPTIONS]",
    .about = "Layers, heads, head sizes and windows of a model, as its header gives them. Reads no weights. Of a calibration: "
             "what its layers\n"
             "are like, and in which heads the direction of the queries ranks keys.",
    .options = options,
    .positional = true,
    .positional_field = offsetof(inspect_settings, model),
};

static bool same(const shape_layer *a, const shape_layer *b)
{
    return a->attention == b->attention && a->q_heads == b->q_heads && a->kv_heads == b->kv_heads && a->k_dim == b->k_dim &&
           a->v_dim == b->v_dim && a->window == b->window && a->share == b->share && a->v_in_k == b->v_in_k;
}

static void print_span(const shape_layer *l, int32_t first, int32_t last)
{
    char layers[32];
    snprintf(layers, sizeof layers, first == last ? "%d" : "%d-%d", first, last);
    if (!l->attention) {
        printf("  %-8s no attention\n", layers);
        return;
    }
    printf("  %-8s %7d %8d %7d %7d  ", layers, l->q_heads, l->kv_heads, l->k_dim, l->v_dim);
    if (l->window)
        printf("window %d", l->window);
    else
        printf("full");
    if (l->share >= 0) printf(", reads the cache of layer %d", l->share);
    printf("%s\n", l->v_in_k ? ", values inside the keys" : "");
}

static int print_table(const model_file *m, const shape *s)
{
    cli_print("%s: %s, %d layers, %d with attention, training length %lld, %s in %d file%s\n", m->path, m->arch, s->n_layers,
              s->n_attention, (long long)s->context, cli_bytes(m->bytes), m->parts, m->parts == 1 ? "" : "s");
    if (s->refused[0]) cli_print("cannot be folded: %s\n", s->refused);
    printf("\n  %-8s %7s %8s %7s %7s  %s\n", "layer", "q heads", "kv heads", "k size", "v size", "attends to");
    for (int32_t first = 0, il = 1; il <= s->n_layers; il++) {
        if (il < s->n_layers && same(&s->layer[il], &s->layer[first])) continue;
        print_span(&s->layer[first], first, il - 1);
        first = il;
    }
    return cli_finish(CLI_DONE);
}

static int print_object(const model_file *m, const shape *s)
{
    json_t *layers = json_array();
    for (int32_t il = 0; il < s->n_layers; il++) {
        const shape_layer *l = &s->layer[il];
        json_array_append_new(layers, json_pack("{s:i, s:b, s:i, s:i, s:i, s:i, s:i, s:i, s:b}", "layer", il, "attention",
                                                l->attention, "q_heads", l->q_heads, "kv_heads", l->kv_heads, "k_dim", l->k_dim,
                                                "v_dim", l->v_dim, "window", l->window, "share", l->share, "v_in_k", l->v_in_k));
    }
    return cli_print_json(json_pack("{s:o, s:o, s:I, s:i, s:I, s:o, s:o}", "model", cli_json_text(m->path), "architecture",
                                    cli_json_text(m->arch), "bytes", (json_int_t)m->bytes, "files", m->parts, "context_train",
                                    (json_int_t)s->context, "refused", s->refused[0] ? cli_json_text(s->refused) : json_null(),
                                    "layers", layers));
}

static int inspect_model(const model_file *m, const inspect_settings *set)
{
    shape s = {0};
    if (set->folder) {
        cli_error("--plot: '%s' is a model, and pictures are drawn of calibrations", m->path);
        return CLI_USAGE;
    }
    int code = shape_read(&s, m);
    if (code == CLI_GO) code = set->json ? print_object(m, &s) : print_table(m, &s);
    shape_free(&s);
    return code;
}

int cmd_inspect(int argc, char **argv)
{
    inspect_settings set = {0};
    model_file m = {0};
    int code = cli_parse(&syntax, &set, argc, argv);
    if (code != CLI_GO) return code;
    cli_log_install(set.verbose);
    code = model_file_open(&m, set.model);
    if (code == CLI_GO && strcmp(m.arch, "kvfold-calibration") == 0)
        code = inspect_calibration(set.model, set.json, set.folder);
    else if (code == CLI_GO)
        code = inspect_model(&m, &set);
    model_file_close(&m);
    return code;
}
