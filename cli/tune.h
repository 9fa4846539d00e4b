/* SPDX-License-Identifier: MIT
 * The parts of `kvfold tune`: how much each side of each layer suffers from few bits, who gets more of them, and what that gains.
 *
 *   measured   s_i    mean KLD when side i (keys or values of one layer) alone is coded at a probe level, everything else exact
 *              r(b)   mean KLD when that side of all layers is coded at b bits, over that at the probe level
 *   predicted  sum over i of s_i r(b_i): losses of layers add up as long as they are small
 *   greedy     from the fewest bits on, the step that gains most for its bytes, while any fits */
#ifndef KVFOLD_CLI_TUNE_H
#define KVFOLD_CLI_TUNE_H

#include "quality.h"

struct json_t;

enum { TUNE_LEVELS = 8, TUNE_NAME = 64 };

/* One side of one layer. Levels ascend in bits. */
typedef struct tune_item {
    int32_t layer;
    kvf_side side;
    int32_t heads, dim;
    double sensitivity; /* s_i */
    int64_t bytes[TUNE_LEVELS];
    double loss[TUNE_LEVELS]; /* predicted */
    int level;                /* chosen */
} tune_item;

typedef struct tune_settings {
    const char *model, *slice, *codec, *bytes, *profile, *rule, *measured;
    cli_list files;
    double bits;
    int64_t context, score, chunks, held_out, threads, tokens, least, most, probe, seed;
    bool verbose;
    kv_settings kv;
    result_settings out;
} tune_settings;

/* What sensitivities are of. */
typedef struct tune_origin {
    char model[RESULT_HASH], text[RESULT_HASH],
        calibration[RESULT_HASH]; /* hashes, 16 hexadecimal digits; calibration "": none */
    int32_t context, score;
    int64_t chunks; /* of each text, from its beginning: what lies behind them was not measured */
} tune_origin;

typedef struct tuner {
    tune_settings *set;
    session s;
    quality_settings q;
    quality_input text; /* all chunks */
    tune_origin origin;
    tune_item *item; /* keys and values of each layer in turn */
    int n;
    int bits[TUNE_LEVELS], levels, probe;
    char name[TUNE_LEVELS][TUNE_NAME];
    double ratio[2][TUNE_LEVELS]; /* r(b) by side */
    int64_t budget;               /* bytes of all items */
    int64_t base;                 /* bytes of the cache besides those; 0 where only items are counted */
    int64_t tokens;               /* of the cache whose bytes are counted; 0: bytes are of 64 tokens of all items */
    bool finished;                /* all was measured: only writing is left */
    struct json_t *result;
    int run;
} tuner;

/* ---- tune_items.c ------------------------------------------------------------------------------------------------------------ */

/* Fills t->item, once the model is read; and levels, at least `fewest`, of the family. CLI_GO or an exit code after a sentence. */
int tune_list_items(tuner *t);
int tune_find_levels(tuner *t, int fewest);

/* Sensitivities of a model's layers. */
typedef struct tune_losses {
    float *loss; /* [n_layers][2] of keys, of values; 0: the layer has none of its own. Freed by the caller */
    int32_t n_layers, context;
    char codec[TUNE_NAME]; /* that one side of one layer was coded with */
} tune_losses;

/* Measures them on the first `context` tokens of the text that is called `path`, with the codec that tune probes with. CLI_GO, CLI_DONE when
 * interrupted, or an exit code after a sentence; there is something to free after CLI_GO alone. */
int tune_alone(tune_losses *out, const char *model, const char *path, const cli_text *text, int64_t context, int64_t threads);

/* ---- tune_budget.c ----------------------------------------------------------------------------------------------------------- */

/* Bytes of all items at all levels, and how many they may take together. CLI_GO or an exit code after a sentence. */
int tune_find_budget(tuner *t);

/* ---- tune_measure.c ---------------------------------------------------------------------------------------------------------- */

/* Fills t->origin, once text and model are read. CLI_GO or an exit code after a sentence. */
int tune_find_origin(tuner *t);
/* Sensitivities and ratios: from chunks of the text, or from a result that was saved. The latter must be of the same origin, but for the
 * number of chunks, which is taken from it. */
int tune_measure(tuner *t);
int tune_read_measured(tuner *t, const char *path);

/* An arm of `kv`, and of the one --kv-layer `line` (NULL: none), which the caller keeps; or of the text of a profile. */
int tune_add_arm(const tuner *t, quality_arm *arm, const char *name, const char *kv, const char *line, const char *text);
/* Chunks first .. first + n - 1 of each text, in the order of texts. The list is freed by the caller, tokens stay those of `all`. */
quality_input tune_chunks(const quality_input *all, int first, int n);
/* Runs the arms over chunks first .. first + n - 1 of each text. CLI_GO, CLI_DONE when interrupted, or an exit code. */
int tune_run_arms(tuner *t, quality_run *run, int first, int n);
void tune_free_arms(quality_run *run);
double tune_loss_of(const quality_arm *arm);

/* ---- tune_judge.c ------------------------------------------------------------------------------------------------------------ */

/* Sets the levels by a rule. False when the target is below the lowest. */
bool tune_choose(tuner *t, const char *rule);
/* May a tuned arm of so many bytes of items be held against the same bits in all layers of so many: is it not larger, but for 1 % of all? */
bool tune_same_bytes(const tuner *t, int64_t tuned, int64_t even);
/* Both rules against the same bits in all layers, at the same bytes, on chunks that were not measured; notes and gains go into the run of a result. */
int tune_judge(tuner *t, struct json_t *run);

/* ---- tune_solve.c ------------------------------------------------------------------------------------------------------------ */

/* Chooses levels so that the sum of bytes is at most `budget`. False when even the lowest levels take more. */
bool tune_greedy(tune_item *items, int n, int levels, int64_t budget);

/* RateQuant (arXiv 2605.06675): bits[i] = mean + (ln w_i - mean of ln w) / ln beta, cut to the choices, to the nearest of them, then single
 * steps, first up and then down, until the sum is round(mean * n) or no step is left. choices[n_choices] ascend. */
void tune_ratequant(const double *w, int n, double mean, double beta, const int *choices, int n_choices, int *bits);

int64_t tune_bytes(const tune_item *items, int n);
double tune_loss(const tune_item *items, int n);

/* ---- tune_profile.c ---------------------------------------------------------------------------------------------------------- */

/* Appends a profile of the chosen levels, layers of equal codecs together, but for the hash of a model; name[level] of the codecs. Items
 * come in pairs, keys before values. */
void tune_profile(const tune_item *items, int n, const char name[][TUNE_NAME], cli_text *text);

#endif
