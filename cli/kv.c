/* SPDX-License-Identifier: MIT */
#include "kv.h"

#include <kvfold.h>

#include <stdlib.h>
#include <string.h>

/* Head sizes at which a codec's name and options are tried before any model is known: what one of them takes, a model may take. The
 * sentence of a refusal is that of the first. */
static const int32_t probe_dims[] = {128, 1024, 64};
enum { PROBES = sizeof probe_dims / sizeof *probe_dims };

void kv_settings_init(kv_settings *s)
{
    *s = (kv_settings){.sink = -1, .recent = -1};
}

/* ---- presets --------------------------------------------------------------------------------------------------------------- */

static bool find_preset(const char *name, kvf_preset_info *info)
{
    for (int32_t i = 0; kvf_preset_list(i, info) == KVF_OK; i++) {
        if (name ? strcmp(info->name, name) == 0 : info->is_default) return true;
    }
    return false;
}

/* Is the spec at fault, whatever the head size, or for the other side? The sentence that says so is left in error[size]. */
static bool malformed(const char *spec, kvf_side side, char *error, size_t size)
{
    kvf_spec_info info;
    bool wrong = true;
    for (int i = 0; i < PROBES && wrong; i++) {
        wrong = kvf_spec_check(spec, side, probe_dims[i], &info, i ? NULL : error, i ? 0 : size) != KVF_OK;
    }
    return wrong;
}

/* Does the text begin like a codec, a well-formed one or not? */
static bool names_codec(const char *text)
{
    kvf_codec_info info;
    for (int32_t i = 0; kvf_codec_list(i, &info) == KVF_OK; i++) {
        const size_t n = strlen(info.name);
        if (strncmp(text, info.name, n) == 0 && strchr(":0123456789", text[n])) return true;
    }
    return false;
}

static bool takes(const char *spec, kvf_side side)
{
    return kvf_spec_check(spec, side, probe_dims[0], &(kvf_spec_info){0}, NULL, 0) == KVF_OK;
}

static int codec_alone(const char *spec)
{
    char error[512] = "";
    if (malformed(spec, KVF_K, error, sizeof error))
        cli_error("--kv: %s", error);
    else
        cli_error("--kv: '%s' is a codec; write one for keys and one for values: --kv %s/%s", spec, spec,
                  takes(spec, KVF_V) ? spec : "uni4");
    return CLI_USAGE;
}

static int unknown_preset(const char *name)
{
    cli_text names = {0};
    kvf_preset_info info;
    if (names_codec(name)) return codec_alone(name);
    for (int32_t i = 0; kvf_preset_list(i, &info) == KVF_OK; i++) cli_text_format(&names, "%s%s", i ? ", " : "", info.name);
    cli_error("--kv: '%s' is neither a preset (%s) nor codecs K/V, as kivi4/kivi4 (kvfold list has all)", name,
              names.data ? names.data : "there are none");
    cli_text_free(&names);
    return CLI_USAGE;
}

static int use_preset(kv_choice *c, const char *name)
{
    kvf_preset_info info;
    if (!find_preset(name, &info)) return name ? unknown_preset(name) : CLI_GO;
    c->preset = info.name;
    c->k = info.k;
    c->v = info.v;
    c->sink = info.sink;
    c->recent = info.recent;
    return CLI_GO;
}

/* Where codecs are from: an option of a command line, or a file, which is damaged when they are none. */
typedef struct origin {
    const char *name; /* that sentences begin with */
    int code;         /* CLI_USAGE or CLI_DAMAGED */
} origin;

static const origin from_kv = {"--kv", CLI_USAGE};

/* "K/V" into the two own strings. */
static int use_pair(kv_choice *c, const char *pair, const origin *from)
{
    const char *slash = strchr(pair, '/');
    size_t n = slash ? (size_t)(slash - pair) : 0;
    if (n == 0 || !slash[1] || strchr(slash + 1, '/')) {
        cli_error("%s: '%s' is not of the form K/V, as kivi4/kivi4", from->name, pair);
        return from->code;
    }
    if (n >= sizeof c->own[0] || strlen(slash + 1) >= sizeof c->own[1]) {
        cli_error("%s: '%.32s...' has a codec of more than %d characters", from->name, pair, KV_SPEC - 1);
        return from->code;
    }
    memcpy(c->own[0], pair, n);
    c->own[0][n] = '\0'; /* a profile's may have been there, and longer */
    strcpy(c->own[1], slash + 1);
    c->preset = NULL;
    c->k = c->own[0];
    c->v = c->own[1];
    return CLI_GO;
}

/* ---- checks ---------------------------------------------------------------------------------------------------------------- */

/* Only the spec itself is judged here; whether it suits the model's head size is known later. */
static int check_codec(const origin *from, const char *spec, kvf_side side)
{
    char error[512] = "";
    kvf_preset_info preset;
    if (!malformed(spec, side, error, sizeof error)) return CLI_GO;
    if (find_preset(spec, &preset))
        cli_error("%s: '%s' is a preset, which stands for keys and values together: --kv %s", from->name, spec, spec);
    else
        cli_error("%s: %s", from->name, error);
    return from->code;
}

static int check_cpu(const char *option)
{
    cli_text names = {0};
    const char *name, *variable = getenv("KVFOLD_CPU"), *wanted = option ? option : variable && *variable ? variable : NULL;
    int32_t present, found = -1;
    for (int32_t i = 0; wanted && kvf_cpu_list(i, &name, &present) == KVF_OK; i++) {
        cli_text_format(&names, "%s%s%s", i ? ", " : "", name, present ? "" : " (not on this processor)");
        if (strcmp(name, wanted) == 0) found = present;
    }
    if (wanted && found != 1)
        cli_error("%s: '%s' %s; built in: %s", option ? "--cpu" : "KVFOLD_CPU", wanted,
                  found == 0 ? "is not on this processor" : "is no instruction set", names.data ? names.data : "none");
    cli_text_free(&names);
    return wanted && found != 1 ? (found == 0 ? CLI_CANNOT : CLI_USAGE) : CLI_GO;
}

/* The policy for the sink and window chosen before. */
static int use_policy(kv_choice *c, const char *spec)
{
    char error[1200] = "";
    kvf_evict_info info;
    int rc = kvf_evict_check(spec, c->sink, c->recent, 0, &info, error, sizeof error);
    if (rc != KVF_OK) {
        cli_error("--evict: %s", error[0] ? error : kvf_strerror(rc));
        return CLI_USAGE;
    }
    snprintf(c->evict, sizeof c->evict, "%s", info.canonical);
    c->evicts = info.evicts != 0;
    return CLI_GO;
}

/* ---- overrides of layers: "0,1,29=q8_0" or "5=kivi4/kivi2" ----------------------------------------------------------------- */

/* A number, or a range as 0-3; NULL when it is neither. */
static const char *scan_range(const char *at, long *first, long *last)
{
    char *stop;
    if (*at < '0' || *at > '9') return NULL;
    *first = *last = strtol(at, &stop, 10);
    if (*stop == '-' && stop[1] >= '0' && stop[1] <= '9') *last = strtol(stop + 1, &stop, 10);
    return *last >= *first && *last <= 100000 ? stop : NULL;
}

/* Does the list before '=' name the layer? Also keeps the largest number. False at once when the list is malformed. */
static bool scan_layers(const char *list, const char *end, int32_t layer, bool *named, int32_t *largest)
{
    *named = false;
    for (const char *at = list; at < end;) {
        long first, last;
        const char *stop = scan_range(at, &first, &last);
        if (!stop || (stop < end && *stop != ',') || stop + 1 == end) return false;
        *named = *named || (layer >= first && layer <= last);
        *largest = last > *largest ? (int32_t)last : *largest;
        at = stop + (stop < end);
    }
    return end > list;
}

static int add_override(kv_choice *c, const char *text, const origin *from)
{
    const char *equals = strchr(text, '=');
    bool named;
    int32_t largest = -1;
    if (!equals || !equals[1] || strchr(text, ';') || !scan_layers(text, equals, -1, &named, &largest)) {
        cli_error("%s: '%s' is not of the form LAYERS=K/V, as 0-3,29=q8_0 or 5=kivi4/kivi2", from->name, text);
        return from->code;
    }
    kv_override *o = &c->override[c->n_overrides++];
    const char *slash = strchr(equals, '/');
    size_t n = slash ? (size_t)(slash - equals - 1) : strlen(equals + 1);
    o->list = text;
    o->length = (size_t)(equals - text);
    snprintf(o->k, sizeof o->k, "%.*s", (int)n, equals + 1);
    snprintf(o->v, sizeof o->v, "%s", slash ? slash + 1 : o->k);
    int code = check_codec(from, o->k, KVF_K);
    if (code == CLI_GO) code = check_codec(from, o->v, KVF_V);
    cli_text_format(&c->layers, "%s%.*s=%s/%s", c->layers.length ? ";" : "", (int)o->length, o->list, o->k, o->v);
    return code;
}

/* ---- all together ---------------------------------------------------------------------------------------------------------- */

/* A profile, read from its file or at hand; its own lines are judged as such. */
static int use_profile(kv_choice *c, const kv_settings *s)
{
    char name[300] = "profile";
    const origin from = {name, CLI_DAMAGED};
    int code = s->profile ? profile_read(&c->profile, s->profile) : CLI_GO;
    if (s->profile) snprintf(c->profile_path, sizeof c->profile_path, "%s", s->profile);
    if (s->profile) snprintf(name, sizeof name, "profile '%.280s'", s->profile);
    if (code == CLI_GO && s->profile_text) code = profile_parse(&c->profile, s->profile_text, "profile");
    if (code != CLI_GO || !c->profile.kv) return code;
    code = use_pair(c, c->profile.kv, &from);
    if (code == CLI_GO) code = check_codec(&from, c->k, KVF_K);
    if (code == CLI_GO) code = check_codec(&from, c->v, KVF_V);
    for (int i = 0; code == CLI_GO && i < c->profile.n_layers; i++) code = add_override(c, c->profile.layers[i], &from);
    return code;
}

int kv_choice_make(kv_choice *c, const kv_settings *s)
{
    static const origin k = {"-ctk", CLI_USAGE}, v = {"-ctv", CLI_USAGE}, layer = {"--kv-layer", CLI_USAGE};
    memset(c, 0, sizeof *c);
    c->sink = 4;
    c->recent = 64;
    int code = use_preset(c, NULL);
    if (code == CLI_GO) code = use_profile(c, s);
    if (code == CLI_GO && s->kv) code = strchr(s->kv, '/') ? use_pair(c, s->kv, &from_kv) : use_preset(c, s->kv);
    if (s->k || s->v) c->preset = NULL;
    c->k = s->k ? s->k : c->k;
    c->v = s->v ? s->v : c->v;
    c->by_default = !s->kv && !s->k && !s->v && !c->profile.kv;
    c->cpu = s->cpu, c->calibration = s->calibration;
    c->sink = s->sink >= 0 ? (int32_t)s->sink : c->sink;
    c->recent = s->recent >= 0 ? (int32_t)s->recent : c->recent;
    c->exact_bits = s->window_type && strcmp(s->window_type, "q8_0") == 0 ? 8 : 16;
    if (code == CLI_GO && s->no_window && s->recent > 0) {
        cli_error("--seal-each means that no window stays exact, so a window of %lld cannot be meant too", (long long)s->recent);
        code = CLI_USAGE;
    }
    if (code == CLI_GO) code = check_codec(s->k ? &k : &from_kv, c->k, KVF_K);
    if (code == CLI_GO) code = check_codec(s->v ? &v : &from_kv, c->v, KVF_V);
    if (code == CLI_GO) code = check_cpu(c->cpu);
    if (code == CLI_GO) code = use_policy(c, s->evict);
    for (int i = 0; code == CLI_GO && i < s->layers.n; i++) code = add_override(c, s->layers.item[i], &layer);
    if (code != CLI_GO) kv_choice_free(c);
    return code;
}

int kv_settings_apart(const char *out, const kv_settings *s)
{
    const char *const in[] = {s->calibration, s->profile};
    return cli_save_apart_all(out, in, 2);
}

int kv_choice_apart(const char *out, const kv_choice *c)
{
    const char *const in[] = {c->calibration, c->profile_path[0] ? c->profile_path : NULL};
    return cli_save_apart_all(out, in, 2);
}

void kv_choice_meet(const kv_choice *c, const char *model)
{
    if (c->profile_path[0]) profile_doubt(&c->profile, c->profile_path, model, c->calibration);
}

static const kv_choice *choice_at(const kv_choice *first, size_t stride, int i)
{
    return (const kv_choice *)(const void *)((const char *)first + (size_t)i * stride);
}

void kv_choices_meet(const kv_choice *first, size_t stride, int n, const char *met, const char *model)
{
    for (int i = 0; i < n; i++) {
        const kv_choice *c = choice_at(first, stride, i);
        bool again = met && strcmp(c->profile_path, met) == 0;
        for (int j = 0; j < i; j++) again |= strcmp(choice_at(first, stride, j)->profile_path, c->profile_path) == 0;
        if (!again) kv_choice_meet(c, model);
    }
}

void kv_choice_doubt(const kv_choice *c, int64_t context)
{
    const bool coded = strcmp(c->k, "f16") != 0 || strcmp(c->v, "f16") != 0;
    if (coded && context > 0 && context < (int64_t)c->recent + KVF_BLOCK)
        cli_warn("the first %d tokens and the newest %d to %d stay exact: in a context of %lld nothing is ever coded", c->sink,
                 c->recent, c->recent + KVF_BLOCK - 1, (long long)context);
    if (!coded && !c->n_overrides && c->exact_bits < 16)
        cli_warn("--window-type q8_0 keeps the first and the newest tokens less exactly than f16/f16 keeps the others");
}

void kv_choice_free(kv_choice *c)
{
    cli_text_free(&c->layers);
    profile_free(&c->profile);
}

void kv_choice_of_layer(const kv_choice *c, int32_t layer, const char **k, const char **v)
{
    bool named;
    int32_t largest = -1;
    *k = *v = NULL;
    for (int i = 0; i < c->n_overrides; i++) {
        const kv_override *o = &c->override[i];
        scan_layers(o->list, o->list + o->length, layer, &named, &largest);
        if (named) {
            *k = o->k;
            *v = o->v;
        }
    }
}

int32_t kv_choice_last_layer(const kv_choice *c)
{
    bool named;
    int32_t largest = -1;
    for (int i = 0; i < c->n_overrides; i++)
        scan_layers(c->override[i].list, c->override[i].list + c->override[i].length, -1, &named, &largest);
    return largest;
}
