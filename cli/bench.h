/* SPDX-License-Identifier: MIT
 * The parts of `kvfold bench attend`: inputs, arms that run on them, and what is checked.
 *
 * Every arm holds the same keys and values for as many layers as it takes to outgrow the last-level cache, and one sample visits
 * each layer once: whatever an arm reads has left the caches since it was read last, as between two tokens of a real model.
 */
#ifndef KVFOLD_CLI_BENCH_H
#define KVFOLD_CLI_BENCH_H

#include "arms.h"
#include "measure.h"

#include <stddef.h>
#include <stdint.h>

typedef struct bench_shape {
    int q_heads, kv_heads, head_dim;
    int context; /* keys that the query sees, its own included */
    int threads;
} bench_shape;

/* The inputs, f16 rows as a model would hand them over. Token t of layer l is row bench_row_of(d, l, t). */
typedef struct bench_data {
    bench_shape shape;
    uint16_t *k, *v; /* [context][kv_heads][head_dim] */
    float *q;        /* [BENCH_QUERIES][q_heads][head_dim]; layer l asks query l % BENCH_QUERIES */
} bench_data;

enum { BENCH_QUERIES = 61 };

/* NULL when memory is short. */
bench_data *bench_data_create(const bench_shape *shape, uint64_t seed);
void bench_data_free(bench_data *d);
int bench_row_of(const bench_data *d, int layer, int token);
const float *bench_query(const bench_data *d, int layer);

/* Something that attends. */
typedef struct bench_arm {
    char name[96];
    size_t bytes; /* K and V that one call reads */
    int layers;   /* calls of one sample */
    char cpu[16]; /* instruction set in use, empty: not ours to tell */
    void *self;
    void (*run)(void *self);                       /* every layer once */
    const float *(*output)(void *self, int layer); /* [q_heads][head_dim] of the last run */
    /* The K and V that the arm really holds, decoded: k, v[context][head_dim] of one KV head. 0, or -1 on failure. */
    int (*decode)(void *self, int layer, int head, float *k, float *v);
    void (*release)(void *self);
} bench_arm;

/* Layers that make a pool of distinct inputs larger than `pool` bytes, at least 2. */
int bench_layers(size_t bytes_of_layer, size_t pool);

/* Largest difference from attention in double precision over the decoded keys and values, relative to the norm of the head's
 * output, over all heads of the first and the last layer. Negative when it cannot be computed. */
double bench_error(const bench_arm *arm, const bench_data *d);

/* libllama's own attention. i counts its variants from 0; returns 1 past the last one, 0 when *arm is ready, -1 with a sentence
 * in error. */
int bench_peer_create(int i, const bench_data *d, size_t pool, bench_arm *arm, char *error, size_t error_size);

/* Bytes that variant i will hold, 0 past the last one. */
size_t bench_peer_bytes(int i, const bench_shape *shape, size_t pool);

/* Our own, through the public API. 0 when *arm is ready, -1 with a sentence in error. */
int bench_fold_create(const kv_choice *choice, const bench_data *d, size_t pool, bench_arm *arm, char *error, size_t error_size);

/* Reads a buffer of `bytes` bytes once and does nothing else: the limit set by memory. */
int bench_read_create(size_t bytes, int threads, bench_arm *arm);

/* ---- one run -------------------------------------------------------------------------------------------------------------- */

typedef struct bench_row {
    bench_arm arm;
    int ours;     /* 0: one of libllama's */
    double error; /* of bench_error */
    measure_summary time;
    measure_ratio ratio; /* against the fastest row of libllama */
} bench_row;

enum { BENCH_ROWS_MOST = 80 };

/* What was found at one context. */
typedef struct bench_result {
    int context;
    bench_row row[BENCH_ROWS_MOST];
    int n_rows;
    int baseline; /* the fastest row of libllama */
    int repeated; /* the row of libllama that was timed against itself: the fastest at first sight */
    measure_ratio against_itself;
    double floor;         /* of the noise */
    measure_summary read; /* microseconds of one read-only sum */
    size_t read_bytes;
    measure_rounds rounds;
} bench_result;

typedef struct bench_refusal {
    int ours;
    char reason[600];
} bench_refusal;

/* Everything that is printed. */
typedef struct bench_report {
    bench_shape shape;
    bench_result *result; /* [n_results] one a context */
    int n_results, n_refused;
    bench_refusal refused[BENCH_ROWS_MOST];
    size_t cache; /* bytes of the last-level cache */
    size_t pool;  /* bytes that the inputs of a row outgrow */
    int interrupted;
} bench_report;

/* Relative errors of our rows above this are called wrong. */
#define BENCH_ERROR_LIMIT 2e-3

/* Times and checks all rows at one context and adds the result to the report. CLI_GO, or an exit code after a sentence. */
int bench_context(bench_report *report, const cli_arms *arms, int context, int samples);

size_t bench_last_level_cache(void); /* bytes; a generous guess where the system does not tell */
void bench_print(const bench_report *r);
struct json_t *bench_json(const bench_report *r);

/* The sub-command. */
int bench_attend(int argc, char **argv);

#endif
