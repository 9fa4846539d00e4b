/* SPDX-License-Identifier: MIT
 * Policies that rank rows by the attention they received: which rows stay, by a dense definition in double precision written out here;
 * aborted and repeated attentions; what threads and refusals make of it. */
#include "support.h"
#include "cache/mass.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 640, R = 64, S = 4, BUDGET = 200, DIM = 32, Q = 4, KV = 2 };

/* What a definition knows of one KV head. */
typedef struct head {
    double sum[N];
    int alive[N];
} head;

typedef struct reference {
    head kv[KV];
    float k[N][KV][DIM];
    int newest, used, n;
    int open; /* first row that is not coded */
} reference;

static void model(ts_model *m, const char *evict)
{
    ts_model_init(m, 1, Q, KV, DIM, DIM, "f16", "f16");
    m->params.evict = evict;
}

/* Softmax weights of one query over what it sees, added to the head's sums. */
static void add_query(reference *r, int kv, const float *q, int pos, double *pending)
{
    static double weight[N];
    double total = 0;
    for (int j = 0; j <= pos; j++) {
        double score = 0;
        weight[j] = 0;
        if (j < r->n && !r->kv[kv].alive[j]) continue;
        for (int d = 0; d < DIM; d++) score += (double)q[d] * (double)r->k[j][kv][d];
        total += weight[j] = exp(score / sqrt(DIM));
    }
    for (int j = 0; j <= pos; j++) pending[j] += weight[j] / total;
}

/* Mean over five living neighbours among the rows that are sealed (the sink apart, which no choice sees). */
static double pooled(const head *h, int p, int sealed)
{
    double sum = h->sum[p];
    int n = 1;
    for (int side = -1; side <= 1; side += 2)
        for (int j = p + side, found = 0; j >= S && j < sealed && found < 2; j += side)
            if (h->alive[j]) sum += h->sum[j], n++, found++;
    return sum / n;
}

static void choose(reference *r, head *h, int rows)
{
    double rank[N];
    int have = 0;
    for (int j = 0; j < rows; j++) have += h->alive[j];
    for (int j = S; j < rows - R; j++)
        rank[j] = r->newest ? pooled(h, j, rows - R)
                            : h->sum[j] / (r->n - j); /* of all queries so far, whichever block is chosen from */
    for (; have > BUDGET; have--) {
        int worst = -1;
        for (int j = S; j < rows - R; j++)
            if (h->alive[j] && (worst < 0 || rank[j] < rank[worst])) worst = j;
        h->alive[worst] = 0;
    }
}

/* A batch: attention by the definition, then the choices of the blocks that it seals. */
static void follow(reference *r, const ts_batch *b)
{
    static double pending[KV][N];
    memset(pending, 0, sizeof pending);
    for (int i = 0; i < b->n; i++) memcpy(r->k[r->n + i], b->k[0].plain + (size_t)(i * KV * DIM), sizeof r->k[0]);
    for (int i = r->newest && b->n > 64 ? b->n - 64 : 0; i < b->n; i++)
        for (int h = 0; h < Q; h++)
            add_query(r, h / (Q / KV), b->q[0].plain + (size_t)((i * Q + h) * DIM), r->n + i, pending[h / (Q / KV)]);
    const int fresh = r->newest && (r->used || b->n >= 64), before = r->n;
    r->n += b->n, r->used = 0;
    for (int kv = 0; kv < KV; kv++) {
        for (int j = before; j < r->n; j++) r->kv[kv].alive[j] = 1, r->kv[kv].sum[j] = 0;
        for (int j = 0; j < r->n; j++) r->kv[kv].sum[j] = (fresh ? 0 : r->kv[kv].sum[j]) + pending[kv][j];
        for (int rows = r->open + 64 + R; rows <= r->n; rows += 64) choose(r, &r->kv[kv], rows), r->used = 1;
    }
    while (r->open + 64 + R <= r->n) r->open += 64;
}

static ts_batch *attended_as(kvf_cache *c, const ts_model *m, int seq, uint64_t tag, int pos, int n)
{
    ts_row rows[N];
    ts_rows(rows, n, seq, tag, pos);
    ts_batch *b = ts_batch_new(m, rows, n, &(ts_how){.scale = 1 / sqrtf(DIM)});
    ts_begin(c, b);
    ts_attend_all(c, b);
    return b;
}

static ts_batch *attended(kvf_cache *c, const ts_model *m, int pos, int n)
{
    return attended_as(c, m, 0, 1, pos, n);
}

/* Every head holds the rows that the definition keeps, and heads differ. */
static void same_kept(kvf_cache *c, int seq, const reference *r, const char *what)
{
    int differ = 0;
    for (int kv = 0; kv < KV; kv++)
        for (int pos = 0; pos < r->n; pos++) {
            float x[DIM];
            const int held = kvf_seq_read(c, seq, 0, KVF_K, kv, pos, x) == KVF_OK;
            if (held != r->kv[kv].alive[pos])
                fail_msg("%s, %s, head %d: position %d is %s", c->g.evict.policy->name, what, kv, pos, held ? "held" : "missing");
            differ += r->kv[0].alive[pos] != r->kv[1].alive[pos];
        }
    assert_true(differ > 0);
}

static void check(const char *spec, int newest, int chunk, int threads)
{
    ts_model m;
    reference *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->newest = newest;
    model(&m, spec);
    m.params.threads = threads;
    kvf_cache *c = ts_create(&m);
    for (int pos = 0; pos < N; pos += chunk) {
        const int n = N - pos < chunk ? N - pos : chunk;
        if (pos == 4 * chunk) { /* what is aborted adds nothing */
            ts_batch *b = attended(c, &m, pos, n);
            ts_ok(kvf_batch_abort(c));
            ts_batch_free(b);
        }
        ts_batch *b = attended(c, &m, pos, n);
        if (pos == 3 * chunk) ts_attend_all(c, b); /* and what is asked twice once */
        ts_append_all(c, b);
        ts_ok(kvf_batch_commit(c));
        follow(r, b);
        ts_batch_free(b);
    }
    char what[40];
    snprintf(what, sizeof what, "in batches of %d", chunk);
    same_kept(c, 0, r, what);
    kvf_cache_free(&c);
    free(r);
}

static void test_h2o(void **state)
{
    (void)state;
    check("h2o:budget=200", 0, 50, 1);
    check("h2o:budget=200", 0, 1, 1);
    check("h2o:budget=200", 0, 160, 3);
}

static void test_snapkv(void **state)
{
    (void)state;
    check("snapkv:budget=200", 1, 50, 1);
    check("snapkv:budget=200", 1, 1, 1);
    check("snapkv:budget=200", 1, 160, 3);
}

/* What is kept, byte for byte, is the same however many threads a cache is told of: batches whose items they would split, and spans. */
static void test_threads_change_nothing(void **state)
{
    static const char *const specs[] = {"h2o:budget=200", "snapkv:budget=200"}, *const codecs[] = {"f16", "turbo4"};
    static const int chunks[] = {1, 9, 13, 40}; /* vectors of a head: twice as many */
    (void)state;
    for (int i = 0; i < 2; i++) {
        ts_model m;
        kvf_cache *c[3];
        for (int t = 0; t < 3; t++) {
            model(&m, specs[i]);
            m.layers[0].k = codecs[i];
            m.params.threads = t == 2 ? 16 : t + 1;
            c[t] = ts_create(&m);
            for (int pos = 0, k = 0; pos + 40 < N; k++) {
                ts_batch *b = attended(c[t], &m, pos, chunks[k % 4]);
                pos += b->n;
                ts_append_all(c[t], b);
                ts_ok(kvf_batch_commit(c[t]));
                ts_batch_free(b);
            }
            if (kvfi_cache_hash(c[t], 0) != kvfi_cache_hash(c[0], 0))
                fail_msg("%s, %s: %d threads keep other rows, or masses, than one", specs[i], codecs[i], (int)m.params.threads);
        }
        for (int t = 0; t < 3; t++) kvf_cache_free(&c[t]);
    }
}

/* All that the rows of a head have received. */
static double received(const kvf_cache *c, int h)
{
    const kvfi_sequence *s = &c->sequences[0];
    const kvfi_store *st = &c->g.stores[0];
    const float *open = kvfi_open_mass(c, s, st, h, 0);
    double sum = 0;
    for (int i = 0; i < s->open; i++) sum += (double)open[i];
    for (int i = 0; i < s->n_links[0]; i++)
        for (int t = 0; t < KVF_BLOCK; t++) sum += (double)kvfi_link_mass(kvfi_link_at(s, st, i), st, h)->sum[t];
    return sum;
}

/* Fresh memory is full of NaN: whoever adds up what nobody wrote shows it. */
static void *allocate_nan(void *user, size_t size)
{
    ts_heap plain;
    ts_heap_init(&plain);
    void *memory = plain.hooks.allocate(user, size);
    if (memory) memset(memory, 0xff, size);
    return memory;
}

/* Nothing dropped, no sink: every query of the group has given one to the rows of its head, however many vectors that makes: packed codes
 * read directly, tiles, several items of one row. Another layer reads the same rows through a window: what has left that gets nothing. */
static void test_each_query_gives_one(void **state)
{
    static const int groups[] = {1, 3, 20, 71}, chunks[] = {1, 5, 40}, windows[] = {50, 150};
    (void)state;
    for (int i = 0; i < 4 * 3; i++) {
        ts_model m;
        ts_heap heap;
        const int group = groups[i / 3];
        double given = 0;
        ts_heap_init(&heap);
        heap.hooks.allocate = allocate_nan;
        ts_model_init(&m, 2, 2 * group, 2, 16, 16, "uni4", "q4_0");
        m.layers[1].share = 0, m.layers[1].window = windows[i % 2], m.layers[1].q_heads = 4 * group;
        m.params.evict = "h2o:budget=5000", m.params.sink = 0, m.params.threads = 1 + i % 4;
        m.params.allocator = &heap.hooks;
        kvf_cache *c = ts_create(&m);
        for (int pos = 0; pos < 400; pos += chunks[i % 3]) {
            if (pos % 80 >= 40) { /* rows that nobody asked about have given nothing */
                ts_grow(c, &m, 0, 1, chunks[i % 3], chunks[i % 3]);
                continue;
            }
            ts_batch *b = attended(c, &m, pos, chunks[i % 3]);
            ts_append_all(c, b);
            ts_ok(kvf_batch_commit(c));
            ts_batch_free(b);
            given += 3 * group * chunks[i % 3];
        }
        for (int h = 0; h < 2; h++)
            if (!(fabs(received(c, h) / given - 1) < 1e-3))
                fail_msg("groups of %d, batches of %d, window of %d, head %d: %g received of %g", group, chunks[i % 3],
                         windows[i % 2], h, received(c, h), given);
        kvf_cache_free(&c);
    }
}

/* Bytes are counted whole, streams do not grow. */
static void test_bytes(void **state)
{
    static const char *const specs[] = {"h2o:budget=150", "snapkv:budget=150"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        ts_model m, formula;
        ts_heap heap;
        ts_heap_init(&heap);
        model(&m, specs[i]);
        model(&formula, specs[i]);
        m.params.allocator = &heap.hooks;
        kvf_cache *c = ts_create(&m);
        ts_ok(kvf_reserve(c, 600, 1, 64));
        const long calls = heap.calls;
        for (int n = 1; n <= 2000; n++) {
            ts_grow(c, &m, 0, 1, 1, 1);
            ts_bytes_are(c, &formula, n, specs[i]);
        }
        assert_int_equal(heap.calls, calls);
        kvf_cache_free(&c);
    }
}

/* Finite numbers whose products are not: no rank can be told. */
static void test_not_finite(void **state)
{
    (void)state;
    ts_model m;
    model(&m, "h2o:budget=200");
    kvf_cache *c = ts_create(&m);
    static float q[Q * DIM], k[KV * DIM], out[Q * DIM];
    for (int i = 0; i < Q * DIM; i++) q[i] = i % 2 ? 3e38f : -3e38f;
    for (int i = 0; i < KV * DIM; i++) k[i] = 60000;
    kvf_token t = {0, 0};
    kvf_attention a;
    kvf_attention_init(&a);
    a.q = (kvf_view){q, KVF_F32, 0, Q * DIM * 4, DIM * 4}, a.k = a.v = (kvf_view){k, KVF_F32, 0, KV * DIM * 4, DIM * 4};
    a.scale = 1, a.out = out, a.out_token_stride = Q * DIM * 4, a.out_head_stride = DIM * 4;
    ts_ok(kvf_batch_begin(c, &t, 1));
    assert_int_equal(kvf_attend(c, &a), KVF_E_NONFINITE);
    assert_non_null(strstr(kvf_cache_error(c), "layer 0: scores are NaN or infinite: policy h2o cannot rank rows by them"));
    for (int i = 0; i < Q * DIM; i++) q[i] = 0; /* asked again in order, but what is spoilt stays so */
    ts_ok(kvf_attend(c, &a));
    ts_ok(kvf_batch_append(c, 0, &a.k, &a.v, NULL));
    assert_int_equal(kvf_batch_commit(c), KVF_E_STATE);
    assert_non_null(strstr(kvf_cache_error(c), "NaN or infinite; abort it"));
    ts_ok(kvf_batch_abort(c));
    ts_ok(kvf_batch_begin(c, &t, 1));
    ts_ok(kvf_attend(c, &a));
    ts_ok(kvf_batch_append(c, 0, &a.k, &a.v, NULL));
    ts_ok(kvf_batch_commit(c));
    kvf_cache_free(&c);
}

/* The same where the first row is to blame, in a coded block or in the sink: beside rows that are hidden, or that are zero, a maximum may
 * lose a NaN, and an exponential what is infinite. With one sign products are infinite whoever adds them up; with two a sum that is
 * rounded once may stay infinite below, as what is hidden, so one row is asked for. */
static void check_first_row(int sink, int hidden, int asked)
{
    ts_model m;
    model(&m, "h2o:budget=200");
    m.params.sink = sink;
    kvf_cache *c = ts_create(&m);
    static float q[Q * DIM], k[KV * DIM], out[Q * DIM];
    kvf_attention a;
    kvf_attention_init(&a);
    a.q = (kvf_view){q, KVF_F32, 0, Q * DIM * 4, DIM * 4}, a.k = a.v = (kvf_view){k, KVF_F32, 0, KV * DIM * 4, DIM * 4};
    a.scale = 1, a.out = out, a.out_token_stride = Q * DIM * 4, a.out_head_stride = DIM * 4;
    for (int i = 0; i < Q * DIM; i++) q[i] = i % 2 || asked > 1 ? 3e38f : -3e38f;
    for (int pos = 0; pos <= 64 + R; pos++) {
        kvf_token t = {0, pos};
        for (int i = 0; i < KV * DIM; i++) k[i] = pos ? 0 : 60000;
        ts_ok(kvf_batch_begin(c, &t, 1));
        if (pos == 64 + R) break;
        ts_ok(kvf_batch_append(c, 0, &a.k, &a.v, NULL));
        ts_ok(kvf_batch_commit(c));
    }
    ts_ok(kvf_batch_abort(c));
    if (hidden) ts_ok(kvf_seq_rm(c, 0, 1, 64));
    a.q.token_stride = a.k.token_stride = a.v.token_stride = a.out_token_stride = 0;
    ts_ok(kvf_batch_begin(c, (kvf_token[]){{0, 64 + R}, {0, 65 + R}, {0, 66 + R}}, asked));
    const int code = kvf_attend(c, &a);
    if (code != KVF_E_NONFINITE) fail_msg("sink %d, others %s, %d rows: %d", sink, hidden ? "hidden" : "zero", asked, code);
    kvf_cache_free(&c);
}

static void test_not_finite_in_the_first_row(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) check_first_row(i / 2 % 2 * S, i % 2, i < 4 ? 1 : 3);
}

/* Batches of n rows in all, attended to, in the cache and by the definition. */
static void grow_both(kvf_cache *c, const ts_model *m, reference *r, int seq, uint64_t tag, int n, int chunk)
{
    for (int i = 0; i < n; i += chunk) {
        ts_batch *b = attended_as(c, m, seq, tag, r->n, n - i < chunk ? n - i : chunk);
        ts_append_all(c, b);
        ts_ok(kvf_batch_commit(c));
        follow(r, b);
        ts_batch_free(b);
    }
}

/* Positions p0 to p1 - 1; to the end: the next block begins where the cut was, if that was among coded rows. */
static void remove_both(kvf_cache *c, reference *r, int seq, int p0, int p1)
{
    ts_ok(kvf_seq_rm(c, seq, p0, p1));
    for (int kv = 0; kv < KV; kv++)
        for (int j = p0; j < (p1 < 0 ? r->n : p1); j++) r->kv[kv].alive[j] = 0;
    if (p1 >= 0) return;
    r->n = p0;
    if (p0 < r->open) r->open = p0;
    if (p0 > S) return;
    r->open = r->used = 0; /* reopened from the sink: nobody has asked */
    for (int kv = 0; kv < KV; kv++)
        for (int j = 0; j < p0; j++) r->kv[kv].sum[j] = 0;
}

/* Copies that go different ways, cuts among open rows and coded ones, holes, and a sequence that is reopened from its sink: masses stay with
 * the rows that they belong to. */
static void test_sequences(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        ts_model m;
        reference *r = calloc(2, sizeof *r);
        assert_non_null(r);
        r->newest = i;
        model(&m, i ? "snapkv:budget=200" : "h2o:budget=200");
        kvf_cache *c = ts_create(&m);
        grow_both(c, &m, r, 0, 1, 410, 60);
        ts_ok(kvf_seq_cp(c, 0, 1));
        ts_same_sequence(c, 0, c, 1, &m);
        r[1] = r[0];
        ts_snapshot before = ts_snapshot_take(c, &m);
        ts_batch *b = attended(c, &m, 410, 60);
        ts_append_all(c, b);
        ts_ok(kvf_batch_abort(c));
        ts_unchanged(c, &m, &before);
        ts_batch_free(b);
        ts_snapshot_free(&before);
        grow_both(c, &m, r, 0, 2, 90, 30);
        grow_both(c, &m, r + 1, 1, 3, 90, 7);
        same_kept(c, 0, r, "a copy");
        same_kept(c, 1, r + 1, "its other");
        assert_memory_not_equal(r[0].kv[0].alive, r[1].kv[0].alive, sizeof r[0].kv[0].alive);
        remove_both(c, r + 1, 1, 490, -1); /* open rows */
        grow_both(c, &m, r + 1, 1, 4, 80, 40);
        same_kept(c, 1, r + 1, "cut among open rows");
        remove_both(c, r, 0, 300, -1);
        grow_both(c, &m, r, 0, 5, 200, 25);
        same_kept(c, 0, r, "cut among coded rows");
        remove_both(c, r, 0, 250, 270);
        remove_both(c, r, 0, 470, 480);
        grow_both(c, &m, r, 0, 6, 100, 50);
        same_kept(c, 0, r, "with holes");
        remove_both(c, r + 1, 1, 3, -1);
        assert_int_equal(kvf_seq_pos_max(c, 1), 2);
        grow_both(c, &m, r + 1, 1, 7, 477, 60);
        same_kept(c, 1, r + 1, "reopened");
        kvf_cache_free(&c);
        free(r);
    }
}

/* Under emulation the first ones are left out: minutes of what no processor changes. What its softmax does with numbers that are none stays. */
#ifdef TESTS_EMULATED
enum { FIRST = 6 };
#else
enum { FIRST = 0 };
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_h2o),        cmocka_unit_test(test_snapkv),
        cmocka_unit_test(test_bytes),      cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_sequences),  cmocka_unit_test(test_each_query_gives_one),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_not_finite_in_the_first_row),
    };
    return ts_on_every_cpu("mass", tests + FIRST, sizeof tests / sizeof *tests - FIRST);
}
