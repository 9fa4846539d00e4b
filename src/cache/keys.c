/* SPDX-License-Identifier: MIT
 * What is said of the keys of a layer: by which rule they are centred, and whether that matters. */
#include "base/text.h"
#include "cache/cache.h"

#include <string.h>

/* Above this share of the mean, the codes of an uncentred vector describe little but the mean: what varies is coded as if with one
 * bit less for every factor of 4 in energy. */
static const double RISKY = 0.8;

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

void kvfi_say_risky(kvf_cache *c)
{
    char text[300] = "";
    size_t used = 0;
    int32_t n = 0;
    for (int i = 0; c->log && i < c->g.n_stores; i++) {
        if (!risky(&c->g.stores[i])) continue;
        if (used + 8 < sizeof text - 160) {
            kvfi_sentence(text + used, sizeof text - used, "%s%d", n ? ", " : "layers ", (int)c->g.stores[i].layer);
            used = strlen(text);
        } else if (strcmp(text + used - 3, "...")) {
            kvfi_sentence(text + used, sizeof text - used, ", ...");
            used = strlen(text);
        }
        n++;
    }
    if (!n) return;
    kvfi_sentence(text + used, sizeof text - used,
                  " (%d in all): nearly all of a key is a constant, and its codec does not take it out: expect bad text; "
                  "centre=prompt or kivi keys do", (int)n);
    c->log(c->log_user, KVF_LOG_WARN, text);
}

int kvf_keys(const kvf_cache *c, int32_t layer, kvf_keys_t *keys)
{
    if (!c || !keys || layer < 0 || layer >= c->g.n_layers) return KVF_E_ARG;
    if (keys->size != sizeof *keys) return KVF_E_VERSION;
    const kvfi_store *st = &c->g.stores[c->g.layers[layer].store];
    *keys = (kvf_keys_t){.size = sizeof *keys, .mean_share = st->mean_share, .risky = risky(st)};
    if (st->k.block_mean) keys->rule = KVF_KEYS_BLOCK_MEAN;
    else if (st->k.centre) keys->rule = st->n_pairs && !st->unturned ? KVF_KEYS_UNROTATED : KVF_KEYS_PLAIN_MEAN;
    return KVF_OK;
}
