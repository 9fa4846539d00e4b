/* SPDX-License-Identifier: MIT
 * Operations alone, each with the plain loop that says the same. What encode and decode are compared with is what a cache without
 * codes does with a row: to f16 and back. */
#include "bench_books.h"
#include "bench_ops.h"
#include "measure_random.h"

#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* ---- inputs --------------------------------------------------------------------------------------------------------------- */

/* Uniform, -2 to 2. */
static void fill_floats(const bench_op *op, uint64_t seed, void *in)
{
    float *x = in;
    for (size_t i = 0; i < op->in_bytes / sizeof *x; i++) x[i] = (float)(int32_t)(measure_next(&seed) >> 32) * 0x1p-30f;
}

static void fill_codes(const bench_op *op, uint64_t seed, void *in)
{
    uint8_t *x = in;
    for (size_t i = 0; i < op->in_bytes; i++) x[i] = (uint8_t)(measure_next(&seed) >> (64 - op->bits));
}

static void fill_bytes(const bench_op *op, uint64_t seed, void *in)
{
    bench_op all = *op;
    all.bits = 8;
    fill_codes(&all, seed, in);
}

/* ---- errors --------------------------------------------------------------------------------------------------------------- */

static double different_bytes(const bench_op *op, const void *in, const void *out, const void *plain_out)
{
    (void)in;
    return memcmp(out, plain_out, op->out_bytes) == 0 ? 0 : 1;
}

static double distance(const float *x, const float *y, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        norm += (double)y[i] * (double)y[i];
    }
    return sqrt(diff / norm);
}

static double float_distance(const bench_op *op, const void *in, const void *out, const void *plain_out)
{
    (void)in;
    return distance(out, plain_out, op->values);
}

/* ---- packing -------------------------------------------------------------------------------------------------------------- */

static int pack(const bench_op *op, const void *in, void *out)
{
    return kvf_op_pack(in, op->values, op->bits, out);
}

static int pack_plain(const bench_op *op, const void *in, void *out)
{
    const uint8_t *code = in;
    uint8_t *packed = out;
    memset(packed, 0, kvf_op_packed_bytes(op->values, op->bits));
    for (size_t i = 0, at = 0; i < op->values; i++)
        for (int b = 0; b < op->bits; b++, at++) packed[at / 8] |= (uint8_t)((code[i] >> b & 1) << at % 8);
    return KVF_OK;
}

static int unpack(const bench_op *op, const void *in, void *out)
{
    return kvf_op_unpack(in, op->values, op->bits, out);
}

static int unpack_plain(const bench_op *op, const void *in, void *out)
{
    const uint8_t *packed = in;
    uint8_t *code = out;
    for (size_t i = 0, at = 0; i < op->values; i++) {
        int c = 0;
        for (int b = 0; b < op->bits; b++, at++) c |= (packed[at / 8] >> at % 8 & 1) << b;
        code[i] = (uint8_t)c;
    }
    return KVF_OK;
}

/* ---- KIVI ----------------------------------------------------------------------------------------------------------------- */

/* Both sides put codes first, then scales and minima: [values], [values / group], [values / group]. */
static float *scales(const bench_op *op, const void *codes)
{
    return (float *)(uintptr_t)((const uint8_t *)codes + op->values);
}

static int quantise(const bench_op *op, const void *in, void *out)
{
    float *scale = scales(op, out);
    return kvf_op_kivi_quantise(in, OPS_TOKENS, op->dim, op->bits, OPS_GROUP, 1, KVF_F32, out, scale,
                                scale + op->values / OPS_GROUP);
}

static int quantise_plain(const bench_op *op, const void *in, void *out)
{
    const float *x = in;
    uint8_t *code = out;
    float *scale = scales(op, out), *zero = scale + op->values / OPS_GROUP;
    const float top = (float)((1 << op->bits) - 1);
    for (size_t g = 0; g < op->values / OPS_GROUP; g++, x += OPS_GROUP, code += OPS_GROUP) {
        float min = x[0], max = x[0];
        for (int i = 1; i < OPS_GROUP; i++) min = fminf(min, x[i]), max = fmaxf(max, x[i]);
        scale[g] = fmaxf((max - min) / top, 1e-8f);
        zero[g] = min;
        for (int i = 0; i < OPS_GROUP; i++) code[i] = (uint8_t)fminf(fmaxf(rintf((x[i] - min) / scale[g]), 0), top);
    }
    return KVF_OK;
}

static void fill_quantised(const bench_op *op, uint64_t seed, void *in)
{
    bench_op codes = *op, floats = *op;
    codes.in_bytes = op->values;
    floats.in_bytes = 2 * op->values / OPS_GROUP * sizeof(float);
    fill_codes(&codes, seed, in);
    fill_floats(&floats, seed, scales(op, in));
}

static int dequantise(const bench_op *op, const void *in, void *out)
{
    const float *scale = scales(op, in);
    return kvf_op_kivi_dequantise(in, scale, scale + op->values / OPS_GROUP, OPS_TOKENS, op->dim, OPS_GROUP, 1, out);
}

static int dequantise_plain(const bench_op *op, const void *in, void *out)
{
    const uint8_t *code = in;
    const float *scale = scales(op, in), *zero = scale + op->values / OPS_GROUP;
    float *x = out;
    for (size_t i = 0; i < op->values; i++) x[i] = (float)code[i] * scale[i / OPS_GROUP] + zero[i / OPS_GROUP];
    return KVF_OK;
}

/* ---- rotation, merging ---------------------------------------------------------------------------------------------------- */

/* In place by nature: the copy is part of both forms. */
static int block_of(int dim)
{
    return dim & -dim;
}

static int hadamard(const bench_op *op, const void *in, void *out)
{
    memcpy(out, in, op->values * sizeof(float));
    return kvf_op_hadamard(out, OPS_TOKENS, op->dim, block_of(op->dim));
}

static int hadamard_plain(const bench_op *op, const void *in, void *out)
{
    const int block = block_of(op->dim);
    const float norm = 1.0f / sqrtf((float)block);
    memcpy(out, in, op->values * sizeof(float));
    for (float *x = out, *end = x + op->values; x < end; x += block) {
        for (int half = 1; half < block; half *= 2)
            for (int i = 0; i < block; i++)
                if (!(i & half)) {
                    float a = x[i], b = x[i + half];
                    x[i] = a + b;
                    x[i + half] = a - b;
                }
        for (int i = 0; i < block; i++) x[i] *= norm;
    }
    return KVF_OK;
}

/* in: rows and log-sum-exps of one set, then of the other; out: rows, then log-sum-exps. */
static int merge(const bench_op *op, const void *in, void *out)
{
    const float *a = in, *b = a + op->values + OPS_TOKENS;
    float *x = out;
    memcpy(x, a, (op->values + OPS_TOKENS) * sizeof *x);
    kvf_merge(x, x + op->values, b, b + op->values, OPS_TOKENS, op->dim);
    return KVF_OK;
}

static int merge_plain(const bench_op *op, const void *in, void *out)
{
    const float *a = in, *b = a + op->values + OPS_TOKENS, *la = a + op->values, *lb = b + op->values;
    float *x = out, *lse = x + op->values;
    for (int t = 0; t < OPS_TOKENS; t++) {
        float most = fmaxf(la[t], lb[t]), wa = expf(la[t] - most), wb = expf(lb[t] - most), sum = wa + wb;
        for (int c = 0; c < op->dim; c++) {
            size_t i = (size_t)t * (size_t)op->dim + (size_t)c;
            x[i] = (wa * a[i] + wb * b[i]) / sum;
        }
        lse[t] = most + logf(sum);
    }
    return KVF_OK;
}

/* ---- product codes ----------------------------------------------------------------------------------------------------------- */

enum { SUB = 4, CENTROIDS = 256 };

/* in: values, then centroids. */
static int nearest(const bench_op *op, const void *in, void *out)
{
    const float *x = in;
    return kvf_op_nearest_centroid(x, (int64_t)op->values / SUB, SUB, x + op->values, CENTROIDS, out);
}

/* All distances, then the least of each row. */
static int nearest_plain(const bench_op *op, const void *in, void *out)
{
    const float *x = in, *centroid = x + op->values;
    const size_t n = op->values / SUB;
    uint16_t *index = out;
    float *matrix = malloc(n * CENTROIDS * sizeof *matrix);
    if (!matrix) return KVF_E_NOMEM;
    for (size_t i = 0; i < n * CENTROIDS; i++) {
        matrix[i] = 0;
        for (int c = 0; c < SUB; c++) {
            const float miss = x[i / CENTROIDS * SUB + (size_t)c] - centroid[i % CENTROIDS * SUB + (size_t)c];
            matrix[i] += miss * miss;
        }
    }
    for (size_t i = 0; i < n; i++) {
        index[i] = 0;
        for (uint16_t k = 1; k < CENTROIDS; k++)
            if (matrix[i * CENTROIDS + k] < matrix[i * CENTROIDS + index[i]]) index[i] = k;
    }
    free(matrix);
    return KVF_OK;
}

/* in: indices, then centroids. */
static const float *centroids_behind(const bench_op *op, const void *in)
{
    return (const float *)(const void *)((const uint16_t *)in + op->values / SUB);
}

static void fill_indices(const bench_op *op, uint64_t seed, void *in)
{
    uint16_t *index = in;
    bench_op floats = *op;
    floats.in_bytes = SUB * CENTROIDS * sizeof(float);
    fill_floats(&floats, seed, (void *)(uintptr_t)centroids_behind(op, in));
    for (size_t i = 0; i < op->values / SUB; i++) index[i] = (uint16_t)(measure_next(&seed) >> 56);
}

static int gather(const bench_op *op, const void *in, void *out)
{
    return kvf_op_gather_centroids(in, (int64_t)op->values / SUB, SUB, centroids_behind(op, in), CENTROIDS, out);
}

static int gather_plain(const bench_op *op, const void *in, void *out)
{
    const uint16_t *index = in;
    const float *centroid = centroids_behind(op, in);
    float *x = out;
    for (size_t i = 0; i < op->values; i++) x[i] = centroid[index[i / SUB] * SUB + i % SUB];
    return KVF_OK;
}

/* ---- codecs --------------------------------------------------------------------------------------------------------------- */

static const kvf_calibrated_layer *books(const bench_op *op)
{
    return bench_books_layer(op->spec, op->side, op->dim);
}

static int encode(const bench_op *op, const void *in, void *out)
{
    return kvf_op_encode_calibrated(op->spec, op->side, op->dim, books(op), 0, in, out);
}

static int to_f16(const bench_op *op, const void *in, void *out)
{
    ggml_fp32_to_fp16_row(in, out, (int64_t)op->values);
    return KVF_OK;
}

static void fill_record(const bench_op *op, uint64_t seed, void *in)
{
    float x[OPS_TOKENS * 1024];
    bench_op floats = *op;
    floats.in_bytes = op->values * sizeof *x;
    fill_floats(&floats, seed, x);
    if (kvf_op_encode_calibrated(op->spec, op->side, op->dim, books(op), 0, x, in) != KVF_OK) memset(in, 0, op->in_bytes);
}

static int decode(const bench_op *op, const void *in, void *out)
{
    return kvf_op_decode_calibrated(op->spec, op->side, op->dim, books(op), 0, in, out);
}

/* As many values from f16; what the bits of a record say as f16 does not matter to the time. */
static int from_f16(const bench_op *op, const void *in, void *out)
{
    size_t n = op->in_bytes / 2 < op->values ? op->in_bytes / 2 : op->values;
    for (size_t i = 0; i < op->values; i += n)
        ggml_fp16_to_fp32_row(in, (float *)out + i, (int64_t)(op->values - i < n ? op->values - i : n));
    return KVF_OK;
}

/* The record decoded again, against what was encoded. */
static double lost(const bench_op *op, const void *in, const void *out, const void *plain_out)
{
    (void)plain_out;
    float x[OPS_TOKENS * 1024];
    return kvf_op_decode_calibrated(op->spec, op->side, op->dim, books(op), 0, out, x) == KVF_OK ? distance(x, in, op->values)
                                                                                                 : INFINITY;
}

/* Encoded again, what was decoded must stay where it is, but for what the codec loses a second time. */
static double moved(const bench_op *op, const void *in, const void *out, const void *plain_out)
{
    (void)in;
    (void)plain_out;
    _Alignas(64) uint8_t record[OPS_TOKENS * 1024 * 4];
    float x[OPS_TOKENS * 1024];
    if (kvf_op_encode_calibrated(op->spec, op->side, op->dim, books(op), 0, out, record) != KVF_OK) return INFINITY;
    return kvf_op_decode_calibrated(op->spec, op->side, op->dim, books(op), 0, record, x) == KVF_OK ? distance(x, out, op->values)
                                                                                                    : INFINITY;
}

/* ---- the list ------------------------------------------------------------------------------------------------------------- */

/* X(name, bits, bytes in, bytes out, fill, run, error, limit), the plain form being run_plain; v: values, g: groups, t: tokens */
#define OPS(X)                                                                                                                   \
    X("pack, 2 bits", 2, v, kvf_op_packed_bytes(v, 2), fill_codes, pack, different_bytes, 0)                                     \
    X("pack, 3 bits", 3, v, kvf_op_packed_bytes(v, 3), fill_codes, pack, different_bytes, 0)                                     \
    X("pack, 4 bits", 4, v, kvf_op_packed_bytes(v, 4), fill_codes, pack, different_bytes, 0)                                     \
    X("unpack, 2 bits", 2, kvf_op_packed_bytes(v, 2), v, fill_bytes, unpack, different_bytes, 0)                                 \
    X("unpack, 3 bits", 3, kvf_op_packed_bytes(v, 3), v, fill_bytes, unpack, different_bytes, 0)                                 \
    X("unpack, 4 bits", 4, kvf_op_packed_bytes(v, 4), v, fill_bytes, unpack, different_bytes, 0)                                 \
    X("kivi quantise, 4 bits", 4, v * 4, v + 8 * g, fill_floats, quantise, different_bytes, 0)                                   \
    X("kivi dequantise, 4 bits", 4, v + 8 * g, v * 4, fill_quantised, dequantise, different_bytes, 0)                            \
    X("hadamard", 0, v * 4, v * 4, fill_floats, hadamard, float_distance, 1e-5)                                                  \
    X("nearest of 256 centroids", 8, v * 4 + 4096, v / 2, fill_floats, nearest, different_bytes, 0)                              \
    X("gather centroids", 8, v / 2 + 4096, v * 4, fill_indices, gather, different_bytes, 0)                                      \
    X("merge", 0, (v + t) * 8, (v + t) * 4, fill_floats, merge, float_distance, 1e-5)

static int fixed_op(int i, bench_op *op)
{
    size_t v = op->values, g = v / OPS_GROUP, t = OPS_TOKENS;
#define OP(name_, bits_, in_, out_, fill_, run_, error_, limit_)                                                                 \
    {.name = name_,                                                                                                              \
     .plain_name = name_ ", plain loop",                                                                                         \
     .bits = bits_,                                                                                                              \
     .in_bytes = in_,                                                                                                            \
     .out_bytes = out_,                                                                                                          \
     .fill = fill_,                                                                                                              \
     .run = run_,                                                                                                                \
     .plain = run_##_plain,                                                                                                      \
     .error = error_,                                                                                                            \
     .limit = limit_},
    const bench_op all[] = {OPS(OP)};
#undef OP
    if (i >= (int)(sizeof all / sizeof *all)) return 0;
    int dim = op->dim;
    *op = all[i];
    op->dim = dim;
    op->values = v;
    op->in_bytes = lines(op->in_bytes);
    op->out_bytes = lines(op->out_bytes);
    return 1;
}

/* Encode and decode of keys and of values. 0 also for a side that the codec does not have. */
static int codec_op(int i, bench_op *op)
{
    kvf_spec_info info;
    op->side = i / 2 == 0 ? KVF_K : KVF_V;
    if (i > 3 || kvf_spec_check(op->spec, op->side, op->dim, &info, NULL, 0) != KVF_OK) return 0;
    size_t record = lines(info.block_bytes), rows = op->values * sizeof(float);
    bool decoding = i % 2 != 0;
    op->in_bytes = decoding ? record : rows;
    op->out_bytes = decoding ? rows : record > rows / 2 ? record : rows / 2; /* the plain form writes f16 */
    op->fill = decoding ? fill_record : fill_floats;
    op->run = decoding ? decode : encode;
    op->plain = decoding ? from_f16 : to_f16;
    op->error = decoding ? moved : lost;
    op->limit = 1;
    snprintf(op->name, sizeof op->name, "%s %s, %s", decoding ? "decode" : "encode", op->spec,
             op->side == KVF_K ? "keys" : "values");
    snprintf(op->plain_name, sizeof op->plain_name, "%.80s, %s f16", op->name, decoding ? "from" : "to");
    return 1;
}

int bench_op_at(int i, int dim, const char *spec, bench_op *op)
{
    *op = (bench_op){.dim = dim, .spec = spec, .values = (size_t)OPS_TOKENS * (size_t)dim};
    return spec ? codec_op(i, op) : fixed_op(i, op);
}
