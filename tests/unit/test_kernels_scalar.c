/* SPDX-License-Identifier: MIT
 * The scalar kernels against the one-at-a-time definitions that all targets share, bit for bit; rows, tiles, softmax and the
 * Hadamard transform against double precision. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "codec/shared/part.h"
#include "codec_inputs.h"
#include "cpu/isa.h"
#include "gpu/kernels/attend.h"
#include "gpu/kernels/hadamard.h"
#include "gpu/kernels/value.h"

enum { VECTORS = 17, CANARY = 4 }; /* two whole tiles of vectors and one more */

static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)ci_gauss(&seed);
}

/* A record with random codes and scales: kernels must serve every kind on both sides, whether a codec uses the pair or not. */
static void *random_record(const kvf_part *part, uint64_t seed)
{
    uint8_t *record = ci_alloc(part->bytes);
    uint16_t *half = (uint16_t *)(void *)record;
    size_t first = part->kind == KVF_KIND_HALF ? 0 : part->scale_offset;
    for (size_t i = 0; i < first; i++) record[i] = (uint8_t)ci_next(&seed);
    for (size_t i = first / 2; i < part->bytes / 2; i++) half[i] = kvfi_half_saturated((float)ci_gauss(&seed));
    return record;
}

static kvf_part make_part(kvf_kind kind, kvf_side side, int dim, int bits, int group, int has_min)
{
    kvf_part part = {.kind = kind, .side = side, .bits = bits, .has_min = has_min};
    part.t_group = kind == KVF_KIND_CHANNEL ? group : 1;
    part.c_group = kind == KVF_KIND_TOKEN ? group : 1;
    part.zero = has_min || kind == KVF_KIND_HALF ? 0.0f : (float)(1 << (bits - 1)) - 0.5f;
    kvfi_part_layout(&part, dim);
    return part;
}

static float want_value(const kvfi_shape *s, kvf_kind kind, const void *record, int t, int c)
{
    return kind == KVF_KIND_HALF    ? kvfi_value_half(s, record, t, c)
           : kind == KVF_KIND_TOKEN ? kvfi_value_token(s, record, t, c)
                                    : kvfi_value_channel(s, record, t, c);
}

static void check_unfold(const kvfi_kind_ops *ops, const kvf_part *part, const void *record)
{
    kvfi_shape s = kvfi_shape_of(part);
    size_t n = KVF_BLOCK * (size_t)part->dim_pad;
    float *tile = ci_alloc((n + CANARY) * sizeof *tile);
    for (size_t i = 0; i < n + CANARY; i++) tile[i] = 12345.0f;
    ops->unfold(part, record, tile);
    for (int t = 0; t < KVF_BLOCK; t++)
        for (int c = 0; c < part->dim_pad; c++) {
            float got = tile[part->side == KVF_K ? c * KVF_BLOCK + t : t * part->dim_pad + c];
            float want = c < part->dim ? want_value(&s, part->kind, record, t, c) : 0.0f;
            assert_memory_equal(&got, &want, sizeof got);
        }
    for (size_t i = n; i < n + CANARY; i++) assert_true(tile[i] == 12345.0f);
    free(tile);
}

static void check_score(const kvfi_kind_ops *ops, const kvf_part *part, const void *record)
{
    kvfi_shape s = kvfi_shape_of(part);
    size_t stride = (size_t)part->dim_pad + 3;
    float *q = ci_alloc(VECTORS * stride * sizeof *q), *out = ci_alloc((VECTORS * KVF_BLOCK + CANARY) * sizeof *out);
    fill(q, VECTORS * stride, 5);
    for (int v = 0; v < VECTORS; v++)
        memset(q + (size_t)v * stride + part->dim, 0, (size_t)(part->dim_pad - part->dim) * sizeof *q);
    for (int n = 1; n <= VECTORS; n += n == 1 ? 7 : n == 8 ? 8 : 1) {
        size_t bytes = ops->prepared_bytes(part, n);
        assert_int_equal(bytes % 64, 0);
        unsigned char *prepared = ci_alloc(bytes + 64);
        memset(prepared + bytes, 0x5a, 64);
        ops->prepare(part, q, stride, n, prepared);
        for (size_t i = 0; i < 64; i++) assert_int_equal(prepared[bytes + i], 0x5a);
        for (int i = 0; i < VECTORS * KVF_BLOCK + CANARY; i++) out[i] = 12345.0f;
        ops->score(part, record, prepared, n, out);
        for (int v = 0; v < n; v++)
            for (int t = 0; t < KVF_BLOCK; t++) {
                const float *qv = q + (size_t)v * stride;
                float sums[KVFI_DIM_MAX], want;
                for (int g = 0; g < s.n_cg; g++) sums[g] = kvfi_group_sum(qv, g * s.c_group, kvfi_group_size(&s, g));
                if (part->kind == KVF_KIND_HALF)
                    want = kvfi_score_half(&s, record, qv, t);
                else if (part->kind == KVF_KIND_TOKEN)
                    want = kvfi_score_token(&s, record, qv, sums, t);
                else
                    want = kvfi_score_channel(&s, record, qv, t);
                assert_memory_equal(&out[v * KVF_BLOCK + t], &want, sizeof want);
            }
        for (int i = n * KVF_BLOCK; i < VECTORS * KVF_BLOCK + CANARY; i++) assert_true(out[i] == 12345.0f);
        free(prepared);
    }
    free(q), free(out);
}

static void check_mix(const kvfi_kind_ops *ops, const kvf_part *part, const void *record)
{
    kvfi_shape s = kvfi_shape_of(part);
    size_t stride = (size_t)part->dim_pad + 5, n_acc = VECTORS * stride;
    float *acc = ci_alloc(n_acc * sizeof *acc), *before = ci_alloc(n_acc * sizeof *acc), w[VECTORS * KVF_BLOCK];
    fill(w, VECTORS * KVF_BLOCK, 6);
    fill(before, n_acc, 7);
    for (int n = 1; n <= VECTORS; n += n == 1 ? 7 : n == 8 ? 8 : 1) {
        memcpy(acc, before, n_acc * sizeof *acc);
        ops->mix(part, record, w, n, acc, stride);
        for (int v = 0; v < VECTORS; v++)
            for (int c = 0; c < (int)stride; c++) {
                float want = before[(size_t)v * stride + (size_t)c], got = acc[(size_t)v * stride + (size_t)c];
                const float *wv = w + v * KVF_BLOCK;
                if (v < n && c < part->dim) {
                    if (part->kind == KVF_KIND_HALF)
                        want += kvfi_mix_half(&s, record, wv, c);
                    else if (part->kind == KVF_KIND_TOKEN)
                        want += kvfi_mix_token(&s, record, wv, c);
                    else
                        want += kvfi_mix_channel(&s, record, wv, c);
                }
                assert_memory_equal(&got, &want, sizeof got);
            }
    }
    free(acc), free(before);
}

static void check_part(kvf_kind kind, int dim, int bits, int group, int has_min)
{
    kvfi_kernels k;
    kvfi_kernels_scalar(&k);
    for (int side = KVF_K; side <= KVF_V; side++) {
        kvf_part part = make_part(kind, (kvf_side)side, dim, bits, group, has_min);
        void *record = random_record(&part, (uint64_t)(dim * 10 + bits));
        check_unfold(&k.kind[kind], &part, record);
        if (side == KVF_K)
            check_score(&k.kind[kind], &part, record);
        else
            check_mix(&k.kind[kind], &part, record);
        free(record);
    }
}

static void kernels_equal_their_definition(void **state)
{
    (void)state;
    static const int dims[] = {1, 2, 40, 64, 72, 80, 128, 576};
    static const int groups[] = {16, 32, 64, 128};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
        check_part(KVF_KIND_HALF, dims[d], 16, 1, 0);
        for (int bits = 1; bits <= 8; bits++) {
            int group = groups[(bits + (int)d) % 4];
            check_part(KVF_KIND_TOKEN, dims[d], bits, group, bits & 1);
            check_part(KVF_KIND_TOKEN, dims[d], bits, group == 16 ? 24 : group, !(bits & 1)); /* any group of channels */
            check_part(KVF_KIND_CHANNEL, dims[d], bits, group > 64 ? 8 : group, bits & 1);
            check_part(KVF_KIND_CHANNEL, dims[d], bits, group > 64 ? 64 : group, !(bits & 1));
        }
    }
}

/* ---- exact rows ---- */

typedef struct row_set {
    kvfi_rows rows;
    double value[KVF_BLOCK][KVFI_DIM_MAX];
    unsigned char *memory;
    int32_t index[KVF_BLOCK];
} row_set;

/* n rows in shuffled cells at odd addresses, with NaN everywhere else. */
static row_set *make_rows(kvf_type type, int n, int dim, int indexed)
{
    row_set *r = ci_alloc(sizeof *r);
    size_t element = type == KVF_F16 ? 2 : 4, stride = (size_t)dim * element + element + 1, bytes = 2 * KVF_BLOCK * stride + 64;
    uint64_t seed = (uint64_t)(n + dim);
    r->memory = ci_alloc(bytes);
    memset(r->memory, 0xff, bytes);
    r->rows = (kvfi_rows){(char *)r->memory + 1, (int64_t)stride, type, indexed ? r->index : NULL};
    for (int i = 0; i < n; i++) {
        r->index[i] = indexed ? 2 * (n - 1 - i) + 1 : i;
        for (int c = 0; c < dim; c++) {
            float x = (float)ci_half(ci_gauss(&seed));
            uint16_t h = kvfi_half_from_float(x);
            unsigned char *at = r->memory + 1 + (size_t)r->index[i] * stride + (size_t)c * element;
            memcpy(at, type == KVF_F16 ? (void *)&h : (void *)&x, element);
            r->value[i][c] = x;
        }
    }
    return r;
}

static void check_rows(kvf_type type, int n, int dim, int indexed)
{
    kvfi_kernels k;
    kvfi_kernels_scalar(&k);
    row_set *r = make_rows(type, n, dim, indexed);
    int pad = (dim + 15) / 16 * 16, nv = 9;
    size_t stride = (size_t)pad + 1;
    float *q = ci_alloc((size_t)nv * stride * sizeof *q), *acc = ci_alloc((size_t)nv * stride * sizeof *acc);
    float *tile = ci_alloc((size_t)pad * KVF_BLOCK * sizeof *tile), s[9 * KVF_BLOCK], w[9 * KVF_BLOCK];
    fill(q, (size_t)nv * stride, 1);
    fill(w, (size_t)nv * KVF_BLOCK, 2);
    for (int i = 0; i < nv * KVF_BLOCK; i++) s[i] = 777.0f;
    k.rows_score(&r->rows, n, dim, q, stride, nv, s);
    k.rows_mix(&r->rows, n, dim, w, nv, acc, stride);
    for (int v = 0; v < nv; v++) {
        for (int i = 0; i < KVF_BLOCK; i++) {
            double want = 0, size = 0;
            for (int c = 0; c < dim; c++) {
                want += (double)q[(size_t)v * stride + (size_t)c] * r->value[i][c];
                size += fabs((double)q[(size_t)v * stride + (size_t)c] * r->value[i][c]);
            }
            if (i < n)
                assert_true(fabs(s[v * KVF_BLOCK + i] - want) <= size * (dim / 16 + 8) * 0x1p-24);
            else
                assert_true(s[v * KVF_BLOCK + i] == 777.0f);
        }
        for (int c = 0; c < (int)stride; c++) {
            double want = 0, size = 0;
            for (int i = 0; i < n && c < dim; i++) {
                want += (double)w[v * KVF_BLOCK + i] * r->value[i][c];
                size += fabs((double)w[v * KVF_BLOCK + i] * r->value[i][c]);
            }
            assert_true(fabs(acc[(size_t)v * stride + (size_t)c] - want) <= size * (n + 2) * 0x1p-24);
        }
    }
    for (int keys = 0; keys < 2; keys++) {
        for (int i = 0; i < pad * KVF_BLOCK; i++) tile[i] = 777.0f;
        (keys ? k.rows_unfold_k : k.rows_unfold_v)(&r->rows, n, dim, pad, tile);
        for (int i = 0; i < KVF_BLOCK; i++)
            for (int c = 0; c < pad; c++)
                assert_true(tile[keys ? c * KVF_BLOCK + i : i * pad + c] == (i < n && c < dim ? r->value[i][c] : 0));
    }
    free(q), free(acc), free(tile), free(r->memory), free(r);
}

static void exact_rows(void **state)
{
    (void)state;
    static const int dims[] = {1, 15, 16, 17, 40, 64, 80, 128, 576}, counts[] = {0, 1, 7, 31, 63, 64};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
            for (int way = 0; way < 4; way++) check_rows(way & 1 ? KVF_F32 : KVF_F16, counts[n], dims[d], way / 2);
}

/* ---- tiles ---- */

static void dense_tiles(void **state)
{
    (void)state;
    kvfi_kernels k;
    kvfi_kernels_scalar(&k);
    static const int dims[] = {16, 48, 64, 80, 576};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
        int pad = dims[d], nv = 19;
        size_t stride = (size_t)pad + 2, n_tile = (size_t)pad * KVF_BLOCK, n_q = (size_t)nv * stride;
        float *tile = ci_alloc(n_tile * sizeof *tile), *q = ci_alloc(n_q * sizeof *q), *acc = ci_alloc(n_q * sizeof *acc);
        float s[19 * KVF_BLOCK], w[19 * KVF_BLOCK];
        fill(tile, n_tile, 1), fill(q, n_q, 2), fill(w, (size_t)nv * KVF_BLOCK, 3);
        memcpy(acc, q, n_q * sizeof *acc);
        k.tile_score(tile, pad, q, stride, nv, s);
        k.tile_mix(tile, pad, w, nv, acc, stride);
        for (int v = 0; v < nv; v++) {
            for (int t = 0; t < KVF_BLOCK; t++) {
                float want = 0;
                for (int c = 0; c < pad; c++) want += q[(size_t)v * stride + (size_t)c] * tile[c * KVF_BLOCK + t];
                assert_memory_equal(&want, &s[v * KVF_BLOCK + t], sizeof want);
            }
            for (int c = 0; c < (int)stride; c++) {
                float want = 0, got = acc[(size_t)v * stride + (size_t)c];
                for (int t = 0; t < KVF_BLOCK && c < pad; t++) want += w[v * KVF_BLOCK + t] * tile[t * pad + c];
                want = q[(size_t)v * stride + (size_t)c] + want;
                assert_true(want == got);
            }
        }
        free(tile), free(q), free(acc);
    }
}

/* ---- softmax ---- */

static float softmax(float *s, float *max, float *sum)
{
    kvfi_kernels k;
    float factor;
    kvfi_kernels_scalar(&k);
    k.softmax(s, NULL, 1, max, sum, &factor);
    return factor;
}

/* Any number of pieces gives the softmax of all of them. */
static void softmax_in_pieces(void **state)
{
    (void)state;
    enum { PIECES = 9, N = PIECES * KVF_BLOCK };
    double all[N], want = 0, top = -INFINITY;
    uint64_t seed = 9;
    for (int i = 0; i < N; i++) {
        all[i] = (float)(ci_gauss(&seed) * 20 + i / KVF_BLOCK % 4 * 10);
        if (i < KVF_BLOCK || i % 7 == 0 || i / KVF_BLOCK == 5) all[i] = -INFINITY; /* the first piece and piece 5 see nothing */
        if (all[i] > top) top = all[i];
    }
    for (int i = 0; i < N; i++) want += exp(all[i] - top);
    float max = -INFINITY, sum = 0, weight[N];
    for (int p = 0; p < PIECES; p++) {
        for (int i = 0; i < KVF_BLOCK; i++) weight[p * KVF_BLOCK + i] = (float)all[p * KVF_BLOCK + i];
        float factor = softmax(weight + p * KVF_BLOCK, &max, &sum);
        assert_true(factor >= 0 && factor <= 1);
        for (int i = 0; i < p * KVF_BLOCK; i++) weight[i] *= factor;
    }
    assert_true(max == (float)top);
    assert_true(fabs(sum - want) <= want * 1e-5);
    for (int i = 0; i < N; i++) {
        /* differences of scores near 100 are rounded to 4e-6, twice, and factors multiply; the smallest become subnormal */
        double w = exp(all[i] - top);
        assert_true(fabs(weight[i] - w) <= 2e-5 * w + 0x1p-126);
    }
}

static void softmax_at_the_ends(void **state)
{
    (void)state;
    float s[KVF_BLOCK], max = -INFINITY, sum = 0;
    for (int i = 0; i < KVF_BLOCK; i++) s[i] = -INFINITY;
    assert_true(softmax(s, &max, &sum) == 1.0f);
    assert_true(max == -INFINITY && sum == 0);
    for (int i = 0; i < KVF_BLOCK; i++) assert_true(s[i] == 0);

    for (int i = 0; i < KVF_BLOCK; i++) s[i] = i == 40 ? -3.0f : -INFINITY; /* the first visible one rescales nothing */
    assert_true(softmax(s, &max, &sum) == 0.0f);
    assert_true(max == -3 && sum == 1 && s[40] == 1 && s[0] == 0);

    for (int i = 0; i < KVF_BLOCK; i++) s[i] = -INFINITY; /* a hidden piece after a visible one changes nothing */
    assert_true(softmax(s, &max, &sum) == 1.0f);
    assert_true(max == -3 && sum == 1 && s[40] == 0);

    for (int i = 0; i < KVF_BLOCK; i++) s[i] = i ? -1e30f : -3.0f; /* an equal maximum: factor exactly 1 */
    assert_true(softmax(s, &max, &sum) == 1.0f);
    assert_true(sum == 2 && s[0] == 1 && s[1] == 0);

    for (int i = 0; i < KVF_BLOCK; i++) s[i] = 1e30f; /* the old sum vanishes, nothing overflows */
    assert_true(softmax(s, &max, &sum) == 0.0f);
    assert_true(sum == 64 && max == 1e30f);
}

/* ---- Hadamard ---- */

static void hadamard_is_the_matrix_of_sylvester(void **state)
{
    (void)state;
    kvfi_kernels k;
    kvfi_kernels_scalar(&k);
    for (int block = 1; block <= 1024; block *= 2) {
        int dim = block <= 64 ? 3 * block : block, n = 2;
        size_t stride = (size_t)dim + 1;
        float *x = ci_alloc((size_t)n * stride * sizeof *x), *y = ci_alloc((size_t)n * stride * sizeof *y);
        fill(x, (size_t)n * stride, 4);
        memcpy(y, x, (size_t)n * stride * sizeof *y);
        k.hadamard(y, stride, n, dim, block);
        for (int v = 0; v < n; v++) {
            for (int c = 0; c < dim; c++) {
                double want = 0;
                for (int j = 0; j < block; j++) {
                    int odd = 0;
                    for (int b = (c % block) & j; b; b &= b - 1) odd = !odd;
                    double e = x[(size_t)v * stride + (size_t)(c / block * block + j)];
                    want += odd ? -e : e;
                }
                assert_true(fabs(y[(size_t)v * stride + (size_t)c] - want / sqrt(block)) < 2e-6);
            }
            assert_true(y[(size_t)v * stride + (size_t)dim] == x[(size_t)v * stride + (size_t)dim]); /* between the vectors */
        }
        assert_true(kvfi_hadamard_norm(block) == (float)(1 / sqrt(block)));
        assert_int_equal(kvf_op_hadamard(y, 1, dim, block), KVF_OK);
        for (int c = 0; c < dim; c++) assert_true(fabsf(y[c] - x[c]) < 4e-6f); /* its own inverse */
        free(x), free(y);
    }
}

static void hadamard_refuses_impossible_blocks(void **state)
{
    (void)state;
    float x[12] = {0};
    assert_int_equal(kvf_op_hadamard(x, 1, 12, 4), KVF_OK);
    assert_int_equal(kvf_op_hadamard(x, 1, 12, 12), KVF_E_ARG);
    assert_int_equal(kvf_op_hadamard(x, 1, 12, 8), KVF_E_ARG);
    assert_int_equal(kvf_op_hadamard(x, 1, 12, 0), KVF_E_ARG);
    assert_int_equal(kvf_op_hadamard(x, 1, 12, -4), KVF_E_ARG);
    assert_int_equal(kvf_op_hadamard(x, -1, 12, 4), KVF_E_ARG);
    assert_int_equal(kvf_op_hadamard(x, 1, 0, 1), KVF_E_ARG);
    assert_int_equal(kvf_op_hadamard(NULL, 1, 12, 4), KVF_E_ARG);
    assert_int_equal(kvf_op_hadamard(NULL, 0, 12, 4), KVF_OK);
    assert_int_equal(kvf_op_hadamard(x, INT64_MAX, 12, 4), KVF_E_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_equal_their_definition),
        cmocka_unit_test(exact_rows),
        cmocka_unit_test(dense_tiles),
        cmocka_unit_test(softmax_in_pieces),
        cmocka_unit_test(softmax_at_the_ends),
        cmocka_unit_test(hadamard_is_the_matrix_of_sylvester),
        cmocka_unit_test(hadamard_refuses_impossible_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
