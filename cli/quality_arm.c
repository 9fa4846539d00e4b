/* SPDX-License-Identifier: MIT
 * The arms of `kvfold quality`: a context with a folded cache, or with one of libllama's own.
 */
#include "quality.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ----------------------------------------------------------------------------------------------------------------- */

/* Types that libllama's own cache takes on a processor. */
static const enum ggml_type HOST_TYPE[] = {GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_F32,  GGML_TYPE_Q8_0,  GGML_TYPE_Q5_1,
                                           GGML_TYPE_Q5_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL};
enum { HOST_TYPES = sizeof HOST_TYPE / sizeof HOST_TYPE[0] };

static bool host_type(const char *name, size_t n, enum ggml_type *type)
{
    for (int i = 0; i < HOST_TYPES; i++) {
        const char *known = ggml_type_name(HOST_TYPE[i]);
        if (strlen(known) != n || strncmp(known, name, n) != 0) continue;
        *type = HOST_TYPE[i];
        return true;
    }
    return false;
}

static int no_host_type(const char *arm)
{
    cli_text names = {0};
    for (int i = 0; i < HOST_TYPES; i++) cli_text_format(&names, "%s%s", i ? ", " : "", ggml_type_name(HOST_TYPE[i]));
    cli_error("--kv: '%s' is none of libllama's caches; they are written llama-TYPE or llama-TYPE/TYPE with %s", arm, names.data);
    cli_text_free(&names);
    return CLI_USAGE;
}

/* "llama-q8_0", or "llama-q8_0/q4_0" for keys and values apart. */
static int make_host(quality_arm *arm)
{
    const char *k = arm->name + strlen("llama-"), *slash = strchr(k, '/'), *v = slash ? slash + 1 : k;
    size_t n = slash ? (size_t)(slash - k) : strlen(k);
    if (strncmp(v, "llama-", 6) == 0) v += 6;
    arm->host = true;
    arm->rows = QUALITY_BATCH;
    return host_type(k, n, &arm->k) && host_type(v, strlen(v), &arm->v) ? CLI_GO : no_host_type(arm->name);
}

static int add(quality_arm *arms, int *n, const char *text, size_t length, const quality_settings *set)
{
    if (*n == QUALITY_ARMS_MOST) {
        cli_error("--kv: more than %d arms", QUALITY_ARMS_MOST);
        return CLI_USAGE;
    }
    quality_arm *arm = &arms[*n];
    *arm = (quality_arm){.rows = QUALITY_BATCH};
    snprintf(arm->name, sizeof arm->name, "%.*s", (int)length, text);
    int code = strncmp(arm->name, "llama-", 6) == 0 && length < sizeof arm->name
                   ? make_host(arm)
                   : cli_arm_make(&arm->choice, text, length, &set->kv);
    if (code == CLI_GO) ++*n;
    return code;
}

static int add_list(quality_arm *arms, int *n, const char *list, const quality_settings *set)
{
    int code = CLI_GO;
    for (const char *p = list; code == CLI_GO; p++) {
        size_t length = cli_arm_length(p);
        code = add(arms, n, p, length, set);
        p += length;
        if (!*p) break;
    }
    return code;
}

/* A file of arms: one a line, # begins a comment. */
static int add_file(quality_arm *arms, int *n, const char *path, const quality_settings *set)
{
    cli_text t = {0};
    int before = *n, code = cli_read_file(path, &t);
    char *rest = t.data;
    for (char *line; code == CLI_GO && rest && *rest;) {
        line = rest + strspn(rest, " \t\r\n");
        rest = line + strcspn(line, "\n");
        if (*rest) *rest++ = '\0';
        line[strcspn(line, "#")] = '\0';
        size_t length = strlen(line);
        while (length > 0 && strchr(" \t\r", line[length - 1])) length--;
        if (length > 0) code = add(arms, n, line, length, set);
    }
    if (code == CLI_GO && *n == before) {
        cli_error("--arms: '%s' names no arm; it has one a line, as kivi4/kivi4", path);
        code = CLI_USAGE;
    }
    cli_text_free(&t);
    return code;
}

/* What is compared when nobody says what: libllama's two, and every preset. */
static int add_usual(quality_arm *arms, int *n, const quality_settings *set)
{
    kvf_preset_info preset;
    int code = add_list(arms, n, "llama-q8_0,llama-q4_0", set);
    for (int32_t i = 0; code == CLI_GO && kvf_preset_list(i, &preset) == KVF_OK; i++)
        code = add(arms, n, preset.name, strlen(preset.name), set);
    return code;
}

int quality_arms_make(quality_arm *arms, int *n, const quality_settings *set)
{
    int code = CLI_GO;
    if (set->list) code = add_list(arms, n, set->list, set);
    if (code == CLI_GO && set->arms_file) code = add_file(arms, n, set->arms_file, set);
    if (code == CLI_GO && !set->list && !set->arms_file) code = add_usual(arms, n, set);
    for (int i = 0; i < *n && code == CLI_GO; i++) code = kv_choice_apart(set->out.save, &arms[i].choice);
    return code;
}

void quality_arms_meet(const quality_arm *arms, int n, const quality_settings *set)
{
    kv_choices_meet(&arms->choice, sizeof *arms, n, set->kv.profile, set->model);
}

void quality_arm_plain(quality_arm *arm, const char *name, int32_t rows)
{
    *arm = (quality_arm){.host = true, .k = GGML_TYPE_F16, .v = GGML_TYPE_F16, .rows = rows};
    snprintf(arm->name, sizeof arm->name, "%s", name);
}

void quality_arm_free(quality_arm *arm)
{
    quality_arm_close(arm);
    kv_choice_free(&arm->choice);
    free(arm->point);
}

/* ---- context --------------------------------------------------------------------------------------------------------------- */

static bool on_abort(void *user)
{
    (void)user;
    return cli_interrupted();
}

static struct llama_context_params context_params(const quality_arm *arm, const session *s, const quality_settings *set)
{
    struct llama_context_params c = llama_context_default_params();
    c.n_ctx = (uint32_t)set->context;
    c.n_batch = c.n_ubatch = (uint32_t)arm->rows;
    c.n_seq_max = 1;
    c.n_threads = c.n_threads_batch = s->threads;
    c.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    c.kv_unified = true;
    c.swa_full = false;
    c.offload_kqv = false;
    c.abort_callback = on_abort;
    if (arm->host) {
        c.type_k = arm->k;
        c.type_v = arm->v;
    }
    return c;
}

static void on_fold_log(void *user, kvf_log_level level, const char *text)
{
    const quality_arm *arm = user;
    if (level == KVF_LOG_WARN) cli_warn("%s: %s", arm->name, text);
}

/* That even a query's own batch is seen coded (--seal-each) is a property of the cache, not of how it is fed. */
static int prepare_fold(quality_arm *arm, const session *s, struct llama_context_params *c, const quality_settings *set)
{
    kvf_llama_params p;
    kvf_llama_params_init(&p);
    p.n_ctx = set->context;
    p.k = arm->choice.k;
    p.v = arm->choice.v;
    p.kv_layer = arm->choice.layers.data;
    p.sink = arm->choice.sink;
    p.exact_bits = arm->choice.exact_bits;
    p.recent = set->seal_each ? 0 : arm->choice.recent; /* the window that an arm asks for is what --seal-each takes away */
    p.seal_each = set->seal_each;
    p.evict = arm->choice.evict;
    p.calibration = s->calibration;
    p.cpu = arm->choice.cpu;
    p.log = on_fold_log;
    p.log_user = arm;
    return kvf_llama_prepare(s->model, c, &p, &arm->fold, arm->failure, sizeof arm->failure);
}

static bool failed(quality_arm *arm, const char *reason)
{
    if (reason != arm->failure)
        snprintf(arm->failure, sizeof arm->failure, "%s", reason && reason[0] ? reason : "unknown reason");
    quality_arm_close(arm);
    return false;
}

bool quality_arm_open(quality_arm *arm, const session *s, const quality_settings *set)
{
    struct llama_context_params c = context_params(arm, s, set);
    if (!arm->host && prepare_fold(arm, s, &c, set) != KVF_OK) return failed(arm, arm->failure);
    cli_capture_begin();
    arm->ctx = llama_init_from_model(s->model, c);
    const char *reason = cli_capture_end();
    if (!arm->ctx) return failed(arm, reason[0] ? reason : "libllama makes no context for it");
    if (arm->fold && kvf_llama_attach(arm->fold, arm->ctx) != KVF_OK) return failed(arm, kvf_llama_error(arm->fold));
    return true;
}

void quality_arm_close(quality_arm *arm)
{
    if (arm->fold && arm->ctx) kvf_llama_detach(arm->fold);
    if (arm->ctx) llama_free(arm->ctx);
    kvf_llama_free(&arm->fold);
    arm->ctx = NULL;
    arm->fed = 0;
}

bool quality_arm_clear(quality_arm *arm)
{
    arm->fed = 0;
    if (!arm->fold)
        llama_memory_clear(llama_get_memory(arm->ctx), true);
    else if (kvf_llama_seq_rm(arm->fold, 0, 0, -1) != KVF_OK)
        return failed(arm, kvf_llama_error(arm->fold));
    return true;
}

/* ---- batches --------------------------------------------------------------------------------------------------------------- */

static int decode(quality_arm *arm, const llama_token *token, int32_t at, int32_t n, int32_t first)
{
    struct llama_batch b = llama_batch_init(n, 0, 1);
    for (int32_t i = 0; i < n; i++) {
        b.token[i] = token[i];
        b.pos[i] = at + i;
        b.n_seq_id[i] = 1;
        b.seq_id[i][0] = 0;
        b.logits[i] = at + i >= first;
    }
    b.n_tokens = n;
    int rc = arm->fold ? kvf_llama_decode(arm->fold, b) : llama_decode(arm->ctx, b);
    llama_batch_free(b);
    return rc;
}

static bool feed(quality_arm *arm, const llama_token *token, int32_t at, int32_t rows, int32_t first)
{
    char sentence[128];
    int rc = decode(arm, token, at, rows, first);
    arm->at = at;
    arm->fed = rows;
    if (rc == 0) return true;
    if (cli_interrupted()) return false;
    snprintf(sentence, sizeof sentence, "libllama's decode of %d tokens at %d gives %d", rows, at, rc);
    return failed(arm, arm->fold ? kvf_llama_error(arm->fold) : sentence);
}

bool quality_arm_feed(quality_arm *arm, const llama_token *token, int32_t at, int32_t n, int32_t first)
{
    if (arm->fed > 0 && at < arm->at + arm->fed) return true; /* a larger batch holds it already */
    return feed(arm, token + at, at, n - at < arm->rows ? n - at : arm->rows, first);
}

bool quality_arm_feed_one(quality_arm *arm, llama_token token, int32_t pos)
{
    return feed(arm, &token, pos, 1, pos);
}

bool quality_arm_cut(quality_arm *arm, int32_t pos)
{
    arm->fed = 0;
    if (arm->fold) return kvf_llama_seq_rm(arm->fold, 0, pos, -1) == KVF_OK;
    return llama_memory_seq_rm(llama_get_memory(arm->ctx), 0, pos, -1);
}

const float *quality_arm_logits(quality_arm *arm, int32_t pos)
{
    return arm->fold ? kvf_llama_logits_ith(arm->fold, pos - arm->at) : llama_get_logits_ith(arm->ctx, pos - arm->at);
}

/* ---- size ------------------------------------------------------------------------------------------------------------------ */

static double type_bits(enum ggml_type type)
{
    return 8.0 * (double)ggml_type_size(type) / (double)ggml_blck_size(type);
}

void quality_arm_count(quality_arm *arm)
{
    if (arm->host) { /* codes and nothing else, of the cells in use: layers with a window have fewer */
        arm->bits_code = arm->bits_per_value = arm->with_host = (type_bits(arm->k) + type_bits(arm->v)) / 2;
        arm->body = arm->at + arm->fed;
        return;
    }
    kvf_stats_t s = {.size = sizeof s};
    kvf_llama_stats_t h = {.size = sizeof h};
    if (kvf_stats(kvf_llama_cache(arm->fold), &s) != KVF_OK) return;
    arm->bits_code = s.bits_code;
    arm->bits_per_value = arm->with_host = s.bits_per_value;
    if (kvf_llama_stats(arm->fold, &h) == KVF_OK && s.accounted > 0) arm->with_host *= 1 + (double)h.host / (double)s.accounted;
    arm->body = s.tokens_body, arm->evicted = s.tokens_evicted, arm->recoded = s.rows_recoded;
}
