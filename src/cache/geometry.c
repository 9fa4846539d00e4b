/* SPDX-License-Identifier: MIT */
#include "cache/geometry.h"
#include "cache/mass.h"
#include "cache/rows.h"
#include "base/text.h"
#include "calib/feedback.h"
#include "codec/shared/entries.h"
#include "codec/shared/move.h"
#include "codec/shared/rotation.h"
#include "codec/shared/stages.h"

#include <math.h>
#include <string.h>

int64_t kvfi_sealed(const kvfi_geometry *g, int64_t rows, int64_t open)
{
    return open - g->recent >= KVF_BLOCK && rows >= g->first_seal ? (open - g->recent) / KVF_BLOCK : 0;
}

#define CHECK(condition, ...)                                                                                                    \
    do {                                                                                                                         \
        if (!(condition)) {                                                                                                      \
            kvfi_sentence(error, error_size, __VA_ARGS__);                                                                       \
            return KVF_E_ARG;                                                                                                    \
        }                                                                                                                        \
    } while (0)

static int check_params(const kvf_params *p, char *error, size_t error_size)
{
    CHECK(p->n_layers >= 1 && p->n_layers <= 65536, "n_layers is %d; allowed are 1 to 65536", (int)p->n_layers);
    CHECK(p->layers, "layers is NULL; describe each of the %d layers", (int)p->n_layers);
    CHECK(p->sink >= 0 && p->sink <= KVF_BLOCK, "sink is %d; allowed are 0 to %d tokens", (int)p->sink, KVF_BLOCK);
    CHECK(p->recent >= 0 && p->recent <= 65536, "recent is %d; allowed are 0 to 65536 tokens", (int)p->recent);
    CHECK(p->max_sequences >= 1 && p->max_sequences <= 256, "max_sequences is %d; allowed are 1 to 256", (int)p->max_sequences);
    CHECK(p->max_batch >= 1 && p->max_batch <= 65536, "max_batch is %d; allowed are 1 to 65536 rows", (int)p->max_batch);
    CHECK(p->threads >= 1 && p->threads <= 256, "threads is %d; allowed are 1 to 256", (int)p->threads);
    CHECK(p->exact_bits == 16 || p->exact_bits == 8, "exact_bits is %d; allowed are 16 (f16) and 8 (q8_0)", (int)p->exact_bits);
    CHECK(p->seal_each == 0 || (p->seal_each == 1 && p->recent == 0),
          "seal_each is %d with recent %d; allowed are 0, and 1 with recent 0", (int)p->seal_each, (int)p->recent);
    CHECK(p->window_keep >= 0, "window_keep is %d; allowed are 0 and more tokens", (int)p->window_keep);
    for (size_t i = 0; i < sizeof p->reserved / sizeof *p->reserved; i++)
        CHECK(!p->reserved[i], "reserved[%zu] of the parameters is not 0", i);
    return KVF_OK;
}

static int check_layer(const kvf_params *p, int i, char *error, size_t error_size)
{
    const kvf_layer *l = &p->layers[i];
    if (l->size != sizeof *l) {
        kvfi_sentence(error, error_size, "layer %d: size is %u, this library expects %u; use kvf_layer_init", i,
                      (unsigned)l->size, (unsigned)sizeof *l);
        return KVF_E_VERSION;
    }
    CHECK(l->kv_heads >= 1 && l->kv_heads <= 4096, "layer %d: kv_heads is %d; allowed are 1 to 4096", i, (int)l->kv_heads);
    CHECK(l->q_heads >= 1 && l->q_heads <= 65536 && l->q_heads % l->kv_heads == 0,
          "layer %d: q_heads is %d; it must be a multiple of kv_heads (%d)", i, (int)l->q_heads, (int)l->kv_heads);
    CHECK((int64_t)p->max_batch * (l->q_heads / l->kv_heads) <= 1 << 24,
          "layer %d: max_batch (%d) times query heads per KV head (%d) is above 2^24", i, (int)p->max_batch,
          (int)(l->q_heads / l->kv_heads));
    CHECK(l->k_dim >= 1 && l->k_dim <= 1024, "layer %d: k_dim is %d; allowed are 1 to 1024 channels", i, (int)l->k_dim);
    CHECK(l->v_dim >= 1 && l->v_dim <= 1024, "layer %d: v_dim is %d; allowed are 1 to 1024 channels", i, (int)l->v_dim);
    CHECK(l->window >= 0, "layer %d: window is %d; allowed are 0 (none) and more", i, (int)l->window);
    CHECK(!l->v_in_k || l->v_dim <= l->k_dim, "layer %d: v_in_k needs v_dim (%d) of at most k_dim (%d)", i, (int)l->v_dim,
          (int)l->k_dim);
    CHECK(l->rope_dims >= 0 && l->rope_dims % 2 == 0 && l->rope_dims <= l->k_dim && (!l->rope_dims || l->rope_freq),
          "layer %d: rope_dims is %d; it must be even, at most k_dim (%d), and have frequencies", i, (int)l->rope_dims,
          (int)l->k_dim);
    CHECK(l->rope_style >= KVF_ROPE_NORM && l->rope_style <= KVF_ROPE_UNKNOWN, "layer %d: rope_style is %d; allowed are 0 to 2",
          i, (int)l->rope_style);
    CHECK(l->rope_style != KVF_ROPE_UNKNOWN || !l->rope_dims, "layer %d: rope_dims is %d, but its rope_style is unknown", i,
          (int)l->rope_dims);
    for (int32_t f = 0; f < l->rope_dims / 2; f++)
        CHECK(l->rope_freq[f] > -1e3 && l->rope_freq[f] < 1e3, "layer %d: rope_freq[%d] is %g", i, (int)f, l->rope_freq[f]);
    for (size_t r = 0; r < sizeof l->reserved / sizeof *l->reserved; r++)
        CHECK(!l->reserved[r], "layer %d: reserved[%zu] is not 0", i, r);
    CHECK(l->share >= -1 && l->share < i, "layer %d: share is %d; it must be -1 or an earlier layer", i, (int)l->share);
    return KVF_OK;
}

static int check_share(const kvf_params *p, int i, char *error, size_t error_size)
{
    const kvf_layer *l = &p->layers[i], *o = &p->layers[l->share];
    CHECK(o->share < 0, "layer %d shares layer %d, which shares layer %d itself; name the owner", i, (int)l->share,
          (int)o->share);
    CHECK(o->kv_heads == l->kv_heads && o->k_dim == l->k_dim && o->v_dim == l->v_dim && o->v_in_k == l->v_in_k,
          "layer %d shares layer %d but differs in kv_heads, k_dim, v_dim or v_in_k", i, (int)l->share);
    return KVF_OK;
}

/* Codecs that serve latent attention must keep the first v_dim channels separable: a transform may not reach across. */
static int setup_latent(kvfi_store *s, char *error, size_t error_size)
{
    if (!(s->k.codec->flags & KVF_CODEC_LATENT)) {
        kvfi_sentence(error, error_size, "layer %d: codec %s cannot serve latent attention (V inside K); f16 and q8_0 can",
                      (int)s->layer, s->k.codec->name);
        return KVF_E_UNSUPPORTED;
    }
    if (s->k.centre || s->k.block_mean || s->k.scaled) {
        kvfi_sentence(error, error_size,
                      "layer %d: V inside K cannot be centred or scaled with the keys; use centre=none,scale=none",
                      (int)s->layer);
        return KVF_E_UNSUPPORTED;
    }
    s->turned = s->k.rot, s->turned.size = s->v_dim;
    if (s->k.rot.kind == KVF_ROT_NONE || (s->k.rot.kind == KVF_ROT_H && s->v_dim % s->k.rot.block == 0)) return KVF_OK;
    kvfi_sentence(error, error_size, "layer %d: rot=%s mixes the %d channels of V inside K with the others; rot=none does not",
                  (int)s->layer, kvfi_rotation_name(&s->k.rot), (int)s->v_dim);
    return KVF_E_UNSUPPORTED;
}

/* What is coded with centroids needs some. */
static int check_book(const kvfi_store *s, const char *spec, const kvf_part *part, char *error, size_t error_size)
{
    const char *side = part->side == KVF_K ? "keys" : "values";
    if (part->kind != KVF_KIND_VECTOR || part->book) return KVF_OK;
    kvfi_sentence(
        error, error_size,
        "layer %d, %s: %.60s needs a codebook of %d channels x %d bits for %s, and %s; `kvfold calibrate --codebooks %dx%d%s` "
        "makes one",
        (int)s->layer, side, spec, (int)part->sub, (int)part->bits, side,
        s->calibrated ? "the calibration has none" : "there is no calibration", (int)part->sub, (int)part->bits,
        part->per_head ? "h" : "");
    return KVF_E_UNSUPPORTED;
}

static int setup_side(kvfi_store *s, const char *spec, kvf_side side, int32_t dim, kvf_part *part, char *error, size_t error_size)
{
    char why[200];
    int rc = kvfi_part_setup_calibrated(spec, side, dim, s->calibrated, part, why, sizeof why);
    if (rc) kvfi_sentence(error, error_size, "layer %d, %s: %s", (int)s->layer, side == KVF_K ? "keys" : "values", why);
    return rc ? rc : check_book(s, spec, part, error, error_size);
}

/* Stages that the spec wants from a file must be in it. */
static int check_known(const kvfi_store *s, char *error, size_t error_size)
{
    const kvf_calibrated_layer *k = s->calibrated;
    if (!s->staged || s->self) return KVF_OK;
    const char *lacks = s->k.centre && !(k && k->k_mean)              ? "k_mean"
                        : s->k.fed && !(k && k->q_moment)             ? "q_moment"
                        : s->k.scaled == KVFI_SCALE_LAMBDA            ? (k && k->k_lambda ? NULL : "k_lambda")
                        : s->k.scaled && !(k && k->k_rms && k->q_rms) ? "k_rms and q_rms"
                                                                      : NULL;
    if (!lacks) return KVF_OK;
    kvfi_sentence(error, error_size, "layer %d, keys: %s needs %s of a calibration file, and there is %s", (int)s->layer,
                  s->k.canonical, lacks, k ? "none in this one" : "no calibration here (kvfold calibrate makes one)");
    return KVF_E_UNSUPPORTED;
}

/* The layer's parameters come before what the policy's spec says of it. */
static int64_t own_budget(const kvfi_geometry *g, const kvf_params *p, int i)
{
    return p->layers[i].evict_budget ? p->layers[i].evict_budget : kvfi_evict_layer_budget(&g->evict, i);
}

/* The spec of a layer's keys or values: its own, else that of the parameters, else that of the default preset. */
static const char *spec_of(const kvf_params *p, int32_t layer, kvf_side side)
{
    const char *own = side == KVF_K ? p->layers[layer].k : p->layers[layer].v, *all = side == KVF_K ? p->k : p->v;
    kvf_preset_info preset;
    if (own || all) return own ? own : all;
    for (int32_t i = 0; kvf_preset_list(i, &preset) == KVF_OK; i++)
        if (preset.is_default) return side == KVF_K ? preset.k : preset.v;
    return NULL;
}

static int setup_store(kvfi_geometry *g, const kvf_params *p, int i, char *error, size_t error_size)
{
    const kvf_layer *l = &p->layers[i];
    kvfi_store *s = &g->stores[g->n_stores];
    *s = (kvfi_store){.layer = i, .kv_heads = l->kv_heads, .v_dim = l->v_dim, .v_in_k = l->v_in_k != 0, .window = l->window};
    s->mean_share = -1;
    s->calibrated = kvfi_calibration_layer(&g->calibration, i);
    const int64_t own = own_budget(g, p, i);
    s->own_budget = own < 0 ? -1 : own > 0;
    if (own > 0) s->budget = (int32_t)own;
    int rc = setup_side(s, spec_of(p, i, KVF_K), KVF_K, l->k_dim, &s->k, error, error_size);
    if (!rc && !s->v_in_k) rc = setup_side(s, spec_of(p, i, KVF_V), KVF_V, l->v_dim, &s->v, error, error_size);
    if (!rc && s->v_in_k) rc = setup_latent(s, error, error_size);
    if (rc) return rc;
    if (!s->v_in_k) s->turned = s->v.rot;
    s->unknown_turns = l->rope_style == KVF_ROPE_UNKNOWN && s->k.centre;
    if (s->unknown_turns) kvfi_centre_by_block(&s->k);
    s->staged = s->k.centre || s->k.scaled;
    s->self = s->staged && !s->k.from_file;
    rc = check_known(s, error, error_size);
    if (rc) return rc;
    s->n_pairs = s->staged ? l->rope_dims / 2 : 0;
    s->record_bytes = s->k.bytes + (s->v_in_k ? 0 : s->v.bytes);
    s->block_bytes = s->record_bytes * (size_t)s->kv_heads;
    /* A head reads K, V, and then K of the next block, which usually follows in memory. */
    s->k.next_offset = (int64_t)(s->v_in_k ? s->block_bytes : s->k.bytes), s->k.next_bytes = s->v_in_k ? s->k.bytes : s->v.bytes;
    if (!s->v_in_k) s->v.next_offset = (int64_t)s->block_bytes - (int64_t)s->k.bytes, s->v.next_bytes = s->k.bytes;
    s->k_row = kvfi_row_bytes(p->exact_bits, l->k_dim);
    s->v_row = s->v_in_k ? 0 : kvfi_row_bytes(p->exact_bits, l->v_dim);
    s->first_head = g->n_heads;
    g->n_heads += s->kv_heads;
    g->n_stores++;
    return KVF_OK;
}

/* The store of layer `owner`. */
static int store_of(const kvfi_geometry *g, int owner)
{
    int i = 0;
    while (g->stores[i].layer != owner) i++;
    return i;
}

static int setup_layer(kvfi_geometry *g, const kvf_params *p, int i, char *error, size_t error_size)
{
    const kvf_layer *l = &p->layers[i];
    int rc = KVF_OK;
    if (l->share >= 0) rc = check_share(p, i, error, error_size);
    if (!rc && l->share < 0) rc = setup_store(g, p, i, error, error_size);
    if (rc) return rc;
    kvfi_layer *o = &g->layers[i];
    *o = (kvfi_layer){.q_heads = l->q_heads, .kv_heads = l->kv_heads, .k_dim = l->k_dim, .v_dim = l->v_dim};
    o->v_in_k = l->v_in_k != 0, o->group = l->q_heads / l->kv_heads, o->window = l->window, o->shares = l->share >= 0;
    o->store = store_of(g, l->share >= 0 ? l->share : i);
    kvfi_store *s = &g->stores[o->store];
    o->v_stride = kvfi_round_up((size_t)l->v_dim, 16);
    if (!s->v_in_k && o->v_stride < (size_t)s->v.dim_pad) o->v_stride = (size_t)s->v.dim_pad;
    if (!l->window)
        s->window = 0;
    else if (s->window && l->window > s->window)
        s->window = l->window;
    return KVF_OK;
}

static size_t advance(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at = kvfi_round_up(here + bytes, 64);
    return here;
}

static void lay_out_table(kvfi_store *s, size_t *bytes)
{
    s->table_head = kvfi_round_up((size_t)s->k.head_dim * (sizeof(double) + sizeof(float)), 8);
    s->table = advance(bytes, sizeof(int64_t) + (size_t)s->kv_heads * s->table_head);
}

static void fill_known(const kvfi_geometry *g, const kvfi_store *s, int32_t head)
{
    if (!s->staged || s->self) return;
    const size_t at = (size_t)head * (size_t)s->k.head_dim;
    const kvf_calibrated_layer *c = s->calibrated;
    const int64_t rotate = s->n_pairs > 0;
    const int spread = s->k.scaled == KVFI_SCALE_SPREAD;
    uint8_t *table = g->known + s->table;
    memcpy(table, &rotate, sizeof rotate);
    const kvfi_known known = {.mean = s->k.centre ? c->k_mean + at : NULL,
                              .k_rms = spread ? c->k_rms + at : NULL,
                              .q_rms = spread ? c->q_rms + at : NULL,
                              .lambda = s->k.scaled == KVFI_SCALE_LAMBDA ? c->k_lambda + at : NULL,
                              .pairs = s->pairs,
                              .dim = s->k.head_dim,
                              .n_pairs = s->n_pairs};
    kvfi_known_table(&known, kvfi_table_c0(table, s, head), kvfi_table_scale(table, s, head));
}

/* RoPE tables of the stores whose keys are centred. */
static int setup_pairs(kvfi_geometry *g, const kvf_params *p, const kvf_allocator *a, char *error, size_t error_size)
{
    size_t n = 0, at = 0;
    for (int i = 0; i < g->n_stores; i++) n += (size_t)g->stores[i].n_pairs;
    g->pairs_bytes = n * sizeof *g->pairs;
    g->pairs = kvfi_alloc(a, g->pairs_bytes);
    if (n && !g->pairs) {
        kvfi_sentence(error, error_size, "out of memory for RoPE tables of %zu pairs", n);
        return KVF_E_NOMEM;
    }
    for (int i = 0; i < g->n_stores; i++) {
        kvfi_store *s = &g->stores[i];
        const kvf_layer *l = &p->layers[s->layer];
        s->pairs = g->pairs + at;
        if (s->n_pairs) kvfi_pairs_init(s->pairs, l->rope_dims, l->rope_style, l->rope_freq);
        at += (size_t)s->n_pairs;
    }
    return KVF_OK;
}

/* Tables of the stores whose stages are known from the start. */
static int setup_known(kvfi_geometry *g, const kvf_allocator *a, char *error, size_t error_size)
{
    for (int i = 0; i < g->n_stores; i++) {
        kvfi_store *s = &g->stores[i];
        if (s->staged && !s->self) lay_out_table(s, &g->known_bytes);
    }
    g->known = kvfi_alloc_zero(a, g->known_bytes);
    if (g->known_bytes && !g->known) {
        kvfi_sentence(error, error_size, "out of memory for key stages of %zu bytes", g->known_bytes);
        return KVF_E_NOMEM;
    }
    for (int i = 0; i < g->n_stores; i++)
        for (int32_t h = 0; h < g->stores[i].kv_heads; h++) fill_known(g, &g->stores[i], h);
    return KVF_OK;
}

static int same_matrix(const kvf_rotation *a, const kvf_rotation *b)
{
    return kvfi_rotation_floats(a) && a->kind == b->kind && a->size == b->size && a->seed == b->seed;
}

/* The i-th rotation: those of keys and values of all stores, in turn. */
static kvf_rotation *rotation_at(const kvfi_geometry *g, int i)
{
    kvfi_store *s = &g->stores[i / 2];
    return i % 2 ? &s->turned : &s->k.rot;
}

/* The first rotation with the same matrix as the i-th. */
static int first_same(const kvfi_geometry *g, int i)
{
    int first = 0;
    while (first < i && !same_matrix(rotation_at(g, first), rotation_at(g, i))) first++;
    return first;
}

/* Rotations that are matrices: one copy of each. */
static int setup_matrices(kvfi_geometry *g, const kvf_allocator *a, char *error, size_t error_size)
{
    size_t floats = 0, largest = 0;
    for (int i = 0; i < 2 * g->n_stores; i++) {
        const size_t n = kvfi_rotation_floats(rotation_at(g, i));
        if (first_same(g, i) == i) floats += n;
        if (n > largest) largest = n;
    }
    g->matrices_bytes = floats * sizeof *g->matrices;
    if (!floats) return KVF_OK;
    float *at = g->matrices = kvfi_alloc(a, g->matrices_bytes);
    double *work = kvfi_alloc(a, largest * sizeof *work);
    if (!at || !work) kvfi_sentence(error, error_size, "out of memory for rotation matrices of %zu bytes", g->matrices_bytes);
    for (int i = 0; at && work && i < 2 * g->n_stores; i++) {
        kvf_rotation *rot = rotation_at(g, i);
        const int first = first_same(g, i);
        if (!kvfi_rotation_floats(rot)) continue;
        rot->matrix = first < i ? rotation_at(g, first)->matrix : at;
        if (first == i) kvfi_rotation_fill(rot, work, at), at += kvfi_rotation_floats(rot);
    }
    kvfi_release(a, work, largest * sizeof *work);
    for (int i = 0; i < g->n_stores; i++) g->stores[i].v.rot = g->stores[i].turned;
    return at && work ? KVF_OK : KVF_E_NOMEM;
}

/* The i-th side: keys and values of all stores, in turn. */
static kvf_part *side_at(const kvfi_geometry *g, int i)
{
    kvfi_store *s = &g->stores[i / 2];
    return i % 2 ? &s->v : &s->k;
}

/* A book and what is left of its last line. */
static size_t book_room(const kvfi_geometry *g, int i)
{
    const kvf_part *part = side_at(g, i);
    return part->book ? kvfi_round_up(kvfi_book_floats(part, g->stores[i / 2].kv_heads), 16) : 0;
}

/* Codebooks that a side codes with, of all that the caller's calibration has. */
static int setup_books(kvfi_geometry *g, const kvf_allocator *a, char *error, size_t error_size)
{
    size_t floats = 0;
    for (int i = 0; i < 2 * g->n_stores; i++) floats += book_room(g, i);
    g->books_bytes = floats * sizeof *g->books;
    float *at = g->books = kvfi_alloc(a, g->books_bytes);
    if (floats && !at) {
        kvfi_sentence(error, error_size, "out of memory for codebooks of %zu bytes", g->books_bytes);
        return KVF_E_NOMEM;
    }
    for (int i = 0; i < 2 * g->n_stores; i++) {
        kvf_part *part = side_at(g, i);
        if (!part->book) continue;
        memcpy(at, part->book, kvfi_book_floats(part, g->stores[i / 2].kv_heads) * sizeof *at);
        part->book = at;
        at += book_room(g, i);
    }
    return KVF_OK;
}

/* Codebooks as bytes, for kernels that can look those up. */
static int setup_entries(kvfi_geometry *g, const kvf_allocator *a, char *error, size_t error_size)
{
    size_t at = 0;
    for (int i = 0; i < 2 * g->n_stores; i++) g->entries_bytes += kvfi_entries_bytes(side_at(g, i), g->stores[i / 2].kv_heads);
    g->entries = kvfi_alloc(a, g->entries_bytes);
    if (g->entries_bytes && !g->entries) {
        kvfi_sentence(error, error_size, "out of memory for tables of codebooks of %zu bytes", g->entries_bytes);
        return KVF_E_NOMEM;
    }
    for (int i = 0; i < 2 * g->n_stores; i++) {
        kvf_part *part = side_at(g, i);
        const size_t bytes = kvfi_entries_bytes(part, g->stores[i / 2].kv_heads);
        if (!bytes) continue;
        kvfi_entries_fill(part, g->stores[i / 2].kv_heads, g->entries + at);
        at += bytes;
    }
    return KVF_OK;
}

static size_t feedback_floats(const kvfi_store *s)
{
    return s->k.fed ? (size_t)s->kv_heads * kvfi_feedback_floats(s->k.dim, s->k.sub) : 0;
}

static int fill_feedback(kvfi_store *s, double *work, float *at, char *error, size_t error_size)
{
    const kvf_calibrated_layer *c = s->calibrated;
    const size_t dim = (size_t)s->k.dim;
    int rc = KVF_OK;
    s->k.feedback = at, s->k.feedback_stride = kvfi_feedback_floats(s->k.dim, s->k.sub);
    for (size_t h = 0; h < (size_t)s->kv_heads && !rc; h++) {
        rc = kvfi_feedback_fill(c->q_moment + h * dim * dim, c->k_lambda + h * dim, s->k.dim, s->k.sub, work,
                                at + h * s->k.feedback_stride);
        if (rc)
            kvfi_sentence(
                error, error_size,
                "calibration, layer %d: q_moment of head %d is not the mean of q q^T of any queries: it must be symmetric "
                "and have no negative eigenvalue",
                (int)s->layer, (int)h);
    }
    return rc;
}

/* Error feedback of keys, of the stores whose codec takes it. */
static int setup_feedback(kvfi_geometry *g, const kvf_allocator *a, char *error, size_t error_size)
{
    size_t floats = 0, largest = 0, at = 0;
    for (int i = 0; i < g->n_stores; i++) {
        const kvf_part *k = &g->stores[i].k;
        floats += feedback_floats(&g->stores[i]);
        if (k->fed && (size_t)k->dim > largest) largest = (size_t)k->dim;
    }
    g->feedback_bytes = floats * sizeof *g->feedback;
    if (!floats) return KVF_OK;
    g->feedback = kvfi_alloc(a, g->feedback_bytes);
    double *work = kvfi_alloc(a, largest * largest * sizeof *work);
    if (!g->feedback || !work)
        kvfi_sentence(error, error_size, "out of memory for error feedback of %zu bytes", g->feedback_bytes);
    int rc = g->feedback && work ? KVF_OK : KVF_E_NOMEM;
    for (int i = 0; i < g->n_stores && !rc; i++) {
        if (g->stores[i].k.fed) rc = fill_feedback(&g->stores[i], work, g->feedback + at, error, error_size);
        at += feedback_floats(&g->stores[i]);
    }
    kvfi_release(a, work, largest * largest * sizeof *work);
    return rc;
}

/* Where estimates lie: sums with the sequence, finished tables in sets that sequences share. */
static void lay_out_estimates(kvfi_geometry *g, size_t *at)
{
    g->sums_offset = *at;
    for (int i = 0; i < g->n_stores; i++) {
        kvfi_store *s = &g->stores[i];
        if (!s->self) continue;
        size_t dim = (size_t)s->k.head_dim, heads = (size_t)s->kv_heads;
        s->key_sums = advance(at, heads * KVFI_KEY_SUMS * dim * sizeof(double));
        s->pair_sums = advance(at, (size_t)s->n_pairs * 3 * sizeof(double));
        lay_out_table(s, &g->table_bytes);
    }
    for (int i = 0; i < g->n_layers; i++) {
        kvfi_layer *l = &g->layers[i];
        if (!g->stores[l->store].self || !g->stores[l->store].k.scaled) continue;
        l->query_bytes = (size_t)KVFI_EPOCHS * (size_t)l->kv_heads * (size_t)l->k_dim * sizeof(double);
        l->query_sums = advance(at, 2 * l->query_bytes);
    }
    g->sums_bytes = *at - g->sums_offset;
}

/* u / (|u| sqrt(dim)); a direction of length 0 stays that. */
static void scale_direction(const float *u, int32_t dim, float *out)
{
    double sum = 0;
    for (int32_t d = 0; d < dim; d++) sum += (double)u[d] * (double)u[d];
    const double factor = sum > 0 ? 1 / sqrt(sum * dim) : 0;
    for (int32_t d = 0; d < dim; d++) out[d] = (float)((double)u[d] * factor);
}

/* Budgets of single layers. */
static int check_budgets(const kvfi_geometry *g, const kvf_params *p, char *error, size_t error_size)
{
    const int32_t last = kvfi_evict_last_protected(&g->evict), given = kvfi_evict_last_budget(&g->evict);
    CHECK(last < p->n_layers, "policy '%s' protects layer %d; there are 0 to %d", g->evict.policy->name, (int)last,
          (int)p->n_layers - 1);
    CHECK(given < p->n_layers, "policy '%s' gives layer %d a budget; there are 0 to %d", g->evict.policy->name, (int)given,
          (int)p->n_layers - 1);
    for (int i = 0; i < p->n_layers; i++) {
        const int64_t budget = own_budget(g, p, i), least = (int64_t)g->evict.sink + g->evict.recent;
        CHECK(p->layers[i].share < 0 || !kvfi_evict_protects(&g->evict, i),
              "policy '%s' protects layer %d, which reads the keys of layer %d: protect that one", g->evict.policy->name, i,
              (int)p->layers[i].share);
        if (!budget) continue;
        CHECK(budget >= -1 && budget < INT32_MAX,
              "layer %d: evict_budget is %lld; allowed are -1 (all), 0 (as the policy says) and more", i, (long long)budget);
        CHECK(p->layers[i].share < 0, "layer %d has a budget of its own, but reads the keys of layer %d: give it to that one", i,
              (int)p->layers[i].share);
        if (budget < 0) continue;
        CHECK(kvfi_evicts(&g->evict), "layer %d has a budget of %lld tokens, but there is no policy", i, (long long)budget);
        CHECK(!g->stores[store_of(g, i)].window, "layer %d has a budget of %lld tokens, but a window of its own", i,
              (long long)budget);
        CHECK(budget >= least, "layer %d: a budget of %lld tokens is less than the %lld that are protected", i, (long long)budget,
              (long long)least);
    }
    return KVF_OK;
}

/* What the policy needs of the calibration: directions, all scaled to lengths at which no score leaves the range of f16. */
static int setup_directions(kvfi_geometry *g, const kvf_allocator *a, char *error, size_t error_size)
{
    size_t floats = 0;
    if (!kvfi_evicts(&g->evict) || !g->evict.policy->needs_direction) return KVF_OK;
    for (int i = 0; i < g->n_stores; i++) {
        const kvfi_store *s = &g->stores[i];
        if (!s->evicts) continue;
        floats += (size_t)s->kv_heads * (size_t)s->k.head_dim;
        if (s->calibrated && s->calibrated->q_direction) continue;
        kvfi_sentence(error, error_size,
                      "policy '%s' needs the direction of the queries of layer %d, which a calibration tells: make one with "
                      "kvfold calibrate",
                      g->evict.policy->name, (int)s->layer);
        return KVF_E_UNSUPPORTED;
    }
    g->directions_bytes = floats * sizeof *g->directions;
    float *at = g->directions = kvfi_alloc(a, g->directions_bytes);
    if (floats && !at) {
        kvfi_sentence(error, error_size, "out of memory for directions of %zu bytes", g->directions_bytes);
        return KVF_E_NOMEM;
    }
    for (int i = 0; i < g->n_stores; i++) {
        kvfi_store *s = &g->stores[i];
        if (!s->evicts) continue;
        s->direction = at;
        for (int32_t h = 0; h < s->kv_heads; h++, at += s->k.head_dim)
            scale_direction(s->calibrated->q_direction + (size_t)h * (size_t)s->k.head_dim, s->k.head_dim, at);
    }
    return KVF_OK;
}

/* What the longest chain of a sequence has beside its links, whichever store's it is. */
static void setup_masses(kvfi_geometry *g)
{
    for (int i = 0; i < g->n_layers; i++)
        if (g->stores[g->layers[i].store].mass && g->layers[i].q_heads > g->weight_heads) g->weight_heads = g->layers[i].q_heads;
    g->sort_offset = g->chain_bytes;
    if (g->evict.policy->mass == KVFI_MASS_NEWEST) g->beside_bytes = KVF_BLOCK * 2 * sizeof(int32_t);
    g->weights_offset = g->chain_bytes + g->beside_bytes;
    g->beside_bytes += (size_t)g->weight_heads * (KVF_BLOCK + 1) * sizeof(float);
    g->beside_bytes = kvfi_round_up(g->beside_bytes, 8);
    g->chain_bytes += g->beside_bytes;
}

/* Which stores the policy works on, and where their scores lie: known once every layer that shares a store is. */
static void setup_eviction(kvfi_geometry *g)
{
    for (int i = 0; i < g->n_stores; i++) {
        kvfi_store *s = &g->stores[i];
        s->evicts = kvfi_evicts(&g->evict) && !s->window && s->own_budget >= 0 && !kvfi_evict_protects(&g->evict, s->layer);
        s->first_score = g->n_scored;
        s->packs = kvfi_evicts(&g->evict) && (s->evicts || s->window);
        s->chained = s->evicts && kvfi_evict_ranks(&g->evict);
        s->mass = s->chained && g->evict.policy->mass;
        if (!s->own_budget) s->budget = g->evict.tokens;
        s->torn_budget = s->budget;
        s->moves = kvfi_part_moves(&s->k) && (s->v_in_k || kvfi_part_moves(&s->v));
        s->chain_offset = g->chain_bytes;
        if (!s->packs) continue;
        if (s->chained) g->n_scored += s->kv_heads;
        s->link_bytes = kvfi_link_bytes(s->kv_heads) + (s->mass ? (size_t)s->kv_heads * sizeof(kvfi_mass) : 0);
        g->chain_bytes += s->link_bytes;
    }
    setup_masses(g);
}

static void lay_out_sequence(kvfi_geometry *g)
{
    size_t at = 0, window = (size_t)g->window_rows, sink = (size_t)g->sink;
    for (int i = 0; i < g->n_stores; i++) {
        kvfi_store *s = &g->stores[i];
        size_t heads = (size_t)s->kv_heads;
        s->window_k = advance(&at, window * heads * s->k_row);
        s->window_v = advance(&at, window * heads * s->v_row);
        s->sink_k = advance(&at, sink * heads * s->k_row);
        s->sink_v = advance(&at, sink * heads * s->v_row);
    }
    lay_out_estimates(g, &at);
    g->open_most = g->window_rows + g->max_batch;
    if (g->evict.policy->mass) g->mass_offset = advance(&at, (size_t)g->n_scored * 2 * (size_t)g->open_most * sizeof(float));
    g->sequence_bytes = at;
    g->row_ids = 8;
    g->row_valid = kvfi_round_up(g->row_ids + 4 * (size_t)g->n_stores, 8);
    g->row_bytes = g->row_valid + 8 * (size_t)g->n_heads;
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void lay_out_scratch(kvfi_geometry *g)
{
    size_t k_pad = 16, v_pad = 16, prepared = 64, items = 1;
    int segments = 0; /* in chains, whose centres come in any order */
    for (int i = 0; i < g->n_layers; i++) {
        const kvfi_layer *l = &g->layers[i];
        const kvfi_store *s = &g->stores[l->store];
        k_pad = max_size(k_pad, (size_t)s->k.dim_pad);
        v_pad = max_size(v_pad, l->v_stride);
        segments |= s->packs && s->staged;
        const kvfi_kind_ops *ops = &g->kernels.kind[s->k.kind];
        prepared = max_size(prepared, ops->prepared_bytes(&s->k, ops->many ? KVFI_VECTORS : KVFI_DIRECT));
        size_t groups = (size_t)(g->max_sequences < g->max_batch ? g->max_sequences : g->max_batch);
        size_t vectors = (size_t)g->max_batch * (size_t)l->group;
        items = max_size(items, (size_t)l->kv_heads * (groups + vectors / KVFI_DIRECT));
    }
    size_t at = 0, f = sizeof(float);
    g->slot_q = advance(&at, KVFI_VECTORS * k_pad * f);
    g->slot_rotated = advance(&at, KVFI_VECTORS * k_pad * f);
    g->slot_prepared = advance(&at, prepared);
    g->slot_scores = advance(&at, KVFI_VECTORS * KVF_BLOCK * f);
    g->slot_bias = advance(&at, KVFI_VECTORS * KVF_BLOCK * f);
    g->slot_acc = advance(&at, KVFI_VECTORS * v_pad * f);
    g->slot_acc_rotated = advance(&at, KVFI_VECTORS * v_pad * f);
    g->slot_tile_k = advance(&at, k_pad * KVF_BLOCK * f);
    g->slot_tile_v = advance(&at, v_pad * KVF_BLOCK * f);
    if (segments) g->slot_offsets = advance(&at, KVFI_OFFSET_BYTES);
    if (g->exact_bits < 16) {
        g->slot_rows_k = advance(&at, k_pad * KVF_BLOCK * f);
        g->slot_rows_v = advance(&at, v_pad * KVF_BLOCK * f);
    }
    g->slot_bytes = at;
    g->max_items = (int32_t)items;
    g->max_parts = g->threads > 1 ? 6 * g->threads : 0;
    g->max_masses = g->evict.policy->mass ? g->max_items + 4 * g->threads : 0;
    g->partial_bytes = kvfi_round_up(KVFI_DIRECT * (v_pad + 2) * f, 64);
}

/* What seal_each codes and decodes a layer's rows in: two tiles, the rows of all heads and both sides, one record. */
static void lay_out_coded(kvfi_geometry *g)
{
    size_t pad = 16, rows = 0, record = 64, at = 0;
    for (int i = 0; g->seal_each && i < g->n_layers; i++) {
        const kvfi_layer *l = &g->layers[i];
        const kvfi_store *s = &g->stores[l->store];
        pad = max_size(pad, max_size((size_t)s->k.dim_pad, l->v_stride));
        rows = max_size(rows, (size_t)g->max_batch * (size_t)l->kv_heads * (size_t)(l->k_dim + l->v_dim));
        record = max_size(record, max_size(s->k.bytes, s->v.bytes));
    }
    if (!rows) return;
    advance(&at, 2 * pad * KVF_BLOCK * sizeof(float));
    g->coded_rows = advance(&at, rows * sizeof(float));
    g->coded_record = advance(&at, record);
    g->coded_bytes = at;
}

int kvfi_geometry_init(kvfi_geometry *g, const kvf_params *p, const kvf_allocator *a, char *error, size_t error_size)
{
    memset(g, 0, sizeof *g);
    int rc = check_params(p, error, error_size);
    if (rc) return rc;
    if (p->cpu && !*p->cpu) {
        kvfi_sentence(error, error_size, "cpu is an empty name; allowed are NULL (the best present) or a name, as scalar");
        return KVF_E_UNSUPPORTED;
    }
    rc = kvfi_evict_setup(p->evict, p->sink, p->recent, &g->evict, error, error_size);
    if (!rc) rc = kvfi_kernels_select(p->cpu, &g->kernels, error, error_size);
    if (rc) return rc;
    g->n_layers = p->n_layers, g->sink = p->sink, g->recent = p->recent, g->keep = p->window_keep, g->seal_each = p->seal_each;
    g->exact_bits = p->exact_bits;
    g->max_sequences = p->max_sequences, g->max_batch = p->max_batch, g->threads = p->threads;
    g->window_rows = (p->recent + KVF_BLOCK - 1 + KVF_BLOCK - 1) / KVF_BLOCK * KVF_BLOCK;
    g->layers_bytes = (size_t)p->n_layers * sizeof *g->layers;
    g->stores_bytes = (size_t)p->n_layers * sizeof *g->stores;
    g->layers = kvfi_alloc_zero(a, g->layers_bytes);
    g->stores = kvfi_alloc_zero(a, g->stores_bytes);
    if (!g->layers || !g->stores) {
        kvfi_sentence(error, error_size, "out of memory for the description of %d layers", (int)p->n_layers);
        rc = KVF_E_NOMEM;
    }
    for (int i = 0; i < p->n_layers && !rc; i++) rc = check_layer(p, i, error, error_size);
    if (!rc) rc = kvfi_calibration_copy(&g->calibration, p, a, error, error_size);
    for (int i = 0; i < p->n_layers && !rc; i++) rc = setup_layer(g, p, i, error, error_size);
    if (!rc) rc = setup_pairs(g, p, a, error, error_size);
    if (!rc) rc = setup_known(g, a, error, error_size);
    if (!rc) rc = setup_matrices(g, a, error, error_size);
    if (!rc) rc = check_budgets(g, p, error, error_size);
    if (!rc) setup_eviction(g);
    if (!rc) rc = setup_directions(g, a, error, error_size);
    if (!rc) rc = setup_books(g, a, error, error_size);
    if (!rc) rc = setup_entries(g, a, error, error_size);
    if (!rc) rc = setup_feedback(g, a, error, error_size);
    kvfi_calibration_let_go(&g->calibration, g->n_layers);
    for (int i = 0; i < g->n_stores; i++)
        if (g->stores[i].self) g->first_seal = KVFI_EPOCH_FIRST;
    /* Blocks that wait for the first estimates wait in the window: up to 127 rows. */
    if (g->window_rows < g->first_seal) g->window_rows = g->first_seal;
    if (rc) {
        kvfi_geometry_free(g, a);
        return rc;
    }
    lay_out_sequence(g);
    lay_out_scratch(g);
    lay_out_coded(g);
    g->fixed_bytes = kvfi_fixed_bytes(g);
    rc = kvfi_fit_budget(g, error, error_size);
    if (rc) kvfi_geometry_free(g, a);
    return rc;
}

size_t kvfi_geometry_bytes(const kvfi_geometry *g)
{
    return g->layers_bytes + g->stores_bytes + g->pairs_bytes + g->matrices_bytes + g->books_bytes + g->entries_bytes +
           g->feedback_bytes + g->directions_bytes + g->calibration.bytes + g->known_bytes;
}

void kvfi_geometry_free(kvfi_geometry *g, const kvf_allocator *a)
{
    kvfi_release(a, g->layers, g->layers_bytes);
    kvfi_release(a, g->stores, g->stores_bytes);
    kvfi_release(a, g->pairs, g->pairs_bytes);
    kvfi_release(a, g->matrices, g->matrices_bytes);
    kvfi_release(a, g->books, g->books_bytes);
    kvfi_release(a, g->entries, g->entries_bytes);
    kvfi_release(a, g->feedback, g->feedback_bytes);
    kvfi_release(a, g->known, g->known_bytes);
    kvfi_release(a, g->directions, g->directions_bytes);
    kvfi_calibration_free(&g->calibration, a);
    memset(g, 0, sizeof *g);
}
