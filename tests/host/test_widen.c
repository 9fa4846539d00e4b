/* SPDX-License-Identifier: MIT
 * kvfold widen: every tensor of its output equals ggml's own dequantisation of the input, metadata survives, the widened model
 * says what the narrow one says within the noise of quantised activations, and what it cannot do it says. */
#define _POSIX_C_SOURCE 200809L
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <signal.h>
#include <fcntl.h>

#include <cmocka.h>

#include "fixture.h"
#include "gguf.h"

static char in_path[512], out_path[512], part_path[600], said_path[512];
static char said[4096];

static int set_paths(void **state)
{
    (void)state;
    snprintf(in_path, sizeof in_path, "%s/narrow.gguf", fixture_folder());
    snprintf(out_path, sizeof out_path, "%s/wide.gguf", fixture_folder());
    snprintf(part_path, sizeof part_path, "%s.part", out_path);
    snprintf(said_path, sizeof said_path, "%s/said", fixture_folder());
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    remove(in_path);
    remove(out_path);
    remove(part_path);
    remove(said_path);
    return fixture_free(state);
}

static const char *program(void)
{
    static char path[600];
    const char *bin = getenv("KVFOLD_BIN");
    snprintf(path, sizeof path, "%s/kvfold", bin ? bin : ".");
    return path;
}

static void read_said(void)
{
    FILE *f = fopen(said_path, "rb");
    assert_non_null(f);
    size_t n = fread(said, 1, sizeof said - 1, f);
    said[n] = 0;
    fclose(f);
}

/* Runs widen with these words; its exit code, what it said in `said`. file_limit 0: none. */
static int widen(const char *in, const char *out, const char *type, rlim_t file_limit)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        struct rlimit limit = {file_limit, file_limit};
        int fd = open(said_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(fd, 2);
        signal(SIGXFSZ, SIG_IGN);
        if (file_limit) setrlimit(RLIMIT_FSIZE, &limit);
        execl(program(), "kvfold", "widen", "-m", in, "-o", out, "--type", type, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    read_said();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void make_narrow(const char *name, enum ggml_type weights)
{
    char error[512] = "";
    assert_int_equal(gen_model_write(gen_model_find(name), weights, in_path, error, sizeof error), 0);
}

typedef struct opened {
    struct gguf_context *meta;
    struct ggml_context *data;
} opened;

static opened open_file(const char *path)
{
    opened o = {0};
    struct gguf_init_params p = {.no_alloc = false, .ctx = &o.data};
    o.meta = gguf_init_from_file(path, p);
    assert_non_null(o.meta);
    return o;
}

static void close_file(opened *o)
{
    gguf_free(o->meta);
    ggml_free(o->data);
}

static float *as_floats(const struct ggml_tensor *t)
{
    int64_t n = ggml_nelements(t);
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    if (t->type == GGML_TYPE_F32)
        memcpy(x, t->data, (size_t)n * sizeof *x);
    else
        ggml_get_type_traits(t->type)->to_float(t->data, x, n);
    return x;
}

static void check_tensor(const struct ggml_tensor *narrow, const struct ggml_tensor *wide, enum ggml_type target)
{
    int64_t n = ggml_nelements(narrow);
    enum ggml_type want = narrow->type == GGML_TYPE_F32 ? GGML_TYPE_F32 : ggml_n_dims(narrow) > 1 ? target : GGML_TYPE_F32;
    assert_memory_equal(narrow->ne, wide->ne, sizeof narrow->ne);
    if (narrow->type == GGML_TYPE_I32) {
        assert_int_equal(wide->type, GGML_TYPE_I32);
        assert_memory_equal(narrow->data, wide->data, ggml_nbytes(narrow));
        return;
    }
    assert_int_equal(wide->type, want);
    float *x = as_floats(narrow), *y = as_floats(wide);
    for (int64_t i = 0; i < n; i++) {
        float expected = want == GGML_TYPE_BF16 ? ggml_bf16_to_fp32(ggml_fp32_to_bf16(x[i])) : x[i];
        if (y[i] != expected)
            fail_msg("%s[%lld] is %g instead of %g", narrow->name, (long long)i, (double)y[i], (double)expected);
    }
    free(x);
    free(y);
}

static void check_files(enum ggml_type target, uint32_t file_type)
{
    opened narrow = open_file(in_path), wide = open_file(out_path);
    assert_int_equal(gguf_get_n_tensors(wide.meta), gguf_get_n_tensors(narrow.meta));
    assert_int_equal(gguf_get_val_u32(wide.meta, gguf_find_key(wide.meta, "general.file_type")), file_type);
    for (int64_t i = 0; i < gguf_get_n_kv(narrow.meta); i++)
        if (strcmp(gguf_get_key(narrow.meta, i), GGUF_KEY_GENERAL_ALIGNMENT))
            assert_true(gguf_find_key(wide.meta, gguf_get_key(narrow.meta, i)) >= 0);
    for (int64_t i = 0; i < gguf_get_n_tensors(narrow.meta); i++) {
        const char *name = gguf_get_tensor_name(narrow.meta, i);
        assert_string_equal(gguf_get_tensor_name(wide.meta, i), name);
        check_tensor(ggml_get_tensor(narrow.data, name), ggml_get_tensor(wide.data, name), target);
    }
    close_file(&narrow);
    close_file(&wide);
}

static void test_values(void **state)
{
    static const enum ggml_type types[] = {GGML_TYPE_Q4_1, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K,
                                           GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_F32};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        make_narrow("llama-64", types[i]);
        assert_int_equal(widen(in_path, out_path, "f32", 0), 0);
        assert_string_equal(said, "");
        check_files(GGML_TYPE_F32, 0);
        assert_int_equal(widen(in_path, out_path, "bf16", 0), 0);
        check_files(GGML_TYPE_BF16, 32);
        assert_int_not_equal(access(part_path, F_OK), 0);
    }
}

static void add_tensor(struct gguf_context *g, struct ggml_context *c, const char *name, enum ggml_type type, int64_t n0,
                       int64_t n1)
{
    struct ggml_tensor *t = n1 ? ggml_new_tensor_2d(c, type, n0, n1) : ggml_new_tensor_1d(c, type, n0);
    float row[128];
    assert_true(n0 <= 128);
    ggml_set_name(t, name);
    for (int64_t r = 0; r < ggml_nrows(t); r++) {
        char *at = (char *)t->data + (size_t)r * t->nb[1];
        for (int64_t i = 0; i < n0; i++) row[i] = (float)((r * n0 + i) * 37 % 101) * 0.03125f - 1.5f;
        if (type == GGML_TYPE_F32 || type == GGML_TYPE_I32)
            memcpy(at, row, (size_t)n0 * sizeof *row);
        else
            ggml_quantize_chunk(type, row, at, 0, 1, n0, NULL);
    }
    gguf_add_tensor(g, t);
}

/* A file of single tensors, whose data starts at multiples of `alignment`. */
static void make_odd(uint32_t alignment)
{
    struct ggml_init_params p = {.mem_size = 1 << 20};
    struct ggml_context *c = ggml_init(p);
    struct gguf_context *g = gguf_init_empty();
    char filler[128] = "";
    gguf_set_val_str(g, "general.architecture", "none");
    if (alignment == 32) { /* sizes that are no multiple of it */
        gguf_set_val_u32(g, "general.file_type", 1);
        add_tensor(g, c, "half vector", GGML_TYPE_F16, 5, 0);
        add_tensor(g, c, "half matrix", GGML_TYPE_F16, 7, 3);
        add_tensor(g, c, "coded vector", GGML_TYPE_Q8_0, 64, 0);
        add_tensor(g, c, "coded matrix", GGML_TYPE_Q5_0, 32, 3);
        add_tensor(g, c, "brain vector", GGML_TYPE_BF16, 3, 0);
        add_tensor(g, c, "integers", GGML_TYPE_I32, 9, 0);
        add_tensor(g, c, "floats", GGML_TYPE_F32, 3, 3);
    } else { /* ggml writes with 32 only: sizes and header are made to fit both. Without a file type, the header will grow */
        gguf_set_val_u32(g, GGUF_KEY_GENERAL_ALIGNMENT, alignment);
        add_tensor(g, c, "first", GGML_TYPE_F16, 64, 0);
        add_tensor(g, c, "second", GGML_TYPE_F16, 64, 2);
        for (size_t i = 0; i < sizeof filler - 1 && (!i || gguf_get_meta_size(g) % alignment); i++) {
            filler[i] = '.';
            gguf_set_val_str(g, "filler", filler);
        }
        assert_int_equal(gguf_get_meta_size(g) % alignment, 0);
    }
    assert_true(gguf_write_to_file(g, in_path, false));
    gguf_free(g);
    ggml_free(c);
}

/* Vectors become f32 whatever is asked for, integers and floats stay, and tensors start where the file says. */
static void test_odd_tensors(void **state)
{
    static const uint32_t alignments[] = {32, 64};
    (void)state;
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        make_odd(alignments[i]);
        assert_int_equal(widen(in_path, out_path, "bf16", 0), 0);
        check_files(GGML_TYPE_BF16, 32);
        assert_int_equal(widen(in_path, out_path, "f32", 0), 0);
        check_files(GGML_TYPE_F32, 0);
    }
}

static void logits_of(const char *path, float *logits, int32_t n)
{
    llama_token text[64];
    arm_options o;
    arm a;
    struct llama_model *m = arm_load(path);
    assert_non_null(m);
    for (int32_t i = 0; i < n; i++) text[i] = i * 37 % GEN_VOCAB;
    arm_options_init(&o, 256, NULL, NULL);
    assert_int_equal(arm_open(&a, m, &o), KVF_OK);
    assert_int_equal(arm_feed(&a, text, 0, n, 0, logits), 0);
    arm_close(&a);
    llama_model_free(m);
}

/* Activations are cut to 8 bits when weights are quantised, and not when they are f32: about a percent a layer. */
static void test_logits(void **state)
{
    float *narrow = fixture_logits(GEN_VOCAB, 64), *wide = fixture_logits(GEN_VOCAB, 64);
    (void)state;
    make_narrow("llama-64", GGML_TYPE_Q4_1);
    assert_int_equal(widen(in_path, out_path, "f32", 0), 0);
    logits_of(in_path, narrow, 64);
    logits_of(out_path, wide, 64);
    double worst = arm_worst(wide, narrow, 0, 64, GEN_VOCAB, NULL);
    print_message("widened against q4_1: worst relative error %.2e\n", worst);
    assert_true(worst > 0 && worst < 0.05);
    free(narrow);
    free(wide);
}

static void truncate_input(off_t size)
{
    assert_int_equal(truncate(in_path, size), 0);
}

static void expect(int code, int want, const char *word)
{
    print_message("%d %s", code, said);
    assert_int_equal(code, want);
    assert_non_null(strstr(said, word));
    assert_int_not_equal(access(part_path, F_OK), 0); /* nothing half done is left */
}

static void test_refusals(void **state)
{
    char nowhere[600];
    struct stat st;
    (void)state;
    remove(out_path);
    make_narrow("llama-64", GGML_TYPE_Q4_1);
    assert_int_equal(stat(in_path, &st), 0);
    expect(widen(in_path, out_path, "f64", 0), 1, "allowed: f32 bf16");
    expect(widen(in_path, out_path, NULL, 0), 1, "--type needs a value");
    expect(widen(in_path, in_path, "f32", 0), 1, "same file");
    expect(widen(in_path, fixture_folder(), "f32", 0), 2, "directory"); /* before anything is converted */
    snprintf(nowhere, sizeof nowhere, "%s/no/such/folder.gguf", fixture_folder());
    expect(widen(in_path, nowhere, "f32", 0), 2, nowhere);
    expect(widen(nowhere, out_path, "f32", 0), 2, nowhere);
    expect(widen(in_path, out_path, "f32", 1 << 20), 2, "cannot write");
    truncate_input(st.st_size - 4096);
    expect(widen(in_path, out_path, "f32", 0), 3, "cut short");
    truncate_input(400);
    expect(widen(in_path, out_path, "f32", 0), 3, "damaged");
    truncate_input(3);
    expect(widen(in_path, out_path, "f32", 0), 3, "not a GGUF file");
    assert_int_not_equal(access(out_path, F_OK), 0);
}

/* A failure leaves an earlier output as it was. */
static void test_old_output_survives(void **state)
{
    struct stat before, after;
    (void)state;
    make_narrow("llama-64", GGML_TYPE_Q4_1);
    assert_int_equal(widen(in_path, out_path, "f32", 0), 0);
    assert_int_equal(stat(out_path, &before), 0);
    expect(widen(in_path, out_path, "f32", 1 << 20), 2, "cannot write");
    assert_int_equal(stat(out_path, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
}

static void read_file(const char *path, char *bytes, size_t n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(bytes, 1, n, f), n);
    fclose(f);
}

/* Whatever lies beside the output is somebody's: the input itself, or a file that only looks like a piece. */
static void test_neighbours_survive(void **state)
{
    static char before[4096], after[4096];
    (void)state;
    remove(out_path);
    make_narrow("llama-64", GGML_TYPE_Q4_1);
    assert_int_equal(rename(in_path, part_path), 0);
    read_file(part_path, before, sizeof before);
    assert_int_equal(widen(part_path, out_path, "f32", 0), 0);
    read_file(part_path, after, sizeof after);
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(rename(part_path, in_path), 0);
    check_files(GGML_TYPE_F32, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),   cmocka_unit_test(test_odd_tensors),         cmocka_unit_test(test_logits),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_old_output_survives), cmocka_unit_test(test_neighbours_survive),
    };
    if (access(program(), X_OK)) {
        fprintf(stderr, "no %s: set KVFOLD_BIN\n", program());
        return 1;
    }
    return cmocka_run_group_tests(tests, set_paths, remove_files);
}
