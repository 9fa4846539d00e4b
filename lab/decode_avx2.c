/* SPDX-License-Identifier: MIT
 * How fast does one thread decode on packed records? One layer and token at a time, several instruction sets and codecs, checked
 * first, then timed in turn.
 *
 *   cc -O2 -Iinclude -Isrc lab/decode_avx2.c build/lib/libkvfold.a -lm -o decode_avx2
 *   decode_avx2 [--rounds R] [--context N] [--dim D] [--heads Q/KV] [--hot] [SPEC ...]
 *
 * Each codec has a pool of layers larger than the last-level cache, so that a layer always comes from memory, in the order of
 * the cache: [block][KV head][K record, V record]. A sample is one layer. The rows:
 *   read            every line of the layer loaded once: what memory gives to one thread in this very run
 *   scalar, avx2    score, softmax, mix through that table of kernels
 * With --hot the pool is one layer, which for short contexts stays in the cache and shows the arithmetic alone. */
#define _POSIX_C_SOURCE 200112L
#include "codec/codec.h"
#include "cpu/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_LAYERS = 256, MOST_SAMPLES = 4096, POOL_BYTES = 128 << 20, MOST_ARMS = 4 };

typedef struct shape {
    int q_heads, kv_heads, dim, blocks, layers;
    kvf_part k, v;
    size_t record, layer;
} shape;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* Roughly normal. */
static float gauss(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += (float)(next(state) >> 40) * 0x1p-24f;
    return sum - 6;
}

static float to_half(float x) /* exactly representable in f16: a few bits are enough here */
{
    return rintf(x * 256) / 256;
}

static void *memory(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 4096, bytes)) exit(2);
    return p;
}

static void make_layer(const shape *s, uint8_t *layer, uint64_t seed)
{
    float *x = memory(sizeof(float) * 64 * (size_t)s->dim);
    for (int i = 0; i < s->blocks * s->kv_heads; i++)
        for (int side = 0; side < 2; side++) {
            for (int j = 0; j < 64 * s->dim; j++) x[j] = to_half(gauss(&seed));
            const kvf_part *part = side ? &s->v : &s->k;
            part->codec->encode(part, x, layer + (size_t)i * s->record + (side ? s->k.bytes : 0));
        }
    free(x);
}

/* One token of one layer: out[q_heads][dim]. */
static void decode(const shape *s, const kvfi_kernels *k, const uint8_t *layer, const float *q, float *out, void *prepared)
{
    const int group = s->q_heads / s->kv_heads, pad = s->k.dim_pad;
    const kvfi_kind_ops *ks = &k->kind[s->k.kind], *vs = &k->kind[s->v.kind];
    float scores[64 * 64], max[64], sum[64];
    for (int h = 0; h < s->kv_heads; h++) {
        float *acc = out + (size_t)h * (size_t)(group * pad);
        memset(acc, 0, sizeof *acc * (size_t)(group * pad));
        for (int v = 0; v < group; v++) max[v] = -INFINITY, sum[v] = 0;
        ks->prepare(&s->k, q + (size_t)h * (size_t)(group * pad), (size_t)pad, group, prepared);
        for (int b = 0; b < s->blocks; b++) {
            const uint8_t *record = layer + (size_t)(b * s->kv_heads + h) * s->record;
            ks->score(&s->k, record, prepared, group, scores);
            for (int v = 0; v < group; v++) {
                const float factor = k->softmax(scores + 64 * v, max + v, sum + v);
                if (factor != 1.0f)
                    for (int c = 0; c < pad; c++) acc[v * pad + c] *= factor;
            }
            vs->mix(&s->v, record + s->k.bytes, scores, group, acc, (size_t)pad);
        }
        for (int v = 0; v < group; v++)
            for (int c = 0; c < pad; c++) acc[v * pad + c] /= sum[v];
    }
}

static volatile uint64_t sink;

static void read_layer(const uint8_t *layer, size_t bytes)
{
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 512 <= bytes; i += 512)
        for (int j = 0; j < 8; j++) {
            uint64_t x;
            memcpy(&x, layer + i + 64 * j, 8);
            sum[j] ^= x;
        }
    for (int j = 0; j < 8; j++) sink ^= sum[j];
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double difference(const float *a, const float *b, size_t n)
{
    double e = 0, r = 0;
    for (size_t i = 0; i < n; i++) e += ((double)a[i] - b[i]) * ((double)a[i] - b[i]), r += (double)a[i] * a[i];
    return sqrt(e / r);
}

static int setup(shape *s, const char *spec, int hot)
{
    char error[256];
    if (kvfi_part_setup(spec, KVF_K, s->dim, &s->k, error, sizeof error) ||
        kvfi_part_setup(spec, KVF_V, s->dim, &s->v, error, sizeof error)) {
        fprintf(stderr, "%s: %s\n", spec, error);
        return 2;
    }
    s->record = s->k.bytes + s->v.bytes;
    s->k.next_offset = (int64_t)s->k.bytes, s->k.next_bytes = s->v.bytes;
    s->v.next_offset = (int64_t)(s->record * (size_t)s->kv_heads - s->k.bytes), s->v.next_bytes = s->k.bytes;
    s->layer = s->record * (size_t)(s->blocks * s->kv_heads);
    s->layers = hot ? 1 : (int)(POOL_BYTES / s->layer) + 1;
    if (s->layers > MOST_LAYERS) s->layers = MOST_LAYERS;
    return 0;
}

static int measure(shape *s, const char *spec, int rounds, int hot)
{
    static double t[MOST_ARMS][MOST_SAMPLES];
    kvfi_kernels table[MOST_ARMS];
    int arms = 0;
    if (setup(s, spec, hot)) return 2;
    for (int i = 0; i < kvfi_cpu_count() && arms < MOST_ARMS - 1; i++)
        if (kvfi_cpu_present(i) && !kvfi_kernels_select(kvfi_cpu_name(i), &table[arms], NULL, 0)) arms++;
    const size_t nq = (size_t)s->q_heads * (size_t)s->k.dim_pad;
    uint8_t *pool = memory(s->layer * (size_t)s->layers);
    float *q = memory(nq * sizeof *q), *want = memory(nq * sizeof *q), *out = memory(nq * sizeof *q);
    void *prepared = memory(1 << 20);
    make_layer(s, pool, 88172645463325252u);
    for (int i = 1; i < s->layers; i++) memcpy(pool + (size_t)i * s->layer, pool, s->layer);
    uint64_t seed = 362436069362436069u;
    for (size_t i = 0; i < nq; i++) q[i] = (int)(i % (size_t)s->k.dim_pad) < s->dim ? gauss(&seed) / sqrtf((float)s->dim) : 0;
    decode(s, &table[0], pool, q, want, prepared);
    for (int a = 1; a < arms; a++) {
        decode(s, &table[a], pool, q, out, prepared);
        const double e = difference(want, out, nq);
        if (!(e < 1e-4)) {
            fprintf(stderr, "%s: %s differs from scalar by %g\n", spec, table[a].name, e);
            return 1;
        }
    }
    for (int r = -1; r < rounds; r++)
        for (int i = 0; i <= arms; i++) {
            const int a = (i + r + 1) % (arms + 1);
            const uint8_t *layer = pool + (size_t)((r + 1) * (arms + 1) + i) % (size_t)s->layers * s->layer;
            const double start = now();
            if (a == arms)
                read_layer(layer, s->layer);
            else
                decode(s, &table[a], layer, q, out, prepared);
            if (r >= 0) t[a][r] = now() - start;
        }
    for (int a = 0; a <= arms; a++) qsort(t[a], (size_t)rounds, sizeof t[a][0], ascending);
    for (int a = 0; a <= arms; a++)
        printf("%-16s %-7s median %9.1f us  min %9.1f  max %9.1f  %6.2f GB/s  %6.2fx\n", spec, a < arms ? table[a].name : "read",
               t[a][rounds / 2], t[a][0], t[a][rounds - 1], (double)s->layer / t[a][rounds / 2] * 1e-3,
               t[0][rounds / 2] / t[a][rounds / 2]);
    free(pool), free(q), free(want), free(out), free(prepared);
    return 0;
}

int main(int argc, char **argv)
{
    shape s = {.q_heads = 32, .kv_heads = 8, .dim = 128, .blocks = 64};
    int rounds = 11, hot = 0, specs = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--hot"))
            hot = 1;
        else if (!strcmp(argv[i], "--rounds"))
            rounds = atoi(value), i++;
        else if (!strcmp(argv[i], "--context"))
            s.blocks = atoi(value) / 64, i++;
        else if (!strcmp(argv[i], "--dim"))
            s.dim = atoi(value), i++;
        else if (!strcmp(argv[i], "--heads")) {
            if (sscanf(value, "%d/%d", &s.q_heads, &s.kv_heads) != 2) return 1;
            i++;
        } else
            specs++;
    }
    if (rounds < 1 || rounds > MOST_SAMPLES || s.blocks < 1 || s.kv_heads < 1 || s.q_heads / s.kv_heads > 64) return 1;
    printf("%d/%d heads of %d channels, %d tokens, one thread, %d samples, interleaved\n", s.q_heads, s.kv_heads, s.dim,
           s.blocks * 64, rounds);
    static const char *const usual[] = {"f16", "q8_0", "q4_0", "kivi4", "kivi3", "kivi2", "kivi1"};
    if (!specs)
        for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
            if (measure(&s, usual[i], rounds, hot)) return 1;
    for (int i = 1; i < argc && specs; i++) {
        if (argv[i][0] == '-')
            i += strcmp(argv[i], "--hot") != 0;
        else if (measure(&s, argv[i], rounds, hot))
            return 1;
    }
    return 0;
}
