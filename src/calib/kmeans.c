/* SPDX-License-Identifier: MIT */
#include "calib/kmeans.h"

#include "base/memory.h"
#include "base/random.h"
#include "codec/shared/entries.h"
#include "codec/shared/part.h"
#include "cpu/scalar/scalar.h"
#include "gpu/kernels/vector.h"

#include <string.h>

/* Rows for each seed that seeds are chosen among: every seed costs a pass over all of them. */
enum { SEED_ROWS = 8 };

#define LARGEST 1e18f /* squares still fit */
#define ENOUGH 5e-4   /* a round that lowers the error by less is the last */

typedef struct kmeans {
    const float *x;
    int64_t n;
    int32_t dim, k, power;
    uint64_t random;
    kvfi_nearest nearest;
    float *centroids;
    float *miss;     /* [n] squared distance of a row to its centroid */
    uint16_t *index; /* [n] */
    double *sum;     /* [k][dim] */
    int64_t *count;  /* [k] */
    double *weight;  /* [k] of the rows counted */
    int64_t picks;
    int32_t *pick; /* [picks] rows that seeds are chosen among */
} kmeans;

static const float *row_of(const kmeans *m, int64_t i)
{
    return m->x + (size_t)i * (size_t)m->dim;
}

static float *centroid_of(const kmeans *m, int32_t j)
{
    return m->centroids + (size_t)j * (size_t)m->dim;
}

/* ---- seeds -------------------------------------------------------------------------------------------------------------------- */

/* Rows spread evenly over all, at random within equal shares: neighbours are sub-vectors of one row, so no fixed stride will do. */
static void pick_rows(const kmeans *m)
{
    for (int64_t i = 0; i < m->picks; i++) {
        const double at = ((double)i + kvfi_random_uniform(m->random, (uint64_t)i)) * (double)m->n / (double)m->picks;
        m->pick[i] = m->picks == m->n ? (int32_t)i : at < (double)m->n ? (int32_t)at : (int32_t)(m->n - 1);
    }
}

/* A pick drawn with probability proportional to its squared distance from the seeds so far. */
static int64_t draw(const kmeans *m, double total, uint64_t number)
{
    double left = kvfi_random_uniform(m->random, number) * total;
    int64_t i = 0;
    while (i + 1 < m->picks && (left -= (double)m->miss[i]) > 0) i++;
    while (i > 0 && m->miss[i] == 0) i--; /* rounding may end on a row that is a seed already */
    return i;
}

/* Seed j takes its share of the picks; returns the sum of the squared distances that are left. */
static double lower_misses(const kmeans *m, int32_t j)
{
    double total = 0;
    for (int64_t i = 0; i < m->picks; i++) {
        const float d = kvfi_sub_distance(row_of(m, m->pick[i]), centroid_of(m, j), m->dim);
        if (j == 0 || d < m->miss[i]) m->miss[i] = d;
        total += (double)m->miss[i];
    }
    return total;
}

static void choose_seeds(const kmeans *m)
{
    double total = 0;
    pick_rows(m);
    for (int32_t j = 0; j < m->k; j++) {
        const float *from = row_of(m, m->pick[m->picks / 2]);
        if (j) from = total > 0 ? row_of(m, m->pick[draw(m, total, (uint64_t)(m->n + j))]) : centroid_of(m, j - 1);
        memcpy(centroid_of(m, j), from, (size_t)m->dim * sizeof *from);
        total = lower_misses(m, j);
    }
}

/* ---- Lloyd's iteration ---------------------------------------------------------------------------------------------------------- */

static double assign(const kmeans *m)
{
    double total = 0;
    m->nearest(m->x, m->n, m->dim, m->centroids, m->k, m->index);
    memset(m->count, 0, (size_t)m->k * sizeof *m->count);
    memset(m->weight, 0, (size_t)m->k * sizeof *m->weight);
    memset(m->sum, 0, (size_t)m->k * (size_t)m->dim * sizeof *m->sum);
    for (int64_t i = 0; i < m->n; i++) {
        const int32_t j = m->index[i];
        m->miss[i] = kvfi_sub_distance(row_of(m, i), centroid_of(m, j), m->dim);
        const double weight = m->power == 4 ? (double)m->miss[i] : 1;
        total += weight * (double)m->miss[i];
        m->count[j]++, m->weight[j] += weight;
        for (int32_t c = 0; c < m->dim; c++) m->sum[j * m->dim + c] += weight * (double)row_of(m, i)[c];
    }
    return total;
}

static int64_t farthest(const kmeans *m)
{
    int64_t far = 0;
    for (int64_t i = 1; i < m->n; i++)
        if (m->miss[i] > m->miss[far]) far = i;
    return far;
}

static void move_centroids(const kmeans *m)
{
    for (int32_t j = 0; j < m->k; j++) {
        const double n = m->weight[j]; /* 0 with rows: all lie on the centroid */
        for (int32_t c = 0; n > 0 && c < m->dim; c++) centroid_of(m, j)[c] = (float)(m->sum[j * m->dim + c] / n);
        if (m->count[j]) continue;
        const int64_t far = farthest(m);
        if (!(m->miss[far] > 0)) return; /* every row lies on a centroid: the empty ones may stay where they are */
        memcpy(centroid_of(m, j), row_of(m, far), (size_t)m->dim * sizeof(float));
        m->miss[far] = 0;
    }
}

static void iterate(const kmeans *m, int32_t iterations)
{
    double before = -1;
    for (int32_t i = 0; i < iterations; i++) {
        const double now = assign(m);
        if (now == 0 || (before >= 0 && before - now < ENOUGH * before)) return;
        move_centroids(m);
        before = now;
    }
}

static int finite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(x[i] > -LARGEST && x[i] < LARGEST)) return 0;
    return 1;
}

/* Of the best set here: all of them find the same. */
static kvfi_nearest best_search(void)
{
    kvfi_kernels kernels;
    return kvfi_kernels_select(NULL, &kernels, NULL, 0) ? kvfi_scalar_nearest : kernels.nearest;
}

static size_t room(const kmeans *m)
{
    return (size_t)m->k * ((size_t)m->dim * sizeof *m->sum + sizeof *m->count + sizeof *m->weight) +
           (size_t)m->picks * sizeof *m->pick + (size_t)m->n * (sizeof *m->miss + sizeof *m->index);
}

static void place(kmeans *m, void *memory)
{
    m->sum = memory;
    m->count = (int64_t *)(void *)(m->sum + (size_t)m->k * (size_t)m->dim);
    m->weight = (double *)(void *)(m->count + m->k);
    m->pick = (int32_t *)(void *)(m->weight + m->k);
    m->miss = (float *)(void *)(m->pick + m->picks);
    m->index = (uint16_t *)(void *)(m->miss + m->n);
}

int kvfi_kmeans(const float *x, int64_t n, int32_t dim, int32_t k, int32_t power, uint64_t seed, int32_t iterations,
                float *centroids, const kvf_allocator *a)
{
    kmeans m = {.x = x, .n = n, .dim = dim, .k = k, .power = power, .centroids = centroids};
    if (n < 0 || n > INT32_MAX || (n && !x) || (dim != 2 && dim != 4 && dim != 8) || k < 1 || k > KVFI_CENTROIDS_MOST ||
        (power != 2 && power != 4) || iterations < 0 || !centroids)
        return KVF_E_ARG;
    memset(centroids, 0, (size_t)k * (size_t)dim * sizeof *centroids);
    if (!n) return KVF_OK;
    if (!finite(x, n * dim)) return KVF_E_NONFINITE;
    m.picks = n < (int64_t)SEED_ROWS * k ? n : (int64_t)SEED_ROWS * k;
    void *memory = kvfi_alloc(a, room(&m));
    if (!memory) return KVF_E_NOMEM;
    place(&m, memory);
    m.random = kvfi_random_start(seed, KVFI_STREAM_KMEANS);
    m.nearest = best_search();
    choose_seeds(&m);
    iterate(&m, iterations);
    kvfi_release(a, memory, room(&m));
    return KVF_OK;
}

/* ---- codebooks ------------------------------------------------------------------------------------------------------------------ */

void kvfi_transform_keys(float *x, int64_t n, int32_t dim, const float *centre, const float *lambda)
{
    for (int64_t i = 0; i < n; i++, x += dim) {
        for (int32_t c = 0; c < dim; c++) x[c] = (x[c] - (centre ? centre[c] : 0.0f)) / (lambda ? lambda[c] : 1.0f);
        kvfi_scalar_hadamard(x, (size_t)dim, 1, dim, dim & -dim);
    }
}

/* Draws `some` of `all` numbers, ascending and spread evenly, and asks for the i-th. */
typedef struct drawing {
    int64_t some, all;
    uint64_t random;
} drawing;

static int64_t drawn(const drawing *d, int64_t i)
{
    if (d->some == d->all) return i;
    const int64_t at = (int64_t)(((double)i + kvfi_random_uniform(d->random, (uint64_t)i)) * (double)d->all / (double)d->some);
    return at < d->all ? at : d->all - 1;
}

/* The drawn sub-vectors of `sets`, sample[some][sub]. A row is transformed when the first of its sub-vectors is wanted. */
static void fill_sample(kvf_side side, int32_t dim, int32_t sub, const kvfi_training_rows *sets, const drawing *d, float *sample)
{
    const int64_t subs = (dim + sub - 1) / sub;
    float row[KVFI_DIM_MAX + KVFI_SUB_MOST] = {0};
    int64_t have = -1, first = 0; /* the row at hand, the first row of the set */
    for (int64_t i = 0; i < d->some; i++, sample += sub) {
        const int64_t at = drawn(d, i), wanted = at / subs;
        while (wanted - first >= sets->n) first += sets->n, sets++;
        if (wanted != have) {
            memcpy(row, sets->x + (size_t)(wanted - first) * (size_t)dim, (size_t)dim * sizeof *row);
            if (side == KVF_K) kvfi_transform_keys(row, 1, dim, sets->centre, sets->lambda);
            have = wanted;
        }
        memcpy(sample, row + at % subs * sub, (size_t)sub * sizeof *sample);
    }
}

static double error_of(const float *x, int64_t n, int32_t sub, const float *centroids, int32_t k)
{
    enum { SOME = 256 };
    uint16_t index[SOME];
    double sum = 0;
    for (int64_t i = 0; i < n; i += SOME) {
        const int64_t some = n - i < SOME ? n - i : SOME;
        best_search()(x + i * sub, some, sub, centroids, k, index);
        for (int64_t j = 0; j < some; j++) sum += (double)kvfi_sub_distance(x + (i + j) * sub, centroids + index[j] * sub, sub);
    }
    return sum;
}

/* Centroids as bytes, which some kernels look up faster, unless that adds more than a fiftieth to the error. */
static int round_book(const float *x, int64_t n, int32_t sub, int32_t k, float *centroids, const kvf_allocator *a)
{
    const size_t count = (size_t)k * (size_t)sub;
    float *rounded = kvfi_alloc(a, count * sizeof *rounded);
    if (!rounded) return KVF_E_NOMEM;
    memcpy(rounded, centroids, count * sizeof *rounded);
    kvfi_round_to_entries(rounded, count);
    if (error_of(x, n, sub, rounded, k) <= 1.02 * error_of(x, n, sub, centroids, k))
        memcpy(centroids, rounded, count * sizeof *rounded);
    kvfi_release(a, rounded, count * sizeof *rounded);
    return KVF_OK;
}

int kvfi_train_codebook(kvf_side side, int32_t dim, int32_t sub, int32_t bits, const kvfi_training_rows *sets, int32_t n_sets,
                        uint64_t seed, float *centroids, const kvf_allocator *a)
{
    if ((side != KVF_K && side != KVF_V) || dim < 1 || dim > KVFI_DIM_MAX || (sub != 2 && sub != 4 && sub != 8) || bits < 1 ||
        bits > 12 || n_sets < 0 || (n_sets && !sets))
        return KVF_E_ARG;
    const int64_t most = (int64_t)KVFI_TRAINING_MOST * (bits > 10 ? 2 : 1);
    drawing d = {.random = kvfi_random_start(seed, KVFI_STREAM_KMEANS + 1)};
    for (int32_t i = 0; i < n_sets; i++) d.all += sets[i].n * ((dim + sub - 1) / sub);
    d.some = d.all < most ? d.all : most;
    const size_t bytes = (size_t)d.some * (size_t)sub * sizeof(float);
    float *sample = kvfi_alloc(a, bytes);
    if (bytes && !sample) return KVF_E_NOMEM;
    fill_sample(side, dim, sub, sets, &d, sample);
    int rc = kvfi_kmeans(sample, d.some, sub, 1 << bits, side == KVF_K ? 4 : 2, seed, KVFI_KMEANS_ITERATIONS, centroids, a);
    if (!rc && kvfi_entries_fit(sub, bits)) rc = round_book(sample, d.some, sub, 1 << bits, centroids, a);
    kvfi_release(a, sample, bytes);
    return rc;
}
