/* SPDX-License-Identifier: MIT
 * A calibration meets a model whose weights are not looked at (no path): other numbers of layers, heads and channels are refused. In the
 * program the hash of the weights speaks first. The model is made by gen-model, which lies beside the program. */
#define _DEFAULT_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/calibrate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 4, HEADS = 2, DIM = 64, WIDE = 128 }; /* of llama-64 */

static char folder[] = "/tmp/kvfold-meets-XXXXXX", model_path[64], file[64];
static struct llama_model *model;

static int make_model(void **state)
{
    (void)state;
    char command[512];
    const char *bin = getenv("KVFOLD_BIN");
    if (!bin || !mkdtemp(folder)) return -1;
    snprintf(model_path, sizeof model_path, "%s/model.gguf", folder);
    snprintf(file, sizeof file, "%s/c.gguf", folder);
    snprintf(command, sizeof command, "'%s/gen-model' llama-64 '%s' f32", bin, model_path);
    if (system(command) != 0) return -1;
    cli_log_install(false);
    llama_backend_init();
    model = llama_model_load_from_file(model_path, llama_model_default_params());
    return model && llama_model_n_layer(model) == LAYERS ? 0 : -1;
}

static int remove_model(void **state)
{
    (void)state;
    llama_model_free(model);
    llama_backend_free();
    return remove(file) | remove(model_path) | rmdir(folder);
}

/* A calibration of so many layers, of which the last one has heads and channels of its own. */
static void write_file(int layers, int heads, int k_dim, int v_dim)
{
    static float ones[HEADS * 2 * WIDE];
    static ggml_fp16_t owner;
    calibrate_layer layer[LAYERS + 1] = {{.owner = 0}};
    calibrate_result result[LAYERS + 1] = {{.arrays = NULL}};
    const calibrate_books books = {.n = 0};
    const calibrate_collection c = {.layer = layer, .n_layers = layers};
    const calibrate_about about = {.architecture = "llama", .tokens = 64, .positions = 60, .context = 64};
    for (int i = 0; i < HEADS * 2 * WIDE; i++) ones[i] = 1;
    for (int il = 0; il < layers; il++) {
        const bool last = il == layers - 1;
        layer[il].k = &owner, result[il].arrays = ones, result[il].learnt.k_rms = ones;
        layer[il].info.kv_heads = last ? heads : HEADS;
        layer[il].info.k_dim = last ? k_dim : DIM, layer[il].info.v_dim = last ? v_dim : DIM;
    }
    assert_int_equal(calibrate_write(file, &c, result, &books, &about), CLI_GO);
}

/* Attaches the model with the file; its sentence goes to error. */
static int meet(char *error, size_t size)
{
    kvf_llama_calibration *c = NULL;
    kvf_llama *fold = NULL;
    kvf_llama_params kp;
    struct llama_context_params cp = llama_context_default_params();
    int rc = kvf_llama_calibration_load(file, model, NULL, &c, error, size);
    if (rc != KVF_OK) return rc;
    kvf_llama_params_init(&kp);
    kp.n_ctx = 256, kp.calibration = c;
    cp.n_threads = cp.n_threads_batch = 1;
    assert_int_equal(kvf_llama_prepare(model, &cp, &kp, &fold, error, size), KVF_OK);
    struct llama_context *ctx = llama_init_from_model(model, cp);
    assert_non_null(ctx);
    rc = kvf_llama_attach(fold, ctx);
    snprintf(error, size, "%s", kvf_llama_error(fold));
    kvf_llama_detach(fold);
    llama_free(ctx);
    kvf_llama_free(&fold);
    kvf_llama_calibration_free(&c);
    return rc;
}

static void refused(int layers, int heads, int k_dim, int v_dim, const char *sentence)
{
    char error[512] = "";
    write_file(layers, heads, k_dim, v_dim);
    assert_int_equal(meet(error, sizeof error), KVF_E_MODEL);
    if (!strstr(error, sentence)) fail_msg("'%s' does not say '%s'", error, sentence);
}

static void test_its_own_shape(void **state)
{
    (void)state;
    char error[512] = "";
    write_file(LAYERS, HEADS, DIM, DIM);
    const int rc = meet(error, sizeof error);
    if (rc != KVF_OK) fail_msg("%s", error);
}

static void test_other_layers(void **state)
{
    (void)state;
    refused(LAYERS - 1, HEADS, DIM, DIM, "is of a model with 3 layers, and this one has 4");
    refused(LAYERS + 1, HEADS, DIM, DIM, "is of a model with 5 layers, and this one has 4");
}

static void test_other_heads(void **state)
{
    (void)state;
    refused(
        LAYERS, HEADS, WIDE, DIM,
        "layer 3: the calibration is of 2 KV heads of 128 and 64 channels (keys, values), and the model's are 2 of 64 and 64");
    refused(LAYERS, HEADS, DIM, WIDE, "layer 3: the calibration is of 2 KV heads of 64 and 128 channels");
    refused(LAYERS, 2 * HEADS, DIM, DIM, "layer 3: the calibration is of 4 KV heads of 64 and 64 channels");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_its_own_shape),
        cmocka_unit_test(test_other_layers),
        cmocka_unit_test(test_other_heads),
    };
    return cmocka_run_group_tests_name("calibration and model", tests, make_model, remove_model);
}
