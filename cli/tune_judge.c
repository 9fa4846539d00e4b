/* SPDX-License-Identifier: MIT
 * Levels by one rule or the other, and what they gain on text that was not measured.
 */
#include "tune.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The closed form knows bits, not bytes: the mean is lowered until it fits. */
static bool choose_ratequant(tuner *t)
{
    double *w = cli_alloc((size_t)t->n, sizeof *w);
    int *bits = cli_alloc((size_t)t->n, sizeof *bits);
    const double beta = fmax(t->ratio[0][t->probe] / t->ratio[0][t->probe + 1 < t->levels ? t->probe + 1 : t->probe], 1.5);
    bool fits = false;
    for (int i = 0; i < t->n; i++) w[i] = t->item[i].sensitivity;
    for (int goal = t->n * t->bits[t->levels - 1]; !fits && goal >= t->n * t->bits[0]; goal--) {
        tune_ratequant(w, t->n, (double)goal / t->n, beta, t->bits, t->levels, bits);
        for (int i = 0; i < t->n; i++)
            for (int b = 0; b < t->levels; b++)
                if (t->bits[b] == bits[i]) t->item[i].level = b;
        fits = tune_bytes(t->item, t->n) <= t->budget;
    }
    free(w), free(bits);
    return fits;
}

bool tune_choose(tuner *t, const char *rule)
{
    return strcmp(rule, "ratequant") == 0 ? choose_ratequant(t) : tune_greedy(t->item, t->n, t->levels, t->budget);
}

/* ---- judging ----------------------------------------------------------------------------------------------------------------- */

/* The same bits in all layers: keys get the larger half of a fraction. Levels of a size at most the budget; false when there is none. */
static bool uniform(const tuner *t, int more, char *kv, size_t size)
{
    for (int sum = 2 * (t->levels - 1); sum >= 0; sum--) {
        const int k = (sum + 1) / 2 + more, v = sum / 2 - more;
        int64_t bytes = 0;
        if (k >= t->levels || v < 0) continue;
        for (int i = 0; i < t->n; i++) bytes += t->item[i].bytes[t->item[i].side == KVF_K ? k : v];
        if (bytes > t->budget) continue;
        snprintf(kv, size, "%s/%s", t->name[k], t->name[v]);
        return true;
    }
    return false;
}

/* A share of what the same bits everywhere lose, which an exact codec does not: null then, and where nothing bounds it. */
static json_t *share_of(double x, double mean, bool known)
{
    return known && mean > 0 && isfinite(x / mean) ? json_real(x / mean) : json_null();
}

static void say_gain(const tuner *t, const quality_run *q, json_t *run, const quality_arm *tuned, const quality_arm *even)
{
    const quality_interval gain = quality_difference(q, even, tuned, 0.99, (uint64_t)t->set->seed);
    const double mean = tune_loss_of(even);
    const bool bounded = quality_bounds(q, even->n_points < tuned->n_points ? even->n_points : tuned->n_points);
    char share[32] = "no share", bounds[100] = "not bounded, as the positions are too few";
    if (mean > 0) snprintf(share, sizeof share, "%.0f %% less", 100 * gain.mean / mean);
    if (bounded) snprintf(bounds, sizeof bounds, "between %.1e and %.1e (99 %%, paired)", gain.low, gain.high);
    result_add_note(run, "held out: %s reads %.2e at %.2f bits, %s in all layers %.2e at %.2f: %s; the difference is %s",
                    tuned->name, tune_loss_of(tuned), tuned->bits_code, even->name, mean, even->bits_code, share, bounds);
    json_t *gains = json_object_get(run, "gains");
    json_array_append_new(gains, json_pack("{s:s, s:s, s:f, s:f, s:o, s:o, s:f, s:f}", "rule", tuned->name, "uniform", even->name,
                                           "kld", tune_loss_of(tuned), "kld_uniform", mean, "gain",
                                           share_of(gain.mean, mean, true), "low", share_of(gain.low, mean, bounded), "bits",
                                           tuned->bits_code, "bits_uniform", even->bits_code));
}

/* Both rules, and the same bits everywhere: as the target says, and with one more for keys and one less for values. */
int tune_judge(tuner *t, json_t *result_run)
{
    static const char *const rules[] = {"greedy", "ratequant"};
    quality_run run = {.arm = cli_alloc(4, sizeof *run.arm)};
    cli_text lines[2] = {{0}};
    char kv[2 * TUNE_NAME + 2];
    int code = CLI_GO;
    for (int i = 0; i < 2 && code == CLI_GO; i++) {
        if (!tune_choose(t, rules[i])) continue;
        tune_profile(t->item, t->n, (const char(*)[TUNE_NAME])t->name, &lines[i]);
        code = tune_add_arm(t, &run.arm[run.n_arms], rules[i], NULL, NULL, lines[i].data);
        run.n_arms += code == CLI_GO;
    }
    const int tuned = run.n_arms;
    for (int more = 0; more < 2 && code == CLI_GO; more++) {
        if (!uniform(t, more, kv, sizeof kv)) continue;
        code = tune_add_arm(t, &run.arm[run.n_arms], kv, kv, NULL, NULL);
        run.n_arms += code == CLI_GO;
    }
    if (code == CLI_GO) code = tune_run_arms(t, &run, (int)t->origin.chunks, (int)t->set->held_out);
    for (int i = 0; i < tuned && code == CLI_GO; i++)
        for (int j = tuned; j < run.n_arms; j++) say_gain(t, &run, result_run, &run.arm[i], &run.arm[j]);
    tune_free_arms(&run);
    for (int i = 0; i < 2; i++) cli_text_free(&lines[i]);
    return code;
}
