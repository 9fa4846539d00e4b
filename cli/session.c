/* SPDX-License-Identifier: MIT
 * From a model file to a context with a folded cache.
 */
#include "run.h"

#include <string.h>

void session_begin(bool verbose)
{
    cli_log_install(verbose);
    cli_catch_interrupt();
    ggml_backend_load_all();
    llama_backend_init();
}

/* ---- model ----------------------------------------------------------------------------------------------------------------- */

static bool on_load(float progress, void *user)
{
    (void)progress;
    (void)user;
    return !cli_interrupted();
}

/* The header was sound, so what libllama refuses is either unknown to it, too large, or inconsistent. */
static int load_failed(const char *path, const char *reason)
{
    static const char *const cannot[] = {"unknown", "unsupported", "not supported", "alloc", "memory", "buffer"};
    int code = CLI_DAMAGED;
    for (size_t i = 0; i < sizeof cannot / sizeof cannot[0]; i++) {
        if (strstr(reason, cannot[i])) code = CLI_CANNOT;
    }
    if (!reason[0]) code = CLI_CANNOT;
    cli_error("libllama cannot load '%s'%s%s", path, reason[0] ? ": " : "", reason);
    return code;
}

static int load_model(session *s, const run_settings *set)
{
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = (int32_t)set->gpu_layers;
    mp.use_extra_bufts = set->repack;
    mp.progress_callback = on_load;
    cli_capture_begin();
    s->model = llama_model_load_from_file(set->model, mp);
    const char *reason = cli_capture_end();
    if (!s->model) return cli_interrupted() ? CLI_DONE : load_failed(set->model, reason);
    s->vocab = llama_model_get_vocab(s->model);
    if (llama_vocab_type(s->vocab) != LLAMA_VOCAB_TYPE_NONE) return CLI_GO;
    cli_error("'%s' has no tokenizer: text cannot be turned into its tokens", set->model);
    return CLI_CANNOT;
}

/* ---- context --------------------------------------------------------------------------------------------------------------- */

static bool on_abort(void *user)
{
    (void)user;
    return cli_interrupted();
}

static enum llama_rope_scaling_type rope_scaling(const char *name)
{
    if (strcmp(name, "none") == 0) return LLAMA_ROPE_SCALING_TYPE_NONE;
    return strcmp(name, "linear") == 0 ? LLAMA_ROPE_SCALING_TYPE_LINEAR : LLAMA_ROPE_SCALING_TYPE_YARN;
}

static struct llama_context_params context_params(const session *s, const run_settings *set)
{
    struct llama_context_params cp = llama_context_default_params();
    cp.n_threads = s->threads;
    cp.n_threads_batch = set->threads_batch > 0 ? (int32_t)set->threads_batch : s->threads;
    cp.offload_kqv = false;
    cp.abort_callback = on_abort;
    if (set->rope_scaling) cp.rope_scaling_type = rope_scaling(set->rope_scaling);
    cp.rope_freq_base = (float)set->rope_base;
    cp.rope_freq_scale = (float)(set->rope_scale > 0 ? 1 / set->rope_scale : set->rope_freq_scale);
    if (set->yarn_ext >= 0) cp.yarn_ext_factor = (float)set->yarn_ext;
    if (set->yarn_attn >= 0) cp.yarn_attn_factor = (float)set->yarn_attn;
    if (set->yarn_slow >= 0) cp.yarn_beta_slow = (float)set->yarn_slow;
    if (set->yarn_fast >= 0) cp.yarn_beta_fast = (float)set->yarn_fast;
    cp.yarn_orig_ctx = (uint32_t)set->yarn_context;
    return cp;
}

static void on_fold_log(void *user, kvf_log_level level, const char *text)
{
    const run_settings *set = user;
    if (level == KVF_LOG_WARN)
        cli_warn("%s", text);
    else if (set->verbose)
        cli_note("%s", text);
}

static void fold_params(kvf_llama_params *kp, const session *s, const run_settings *set)
{
    kvf_llama_params_init(kp);
    kp->n_ctx = set->context;
    kp->n_batch = (int32_t)set->batch;
    if (set->ubatch > 0 && (set->batch == 0 || set->ubatch < set->batch)) kp->n_batch = (int32_t)set->ubatch;
    kp->k = s->kv.by_default ? NULL : s->kv.k;
    kp->v = s->kv.by_default ? NULL : s->kv.v;
    kp->kv_layer = s->kv.layers.data;
    kp->sink = s->kv.sink;
    kp->recent = s->kv.recent;
    kp->exact_bits = s->kv.exact_bits;
    kp->evict = s->kv.evict;
    kp->calibration = s->calibration;
    kp->observe = set->observe, kp->observe_user = set->observe_user;
    kp->cpu = s->kv.cpu;
    kp->log = on_fold_log;
    kp->log_user = (void *)(uintptr_t)set; /* read only */
}

static int fold_failed(int rc, const char *sentence)
{
    cli_error("%s", sentence && sentence[0] ? sentence : kvf_strerror(rc));
    return cli_exit_of(rc);
}

static int open_context(session *s, const run_settings *set)
{
    char error[512] = "";
    struct llama_context_params cp = context_params(s, set);
    kvf_llama_params kp;
    fold_params(&kp, s, set);
    int rc = kvf_llama_prepare(s->model, &cp, &kp, &s->fold, error, sizeof error);
    if (rc != KVF_OK) return fold_failed(rc, error);
    cli_capture_begin();
    s->ctx = llama_init_from_model(s->model, cp);
    const char *reason = cli_capture_end();
    if (!s->ctx) {
        cli_error("libllama cannot make a context for '%s'%s%s", set->model, reason[0] ? ": " : "", reason);
        return CLI_CANNOT;
    }
    rc = kvf_llama_attach(s->fold, s->ctx);
    if (rc != KVF_OK) return cli_interrupted() ? CLI_DONE : fold_failed(rc, kvf_llama_error(s->fold));
    s->context = kvf_llama_n_ctx(s->fold);
    s->positions = kvf_llama_n_positions(s->fold);
    s->host.size = sizeof s->host;
    rc = kvf_llama_stats(s->fold, &s->host);
    return rc == KVF_OK ? CLI_GO : fold_failed(rc, kvf_llama_error(s->fold));
}

static int load_calibration(session *s, const run_settings *set)
{
    char error[512] = "";
    if (!set->kv.calibration) return CLI_GO;
    cli_capture_begin();
    int rc = kvf_llama_calibration_load(set->kv.calibration, s->model, set->model, &s->calibration, error, sizeof error);
    cli_capture_end();
    return rc == KVF_OK ? CLI_GO : fold_failed(rc, error);
}

/* ---- session --------------------------------------------------------------------------------------------------------------- */

static int check_settings(const session *s, const run_settings *set)
{
    int32_t last = kv_choice_last_layer(&s->kv);
    if (s->shape.refused[0]) {
        cli_error("'%s' cannot be folded: %s", set->model, s->shape.refused);
        return CLI_CANNOT;
    }
    if (last >= s->shape.n_layers) {
        cli_error("%s: the model has no layer %d; layers: 0 to %d", set->kv.profile ? "--profile" : "--kv-layer", last,
                  s->shape.n_layers - 1);
        return CLI_USAGE;
    }
    if (set->gpu_layers != 0 && !llama_supports_gpu_offload())
        cli_warn("-ngl: this libllama has no GPU back end; all weights stay in main memory");
    bool stretched = set->rope_scale > 0 || set->rope_base > 0 || set->rope_freq_scale > 0 || set->rope_scaling;
    if (set->context > s->shape.context && s->shape.context > 0 && !stretched)
        cli_warn("-c %lld is above the training length %lld of the model: expect worse text, or see the --rope options",
                 (long long)set->context, (long long)s->shape.context);
    return CLI_GO;
}

int session_load(session *s, const run_settings *set)
{
    *s = (session){0};
    s->threads = set->threads > 0 ? (int)set->threads : cli_threads_default();
    int code = kv_choice_make(&s->kv, &set->kv);
    if (code == CLI_GO) code = model_file_open(&s->file, set->model);
    if (code == CLI_GO) code = shape_read(&s->shape, &s->file);
    if (code == CLI_GO) code = check_settings(s, set);
    if (code == CLI_GO) code = load_model(s, set);
    if (code == CLI_GO) code = load_calibration(s, set);
    if (code == CLI_GO) kv_choice_meet(&s->kv, set->model);
    return code;
}

int session_open(session *s, const run_settings *set)
{
    int code = session_load(s, set);
    return code == CLI_GO ? open_context(s, set) : code;
}

void session_close(session *s)
{
    if (s->fold) kvf_llama_detach(s->fold);
    if (s->ctx) llama_free(s->ctx);
    kvf_llama_free(&s->fold);
    kvf_llama_calibration_free(&s->calibration);
    if (s->model) llama_model_free(s->model);
    shape_free(&s->shape);
    model_file_close(&s->file);
    kv_choice_free(&s->kv);
}
