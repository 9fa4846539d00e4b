/* SPDX-License-Identifier: MIT
 * kvfold widen: the same model with its quantised and half-precision weights expanded, so that two runs differ by their KV cache alone
 * and not by the quantised activations that integer weights bring along. Matrices become --type, vectors always f32. What was f32 (or an
 * integer) already stays as it is, and so does the metadata, but for general.file_type and general.alignment. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "gguf_out.h"
#include "options.h"
#include "progress.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <gguf.h>

/* general.file_type of llama.h's enum llama_ftype */
enum { FILE_TYPE_F32 = 0, FILE_TYPE_BF16 = 32 };

/* Elements converted at a time: 14 MiB, which with the metadata is all the memory that the tool needs. */
#define PIECE (1024 * 1024)

/* Bytes of a model above which one waits long enough to want to know for how long. */
#define NOTICEABLE (64u << 20)

typedef struct job {
    const char *in_path, *out_path;
    enum ggml_type wide;
    FILE *in;
    uint64_t in_size;
    progress bar;
    struct gguf_context *meta, *out_meta;
    struct ggml_context *shapes;
    char reason[256]; /* what ggml said about a header that it refused */
    void *raw;
    float *values;
    void *packed;
} job;

/* Says the sentence and gives the exit code. */
#define say(code, ...) (cli_error(__VA_ARGS__), (code))

/* Keeps the first line that ggml logs: it names the key or tensor. */
static void keep_reason(enum ggml_log_level level, const char *text, void *user)
{
    job *j = user;
    if (level != GGML_LOG_LEVEL_ERROR || j->reason[0]) return;
    const char *colon = strstr(text, ": ");
    snprintf(j->reason, sizeof j->reason, "%s", colon ? colon + 2 : text);
    j->reason[strcspn(j->reason, "\n")] = 0;
}

static int open_input(job *j)
{
    char magic[4];
    struct stat st;
    j->in = fopen(j->in_path, "rb");
    if (!j->in || fstat(fileno(j->in), &st)) return say(CLI_CANNOT, "cannot read %s: %s", j->in_path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return say(CLI_CANNOT, "%s is not a regular file", j->in_path);
    if (cli_save_apart(j->out_path, j->in_path) != CLI_GO) return CLI_USAGE;
    j->in_size = (uint64_t)st.st_size;
    if (fread(magic, 1, 4, j->in) != 4 || memcmp(magic, GGUF_MAGIC, 4))
        return say(CLI_DAMAGED, "%s is not a GGUF file", j->in_path);
    return 0;
}

static int read_header(job *j)
{
    struct gguf_init_params p = {.no_alloc = true, .ctx = &j->shapes};
    ggml_log_set(keep_reason, j);
    j->meta = gguf_init_from_file(j->in_path, p);
    if (!j->meta) return say(CLI_DAMAGED, "the header of %s is damaged%s%s", j->in_path, j->reason[0] ? ": " : "", j->reason);
    int64_t parts = gguf_find_key(j->meta, "split.count");
    if (parts >= 0 && gguf_get_kv_type(j->meta, parts) == GGUF_TYPE_UINT16 && gguf_get_val_u16(j->meta, parts) > 1)
        return say(CLI_CANNOT, "%s is one part of a split model: merge the parts first", j->in_path);
    return 0;
}

static bool is_narrow(enum ggml_type type)
{
    return type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || ggml_is_quantized(type);
}

static enum ggml_type wide_type(const job *j, const struct ggml_tensor *t)
{
    if (!is_narrow(t->type)) return t->type;
    return ggml_n_dims(t) > 1 ? j->wide : GGML_TYPE_F32;
}

/* Every tensor must lie within the file and be of a type that can be expanded, before a byte is written. */
static int check_tensors(const job *j)
{
    uint64_t base = gguf_get_data_offset(j->meta);
    for (int64_t i = 0; i < gguf_get_n_tensors(j->meta); i++) {
        const char *name = gguf_get_tensor_name(j->meta, i);
        enum ggml_type type = gguf_get_tensor_type(j->meta, i);
        uint64_t start = base + gguf_get_tensor_offset(j->meta, i);
        if (start > j->in_size || gguf_get_tensor_size(j->meta, i) > j->in_size - start)
            return say(CLI_DAMAGED, "%s is cut short: tensor %s ends beyond its %llu bytes", j->in_path, name,
                       (unsigned long long)j->in_size);
        if (is_narrow(type) && !ggml_get_type_traits(type)->to_float)
            return say(CLI_CANNOT, "tensor %s of %s is %s, which this ggml cannot expand", name, j->in_path,
                       ggml_type_name(type));
    }
    return 0;
}

/* general.alignment describes the layout of the file that was read; the new one has the default. */
static void make_meta(job *j)
{
    j->out_meta = gguf_init_empty();
    gguf_set_kv(j->out_meta, j->meta);
    gguf_remove_key(j->out_meta, GGUF_KEY_GENERAL_ALIGNMENT);
    gguf_set_val_u32(j->out_meta, "general.file_type", j->wide == GGML_TYPE_F32 ? FILE_TYPE_F32 : FILE_TYPE_BF16);
    for (int64_t i = 0; i < gguf_get_n_tensors(j->meta); i++) {
        const struct ggml_tensor *t = ggml_get_tensor(j->shapes, gguf_get_tensor_name(j->meta, i));
        gguf_add_tensor(j->out_meta, t);
        gguf_set_tensor_type(j->out_meta, t->name, wide_type(j, t));
    }
}

static int read_piece(const job *j, size_t size, const char *name)
{
    errno = 0;
    if (fread(j->raw, 1, size, j->in) == size) return 0;
    if (errno) return say(CLI_CANNOT, "cannot read tensor %s of %s: %s", name, j->in_path, strerror(errno));
    return say(CLI_DAMAGED, "%s ended within tensor %s", j->in_path, name);
}

static int write_piece(gguf_out *out, const void *data, size_t size)
{
    if (!gguf_out_write(out, data, size)) return 0;
    return say(CLI_CANNOT, "%s", out->error);
}

/* n elements of one tensor, n a multiple of the block size. */
static int convert_piece(const job *j, gguf_out *out, const struct ggml_tensor *t, int64_t n)
{
    enum ggml_type to = wide_type(j, t);
    size_t size = (size_t)(n / ggml_blck_size(t->type)) * ggml_type_size(t->type);
    int rc = read_piece(j, size, t->name);
    if (rc) return rc;
    if (to == t->type) return write_piece(out, j->raw, size);
    ggml_get_type_traits(t->type)->to_float(j->raw, j->values, n);
    if (to == GGML_TYPE_F32) return write_piece(out, j->values, (size_t)n * sizeof(float));
    ggml_fp32_to_bf16_row(j->values, j->packed, n);
    return write_piece(out, j->packed, (size_t)n * sizeof(ggml_bf16_t));
}

static int convert_tensor(const job *j, gguf_out *out, int64_t i)
{
    const struct ggml_tensor *t = ggml_get_tensor(j->shapes, gguf_get_tensor_name(j->meta, i));
    uint64_t at = gguf_get_data_offset(j->meta) + gguf_get_tensor_offset(j->meta, i);
    int64_t block = ggml_blck_size(t->type), piece = PIECE / block * block;
    if (fseeko(j->in, (off_t)at, SEEK_SET)) return say(CLI_CANNOT, "cannot read %s: %s", j->in_path, strerror(errno));
    for (int64_t left = ggml_nelements(t); left > 0;) {
        int64_t n = left < piece ? left : piece;
        int rc = convert_piece(j, out, t, n);
        if (rc) return rc;
        left -= n;
    }
    return gguf_out_pad(out) ? say(CLI_CANNOT, "%s", out->error) : 0;
}

static int convert(job *j)
{
    gguf_out out;
    int rc = 0;
    j->bar = progress_begin("widen", "tensors", j->in_size > NOTICEABLE ? gguf_get_n_tensors(j->meta) : 0);
    if (gguf_out_open(&out, j->out_path, j->out_meta)) rc = say(CLI_CANNOT, "%s", out.error);
    for (int64_t i = 0; !rc && i < gguf_get_n_tensors(j->meta); i++) {
        rc = cli_interrupted() ? say(CLI_CANNOT, "interrupted: %s is not written", j->out_path) : convert_tensor(j, &out, i);
        progress_set(&j->bar, i + 1);
    }
    progress_end(&j->bar);
    if (!rc && gguf_out_close(&out)) rc = say(CLI_CANNOT, "%s", out.error);
    if (rc) gguf_out_abort(&out);
    return rc;
}

static int run(job *j)
{
    int rc = open_input(j);
    if (!rc) rc = read_header(j);
    if (!rc) rc = check_tensors(j);
    if (rc) return rc;
    make_meta(j);
    j->raw = malloc(PIECE * sizeof(double)); /* as wide as the widest type that is copied */
    j->values = malloc(PIECE * sizeof(float));
    j->packed = malloc(PIECE * sizeof(ggml_bf16_t));
    if (!j->raw || !j->values || !j->packed) return say(CLI_CANNOT, "not enough memory");
    return convert(j);
}

/* ---- the command ----------------------------------------------------------------------------------------------------------- */

typedef struct settings {
    const char *model, *output, *type;
} settings;

static const cli_option options[] = {
    CLI_HEAD("files"),
    CLI_WORD("-m --model", "FILE", settings, model, "model to read, a GGUF file in one part"),
    CLI_WORD("-o --output", "FILE", settings, output, "where the expanded model goes; it appears there only when it is whole"),
    CLI_ONE_OF("--type", "TYPE", settings, type, "f32 bf16", "f32", NULL,
               "f32: exact, four bytes a weight; bf16: two bytes, rounds what was quantised"),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "widen",
    .usage = "-m FILE -o FILE [--type f32|bf16]",
    .about = "Expands the quantised and half-precision weights of a model. Integer weights make libllama round activations to 8 "
             "bits,\n"
             "which amplifies any change in the cache: of an exact cache kvfold quality then reads 0.005 where f32 weights read "
             "0.0000005.",
    .options = options,
};

static void free_job(job *j)
{
    if (j->in) fclose(j->in);
    if (j->meta) gguf_free(j->meta);
    if (j->out_meta) gguf_free(j->out_meta);
    if (j->shapes) ggml_free(j->shapes);
    free(j->raw);
    free(j->values);
    free(j->packed);
}

int cmd_widen(int argc, char **argv)
{
    settings s = {0};
    int code = cli_parse(&syntax, &s, argc, argv);
    if (code != CLI_GO) return code;
    if (!s.model || !s.output)
        return say(CLI_USAGE, "widen: %s is missing: kvfold widen -m model.gguf -o model-f32.gguf",
                   s.model ? "-o FILE" : "-m FILE");
    job j = {.in_path = s.model, .out_path = s.output, .wide = strcmp(s.type, "f32") == 0 ? GGML_TYPE_F32 : GGML_TYPE_BF16};
    cli_catch_interrupt();
    code = run(&j);
    free_job(&j);
    return code;
}
