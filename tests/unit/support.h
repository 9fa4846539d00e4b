/* SPDX-License-Identifier: MIT
 * What the tests of the cache share: rows that depend on nothing but a seed, models, batches in every memory layout, a driver,
 * snapshots of all that can be observed, and an allocator that counts and fails on demand. Nothing here comes from the library. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kvfold.h"

#define TS_LAYERS 8 /* most layers of a model */

/* ---- numbers ---- */

uint16_t ts_half(float x);     /* nearest f16, ties to even; saturates at 65504 */
float ts_float(uint16_t half); /* exact */
float ts_round(float x);       /* through f16 and back */
uint64_t ts_mix(uint64_t x);   /* a good scramble of 64 bits */

/* A sequence of random numbers. */
typedef struct ts_random {
    uint64_t state;
} ts_random;
uint32_t ts_next(ts_random *r, uint32_t below);

/* ---- models: parameters and layers of a cache under test ---- */

typedef struct ts_model {
    kvf_params params;
    kvf_layer layers[TS_LAYERS];
    uint64_t seed; /* of every row */
    double strong; /* how far strong channels of keys stand out; 0: 3 */
    char error[512];
} ts_model;

/* n equal layers; everything else has the library's defaults, but for max_sequences = 4 and the instruction set of ts_cpu. */
void ts_model_init(ts_model *m, int n, int q_heads, int kv_heads, int k_dim, int v_dim, const char *k, const char *v);
kvf_cache *ts_create(ts_model *m);      /* fails the test when it cannot */
int ts_try(ts_model *m, kvf_cache **c); /* only returns the code */
int64_t ts_bytes(ts_model *m, int64_t tokens);
/* The stats of a cache, which must take what the formula says for n rows of the model. */
kvf_stats_t ts_bytes_are(const kvf_cache *c, ts_model *m, int64_t n, const char *name);
int ts_owns(const ts_model *m, int layer); /* stores its own K/V */

/* The instruction set that ts_model_init asks for; NULL: the library's choice. Set by main between groups of tests. */
extern const char *ts_cpu;

/* Runs a group of tests on scalar code, AVX2 or NEON, and the best instruction set that is present; returns how many failed. */
int ts_on_every_cpu(const char *group, const struct CMUnitTest *tests, size_t n);

/* ---- rows ---- */

/* One row: where it goes, and a tag that stands for its content. Equal (seed, tag, pos) give equal content. */
typedef struct ts_row {
    int32_t seq, pos;
    uint64_t tag;
} ts_row;

/* n rows of a sequence with positions first, first + 1, ... */
void ts_rows(ts_row *rows, int n, int32_t seq, uint64_t tag, int32_t first);

typedef enum ts_layout { TS_PLAIN, TS_STRIDED, TS_HEADS_FIRST, TS_UNALIGNED, TS_LAYOUTS } ts_layout;

/* How a batch is handed over and attended to. All zero: f16 rows and queries, plain layout, implicit mask. */
typedef struct ts_how {
    int type;   /* kvf_type of K and V; 0: f16 */
    int q_type; /* of queries; 0: f32 */
    ts_layout layout;
    int scatter;  /* rows lie in shuffled cells, with NaN in the cells between */
    int mask;     /* 0: NULL; a kvf_type: an explicit mask of that type that says the same as the implicit one */
    int see_all;  /* explicit mask without the causal rule (one sequence) */
    int hide_row; /* this row + 1 sees nothing of the tail (explicit mask); 0: none */
    float bias;   /* explicit mask: visible entries hold a bias of this size (multiples of 1/8), made from their indices */
    float softcap;
    const float *slopes, *sinks;
    const int
        *point_at;     /* distances, ends with -1: the query of head h is aimed at the key that far back; NULL: random queries */
    int whole_f32;     /* K and V rows are not rounded to f16 (needs type f32) */
    int shuffle_parts; /* attend in a random order of parts */
    float scale;       /* 0: 1 / sqrt(k_dim) */
} ts_how;

/* A batch made real: contents as plain floats, the same in the memory that is handed over, and what came back. */
typedef struct ts_side {
    float *plain; /* [n][heads][dim] */
    unsigned char *block;
    size_t bytes;
    kvf_view view;
} ts_side;

typedef struct ts_batch {
    const ts_model *model;
    ts_how how;
    int n, columns;
    ts_row *rows;
    kvf_token *tokens;
    int32_t *cells; /* NULL unless scattered */
    void *mask;     /* NULL unless explicit; of the layer attended to last */
    double *bias;   /* [n][n] what the mask says about row j, NULL unless explicit */
    ts_side q[TS_LAYERS], k[TS_LAYERS], v[TS_LAYERS];
    float *out[TS_LAYERS]; /* [n][q_heads][v_dim], filled by ts_batch_attend */
    float *lse[TS_LAYERS]; /* [n][q_heads] */
} ts_batch;

ts_batch *ts_batch_new(const ts_model *m, const ts_row *rows, int n, const ts_how *how);
void ts_batch_free(ts_batch *b);
int ts_batch_begin(kvf_cache *c, ts_batch *b);
int ts_batch_attend(kvf_cache *c, ts_batch *b, int layer); /* also checks that nothing outside the output was written */
int ts_batch_append(kvf_cache *c, ts_batch *b, int layer);
/* The request of one layer, as ts_batch_attend makes it; out goes to `out` with plain strides. */
void ts_batch_request(ts_batch *b, int layer, kvf_attention *a, float *out, float *lse);

/* ---- driver: everything must succeed ---- */

void ts_begin(kvf_cache *c, ts_batch *b);
void ts_attend_all(kvf_cache *c, ts_batch *b);
void ts_append_all(kvf_cache *c, ts_batch *b);
/* Appends rows in batches of `chunk`, without attention. */
void ts_feed(kvf_cache *c, const ts_model *m, const ts_row *rows, int n, int chunk, const ts_how *how);
/* n rows of content `tag` after the end of the sequence. */
void ts_grow(kvf_cache *c, const ts_model *m, int32_t seq, uint64_t tag, int n, int chunk);

/* ---- snapshots ---- */

#define TS_SEQUENCES 8

typedef struct ts_snapshot {
    kvf_stats_t stats;
    int32_t pos_max[TS_SEQUENCES];
    uint64_t hash[TS_SEQUENCES];
    int can[TS_SEQUENCES][6];
    float *probe; /* attention of fixed queries after the end of each sequence that is not empty, every layer */
    size_t n_probe;
} ts_snapshot;

/* No batch may be open. */
ts_snapshot ts_snapshot_take(kvf_cache *c, const ts_model *m);
void ts_snapshot_free(ts_snapshot *s);
/* Fails the test at the first difference. Bytes that are merely mapped do not count. */
void ts_snapshot_equal(const ts_snapshot *a, const ts_snapshot *b);
/* Takes, compares, frees. */
void ts_unchanged(kvf_cache *c, const ts_model *m, const ts_snapshot *before);

/* Attention of one fixed query row after the end of a sequence, every layer: a malloc'd array of *n floats. */
float *ts_probe(kvf_cache *c, const ts_model *m, int32_t seq, size_t *n);
/* Two sequences, perhaps of two caches, hold the same bytes and answer alike, bit for bit. */
void ts_same_sequence(kvf_cache *a, int32_t seq_a, kvf_cache *b, int32_t seq_b, const ts_model *m);

/* ---- allocator ---- */

typedef struct ts_heap {
    kvf_allocator hooks;
    long calls; /* of allocate */
    long releases;
    long live;    /* blocks */
    size_t bytes; /* live */
    long fail_at; /* this call of allocate (counted from 1) and every later one return NULL; 0: never */
    int once;     /* only that one call fails */
} ts_heap;

void ts_heap_init(ts_heap *h);

/* ---- texts ---- */

/* 1 when text holds the word followed, after blanks or one of ":=#", by exactly this number. */
int ts_names(const char *text, const char *word, long number);

#define ts_ok(call) ts_ok_at((call), #call, __FILE__, __LINE__)
void ts_ok_at(int code, const char *call, const char *file, int line);

#endif
