/* SPDX-License-Identifier: MIT
 * Spec strings: name, number of bits, options, as in "kivi2:group=64". */
#include "base/text.h"
#include "codec/codec.h"
#include "codec/shared/part.h"

#include <stdio.h>
#include <string.h>

#define SPEC_MAX 95 /* characters of a spec */

/* A spec is shown in error sentences: whatever is not printable must not reach a terminal. */
typedef struct shown {
    char text[SPEC_MAX + 1];
} shown;

static shown show(const char *text, size_t n)
{
    shown s;
    if (n > SPEC_MAX) n = SPEC_MAX;
    for (size_t i = 0; i < n; i++) s.text[i] = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
    s.text[n] = '\0';
    return s;
}

static const char *list_codecs(char *list, size_t size)
{
    size_t used = 0;
    list[0] = '\0';
    for (int32_t i = 0; kvfi_codec_at(i); i++) {
        int n = snprintf(list + used, size - used, "%s%s", i ? " " : "", kvfi_codec_at(i)->examples);
        if (n < 0 || (size_t)n >= size - used) break;
        used += (size_t)n;
    }
    return list;
}

static int unknown(const char *text, size_t n, char *error, size_t size)
{
    char list[1024];
    if (n)
        kvfi_sentence(error, size, "codec '%s' does not exist; there are: %s", show(text, n).text,
                      list_codecs(list, sizeof list));
    else
        kvfi_sentence(error, size, "the codec spec has no name; there are: %s", list_codecs(list, sizeof list));
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

/* The longest registered name that begins text[n] and leaves nothing or a number. */
static const kvf_codec *match(const char *text, size_t n, int32_t *bits)
{
    const kvf_codec *best = NULL;
    size_t best_length = 0;
    for (int32_t i = 0; kvfi_codec_at(i); i++) {
        const kvf_codec *codec = kvfi_codec_at(i);
        size_t length = strlen(codec->name);
        if (length > n || length < best_length || memcmp(codec->name, text, length)) continue;
        if (length < n && decimal(text + length, n - length) < 0) continue;
        best = codec;
        best_length = length;
        *bits = length < n ? decimal(text + length, n - length) : -1;
    }
    return best;
}

static int add_option(kvf_spec *spec, const char *text, size_t n, char *error, size_t size)
{
    const char *equals = memchr(text, '=', n);
    size_t key = equals ? (size_t)(equals - text) : n, value = equals ? n - key - 1 : 0;
    if (!key || !value) {
        kvfi_sentence(error, size, "codec '%s': '%s' is not an option; write KEY=VALUE", spec->name, show(text, n).text);
        return KVF_E_SPEC;
    }
    if (spec->n_options == (int32_t)(sizeof spec->option / sizeof *spec->option)) {
        kvfi_sentence(error, size, "codec '%s': more than %d options", spec->name, (int)spec->n_options);
        return KVF_E_SPEC;
    }
    if (key >= sizeof spec->option->key || value >= sizeof spec->option->value) {
        kvfi_sentence(error, size, "codec '%s': option '%s' is too long", spec->name, show(text, n).text);
        return KVF_E_SPEC;
    }
    char *to = spec->option[spec->n_options].key;
    memcpy(to, text, key);
    memcpy(spec->option[spec->n_options].value, equals + 1, value);
    if (kvfi_spec_get(spec, to, NULL)) {
        kvfi_sentence(error, size, "codec '%s': option '%s' is given twice", spec->name, show(text, key).text);
        return KVF_E_SPEC;
    }
    spec->n_options++;
    return KVF_OK;
}

static int parse(const char *text, kvf_spec *spec, const kvf_codec **codec, char *error, size_t size)
{
    size_t n = strlen(text);
    memset(spec, 0, sizeof *spec);
    if (n > SPEC_MAX) {
        kvfi_sentence(error, size, "codec spec '%s...' has %zu characters; at most %d are allowed", show(text, 24).text, n,
                      SPEC_MAX);
        return KVF_E_SPEC;
    }
    const char *colon = memchr(text, ':', n);
    size_t name = colon ? (size_t)(colon - text) : n;
    *codec = match(text, name, &spec->bits);
    if (!*codec) return unknown(text, name, error, size);
    snprintf(spec->name, sizeof spec->name, "%s", (*codec)->name);
    if (!colon) return KVF_OK;
    for (const char *at = colon + 1, *end = text + n;;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        int rc = add_option(spec, at, (size_t)((comma ? comma : end) - at), error, size);
        if (rc) return rc;
        if (!comma) return KVF_OK;
        at = comma + 1;
    }
}

int kvfi_part_setup(const char *text, kvf_side side, int32_t dim, kvf_part *part, char *error, size_t size)
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
    const kvf_codec *codec;
    int rc = parse(text, &spec, &codec, error, size);
    if (rc) return rc;
    if (!(codec->sides >> side & 1)) {
        kvfi_sentence(error, size, "codec '%s' is a method for %s: it does not work for %s", codec->name,
                      side == KVF_K ? "values" : "keys", side == KVF_K ? "keys" : "values");
        return KVF_E_UNSUPPORTED;
    }
    kvf_part made = {.codec = codec, .side = side};
    rc = codec->setup(&spec, side, dim, &made, error, size);
    if (rc == KVF_OK) *part = made;
    return rc;
}

const char *kvfi_spec_get(const kvf_spec *spec, const char *key, const char *fallback)
{
    for (int32_t i = 0; i < spec->n_options; i++)
        if (!strcmp(spec->option[i].key, key)) return spec->option[i].value;
    return fallback;
}

int kvfi_spec_int(const kvf_spec *spec, const char *key, int32_t fallback, int32_t *value, char *error, size_t size)
{
    const char *text = kvfi_spec_get(spec, key, NULL);
    *value = text ? decimal(text, strlen(text)) : fallback;
    if (!text || *value >= 0) return KVF_OK;
    kvfi_sentence(error, size, "codec '%s': %s is '%s', but must be a whole number", spec->name, key,
                  show(text, strlen(text)).text);
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
        shown name = show(spec->option[i].key, strlen(spec->option[i].key));
        if (*allowed)
            kvfi_sentence(error, size, "codec '%s' has no option '%s'; it has: %s", spec->name, name.text, list);
        else
            kvfi_sentence(error, size, "codec '%s' has no option '%s', nor any other", spec->name, name.text);
        return KVF_E_SPEC;
    }
    return KVF_OK;
}
