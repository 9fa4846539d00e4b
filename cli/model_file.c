/* SPDX-License-Identifier: MIT
 * Damaged files are refused here, with one sentence, before libllama sees them.
 */
#include "model_file.h"

#include <gguf.h>
#include <llama.h>

#include <errno.h>
#include <string.h>

enum { MAGIC = 4, HEADER = 24 }; /* bytes: "GGUF"; magic, version, number of tensors, number of keys */

static int damaged(const char *path, const char *what)
{
    cli_error("'%s' is %s", path, what);
    return CLI_DAMAGED;
}

/* Looks at the first bytes and the size. CLI_GO or an exit code. */
static int look(const char *path, int64_t *bytes)
{
    if (cli_is_directory(path)) {
        cli_error("cannot open model '%s': it is a directory", path);
        return CLI_CANNOT;
    }
    if (cli_is_stream(path)) {
        cli_error("cannot open model '%s': it is a pipe or a device, and a model has to be a file", path);
        return CLI_CANNOT;
    }
    FILE *f = fopen(path, "rb");
    if (!f) {
        cli_error("cannot open model '%s': %s", path, strerror(errno));
        return CLI_CANNOT;
    }
    unsigned char head[HEADER] = {0};
    size_t n = fread(head, 1, sizeof head, f);
    bool failed = ferror(f) || fseek(f, 0, SEEK_END) != 0 || (*bytes = (int64_t)ftell(f)) < 0;
    int error = errno;
    fclose(f);
    if (failed) {
        cli_error("cannot read model '%s': %s", path, strerror(error));
        return CLI_CANNOT;
    }
    if (n == 0) return damaged(path, "empty, not a GGUF model");
    if (memcmp(head, GGUF_MAGIC, n < MAGIC ? n : MAGIC) != 0)
        return damaged(path, "not a GGUF model: it does not begin with the letters GGUF");
    if (n < HEADER) return damaged(path, "truncated: it ends inside the header");
    if (head[4] == 0 && head[5] == 0) return damaged(path, "a GGUF of the other byte order, or its version number is damaged");
    return CLI_GO;
}

/* Where the last tensor ends, by the header. */
static uint64_t end_of_tensors(const struct gguf_context *g)
{
    uint64_t end = 0;
    for (int64_t i = 0; i < gguf_get_n_tensors(g); i++) {
        uint64_t e = (uint64_t)gguf_get_tensor_offset(g, i) + gguf_get_tensor_size(g, i);
        end = e > end ? e : end;
    }
    return gguf_get_data_offset(g) + end;
}

/* One file: header and size. CLI_GO with the header in *g, or an exit code. */
static int open_part(const char *path, struct gguf_context **g, int64_t *bytes)
{
    int code = look(path, bytes);
    if (code != CLI_GO) return code;
    cli_capture_begin();
    struct gguf_init_params params = {.no_alloc = true, .ctx = NULL};
    *g = gguf_init_from_file(path, params);
    const char *reason = cli_capture_end();
    if (!*g) {
        cli_error("'%s' is a damaged or truncated GGUF: its header cannot be read%s%s%s", path, reason[0] ? " (" : "", reason,
                  reason[0] ? ")" : "");
        return CLI_DAMAGED;
    }
    uint64_t needed = end_of_tensors(*g);
    if (needed > (uint64_t)*bytes) {
        cli_error("'%s' is truncated: it has %lld bytes, its header promises %llu", path, (long long)*bytes,
                  (unsigned long long)needed);
        gguf_free(*g);
        *g = NULL;
        return CLI_DAMAGED;
    }
    return CLI_GO;
}

/* ---- keys ------------------------------------------------------------------------------------------------------------------ */

static int64_t find(const model_file *m, const char *key)
{
    char full[256];
    snprintf(full, sizeof full, "%s.%s", m->arch ? m->arch : "", key);
    return gguf_find_key(m->gguf, full);
}

/* Element i of raw values of a type; false when the type is no whole number (or boolean). */
static bool element(enum gguf_type type, const void *data, size_t i, int64_t *value)
{
    switch (type) {
    case GGUF_TYPE_UINT8: *value = ((const uint8_t *)data)[i]; return true;
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL: *value = ((const int8_t *)data)[i]; return true;
    case GGUF_TYPE_UINT16: *value = ((const uint16_t *)data)[i]; return true;
    case GGUF_TYPE_INT16: *value = ((const int16_t *)data)[i]; return true;
    case GGUF_TYPE_UINT32: *value = ((const uint32_t *)data)[i]; return true;
    case GGUF_TYPE_INT32: *value = ((const int32_t *)data)[i]; return true;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64: *value = ((const int64_t *)data)[i]; return true;
    default: return false;
    }
}

static bool int_of_key(const struct gguf_context *g, int64_t id, size_t i, int64_t *value)
{
    if (id < 0) return false;
    enum gguf_type type = gguf_get_kv_type(g, id);
    if (type == GGUF_TYPE_STRING) return false;
    if (type != GGUF_TYPE_ARRAY) return element(type, gguf_get_val_data(g, id), 0, value);
    enum gguf_type inner = gguf_get_arr_type(g, id);
    return inner != GGUF_TYPE_STRING && i < gguf_get_arr_n(g, id) && element(inner, gguf_get_arr_data(g, id), i, value);
}

bool model_file_is_array(const model_file *m, const char *key)
{
    int64_t id = find(m, key);
    return id >= 0 && gguf_get_kv_type(m->gguf, id) == GGUF_TYPE_ARRAY;
}

bool model_file_int(const model_file *m, const char *key, int64_t *value)
{
    return !model_file_is_array(m, key) && int_of_key(m->gguf, find(m, key), 0, value);
}

bool model_file_int_at(const model_file *m, const char *key, int64_t i, int64_t *value)
{
    return i >= 0 && int_of_key(m->gguf, find(m, key), (size_t)i, value);
}

const char *model_file_string(const model_file *m, const char *key)
{
    int64_t id = gguf_find_key(m->gguf, key);
    return id >= 0 && gguf_get_kv_type(m->gguf, id) == GGUF_TYPE_STRING ? gguf_get_val_str(m->gguf, id) : NULL;
}

/* ---- split models ---------------------------------------------------------------------------------------------------------- */

static int open_other_parts(model_file *m)
{
    char prefix[4096], part[4096];
    if (llama_split_prefix(prefix, sizeof prefix, m->path, 0, m->parts) == 0) {
        cli_error("'%s' is the first of %d files of a split model, but its name does not end in -00001-of-%05d.gguf", m->path,
                  m->parts, m->parts);
        return CLI_CANNOT;
    }
    int code = CLI_GO;
    for (int i = 1; code == CLI_GO && i < m->parts; i++) {
        struct gguf_context *g = NULL;
        int64_t bytes = 0;
        llama_split_path(part, sizeof part, prefix, i, m->parts);
        code = open_part(part, &g, &bytes);
        m->bytes += bytes;
        gguf_free(g);
    }
    return code;
}

static int check_split(model_file *m)
{
    int64_t count = 1, number = 0;
    int_of_key(m->gguf, gguf_find_key(m->gguf, "split.count"), 0, &count);
    int_of_key(m->gguf, gguf_find_key(m->gguf, "split.no"), 0, &number);
    if (number != 0) {
        cli_error("'%s' is file %lld of a split model: give the first one", m->path, (long long)number + 1);
        return CLI_CANNOT;
    }
    m->parts = count > 1 && count < 100000 ? (int)count : 1;
    return m->parts > 1 ? open_other_parts(m) : CLI_GO;
}

int model_file_open(model_file *m, const char *path)
{
    *m = (model_file){.path = path, .parts = 1};
    if (!path || !path[0]) {
        cli_error("no model given: -m FILE");
        return CLI_USAGE;
    }
    int code = open_part(path, &m->gguf, &m->bytes);
    if (code != CLI_GO) return code;
    m->arch = model_file_string(m, "general.architecture");
    code = check_split(m);
    if (code == CLI_GO && !m->arch) code = damaged(path, "not a model: the key general.architecture is missing");
    if (code != CLI_GO) model_file_close(m);
    return code;
}

void model_file_close(model_file *m)
{
    if (m->gguf) gguf_free(m->gguf);
    m->gguf = NULL;
}
