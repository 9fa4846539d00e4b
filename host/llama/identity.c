/* SPDX-License-Identifier: MIT
 * Which model a file of weights is: a hash (XXH64) over names, types and shapes of its tensors and the bytes at the start, in the middle
 * and at the end of each. Reads a few hundred KiB whatever the size of the model. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "kvfold_llama.h"

#include "ggml.h"
#include "gguf.h"
#include "llama.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { SAMPLE = 64, PATH_MOST = 4096 };

typedef struct identity {
    const char *path;
    XXH64_state_t hash;
    char *error;
    size_t error_size;
} identity;

#define FAIL(id, code, ...)                                                                                                      \
    do {                                                                                                                         \
        if ((id)->error && (id)->error_size) snprintf((id)->error, (id)->error_size, __VA_ARGS__);                               \
        return code;                                                                                                             \
    } while (0)

static int add_sample(identity *id, FILE *f, uint64_t at, size_t n)
{
    unsigned char bytes[SAMPLE];
    if (fseeko(f, (off_t)at, SEEK_SET) || fread(bytes, 1, n, f) != n) FAIL(id, KVF_E_DAMAGED, "'%s' is truncated", id->path);
    XXH64_update(&id->hash, bytes, n);
    return KVF_OK;
}

static int add_tensor(identity *id, FILE *f, const struct gguf_context *g, int64_t i)
{
    const char *name = gguf_get_tensor_name(g, i);
    const int32_t type = (int32_t)gguf_get_tensor_type(g, i);
    const uint64_t size = gguf_get_tensor_size(g, i), at = gguf_get_data_offset(g) + gguf_get_tensor_offset(g, i);
    const size_t n = size < SAMPLE ? (size_t)size : SAMPLE;
    XXH64_update(&id->hash, name, strlen(name) + 1);
    XXH64_update(&id->hash, &type, sizeof type);
    XXH64_update(&id->hash, gguf_get_tensor_ne(g, i), GGML_MAX_DIMS * sizeof(int64_t));
    int rc = add_sample(id, f, at, n);
    if (!rc) rc = add_sample(id, f, at + (size - n) / 2, n);
    return rc ? rc : add_sample(id, f, at + size - n, n);
}

/* One file. *parts: how many files the model has, by the first. */
static int add_file(identity *id, int *parts)
{
    FILE *f = fopen(id->path, "rb");
    if (!f) FAIL(id, KVF_E_IO, "cannot open '%s': %s", id->path, strerror(errno));
    const struct gguf_init_params params = {.no_alloc = true};
    struct gguf_context *g = gguf_init_from_file(id->path, params);
    if (!g) {
        fclose(f);
        FAIL(id, KVF_E_DAMAGED, "'%s' is not a GGUF model, or damaged", id->path);
    }
    int rc = KVF_OK;
    for (int64_t i = 0; i < gguf_get_n_tensors(g) && !rc; i++) rc = add_tensor(id, f, g, i);
    const int64_t split = gguf_find_key(g, "split.count");
    if (parts) *parts = split >= 0 && gguf_get_kv_type(g, split) == GGUF_TYPE_UINT16 ? gguf_get_val_u16(g, split) : 1;
    gguf_free(g);
    fclose(f);
    return rc;
}

int kvf_llama_model_hash(const char *path, uint64_t *hash, char *error, size_t error_size)
{
    char prefix[PATH_MOST], part[PATH_MOST];
    identity id = {.path = path, .error = error, .error_size = error_size};
    int parts = 1;
    if (!path || !hash) return KVF_E_ARG;
    XXH64_reset(&id.hash, 0);
    int rc = add_file(&id, &parts);
    if (!rc && parts > 1 && !llama_split_prefix(prefix, sizeof prefix, path, 0, parts))
        FAIL(&id, KVF_E_IO, "'%s' is the first of %d files, but not named so", path, parts);
    for (int i = 1; i < parts && !rc; i++) {
        llama_split_path(part, sizeof part, prefix, i, parts);
        id.path = part;
        rc = add_file(&id, NULL);
    }
    *hash = XXH64_digest(&id.hash);
    return rc;
}
