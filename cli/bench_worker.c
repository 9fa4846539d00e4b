/* SPDX-License-Identifier: MIT
 * One arm of `kvfold bench e2e` in a process of its own: a model with plain libllama or with a folded cache, that does on stdin
 * what it is told, and answers ok, or error and a sentence.
 *
 *   cut POS          forget the tokens from POS on
 *   prefill POS N    cut, then tokens POS to POS+N-1 of the text
 *   decode N         N more tokens, the likeliest each time
 *   report           one line of JSON
 */
#include "bench_e2e.h"
#include "measure_random.h"
#include "model_file.h"
#include "tokens.h"

#include <jansson.h>
#include <kvfold_llama.h>
#include <llama.h>

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct worker {
    bench_worker_settings set;
    kv_choice kv;
    bool plain;
    struct llama_model *model;
    const struct llama_vocab *vocab;
    struct llama_context *ctx;
    kvf_llama *fold;
    kvf_llama_calibration *calibration;
    int32_t n_vocab, n_batch, held;
    double gap;            /* of the two largest logits after the last token fed, nats */
    json_t *tokens, *gaps; /* generated, and the gap that each was chosen with */
    struct llama_batch batch;
    llama_token *text, next; /* [depth + room]; the token to come */
    cli_text generated;
    char error[600];
} worker;

static int fail(worker *w, const char *format, ...) CLI_PRINTF(2, 3);
static int fail(worker *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(w->error, sizeof w->error, format, args);
    va_end(args);
    w->error[strcspn(w->error, "\n")] = 0; /* an answer is one line */
    return -1;
}

/* ---- set-up --------------------------------------------------------------------------------------------------------------- */

static const bench_plain PLAIN[] = {
    {"llama-f16-noflash", GGML_TYPE_F16, LLAMA_FLASH_ATTN_TYPE_DISABLED},
    {"llama-f16-flash", GGML_TYPE_F16, LLAMA_FLASH_ATTN_TYPE_ENABLED},
    {"llama-q8_0-flash", GGML_TYPE_Q8_0, LLAMA_FLASH_ATTN_TYPE_ENABLED},
    {"llama-q4_0-flash", GGML_TYPE_Q4_0, LLAMA_FLASH_ATTN_TYPE_ENABLED},
};

const bench_plain *bench_plain_at(int i)
{
    return i >= 0 && i < (int)(sizeof PLAIN / sizeof *PLAIN) ? &PLAIN[i] : NULL;
}

const bench_plain *bench_plain_named(const char *name)
{
    for (int i = 0; bench_plain_at(i); i++)
        if (strcmp(PLAIN[i].name, name) == 0) return &PLAIN[i];
    return NULL;
}

static struct llama_context_params context_params(const worker *w)
{
    struct llama_context_params cp = llama_context_default_params();
    cp.n_threads = cp.n_threads_batch = (int32_t)w->set.threads;
    cp.offload_kqv = false;
    cp.n_ctx = (uint32_t)(w->set.depth + w->set.room);
    cp.n_batch = cp.n_ubatch = (uint32_t)w->set.batch;
    cp.swa_full = false;
    cp.no_perf = true;
    return cp;
}

static int open_plain(worker *w)
{
    const bench_plain *plain = bench_plain_named(w->set.arm);
    struct llama_context_params cp = context_params(w);
    cp.flash_attn_type = plain->flash;
    cp.type_k = cp.type_v = plain->type;
    cli_capture_begin();
    w->ctx = llama_init_from_model(w->model, cp);
    const char *reason = cli_capture_end();
    w->n_batch = (int32_t)w->set.batch;
    return w->ctx ? 0 : fail(w, "libllama makes no such context%s%s", reason[0] ? ": " : "", reason);
}

static int open_folded(worker *w)
{
    struct llama_context_params cp = context_params(w);
    kvf_llama_params kp;
    kvf_llama_stats_t stats = {.size = sizeof stats};
    kvf_llama_params_init(&kp);
    kp.n_ctx = w->set.depth + w->set.room;
    kp.n_batch = (int32_t)w->set.batch;
    kp.k = w->kv.k;
    kp.v = w->kv.v;
    kp.sink = w->kv.sink;
    kp.recent = w->kv.recent;
    kp.exact_bits = w->kv.exact_bits;
    kp.kv_layer = w->kv.layers.data;
    kp.evict = w->kv.evict;
    kp.cpu = w->kv.cpu;
    if (w->set.kv.calibration && kvf_llama_calibration_load(w->set.kv.calibration, w->model, w->set.model, &w->calibration,
                                                            w->error, sizeof w->error) != KVF_OK)
        return -1;
    kp.calibration = w->calibration;
    if (kvf_llama_prepare(w->model, &cp, &kp, &w->fold, w->error, sizeof w->error) != KVF_OK) return -1;
    w->ctx = llama_init_from_model(w->model, cp);
    if (!w->ctx) return fail(w, "libllama makes no context");
    if (kvf_llama_attach(w->fold, w->ctx) != KVF_OK) return fail(w, "%s", kvf_llama_error(w->fold));
    kvf_llama_stats(w->fold, &stats);
    w->n_batch = stats.n_batch;
    return 0;
}

static int load_model(worker *w)
{
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    cli_capture_begin();
    w->model = llama_model_load_from_file(w->set.model, mp);
    const char *reason = cli_capture_end();
    if (!w->model) return fail(w, "libllama cannot load it%s%s", reason[0] ? ": " : "", reason);
    w->vocab = llama_model_get_vocab(w->model);
    w->n_vocab = llama_vocab_n_tokens(w->vocab);
    return w->n_vocab > 0 ? 0 : fail(w, "it has no vocabulary");
}

static int read_text(worker *w, int32_t n)
{
    cli_text file = {0};
    if (llama_vocab_type(w->vocab) == LLAMA_VOCAB_TYPE_NONE) return fail(w, "the model has no tokenizer, so -f cannot be read");
    if (cli_read_file(w->set.file, &file) != CLI_GO) return fail(w, "'%s' cannot be read", w->set.file);
    llama_token *all;
    int32_t found = cli_tokenize(w->vocab, file.data ? file.data : "", file.length, true, false, 0, &all);
    for (int32_t i = 0; i < n && i < found; i++) w->text[i] = all[i];
    free(all);
    cli_text_free(&file);
    return found >= n ? 0 : fail(w, "'%s' has %d tokens, %d are needed", w->set.file, (int)found, (int)n);
}

/* Without a file: seeded, and no sequence that repeats. */
static int make_text(worker *w)
{
    int32_t n = (int32_t)(w->set.depth + w->set.room);
    uint64_t state = (uint64_t)w->set.seed;
    w->text = cli_alloc((size_t)n, sizeof *w->text);
    if (w->set.file) return read_text(w, n);
    for (int32_t i = 0; i < n; i++) w->text[i] = measure_below(&state, w->n_vocab);
    return 0;
}

static int open_worker(worker *w)
{
    w->plain = w->set.arm != NULL;
    const char *arm = w->set.kv.kv ? w->set.kv.kv : "";
    if (!w->plain && cli_arm_make(&w->kv, arm, strlen(arm), &w->set.kv) != CLI_GO) return fail(w, "no such codec");
    w->tokens = json_array();
    w->gaps = json_array();
    if (load_model(w) != 0 || (w->plain ? open_plain(w) : open_folded(w)) != 0) return -1;
    w->batch = llama_batch_init(w->n_batch, 0, 1);
    return make_text(w);
}

static void close_worker(worker *w)
{
    if (w->fold && w->ctx) kvf_llama_detach(w->fold);
    if (w->ctx) llama_free(w->ctx);
    kvf_llama_free(&w->fold);
    kvf_llama_calibration_free(&w->calibration);
    if (w->model) llama_model_free(w->model);
    if (w->batch.token) llama_batch_free(w->batch);
    if (!w->plain) kv_choice_free(&w->kv);
    free(w->text);
    json_decref(w->tokens);
    json_decref(w->gaps);
    cli_text_free(&w->generated);
}

/* ---- commands ------------------------------------------------------------------------------------------------------------- */

static int cut(worker *w, int32_t pos)
{
    if (pos > w->held) return fail(w, "there are only %d tokens", (int)w->held);
    if (w->fold && kvf_llama_seq_rm(w->fold, 0, pos, -1) != KVF_OK) return fail(w, "%s", kvf_llama_error(w->fold));
    if (w->plain && pos == 0) llama_memory_clear(llama_get_memory(w->ctx), true);
    if (w->plain && pos > 0 && !llama_memory_seq_rm(llama_get_memory(w->ctx), 0, pos, -1))
        return fail(w, "cannot cut at %d", (int)pos);
    w->held = pos;
    return 0;
}

/* At most n_batch tokens; the last one's logits tell the next token when asked for. */
static int feed(worker *w, const llama_token *token, int32_t n, bool last)
{
    struct llama_batch *b = &w->batch;
    if (w->held + n > w->set.depth + w->set.room) return fail(w, "the context is full");
    for (int32_t i = 0; i < n; i++) {
        b->token[i] = token[i];
        b->pos[i] = w->held + i;
        b->n_seq_id[i] = 1;
        b->seq_id[i][0] = 0;
        b->logits[i] = last && i == n - 1;
    }
    b->n_tokens = n;
    int rc = w->fold ? kvf_llama_decode(w->fold, *b) : llama_decode(w->ctx, *b);
    if (rc != 0) return fail(w, "%s", w->fold ? kvf_llama_error(w->fold) : "llama_decode failed");
    w->held += n;
    if (last)
        w->next =
            cli_likeliest(w->fold ? kvf_llama_logits_ith(w->fold, -1) : llama_get_logits_ith(w->ctx, -1), w->n_vocab, &w->gap);
    return 0;
}

static int prefill(worker *w, int32_t pos, int32_t n)
{
    if (cut(w, pos) != 0) return -1;
    w->generated.length = 0;
    json_array_clear(w->tokens);
    json_array_clear(w->gaps);
    for (int32_t i = 0; i < n; i += w->n_batch) {
        int32_t count = n - i < w->n_batch ? n - i : w->n_batch;
        if (feed(w, w->text + pos + i, count, i + count == n) != 0) return -1;
    }
    return 0;
}

/* As text where the model has one, else as numbers. */
static void keep(worker *w, llama_token token)
{
    char piece[256];
    int32_t n = llama_vocab_type(w->vocab) == LLAMA_VOCAB_TYPE_NONE
                    ? -1
                    : llama_token_to_piece(w->vocab, token, piece, sizeof piece, 0, true);
    if (n >= 0)
        cli_text_add(&w->generated, piece, (size_t)n);
    else
        cli_text_format(&w->generated, "%d ", (int)token);
}

static int decode(worker *w, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        llama_token token = w->next;
        json_array_append_new(w->tokens, json_integer(token));
        json_array_append_new(w->gaps, json_real(isfinite(w->gap) ? w->gap : 0));
        if (feed(w, &token, 1, true) != 0) return -1;
        keep(w, token);
    }
    return 0;
}

/* Bytes of K and V that are in use: of a folded cache as it counts them, of libllama's as it would save them. */
static void add_cache(const worker *w, json_t *o)
{
    kvf_stats_t cache = {.size = sizeof cache};
    kvf_llama_stats_t host = {.size = sizeof host};
    if (!w->fold) {
        json_object_set_new(o, "accounted", json_integer((json_int_t)llama_state_seq_get_size(w->ctx, 0)));
        return;
    }
    kvf_stats(kvf_llama_cache(w->fold), &cache);
    kvf_llama_stats(w->fold, &host);
    json_object_set_new(o, "accounted", json_integer((json_int_t)cache.accounted));
    json_object_set_new(o, "resident_cache", json_integer((json_int_t)cache.resident));
    json_object_set_new(o, "host", json_integer((json_int_t)host.host));
    json_object_set_new(o, "f16", json_integer((json_int_t)host.f16));
    json_object_set_new(o, "bits_code", json_real(cache.bits_code));
    json_object_set_new(o, "bits_per_value", json_real(cache.bits_per_value));
    json_object_set_new(o, "layers_folded", json_integer(host.layers_folded));
    json_object_set_new(o, "layers_total", json_integer(host.layers_total));
}

static void report(const worker *w)
{
    cli_text text = {0};
    json_t *o = json_object();
    cli_utf8_add(&text, w->generated.data ? w->generated.data : "", w->generated.length);
    add_cache(w, o);
    json_object_set_new(o, "held", json_integer(w->held));
    json_object_set_new(o, "weights", json_integer((json_int_t)llama_model_size(w->model)));
    json_object_set_new(o, "peak", json_integer((json_int_t)cli_memory_peak()));
    json_object_set_new(o, "resident", json_integer((json_int_t)cli_memory_resident()));
    json_object_set_new(o, "anonymous", json_integer((json_int_t)cli_memory_anonymous()));
    json_object_set_new(o, "batch", json_integer(w->n_batch));
    json_object_set(o, "tokens", w->tokens);
    json_object_set(o, "gaps", w->gaps);
    json_object_set_new(o, "text", json_string(text.data ? text.data : ""));
    char *line = json_dumps(o, JSON_COMPACT);
    if (line) puts(line);
    free(line);
    json_decref(o);
    cli_text_free(&text);
}

static void answer(const worker *w, int failed)
{
    if (failed)
        printf("error %s\n", w->error);
    else
        puts("ok");
    fflush(stdout);
}

static void obey(worker *w)
{
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        int a, b;
        if (strcmp(line, "report\n") == 0) {
            report(w);
            fflush(stdout);
        } else if (sscanf(line, "prefill %d %d", &a, &b) == 2) {
            answer(w, prefill(w, a, b));
        } else if (sscanf(line, "decode %d", &a) == 1) {
            answer(w, decode(w, a));
        } else if (sscanf(line, "cut %d", &a) == 1) {
            answer(w, cut(w, a));
        } else {
            answer(w, fail(w, "unknown command"));
        }
    }
}

/* ---- the command, which is not for people --------------------------------------------------------------------------------- */

#define W bench_worker_settings
static const cli_option options[] = {
    CLI_HEAD("options"),
    CLI_WORD("-m", "FILE", W, model, "model"),
    CLI_WORD("-f", "FILE", W, file, "text"),
    CLI_WORD("--arm", "NAME", W, arm, "plain libllama"),
    CLI_WORD("--kv", "ARM", W, kv.kv, "folded cache"),
    CLI_WORD("--cpu", "SET", W, kv.cpu, "instruction set"),
    CLI_WORD("--profile", "FILE", W, kv.profile, "codecs of layers"),
    CLI_WORD("--calibration", "FILE", W, kv.calibration, "calibration file"),
    CLI_COUNT("--sink", W, kv.sink, 0, 64, NULL, "exact tokens at the start"),
    CLI_COUNT("--recent", W, kv.recent, 0, 65536, NULL, "exact tokens at the end"),
    KV_WINDOW_TYPE(W),
    CLI_COUNT("--depth", W, depth, 1, INT32_MAX, "1", "tokens of history"),
    CLI_COUNT("--room", W, room, 1, INT32_MAX, "1", "tokens beyond"),
    CLI_COUNT("--batch", W, batch, 1, 65536, "255", "rows of a batch"),
    CLI_COUNT("-t", W, threads, 1, 256, "1", "threads"),
    CLI_COUNT("--seed", W, seed, 0, UINT32_MAX, "1", "of the text"),
    CLI_END,
};
#undef W

static const cli_syntax syntax = {
    .command = "bench worker", .usage = "[OPTIONS]", .about = "One arm of bench e2e.", .options = options};

int bench_worker(int argc, char **argv)
{
    worker w = {0};
    kv_settings_init(&w.set.kv);
    int code = cli_parse(&syntax, &w.set, argc, argv);
    if (code != CLI_GO) return code;
    child_ignore_interrupt();
    cli_log_install(false);
    ggml_backend_load_all();
    llama_backend_init();
    int failed = open_worker(&w);
    answer(&w, failed);
    if (!failed) obey(&w);
    close_worker(&w);
    llama_backend_free();
    return failed ? CLI_CANNOT : CLI_DONE;
}
