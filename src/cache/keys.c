/* SPDX-License-Identifier: MIT
 * What is said of the keys of a layer: by which rule they are centred, and whether that matters. */
#include "base/text.h"
#include "cache/cache.h"

#include <string.h>

/* Above this share of the mean, the codes of an uncentred vector describe little but the mean: each factor of 4 in energy costs what
 * varies one bit. The two models measured here have 0.35 to 0.88, and 0.99 and more with a constant added (tests/host/test_key_bias). */
static const double RISKY = 0.95;

static double mean_share(const float *x, int32_t from, int32_t dim)
{
    double energy = 0, of_mean = 0;
    for (int32_t d = 0; d < dim; d++) {
        double sum = 0;
        for (int32_t t = from; t < KVF_BLOCK; t++) {
            sum += (double)x[t * dim + d];
            energy += (double)x[t * dim + d] * (double)x[t * dim + d];
        }
        of_mean += sum * sum;
    }
    return energy > 0 ? of_mean / (energy * (KVF_BLOCK - from)) : 0;
}

void kvfi_watch_keys(const kvf_cache *c, kvfi_store *st, const float *x)
{
    const int32_t from = c->g.sink < KVF_BLOCK ? c->g.sink : 0;
    const double share = mean_share(x, from, st->k.head_dim);
    if (share > st->mean_share) st->mean_share = share;
}

/* Codes that share one scale over channels suffer from a mean; a scale for each channel (KIVI), or 8 bits, do not. */
static int risky(const kvfi_store *st)
{
    const kvf_part *k = &st->k;
    const int coarse = k->kind != KVF_KIND_HALF && k->kind != KVF_KIND_CHANNEL && k->bits < 8;
    return coarse && !k->centre && !k->block_mean && st->mean_share > RISKY;
}

/* Appends "3" or "3-7" to a list of runs of layers, "..." where it would get too long. */
static void add_run(char *list, size_t size, int32_t first, int32_t last)
{
    const size_t used = strlen(list);
    const char *comma = used ? ", " : "";
    if (used + 32 > size) {
        if (list[used - 1] != '.') kvfi_sentence(list + used, size - used, ", ...");
    } else if (first == last) {
        kvfi_sentence(list + used, size - used, "%s%d", comma, (int)first);
    } else {
        kvfi_sentence(list + used, size - used, "%s%d-%d", comma, (int)first, (int)last);
    }
}

typedef int (*question)(const kvfi_store *st);

static int asked(const kvf_cache *c, int32_t i, question q)
{
    return i >= 0 && i < c->g.n_stores && q(&c->g.stores[i]);
}

/* Warns of the layers that the question holds for, if any: "layers 0-3, 7 (5 in all): ...". */
static void warn_of(const kvf_cache *c, question q, const char *what)
{
    char text[400], list[120] = "";
    int32_t n = 0, first = 0;
    for (int32_t i = 0; i < c->g.n_stores; i++) {
        if (!asked(c, i, q)) continue;
        if (!asked(c, i - 1, q)) first = c->g.stores[i].layer;
        if (!asked(c, i + 1, q)) add_run(list, sizeof list, first, c->g.stores[i].layer);
        n++;
    }
    if (!n || !c->log) return;
    kvfi_sentence(text, sizeof text, "layers %s (%d in all): %s", list, (int)n, what);
    c->log(c->log_user, KVF_LOG_WARN, text);
}

static int newly_risky(const kvfi_store *st)
{
    return st->keys_known == 1 && risky(st);
}

/* Layers with a window may seal their first block later than others: each layer is named once. */
void kvfi_say_risky(kvf_cache *c)
{
    warn_of(
        c, newly_risky,
        "nearly all of a key is a constant, and its codec does not take it out: expect bad text; centre=prompt or kivi keys do");
    for (int32_t i = 0; i < c->g.n_stores; i++)
        if (c->g.stores[i].keys_known) c->g.stores[i].keys_known = 2;
}

static int newly_unturned(const kvfi_store *st)
{
    return st->unturned_said == 1;
}

/* Once a cache, not once a sequence. */
void kvfi_say_unturned(kvf_cache *c)
{
    warn_of(c, newly_unturned,
            "the keys do not turn as the RoPE description says; their centre is the plain mean of the prompt's keys");
    for (int32_t i = 0; i < c->g.n_stores; i++)
        if (c->g.stores[i].unturned_said) c->g.stores[i].unturned_said = 2;
}

static int turns_unknown(const kvfi_store *st)
{
    return st->unknown_turns;
}

void kvfi_say_unknown_turns(const kvf_cache *c)
{
    warn_of(c, turns_unknown,
            "how RoPE turns the keys is not known; every block keeps the mean of its keys (centre=block) in place of one from "
            "the prompt");
}

int kvf_keys(const kvf_cache *c, int32_t layer, kvf_keys_t *keys)
{
    if (!c || !keys || layer < 0 || layer >= c->g.n_layers) return KVF_E_ARG;
    if (keys->size != sizeof *keys) return KVF_E_VERSION;
    const kvfi_store *st = &c->g.stores[c->g.layers[layer].store];
    *keys = (kvf_keys_t){.size = sizeof *keys, .mean_share = st->mean_share, .risky = risky(st)};
    if (st->k.block_mean)
        keys->rule = KVF_KEYS_BLOCK_MEAN;
    else if (st->k.centre)
        keys->rule = !st->self ? KVF_KEYS_FILE : st->n_pairs && !st->unturned ? KVF_KEYS_UNROTATED : KVF_KEYS_PLAIN_MEAN;
    return KVF_OK;
}
