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

enum { RULES = 2, UNIFORM = 2, ARMS = UNIFORM + RULES * (1 + UNIFORM) };

/* A gain is one at the same bytes where the tuned arm may take at most this much more. */
static const double MORE_BYTES = 0.01;

/* Beside each arm of the run: what it is, and what it was allotted. */
typedef struct judged {
    const char *rule; /* NULL: the same bits in all layers */
    int64_t budget;   /* of a tuned arm; what one of the same bits takes */
} judged;

typedef struct judgement {
    quality_run run;
    judged of[ARMS];
} judgement;

/* The same bits in all layers: keys get the larger half of a fraction. Levels of a size at most the budget; false when there is none. */
static bool uniform(const tuner *t, int more, char *kv, size_t size, int64_t *bytes)
{
    for (int sum = 2 * (t->levels - 1); sum >= 0; sum--) {
        const int k = (sum + 1) / 2 + more, v = sum / 2 - more;
        if (k >= t->levels || v < 0) continue;
        *bytes = 0;
        for (int i = 0; i < t->n; i++) *bytes += t->item[i].bytes[t->item[i].side == KVF_K ? k : v];
        if (*bytes > t->budget) continue;
        snprintf(kv, size, "%s/%s", t->name[k], t->name[v]);
        return true;
    }
    return false;
}

bool tune_same_bytes(const tuner *t, int64_t tuned, int64_t even)
{
    return (double)(t->base + tuned) <= (1 + MORE_BYTES) * (double)(t->base + even);
}

static int add_uniform(tuner *t, judgement *j, int more)
{
    char kv[2 * TUNE_NAME + 2];
    const int at = j->run.n_arms;
    j->of[at] = (judged){.rule = NULL};
    if (!uniform(t, more, kv, sizeof kv, &j->of[at].budget)) return CLI_GO;
    const int code = tune_add_arm(t, &j->run.arm[at], kv, kv, NULL, NULL);
    j->run.n_arms += code == CLI_GO;
    return code;
}

/* A rule at the bytes of arm `even`; -1: at those of the target. */
static int add_tuned(tuner *t, judgement *j, const char *rule, int even)
{
    char name[CLI_ARM_NAME];
    cli_text lines = {0};
    const int at = j->run.n_arms;
    const int64_t target = t->budget;
    if (even >= 0) t->budget = j->of[even].budget;
    j->of[at] = (judged){rule, t->budget};
    const bool fits = tune_choose(t, rule);
    t->budget = target;
    if (!fits) return CLI_GO;
    snprintf(name, sizeof name, even < 0 ? "%s" : "%s at the bytes of %.150s", rule, even < 0 ? "" : j->run.arm[even].name);
    tune_profile(t->item, t->n, (const char(*)[TUNE_NAME])t->name, &lines);
    const int code = tune_add_arm(t, &j->run.arm[at], name, NULL, NULL, lines.data);
    j->run.n_arms += code == CLI_GO;
    cli_text_free(&lines);
    return code;
}

/* Two that take the same bytes are met by one tuned arm. */
static bool first_of_its_bytes(const judgement *j, int even)
{
    for (int i = 0; i < even; i++)
        if (j->of[i].budget == j->of[even].budget) return false;
    return true;
}

/* The same bits everywhere, as the target says and with one more for keys and one less for values; both rules at the target, and at the
 * bytes of each arm of the same bits that the target is above. */
static int add_arms(tuner *t, judgement *j)
{
    static const char *const rules[RULES] = {"greedy", "ratequant"};
    int code = CLI_GO;
    for (int more = 0; more < UNIFORM && code == CLI_GO; more++) code = add_uniform(t, j, more);
    const int even = j->run.n_arms;
    for (int r = 0; r < RULES && code == CLI_GO; r++) {
        code = add_tuned(t, j, rules[r], -1);
        for (int i = 0; i < even && code == CLI_GO; i++)
            if (!tune_same_bytes(t, t->budget, j->of[i].budget) && first_of_its_bytes(j, i)) code = add_tuned(t, j, rules[r], i);
    }
    return code;
}

/* A share of what the same bits everywhere lose, which an exact codec does not: null then, and where nothing bounds it. */
static json_t *share_of(double x, double mean, bool known)
{
    return known && mean > 0 && isfinite(x / mean) ? json_real(x / mean) : json_null();
}

/* At more bytes a smaller loss is no gain: both are told, and no share. */
static void say_apart(json_t *run, const quality_arm *tuned, const quality_arm *even)
{
    result_add_note(run, "held out: %s reads %.2e at %.2f bits, %s in all layers %.2e at %.2f: other bytes, so no share is told",
                    tuned->name, tune_loss_of(tuned), tuned->bits_code, even->name, tune_loss_of(even), even->bits_code);
}

static void say_gain(const tuner *t, const quality_run *q, json_t *run, const char *rule, const quality_arm *tuned,
                     const quality_arm *even)
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
    json_array_append_new(gains, json_pack("{s:s, s:s, s:f, s:f, s:o, s:o, s:f, s:f}", "rule", rule, "uniform", even->name, "kld",
                                           tune_loss_of(tuned), "kld_uniform", mean, "gain", share_of(gain.mean, mean, true),
                                           "low", share_of(gain.low, mean, bounded), "bits", tuned->bits_code, "bits_uniform",
                                           even->bits_code));
}

/* An arm at the target is held against all, one at an even arm's bytes against those of these bytes. */
static void say_pair(const tuner *t, const judgement *j, json_t *run, int tuned, int even)
{
    const judged *a = &j->of[tuned], *b = &j->of[even];
    const quality_arm *arm = j->run.arm;
    if (!a->rule || b->rule) return;
    if (a->budget == b->budget || (a->budget == t->budget && tune_same_bytes(t, a->budget, b->budget)))
        say_gain(t, &j->run, run, a->rule, &arm[tuned], &arm[even]);
    else if (a->budget == t->budget)
        say_apart(run, &arm[tuned], &arm[even]);
}

int tune_judge(tuner *t, json_t *result_run)
{
    judgement j = {.run = {.arm = cli_alloc(ARMS, sizeof *j.run.arm)}};
    int code = add_arms(t, &j);
    if (code == CLI_GO) code = tune_run_arms(t, &j.run, (int)t->origin.chunks, (int)t->set->held_out);
    for (int i = 0; i < j.run.n_arms && code == CLI_GO; i++)
        for (int k = 0; k < j.run.n_arms; k++) say_pair(t, &j, result_run, i, k);
    tune_free_arms(&j.run);
    return code;
}
