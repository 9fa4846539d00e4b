/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* sched_getaffinity */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "real.h"

#include <ctype.h>
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const NAMES[REAL_MODELS + 1] = {"smollm2", "gemma", "key-bias"};

/* ---- files ---------------------------------------------------------------------------------------------------------------- */

static bool contains(const char *name, const char *part)
{
    char lower[256];
    size_t n = strlen(name);
    if (n >= sizeof lower) return false;
    for (size_t i = 0; i <= n; i++) lower[i] = (char)tolower((unsigned char)name[i]);
    return strstr(lower, part) != NULL;
}

static bool suits(const char *file, real_model which, bool f32)
{
    size_t n = strlen(file);
    if (n < 5 || strcmp(file + n - 5, ".gguf") != 0 || !contains(file, NAMES[which])) return false;
    return contains(file, "f32") == f32 && !contains(file, "bf16");
}

const char *real_path(real_model which, bool f32, const char **why)
{
    static char path[1024], reason[1280];
    const char *folder = getenv("KVFOLD_MODELS");
    DIR *dir = folder ? opendir(folder) : NULL;
    path[0] = '\0';
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        if (suits(e->d_name, which, f32)) snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    if (dir) closedir(dir);
    snprintf(reason, sizeof reason, "no %s model%s in KVFOLD_MODELS (%s)", NAMES[which], f32 ? " with f32 weights" : "",
             folder ? folder : "not set");
    *why = reason;
    return path[0] ? path : NULL;
}

struct llama_model *real_load(real_model which, bool f32)
{
    const char *why, *path = real_path(which, f32, &why);
    if (!path) {
        print_message("skipped: %s\n", why);
        skip();
    }
    struct llama_model *model = arm_load(path);
    if (!model) fail_msg("%s does not load", path);
    return model;
}

static char *read_slice(const slice *s)
{
    const char *path = getenv("KVFOLD_TEXT");
    FILE *f = path ? fopen(path, "rb") : NULL;
    if (!f) {
        print_message("skipped: no text at KVFOLD_TEXT (%s)\n", path ? path : "not set");
        skip();
    }
    char *text = malloc(s->bytes + 1);
    assert_non_null(text);
    if (fseek(f, (long)s->first, SEEK_SET) != 0 || fread(text, 1, s->bytes, f) != s->bytes)
        fail_msg("%s is shorter than %zu bytes: another text?", path, s->first + s->bytes);
    fclose(f);
    text[s->bytes] = '\0';
    return text;
}

llama_token *real_tokens(const struct llama_model *model, const slice *s, int32_t n)
{
    char *text = read_slice(s);
    llama_token *tokens = malloc((s->bytes + 8) * sizeof *tokens);
    assert_non_null(tokens);
    int32_t got =
        llama_tokenize(llama_model_get_vocab(model), text, (int32_t)s->bytes, tokens, (int32_t)s->bytes + 8, true, false);
    free(text);
    if (got < n) fail_msg("slice %s has %d tokens, fewer than %d", s->name, (int)got, (int)n);
    return tokens;
}

/* ---- arms ----------------------------------------------------------------------------------------------------------------- */

static int32_t fixed_threads;

void real_fix_threads(int32_t n)
{
    fixed_threads = n;
}

static int32_t threads(void)
{
    cpu_set_t set;
    if (fixed_threads) return fixed_threads;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > 4 ? 4 : n;
}

struct llama_context_params real_context(int32_t n_ctx, bool flash)
{
    struct llama_context_params c = llama_context_default_params();
    c.n_ctx = (uint32_t)n_ctx;
    c.n_batch = c.n_ubatch = REAL_BATCH;
    c.n_seq_max = 1;
    c.n_threads = c.n_threads_batch = threads();
    c.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    c.kv_unified = true;
    c.swa_full = false;
    return c;
}

void real_open(arm *a, struct llama_model *model, int32_t n_ctx, const char *k, const char *v)
{
    struct llama_context_params c = real_context(n_ctx, true);
    *a = (arm){.model = model, .n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model))};
    if (k) {
        kvf_llama_params p;
        kvf_llama_params_init(&p);
        p.n_ctx = n_ctx;
        p.k = k;
        p.v = v;
        if (kvf_llama_prepare(model, &c, &p, &a->fold, a->error, sizeof a->error) != KVF_OK)
            fail_msg("%s/%s: %s", k, v, a->error);
    }
    a->ctx = llama_init_from_model(model, c);
    if (!a->ctx) fail_msg("libllama makes no context of %d tokens", (int)n_ctx);
    if (a->fold && kvf_llama_attach(a->fold, a->ctx) != KVF_OK) fail_msg("%s/%s: %s", k, v, kvf_llama_error(a->fold));
}

void real_feed(arm *a, const llama_token *tokens, int32_t from, int32_t to, int32_t batch)
{
    for (int32_t at = from; at < to; at += batch) {
        int32_t n = to - at < batch ? to - at : batch, rc = arm_feed(a, tokens, at, n, 0, NULL);
        if (rc)
            fail_msg("decode of %d tokens at %d gives %d: %s", (int)n, (int)at, (int)rc,
                     a->fold ? kvf_llama_error(a->fold) : "libllama");
    }
}
