/* SPDX-License-Identifier: MIT
 * The list of policies, their specs and budgets. */
#include "evict/policy.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

#define KVFI_POLICY(symbol) extern const kvfi_policy kvfi_policy_##symbol;
#include "evict/policies.def"
#undef KVFI_POLICY

static const kvfi_policy *const policies[] = {
#define KVFI_POLICY(symbol) &kvfi_policy_##symbol,
#include "evict/policies.def"
#undef KVFI_POLICY
};

enum {
    TOKENS_MOST = 999999999,
    WHOLE = 1000 /* a share of 100 % */
};

const kvfi_policy *kvfi_policy_at(int32_t i)
{
    return i >= 0 && i < (int32_t)(sizeof policies / sizeof *policies) ? policies[i] : NULL;
}

static const char *policy_name(int32_t i)
{
    return kvfi_policy_at(i) ? kvfi_policy_at(i)->name : NULL;
}

static const char *policy_examples(int32_t i)
{
    return kvfi_policy_at(i)->examples;
}

static int64_t digits(const char **at)
{
    int64_t value = 0;
    for (; **at >= '0' && **at <= '9' && value <= TOKENS_MOST; ++*at) value = 10 * value + (**at - '0');
    return value;
}

/* "12.5%" as thousandths: up to one digit after the point; 0: it is no share. */
static int32_t read_share(const char *text)
{
    const char *at = text;
    int64_t value = *at >= '1' && *at <= '9' ? digits(&at) : 0, tenths = 0;
    if (*text == '0' && text[1] == '.') at = text + 1;
    if (at > text && *at == '.' && at[1] >= '0' && at[1] <= '9') tenths = at[1] - '0', at += 2;
    const int64_t share = 10 * value + tenths;
    return at == text || strcmp(at, "%") != 0 || share > WHOLE ? 0 : (int32_t)share;
}

static const struct {
    const char *name;
    int64_t bytes;
} units[] = {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}};

enum { UNITS = sizeof units / sizeof *units };

/* "1024", "12.5%" or "64MiB". */
static int read_budget(const char *text, kvfi_evict *e)
{
    const char *at = text;
    const int64_t value = *at >= '1' && *at <= '9' ? digits(&at) : 0;
    if (value < 1 || value > TOKENS_MOST) return (e->share = read_share(text)) > 0;
    if (!*at) e->tokens = (int32_t)value;
    for (int i = 0; i < UNITS; i++)
        if (!strcmp(at, units[i].name)) e->bytes = value * units[i].bytes;
    if (!e->tokens && !e->bytes) e->share = read_share(text);
    return e->tokens || e->bytes || e->share;
}

static int set_budget(const kvf_spec *spec, kvfi_evict *e, char *error, size_t size)
{
    const char *text = kvfi_spec_get(spec, "budget", NULL);
    if (!text)
        kvfi_sentence(
            error, size,
            "policy '%s' needs a budget: budget=TOKENS, budget=SHARE%% of all tokens, or budget=NMiB for the whole cache",
            spec->name);
    else if (!read_budget(text, e))
        kvfi_sentence(error, size,
                      "policy '%s': budget is '%s'; allowed are 1 to %d tokens, 0.1%% to 100%%, or a size in KiB, MiB or GiB",
                      spec->name, kvfi_show(text, strlen(text)).text, TOKENS_MOST);
    else
        return KVF_OK;
    return KVF_E_SPEC;
}

/* Layers first .. last; tokens: their budget, 0 where none is wanted. */
typedef struct range {
    int32_t first, last, tokens;
} range;

/* A number of at most TOKENS_MOST at *at, which moves on; -1: there is none. */
static int32_t read_number(const char **at)
{
    const char *start = *at;
    const int64_t value = digits(at);
    return *at == start || value > TOKENS_MOST ? -1 : (int32_t)value;
}

/* The next range of "0-1+29", or with budgets of "0-1:512+29:256", at *at, which moves on. 0: it is no range. */
static int next_range(const char **at, int budgets, range *r)
{
    *r = (range){.first = read_number(at)};
    r->last = r->first;
    if (**at == '-') ++*at, r->last = read_number(at);
    if (r->first < 0 || r->last < r->first) return 0;
    if (budgets) {
        if (**at != ':') return 0;
        ++*at, r->tokens = read_number(at);
        if (r->tokens < 1) return 0;
    }
    if (!**at) return 1;
    return *(*at)++ == '+' && **at;
}

/* The range with that layer of a list that was checked. 0: none. */
static int find_range(const char *list, int budgets, int32_t layer, range *r)
{
    for (const char *at = list; *at && next_range(&at, budgets, r);)
        if (layer >= r->first && layer <= r->last) return 1;
    return 0;
}

/* The first layer that is in `r` and in a range of a list that was checked; -1: none. */
static int32_t common_layer(const char *list, int budgets, const range *r)
{
    range other;
    for (const char *at = list; *at && next_range(&at, budgets, &other);)
        if (other.first <= r->last && other.last >= r->first) return other.first > r->first ? other.first : r->first;
    return -1;
}

static int32_t last_of(const char *list, int budgets)
{
    int32_t most = -1;
    range r;
    for (const char *at = list; *at && next_range(&at, budgets, &r);)
        if (r.last > most) most = r.last;
    return most;
}

/* The largest budget of a list that was checked; 0: none. */
static int32_t most_of(const char *list)
{
    int32_t most = 0;
    range r;
    for (const char *at = list; *at && next_range(&at, 1, &r);)
        if (r.tokens > most) most = r.tokens;
    return most;
}

static int set_protected(const kvf_spec *spec, kvfi_evict *e, char *error, size_t size)
{
    const char *text = kvfi_spec_get(spec, "protect", "");
    range r;
    for (const char *at = text; *at;)
        if (!next_range(&at, 0, &r)) {
            kvfi_sentence(error, size, "policy '%s': protect is '%s', but must list layers, as 0-1+29", spec->name,
                          kvfi_show(text, strlen(text)).text);
            return KVF_E_SPEC;
        }
    snprintf(e->protect, sizeof e->protect, "%s", text);
    return KVF_OK;
}

/* A range with its budget, beside the protected layers and those that e->layers has so far. */
static int check_range(const kvf_spec *spec, const kvfi_evict *e, const range *r, char *error, size_t size)
{
    const int32_t twice = common_layer(e->layers, 1, r), kept = common_layer(e->protect, 0, r), least = e->sink + e->recent;
    if (twice >= 0)
        kvfi_sentence(error, size, "policy '%s': layers gives layer %d two budgets", spec->name, (int)twice);
    else if (kept >= 0)
        kvfi_sentence(error, size, "policy '%s': layer %d is protected, and layers gives it a budget", spec->name, (int)kept);
    else if (r->tokens < least)
        kvfi_sentence(error, size,
                      "policy '%s': layer %d: a budget of %d tokens is less than the %d that are protected: the first %d and the "
                      "newest %d",
                      spec->name, (int)r->first, (int)r->tokens, (int)least, (int)e->sink, (int)e->recent);
    else
        return KVF_OK;
    return KVF_E_SPEC;
}

/* After what is protected: layers and rows. */
static int set_layers(const kvf_spec *spec, kvfi_evict *e, char *error, size_t size)
{
    const char *text = kvfi_spec_get(spec, "layers", "");
    range r;
    for (const char *at = text; *at;) {
        if (!next_range(&at, 1, &r)) {
            kvfi_sentence(error, size, "policy '%s': layers is '%s', but must list layers with their tokens, as 0-1:512+29:256",
                          spec->name, kvfi_show(text, strlen(text)).text);
            return KVF_E_SPEC;
        }
        int rc = check_range(spec, e, &r, error, size);
        if (rc) return rc;
        snprintf(e->layers, sizeof e->layers, "%.*s", (int)(at - text - (*at != 0)), text); /* without the '+' */
    }
    return KVF_OK;
}

int kvfi_evict_protects(const kvfi_evict *e, int32_t layer)
{
    range r;
    return find_range(e->protect, 0, layer, &r);
}

int32_t kvfi_evict_layer_budget(const kvfi_evict *e, int32_t layer)
{
    range r;
    return find_range(e->layers, 1, layer, &r) ? r.tokens : 0;
}

int32_t kvfi_evict_last_protected(const kvfi_evict *e)
{
    return last_of(e->protect, 0);
}

int32_t kvfi_evict_last_budget(const kvfi_evict *e)
{
    return last_of(e->layers, 1);
}

/* Rows at one end: those asked for, and at least those that the cache holds exactly anyway. */
static int set_end(const kvf_spec *spec, const char *key, int32_t exact, int32_t *rows, char *error, size_t size)
{
    int rc = kvfi_spec_int(spec, key, exact, "a number of tokens from 0 to 999999", rows, error, size);
    if (*rows < exact) *rows = exact;
    return rc;
}

static int check_budget(const kvf_spec *spec, const kvfi_evict *e, char *error, size_t size)
{
    if (!e->tokens || e->tokens >= e->sink + e->recent) return KVF_OK;
    kvfi_sentence(error, size,
                  "policy '%s': a budget of %d tokens is less than the %d that are protected: the first %d and the newest %d",
                  spec->name, (int)e->tokens, (int)(e->sink + e->recent), (int)e->sink, (int)e->recent);
    return KVF_E_SPEC;
}

/* Every policy has these; what else, it says itself. */
static int check_options(const kvf_spec *spec, const kvfi_policy *policy, char *error, size_t size)
{
    const char *all[8] = {"budget", "sink", "recent", "protect", "layers"};
    int n = 5;
    for (int i = 0; policy->options[i]; i++) all[n++] = policy->options[i];
    return kvfi_spec_only(spec, policy->keeps_all ? policy->options : all, error, size);
}

static void write_canonical(kvfi_evict *e)
{
    char budget[24] = "", seed[24] = "";
    int unit = 0;
    while (unit < UNITS - 1 && e->bytes % units[unit].bytes) unit++;
    if (e->tokens)
        snprintf(budget, sizeof budget, "%d", (int)e->tokens);
    else if (e->bytes)
        snprintf(budget, sizeof budget, "%lld%s", (long long)(e->bytes / units[unit].bytes), units[unit].name);
    else if (e->share % 10)
        snprintf(budget, sizeof budget, "%d.%d%%", (int)(e->share / 10), (int)(e->share % 10));
    else
        snprintf(budget, sizeof budget, "%d%%", (int)(e->share / 10));
    for (int i = 0; e->policy->options[i]; i++)
        if (!strcmp(e->policy->options[i], "seed")) snprintf(seed, sizeof seed, ",seed=%d", (int)e->seed);
    snprintf(e->canonical, sizeof e->canonical, "%s:budget=%s,recent=%d,sink=%d%s%s%s%s%s", e->policy->name, budget,
             (int)e->recent, (int)e->sink, *e->protect ? ",protect=" : "", e->protect, *e->layers ? ",layers=" : "", e->layers,
             seed);
}

int kvfi_evict_setup(const char *text, int32_t sink, int32_t recent, kvfi_evict *e, char *error, size_t size)
{
    const kvfi_spec_names names = {.noun = "policy", .name = policy_name, .examples = policy_examples};
    kvf_spec spec;
    int32_t which;
    memset(e, 0, sizeof *e);
    int rc = kvfi_spec_parse(text ? text : "none", &names, &spec, &which, error, size);
    if (rc) return rc;
    e->policy = kvfi_policy_at(which);
    snprintf(e->canonical, sizeof e->canonical, "%s", e->policy->name);
    rc = check_options(&spec, e->policy, error, size);
    if (rc || e->policy->keeps_all) return rc;
    rc = set_budget(&spec, e, error, size);
    if (!rc) rc = set_end(&spec, "sink", sink, &e->sink, error, size);
    if (!rc) rc = set_end(&spec, "recent", recent, &e->recent, error, size);
    if (!rc) rc = kvfi_spec_int(&spec, "seed", 1, "a whole number from 0 to 999999", &e->seed, error, size);
    if (!rc) rc = set_protected(&spec, e, error, size);
    if (!rc) rc = check_budget(&spec, e, error, size);
    if (!rc) rc = set_layers(&spec, e, error, size);
    if (!rc) write_canonical(e);
    return rc;
}

int64_t kvfi_evict_rows_kept(const kvfi_evict *e, int32_t tokens, int32_t share, int64_t rows)
{
    const int64_t protected_rows = (int64_t)e->sink + e->recent, budget = tokens ? tokens : rows * share / WHOLE;
    return budget > protected_rows ? budget : protected_rows;
}

static int32_t score_bytes(const kvfi_policy *p)
{
    return p->score ? (int32_t)sizeof(uint16_t) : p->mass ? 2 * (int32_t)sizeof(float) : 0;
}

int kvf_policy_list(int32_t i, kvf_policy_info *info)
{
    const kvfi_policy *p = kvfi_policy_at(i);
    if (!p || !info) return KVF_E_ARG;
    *info = (kvf_policy_info){p->name, p->summary, p->examples, score_bytes(p)};
    return KVF_OK;
}

/* Of `tokens`, what the layer with the largest budget keeps. */
static int64_t most_kept(const kvfi_evict *e, int64_t tokens)
{
    if (!kvfi_evicts(e) || e->bytes) return tokens;
    int64_t most = kvfi_evict_rows_kept(e, e->tokens, e->share, tokens);
    if (most < most_of(e->layers)) most = most_of(e->layers);
    return most < tokens ? most : tokens;
}

int kvf_evict_check(const char *spec, int32_t sink, int32_t recent, int64_t tokens, kvf_evict_info *info, char *error,
                    size_t size)
{
    kvfi_evict e;
    if (sink < 0 || recent < 0 || tokens < 0) {
        kvfi_sentence(error, size, "sink %d, recent %d, %lld tokens: none of them may be below 0", (int)sink, (int)recent,
                      (long long)tokens);
        return KVF_E_ARG;
    }
    int rc = kvfi_evict_setup(spec, sink, recent, &e, error, size);
    if (rc || !info) return rc;
    *info = (kvf_evict_info){.evicts = kvfi_evicts(&e),
                             .sink = e.sink,
                             .recent = e.recent,
                             .budget = most_kept(&e, tokens),
                             .bytes = e.bytes,
                             .score_bytes = score_bytes(e.policy)};
    memcpy(info->canonical, e.canonical, sizeof info->canonical);
    return KVF_OK;
}
