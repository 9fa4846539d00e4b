/* SPDX-License-Identifier: MIT
 * What few bits cost, one side of one layer at a time.
 */
#include "measure.h"
#include "tune.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An arm of f16 but for what the line says; or of kv alone. The strings are kept by the caller. */
int tune_add_arm(const tuner *t, quality_arm *arm, const char *name, const char *kv, const char *line, const char *text)
{
    kv_settings s = t->set->kv;
    s.kv = kv, s.sink = s.recent = -1;
    if (line) s.layers.item[s.layers.n++] = line;
    s.profile_text = text;
    *arm = (quality_arm){.rows = QUALITY_BATCH};
    snprintf(arm->name, sizeof arm->name, "%s", name);
    return kv_choice_make(&arm->choice, &s);
}

quality_input tune_chunks(const quality_input *all, int first, int n)
{
    quality_input in = *all;
    int of[CLI_LIST_MOST] = {0}; /* chunks of each text that were met */
    in.n_chunks = 0;
    in.chunk = cli_alloc((size_t)all->n_chunks + 1, sizeof *in.chunk);
    for (int i = 0; i < all->n_texts; i++) in.text[i].chunks = n;
    for (int i = 0; i < all->n_chunks; i++) {
        const int at = of[all->chunk[i].text]++;
        if (at >= first && at < first + n) in.chunk[in.n_chunks++] = all->chunk[i];
    }
    return in;
}

int tune_run_arms(tuner *t, quality_run *run, int first, int n)
{
    run->set = &t->q, run->s = &t->s;
    run->in = tune_chunks(&t->text, first, n);
    quality_arm_plain(&run->reference, "llama-f16", QUALITY_BATCH);
    quality_arm_plain(&run->prefill, "ordinary prefill", QUALITY_PREFILL);
    quality_arm_plain(&run->floor, "floor", 0);
    int code = quality_run_all(run);
    if (cli_interrupted()) return CLI_DONE;
    for (int i = 0; i < run->n_arms && code == CLI_GO; i++)
        if (run->arm[i].failure[0]) code = CLI_CANNOT;
    return code;
}

void tune_free_arms(quality_run *run)
{
    for (int i = 0; i < run->n_arms; i++) quality_arm_free(&run->arm[i]);
    quality_arm_free(&run->reference);
    quality_arm_free(&run->prefill);
    quality_arm_free(&run->floor);
    free(run->in.chunk);
    free(run->arm);
}

double tune_loss_of(const quality_arm *arm)
{
    double sum = 0;
    for (int64_t i = 0; i < arm->n_points; i++) sum += arm->point[i].kld / (double)arm->n_points;
    return sum;
}

/* ---- sensitivities ----------------------------------------------------------------------------------------------------------- */

/* Arms of single sides, then of all layers' keys and all layers' values at each level. */
static int measure_arms(tuner *t, quality_run *run)
{
    int code = CLI_GO;
    char name[80], kv[2 * TUNE_NAME], line[2 * TUNE_NAME];
    const char *probe = t->name[t->probe];
    for (int i = 0; i < t->n && code == CLI_GO; i++) {
        const bool keys = t->item[i].side == KVF_K;
        snprintf(name, sizeof name, "%s of layer %d", keys ? "keys" : "values", t->item[i].layer);
        snprintf(line, sizeof line, "%d=%s/%s", t->item[i].layer, keys ? probe : "f16", keys ? "f16" : probe);
        code = tune_add_arm(t, &run->arm[run->n_arms], name, "f16/f16", line, NULL);
        run->arm[run->n_arms].choice.k = run->arm[run->n_arms].choice.v = "f16";
        run->n_arms += code == CLI_GO;
    }
    for (int i = 0; i < 2 * t->levels && code == CLI_GO; i++) {
        const bool keys = i < t->levels;
        const char *level = t->name[i % t->levels];
        snprintf(kv, sizeof kv, "%s/%s", keys ? level : "f16", keys ? "f16" : level);
        code = tune_add_arm(t, &run->arm[run->n_arms], kv, kv, NULL, NULL);
        run->n_arms += code == CLI_GO;
    }
    return code;
}

/* What a level costs one side of a layer: its sensitivity, in the proportion that the side has over all layers. */
static void spread_losses(tuner *t)
{
    for (int i = 0; i < t->n; i++)
        for (int b = 0; b < t->levels; b++) t->item[i].loss[b] = t->item[i].sensitivity * t->ratio[t->item[i].side == KVF_V][b];
}

/* Losses never grow with bits: what noise makes of two that are nearly equal is taken out. */
static void take_measures(tuner *t, const quality_run *run)
{
    for (int side = 0; side < 2; side++) {
        const quality_arm *all = run->arm + t->n + side * t->levels;
        const double probe = fmax(tune_loss_of(&all[t->probe]), 1e-12);
        for (int b = 0; b < t->levels; b++) t->ratio[side][b] = fmax(tune_loss_of(&all[b]), 1e-12) / probe;
        for (int b = 1; b < t->levels; b++) t->ratio[side][b] = fmin(t->ratio[side][b], t->ratio[side][b - 1]);
    }
    for (int i = 0; i < t->n; i++) t->item[i].sensitivity = fmax(tune_loss_of(&run->arm[i]), 1e-9);
    spread_losses(t);
}

int tune_measure(tuner *t)
{
    quality_run run = {.arm = cli_alloc((size_t)(t->n + 2 * t->levels), sizeof *run.arm)};
    int code = measure_arms(t, &run);
    if (code == CLI_GO) code = tune_run_arms(t, &run, 0, (int)t->origin.chunks);
    if (code == CLI_GO) take_measures(t, &run);
    tune_free_arms(&run);
    return code;
}

/* ---- measured before ---------------------------------------------------------------------------------------------------------- */

int tune_find_origin(tuner *t)
{
    char error[300] = "";
    uint64_t hash, texts[CLI_LIST_MOST];
    tune_origin *o = &t->origin;
    const int rc = kvf_llama_model_hash(t->set->model, &hash, error, sizeof error);
    if (rc) {
        cli_error("%s", error);
        return cli_exit_of(rc);
    }
    result_hash_text(o->model, hash);
    for (int i = 0; i < t->text.n_texts; i++) texts[i] = t->text.text[i].hash;
    result_hash_text(o->text, measure_digest(texts, (size_t)t->text.n_texts * sizeof *texts));
    o->context = t->text.context, o->score = t->text.score, o->chunks = t->set->chunks;
    if (!t->set->kv.calibration) return CLI_GO;
    cli_text bytes = {0};
    const int code = cli_read_file(t->set->kv.calibration, &bytes);
    if (code == CLI_GO) result_hash_text(o->calibration, measure_digest(bytes.data, bytes.length));
    cli_text_free(&bytes);
    return code;
}

static int unlike(const char *path, const char *what)
{
    cli_error("--measured: '%s' %s", path, what);
    return CLI_CANNOT;
}

/* Held-out chunks begin behind those that were measured, which is known of the same text in the same pieces alone. */
static int take_origin(tuner *t, const char *path, const json_t *run)
{
    tune_origin *o = &t->origin;
    if (strcmp(result_string(run, "model_hash"), o->model) != 0)
        return unlike(path, "is of other weights, or does not say of which");
    if (!json_is_string(json_object_get(run, "calibration_hash")) ||
        strcmp(result_string(run, "calibration_hash"), o->calibration) != 0)
        return unlike(path, "was measured with another --calibration, or with none where there is one now");
    if (strcmp(result_string(run, "text_hash"), o->text) != 0) return unlike(path, "was measured on another text");
    if (result_real(run, "context") != o->context || result_real(run, "score") != o->score)
        return unlike(path, "was measured with another -c or --score");
    const double chunks = result_real(run, "chunks");
    if (!(chunks >= 1 && chunks <= 1 << 16)) return unlike(path, "does not say how many chunks were measured");
    o->chunks = (int64_t)chunks;
    return CLI_GO;
}

/* Of a sensitivity or ratio: is it a number above 0 that was not there before? */
static int fill(double *to, const json_t *o, const char *key)
{
    const double x = result_real(o, key);
    if (*to > 0 || !(x > 0) || !isfinite(x)) return 0;
    *to = x;
    return 1;
}

/* Rows that belong to nothing, or to what has its number, are not counted. */
static int take_row(tuner *t, const json_t *row)
{
    const char *name = result_string(row, "name");
    if (strcmp(name, "keys") != 0 && strcmp(name, "values") != 0) return 0;
    const kvf_side side = *name == 'k' ? KVF_K : KVF_V;
    for (int i = 0; i < t->n; i++)
        if (t->item[i].layer == result_real(row, "layer") && t->item[i].side == side)
            return fill(&t->item[i].sensitivity, row, "kld_mean");
    return 0;
}

static int take_ratio(tuner *t, const json_t *ratio)
{
    const char *side = result_string(ratio, "side");
    if (strcmp(side, "keys") != 0 && strcmp(side, "values") != 0) return 0;
    for (int b = 0; b < t->levels; b++)
        if (t->bits[b] == result_real(ratio, "bits")) return fill(&t->ratio[*side == 'v'][b], ratio, "ratio");
    return 0;
}

/* Each side of each layer once and no other; levels that are not asked for now may have been measured, too. */
static int take_numbers(tuner *t, const char *path, const json_t *o, const json_t *run)
{
    size_t i;
    int taken = 0, ratios = 0;
    json_t *one;
    const json_t *rows = json_object_get(o, "rows");
    json_array_foreach(rows, i, one) taken += take_row(t, one);
    json_array_foreach(json_object_get(run, "ratios"), i, one) ratios += take_ratio(t, one);
    if (taken != t->n || json_array_size(rows) != (size_t)t->n)
        return unlike(path, "does not have each side of each layer of this model once");
    if (ratios != 2 * t->levels) return unlike(path, "was measured at fewer bits");
    spread_losses(t);
    return CLI_GO;
}

int tune_read_measured(tuner *t, const char *path)
{
    int code = CLI_GO;
    json_t *o = result_read(path, &code);
    if (!o) return code;
    const json_t *run = json_array_get(json_object_get(o, "runs"), 0);
    if (strcmp(result_string(o, "kind"), "sensitivity") != 0) code = unlike(path, "is no result of kvfold tune");
    if (code == CLI_GO && strcmp(result_string(run, "probe"), t->name[t->probe]) != 0)
        code = unlike(path, "was measured with other codecs; --codec and --probe must be the same");
    if (code == CLI_GO) code = take_origin(t, path, run);
    if (code == CLI_GO) code = take_numbers(t, path, o, run);
    json_decref(o);
    return code;
}
