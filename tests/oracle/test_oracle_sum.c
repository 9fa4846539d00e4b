/* SPDX-License-Identifier: MIT
 * prod, qjl and turbo with outliers against their oracle: sets, codes, scales and lengths of every record; what it decodes to; scores
 * and mixed sums of the scalar kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "../unit/codec_inputs.h"
#include "codec/codec.h"
#include "codec/shared/sum.h"
#include "cpu/isa.h"
#include "oracle_codec.h"
#include "oracle_sum.h"

/* Limits, each with its reason.
 * NEAR: a code may be the neighbour where its coordinate lies this close to a boundary (in gaps between entries), a sign either one
 *       where it is this share of the lengths of what is sketched and of the whole vector: the library's transforms are f32, the oracle's maps matrices in double.
 * SCALE: a scale may be the neighbouring f16.
 * SUM: error of a sum, as a share of the products of lengths: two f32 transforms there and two back, and up to 512 terms. */
#define NEAR 2e-3
#define NEAR_SIGN 2e-6
#define SCALE(x) (fabs(x) * 0x1p-10 + 0x1p-24)
#define SUM 4e-6

static const char *at_spec;
static int at_dim, at_kind;

#define WRONG(...)                                                                                                               \
    do {                                                                                                                         \
        char text_[256];                                                                                                         \
        snprintf(text_, sizeof text_, __VA_ARGS__);                                                                              \
        fail_msg("%s, head size %d, input '%s': %s", at_spec, at_dim, ci_kind_name[at_kind], text_);                             \
    } while (0)

static double length(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

static void check_set(const os_plan *p, const double *x)
{
    double low = HUGE_VAL, high = 0;
    int n = 0;
    for (int c = 0; c < p->dim && p->n_out; c++) {
        double energy = 0;
        for (int t = 0; t < 64; t++) energy += x[t * p->dim + c] * x[t * p->dim + c];
        n += p->outlier[c];
        if (p->outlier[c])
            low = fmin(low, energy);
        else
            high = fmax(high, energy);
    }
    if (n != p->n_out) WRONG("%d outliers in the set", n);
    if (p->n_out && low < high * (1 - 1e-5)) WRONG("an outlier has energy %g, another channel %g", low, high);
}

static void check_signs(const os_plan *p, const os_matrix *m, const double *x, double whole, int t)
{
    double y[OS_ROWS], seen[OS_DIM], norm;
    os_map(p, m, x, y);
    for (int c = 0; c < p->dim; c++) seen[c] = m->select < 0 || p->outlier[c] == m->select ? x[c] : 0;
    norm = length(seen, p->dim);
    if (fabs(m->scale[t] - oracle_half(norm)) > SCALE(norm) + NEAR_SIGN * whole)
        WRONG("token %d: length %g, oracle %g", t, m->scale[t], norm);
    for (int j = 0; j < m->size; j++)
        if (m->code[t][j] != (y[j] >= 0) && fabs(y[j]) > NEAR_SIGN * (norm + whole) && norm > 0)
            WRONG("token %d, direction %d: code %d, product %g of length %g", t, j, m->code[t][j], y[j], norm);
}

static double scale_of(int norm, const double *x, const double *c, int n, double plain)
{
    double xx = 0, xc = 0, cc = 0;
    for (int i = 0; i < n; i++) xx += x[i] * x[i], xc += x[i] * c[i], cc += c[i] * c[i];
    return oracle_norm_scale(norm, xx, xc, cc, plain);
}

static void check_table(const os_plan *p, const os_matrix *m, const double *x, int t)
{
    double y[OS_ROWS], level[OS_ROWS];
    os_map(p, m, x, y);
    const double rms = length(y, m->size) / sqrt(m->size);
    for (int j = 0; j < m->size; j++) {
        const double q = rms > 0 ? y[j] / (rms * m->unit) : 0;
        const int code = m->code[t][j], top = (1 << m->bits) - 1;
        level[j] = m->entry[code] * m->unit;
        const double low = code ? (m->entry[code - 1] + m->entry[code]) / 2.0 : -HUGE_VAL;
        const double high = code < top ? (m->entry[code] + m->entry[code + 1]) / 2.0 : HUGE_VAL;
        const double gap = NEAR * (m->entry[top] - m->entry[0]) / top;
        if (rms > 0x1p-20 && (q < low - gap || q > high + gap)) WRONG("token %d, coordinate %d: code %d for %g", t, j, code, q);
    }
    const double scale = scale_of(p->norm, y, level, m->size, rms);
    if (fabs(m->scale[t] - oracle_half(scale)) > SCALE(scale)) WRONG("token %d: scale %g, oracle %g", t, m->scale[t], scale);
}

static void check_codes(const os_plan *p, const double *x)
{
    for (int t = 0; t < 64; t++) {
        double row[OS_DIM];
        memcpy(row, x + t * p->dim, (size_t)p->dim * sizeof *row);
        const double whole = length(row, p->dim); /* a residual carries the roundings of the vector that it was taken from */
        for (int i = 0; i < p->n; i++) {
            if (p->m[i].table)
                check_table(p, &p->m[i], row, t);
            else
                check_signs(p, &p->m[i], row, whole, t);
            for (int c = 0; c < p->dim && p->prod && !i; c++) row[c] -= os_coordinate(&p->m[0], t, c);
        }
    }
}

/* Length of what matrix i of token t decodes to, at most. */
static double reach(const os_plan *p, int i, int t)
{
    double sum = 0;
    for (int j = 0; j < p->m[i].size; j++) sum += pow(os_coordinate(&p->m[i], t, j), 2);
    return sqrt(sum) * (p->m[i].sketch && p->iid ? sqrt(p->dim) + sqrt(p->m[i].size) : p->m[i].sketch ? sqrt(p->m[i].size) : 1);
}

static void decode(const os_plan *p, int t, double *out, double *size)
{
    memset(out, 0, (size_t)p->dim * sizeof *out);
    *size = 0;
    for (int i = 0; i < p->n; i++) {
        double y[OS_ROWS];
        for (int j = 0; j < p->m[i].size; j++) y[j] = os_coordinate(&p->m[i], t, j);
        os_return(p, &p->m[i], y, out);
        *size += reach(p, i, t);
    }
}

/* want[t]: decoded tokens in the domain of the kernels. */
static void check_attention(const os_plan *p, const kvf_part *part, const void *record, const double *want, const double *size,
                            uint64_t seed)
{
    enum { VECTORS = 11 };
    kvfi_kernels k;
    kvfi_kernels_scalar(&k);
    const kvfi_kind_ops *ops = &k.kind[part->kind];
    const size_t pad = (size_t)part->dim_pad;
    float *q = ci_alloc(VECTORS * pad * sizeof *q), *acc = ci_alloc(VECTORS * pad * sizeof *acc), w[VECTORS * 64],
          s[VECTORS * 64];
    void *prepared = ci_alloc(ops->prepared_bytes(part, VECTORS));
    for (int v = 0; v < VECTORS; v++) {
        for (int c = 0; c < p->dim; c++) q[(size_t)v * pad + (size_t)c] = (float)ci_gauss(&seed);
        for (int t = 0; t < 64; t++) w[v * 64 + t] = (float)fabs(ci_gauss(&seed));
    }
    if (p->keys) {
        ops->prepare(part, q, pad, VECTORS, prepared);
        ops->score(part, record, prepared, VECTORS, s);
    } else {
        ops->mix(part, record, w, VECTORS, acc, pad);
    }
    for (int v = 0; v < VECTORS; v++) {
        double qq = 0, sum[OS_DIM] = {0}, weight = 0;
        for (int c = 0; c < p->dim; c++) qq += pow((double)q[(size_t)v * pad + (size_t)c], 2);
        for (int t = 0; t < 64; t++) {
            double dot = 0;
            for (int c = 0; c < p->dim; c++) {
                dot += (double)q[(size_t)v * pad + (size_t)c] * want[t * p->dim + c];
                sum[c] += (double)w[v * 64 + t] * want[t * p->dim + c];
            }
            weight += (double)w[v * 64 + t] * size[t];
            if (p->keys && fabs(s[v * 64 + t] - dot) > SUM * sqrt(qq) * size[t])
                WRONG("vector %d, token %d: score %g, oracle %g", v, t, (double)s[v * 64 + t], dot);
        }
        for (int c = 0; c < p->dim && !p->keys; c++)
            if (fabs((double)acc[(size_t)v * pad + (size_t)c] - sum[c]) > SUM * weight)
                WRONG("vector %d, channel %d: sum %g, oracle %g", v, c, (double)acc[(size_t)v * pad + (size_t)c], sum[c]);
    }
    free(q), free(acc), free(prepared);
}

/* Codes of padded coordinates may be anything: nothing that is read may change. */
static void spoil(const kvf_part *part, unsigned char *record)
{
    for (int32_t i = 0; i < part->n_matrices; i++) {
        const kvfi_shape s = kvfi_sum_shape(part, i);
        for (int j = s.dim; j < s.dim_pad; j++)
            for (int t = 0; t < 64; t++)
                kvfi_code_put(record + part->matrix[i].codes_offset, s.bits, kvfi_reduction(&s), kvfi_lanes(&s), s.keys ? j : t,
                              s.keys ? t : j, (1 << s.bits) - 1);
    }
}

/* Where a level lies halfway between two integers, the library's choice. */
static void share_roundings(os_plan *p, const kvf_part *part)
{
    for (int i = 0; i < p->n; i++) {
        os_matrix *m = &p->m[i];
        for (int k = 0; k < 1 << m->bits && m->table; k++) {
            const int entry = part->table[part->matrix[i].table + k];
            assert_true(abs(m->entry[k] - entry) <= 1);
            m->entry[k] = entry;
        }
        assert_true(fabs(m->unit * (m->table ? 1 : 2) - (double)part->matrix[i].unit) <= m->unit * 2e-5);
        m->unit = (double)part->matrix[i].unit / (m->table ? 1 : 2);
    }
}

static void one(const char *spec, kvf_side side, int dim, int kind)
{
    static os_plan p;
    static double in[64 * OS_DIM], want[64 * OS_DIM];
    static float x[64 * OS_DIM], back[64 * OS_DIM];
    double size[64];
    kvf_part part;
    at_spec = spec, at_dim = dim, at_kind = kind;
    if (!os_read_spec(spec, side == KVF_K, dim, &p)) return;
    assert_int_equal(kvfi_part_setup(spec, side, dim, &part, NULL, 0), KVF_OK);
    assert_int_equal(part.bytes, p.bytes);
    share_roundings(&p, &part);
    unsigned char *record = ci_alloc(part.bytes);
    memset(record, 0xa5, part.bytes);
    ci_fill(x, dim, (ci_kind)kind, 17);
    assert_int_equal(kvf_op_encode(spec, side, dim, x, record), KVF_OK);
    os_unpack(&p, record);
    assert_true(os_padding_is_zero(&p, record));
    for (int t = 0; t < 64; t++) {
        double row[OS_DIM];
        for (int c = 0; c < dim; c++) row[c] = (double)x[t * dim + c];
        oracle_rotate(&p.rot, row, in + t * p.dim);
        decode(&p, t, want + t * p.dim, &size[t]);
    }
    check_set(&p, in);
    check_codes(&p, in);
    check_attention(&p, &part, record, want, size, (uint64_t)(dim * 5 + kind));
    spoil(&part, record);
    check_attention(&p, &part, record, want, size, (uint64_t)(dim * 5 + kind));
    assert_int_equal(kvf_op_decode(spec, side, dim, record, back), KVF_OK);
    for (int t = 0; t < 64; t++) {
        double row[OS_DIM];
        oracle_rotate_back(&p.rot, want + t * p.dim, row);
        for (int c = 0; c < dim; c++)
            if (fabs((double)back[t * dim + c] - row[c]) > SUM * size[t])
                WRONG("token %d, channel %d: decodes to %g, oracle %g", t, c, (double)back[t * dim + c], row[c]);
    }
    free(record);
}

static void all_inputs(const char *spec, kvf_side side)
{
    static const int sizes[] = {1, 2, 40, 63, 64, 80, 128};
    for (size_t d = 0; d < sizeof sizes / sizeof *sizes; d++)
        for (int kind = 0; kind < CI_KIND_COUNT; kind++) {
            const int dim = sizes[d];
            if (!ci_fits(spec, dim) || (strstr(spec, "iid") && dim > 64)) continue;
            if (dim > 64 && kind != CI_GAUSS && kind != CI_OUTLIER && kind != CI_LARGE && kind != CI_TIES) continue;
            one(spec, side, dim, kind);
        }
}

static void example(const char *spec, kvf_side side, void *user)
{
    int *n = user;
    if (!ci_sum(spec)) return;
    all_inputs(spec, side);
    ++*n;
}

static void examples_agree_with_their_oracle(void **state)
{
    (void)state;
    int n = 0;
    ci_each_spec(example, &n);
    assert_true(n > 15);
}

static void options_agree_with_their_oracle(void **state)
{
    (void)state;
    static const char *const specs[] = {"prod2:norm=n0,seed=5",       "prod4:rot=none",
                                        "prod3:norm=n1,sketch=iid",   "prod5:norm=n2",
                                        "turbo1:outliers=1",          "turbo2:outliers=7,rot=h2,seed=4",
                                        "turbo6:outliers=20,norm=n0", "turbo2:outliers=32,rot=none,norm=n3"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        for (int side = KVF_K; side <= KVF_V; side++) all_inputs(specs[i], (kvf_side)side);
    static const char *const keys[] = {"qjl:m=32,seed=9", "qjl:outliers=8,sketch=iid", "qjl:m=64,outliers=1"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        one(keys[i], KVF_K, 64, CI_GAUSS);
        one(keys[i], KVF_K, 63, CI_OUTLIER);
        one(keys[i], KVF_K, 40, CI_TIES);
    }
    one("qjl:m=256", KVF_K, 64, CI_GAUSS);
    one("qjl:m=512,outliers=4", KVF_K, 128, CI_OUTLIER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(examples_agree_with_their_oracle),
        cmocka_unit_test(options_agree_with_their_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
