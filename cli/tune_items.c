/* SPDX-License-Identifier: MIT
 * Which sides of which layers few bits can cost anything, at which levels; and that alone, for who does not tune.
 */
#include "measure.h"
#include "tune.h"

#include <stdlib.h>

int tune_list_items(tuner *t)
{
    const shape *s = &t->s.shape;
    t->item = cli_alloc(2 * (size_t)s->n_layers, sizeof *t->item);
    for (int32_t il = 0; il < s->n_layers; il++) {
        const shape_layer *l = &s->layer[il];
        if (!l->attention || l->share >= 0) continue;
        if (l->v_in_k) {
            cli_error("layer %d keeps its values inside its keys, where only f16 and q8_0 fit: it has no bits to choose", il);
            return CLI_CANNOT;
        }
        t->item[t->n++] = (tune_item){.layer = il, .side = KVF_K, .heads = l->kv_heads, .dim = l->k_dim};
        t->item[t->n++] = (tune_item){.layer = il, .side = KVF_V, .heads = l->kv_heads, .dim = l->v_dim};
    }
    if (t->n > 0) return CLI_GO;
    cli_error("the model has no layer that keeps keys and values");
    return CLI_USAGE;
}

/* Levels of the family that fit keys and values of every layer. */
int tune_find_levels(tuner *t, int fewest)
{
    char error[300] = "";
    t->probe = -1;
    for (int64_t b = t->set->least; b <= t->set->most && t->levels < TUNE_LEVELS; b++) {
        char *name = t->name[t->levels];
        bool fits = true;
        snprintf(name, TUNE_NAME, "%s%d", t->set->codec ? t->set->codec : "turbo", (int)b);
        for (int i = 0; i < t->n && fits; i++) {
            const kvf_calibrated_layer *known = kvf_llama_calibration_layer(t->s.calibration, t->item[i].layer);
            fits = kvf_spec_check_calibrated(name, t->item[i].side, t->item[i].dim, known, NULL, error, sizeof error) == KVF_OK;
        }
        if (!fits) continue;
        if (b <= t->set->probe || t->probe < 0) t->probe = t->levels;
        t->bits[t->levels++] = (int)b;
    }
    if (t->levels >= fewest) return CLI_GO;
    cli_error("--codec: %s has fewer than %d levels from %d to %d bits for keys and values of this model%s%s",
              t->set->codec ? t->set->codec : "turbo", fewest, (int)t->set->least, (int)t->set->most, error[0] ? ": " : "",
              error);
    return CLI_USAGE;
}

/* ---- without a target ---------------------------------------------------------------------------------------------------------- */

static void take_losses(const tuner *t, tune_losses *out)
{
    out->n_layers = t->s.shape.n_layers, out->context = t->text.context;
    snprintf(out->codec, sizeof out->codec, "%s", t->name[t->probe]);
    out->loss = cli_alloc(2 * (size_t)out->n_layers, sizeof *out->loss);
    for (int i = 0; i < t->n; i++) out->loss[2 * t->item[i].layer + (t->item[i].side == KVF_V)] = (float)t->item[i].sensitivity;
}

int tune_alone(tune_losses *out, const char *model, const char *path, const cli_text *text, int64_t context, int64_t threads)
{
    enum { PROBE = 2 }; /* as tune probes where nothing else is asked for */
    tune_settings set = {.model = model, .threads = threads, .context = context, .chunks = 1, .seed = 1};
    set.least = set.most = set.probe = PROBE, set.score = context - 1 - context / 2;
    tuner t = {.set = &set, .origin = {.chunks = 1}};
    run_settings load = {.model = model, .threads = threads, .context = context, .repack = true};
    kv_settings_init(&set.kv);
    load.kv = set.kv;
    t.q = (quality_settings){
        .model = model, .context = context, .score = set.score, .threads = threads, .seed = 1, .chunks = 1, .kv = set.kv};
    t.text = (quality_input){.n_texts = 1, .context = (int32_t)context, .score = (int32_t)set.score};
    t.text.text[0] = (quality_text){.name = path, .bytes = (int64_t)text->length};
    int code = session_load(&t.s, &load);
    if (code == CLI_GO) code = tune_list_items(&t);
    if (code == CLI_GO) code = tune_find_levels(&t, 1);
    if (code == CLI_GO) code = quality_tokenize(&t.text, text, t.s.vocab, &t.q);
    if (code == CLI_GO) code = tune_measure(&t);
    if (code == CLI_GO) take_losses(&t, out);
    session_close(&t.s);
    quality_input_free(&t.text);
    free(t.item);
    return code;
}
