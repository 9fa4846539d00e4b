/* SPDX-License-Identifier: MIT
 * The operations of `kvfold bench ops`: what one call reads and writes, the operation, and its plain form. */
#ifndef KVFOLD_CLI_BENCH_OPS_H
#define KVFOLD_CLI_BENCH_OPS_H

#include <kvfold.h>

#include <stddef.h>
#include <stdint.h>

enum { OPS_TOKENS = KVF_BLOCK, OPS_GROUP = 32 };

typedef struct bench_op {
    char name[96], plain_name[96];
    const char *spec; /* of a codec; NULL: none */
    kvf_side side;
    int bits, dim;
    size_t in_bytes, out_bytes; /* of a call, multiples of 64 */
    size_t values;              /* that a call handles */
    void (*fill)(const struct bench_op *op, uint64_t seed, void *in);
    /* Both read `in` and write `out`; neither changes `in`. 0, or a kvf_error. */
    int (*run)(const struct bench_op *op, const void *in, void *out);
    int (*plain)(const struct bench_op *op, const void *in, void *out);
    /* How far the operation's result lies from the plain form's, or from what was encoded; and how far it may. */
    double (*error)(const struct bench_op *op, const void *in, const void *out, const void *plain_out);
    double limit;
} bench_op;

/* Operation i for a head size; spec NULL: those without a codec, else the ones of that codec. 1, or 0 past the end. */
int bench_op_at(int i, int dim, const char *spec, bench_op *op);

#endif
