/* SPDX-License-Identifier: MIT
 * kvfold list: what this build can do.
 */
#include "options.h"

#include <jansson.h>
#include <kvfold.h>

#include <string.h>

typedef struct list_settings {
    int64_t head_dim;
    bool json;
} list_settings;

static const cli_option options[] = {
    CLI_HEAD("options"),
    CLI_COUNT("--head-dim", list_settings, head_dim, 1, 1024, "128", "head size for which bits are shown"),
    CLI_SWITCH(CLI_ON, "--json", list_settings, json, "one JSON object: codecs, policies, devices, presets"),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "list",
    .usage = "[OPTIONS]",
    .about = "Codecs with their bits a value, presets, eviction policies and devices of this build.",
    .options = options,
};

/* ---- one spec -------------------------------------------------------------------------------------------------------------- */

typedef struct spec_row {
    char spec[64];
    double bits[2]; /* of keys and values, -1: not possible on that side or at that head size */
} spec_row;

/* The next example of a codec; NULL when there is none left. */
static const char *next_example(const char *at, uint32_t sides, int32_t dim, spec_row *row)
{
    at += strspn(at, " ");
    size_t n = strcspn(at, " ");
    if (n == 0 || n >= sizeof row->spec) return NULL;
    memcpy(row->spec, at, n);
    row->spec[n] = '\0';
    for (int side = 0; side < 2; side++) {
        kvf_spec_info info;
        bool possible = (sides >> side & 1) && kvf_spec_check(row->spec, (kvf_side)side, dim, &info, NULL, 0) == KVF_OK;
        row->bits[side] = possible ? info.bits_code : -1;
    }
    return at + n;
}

static const char *bits_text(double bits, char *text, size_t size)
{
    if (bits < 0) return "-";
    snprintf(text, size, "%.3f", bits);
    return text;
}

/* ---- for people ------------------------------------------------------------------------------------------------------------ */

static void print_codecs(int32_t dim)
{
    kvf_codec_info codec;
    printf("codecs (bits a value at head size %d: codes, scales, padding)\n  %-24s %8s %8s  %s\n", dim, "spec", "keys", "values",
           "codec");
    for (int32_t i = 0; kvf_codec_list(i, &codec) == KVF_OK; i++) {
        spec_row row;
        char k[16], v[16];
        const char *summary = codec.summary;
        for (const char *at = codec.examples; (at = next_example(at, codec.sides, dim, &row)) != NULL; summary = "")
            printf("  %-24s %8s %8s  %s\n", row.spec, bits_text(row.bits[KVF_K], k, sizeof k),
                   bits_text(row.bits[KVF_V], v, sizeof v), summary);
    }
}

/* A column for each model that the first preset was measured on: all presets have the same. */
static void print_presets(void)
{
    kvf_preset_info preset;
    if (kvf_preset_list(0, &preset) != KVF_OK) return;
    printf("\npresets (--kv NAME), and their mean KL divergence from libllama's f16 cache in nats, on one text\n  %-12s %-14s "
           "%4s %6s",
           "preset", "K/V", "sink", "window");
    for (int32_t j = 0; j < preset.n_measured; j++) printf("  %s", preset.measured[j].model);
    printf("\n");
    for (int32_t i = 0; kvf_preset_list(i, &preset) == KVF_OK; i++) {
        char pair[64];
        snprintf(pair, sizeof pair, "%s/%s", preset.k, preset.v);
        printf("  %-12s %-14s %4d %6d", preset.name, pair, preset.sink, preset.recent);
        for (int32_t j = 0; j < preset.n_measured; j++)
            printf("  %*.2g", (int)strlen(preset.measured[j].model), preset.measured[j].kld);
        printf("%s\n", preset.is_default ? "  (default)" : "");
    }
    printf("  Small models, English prose; kvfold quality measures yours.\n");
}

static void print_policies(void)
{
    kvf_policy_info policy;
    printf("\npolicies (--evict NAME:budget=TOKENS|SHARE%%|NMiB[,recent=N,sink=N,protect=LAYERS,layers=LAYERS:TOKENS])\n");
    for (int32_t i = 0; kvf_policy_list(i, &policy) == KVF_OK; i++)
        printf("  %-12s %s%s\n", policy.name, policy.summary, i ? "" : "  (default)");
}

static int print_table(const list_settings *set)
{
    const char *name;
    int32_t present;
    print_codecs((int32_t)set->head_dim);
    print_presets();
    print_policies();
    printf("\ndevices\n");
    for (int32_t i = 0; kvf_cpu_list(i, &name, &present) == KVF_OK; i++)
        printf("  cpu %-8s %s\n", name, present ? "present" : "not on this processor");
    return cli_finish(CLI_DONE);
}

/* ---- for programs ---------------------------------------------------------------------------------------------------------- */

static json_t *codec_object(const kvf_codec_info *codec, int32_t dim)
{
    json_t *specs = json_array(), *sides = json_array();
    spec_row row;
    for (const char *at = codec->examples; (at = next_example(at, codec->sides, dim, &row)) != NULL;)
        json_array_append_new(specs, json_pack("{s:s, s:o, s:o}", "spec", row.spec, "bits_code_k",
                                               row.bits[KVF_K] < 0 ? json_null() : cli_json_real(row.bits[KVF_K]), "bits_code_v",
                                               row.bits[KVF_V] < 0 ? json_null() : cli_json_real(row.bits[KVF_V])));
    if (codec->sides & 1) json_array_append_new(sides, json_string("k"));
    if (codec->sides & 2) json_array_append_new(sides, json_string("v"));
    return json_pack("{s:s, s:s, s:o, s:o}", "name", codec->name, "summary", codec->summary, "sides", sides, "examples", specs);
}

static json_t *preset_object(const kvf_preset_info *p)
{
    json_t *measured = json_array();
    for (int32_t i = 0; i < p->n_measured; i++) {
        const kvf_measure *m = &p->measured[i];
        json_array_append_new(measured, json_pack("{s:s, s:i, s:i, s:f, s:f}", "model", m->model, "context", m->context,
                                                  "positions", m->positions, "kld", m->kld, "kld_error", m->kld_error));
    }
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:b, s:o}", "name", p->name, "k", p->k, "v", p->v, "sink", p->sink, "window",
                     p->recent, "default", p->is_default, "measured", measured);
}

static int print_object(const list_settings *set)
{
    json_t *codecs = json_array(), *presets = json_array(), *devices = json_array(), *policies = json_array();
    kvf_policy_info policy;
    for (int32_t i = 0; kvf_policy_list(i, &policy) == KVF_OK; i++)
        json_array_append_new(policies,
                              json_pack("{s:s, s:s, s:s, s:i, s:b}", "name", policy.name, "summary", policy.summary, "examples",
                                        policy.examples, "score_bytes", policy.score_bytes, "default", i == 0));
    kvf_codec_info codec;
    kvf_preset_info preset;
    const char *name;
    int32_t present;
    for (int32_t i = 0; kvf_codec_list(i, &codec) == KVF_OK; i++)
        json_array_append_new(codecs, codec_object(&codec, (int32_t)set->head_dim));
    for (int32_t i = 0; kvf_preset_list(i, &preset) == KVF_OK; i++) json_array_append_new(presets, preset_object(&preset));
    for (int32_t i = 0; kvf_cpu_list(i, &name, &present) == KVF_OK; i++)
        json_array_append_new(devices, json_pack("{s:s, s:s, s:b}", "kind", "cpu", "name", name, "present", present));
    return cli_print_json(json_pack("{s:i, s:o, s:o, s:o, s:o}", "head_dim", (int)set->head_dim, "codecs", codecs, "policies",
                                    policies, "devices", devices, "presets", presets));
}

int cmd_list(int argc, char **argv)
{
    list_settings set = {0};
    int code = cli_parse(&syntax, &set, argc, argv);
    if (code != CLI_GO) return code;
    return set.json ? print_object(&set) : print_table(&set);
}
