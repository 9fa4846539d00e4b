/* SPDX-License-Identifier: MIT
 * Codecs of single layers: "0,1,29=q8_0;5-8=kivi4/kivi2".
 *   overrides = entry { ";" entry };  entry = item { "," item } "=" spec [ "/" spec ];  item = layer [ "-" layer ] */
#include "adapter.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct override {
    char k[KVFI_HOST_SPEC], v[KVFI_HOST_SPEC];
} override;

static int copy_spec(kvf_llama *h, char *to, const char *from, size_t n)
{
    if (!n || n >= KVFI_HOST_SPEC)
        return kvfi_host_fail(h, KVF_E_SPEC, "layer overrides: \"%.*s\" is no codec (1 to %d characters)",
                              (int)(n < 200 ? n : 200), from, KVFI_HOST_SPEC - 1);
    memcpy(to, from, n);
    to[n] = 0;
    return KVF_OK;
}

/* spec or spec/spec, up to end. */
static int parse_specs(kvf_llama *h, const char *text, const char *end, override *o)
{
    const char *slash = memchr(text, '/', (size_t)(end - text));
    int rc = copy_spec(h, o->k, text, (size_t)((slash ? slash : end) - text));
    if (rc || !slash) {
        memcpy(o->v, o->k, sizeof o->v);
        return rc;
    }
    return copy_spec(h, o->v, slash + 1, (size_t)(end - slash - 1));
}

/* A layer number at *at, which moves on. -1: none. */
static int32_t parse_number(const char **at)
{
    if (!isdigit((unsigned char)**at)) return -1;
    char *end;
    long n = strtol(*at, &end, 10);
    *at = end;
    return n > INT32_MAX ? INT32_MAX : (int32_t)n;
}

static kvfi_host_layer *find_layer(kvf_llama *h, int32_t il)
{
    for (int32_t i = 0; i < h->n_attn; i++)
        if (h->attn[i].il == il) return &h->attn[i];
    return NULL;
}

static int apply(kvf_llama *h, int32_t first, int32_t last, const override *o)
{
    if (last < first || last >= h->n_layers)
        return kvfi_host_fail(h, KVF_E_ARG, "layer overrides: layers %d to %d; the model has 0 to %d", (int)first, (int)last,
                              (int)h->n_layers - 1);
    if (!h->n_attn) return KVF_OK; /* before the probe only the grammar is checked */
    for (int32_t il = first; il <= last; il++) {
        kvfi_host_layer *l = find_layer(h, il);
        if (!l) return kvfi_host_fail(h, KVF_E_ARG, "layer overrides: layer %d has no attention", (int)il);
        if (l->share >= 0)
            return kvfi_host_fail(h, KVF_E_ARG, "layer overrides: layer %d reads the keys and values of layer %d; set that one",
                                  (int)il, (int)h->attn[l->share].il);
        memcpy(l->k, o->k, sizeof l->k);
        memcpy(l->v, o->v, sizeof l->v);
    }
    return KVF_OK;
}

static int parse_entry(kvf_llama *h, const char *entry, const char *end)
{
    override o;
    const char *equals = memchr(entry, '=', (size_t)(end - entry)), *at = entry;
    if (!equals)
        return kvfi_host_fail(h, KVF_E_ARG, "layer overrides: \"%.*s\" has no '='; as in 0,1,29=q8_0;5=kivi4/kivi2",
                              (int)(end - entry), entry);
    int rc = parse_specs(h, equals + 1, end, &o);
    while (!rc) {
        int32_t first = parse_number(&at), last = first;
        if (first >= 0 && *at == '-') at++, last = parse_number(&at);
        if (first < 0 || last < 0 || (at != equals && *at != ','))
            return kvfi_host_fail(h, KVF_E_ARG, "layer overrides: \"%.*s\" is no list of layers; as in 0,1,5-8",
                                  (int)(equals - entry), entry);
        rc = apply(h, first, last, &o);
        if (at == equals) break;
        at++;
    }
    return rc;
}

/* Checks the overrides and, once the layers are known, notes them there. Later entries win. */
int kvfi_host_layer_specs(kvf_llama *h, const char *text)
{
    int rc = KVF_OK;
    for (const char *entry = text; entry && *entry && !rc;) {
        const char *end = strchr(entry, ';');
        rc = parse_entry(h, entry, end ? end : entry + strlen(entry));
        entry = end ? end + 1 : NULL;
    }
    return rc;
}
