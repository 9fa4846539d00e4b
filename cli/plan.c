/* SPDX-License-Identifier: MIT
 * kvfold plan: how large will the cache be, and does it fit? Reads the header of the model file, no weights.
 */
#include "kv.h"
#include "model_file.h"
#include "shape.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

typedef struct plan_settings {
    const char *model;
    int64_t context;
    bool json, verbose;
    kv_settings kv;
} plan_settings;

static const cli_option options[] = {
    CLI_HEAD("model and context"),
    CLI_WORD("-m --model", "FILE", plan_settings, model, "model, a GGUF file; -m may be left out"),
    CLI_COUNT("-c --ctx-size", plan_settings, context, 0, KV_CONTEXT_MOST, "0", "tokens of the context; 0: the training length"),
    KV_OPTIONS(plan_settings),
    KV_CALIBRATION(plan_settings),
    CLI_HEAD("output"),
    CLI_SWITCH(CLI_ON, "--json", plan_settings, json, "one JSON object"),
    CLI_SWITCH(CLI_ON, "-v --verbose", plan_settings, verbose, "show the log of libllama, on stderr"),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "plan",
    .usage = "-m FILE [-c N] [OPTIONS]",
    .about = "Will it fit? Bytes of the folded cache beside f16, for -c and other contexts. Reads only the header of the file.",
    .options = options,
    .positional = true,
    .positional_field = offsetof(plan_settings, model),
    .notes = "A context fits when cache, host cells and weights together are at most the memory that is available now.",
};

/* Everything that follows from the header and the options. */
typedef struct plan {
    model_file file;
    shape shape;
    kv_choice kv;
    kvf_params params;
    kvf_layer *layers;
    kvf_llama_calibration *calibration; /* NULL: none */
    kvf_calibrated_layer *known;        /* [n_attention] */
    kvf_calibration all;                /* of those */
    char error[512];
    int64_t context, available;
    int32_t layers_folded;
    int64_t budget; /* tokens that a head keeps where the budget is one of bytes; 0: it is not */
    bool others;    /* layers= gives some layers budgets of their own */
} plan;

typedef struct plan_row {
    int64_t context, bytes, f16, needed;
    bool fits;
} plan_row;

/* Which blocks become empty is then known only from the data. */
static bool policy_keeps_scores(const kv_choice *kv)
{
    kvf_evict_info info;
    return kvf_evict_check(kv->evict, kv->sink, kv->recent, 0, &info, NULL, 0) == KVF_OK && info.score_bytes > 0;
}

/* ---- sizes ----------------------------------------------------------------------------------------------------------------- */

/* Negative on failure; p->error then says why. */
static int64_t bytes_at(const plan *p, int64_t tokens)
{
    kvf_params params = p->params;
    if (!p->kv.evicts && params.recent > tokens) params.recent = (int32_t)tokens; /* as the adapter does */
    return kvf_bytes(&params, tokens);
}

static plan_row row_at(const plan *p, int64_t context)
{
    plan_row r = {.context = context, .bytes = bytes_at(p, context), .f16 = shape_f16(&p->shape, context)};
    r.needed = r.bytes + shape_host(&p->shape) + p->file.bytes;
    r.fits = r.bytes >= 0 && (p->available < 0 || r.needed <= p->available);
    return r;
}

/* Bytes that one more token costs at the end of the context: whole blocks, windowed layers long since full. */
static double bytes_per_token(const plan *p)
{
    int64_t end = p->context / KVF_BLOCK * KVF_BLOCK, begin = end / 2 / KVF_BLOCK * KVF_BLOCK;
    if (begin < 4 * KVF_BLOCK)
        begin = 4 * KVF_BLOCK, end = 2 * begin; /* what a short one has is mostly exact, and of fixed size */
    return (double)(bytes_at(p, end) - bytes_at(p, begin)) / (double)(end - begin);
}

/* The same of plain libllama, far beyond any window. */
static double f16_per_token(const plan *p)
{
    int64_t far = 1 << 20;
    return (double)(shape_f16(&p->shape, 2 * far) - shape_f16(&p->shape, far)) / (double)far;
}

/* Largest context that fits, 0 when none does. Where memory has an end, as under a policy, the program's own limit has none before it. */
static int64_t largest_that_fits(const plan *p)
{
    int64_t low = 0, high = KV_CONTEXT_MOST;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (row_at(p, middle).fits)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static bool coded(const char *spec, kvf_side side, int32_t dim, const kvf_calibrated_layer *known)
{
    kvf_spec_info info;
    return kvf_spec_check_calibrated(spec, side, dim, known, &info, NULL, 0) == KVF_OK && info.bits_code < 16;
}

static int32_t count_folded(const plan *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->params.n_layers; i++) {
        const kvf_layer *l = &p->layers[i];
        n += coded(l->k ? l->k : p->kv.k, KVF_K, l->k_dim, &p->known[i]) ||
             (!l->v_in_k && coded(l->v ? l->v : p->kv.v, KVF_V, l->v_dim, &p->known[i]));
    }
    return n;
}

/* ---- making a plan --------------------------------------------------------------------------------------------------------- */

static int check(plan *p)
{
    if (p->shape.refused[0]) {
        cli_error("'%s' cannot be folded: %s", p->file.path, p->shape.refused);
        return CLI_CANNOT;
    }
    if (kv_choice_last_layer(&p->kv) >= p->shape.n_layers) {
        cli_error("%s: the model has no layer %d; layers: 0 to %d", p->kv.profile_path[0] ? p->kv.profile_path : "--kv-layer",
                  kv_choice_last_layer(&p->kv), p->shape.n_layers - 1);
        return CLI_USAGE;
    }
    if (p->context <= 0 || p->context > KV_CONTEXT_MOST) {
        cli_error("'%s' gives %lld tokens as its training length (context_length): ask for a context of 1 to %d with -c",
                  p->file.path, (long long)p->context, KV_CONTEXT_MOST);
        return CLI_USAGE;
    }
    kv_choice_doubt(&p->kv, p->context);
    kv_choice_meet(&p->kv, p->file.path);
    return CLI_GO;
}

/* Its weights must be the model's, so its layers are. */
static int load_calibration(plan *p)
{
    char error[512] = "";
    if (!p->kv.calibration) return CLI_GO;
    cli_capture_begin();
    const int rc = kvf_llama_calibration_load(p->kv.calibration, NULL, p->file.path, &p->calibration, error, sizeof error);
    cli_capture_end();
    if (rc == KVF_OK) return CLI_GO;
    cli_error("%s", error);
    return cli_exit_of(rc);
}

static void set_params(plan *p)
{
    shape_params(&p->shape, &p->kv, &p->params, &p->layers, p->error, sizeof p->error);
    p->known = shape_known(&p->shape, p->calibration, &p->all, &p->params);
}

/* Only a cache knows how many tokens a budget of bytes is. It touches next to nothing. */
static void find_tokens_of_bytes(plan *p)
{
    kvf_evict_info info;
    kvf_cache *cache = NULL;
    if (kvf_evict_check(p->kv.evict, p->kv.sink, p->kv.recent, 0, &info, NULL, 0) != KVF_OK || !info.bytes) return;
    if (kvf_cache_create(&cache, &p->params) != KVF_OK) return;
    for (int32_t i = 0; i < p->params.n_layers; i++) {
        kvf_evicted_t e = {.size = sizeof e};
        if (kvf_evicted(cache, i, &e) != KVF_OK || !e.pruned) continue;
        if (e.own)
            p->others = true;
        else
            p->budget = e.budget;
    }
    kvf_cache_free(&cache);
}

static int make(plan *p, const plan_settings *set)
{
    int code = kv_choice_make(&p->kv, &set->kv);
    if (code == CLI_GO) code = model_file_open(&p->file, set->model);
    if (code == CLI_GO) code = shape_read(&p->shape, &p->file);
    if (code != CLI_GO) return code;
    p->context = set->context > 0 ? set->context : p->shape.context;
    p->available = cli_memory_available();
    code = check(p);
    if (code == CLI_GO) code = load_calibration(p);
    if (code != CLI_GO) return code;
    set_params(p);
    int64_t bytes = bytes_at(p, p->context);
    if (bytes < 0) {
        cli_error("%s%s", p->error[0] ? p->error : kvf_strerror((int)bytes),
                  strstr(p->error, "kvfold calibrate") ? "; plan takes its file with --calibration" : "");
        return cli_exit_of((int)bytes);
    }
    p->layers_folded = count_folded(p);
    find_tokens_of_bytes(p);
    return CLI_GO;
}

static void release(plan *p)
{
    free(p->layers);
    free(p->known);
    kvf_llama_calibration_free(&p->calibration);
    shape_free(&p->shape);
    model_file_close(&p->file);
    kv_choice_free(&p->kv);
}

/* Contexts of the table: doubling from 2,048, and the one asked for. Returns how many. */
static int contexts(const plan *p, int64_t *list, int most)
{
    int n = 0;
    bool placed = false;
    int64_t limit = p->context > p->shape.context ? p->context : p->shape.context;
    for (int64_t c = 2048; c <= limit && n < most - 1; c *= 2) {
        if (!placed && p->context <= c) {
            placed = true;
            list[n++] = p->context;
            if (p->context == c) continue;
        }
        list[n++] = c;
    }
    if (!placed) list[n++] = p->context;
    return n;
}

/* ---- output ---------------------------------------------------------------------------------------------------------------- */

enum { ROWS = 40 };

static int print_table(const plan *p)
{
    int64_t list[ROWS];
    int n = contexts(p, list, ROWS);
    printf("%s: %s, %d layers, %d with attention, training length %lld\n", p->file.path, p->file.arch, p->shape.n_layers,
           p->shape.n_attention, (long long)p->shape.context);
    printf("K %s, V %s, sink %d, window %d: %d of %d layers folded\n", p->kv.k, p->kv.v, p->kv.sink, p->kv.recent,
           p->layers_folded, p->shape.n_layers);
    if (p->budget > 0)
        printf("budget %lld tokens of each head%s\n", (long long)p->budget,
               p->others ? ", in layers without one of their own" : "");
    if (p->kv.evicts)
        printf("evict %s%s\n", p->kv.evict, policy_keeps_scores(&p->kv) ? ": sizes are the most that it can be" : "");
    printf("weights %s, host cells %s, memory available %s\n\n", cli_bytes(p->file.bytes), cli_bytes(shape_host(&p->shape)),
           cli_bytes(p->available));
    printf("  %9s  %12s  %12s  %6s  %12s  %s\n", "context", "folded", "f16", "ratio", "all needed", "fits");
    for (int i = 0; i < n; i++) {
        plan_row r = row_at(p, list[i]);
        printf("%c %9lld  %12s  %12s  %6.3f  %12s  %s\n", r.context == p->context ? '>' : ' ', (long long)r.context,
               cli_bytes(r.bytes), cli_bytes(r.f16), r.f16 > 0 ? (double)r.bytes / (double)r.f16 : 0, cli_bytes(r.needed),
               r.fits ? "yes" : "no");
    }
    const int64_t largest = largest_that_fits(p);
    printf("\n%.0f bytes a token (f16 %.0f); ", bytes_per_token(p), f16_per_token(p));
    if (largest == KV_CONTEXT_MOST)
        printf("any context fits now, up to the largest that there is: %lld tokens\n", (long long)largest);
    else
        printf("the largest context that fits now: %lld tokens\n", (long long)largest);
    return cli_finish(CLI_DONE);
}

static json_t *row_object(const plan_row *r)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:b}", "context", (json_int_t)r->context, "bytes", (json_int_t)r->bytes, "bytes_f16",
                     (json_int_t)r->f16, "bytes_needed", (json_int_t)r->needed, "fits", r->fits);
}

static int print_object(const plan *p)
{
    int64_t list[ROWS];
    int n = contexts(p, list, ROWS);
    json_t *rows = json_array();
    for (int i = 0; i < n; i++) {
        plan_row row = row_at(p, list[i]);
        json_array_append_new(rows, row_object(&row));
    }
    plan_row r = row_at(p, p->context);
    json_t *o = json_pack(
        "{s:o, s:s, s:I, s:I, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:o}", "model", cli_json_text(p->file.path),
        "architecture", p->file.arch, "context", (json_int_t)p->context, "context_train", (json_int_t)p->shape.context,
        "bytes_per_token", cli_json_real(bytes_per_token(p)), "bytes_per_token_f16", cli_json_real(f16_per_token(p)),
        "bytes_total", (json_int_t)r.bytes, "bytes_f16", (json_int_t)r.f16, "bytes_host", (json_int_t)shape_host(&p->shape),
        "bytes_weights", (json_int_t)p->file.bytes, "bytes_needed", (json_int_t)r.needed, "memory_available",
        (json_int_t)p->available, "fits", r.fits, "context_largest", (json_int_t)largest_that_fits(p), "table", rows);
    json_object_set_new(o, "kv",
                        json_pack("{s:s, s:s, s:s?, s:s?, s:i, s:i, s:i, s:i, s:i, s:s, s:o}", "k", p->kv.k, "v", p->kv.v,
                                  "preset", p->kv.preset, "layers", p->kv.layers.data, "layers_folded", p->layers_folded,
                                  "layers_attention", p->shape.n_attention, "layers_total", p->shape.n_layers, "sink", p->kv.sink,
                                  "window", p->kv.recent, "evict", p->kv.evict, "calibration",
                                  p->kv.calibration ? cli_json_text(p->kv.calibration) : json_null()));
    if (p->budget > 0) json_object_set_new(json_object_get(o, "kv"), "budget_tokens", json_integer(p->budget));
    return cli_print_json(o);
}

int cmd_plan(int argc, char **argv)
{
    plan_settings set = {0};
    kv_settings_init(&set.kv);
    int code = cli_parse(&syntax, &set, argc, argv);
    if (code != CLI_GO) return code;
    cli_log_install(set.verbose);
    plan p = {0};
    code = make(&p, &set);
    if (code == CLI_GO) code = set.json ? print_object(&p) : print_table(&p);
    release(&p);
    return code;
}
