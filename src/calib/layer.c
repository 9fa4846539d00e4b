/* SPDX-License-Identifier: MIT
 * From samples of a layer to what a calibration file says of it (kvfold_calibration.h). */
#include "base/exact.h"
#include "base/memory.h"
#include "base/text.h"
#include "calib/direction.h"
#include "calib/kmeans.h"
#include "calib/self.h"
#include "kvfold_calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DIM_MOST = 1024 };

/* A layer being learnt. */
typedef struct learner {
    const kvf_samples *s;
    kvfi_pair *pairs;
    int32_t n_pairs, head;
    double mean[DIM_MOST]; /* of the head's keys before RoPE */
    double *work;          /* [k_dim^2 + 2 k_dim] */
    uint64_t *order;       /* [n] segment << 32 | sample, ascending */
    int32_t segments;      /* different ones */
    char *error;
    size_t error_size;
} learner;

#define CHECK(condition, code, ...)                                                                                              \
    do {                                                                                                                         \
        if (!(condition)) {                                                                                                      \
            kvfi_sentence(error, error_size, __VA_ARGS__);                                                                       \
            return code;                                                                                                         \
        }                                                                                                                        \
    } while (0)

static int check_finite(const float *x, size_t n, const char *what, char *error, size_t error_size)
{
    for (size_t i = 0; i < n; i++) CHECK(isfinite(x[i]), KVF_E_NONFINITE, "calibrate: NaN or infinity among the %s", what);
    return KVF_OK;
}

static int check(const kvf_samples *s, char *error, size_t error_size)
{
    CHECK(s, KVF_E_ARG, "calibrate: no samples");
    CHECK(s->size == sizeof *s, KVF_E_VERSION, "calibrate: size of the samples is %u, this library expects %u", (unsigned)s->size,
          (unsigned)sizeof *s);
    CHECK(s->n >= 1 && s->n <= 1 << 24, KVF_E_ARG, "calibrate: %lld positions; allowed are 1 to 2^24", (long long)s->n);
    CHECK(s->kv_heads >= 1 && s->kv_heads <= 4096 && s->group >= 1 && s->group <= 4096, KVF_E_ARG,
          "calibrate: %d KV heads with %d query heads each; allowed are 1 to 4096", (int)s->kv_heads, (int)s->group);
    CHECK(s->k_dim >= 1 && s->k_dim <= DIM_MOST && s->v_dim >= 1 && s->v_dim <= DIM_MOST, KVF_E_ARG,
          "calibrate: heads of %d and %d channels; allowed are 1 to %d", (int)s->k_dim, (int)s->v_dim, DIM_MOST);
    CHECK(s->rope_dims >= 0 && s->rope_dims % 2 == 0 && s->rope_dims <= s->k_dim && (!s->rope_dims || s->rope_freq), KVF_E_ARG,
          "calibrate: rope_dims is %d; it must be even, at most k_dim (%d), and have frequencies", (int)s->rope_dims,
          (int)s->k_dim);
    CHECK(s->pos && s->q && s->k && s->v, KVF_E_ARG, "calibrate: pos, q, k and v are all needed");
    for (int64_t i = 0; i < s->n; i++) CHECK(s->pos[i] >= 0, KVF_E_ARG, "calibrate: position %d", (int)s->pos[i]);
    const size_t rows = (size_t)s->n * (size_t)s->kv_heads, k_dim = (size_t)s->k_dim;
    int rc = check_finite(s->q, rows * (size_t)s->group * k_dim, "queries", error, error_size);
    if (!rc) rc = check_finite(s->k, rows * k_dim, "keys", error, error_size);
    return rc ? rc : check_finite(s->v, rows * (size_t)s->v_dim, "values", error, error_size);
}

static size_t work_doubles(const kvf_samples *s)
{
    return (size_t)s->k_dim * (size_t)s->k_dim + 2 * (size_t)s->k_dim;
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void sort_samples(learner *l)
{
    for (int64_t i = 0; i < l->s->n; i++) l->order[i] = (uint64_t)(l->s->pos[i] / KVFI_SEGMENT) << 32 | (uint64_t)i;
    qsort(l->order, (size_t)l->s->n, sizeof *l->order, compare);
    for (int64_t i = 0; i < l->s->n; i++) l->segments += !i || l->order[i] >> 32 != l->order[i - 1] >> 32;
}

static void close(learner *l, const kvf_allocator *a)
{
    kvfi_release(a, l->pairs, ((size_t)l->n_pairs + 1) * sizeof *l->pairs);
    kvfi_release(a, l->work, work_doubles(l->s) * sizeof *l->work);
    kvfi_release(a, l->order, (size_t)l->s->n * sizeof *l->order);
}

/* There is nothing to close after a failure. */
static int open(learner *l, const kvf_samples *s, const kvf_allocator *a, char *error, size_t error_size)
{
    *l = (learner){.s = s, .error = error, .error_size = error_size};
    l->n_pairs = s->rope_style == KVF_ROPE_UNKNOWN ? 0 : s->rope_dims / 2;
    l->pairs = kvfi_alloc_zero(a, ((size_t)l->n_pairs + 1) * sizeof *l->pairs);
    l->work = kvfi_alloc(a, work_doubles(s) * sizeof *l->work);
    l->order = kvfi_alloc(a, (size_t)s->n * sizeof *l->order);
    if (!l->pairs || !l->work || !l->order) {
        close(l, a);
        kvfi_sentence(error, error_size, "calibrate: out of memory");
        return KVF_E_NOMEM;
    }
    sort_samples(l);
    if (l->n_pairs) kvfi_pairs_init(l->pairs, s->rope_dims, s->rope_style, s->rope_freq);
    return KVF_OK;
}

static const float *key(const learner *l, int64_t i)
{
    return l->s->k + ((size_t)l->head * (size_t)l->s->n + (size_t)i) * (size_t)l->s->k_dim;
}

static const float *queries(const learner *l, int32_t in_group)
{
    const size_t head = (size_t)l->head * (size_t)l->s->group + (size_t)in_group;
    return l->s->q + head * (size_t)l->s->n * (size_t)l->s->k_dim;
}

/* ---- keys -------------------------------------------------------------------------------------------------------------------- */

static double energy(const double *x, const learner *l)
{
    double sum = 0;
    for (int32_t i = 0; i < l->n_pairs; i++) sum += x[l->pairs[i].a] * x[l->pairs[i].a] + x[l->pairs[i].b] * x[l->pairs[i].b];
    return sum;
}

/* u_a = k_a cos + k_b sin, u_b = k_b cos - k_a sin: every key as it was before RoPE. Adds the energies of both means. */
static void find_mean(learner *l, double *unrotated, double *plain)
{
    double as_cached[DIM_MOST] = {0};
    memset(l->mean, 0, sizeof l->mean);
    for (int64_t i = 0; i < l->s->n; i++) {
        const float *k = key(l, i);
        for (int32_t d = 0; d < l->s->k_dim; d++) as_cached[d] += (double)k[d] / (double)l->s->n;
        for (int32_t p = 0; p < l->n_pairs; p++) {
            double sine, cosine;
            const double a = (double)k[l->pairs[p].a], b = (double)k[l->pairs[p].b];
            kvfi_sincos(l->pairs[p].freq * (double)l->s->pos[i], &sine, &cosine);
            l->mean[l->pairs[p].a] += (a * cosine + b * sine) / (double)l->s->n;
            l->mean[l->pairs[p].b] += (b * cosine - a * sine) / (double)l->s->n;
        }
    }
    uint8_t turned[DIM_MOST] = {0};
    for (int32_t p = 0; p < l->n_pairs; p++) turned[l->pairs[p].a] = turned[l->pairs[p].b] = 1;
    for (int32_t d = 0; d < l->s->k_dim; d++)
        if (!turned[d]) l->mean[d] = as_cached[d];
    *unrotated += energy(l->mean, l), *plain += energy(as_cached, l);
}

/* Centre of the first segment; kvfi_turn takes it on. */
static void first_centre(const learner *l, double *centre)
{
    float mean[DIM_MOST], scale[DIM_MOST];
    for (int32_t d = 0; d < l->s->k_dim; d++) mean[d] = (float)l->mean[d];
    const kvfi_known known = {.mean = mean, .pairs = l->pairs, .dim = l->s->k_dim, .n_pairs = l->n_pairs};
    kvfi_known_table(&known, centre, scale);
}

/* Samples in the order of their segments, with the centre of each. */
typedef struct tour {
    double centre[DIM_MOST];
    int64_t segment, i;
} tour;

static void begin_tour(const learner *l, tour *t)
{
    first_centre(l, t->centre);
    t->segment = 0, t->i = 0;
}

/* The next sample; its segment's centre is t->centre then. */
static int64_t next_sample(const learner *l, tour *t)
{
    const uint64_t at = l->order[t->i++];
    const int64_t segment = (int64_t)(at >> 32);
    if (segment != t->segment) kvfi_turn(t->centre, l->pairs, l->n_pairs, segment - t->segment);
    t->segment = segment;
    return (int64_t)(uint32_t)at;
}

/* Mean square and largest magnitude of keys less the centre of their segment. */
static void spread(const learner *l, double *square, double *largest)
{
    tour t;
    memset(square, 0, DIM_MOST * sizeof *square), memset(largest, 0, DIM_MOST * sizeof *largest);
    begin_tour(l, &t);
    while (t.i < l->s->n) {
        const float *k = key(l, next_sample(l, &t));
        for (int32_t d = 0; d < l->s->k_dim; d++) {
            const double x = (double)k[d] - (double)(float)t.centre[d];
            square[d] += x * x / (double)l->s->n;
            if (fabs(x) > largest[d]) largest[d] = fabs(x);
        }
    }
}

/* sqrt(max |key|), equal within a RoPE pair so that it passes through the rotation. A channel that is never moved has nothing to be
 * divided; the least is a millionth of the head's largest. */
static void smoothing(const learner *l, const double *largest, float *lambda)
{
    double most[DIM_MOST], head = 0;
    memcpy(most, largest, sizeof most);
    for (int32_t p = 0; p < l->n_pairs; p++) {
        const int32_t a = l->pairs[p].a, b = l->pairs[p].b;
        most[a] = most[b] = most[a] > most[b] ? most[a] : most[b];
    }
    for (int32_t d = 0; d < l->s->k_dim; d++) head = most[d] > head ? most[d] : head;
    for (int32_t d = 0; d < l->s->k_dim; d++) {
        const double least = head * 1e-6;
        lambda[d] = most[d] > 0 ? (float)sqrt(most[d] > least ? most[d] : least) : 1.0f;
    }
}

static void put(float *to, size_t at, const double *x, int32_t n)
{
    for (int32_t i = 0; to && i < n; i++) to[at + (size_t)i] = (float)x[i];
}

static void learn_keys(learner *l, kvf_learnt *out, double *unrotated, double *plain)
{
    const int32_t dim = l->s->k_dim;
    const size_t at = (size_t)l->head * (size_t)dim;
    double square[DIM_MOST], largest[DIM_MOST], direction[DIM_MOST];
    find_mean(l, unrotated, plain);
    spread(l, square, largest);
    put(out->k_mean, at, l->mean, dim);
    put(out->k_max, at, largest, dim);
    if (out->k_lambda) smoothing(l, largest, out->k_lambda + at);
    for (int32_t d = 0; d < dim; d++) square[d] = sqrt(square[d]);
    put(out->k_rms, at, square, dim);
    if (out->k_direction) kvfi_direction(key(l, 0), l->s->n, dim, l->work, direction);
    put(out->k_direction, at, direction, dim);
}

/* ---- queries ----------------------------------------------------------------------------------------------------------------- */

/* Mean of q q^T over the head's group; q_ij and q_ji are one sum. */
static void second_moment(const learner *l, float *moment, double *sums)
{
    const size_t n = (size_t)l->s->k_dim, rows = (size_t)l->s->n;
    memset(sums, 0, n * n * sizeof *sums);
    for (int32_t g = 0; g < l->s->group; g++) {
        const float *q = queries(l, g);
        for (size_t r = 0; r < rows; r++, q += n)
            for (size_t i = 0; i < n; i++)
                for (size_t j = 0; j <= i; j++) sums[i * n + j] += (double)q[i] * (double)q[j];
    }
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++)
            moment[i * n + j] = moment[j * n + i] = (float)(sums[i * n + j] / ((double)l->s->n * l->s->group));
}

static void learn_queries(learner *l, kvf_learnt *out)
{
    const int32_t dim = l->s->k_dim;
    const size_t at = (size_t)l->head * (size_t)dim;
    double square[DIM_MOST] = {0}, direction[DIM_MOST], sum[DIM_MOST] = {0}, positive = 0;
    for (int32_t g = 0; g < l->s->group; g++) {
        const float *q = queries(l, g);
        for (int64_t i = 0; i < l->s->n; i++)
            for (int32_t d = 0; d < dim; d++)
                square[d] += (double)q[(size_t)i * (size_t)dim + (size_t)d] * (double)q[(size_t)i * (size_t)dim + (size_t)d];
        if (!out->q_direction && !out->one_sided) continue;
        positive += kvfi_direction(q, l->s->n, dim, l->work, direction) / l->s->group;
        for (int32_t d = 0; d < dim; d++)
            sum[d] += direction[d] / l->s->group; /* not made 1 long again: heads that disagree count less */
    }
    for (int32_t d = 0; d < dim; d++) square[d] = sqrt(square[d] / ((double)l->s->n * l->s->group));
    put(out->q_rms, at, square, dim);
    put(out->q_direction, at, sum, dim);
    if (out->one_sided) out->one_sided[l->head] = (float)positive;
    if (out->q_moment) second_moment(l, out->q_moment + at * (size_t)dim, l->work);
}

int kvf_calibrate_layer(const kvf_samples *s, kvf_learnt *out, char *error, size_t error_size)
{
    const kvf_allocator a = kvfi_system_allocator();
    double unrotated = 0, plain = 0;
    learner l;
    int rc = check(s, error, error_size);
    if (rc) return rc;
    CHECK(out && out->size == sizeof *out, KVF_E_VERSION, "calibrate: size of the results is not %u", (unsigned)sizeof *out);
    rc = open(&l, s, &a, error, error_size);
    if (rc) return rc;
    for (l.head = 0; l.head < s->kv_heads; l.head++) {
        learn_keys(&l, out, &unrotated, &plain);
        learn_queries(&l, out);
    }
    /* as the estimates of a prompt: where there is hardly a mean both are noise of equal size */
    out->turns = s->rope_style != KVF_ROPE_UNKNOWN && unrotated >= 0.9 * plain;
    close(&l, &a);
    return KVF_OK;
}

/* ---- codebooks --------------------------------------------------------------------------------------------------------------- */

typedef struct training {
    const kvf_codebook *book;
    const float *k_mean, *k_lambda;
    uint64_t seed;
    float *rows, *centres;    /* [kv_heads][n][dim]; of keys [kv_heads][segments][dim] */
    kvfi_training_rows *sets; /* [kv_heads * segments] */
} training;

/* Keys of the head by segments, each with its centre, from set n on; returns how many sets there are then. */
static int32_t add_keys(learner *l, const training *t, int32_t n)
{
    const size_t dim = (size_t)l->s->k_dim, at = (size_t)l->head * dim;
    float *rows = t->rows + at * (size_t)l->s->n, *centre = t->centres + at * (size_t)l->segments;
    const float *lambda = t->k_lambda ? t->k_lambda + at : NULL;
    tour walk;
    int64_t segment = -1;
    begin_tour(l, &walk);
    while (walk.i < l->s->n) {
        const float *k = key(l, next_sample(l, &walk));
        if (walk.segment != segment) {
            for (size_t d = 0; d < dim; d++) centre[d] = (float)walk.centre[d];
            t->sets[n++] = (kvfi_training_rows){.x = rows, .centre = centre, .lambda = lambda};
            centre += dim, segment = walk.segment;
        }
        memcpy(rows, k, dim * sizeof *rows);
        rows += dim, t->sets[n - 1].n++;
    }
    return n;
}

/* Values need no order. */
static int32_t add_values(const learner *l, const training *t, int32_t n)
{
    const size_t rows = (size_t)l->head * (size_t)l->s->n;
    t->sets[n] = (kvfi_training_rows){.x = l->s->v + rows * (size_t)l->s->v_dim, .n = l->s->n};
    return n + 1;
}

/* Keys that turn in an unknown way are centred on what they are on average, as the cache does it by blocks. */
static int32_t add_head(learner *l, const training *t, int32_t head, int32_t n)
{
    double unused[2] = {0};
    l->head = head;
    if (t->book->side == KVF_V) return add_values(l, t, n);
    if (!t->k_mean && l->s->rope_style == KVF_ROPE_UNKNOWN) {
        find_mean(l, &unused[0], &unused[1]);
    } else {
        for (int32_t d = 0; d < l->s->k_dim; d++)
            l->mean[d] = t->k_mean ? (double)t->k_mean[(size_t)head * (size_t)l->s->k_dim + (size_t)d] : 0;
    }
    return add_keys(l, t, n);
}

static int train(learner *l, const training *t, float *centroids, const kvf_allocator *a)
{
    const kvf_codebook *b = t->book;
    const int32_t dim = b->side == KVF_K ? l->s->k_dim : l->s->v_dim;
    int32_t n = 0;
    int rc = KVF_OK;
    for (int32_t head = 0; head < l->s->kv_heads && !rc; head++) {
        if (b->heads > 1) n = 0;
        n = add_head(l, t, head, n);
        if (b->heads == 1 && head + 1 < l->s->kv_heads) continue;
        float *to = centroids + (b->heads > 1 ? (size_t)head * ((size_t)b->sub << b->bits) : 0);
        rc = kvfi_train_codebook((kvf_side)b->side, dim, b->sub, b->bits, t->sets, n,
                                 t->seed + (uint64_t)(b->heads > 1 ? head : 0), to, a);
    }
    if (rc)
        kvfi_sentence(l->error, l->error_size, "calibrate: codebook of %d channels x %d bits for %s: %s", (int)b->sub,
                      (int)b->bits, b->side == KVF_K ? "keys" : "values",
                      rc == KVF_E_NONFINITE ? "a number is not finite, or above 1e18 once centred and divided by lambda"
                                            : kvf_strerror(rc));
    return rc;
}

/* What is known of keys, head by head: finite, and above `least`. */
static int check_known(const kvf_samples *s, const float *x, const char *what, double least, char *error, size_t error_size)
{
    const size_t dim = (size_t)s->k_dim;
    for (size_t i = 0; x && i < (size_t)s->kv_heads * dim; i++)
        CHECK(isfinite(x[i]) && (double)x[i] > least, isfinite(x[i]) ? KVF_E_ARG : KVF_E_NONFINITE,
              "calibrate: %s of head %d is %g at channel %d; it must be finite%s", what, (int)(i / dim), (double)x[i],
              (int)(i % dim), least == 0 ? " and above 0" : "");
    return KVF_OK;
}

static int check_book(const kvf_samples *s, const kvf_codebook *b, const float *centroids, char *error, size_t error_size)
{
    CHECK(b && centroids && (b->side == KVF_K || b->side == KVF_V) && (b->sub == 2 || b->sub == 4 || b->sub == 8) &&
              b->bits >= 1 && b->bits <= 12 && (b->heads == 1 || b->heads == s->kv_heads),
          KVF_E_ARG, "calibrate: a codebook has a side, 2, 4 or 8 channels, 1 to 12 bits, and 1 or %d heads", (int)s->kv_heads);
    const int32_t dim = b->side == KVF_K ? s->k_dim : s->v_dim;
    CHECK(dim % b->sub == 0, KVF_E_UNSUPPORTED, "calibrate: heads of %d channels cannot be cut into sub-vectors of %d", (int)dim,
          (int)b->sub);
    return KVF_OK;
}

int kvf_calibrate_codebook(const kvf_samples *s, const kvf_codebook *book, const float *k_mean, const float *k_lambda,
                           uint64_t seed, float *centroids, char *error, size_t error_size)
{
    const kvf_allocator a = kvfi_system_allocator();
    learner l;
    int rc = check(s, error, error_size);
    if (!rc) rc = check_book(s, book, centroids, error, error_size);
    if (!rc && book->side == KVF_K) rc = check_known(s, k_mean, "k_mean", -HUGE_VAL, error, error_size);
    if (!rc && book->side == KVF_K) rc = check_known(s, k_lambda, "k_lambda", 0, error, error_size);
    if (!rc) rc = open(&l, s, &a, error, error_size);
    if (rc) return rc;
    training t = {.book = book, .k_mean = k_mean, .k_lambda = k_lambda, .seed = seed};
    const size_t heads = (size_t)s->kv_heads, keys = book->side == KVF_K ? heads * (size_t)s->k_dim : 0;
    const size_t row_bytes = keys * (size_t)s->n * sizeof(float), centre_bytes = keys * (size_t)l.segments * sizeof(float),
                 set_bytes = heads * (size_t)l.segments * sizeof *t.sets;
    t.rows = kvfi_alloc(&a, row_bytes), t.centres = kvfi_alloc(&a, centre_bytes), t.sets = kvfi_alloc(&a, set_bytes);
    if ((keys && (!t.rows || !t.centres)) || !t.sets)
        kvfi_sentence(error, error_size, "calibrate: out of memory"), rc = KVF_E_NOMEM;
    if (!rc) rc = train(&l, &t, centroids, &a);
    kvfi_release(&a, t.rows, row_bytes), kvfi_release(&a, t.centres, centre_bytes), kvfi_release(&a, t.sets, set_bytes);
    close(&l, &a);
    return rc;
}
