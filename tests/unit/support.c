/* SPDX-License-Identifier: MIT
 * Numbers, models, rows' contents, the failing allocator and text checks of the tests. */
#define _POSIX_C_SOURCE 200809L /* posix_memalign */
#include "support_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ts_cpu;

/* Of the sets between AVX2 and the best, parity tests say that they are equal: what uses them is not run on each. Sanitizers and
 * emulators are for the best one. */
static int worth_running(int i)
{
#if defined(__SANITIZE_ADDRESS__) || defined(TESTS_EMULATED)
    const char *always = "";
#else
    const char *always = "scalar avx2 neon";
#endif
    const char *name;
    int present = 0, better = 0;
    for (int j = i + 1; kvf_cpu_list(j, &name, &present) == KVF_OK; j++) better |= present;
    return kvf_cpu_list(i, &name, &present) == KVF_OK && present && (!better || strstr(always, name));
}

int ts_on_every_cpu(const char *group, const struct CMUnitTest *tests, size_t n)
{
    int failed = 0, present = 0;
    for (int i = 0; kvf_cpu_list(i, &ts_cpu, &present) == KVF_OK; i++) {
        char name[64];
        if (!worth_running(i)) continue;
        snprintf(name, sizeof name, "%s on %s", group, ts_cpu);
        failed += _cmocka_run_group_tests(name, tests, n, NULL, NULL);
    }
    ts_cpu = NULL;
    return failed;
}

/* ---- numbers ---- */

uint64_t ts_mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint32_t ts_next(ts_random *r, uint32_t below)
{
    r->state++;
    return (uint32_t)((ts_mix(r->state) >> 32) % below);
}

static double power_of_two(int e)
{
    const uint64_t bits = (uint64_t)(e + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Magnitudes in [2^(e-1), 2^e) stand 2^(e-11) apart, none closer than 2^-24. Adding 1.5 * 2^52 of those units and taking it away again
 * lets the current rounding mode (nearest, ties to even) decide. */
uint16_t ts_half(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const double magnitude = fabs((double)x);
    const unsigned sign = bits >> 16 & 0x8000u;
    if (isnan(x)) return (uint16_t)(sign | 0x7E00u);
    if (magnitude >= 65504.0) return (uint16_t)(sign | 0x7BFFu);
    int e = (int)(bits >> 23 & 255) - 126;
    if (e < -13) e = -13;
    const double shifted = magnitude * power_of_two(11 - e) + 0x1.8p52;
    const unsigned units = (unsigned)(shifted - 0x1.8p52); /* 1024 units of the last place are one binade */
    return (uint16_t)(sign | ((unsigned)(e + 13) * 1024u + units));
}

float ts_float(uint16_t half)
{
    const unsigned e = half >> 10 & 31, m = half & 1023;
    const double unit = e > 1 ? (double)(1u << (e - 1)) * 0x1p-24 : 0x1p-24;
    const double v = e == 31 ? (m ? NAN : INFINITY) : (e == 0 ? m : m + 1024) * unit;
    return (float)(half & 0x8000 ? -v : v);
}

float ts_round(float x)
{
    return ts_float(ts_half(x));
}

/* About normal: four 16-bit uniform numbers. */
static double gauss(uint64_t key)
{
    uint64_t h = ts_mix(key);
    double sum = 0;
    for (int i = 0; i < 4; i++) sum += (double)(h >> (16 * i) & 0xFFFF) / 65536.0;
    return (sum - 2.0) * 1.7320508;
}

/* ---- contents ---- */

void ts_content(const ts_model *m, uint64_t tag, int layer, ts_what what, int32_t pos, int head, int dim, float *out)
{
    uint64_t place = ts_mix(m->seed ^ ts_mix((uint64_t)layer * 64 + (uint64_t)what * 8192 + (uint64_t)head + 1));
    uint64_t row = ts_mix(place ^ ts_mix(tag) ^ (uint64_t)(uint32_t)pos * 0x100000001B3u);
    for (int c = 0; c < dim; c++) {
        uint64_t channel = ts_mix(place + (uint64_t)c * 7919);
        double x = gauss(row + (uint64_t)c);
        if (what == TS_K)
            x = x * (channel % 13 != 0 ? 1.0 : m->strong != 0 ? m->strong : 3.0) + (channel % 5 == 0 ? gauss(channel) : 0.0);
        if (what == TS_V) x = x * (row % 11 == 0 ? 2.0 : 1.0) + (channel % 7 == 0 ? 0.75 : 0.0);
        out[c] = (float)x;
    }
}

/* ---- models ---- */

void ts_model_init(ts_model *m, int n, int q_heads, int kv_heads, int k_dim, int v_dim, const char *k, const char *v)
{
    memset(m, 0, sizeof *m);
    assert_in_range(n, 1, TS_LAYERS);
    kvf_params_init(&m->params);
    m->params.n_layers = n;
    m->params.k = k;
    m->params.v = v;
    m->params.max_sequences = 4;
    m->params.cpu = ts_cpu;
    m->seed = 20240607u;
    for (int i = 0; i < n; i++) {
        kvf_layer_init(&m->layers[i]);
        m->layers[i].q_heads = q_heads;
        m->layers[i].kv_heads = kv_heads;
        m->layers[i].k_dim = k_dim;
        m->layers[i].v_dim = v_dim;
    }
}

int ts_try(ts_model *m, kvf_cache **c)
{
    m->params.layers = m->layers;
    m->params.error = m->error;
    m->params.error_size = sizeof m->error;
    m->error[0] = 0;
    return kvf_cache_create(c, &m->params);
}

kvf_cache *ts_create(ts_model *m)
{
    kvf_cache *c = NULL;
    int code = ts_try(m, &c);
    if (code != KVF_OK) fail_msg("kvf_cache_create: %d, %s", code, m->error);
    assert_non_null(c);
    return c;
}

int64_t ts_bytes(ts_model *m, int64_t tokens)
{
    m->params.layers = m->layers;
    m->params.error = m->error;
    m->params.error_size = sizeof m->error;
    return kvf_bytes(&m->params, tokens);
}

kvf_stats_t ts_bytes_are(const kvf_cache *c, ts_model *m, int64_t n, const char *name)
{
    kvf_stats_t s = {.size = sizeof s};
    ts_ok(kvf_stats(c, &s));
    if (s.accounted != ts_bytes(m, n))
        fail_msg("%s, %lld rows: %lld bytes, formula %lld", name, (long long)n, (long long)s.accounted,
                 (long long)ts_bytes(m, n));
    return s;
}

int ts_owns(const ts_model *m, int layer)
{
    return m->layers[layer].share < 0;
}

void ts_rows(ts_row *rows, int n, int32_t seq, uint64_t tag, int32_t first)
{
    for (int i = 0; i < n; i++) rows[i] = (ts_row){seq, first + i, tag};
}

/* ---- allocator ---- */

#define BLOCK_MAGIC 0x6B76666F6C644D31u

typedef struct block_head {
    uint64_t magic;
    size_t size;
} block_head;

/* Exact size, so that a sanitizer sees one byte too far; filled with junk, because contents may be anything. */
static void *heap_allocate(void *user, size_t size)
{
    ts_heap *h = user;
    h->calls++;
    if (h->fail_at && (h->once ? h->calls == h->fail_at : h->calls >= h->fail_at)) return NULL;
    void *memory = NULL;
    if (posix_memalign(&memory, 64, 64 + size)) return NULL;
    memset(memory, 0xA5, 64 + size);
    *(block_head *)memory = (block_head){BLOCK_MAGIC, size};
    h->live++;
    h->bytes += size;
    return (char *)memory + 64;
}

static void heap_release(void *user, void *memory, size_t size)
{
    ts_heap *h = user;
    block_head *head = (block_head *)(void *)((char *)memory - 64);
    if (!memory || head->magic != BLOCK_MAGIC || head->size != size)
        fail_msg("release of %p with size %zu: not what was allocated", memory, size);
    head->magic = 0;
    h->releases++;
    h->live--;
    h->bytes -= size;
    free(head);
}

void ts_heap_init(ts_heap *h)
{
    *h = (ts_heap){.hooks = {heap_allocate, heap_release, h}};
}

/* ---- texts ---- */

int ts_names(const char *text, const char *word, long number)
{
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++) {
        const char *p = at + strlen(word);
        while (*p == ' ' || *p == ':' || *p == '=' || *p == '#') p++;
        char *end = NULL;
        long found = strtol(p, &end, 10);
        if (end != p && found == number && !isdigit((unsigned char)*end)) return 1;
    }
    return 0;
}

void ts_ok_at(int code, const char *call, const char *file, int line)
{
    if (code == KVF_OK) return;
    print_error("%s gave %d (%s)\n", call, code, kvf_strerror(code));
    _fail(file, line);
}
