/* SPDX-License-Identifier: MIT
 * What a run cost: as a table for people, as an object for programs. Both show the same numbers, read from the live cache.
 */
#include "run.h"

#include <jansson.h>

#include <stdlib.h>
#include <string.h>

typedef struct numbers {
    kvf_stats_t cache;      /* zero when there is no cache */
    kvf_llama_stats_t host; /* the same */
    int64_t peak, full;     /* bytes; of the process; of the folded cache with all of -c in it */
    int64_t prompt, generated;
    double prefill_tps, decode_tps;
    bool interrupted;
} numbers;

static double rate(int64_t tokens, double seconds)
{
    return tokens > 0 && seconds > 0 ? (double)tokens / seconds : 0;
}

/* Bytes of the cache when the whole context is in use, by the size function. */
static int64_t full_bytes(const session *s)
{
    char error[256];
    kvf_params p;
    kvf_calibration all;
    kvf_layer *layers = NULL;
    if (!s->shape.layer || s->shape.n_attention == 0 || s->context <= 0) return -1;
    shape_params(&s->shape, &s->kv, &p, &layers, error, sizeof error);
    kvf_calibrated_layer *known = shape_known(&s->shape, s->calibration, &all, &p);
    int64_t bytes = kvf_bytes(&p, s->context);
    free(known);
    free(layers);
    return bytes < 0 ? -1 : bytes;
}

static numbers collect(const generator *g)
{
    numbers n = {.cache.size = sizeof n.cache, .host.size = sizeof n.host};
    const session *s = g->s;
    const kvf_cache *cache = s->fold ? kvf_llama_cache(s->fold) : NULL;
    if (cache) {
        kvf_stats(cache, &n.cache);
        kvf_llama_stats(s->fold, &n.host);
    }
    n.full = full_bytes(s);
    n.peak = cli_memory_peak();
    for (size_t i = 0; i < g->n_turns; i++) {
        n.prompt += g->turn[i].prompt;
        n.generated += g->turn[i].generated;
    }
    n.prefill_tps = rate(g->prefill_tokens, g->prefill_seconds);
    n.decode_tps = rate(g->decode_tokens, g->decode_seconds);
    n.interrupted = cli_interrupted();
    return n;
}

static const char *stop_name(const generator *g, const numbers *n)
{
    return run_stop_name(n->interrupted ? STOP_INTERRUPTED : generator_stop(g));
}

/* ---- layers that are not folded -------------------------------------------------------------------------------------------- */

/* Calls `each` for every run of neighbouring layers with the same reason. */
static void unfolded(const session *s, void (*each)(void *user, int32_t first, int32_t last, const char *reason), void *user)
{
    kvf_llama_layer_t info = {.size = sizeof info};
    char reason[256] = "";
    int32_t first = -1, il = 0;
    for (; s->fold && kvf_llama_layer(s->fold, il, &info) == KVF_OK; il++) {
        bool same = first >= 0 && !info.folded && strcmp(reason, info.reason) == 0;
        if (same) continue;
        if (first >= 0) each(user, first, il - 1, reason);
        first = info.folded ? -1 : il;
        snprintf(reason, sizeof reason, "%s", info.folded ? "" : info.reason);
    }
    if (first >= 0) each(user, first, il - 1, reason);
}

static void span(char *text, size_t size, int32_t first, int32_t last)
{
    if (first == last)
        snprintf(text, size, "%d", first);
    else
        snprintf(text, size, "%d-%d", first, last);
}

static void note_unfolded(void *user, int32_t first, int32_t last, const char *reason)
{
    (void)user;
    char text[32];
    span(text, sizeof text, first, last);
    cli_note("layer %s is not folded: %s", text, reason);
}

static void print_unfolded(void *user, int32_t first, int32_t last, const char *reason)
{
    (void)user;
    char text[32];
    span(text, sizeof text, first, last);
    printf("  not folded       layer %s: %s\n", text, reason);
}

static void add_unfolded(void *user, int32_t first, int32_t last, const char *reason)
{
    json_array_append_new(user, json_pack("{s:i, s:i, s:s}", "first", first, "last", last, "reason", reason));
}

void report_start(const session *s, const chat *c)
{
    cli_note("%s/%s, %d of %d layers folded, context %lld, batch %d, threads %d, chat template %s", s->kv.k, s->kv.v,
             s->host.layers_folded, s->host.layers_total, (long long)s->context, s->host.n_batch, s->threads, c->name);
    kv_choice_doubt(&s->kv, s->context);
    if (s->positions > s->context)
        cli_note("%s lets tokens go: text may go on past the context, up to %lld tokens", s->kv.evict, (long long)s->positions);
    unfolded(s, note_unfolded, NULL);
}

/* ---- for people ------------------------------------------------------------------------------------------------------------ */

static void print_cache(const session *s, const numbers *n)
{
    const kvf_stats_t *c = &n->cache;
    printf("  codec            K %s, V %s", s->kv.k, s->kv.v);
    if (s->kv.layers.data) printf(", except %s", s->kv.layers.data);
    printf("\n  bits a value     %.2f all-in, %.2f in the codes\n", c->bits_per_value, c->bits_code);
    printf("  layers folded    %d of %d\n", n->host.layers_folded, n->host.layers_total);
    unfolded(s, print_unfolded, NULL);
    printf("  attention        cpu, %s, threads %d\n", c->cpu ? c->cpu : "", s->threads);
    printf("  tokens held      %lld: %lld sink, %lld body, %lld window\n", (long long)c->tokens, (long long)c->tokens_sink,
           (long long)c->tokens_body, (long long)c->tokens_window);
    if (c->saturated + c->saturated_scales)
        printf("  clipped          %lld values and %lld scales above 65504\n", (long long)c->saturated,
               (long long)c->saturated_scales);
    if (!s->kv.evicts) return;
    printf("  tokens dropped   %lld of each head, by %s\n", (long long)c->tokens_evicted, s->kv.evict);
    printf("  coded twice      %lld rows of single heads, when blocks were compacted\n", (long long)c->rows_recoded);
}

static void print_ratio(const char *label, int64_t bytes, int64_t f16)
{
    printf("  %-16s %10s", label, cli_bytes(bytes));
    if (bytes >= 0 && f16 > 0) printf("  %5.1f %% of %s in f16", 100.0 * (double)bytes / (double)f16, cli_bytes(f16));
    putchar('\n');
}

static void print_memory(const session *s, const numbers *n)
{
    print_ratio("accounted", n->cache.accounted, n->cache.f16);
    print_ratio("resident", n->cache.resident, n->cache.f16);
    printf("  %-16s %10s  cells that libllama keeps for a batch\n", "host", cli_bytes(n->host.host));
    print_ratio("at full context", n->full < 0 ? -1 : n->full + n->host.host, n->host.f16);
    printf("  %-16s %10s  (accounted and host at %lld tokens; f16: what plain libllama allocates)\n", "", "",
           (long long)s->context);
    printf("  %-16s %10s  of the whole process, weights included\n", "peak", cli_bytes(n->peak));
    if (n->cache.tokens_body == 0 && n->cache.bits_code < 16)
        printf("                   nothing was coded yet: the first %d tokens and the newest %d to %d stay exact, so short texts "
               "save nothing\n",
               s->kv.sink, s->kv.recent, s->kv.recent + KVF_BLOCK - 1);
}

static int print_table(const generator *g, const numbers *n)
{
    printf("\n--- kvfold report\n");
    if (n->host.layers_total > 0) {
        print_cache(g->s, n);
        print_memory(g->s, n);
    }
    printf("  prompt           %lld tokens, %.1f tokens/s\n", (long long)n->prompt, n->prefill_tps);
    printf("  generated        %lld tokens, %.1f tokens/s, stopped: %s\n", (long long)n->generated, n->decode_tps,
           stop_name(g, n));
    return cli_finish(CLI_DONE);
}

/* ---- for programs ---------------------------------------------------------------------------------------------------------- */

static json_t *kv_object(const session *s, const numbers *n)
{
    json_t *layers = json_array();
    unfolded(s, add_unfolded, layers);
    return json_pack("{s:s, s:s, s:s?, s:s?, s:o, s:o, s:o, s:o, s:i, s:i, s:o, s:i, s:i, s:s, s:s?, s:I}", "k",
                     s->kv.k ? s->kv.k : "", "v", s->kv.v ? s->kv.v : "", "preset", s->kv.preset, "layers", s->kv.layers.data,
                     "bits_per_value", cli_json_real(n->cache.bits_per_value), "bits_code", cli_json_real(n->cache.bits_code),
                     "bits_code_k", cli_json_real(n->cache.bits_code_k), "bits_code_v", cli_json_real(n->cache.bits_code_v),
                     "layers_folded", n->host.layers_folded, "layers_total", n->host.layers_total, "not_folded", layers, "sink",
                     s->kv.sink, "window", s->kv.recent, "evict", s->kv.evict, "calibration", s->kv.calibration, "clipped",
                     (json_int_t)(n->cache.saturated + n->cache.saturated_scales));
}

static json_t *bytes_object(const numbers *n)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "accounted", (json_int_t)n->cache.accounted, "host",
                     (json_int_t)n->host.host, "resident", (json_int_t)n->cache.resident, "peak", (json_int_t)n->peak, "f16",
                     (json_int_t)n->host.f16, "f16_held", (json_int_t)n->cache.f16, "full", (json_int_t)n->full, "reserved",
                     (json_int_t)n->cache.reserved_bytes);
}

static json_t *turns_array(const generator *g)
{
    json_t *list = json_array();
    for (size_t i = 0; i < g->n_turns; i++) {
        const run_turn *t = &g->turn[i];
        size_t end = i + 1 < g->n_turns ? g->turn[i + 1].text - 1 : g->text.length;
        json_array_append_new(list, json_pack("{s:I, s:I, s:I, s:s, s:s%}", "kept", (json_int_t)t->kept, "prompt_tokens",
                                              (json_int_t)t->prompt, "generated_tokens", (json_int_t)t->generated, "stop_reason",
                                              run_stop_name(t->stop), "text", g->text.data ? g->text.data + t->text : "",
                                              g->text.data ? end - t->text : (size_t)0));
    }
    return list;
}

static int print_object(const generator *g, const numbers *n)
{
    const session *s = g->s;
    json_t *o = json_pack(
        "{s:o, s:s%, s:I, s:I, s:o, s:o, s:{s:o, s:o}, s:{s:s, s:s?, s:i, s:n}, s:b, s:s, s:{s:I, s:I, s:I, "
        "s:I, s:I, s:I}, s:I, s:s, s:o}",
        "model", cli_json_text(g->set->model), "text", g->text.data ? g->text.data : "", g->text.length, "prompt_tokens",
        (json_int_t)n->prompt, "generated_tokens", (json_int_t)n->generated, "kv", kv_object(s, n), "bytes", bytes_object(n),
        "speed", "prefill_tps", cli_json_real(n->prefill_tps), "decode_tps", cli_json_real(n->decode_tps), "device", "attend",
        "cpu", "cpu", n->cache.cpu, "threads", s->threads, "fallback", "interrupted", n->interrupted, "stop_reason",
        stop_name(g, n), "tokens", "sink", (json_int_t)n->cache.tokens_sink, "body", (json_int_t)n->cache.tokens_body, "window",
        (json_int_t)n->cache.tokens_window, "held", (json_int_t)n->cache.tokens, "evicted", (json_int_t)n->cache.tokens_evicted,
        "recoded", (json_int_t)n->cache.rows_recoded, "context", (json_int_t)s->context, "chat_template",
        g->chat && g->chat->name[0] ? g->chat->name : "none", "turns", turns_array(g));
    return cli_print_json(o);
}

int report_print(const generator *g)
{
    numbers n = collect(g);
    if (g->set->json) return print_object(g, &n);
    return g->set->report ? print_table(g, &n) : cli_finish(CLI_DONE);
}
