/* SPDX-License-Identifier: MIT
 * Spec strings of codecs and policies: name, number of bits, options, as in "kivi2:group=64". */
#include "base/text.h"
#include "codec/codec.h"
#include "codec/shared/part.h"

#include <stdio.h>
#include <string.h>

#define SPEC_MAX 199 /* characters of a spec: a policy's, with every option written out */

/* One of each. */
static const char *list_all(const kvfi_spec_names *names, char *list, size_t size)
{
    size_t used = 0;
    list[0] = '\0';
    for (int32_t i = 0; names->name(i); i++) {
        const char *first = names->examples(i);
        int n = snprintf(list + used, size - used, "%s%.*s", i ? " " : "", (int)strcspn(first, " "), first);
        if (n < 0 || (size_t)n >= size - used) break;
        used += (size_t)n;
    }
    return list;
}

static int unknown(const kvfi_spec_names *names, const char *text, size_t n, char *error, size_t size)
{
    char list[256];
    if (n)
        kvfi_sentence(error, size, "%s '%s' does not exist; there are: %s", names->noun, kvfi_show(text, n).text,
                      list_all(names, list, sizeof list));
    else
        kvfi_sentence(error, size, "the %s spec has no name; there are: %s", names->noun, list_all(names, list, sizeof list));
    return KVF_E_SPEC;
}

/* Digits only, no sign, no leading zero. -1 when it is anything else or too large. */
static int32_t decimal(const char *text, size_t n)
{
    int32_t value = 0;
    if (!n || n > 6 || (text[0] == '0' && n > 1)) return -1;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        value = value * 10 + (text[i] - '0');
    }
    return value;
}

/* A whole number, -2 for one with a decimal point and digits on either side, -1 for anything else. */
static int32_t number(const char *text, size_t n)
{
    const char *point = memchr(text, '.', n);
    const size_t whole = point ? (size_t)(point - text) : n;
    if (!point) return decimal(text, n);
    if (n > 7 || decimal(text, whole) < 0 || whole + 1 == n) return -1;
    for (size_t i = whole + 1; i < n; i++)
        if (text[i] < '0' || text[i] > '9') return -1;
    return -2;
}

/* The longest registered name that begins text[n] and leaves nothing or, where names end in one, a number. -1: none. */
static int32_t match(const kvfi_spec_names *names, const char *text, size_t n, kvf_spec *spec)
{
    int32_t best = -1;
    size_t best_length = 0;
    for (int32_t i = 0; names->name(i); i++) {
        size_t length = strlen(names->name(i));
        if (length > n || length < best_length || memcmp(names->name(i), text, length)) continue;
        if (length < n && (!names->numbered || number(text + length, n - length) == -1)) continue;
        best = i;
        best_length = length;
    }
    if (best < 0) return -1;
    spec->bits = best_length < n ? number(text + best_length, n - best_length) : -1;
    memcpy(spec->number, text + best_length, n - best_length);
    return best;
}

static int add_option(kvf_spec *spec, const char *text, size_t n, char *error, size_t size)
{
    const char *equals = memchr(text, '=', n);
    size_t key = equals ? (size_t)(equals - text) : n, value = equals ? n - key - 1 : 0;
    if (!n) {
        kvfi_sentence(error, size, "%s '%s': nothing follows a ':' or ','; write KEY=VALUE there", spec->noun, spec->name);
        return KVF_E_SPEC;
    }
    if (!key || !value) {
        kvfi_sentence(error, size,
                      equals && key ? "%s '%s': option '%s' has no value; write KEY=VALUE"
                                    : "%s '%s': '%s' is not an option; write KEY=VALUE",
                      spec->noun, spec->name, kvfi_show(text, n).text);
        return KVF_E_SPEC;
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] > ' ' && text[i] < 127) continue;
        kvfi_sentence(error, size, "%s '%s': option '%s' holds a character that no option has", spec->noun, spec->name,
                      kvfi_show(text, n).text);
        return KVF_E_SPEC;
    }
    if (spec->n_options == (int32_t)(sizeof spec->option / sizeof *spec->option)) {
        kvfi_sentence(error, size, "%s '%s': more than %d options", spec->noun, spec->name, (int)spec->n_options);
        return KVF_E_SPEC;
    }
    if (key >= sizeof spec->option->key || value >= sizeof spec->option->value) {
        kvfi_sentence(error, size, "%s '%s': option '%s' is too long", spec->noun, spec->name, kvfi_show(text, n).text);
        return KVF_E_SPEC;
    }
    char *to = spec->option[spec->n_options].key;
    memcpy(to, text, key);
    memcpy(spec->option[spec->n_options].value, equals + 1, value);
    if (kvfi_spec_get(spec, to, NULL)) {
        kvfi_sentence(error, size, "%s '%s': option '%s' is given twice", spec->noun, spec->name, kvfi_show(text, key).text);
        return KVF_E_SPEC;
    }
    spec->n_options++;
    return KVF_OK;
}

int kvfi_spec_parse(const char *text, const kvfi_spec_names *names, kvf_spec *spec, int32_t *which, char *error, size_t size)
{
    size_t n = strlen(text);
    memset(spec, 0, sizeof *spec);
    spec->noun = names->noun;
    if (n > SPEC_MAX) {
        kvfi_sentence(error, size, "%s spec '%s...' has %zu characters; at most %d are allowed", names->noun,
                      kvfi_show(text, 24).text, n, SPEC_MAX);
        return KVF_E_SPEC;
    }
    const char *colon = memchr(text, ':', n);
    size_t name = colon ? (size_t)(colon - text) : n;
    *which = match(names, text, name, spec);
    if (*which < 0) return unknown(names, text, name, error, size);
    snprintf(spec->name, sizeof spec->name, "%s", names->name(*which));
    if (!colon) return KVF_OK;
    for (const char *at = colon + 1, *end = text + n;;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        int rc = add_option(spec, at, (size_t)((comma ? comma : end) - at), error, size);
        if (rc) return rc;
        if (!comma) return KVF_OK;
        at = comma + 1;
    }
}

static const char *codec_name(int32_t i)
{
    return kvfi_codec_at(i) ? kvfi_codec_at(i)->name : NULL;
}

static const char *codec_examples(int32_t i)
{
    return kvfi_codec_at(i)->examples;
}

/* A seed that changes nothing would be taken for another draw. */
static int check_seed(const kvf_spec *spec, const kvf_part *part, char *error, size_t size)
{
    const char *seed = kvfi_spec_get(spec, "seed", "0");
    if (!strcmp(seed, "0") || kvfi_part_draws(part)) return KVF_OK;
    kvfi_sentence(error, size,
                  "codec '%s': seed=%s changes nothing here: no rotation or sketch is drawn (rot=h1, h2 and haar are)",
                  spec->name, seed);
    return KVF_E_SPEC;
}

int kvfi_part_setup_calibrated(const char *text, kvf_side side, int32_t dim, const kvf_calibrated_layer *calibrated,
                               kvf_part *part, char *error, size_t size)
{
    if (!text || !part || (side != KVF_K && side != KVF_V)) {
        kvfi_sentence(error, size, "a codec needs a spec and a side, keys or values");
        return KVF_E_ARG;
    }
    if (dim < 1 || dim > KVFI_DIM_MAX) {
        kvfi_sentence(error, size, "head size %d is not supported: 1 to %d are", (int)dim, KVFI_DIM_MAX);
        return KVF_E_ARG;
    }
    kvf_spec spec;
    int32_t which;
    const kvfi_spec_names names = {.noun = "codec", .name = codec_name, .examples = codec_examples, .numbered = 1};
    int rc = kvfi_spec_parse(text, &names, &spec, &which, error, size);
    if (rc) return rc;
    const kvf_codec *codec = kvfi_codec_at(which);
    if (!(codec->sides >> side & 1)) {
        kvfi_sentence(error, size, "codec '%s' is a method for %s: it does not work for %s", codec->name,
                      side == KVF_K ? "values" : "keys", side == KVF_K ? "keys" : "values");
        return KVF_E_UNSUPPORTED;
    }
    kvf_part made = {.codec = codec, .side = side, .calibrated = calibrated};
    rc = codec->setup(&spec, dim, &made, error, size);
    if (rc == KVF_OK) rc = check_seed(&spec, &made, error, size);
    if (rc == KVF_OK) *part = made;
    return rc;
}

int kvfi_part_setup(const char *text, kvf_side side, int32_t dim, kvf_part *part, char *error, size_t size)
{
    return kvfi_part_setup_calibrated(text, side, dim, NULL, part, error, size);
}

const char *kvfi_spec_get(const kvf_spec *spec, const char *key, const char *fallback)
{
    for (int32_t i = 0; i < spec->n_options; i++)
        if (!strcmp(spec->option[i].key, key)) return spec->option[i].value;
    return fallback;
}

int kvfi_spec_int(const kvf_spec *spec, const char *key, int32_t fallback, const char *range, int32_t *value, char *error,
                  size_t size)
{
    const char *text = kvfi_spec_get(spec, key, NULL);
    *value = text ? decimal(text, strlen(text)) : fallback;
    return !text || *value >= 0 ? KVF_OK : kvfi_spec_refuse(spec, key, range, error, size);
}

int kvfi_spec_refuse(const kvf_spec *spec, const char *key, const char *range, char *error, size_t size)
{
    const char *text = kvfi_spec_get(spec, key, "");
    kvfi_sentence(error, size, "%s '%s': %s is '%s', but may be %s", spec->noun, spec->name, key,
                  kvfi_show(text, strlen(text)).text, range);
    return KVF_E_SPEC;
}

int kvfi_spec_only(const kvf_spec *spec, const char *const *allowed, char *error, size_t size)
{
    for (int32_t i = 0; i < spec->n_options; i++) {
        const char *const *key = allowed;
        while (*key && strcmp(*key, spec->option[i].key)) key++;
        if (*key) continue;
        char list[128] = "";
        for (key = allowed; *key; key++)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", key == allowed ? "" : " ", *key);
        kvfi_shown name = kvfi_show(spec->option[i].key, strlen(spec->option[i].key));
        if (*allowed)
            kvfi_sentence(error, size, "%s '%s' has no option '%s'; it has: %s", spec->noun, spec->name, name.text, list);
        else
            kvfi_sentence(error, size, "%s '%s' has no option '%s', nor any other", spec->noun, spec->name, name.text);
        return KVF_E_SPEC;
    }
    return KVF_OK;
}
