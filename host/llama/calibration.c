/* SPDX-License-Identifier: MIT
 * Reading a calibration file: a GGUF file (docs/calibration.md) whose first key is a checksum of all that follows it, so damage is found
 * before anything is believed. */
#define _POSIX_C_SOURCE 200809L
#include "kvfold_llama.h"

#include "ggml.h"
#include "gguf.h"
#include "llama.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define KEY "kvfold.calibration."

enum { MOST_BYTES = 1 << 30, MOST_LAYERS = 4096, MOST_HEADS = 4096, MOST_CHANNELS = 1024, DIGITS = 16 };

struct kvf_llama_calibration {
    const char *path;
    uint8_t *bytes; /* the whole file */
    size_t size;
    struct gguf_context *gguf;
    kvf_calibrated_layer *layers;
    kvf_codebook *books;
    kvf_llama_calibration_info info;
    char *error;
    size_t error_size;
};

static int fail(const kvf_llama_calibration *c, int code, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    if (c->error && c->error_size) vsnprintf(c->error, c->error_size, format, values);
    va_end(values);
    return code;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------------------- */

static int read_file(kvf_llama_calibration *c)
{
    struct stat st;
    FILE *f = fopen(c->path, "rb");
    if (!f || fstat(fileno(f), &st)) {
        const int code = errno;
        if (f) fclose(f);
        return fail(c, KVF_E_IO, "cannot open the calibration '%s': %s", c->path, strerror(code));
    }
    int rc = KVF_OK;
    if (!S_ISREG(st.st_mode)) rc = fail(c, KVF_E_IO, "the calibration '%s' is not a regular file", c->path);
    if (!rc && st.st_size > MOST_BYTES)
        rc = fail(c, KVF_E_DAMAGED, "'%s' has %lld bytes: no calibration is that large", c->path, (long long)st.st_size);
    c->size = rc ? 0 : (size_t)st.st_size;
    if (!rc && !(c->bytes = malloc(c->size + 1)))
        rc = fail(c, KVF_E_NOMEM, "out of memory: '%s' has %zu bytes", c->path, c->size);
    if (!rc && fread(c->bytes, 1, c->size, f) != c->size) rc = fail(c, KVF_E_IO, "cannot read the calibration '%s'", c->path);
    fclose(f);
    return rc;
}

/* The file starts with magic, version and counts (24 bytes), then the length of the first key (8), its name, its type (4), the length of
 * its string (8), and that: 16 hexadecimal digits. */
static int check_sum(const kvf_llama_calibration *c)
{
    static const char key[] = KEY "checksum";
    const size_t name = 32, value = name + sizeof key - 1 + 12, end = value + DIGITS;
    char digits[DIGITS + 1] = "", want[DIGITS + 1];
    if (c->size < 4 || memcmp(c->bytes, GGUF_MAGIC, 4) != 0)
        return fail(c, KVF_E_DAMAGED, "'%s' is no calibration: it does not begin with the letters GGUF", c->path);
    if (c->size < end || memcmp(c->bytes + name, key, sizeof key - 1) != 0)
        return fail(c, KVF_E_DAMAGED, "'%s' is no calibration of kvfold, or damaged: its first key is not %s", c->path, key);
    memcpy(digits, c->bytes + value, DIGITS);
    XXH64_state_t state;
    XXH64_reset(&state, 0);
    XXH64_update(&state, c->bytes, value);
    XXH64_update(&state, c->bytes + end, c->size - end);
    snprintf(want, sizeof want, "%016llx", (unsigned long long)XXH64_digest(&state));
    if (memcmp(want, digits, DIGITS) == 0) return KVF_OK;
    return fail(c, KVF_E_DAMAGED, "'%s' is damaged or cut short: the checksum of its %zu bytes is %s, and it says %.16s", c->path,
                c->size, want, digits[0] >= '0' && digits[0] <= 'f' ? digits : "?");
}

/* ---- keys -------------------------------------------------------------------------------------------------------------------- */

static int64_t find(const kvf_llama_calibration *c, const char *key, enum gguf_type type)
{
    const int64_t id = gguf_find_key(c->gguf, key);
    return id >= 0 && gguf_get_kv_type(c->gguf, id) == type ? id : -1;
}

static uint64_t number(const kvf_llama_calibration *c, const char *key)
{
    const int64_t id = find(c, key, GGUF_TYPE_UINT64);
    return id < 0 ? 0 : gguf_get_val_u64(c->gguf, id);
}

static const char *string(const kvf_llama_calibration *c, const char *key)
{
    const int64_t id = find(c, key, GGUF_TYPE_STRING);
    return id < 0 ? "" : gguf_get_val_str(c->gguf, id);
}

static const int32_t *numbers(const kvf_llama_calibration *c, const char *key, size_t n)
{
    const int64_t id = find(c, key, GGUF_TYPE_ARRAY);
    if (id < 0 || gguf_get_arr_type(c->gguf, id) != GGUF_TYPE_INT32 || gguf_get_arr_n(c->gguf, id) != n) return NULL;
    return gguf_get_arr_data(c->gguf, id);
}

static void read_info(kvf_llama_calibration *c)
{
    const uint64_t layers = number(c, KEY "layers");
    c->info = (kvf_llama_calibration_info){.size = sizeof c->info};
    c->info.n_layers = layers <= MOST_LAYERS ? (int32_t)layers : -1;
    c->info.model_hash = number(c, KEY "model.hash"), c->info.text_hash = number(c, KEY "text.hash");
    c->info.seed = number(c, KEY "seed"), c->info.tokens = (int64_t)number(c, KEY "tokens");
    c->info.positions = (int32_t)number(c, KEY "positions"), c->info.context = (int32_t)number(c, KEY "context");
    c->info.architecture = string(c, KEY "model.architecture");
    c->info.sensitivity = string(c, KEY "sensitivity.codec");
    c->info.sensitivity_context = (int32_t)number(c, KEY "sensitivity.context");
    c->info.kvfold = string(c, KEY "kvfold"), c->info.libllama = string(c, KEY "libllama");
}

/* ---- tensors ----------------------------------------------------------------------------------------------------------------- */

/* Its data when tensor i lies within the file and is f32. */
static const float *data_of(const kvf_llama_calibration *c, int64_t i)
{
    const uint64_t at = gguf_get_data_offset(c->gguf) + gguf_get_tensor_offset(c->gguf, i), n = gguf_get_tensor_size(c->gguf, i);
    if (gguf_get_tensor_type(c->gguf, i) != GGML_TYPE_F32 || at > c->size || n > c->size - at || at % sizeof(float)) return NULL;
    return (const float *)(const void *)(c->bytes + at);
}

static int64_t elements(const int64_t *ne)
{
    return ne[0] * ne[1] * ne[2] * ne[3];
}

const float *kvf_llama_calibration_array(const kvf_llama_calibration *c, const char *name, int64_t *n)
{
    const int64_t i = c && name ? gguf_find_tensor(c->gguf, name) : -1;
    if (n) *n = i < 0 ? 0 : elements(gguf_get_tensor_ne(c->gguf, i));
    return i < 0 ? NULL : data_of(c, i);
}

static int check_tensor(const kvf_llama_calibration *c, int64_t i)
{
    const char *name = gguf_get_tensor_name(c->gguf, i);
    const float *x = data_of(c, i);
    if (!x) return fail(c, KVF_E_DAMAGED, "'%s': '%s' is not f32, or lies outside the file", c->path, name);
    const int64_t n = elements(gguf_get_tensor_ne(c->gguf, i));
    for (int64_t e = 0; e < n; e++)
        if (!isfinite(x[e])) return fail(c, KVF_E_DAMAGED, "'%s': '%s' has NaN or infinity at %lld", c->path, name, (long long)e);
    return KVF_OK;
}

/* Figures of single heads ("blk.3.rank.q", "blk.3.q_one_sided") have no place in kvf_calibrated_layer, and whoever reads them by name
 * relies on one number a KV head. */
static int check_heads(const kvf_llama_calibration *c, int64_t i)
{
    const char *name = gguf_get_tensor_name(c->gguf, i);
    const int64_t *ne = gguf_get_tensor_ne(c->gguf, i);
    int il = -1, at = 0;
    if (sscanf(name, "blk.%d.%n", &il, &at) != 1 || !at) return KVF_OK;
    if (strncmp(name + at, "rank.", 5) != 0 && strcmp(name + at, "q_one_sided") != 0) return KVF_OK;
    const int32_t heads = il >= 0 && il < c->info.n_layers ? c->layers[il].kv_heads : 0;
    if (heads && ne[0] == heads && ne[1] == 1 && ne[2] == 1 && ne[3] == 1) return KVF_OK;
    return fail(c, KVF_E_DAMAGED, "'%s': '%s' has %lld numbers, not one for each of %d KV heads", c->path, name,
                (long long)elements(ne), (int)heads);
}

/* Nor have what keys and values of a layer cost alone: two numbers, of a layer that has such. */
static int check_losses(const kvf_llama_calibration *c, int64_t i)
{
    const char *name = gguf_get_tensor_name(c->gguf, i);
    const int64_t n = elements(gguf_get_tensor_ne(c->gguf, i));
    const float *x = data_of(c, i);
    int il = -1, at = 0;
    if (sscanf(name, "blk.%d.%n", &il, &at) != 1 || !at || strcmp(name + at, "sensitivity") != 0) return KVF_OK;
    if (il < 0 || il >= c->info.n_layers || !c->layers[il].kv_heads || n != 2)
        return fail(c, KVF_E_DAMAGED,
                    "'%s': '%s' has %lld numbers, or there is no such layer; it must be two, of keys and values", c->path, name,
                    (long long)n);
    if (x[0] >= 0 && x[1] >= 0) return KVF_OK;
    return fail(c, KVF_E_DAMAGED, "'%s': '%s' is %g and %g; a loss is not below 0", c->path, name, (double)x[0], (double)x[1]);
}

/* Is x in the range that kvf_cache_create asks for? A file that is outside is damaged, and no mistake of whoever made the cache. */
static int check_range(const kvf_llama_calibration *c, const char *name, const float *x, int64_t n, double least, int least_too)
{
    for (int64_t e = 0; x && e < n; e++)
        if ((double)x[e] < least || (!least_too && (double)x[e] <= least))
            return fail(c, KVF_E_DAMAGED, "'%s': '%s' is %g at %lld; it must be %s %g", c->path, name, (double)x[e], (long long)e,
                        least_too ? "at least" : "above", least);
    return KVF_OK;
}

/* The array [kv_heads][k_dim] of a layer; NULL without complaint when the file has none. */
static int take(const kvf_llama_calibration *c, int32_t il, const char *what, double least, int least_too, const float **array)
{
    char name[GGML_MAX_NAME];
    const kvf_calibrated_layer *l = &c->layers[il];
    snprintf(name, sizeof name, "blk.%d.%s", (int)il, what);
    const int64_t i = gguf_find_tensor(c->gguf, name);
    if (i < 0) return KVF_OK;
    const int64_t *ne = gguf_get_tensor_ne(c->gguf, i);
    if (ne[0] != l->k_dim || ne[1] != l->kv_heads || ne[2] != 1 || ne[3] != 1)
        return fail(c, KVF_E_DAMAGED, "'%s': '%s' has %lld x %lld numbers, not %d x %d", c->path, name, (long long)ne[0],
                    (long long)ne[1], (int)l->k_dim, (int)l->kv_heads);
    *array = data_of(c, i);
    return check_range(c, name, *array, elements(ne), least, least_too);
}

/* [kv_heads][k_dim][k_dim] of a layer, as take(). */
static int take_moment(const kvf_llama_calibration *c, int32_t il, const float **array)
{
    char name[GGML_MAX_NAME];
    const kvf_calibrated_layer *l = &c->layers[il];
    snprintf(name, sizeof name, "blk.%d.q_moment", (int)il);
    const int64_t i = gguf_find_tensor(c->gguf, name);
    if (i < 0) return KVF_OK;
    const int64_t *ne = gguf_get_tensor_ne(c->gguf, i);
    if (ne[0] != l->k_dim || ne[1] != l->k_dim || ne[2] != l->kv_heads || ne[3] != 1)
        return fail(c, KVF_E_DAMAGED, "'%s': '%s' has %lld x %lld x %lld numbers, not %d x %d x %d", c->path, name,
                    (long long)ne[0], (long long)ne[1], (long long)ne[2], (int)l->k_dim, (int)l->k_dim, (int)l->kv_heads);
    *array = data_of(c, i);
    return KVF_OK;
}

/* "blk.3.codebook.k.4x8": side, channels of a sub-vector, bits; an h behind them: a table of every KV head. Others are not codebooks. */
static int read_book_name(const char *name, int *il, kvf_codebook *b)
{
    char side;
    int sub, bits, end = 0;
    if (sscanf(name, "blk.%d.codebook.%c.%dx%d%n", il, &side, &sub, &bits, &end) != 4) return 0;
    if (name[end] && strcmp(name + end, "h") != 0) return 0;
    *b = (kvf_codebook){.side = side == 'k' ? KVF_K : KVF_V, .sub = sub, .bits = bits};
    return (side == 'k' || side == 'v') && (sub == 2 || sub == 4 || sub == 8) && bits >= 1 && bits <= 12;
}

/* Codebooks lie in the file by layer, so those of a layer follow each other in c->books. */
static int take_books(kvf_llama_calibration *c)
{
    int32_t n = 0, last = -1;
    for (int64_t i = 0; i < gguf_get_n_tensors(c->gguf); i++) {
        kvf_codebook *b = &c->books[n];
        const char *name = gguf_get_tensor_name(c->gguf, i);
        const int64_t *ne = gguf_get_tensor_ne(c->gguf, i);
        int il;
        if (!read_book_name(name, &il, b)) continue;
        kvf_calibrated_layer *l = il >= 0 && il < c->info.n_layers ? &c->layers[il] : NULL;
        if (!l || !l->kv_heads || il < last || ne[0] != b->sub || ne[1] != 1 << b->bits || (ne[2] != 1 && ne[2] != l->kv_heads) ||
            ne[3] != 1)
            return fail(c, KVF_E_DAMAGED, "'%s': '%s' has the wrong shape or place", c->path, name);
        b->heads = (int32_t)ne[2], b->centroids = data_of(c, i);
        if (l->n_codebooks == KVF_CODEBOOKS_MOST)
            return fail(c, KVF_E_DAMAGED, "'%s', layer %d: more than %d codebooks", c->path, il, KVF_CODEBOOKS_MOST);
        if (!l->n_codebooks++) l->codebooks = b;
        last = il, n++;
    }
    return KVF_OK;
}

/* Layers without keys of their own have none of the three; others have all, within the limits of kvf_layer. */
static int check_sizes(const kvf_llama_calibration *c, int32_t il)
{
    const kvf_calibrated_layer *l = &c->layers[il];
    if (!l->kv_heads && !l->k_dim && !l->v_dim) return KVF_OK;
    if (l->kv_heads >= 1 && l->kv_heads <= MOST_HEADS && l->k_dim >= 1 && l->k_dim <= MOST_CHANNELS && l->v_dim >= 1 &&
        l->v_dim <= MOST_CHANNELS)
        return KVF_OK;
    return fail(c, KVF_E_DAMAGED,
                "'%s', layer %d: %d KV heads of %d and %d channels; allowed are 1 to %d heads of 1 to %d, or 0 of all three",
                c->path, (int)il, (int)l->kv_heads, (int)l->k_dim, (int)l->v_dim, MOST_HEADS, MOST_CHANNELS);
}

static int read_layers(kvf_llama_calibration *c)
{
    const size_t n = (size_t)c->info.n_layers;
    const int32_t *heads = numbers(c, KEY "kv_heads", n), *k_dim = numbers(c, KEY "k_dim", n),
                  *v_dim = numbers(c, KEY "v_dim", n);
    if (c->info.n_layers < 1 || !heads || !k_dim || !v_dim)
        return fail(c, KVF_E_DAMAGED, "'%s' does not say how many layers, heads and channels it is of", c->path);
    c->layers = calloc(n, sizeof *c->layers);
    c->books = calloc((size_t)gguf_get_n_tensors(c->gguf) + 1, sizeof *c->books);
    if (!c->layers || !c->books) return fail(c, KVF_E_NOMEM, "out of memory: calibration of %zu layers", n);
    int rc = KVF_OK;
    for (int64_t i = 0; i < gguf_get_n_tensors(c->gguf) && !rc; i++) rc = check_tensor(c, i);
    for (int32_t il = 0; il < c->info.n_layers && !rc; il++) {
        kvf_calibrated_layer *l = &c->layers[il];
        *l = (kvf_calibrated_layer){.size = sizeof *l, .kv_heads = heads[il], .k_dim = k_dim[il], .v_dim = v_dim[il]};
        rc = check_sizes(c, il);
#define TAKE_ARRAY(field, least, least_too)                                                                                      \
    if (!rc) rc = take(c, il, #field, least, least_too, &l->field);
        KVF_CALIBRATED_ARRAYS(TAKE_ARRAY)
#undef TAKE_ARRAY
        if (!rc) rc = take_moment(c, il, &l->q_moment);
    }
    for (int64_t i = 0; i < gguf_get_n_tensors(c->gguf) && !rc; i++) {
        rc = check_heads(c, i);
        if (!rc) rc = check_losses(c, i);
    }
    return rc ? rc : take_books(c);
}

/* ---- which model ------------------------------------------------------------------------------------------------------------- */

static int check_model(const kvf_llama_calibration *c, const struct llama_model *model)
{
    char arch[64] = "";
    llama_model_meta_val_str(model, "general.architecture", arch, sizeof arch);
    if (strcmp(arch, c->info.architecture) != 0)
        return fail(c, KVF_E_MODEL, "the calibration '%s' is of a %s model, and this one is %s", c->path, c->info.architecture,
                    arch);
    if (llama_model_n_layer(model) != c->info.n_layers)
        return fail(c, KVF_E_MODEL, "the calibration '%s' is of a model with %d layers, and this one has %d", c->path,
                    (int)c->info.n_layers, (int)llama_model_n_layer(model));
    return KVF_OK;
}

static int check_weights(const kvf_llama_calibration *c, const char *model_path)
{
    uint64_t hash;
    int rc = kvf_llama_model_hash(model_path, &hash, c->error, c->error_size);
    if (rc || hash == c->info.model_hash) return rc;
    return fail(
        c, KVF_E_MODEL,
        "the calibration '%s' is of other weights: hash %016llx, and '%s' has %016llx; kvfold calibrate makes one for these",
        c->path, (unsigned long long)c->info.model_hash, model_path, (unsigned long long)hash);
}

/* ---- public ------------------------------------------------------------------------------------------------------------------ */

static int load(kvf_llama_calibration *c, const struct llama_model *model, const char *model_path)
{
    int rc = read_file(c);
    if (!rc) rc = check_sum(c);
    if (rc) return rc;
    const struct gguf_init_params params = {.no_alloc = true};
    c->gguf = gguf_init_from_buffer(c->bytes, c->size, params); /* the very bytes that were checked */
    if (!c->gguf) return fail(c, KVF_E_DAMAGED, "'%s' is damaged: its header cannot be read", c->path);
    read_info(c);
    rc = read_layers(c);
    if (!rc && model) rc = check_model(c, model);
    return rc || !model_path ? rc : check_weights(c, model_path);
}

int kvf_llama_calibration_load(const char *path, const struct llama_model *model, const char *model_path,
                               kvf_llama_calibration **calibration, char *error, size_t error_size)
{
    if (!calibration) return KVF_E_ARG;
    *calibration = NULL;
    if (error && error_size) error[0] = 0;
    if (!path) return KVF_E_ARG;
    kvf_llama_calibration *c = calloc(1, sizeof *c);
    if (!c) return KVF_E_NOMEM;
    c->path = path, c->error = error, c->error_size = error_size;
    int rc = load(c, model, model_path);
    c->path = NULL, c->error = NULL;
    if (rc)
        kvf_llama_calibration_free(&c);
    else
        *calibration = c;
    return rc;
}

void kvf_llama_calibration_free(kvf_llama_calibration **calibration)
{
    kvf_llama_calibration *c = calibration ? *calibration : NULL;
    if (!c) return;
    if (c->gguf) gguf_free(c->gguf);
    free(c->books), free(c->layers), free(c->bytes), free(c);
    *calibration = NULL;
}

int kvf_llama_calibration_about(const kvf_llama_calibration *c, kvf_llama_calibration_info *info)
{
    if (!c || !info) return KVF_E_ARG;
    if (info->size != sizeof *info) return KVF_E_VERSION;
    *info = c->info;
    return KVF_OK;
}

const kvf_calibrated_layer *kvf_llama_calibration_layer(const kvf_llama_calibration *c, int32_t il)
{
    return c && il >= 0 && il < c->info.n_layers && c->layers[il].kv_heads ? &c->layers[il] : NULL;
}
