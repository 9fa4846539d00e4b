/* SPDX-License-Identifier: MIT
 * How many bytes a target is, and what each level of each side takes of them.
 */
#include "tune.h"

#include <jansson.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of 64 tokens of a side at level b. */
static int64_t block_bytes(const tuner *t, const tune_item *item, int b)
{
    kvf_spec_info info;
    const kvf_calibrated_layer *known = kvf_llama_calibration_layer(t->s.calibration, item->layer);
    if (kvf_spec_check_calibrated(t->name[b], item->side, item->dim, known, &info, NULL, 0) != KVF_OK) return 0;
    return (int64_t)info.block_bytes * item->heads;
}

/* Bytes of the whole cache at `tokens` with those layers; negative after a sentence. */
static int64_t cache_bytes(const tuner *t, const char *kv, const char *line, int64_t tokens)
{
    kv_settings s = {.kv = kv, .sink = -1, .recent = -1};
    kv_choice choice;
    kvf_params p;
    kvf_calibration all;
    kvf_layer *layers;
    char error[300] = "";
    if (line) s.layers.item[s.layers.n++] = line;
    if (kv_choice_make(&choice, &s) != CLI_GO) return -1;
    shape_params(&t->s.shape, &choice, &p, &layers, error, sizeof error);
    kvf_calibrated_layer *known = shape_known(&t->s.shape, t->s.calibration, &all, &p);
    int64_t bytes = kvf_bytes(&p, tokens);
    if (bytes < 0) cli_error("%s", error);
    free(known);
    free(layers);
    kv_choice_free(&choice);
    return bytes;
}

static int64_t planned_tokens(const tuner *t)
{
    return t->set->tokens > 0 ? t->set->tokens : t->s.shape.context > 0 ? t->s.shape.context : 2048;
}

/* --bytes: each item's share is what the whole cache takes more with it at that level than at the lowest, so windows are counted as they
 * are. */
static int count_bytes(tuner *t, int64_t most)
{
    char kv[2 * TUNE_NAME + 2], line[3 * TUNE_NAME];
    const char *low = t->name[0];
    snprintf(kv, sizeof kv, "%s/%s", low, low);
    const int64_t base = cache_bytes(t, kv, NULL, planned_tokens(t));
    for (int i = 0; i < t->n && base >= 0; i++)
        for (int b = 1; b < t->levels; b++) {
            tune_item *item = &t->item[i];
            const char *name = t->name[b];
            snprintf(line, sizeof line, "%d=%s/%s", item->layer, item->side == KVF_K ? name : low,
                     item->side == KVF_K ? low : name);
            const int64_t bytes = cache_bytes(t, kv, line, planned_tokens(t));
            if (bytes < 0) return CLI_USAGE;
            item->bytes[b] = bytes - base;
        }
    t->base = base, t->budget = most - base, t->tokens = planned_tokens(t);
    if (base >= 0 && t->budget >= 0) return CLI_GO;
    if (base >= 0)
        cli_error("--bytes: the cache of %lld tokens takes %s with %s everywhere, more than that", (long long)planned_tokens(t),
                  cli_bytes(base), low);
    return CLI_CANNOT;
}

/* --bits: what that many bits would take in all layers; fractions lie between two levels. */
static int count_bits(tuner *t, double bits)
{
    double budget = 0;
    int low = 0;
    for (int b = 0; b < t->levels; b++)
        if (t->bits[b] <= bits) low = b;
    const int high = low + 1 < t->levels ? low + 1 : low;
    const double share = high > low ? (bits - t->bits[low]) / (t->bits[high] - t->bits[low]) : 0;
    if (bits < t->bits[0] || share > 1 || (high == low && bits > t->bits[low])) {
        cli_error("--bits: %g is not between the %d and %d that layers can have", bits, t->bits[0], t->bits[t->levels - 1]);
        return CLI_USAGE;
    }
    for (int i = 0; i < t->n; i++) {
        tune_item *item = &t->item[i];
        for (int b = 0; b < t->levels; b++) item->bytes[b] = block_bytes(t, item, b);
        budget += (1 - share) * (double)item->bytes[low] + share * (double)item->bytes[high];
    }
    t->budget = (int64_t)budget;
    return CLI_GO;
}

static int parse_bytes(const char *text, int64_t *bytes)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"", 1}, {"B", 1}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}};
    char *end;
    double x = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (end == text || strcmp(end, units[i].unit) != 0) continue;
        x *= units[i].factor;
        if (!(x >= 1 && x < 0x1p62)) break;
        *bytes = (int64_t)x;
        return CLI_GO;
    }
    cli_error("--bytes: '%s' is no size; write it as 24MiB", text);
    return CLI_USAGE;
}

int tune_find_budget(tuner *t)
{
    int64_t bytes = 0;
    if (!t->set->bytes) return count_bits(t, t->set->bits);
    int code = parse_bytes(t->set->bytes, &bytes);
    return code == CLI_GO ? count_bytes(t, bytes) : code;
}
