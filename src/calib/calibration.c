/* SPDX-License-Identifier: MIT */
#include "calib/calibration.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- checks ------------------------------------------------------------------------------------------------------------------ */

typedef struct place {
    char what[40]; /* "calibration, layer 3" */
    const char *field;
    char *error;
    size_t size;
} place;

#define REFUSE(at, code, ...) return kvfi_sentence((at)->error, (at)->size, __VA_ARGS__), code

static int check_array(const place *at, const float *x, int32_t heads, size_t each, double least, int least_too)
{
    for (size_t i = 0; x && i < (size_t)heads * each; i++) {
        const int head = (int)(i / each), channel = (int)(i % each);
        if (!isfinite(x[i]))
            REFUSE(at, KVF_E_NONFINITE, "%s: %s of head %d is NaN or infinite at %d", at->what, at->field, head, channel);
        if ((double)x[i] < least || (!least_too && (double)x[i] <= least))
            REFUSE(at, KVF_E_ARG, "%s: %s of head %d is %g at %d; it must be %s %g", at->what, at->field, head, (double)x[i],
                   channel, least_too ? "at least" : "above", least);
    }
    return KVF_OK;
}

static int check_codebook(const place *at, const kvf_codebook *b, int32_t kv_heads, int i)
{
    if (b->side != KVF_K && b->side != KVF_V)
        REFUSE(at, KVF_E_ARG, "%s: codebook %d is for side %d; allowed are 0 (keys) and 1 (values)", at->what, i, (int)b->side);
    if (b->sub != 2 && b->sub != 4 && b->sub != 8)
        REFUSE(at, KVF_E_ARG, "%s: codebook %d has sub-vectors of %d channels; allowed are 2, 4 and 8", at->what, i, (int)b->sub);
    if (b->bits < 1 || b->bits > 12)
        REFUSE(at, KVF_E_ARG, "%s: codebook %d has %d bits; allowed are 1 to 12", at->what, i, (int)b->bits);
    if (b->heads != 1 && b->heads != kv_heads)
        REFUSE(at, KVF_E_ARG, "%s: codebook %d has tables for %d heads; allowed are 1 and the layer's %d", at->what, i,
               (int)b->heads, (int)kv_heads);
    if (!b->centroids) REFUSE(at, KVF_E_ARG, "%s: codebook %d has no centroids", at->what, i);
    return check_array(at, b->centroids, b->heads, (size_t)b->sub << b->bits, -HUGE_VAL, 1);
}

static int check_shape(const place *at, const kvf_calibrated_layer *c, const kvf_layer *l)
{
    if (c->kv_heads != l->kv_heads)
        REFUSE(at, KVF_E_ARG, "%s: %d KV heads, but the cache's layer has %d", at->what, (int)c->kv_heads, (int)l->kv_heads);
    if (c->k_dim != l->k_dim || c->v_dim != l->v_dim)
        REFUSE(at, KVF_E_ARG, "%s: heads of %d and %d channels (keys, values), but the cache's have %d and %d", at->what,
               (int)c->k_dim, (int)c->v_dim, (int)l->k_dim, (int)l->v_dim);
    return KVF_OK;
}

static int check_size(const place *at, const kvf_calibrated_layer *c)
{
    if (c->size != sizeof *c)
        REFUSE(at, KVF_E_VERSION, "%s: size is %u, this library expects %u", at->what, (unsigned)c->size, (unsigned)sizeof *c);
    return KVF_OK;
}

static int check_codebooks(place *at, const kvf_calibrated_layer *c)
{
    int rc = KVF_OK;
    if (c->n_codebooks < 0 || c->n_codebooks > KVF_CODEBOOKS_MOST || (c->n_codebooks && !c->codebooks))
        REFUSE(at, KVF_E_ARG, "%s: n_codebooks is %d; allowed are 0 to %d, with an array", at->what, (int)c->n_codebooks,
               KVF_CODEBOOKS_MOST);
    at->field = "a codebook";
    for (int i = 0; i < c->n_codebooks && !rc; i++) rc = check_codebook(at, &c->codebooks[i], c->kv_heads, i);
    return rc;
}

int kvfi_known_check(const kvf_calibrated_layer *known, char *error, size_t size)
{
    place at = {.what = "calibration", .error = error, .size = size};
    if (!known) return KVF_OK;
    const int rc = check_size(&at, known);
    return rc ? rc : check_codebooks(&at, known);
}

static int is_empty(const kvf_calibrated_layer *c)
{
    return !c->kv_heads && !c->k_dim && !c->v_dim;
}

static int check_layer(place *at, const kvf_calibrated_layer *c, const kvf_layer *l)
{
    int rc = check_size(at, c);
    if (rc) return rc;
    if (l->share >= 0 || is_empty(c)) return KVF_OK;
    rc = check_shape(at, c, l);
#define CHECK_ARRAY(name, least, least_too)                                                                                      \
    at->field = #name;                                                                                                           \
    if (!rc) rc = check_array(at, c->name, c->kv_heads, (size_t)c->k_dim, least, least_too);
    KVF_CALIBRATED_ARRAYS(CHECK_ARRAY)
#undef CHECK_ARRAY
    at->field = "q_moment";
    if (!rc) rc = check_array(at, c->q_moment, c->kv_heads, (size_t)c->k_dim * (size_t)c->k_dim, -HUGE_VAL, 1);
    return rc ? rc : check_codebooks(at, c);
}

static int check(const kvf_params *p, char *error, size_t size)
{
    const kvf_calibration *c = p->calibration;
    place at = {.error = error, .size = size};
    if (c->size != sizeof *c)
        REFUSE(&at, KVF_E_VERSION, "calibration: size is %u, this library expects %u", (unsigned)c->size, (unsigned)sizeof *c);
    if (c->n_layers != p->n_layers)
        REFUSE(&at, KVF_E_ARG, "calibration of %d layers for a cache of %d", (int)c->n_layers, (int)p->n_layers);
    if (!c->layers) REFUSE(&at, KVF_E_ARG, "calibration: layers is NULL; describe each of the %d", (int)c->n_layers);
    int rc = KVF_OK;
    for (int i = 0; i < c->n_layers && !rc; i++) {
        snprintf(at.what, sizeof at.what, "calibration, layer %d", i);
        rc = check_layer(&at, &c->layers[i], &p->layers[i]);
    }
    return rc;
}

/* ---- copy -------------------------------------------------------------------------------------------------------------------- */

/* A region that is filled piece by piece; base NULL: only counts. */
typedef struct region {
    uint8_t *base;
    size_t at;
} region;

static void *put(region *r, const void *from, size_t bytes)
{
    if (!from || !bytes) return NULL;
    uint8_t *to = r->base ? r->base + r->at : NULL;
    if (to) memcpy(to, from, bytes);
    r->at = kvfi_round_up(r->at + bytes, 64);
    return to;
}

/* Arrays of KVF_CALIBRATED_ARRAYS; returns how many bytes they take. Codebooks and moments remain the caller's. */
static size_t put_all(uint8_t *base, const kvf_params *p)
{
    region r = {.base = base};
    const kvf_calibration *c = p->calibration;
    kvf_calibrated_layer *layers = put(&r, c->layers, (size_t)c->n_layers * sizeof *layers);
    for (int i = 0; i < c->n_layers; i++) {
        const kvf_calibrated_layer *from = &c->layers[i];
        kvf_calibrated_layer *to = layers ? &layers[i] : NULL;
        if (p->layers[i].share >= 0 || is_empty(from)) {
            if (to) *to = (kvf_calibrated_layer){.size = sizeof *to};
            continue;
        }
        const size_t bytes = (size_t)from->kv_heads * (size_t)from->k_dim * sizeof(float);
        const float *copy;
#define PUT_ARRAY(name, least, least_too)                                                                                        \
    copy = put(&r, from->name, bytes);                                                                                           \
    if (to) to->name = copy;
        KVF_CALIBRATED_ARRAYS(PUT_ARRAY)
#undef PUT_ARRAY
    }
    return r.at;
}

int kvfi_calibration_copy(kvfi_calibration *c, const kvf_params *p, const kvf_allocator *a, char *error, size_t error_size)
{
    memset(c, 0, sizeof *c);
    if (!p->calibration) return KVF_OK;
    int rc = check(p, error, error_size);
    if (rc) return rc;
    const size_t bytes = put_all(NULL, p);
    uint8_t *memory = kvfi_alloc(a, bytes);
    if (!memory) {
        kvfi_sentence(error, error_size, "out of memory: calibration of %zu bytes", bytes);
        return KVF_E_NOMEM;
    }
    put_all(memory, p);
    *c = (kvfi_calibration){.layers = (kvf_calibrated_layer *)(void *)memory, .memory = memory, .bytes = bytes};
    return KVF_OK;
}

void kvfi_calibration_let_go(kvfi_calibration *c, int32_t n_layers)
{
    for (int32_t i = 0; c->layers && i < n_layers; i++) {
        c->layers[i].codebooks = NULL, c->layers[i].n_codebooks = 0;
        c->layers[i].q_moment = NULL;
    }
}

void kvfi_calibration_free(kvfi_calibration *c, const kvf_allocator *a)
{
    kvfi_release(a, c->memory, c->bytes);
    memset(c, 0, sizeof *c);
}

const kvf_calibrated_layer *kvfi_calibration_layer(const kvfi_calibration *c, int32_t i)
{
    return c->layers && !is_empty(&c->layers[i]) ? &c->layers[i] : NULL;
}
