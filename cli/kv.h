/* SPDX-License-Identifier: MIT
 * How to fold: the options that run, plan and inspect share, and what they add up to.
 */
#ifndef KVFOLD_CLI_KV_H
#define KVFOLD_CLI_KV_H

#include "kvfold.h"
#include "options.h"
#include "profile.h"

enum { KV_CONTEXT_MOST = INT32_MAX - 1024 }; /* tokens of -c; sums with batches and padding stay within 31 bits */

typedef struct kv_settings {
    const char *kv, *k, *v, *cpu, *evict, *window_type, *calibration, *profile;
    const char *profile_text; /* a profile itself, in place of its path */
    cli_list layers;
    int64_t sink, recent; /* -1: not given */
    bool no_window;       /* --seal-each: a window that is asked for contradicts it */
} kv_settings;

#define KV_WINDOW_TYPE(S)                                                                                                        \
    CLI_ONE_OF("--window-type", "TYPE", S, kv.window_type, "f16 q8_0", "f16", NULL,                                              \
               "how those first and newest tokens are kept: f16, or q8_0 in about half the memory")

#define KV_EVICT(S, MORE)                                                                                                        \
    CLI_WORD(                                                                                                                    \
        "--evict", "POLICY", S, kv.evict,                                                                                        \
        "which tokens stay: none, or a policy with its budget of tokens, share of all or size of the cache, as "                 \
        "knorm:budget=1024, window:budget=25%,recent=256,sink=4 or knorm:budget=64MiB; protect=0-1 names layers that keep "      \
        "everything, layers=2-5:512+28:256 others with budgets of their own; kvfold list has the policies (default none)" MORE)

#define KV_CALIBRATION(S)                                                                                                        \
    CLI_WORD("--calibration", "FILE", S, kv.calibration,                                                                         \
             "what kvfold calibrate learnt of this model: key stages come from there, from the first token on, instead of from " \
             "the prompt (centre=prompt in a codec keeps that)")

#define KV_PROFILE(S)                                                                                                            \
    CLI_WORD(                                                                                                                    \
        "--profile", "FILE", S, kv.profile,                                                                                      \
        "codecs layer by layer, as kvfold tune writes them; --kv, -ctk and -ctv take the place of its codecs for the rest, "     \
        "--kv-layer that of single layers")

/* Rows of an option table; S is the struct with a member `kv` of type kv_settings. */
#define KV_OPTIONS(S)                                                                                                            \
    CLI_HEAD("the folded cache"),                                                                                                \
        CLI_WORD("--kv", "K/V|PRESET", S, kv.kv,                                                                                 \
                 "codecs of keys and values, as kivi4/kivi4, or a preset that stands for both and its sink and window; kvfold "  \
                 "list has them (default: the preset marked so there)"),                                                         \
        CLI_WORD("-ctk --cache-type-k", "CODEC", S, kv.k, "codec of keys alone"),                                                \
        CLI_WORD("-ctv --cache-type-v", "CODEC", S, kv.v, "codec of values alone"),                                              \
        CLI_WORDS("--kv-layer", "LAYERS=K/V", S, kv.layers,                                                                      \
                  "other codecs for some layers, as 0-3,29=q8_0 (keys and values) or 5=kivi4/kivi2; may be given several "       \
                  "times, and the last one that names a layer holds"),                                                           \
        CLI_COUNT("--sink", S, kv.sink, 0, 64, NULL, "first tokens that stay exact, 0 to 64 (default: the preset's, 4)"),        \
        CLI_COUNT("--window --recent", S, kv.recent, 0, 65536, NULL,                                                             \
                  "newest tokens that stay exact, 0 to 65536; N to N+63 are (default: the preset's, 64)"),                       \
        KV_PROFILE(S), KV_WINDOW_TYPE(S), KV_EVICT(S, ""),                                                                       \
        CLI_WORD("--cpu", "SET", S, kv.cpu,                                                                                      \
                 "instruction set of the attention, as scalar or avx2 (default: the best present, or KVFOLD_CPU)")

enum { KV_SPEC = 128 }; /* room for a codec spec */

/* One --kv-layer. */
typedef struct kv_override {
    const char *list; /* "0,1,29", in argv */
    size_t length;
    char k[KV_SPEC], v[KV_SPEC];
} kv_override;

/* What the options add up to. Strings live as long as argv and the choice. */
typedef struct kv_choice {
    const char *preset;                    /* NULL when the codecs were named one by one */
    const char *k, *v, *cpu, *calibration; /* calibration: a path, NULL: none */
    bool by_default;                       /* nobody asked for these codecs: layers that they do not fit get others */
    int32_t sink, recent, exact_bits;      /* 16, or 8: q8_0 */
    char evict[sizeof(((kvf_evict_info *)0)->canonical)]; /* the policy with every option written out */
    bool evicts;                                          /* it may drop tokens */
    profile profile;
    char profile_path[256];                              /* "" when there is none */
    kv_override override[CLI_LIST_MOST + PROFILE_LINES]; /* the last one that names a layer holds */
    int n_overrides;
    cli_text layers; /* all of them in the form of kvf_llama_params.kv_layer; data NULL when none */
    char own[2][KV_SPEC];
} kv_choice;

void kv_settings_init(kv_settings *s);

/* CLI_GO, or an exit code after a sentence: CLI_USAGE: unknown preset, codec or instruction set, malformed override; CLI_DAMAGED: the same
 * in a profile; CLI_CANNOT: no such profile or instruction set here. */
int kv_choice_make(kv_choice *c, const kv_settings *s);

/* Would `out` (NULL: none) replace a file that the settings, or a choice made of them, are read from? As cli_save_apart. */
int kv_settings_apart(const char *out, const kv_settings *s);
int kv_choice_apart(const char *out, const kv_choice *c);

/* Where a choice meets a model (a path): warns when its profile, if it has one, was made for other weights or another calibration. */
void kv_choice_meet(const kv_choice *c, const char *model);
/* The same for n choices, one `stride` bytes behind the other: each profile once, and none of that path (NULL: all). */
void kv_choices_meet(const kv_choice *first, size_t stride, int n, const char *met, const char *model);

/* Warns of what is possible and hardly meant, as a window that covers the whole context (of so many tokens; 0: unknown). */
void kv_choice_doubt(const kv_choice *c, int64_t context);
void kv_choice_free(kv_choice *c);

/* Codecs of one layer; NULL where the default ones hold. */
void kv_choice_of_layer(const kv_choice *c, int32_t layer, const char **k, const char **v);

/* Largest layer number in the overrides, -1 when there are none. */
int32_t kv_choice_last_layer(const kv_choice *c);

#endif
