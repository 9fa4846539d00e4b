/* SPDX-License-Identifier: MIT
 * The parts of `kvfold bench attend`: inputs, arms that run on them, and what is checked.
 *
 * Every arm holds the same keys and values for as many layers as it takes to outgrow the last-level cache, and one sample visits
 * each layer once: whatever an arm reads has left the caches since it was read last, as between two tokens of a real model.
 */
#ifndef KVFOLD_CLI_BENCH_H
#define KVFOLD_CLI_BENCH_H

#include "arms.h"
#include "trial.h"

#include <stddef.h>
#include <stdint.h>

typedef struct bench_shape {
    int q_heads, kv_heads, head_dim;
    int context; /* keys that the last query sees, its own included */
    int queries; /* tokens of the batch: the last ones of the context, each sees itself and what is before it */
    int threads;
} bench_shape;

/* Tokens before the batch. */
int bench_history(const bench_shape *s);

/* The inputs, f16 rows as a model would hand them over. Token t of layer l is row bench_row_of(d, l, t). */
typedef struct bench_data {
    bench_shape shape;
    uint16_t *k, *v; /* [context][kv_heads][head_dim] */
    float *q;        /* [bench_query_rows][q_heads][head_dim]; layer l asks those from l % BENCH_QUERIES on */
} bench_data;

enum { BENCH_QUERIES = 61, BENCH_BATCH_MOST = 4096 };

/* NULL when memory is short. */
bench_data *bench_data_create(const bench_shape *shape, uint64_t seed);
void bench_data_free(bench_data *d);
int bench_row_of(const bench_data *d, int layer, int token);
const float *bench_query(const bench_data *d, int layer); /* the first of the batch, the others follow */
int bench_query_rows(const bench_shape *s);

/* Something that attends. */
typedef struct bench_arm {
    char name[96];
    size_t bytes; /* K and V that one call reads */
    int layers;   /* calls of one sample */
    char cpu[16]; /* instruction set in use, empty: not ours to tell */
    void *self;
    void (*run)(void *self);                 /* every layer once */
    float *(*output)(void *self, int layer); /* [queries][q_heads][head_dim] of the last run */
    /* The K and V that the arm really holds, decoded: k, v[context][head_dim] of one KV head. 0, or -1 on failure. */
    int (*decode)(void *self, int layer, int head, float *k, float *v);
    bool (*failed)(void *self); /* NULL: cannot */
    void (*release)(void *self);
} bench_arm;

/* Layers that make a pool of distinct inputs larger than `pool` bytes, at least 2. */
int bench_layers(size_t bytes_of_layer, size_t pool);

/* Values of one output, and bytes of the outputs of all layers. */
size_t bench_floats(const bench_shape *s);
size_t bench_output_bytes(const bench_shape *s, int layers);

/* Largest difference from attention in double precision over the decoded keys and values, relative to the norm of the head's
 * output, over all heads of the first and the last layer, for the first, the middle and the last query. Negative when it cannot be
 * computed. */
double bench_error(const bench_arm *arm, const bench_data *d);

/* libllama's own attention. i counts its variants from 0; returns 1 past the last one, 0 when *arm is ready, -1 with a sentence
 * in error. */
int bench_peer_create(int i, const bench_data *d, size_t pool, bench_arm *arm, char *error, size_t error_size);

/* Bytes that variant i will hold, with outputs, mask and scores; 0 past the last one. */
size_t bench_peer_bytes(int i, const bench_shape *shape, size_t pool);

/* Our own, through the public API. 0 when *arm is ready, -1 with a sentence in error. */
int bench_fold_create(const kv_choice *choice, const char *name, const bench_data *d, size_t pool, bench_arm *arm, char *error,
                      size_t error_size);

/* Bytes that such a row will hold, outputs among them; 0: the codec cannot serve this shape. */
size_t bench_fold_bytes(const kv_choice *choice, const bench_shape *shape, size_t pool);

/* The fields of a row that say which cache of ours it is: k, v, sink, window, exact_bits, evict, layers, calibration,
 * cpu when one was asked for, preset. */
void bench_fold_fields(const kv_choice *choice, struct json_t *row);

/* Reads a buffer of `bytes` bytes once and does nothing else: the limit set by memory. */
int bench_read_create(size_t bytes, int threads, bench_arm *arm);

/* ---- one run -------------------------------------------------------------------------------------------------------------- */

/* Relative errors of our rows above this are called wrong. */
#define BENCH_ERROR_LIMIT 2e-3

/* Arms of all runs, and what they are measured with. */
typedef struct bench_plan {
    const cli_arms *arms;
    size_t pool; /* bytes that the inputs of a row outgrow */
    int samples;
    uint64_t seed;
    struct json_t *result; /* receives runs and rows */
    bool refused, wrong;   /* a row of ours was */
} bench_plan;

/* Times and checks all rows at one shape, context, number of queries and of threads and adds them to the result. CLI_GO, or an exit code
 * after a sentence. */
int bench_rows(bench_plan *plan, const bench_shape *shape);

/* Not 0 once Ctrl-C was pressed. */
int bench_stop(void *user);

/* Lines about noise, memory and load, the same for every sub-command. */
void bench_notes(struct json_t *run, const trial *t);
/* Those about the load alone. */
void bench_load_notes(struct json_t *run, const measure_rounds *r);

/* Every codec with every number of bits that its examples have, those that name no option: a list of codecs, or of arms with that
 * codec on both sides. */
void bench_every_codec(cli_text *list, bool arms);

/* --seed of every sub-command: 0 is another one each time, and the result has the one that was taken. */
#define BENCH_SEED(S)                                                                                                            \
    CLI_COUNT("-s --seed", S, seed, 0, UINT32_MAX, "0",                                                                          \
              "seed of inputs, of the order in each round and of the bootstrap; 0: another one each time, which the result has")
uint64_t bench_seed(int64_t asked);

/* A comma-separated list of whole numbers. CLI_GO, or CLI_USAGE after a sentence that names `option`. */
int bench_numbers(const char *option, const char *list, long least, long most, int *number, int *n, int room);

/* Sub-commands: THE list, BENCH_SUBJECT(name, summary). */
#define BENCH_SUBJECTS                                                                                                           \
    BENCH_SUBJECT(ops, "each operation alone against its plain form")                                                            \
    BENCH_SUBJECT(attend, "attention of one decoded token or of a batch, beside libllama's own")                                 \
    BENCH_SUBJECT(e2e, "whole models: tokens a second, time to first token, memory")                                             \
    BENCH_SUBJECT(compare, "two saved results")
#define BENCH_SUBJECT(name, summary) int bench_##name(int argc, char **argv);
BENCH_SUBJECTS
#undef BENCH_SUBJECT

#endif
