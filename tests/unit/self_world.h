/* SPDX-License-Identifier: MIT
 * A small model whose keys are R_position (m + noise), for tests of what a cache learns from a prompt: three layers (the third reads
 * the first one's keys), rows that depend on a tag, and a driver. Nothing here comes from the library. */
#ifndef TESTS_SELF_WORLD_H
#define TESTS_SELF_WORLD_H

#include "../oracle/oracle_self.h"
#include "support.h"

enum { SW_LAYERS = 3, SW_ROWS = 1300, SW_TEXTS = 3, SW_KV = 2, SW_V_DIM = 32 };

/* One sequence's rows, [SW_ROWS][heads][dim], all f16 numbers. */
typedef struct sw_text {
    float *q[SW_LAYERS], *k[SW_LAYERS], *v[SW_LAYERS];
} sw_text;

typedef struct sw_world {
    kvf_params params;
    kvf_layer layers[SW_LAYERS];
    double freq[64];
    oracle_rope told; /* what the cache is told */
    int dim, start;   /* start: first position of every sequence */
    sw_text text[SW_TEXTS];
    int warnings;
    char error[512];
} sw_world;

typedef struct sw_options {
    int dim, rope_dims, neox, start;
    int not_rotated; /* the keys do not turn although it is said that they do */
    int exchanged;   /* pairs of neighbours where halves are told, or the other way round */
    double base;     /* of the frequencies by which they turn; 0: 10000, as the cache is told */
    double mean;     /* size of m against the noise; 0: 3 */
    const char *k;   /* NULL: uni4 */
} sw_options;

void sw_open(sw_world *w, const sw_options *o);
void sw_close(sw_world *w);
kvf_cache *sw_create(sw_world *w);
int sw_q_heads(int layer);
const float *sw_key(const sw_world *w, int text, int layer, int row, int head);
const float *sw_value(const sw_world *w, int text, int layer, int row, int head);
const float *sw_query(const sw_world *w, int text, int layer, int row, int head);

/* Rows of one batch: text and row of each sequence's next tokens. */
typedef struct sw_rows {
    int seq, text, from, to;
} sw_rows;

enum { SW_ATTEND = 1, SW_ABORT = 2, SW_TWICE = 4 };

/* One batch of n runs. What was attended last goes to out (NULL: dropped): [rows][q_heads][SW_V_DIM] of each layer in turn. */
void sw_batch(const sw_world *w, kvf_cache *c, const sw_rows *runs, int n, int flags, float *out);
/* Rows from .. to - 1 in batches of `chunk`, attended. */
void sw_feed(const sw_world *w, kvf_cache *c, int seq, int text, int from, int to, int chunk);
/* Attention of the row after the end, aborted: [sum of q_heads][SW_V_DIM]. */
enum { SW_PROBE = (4 + 4 + 2) * SW_V_DIM };
void sw_probe(const sw_world *w, kvf_cache *c, int seq, int text, int row, float out[SW_PROBE]);

#endif
