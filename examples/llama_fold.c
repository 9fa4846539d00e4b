/* SPDX-License-Identifier: MIT
 * An ordinary libllama program, folded. Lines marked (+) are all that folding adds; compare with llama.cpp's own "simple" loop.
 *   llama_fold MODEL.gguf [PROMPT] */
#include "kvfold_llama.h"
#include "llama.h"

#include <stdio.h>
#include <string.h>

static int fail(const char *what)
{
    fprintf(stderr, "llama_fold: %s\n", what);
    return 1;
}

static void quiet(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int argc, char **argv)
{
    const char *prompt = argc > 2 ? argv[2] : "The three primary colours are";
    if (argc < 2) return fail("usage: llama_fold MODEL.gguf [PROMPT]");
    llama_log_set(quiet, NULL);
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return fail("the model cannot be loaded");
    const struct llama_vocab *vocab = llama_model_get_vocab(model);

    char why[256];
    struct llama_context_params cp = llama_context_default_params();
    kvf_llama *fold;                                                                  /* (+) */
    kvf_llama_params kp;                                                              /* (+) */
    kvf_llama_params_init(&kp);                                                       /* (+) */
    kp.n_ctx = 4096, kp.k = "kivi4", kp.v = "kivi4";                                  /* (+) */
    if (kvf_llama_prepare(model, &cp, &kp, &fold, why, sizeof why)) return fail(why); /* (+) */
    struct llama_context *ctx = llama_init_from_model(model, cp);
    if (!ctx) return fail("no context");
    if (kvf_llama_attach(fold, ctx)) return fail(kvf_llama_error(fold)); /* (+) */

    llama_token tokens[512];
    int n = llama_tokenize(vocab, prompt, (int)strlen(prompt), tokens, 512, true, true);
    if (n < 1) return fail("the prompt is empty or longer than 512 tokens");
    struct llama_sampler *greedy = llama_sampler_init_greedy();
    struct llama_batch batch = llama_batch_get_one(tokens, n);
    printf("%s", prompt);
    for (int i = 0; i < 32; i++) {
        if (kvf_llama_decode(fold, batch)) return fail(kvf_llama_error(fold)); /* (+) for llama_decode(ctx, batch) */
        llama_token next = llama_sampler_sample(greedy, ctx, -1);
        if (llama_vocab_is_eog(vocab, next)) break;
        char piece[64];
        int length = llama_token_to_piece(vocab, next, piece, sizeof piece, 0, false);
        printf("%.*s", length, piece);
        tokens[0] = next;
        batch = llama_batch_get_one(tokens, 1);
    }
    kvf_stats_t s = {.size = sizeof s};                                                    /* (+) */
    kvf_stats(kvf_llama_cache(fold), &s);                                                  /* (+) */
    printf("\n%lld tokens in %lld bytes; f16 rows would take %lld\n", (long long)s.tokens, /* (+) */
           (long long)s.accounted, (long long)s.f16);                                      /* (+) */
    llama_sampler_free(greedy);
    kvf_llama_detach(fold); /* (+) */
    llama_free(ctx);
    kvf_llama_free(&fold); /* (+) */
    llama_model_free(model);
    return 0;
}
