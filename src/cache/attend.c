/* SPDX-License-Identifier: MIT
 * Planning an attention: checks, items (sequence x KV head x up to 64 query vectors), spans of history, merging.
 * The walk over one item and span is in walk.c. */
#include "cache/mass.h"
#include "cache/check.h"

#include <math.h>
#include <string.h>

void kvf_attention_init(kvf_attention *a)
{
    memset(a, 0, sizeof *a);
    a->size = sizeof *a;
}

static int check_request(kvf_cache *c, const kvf_attention *a)
{
    if (!c->batch.n) return kvfi_fail(c, KVF_E_STATE, "attend: no batch is open");
    if (c->attend.open) return kvfi_fail(c, KVF_E_STATE, "attend: another attention is open; end it first");
    if (!a) return kvfi_fail(c, KVF_E_ARG, "attend: the request is NULL");
    if (a->size != sizeof *a)
        return kvfi_fail(c, KVF_E_VERSION, "attend: size is %u, this library expects %u; use kvf_attention_init",
                         (unsigned)a->size, (unsigned)sizeof *a);
    if (a->layer < 0 || a->layer >= c->g.n_layers)
        return kvfi_fail(c, KVF_E_ARG, "attend: layer %d; allowed are 0 to %d", (int)a->layer, (int)c->g.n_layers - 1);
    if (!a->out) return kvfi_fail(c, KVF_E_ARG, "layer %d: out is NULL", (int)a->layer);
    if (!isfinite(a->scale) || !isfinite(a->softcap) || a->softcap < 0)
        return kvfi_fail(c, KVF_E_ARG, "layer %d: scale %g and softcap %g must be finite, softcap 0 or more", (int)a->layer,
                         (double)a->scale, (double)a->softcap);
    if (a->mask && a->mask_type != KVF_F16 && a->mask_type != KVF_F32)
        return kvfi_fail(c, KVF_E_ARG, "layer %d: mask type %d; allowed are KVF_F16 (1) and KVF_F32 (2)", (int)a->layer,
                         (int)a->mask_type);
    return KVF_OK;
}

/* Slopes must be numbers; a sink of -infinity takes no part. */
static int check_heads(kvf_cache *c, const kvf_attention *a)
{
    for (int32_t h = 0; h < c->g.layers[a->layer].q_heads; h++) {
        if (a->slopes && !isfinite(a->slopes[h]))
            return kvfi_fail(c, KVF_E_NONFINITE, "layer %d, head %d: the slope is NaN or infinite", (int)a->layer, (int)h);
        if (a->sinks && !(a->sinks[h] < INFINITY))
            return kvfi_fail(c, KVF_E_NONFINITE, "layer %d, head %d: the sink logit is NaN or infinite", (int)a->layer, (int)h);
    }
    return KVF_OK;
}

static int check_rows(kvf_cache *c, const kvf_attention *a)
{
    const kvfi_layer *l = &c->g.layers[a->layer];
    int rc = kvfi_check_view(c, a->layer, "queries", &a->q);
    if (!rc) rc = kvfi_check_view(c, a->layer, "keys", &a->k);
    if (!rc && !l->v_in_k) rc = kvfi_check_view(c, a->layer, "values", &a->v);
    if (!rc) rc = kvfi_check_rows(c, a->layer, "query", &a->q, NULL, l->q_heads, l->k_dim, NULL);
    if (!rc) rc = kvfi_check_rows(c, a->layer, "key", &a->k, a->cells, l->kv_heads, l->k_dim, NULL);
    if (!rc && !l->v_in_k) rc = kvfi_check_rows(c, a->layer, "value", &a->v, a->cells, l->kv_heads, l->v_dim, NULL);
    return rc;
}

/* Vectors of one (run, head) in equal chunks of at most `most`. */
static void add_items(kvf_cache *c, int32_t most)
{
    const kvfi_layer *l = &c->g.layers[c->attend.request.layer];
    kvfi_attend *t = &c->attend;
    t->n_items = 0;
    for (int32_t r = 0; r < c->batch.n_runs; r++)
        for (int32_t h = 0; h < l->kv_heads; h++) {
            int32_t vectors = c->batch.runs[r].count * l->group;
            for (int32_t first = 0; first < vectors; first += most)
                t->items[t->n_items++] = (kvfi_item){r, h, first, vectors - first < most ? vectors - first : most};
        }
}

static int32_t longest_history(const kvf_cache *c)
{
    int32_t blocks = 0;
    for (int32_t r = 0; r < c->batch.n_runs; r++) {
        const kvfi_sequence *s = &c->sequences[c->batch.runs[r].seq];
        const int32_t links = s->n_links[c->g.layers[c->attend.request.layer].store], n = links ? links : s->n_blocks;
        if (n > blocks) blocks = n;
    }
    return blocks;
}

/* Does the open attention add to the masses of its store? The first of a layer in a batch does. */
static int keeps_mass(const kvf_cache *c)
{
    return c->g.stores[c->g.layers[c->attend.request.layer].store].mass;
}

static int adds_mass(const kvf_cache *c)
{
    return keeps_mass(c) && c->batch.queried[c->attend.request.layer] < 2;
}

/* Few items: cut each history into spans so that every thread has about four parts, none shorter than 512 tokens. */
static int32_t choose_spans(const kvf_cache *c)
{
    const kvfi_attend *t = &c->attend;
    int32_t threads = c->g.threads;
    if (threads == 1 || keeps_mass(c) || t->n_items >= 2 * threads) return 1;
    int32_t spans = (4 * threads + t->n_items - 1) / t->n_items, most = longest_history(c) / 8;
    if (spans > most) spans = most;
    return spans < 1 ? 1 : spans;
}

/* Heads of the open attention over all runs: items of a head follow each other. */
static int32_t count_heads(const kvf_cache *c)
{
    return c->batch.n_runs * c->g.layers[c->attend.request.layer].kv_heads;
}

/* Shares of a chain: sums of a row do not depend on them, so threads may. 0: no item needs a part for its masses. */
static int32_t choose_mass_spans(const kvf_cache *c)
{
    const kvfi_attend *t = &c->attend;
    int needed = 0;
    for (int32_t i = 0; i < t->n_items; i++) needed |= !kvfi_gathers(c, &t->items[i]);
    if (!t->adds_mass || !needed) return 0;
    const int32_t heads = count_heads(c), most = longest_history(c) / 8;
    int32_t spans = c->g.threads == 1 ? 1 : (4 * c->g.threads + heads - 1) / heads;
    if (spans > most) spans = most;
    return spans < 1 ? 1 : spans;
}

static void split(kvf_cache *c)
{
    kvfi_attend *t = &c->attend;
    /* Large chunks share each unfolded tile among more queries; smaller ones give every thread something to do. But tiles are summed in
     * another order than packed codes, and masses, by which rows are kept, must not depend on threads: those have large chunks. */
    int32_t most = KVFI_VECTORS;
    add_items(c, most);
    while (!keeps_mass(c) && t->n_items < 2 * c->g.threads && most > KVFI_DIRECT) add_items(c, most /= 2);
    t->spans = choose_spans(c);
    t->walks = t->n_items * t->spans;
    t->adds_mass = adds_mass(c);
    t->mass_spans = choose_mass_spans(c);
    t->parts = t->walks + t->mass_spans * count_heads(c);
}

int kvf_attend_begin(kvf_cache *c, const kvf_attention *a, kvf_plan *plan)
{
    if (!c || !plan) return KVF_E_ARG;
    c->error[0] = 0;
    int rc = check_request(c, a);
    if (!rc) rc = check_heads(c, a);
    if (!rc) rc = check_rows(c, a);
    if (rc) return rc;
    kvfi_attend *t = &c->attend;
    t->request = *a;
    kvfi_learn_queries(c);
    kvfi_code_request(c);
    split(c);
    atomic_store(&t->done, 0);
    atomic_store(&t->walked, 0);
    atomic_store(&t->bad_mass, 0);
    for (int32_t i = 0; i < t->parts; i++) atomic_flag_clear(&t->part_taken[i]);
    t->open = 1;
    *plan = (kvf_plan){.parts = t->parts, .scratch = (size_t)c->g.threads * c->g.slot_bytes, .cache = c};
    if (t->spans > 1) plan->scratch += (size_t)t->walks * c->g.partial_bytes;
    return KVF_OK;
}

static int finish_masses(kvf_cache *c)
{
    const kvfi_attend *t = &c->attend;
    if (!t->adds_mass) return KVF_OK;
    c->batch.queried[t->request.layer] = 2;
    if (!atomic_load(&t->bad_mass)) return KVF_OK;
    c->batch.spoilt = 1;
    return kvfi_fail(c, KVF_E_NONFINITE, "layer %d: scores are NaN or infinite: policy %s cannot rank rows by them",
                     (int)t->request.layer, c->g.evict.policy->name);
}

/* Scratch of one thread. As many as the caller announced; a caller with more threads waits its turn. */
static int32_t take_slot(kvf_cache *c)
{
    for (;;)
        for (int32_t i = 0; i < c->g.threads; i++)
            if (!atomic_flag_test_and_set_explicit(&c->attend.slot_busy[i], memory_order_acquire)) return i;
}

static void free_slot(kvf_cache *c, int32_t slot)
{
    atomic_flag_clear_explicit(&c->attend.slot_busy[slot], memory_order_release);
}

static void do_walk(kvf_cache *c, int32_t i)
{
    kvfi_attend *t = &c->attend;
    if (atomic_flag_test_and_set(&t->part_taken[i])) return;
    const int32_t slot = take_slot(c);
    uint8_t *scratch = t->slots + (size_t)slot * c->g.slot_bytes,
            *partial = t->spans > 1 ? t->partials + (size_t)i * c->g.partial_bytes : NULL;
    kvfi_walk(c, &t->items[i / t->spans], i % t->spans, scratch, partial);
    if (kvfi_gathers(c, &t->items[i / t->spans])) kvfi_walk_mass(c, i, 0, 1, scratch);
    free_slot(c, slot);
    atomic_fetch_add(&t->walked, 1);
    atomic_fetch_add(&t->done, 1);
}

/* Masses of one head and share. Who comes before all walks are done does those that nobody has begun and waits for the others, which
 * never wait themselves. Items of a head are added in their order, so threads change no sum. */
static void do_mass(kvf_cache *c, int32_t i)
{
    kvfi_attend *t = &c->attend;
    if (atomic_flag_test_and_set(&t->part_taken[t->walks + i])) return;
    for (int32_t j = 0; j < t->walks && atomic_load(&t->walked) < t->walks; j++) do_walk(c, j);
    while (atomic_load(&t->walked) < t->walks) continue;
    const int32_t slot = take_slot(c), heads = c->g.layers[t->request.layer].kv_heads, which = i / t->mass_spans;
    for (int32_t j = 0; j < t->n_items; j++)
        if (t->items[j].run == which / heads && t->items[j].head == which % heads && !kvfi_gathers(c, &t->items[j]))
            kvfi_walk_mass(c, j, i % t->mass_spans, t->mass_spans, t->slots + (size_t)slot * c->g.slot_bytes);
    free_slot(c, slot);
    atomic_fetch_add(&t->done, 1);
}

void kvf_attend_part(const kvf_plan *plan, int32_t i)
{
    kvf_cache *c = plan ? plan->cache : NULL;
    if (!c || !c->attend.open || i < 0 || i >= c->attend.parts) return; /* attend_end will find a part missing */
    if (i < c->attend.walks)
        do_walk(c, i);
    else
        do_mass(c, i - c->attend.walks);
}

int kvf_attend_end(kvf_plan *plan)
{
    kvf_cache *c = plan ? plan->cache : NULL;
    if (!c) return KVF_E_ARG;
    kvfi_attend *t = &c->attend;
    c->error[0] = 0;
    if (!t->open) return kvfi_fail(c, KVF_E_STATE, "attend: no attention is open");
    int done = atomic_load(&t->done);
    if (done != t->parts)
        return kvfi_fail(c, KVF_E_STATE, "layer %d: %d of %d parts were done; do the rest and end again", (int)t->request.layer,
                         done, (int)t->parts);
    t->open = 0;
    if (t->spans > 1)
        for (int32_t i = 0; i < t->n_items; i++)
            kvfi_merge_spans(c, &t->items[i], t->partials + (size_t)i * (size_t)t->spans * c->g.partial_bytes, t->spans);
    return finish_masses(c);
}

int kvf_attend(kvf_cache *c, const kvf_attention *a)
{
    kvf_plan plan;
    int rc = kvf_attend_begin(c, a, &plan);
    if (rc) return rc;
    for (int32_t i = 0; i < plan.parts; i++) kvf_attend_part(&plan, i);
    return kvf_attend_end(&plan);
}

void kvf_merge(float *out, float *lse, const float *other, const float *other_lse, int64_t n, int64_t dim)
{
    for (int64_t i = 0; i < n; i++) {
        float top = lse[i] > other_lse[i] ? lse[i] : other_lse[i];
        if (top == -INFINITY) continue; /* both saw nothing */
        float a = expf(lse[i] - top), b = expf(other_lse[i] - top), sum = a + b;
        for (int64_t d = 0; d < dim; d++) out[i * dim + d] = (a * out[i * dim + d] + b * other[i * dim + d]) / sum;
        lse[i] = top + logf(sum);
    }
}
