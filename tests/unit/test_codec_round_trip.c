/* SPDX-License-Identifier: MIT
 * Every codec, side, head size and input: what comes back is within the limit that the codec promises. Then the inputs that
 * broke others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "../oracle/oracle_codec.h"
#include "../oracle/oracle_rotation.h"
#include "books.h"
#include "codec_inputs.h"

/* THE table of limits. Each is the largest error of one value, made from its group: `range` = maximum - minimum, `peak` = largest
 * magnitude. `step` is what the group's scale should be, `steps` of it the limit; half a step where codes are rounded to nearest.
 * What is added in every case: the scale is rounded to f16 (2^-11 of itself; 2^-25 where it is subnormal), which counts once for
 * each step from 0, and value = code * scale (+ min) is rounded to f32 (2^-23 of its terms). With a rotation, ten butterflies
 * there and ten back are rounded to f32: 20 * 2^-24 of the largest channel of the token. */
static const struct limit {
    const char *codec;
    double steps;
    const char *reason;
} limits[] = {
    {"f16", 0, "the input is f16"},
    {"q8_0", 0.5, "127 steps to the peak, nearest"},
    {"q4_0", 1.0, "8 steps to the peak; the other end has only 7, so a value of the other sign may lose a whole step"},
    {"kivi", 0.5, "2^bits - 1 steps over the range, nearest; a step above 65504 is cut, which costs no more than half the range"},
    {"turbo", 0.5, "nearest of the levels, the outer cells open; then the norm rule moves the scale, see turbo_row_of"},
    {"rvq", 0.5, "no farther than the first stage alone would be; then the norm rule, see turbo_row_of"},
    {"uni", 0.5,
     "nearest of the steps, the outer cells of 2 and 3 bits open; then the norm rule moves the scale, see uni_allowed"},
};

static const struct limit *limit_of(const char *spec)
{
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (!strncmp(spec, limits[i].codec, strlen(limits[i].codec))) return &limits[i];
    fail_msg("no limit is stated for '%s'", spec);
    return NULL;
}

typedef struct shape {
    int bits, group, tokens; /* tokens: the group runs along tokens */
    oracle_rotation rotation;
    int known; /* there is such a rotation */
    int norm;  /* rule of uni, turbo, rvq */
    int rvq;   /* bits of both stages; `bits` are the first's */
} shape;

static shape shape_of(const char *spec, kvf_side side, int dim)
{
    shape s = {.group = 32};
    const int turbo = !strncmp(spec, "turbo", 5), rvq = !strncmp(spec, "rvq", 3),
              norms = turbo || rvq || !strncmp(spec, "uni", 3);
    if (norms) {
        s.group = dim;
        s.bits = spec[turbo ? 5 : 3] - '0';
        if (rvq) s.rvq = s.bits, s.bits = strstr(spec, "stages=") ? strstr(spec, "stages=")[7] - '0' : (s.bits + 1) / 2;
        s.norm = strstr(spec, "norm=n") ? strstr(spec, "norm=n")[6] - '0' : side == KVF_K ? 1 : 2;
    } else if (!strncmp(spec, "kivi", 4)) {
        s.tokens = side == KVF_K;
        if (strchr(spec, '=')) s.group = atoi(strchr(spec, '=') + 1);
        s.bits = spec[4] - '0';
    } else {
        s.bits = spec[1] - '0';
    }
    s.known = oracle_read_rotation(spec,
                                   norms && !ci_sum(spec)              ? "h1"
                                   : ci_product(spec) && side == KVF_K ? "h"
                                                                       : "none",
                                   dim, &s.rotation);
    if (norms) s.group = s.rotation.size;
    return s;
}

/* Turns vectors of `dim` channels, so that errors can be judged where they were made. */
static void turn(const oracle_rotation *r, const float *x, double *y)
{
    double row[CI_DIM_MAX];
    for (int t = 0; t < CI_TOKENS; t++) {
        for (int c = 0; c < r->dim; c++) row[c] = (double)x[t * r->dim + c];
        oracle_rotate(r, row, y + t * r->size);
    }
}

/* uni: with y = x / step, codes c and |y_i - c_i| <= 1/2 (inside the outermost levels z), |y - c| <= sqrt(n) / 2 =: r. Then the
 * scale is step * f, and
 *   n0: f = 1      n1: f = |y| / |c|, |f - 1| <= r / |c|      n2: f = <y,y> / <y,c>, |f - 1| <= r |y| / <y,c>
 * where |c| >= max(top code, |y| - r) and, as no code has the other sign, <y,c> >= max(top code^2, |y|^2 - r |y|). With 2 and 3
 * bits nothing bounds r, but no code is below 1/2: f <= |y| / (sqrt(n) / 2), or <y,y> / (sum |y| / 2). */
typedef struct uni_row {
    double step, top, moved, peak;
} uni_row;

static uni_row uni_row_of(const shape *s, const double *x, int n)
{
    static const double width[] = {0, 1.596, 0.9957, 0.5860};
    double peak = 0, square = 0, sum = 0;
    for (int i = 0; i < n; i++) peak = fmax(peak, fabs(x[i])), square += x[i] * x[i], sum += fabs(x[i]);
    double top = s->bits >= 4 ? ldexp(1, s->bits - 1) - 1 : (ldexp(1, s->bits) - 1) / 2;
    double step = s->bits >= 4 ? peak / top : sqrt(square / n) * width[s->bits];
    if (step == 0) return (uni_row){0};
    double y = sqrt(square) / step, r = sqrt(n) / 2, moved = 0;
    if (s->bits >= 4 && s->norm == 1) moved = r / fmax(top, y - r);
    if (s->bits >= 4 && s->norm == 2) moved = r * y / fmax(top * top, y * y - r * y);
    if (s->bits < 4) moved = 1 + (s->norm == 1 ? y / r : y * y / (sum / step / 2));
    return (uni_row){step, top, moved, peak};
}

static double uni_allowed(const uni_row *u, double value)
{
    if (u->step == 0) return 0;
    double inside = fmax(0.5, fabs(value) / u->step - u->top);
    return u->step * (inside + u->top * u->moved) + u->top * fmax(u->step * (1 + u->moved) * 0x1p-11, 0x1p-25) +
           u->peak * 0x1p-20;
}

/* turbo: levels of a variable of deviation 1. least: the outermost level of n channels; most: of the normal variable, the farthest; gap:
 * between its outermost two (+- for one bit), the widest there is; low: the level next to 0, of n channels. Each gap is widened by one
 * unit of the table (1/127 or 1/16383 of the outermost level), by which two rounded levels can part. */
struct levels {
    double least, most, gap, low;
};

static struct levels exact_levels(int bits, int n)
{
    static struct levels known[9][CI_DIM_MAX + 1];
    struct levels *l = &known[bits][n];
    double c[128];
    const int last = (1 << (bits - 1)) - 1;
    if (l->most > 0) return *l;
    assert_true(oracle_levels(bits, n, c) > 0);
    *l = (struct levels){.least = c[last], .most = c[last], .gap = last ? c[last] - c[last - 1] : 2 * c[0], .low = c[0]};
    return *l;
}

static struct levels levels_of(int bits, int n)
{
    const struct levels own = exact_levels(bits, n), normal = exact_levels(bits, 2);
    return (struct levels){.least = fmin(own.least, normal.least),
                           .most = fmax(own.most, normal.most),
                           .gap = fmax(own.gap, normal.gap),
                           .low = fmin(own.low, normal.low)};
}

/* With y = x / rms, levels c and |y_i - c_i| <= half a gap inside the outermost level and y_i - outermost beyond it, miss^2 the
 * sum of their squares: |y - c| <= miss. The scale is rms * f with f as for uni; |c_i| >= low, and no level has the other sign:
 *   |c| >= max(|y| - miss, low sqrt(n)),   <y,c> >= max(|y|^2 - miss |y|, low sum |y_i|).
 * rvq: the first stage's levels. The second only ever brings a value nearer than the farthest point of its cell, and its own
 * outermost level is below half a gap; two levels of opposite sign can nearly cancel, hence the small `low`. */
typedef struct turbo_row {
    struct levels l;
    double rms, y, half_gap, moved;
} turbo_row;

static turbo_row turbo_row_of(const shape *s, const double *x, int n)
{
    turbo_row row = {.l = levels_of(s->bits, n), .y = sqrt(n)};
    if (s->rvq) row.l.most += row.l.gap / 2, row.l.low = s->rvq == 2 ? 0.3 : 0.001;
    double square = 0, sum = 0, miss = 0;
    row.half_gap = (row.l.gap + (s->rvq ? 2 : 1) * row.l.most / (s->bits <= 5 ? 127 : 16383)) / 2;
    for (int i = 0; i < n; i++) square += x[i] * x[i], sum += fabs(x[i]);
    row.rms = sqrt(square / n);
    for (int i = 0; i < n && square > 0; i++) miss += pow(fmax(row.half_gap, fabs(x[i]) / row.rms - row.l.least), 2);
    miss = sqrt(miss);
    if (s->norm == 1) row.moved = miss / fmax(row.y - miss, row.l.low * row.y);
    if (s->norm == 2 && square > 0) row.moved = miss * row.y / fmax(row.y * row.y - miss * row.y, row.l.low * sum / row.rms);
    return row;
}

static double turbo_allowed(const turbo_row *row, double value)
{
    const double most = row->l.most, rms = row->rms;
    if (rms == 0) return 0;
    double inside = fmax(row->half_gap, fabs(value) / rms - row->l.least);
    return rms * (inside + most * row->moved) + most * fmax(rms * (1 + row->moved) * 0x1p-11, 0x1p-25) + rms * row->y * 0x1p-20;
}

static double allowed(const struct limit *l, const shape *s, const double *x, int first, int n, int stride)
{
    double low = x[first], high = low, peak = 0;
    for (int i = 0; i < n; i++) {
        double v = x[first + i * stride];
        low = fmin(low, v);
        high = fmax(high, v);
        peak = fmax(peak, fabs(v));
    }
    if (l->steps == 0) return 0;
    if (!strcmp(l->codec, "kivi")) {
        double top = (1 << s->bits) - 1, step = (high - low) / top;
        double rounding = top * fmax(step * 0x1p-11, 0) + 4 * peak * 0x1p-23;
        if (high == low) return 0;
        if (step < 0x1p-14) rounding = 0x1p-25; /* a subnormal step never falls short, see docs/FORMAT.md */
        return fmax(l->steps * step, step < 0x1p-25 ? 0 : l->steps * 0x1p-24) + rounding;
    }
    double steps = s->bits == 8 ? 127 : 8, step = peak / steps;
    return l->steps * step + steps * fmax(step * 0x1p-11, 0x1p-25) + peak * 0x1p-21;
}

static void check_limits(const char *spec, kvf_side side, int head_dim, ci_kind kind, const double *x, const double *y)
{
    const struct limit *l = limit_of(spec);
    shape s = shape_of(spec, side, head_dim);
    const int dim = s.rotation.size, turns = strcmp(s.rotation.name, "none"), padded = dim > head_dim;
    int uni = !strcmp(l->codec, "uni"), turbo = !strcmp(l->codec, "turbo") || s.rvq;
    for (int t = 0; t < CI_TOKENS; t++) {
        double turned = 0, error_square = 0, most_square = 0;
        uni_row row = uni ? uni_row_of(&s, x + t * dim, dim) : (uni_row){0};
        turbo_row levels_of_row = turbo ? turbo_row_of(&s, x + t * dim, dim) : (turbo_row){0};
        for (int i = 0; i < dim && turns; i++) turned = fmax(turned, fabs(x[t * dim + i]));
        for (int c = 0; c < dim; c++) {
            int g = s.tokens ? t / s.group * s.group : c / s.group * s.group;
            int n = s.tokens || dim - g > s.group ? s.group : dim - g;
            double most = uni     ? uni_allowed(&row, x[t * dim + c])
                          : turbo ? turbo_allowed(&levels_of_row, x[t * dim + c])
                                  : allowed(l, &s, x, s.tokens ? g * dim + c : t * dim + g, n, s.tokens ? dim : 1);
            most += 20 * 0x1p-24 * turned;
            double error = fabs(x[t * dim + c] - y[t * dim + c]);
            error_square += error * error, most_square += most * most;
            if (!(error <= most) && !padded)
                fail_msg("%s, %s, head size %d, input '%s', token %d, channel %d: %g came back as %g, error %g, limit %g (%s)",
                         spec, side == KVF_K ? "keys" : "values", head_dim, ci_kind_name[kind], t, c, x[t * dim + c],
                         y[t * dim + c], error, most, l->reason);
        }
        /* what was decoded into the added zeros is dropped: the rest of the error is spread, but does not grow */
        if (padded && !(error_square <= most_square))
            fail_msg("%s, head size %d, input '%s', token %d: squared error %g, limit %g", spec, head_dim, ci_kind_name[kind], t,
                     error_square, most_square);
    }
}

/* Sums of code matrices promise nothing of a single value, but of the vector. Signs of m directions decode to a vector of at most
 * unit * |S^T s| lengths of what they stand for (all of the key, or the residual, which is no longer than the key under rule n3):
 * orthogonal directions, P dimensions: 1.2534 sqrt(P / m). Independent ones: |S| is at most sqrt(m) + sqrt(dim) + 6 (Davidson and
 * Szarek, 2001, but for one matrix in 10^7). Two parts of a key add up as orthogonal vectors, at most sqrt(2) times the larger.
 * Tables: |x - y| <= |x| + |y|, and |y| = |x| under rule n1; rule n2 is at most sqrt(3) away (values_never_come_back_far_away), and two
 * parts add up as squares. A trellis promises the nearest of its paths to the whole vector; the limit is twice the deviation that is
 * left of a normal one, for rows that are not normal and for the norm rule. */
/* Product codes: every sub-vector is at least as near as the shortest centroid would be, so the vector is off by its own length and
 * those of dim / sub shortest centroids at most. */
static double shortest_centroids(const char *spec, kvf_side side, int dim)
{
    int sub = 0, bits = 0;
    double least = HUGE_VAL;
    kvf_spec_info info;
    assert_int_equal(kvf_spec_check(spec, side, dim, &info, NULL, 0), KVF_OK);
    assert_int_equal(sscanf(info.canonical, "vecinfer:sub=%d,bits=%d", &sub, &bits), 2);
    const float *book = tb_book(side, sub, bits, strstr(spec, "per=head") ? 1 : -1);
    for (int i = 0; i < 1 << bits; i++) {
        double square = 0;
        for (int j = 0; j < sub; j++) square += (double)book[i * sub + j] * (double)book[i * sub + j];
        least = fmin(least, square);
    }
    return sqrt(least * dim / sub);
}

static double sum_row_limit(const char *spec, int dim)
{
    const int m = strstr(spec, "m=") ? atoi(strstr(spec, "m=") + 2) : (dim + 15) / 16 * 16;
    double signs = 1.2534 / m * (sqrt(m) + sqrt(dim) + 6) * sqrt(m);
    int padded = 16;
    while (padded < dim) padded *= 2;
    if (ci_product(spec)) return 1 + 1e-6; /* f32 distances */
    if (!strncmp(spec, "turbo", 5)) return 2;
    if (!strncmp(spec, "tcq", 3)) return 2 * (double[]){0.54, 0.28, 0.15, 0.08}[spec[3] - '1'];
    if (!strstr(spec, "sketch=iid")) signs = 1.2534 * sqrt((double)padded / m);
    return sqrt(2) * (1 + signs * 1.01);
}

/* Mean squared error of normal rows of 40 and more channels, of their energy: what test_trellis measures and a tenth more for trellis
 * codes; signs of as many orthogonal directions leave pi / 2 - 1 = 0.57 of what they are given, tables of one bit under rule n2
 * 0.36 / 0.64 = 0.57. 0: no limit, fewer directions than dimensions (a power of two), or independent ones, are no vector code. */
static double gauss_limit(const char *spec, int dim)
{
    if (ci_product(spec)) return 0; /* random centroids */
    if (!strncmp(spec, "tcq", 3)) return (double[]){0.44, 0.12, 0.035, 0.010}[spec[3] - '0' - 1];
    const int sketch = !strncmp(spec, "qjl", 3) || !strncmp(spec, "prod", 4);
    if (strstr(spec, "sketch=iid") || strstr(spec, "m=") || (sketch && (dim & (dim - 1)))) return 0;
    return 0.65;
}

static void check_rows(const char *spec, kvf_side side, int dim, ci_kind kind, const double *x, const double *y)
{
    const double besides = ci_product(spec) ? shortest_centroids(spec, side, dim) * (1 + 1e-6) : 0;
    double energy = 0, error = 0;
    for (int t = 0; t < CI_TOKENS; t++) {
        double xx = 0, dd = 0;
        for (int c = t * dim; c < t * dim + dim; c++) xx += x[c] * x[c], dd += (x[c] - y[c]) * (x[c] - y[c]);
        energy += xx, error += dd;
        /* lengths below half of the smallest f16 are lost; the next are as much as 2^-25 off, whatever the codes */
        const double limit = sum_row_limit(spec, dim);
        if (sqrt(dd) > limit * sqrt(xx) + besides + fmax(limit, 1) * 0x1p-25 * 1.3 * sqrt(dim))
            fail_msg("%s, head size %d, input '%s', token %d: off by %g of %g", spec, dim, ci_kind_name[kind], t, sqrt(dd),
                     sqrt(xx));
    }
    const double most = gauss_limit(spec, dim);
    if (kind == CI_GAUSS && dim >= 40 && most > 0 && error > most * energy)
        fail_msg("%s, head size %d: mean squared error %g, limit %g", spec, dim, error / energy, most);
}

/* Encodes and decodes; everything in double and, for rotating codecs, turned into the domain of the codes. 0: refused. */
static int round_trip(const char *spec, kvf_side side, int dim, const float *x, double *in, double *out)
{
    kvf_spec_info info;
    shape s = shape_of(spec, side, dim);
    if (!s.known || !ci_fits(spec, dim)) {
        assert_int_equal(kvf_spec_check(spec, side, dim, &info, NULL, 0), KVF_E_UNSUPPORTED);
        return 0;
    }
    assert_int_equal(kvf_spec_check(spec, side, dim, &info, NULL, 0), KVF_OK);
    float *back = ci_alloc((size_t)(CI_TOKENS * dim) * sizeof *back);
    void *record = ci_alloc(info.block_bytes);
    assert_int_equal(tb_encode(spec, side, dim, x, record), KVF_OK);
    assert_int_equal(tb_decode(spec, side, dim, record, back), KVF_OK);
    for (int i = 0; i < CI_TOKENS * dim; i++) assert_true(isfinite(back[i]));
    turn(&s.rotation, x, in);
    turn(&s.rotation, back, out);
    free(back), free(record);
    return 1;
}

static void one_spec(const char *spec, kvf_side side, void *user)
{
    (void)user;
    for (int d = 0; d < CI_DIMS; d++)
        for (int kind = 0; kind < CI_KIND_COUNT; kind++) {
            int dim = ci_dims[d];
            if (!ci_takes(spec, side, d, kind)) continue;
            size_t n = (size_t)(CI_TOKENS * dim);
            float *x = ci_alloc(n * sizeof *x);
            double *in = ci_alloc(2 * n * sizeof *in), *out = ci_alloc(2 * n * sizeof *out); /* with what rotations add */
            ci_fill(x, dim, (ci_kind)kind, 21);
            /* q4_0, uni and turbo after a rotation of huge rows: the scale itself saturates, which is the format's stated limit
             * */
            int beyond = kind == CI_LARGE && (!strcmp(spec, "q4_0:rot=h") || (!strncmp(spec, "uni", 3) && dim > 1));
            beyond |= kind == CI_LARGE &&
                      (!strncmp(spec, "turbo", 5) || !strncmp(spec, "rvq", 3)); /* also without: most levels are below 1 */
            const int whole = ci_sum(spec) || ci_product(spec) || !strncmp(spec, "tcq", 3); /* limits of whole vectors */
            beyond |= kind == CI_LARGE && whole && !ci_product(spec);
            if (!round_trip(spec, side, dim, x, in, out) || beyond)
                ;
            else if (whole)
                check_rows(spec, side, dim, (ci_kind)kind, in, out);
            else
                check_limits(spec, side, dim, (ci_kind)kind, in, out);
            free(x), free(in), free(out);
        }
}

static void every_codec_keeps_its_limit(void **state)
{
    (void)state;
    assert_true(ci_each_spec(one_spec, NULL) > 20);
}

/* ---- inputs that broke others ---- */

typedef struct sample {
    float x[CI_TOKENS * 128], y[CI_TOKENS * 128];
} sample;

static void encode_and_back(const char *spec, kvf_side side, int dim, sample *s)
{
    static _Alignas(64) unsigned char record[CI_TOKENS * 128 * 4];
    assert_int_equal(kvf_op_encode(spec, side, dim, s->x, record), KVF_OK);
    assert_int_equal(kvf_op_decode(spec, side, dim, record, s->y), KVF_OK);
}

static double relative_score_error(const sample *s, int dim, uint64_t seed)
{
    double q[128], error = 0, size = 0;
    for (int c = 0; c < dim; c++) q[c] = ci_gauss(&seed);
    for (int t = 0; t < CI_TOKENS; t++) {
        double want = 0, got = 0;
        for (int c = 0; c < dim; c++) {
            want += q[c] * s->x[t * dim + c];
            got += q[c] * s->y[t * dim + c];
        }
        error += (want - got) * (want - got);
        size += want * want;
    }
    return sqrt(error / size);
}

/* A channel a thousand times larger: with scales per channel the others do not notice; with a rotation the score error stays
 * that of the codec (half a step in 2^bits of a normal peak, spread over the row). */
static void one_channel_a_thousand_times_larger(void **state)
{
    (void)state;
    sample plain, big;
    ci_fill(plain.x, 128, CI_GAUSS, 4);
    big = plain;
    for (int t = 0; t < CI_TOKENS; t++) big.x[t * 128 + 42] = (float)ci_half(1000 * (double)plain.x[t * 128 + 42]);
    static const char *const kivi[] = {"kivi1", "kivi2", "kivi3", "kivi4", "kivi8"};
    for (size_t i = 0; i < sizeof kivi / sizeof *kivi; i++) {
        encode_and_back(kivi[i], KVF_K, 128, &plain);
        encode_and_back(kivi[i], KVF_K, 128, &big);
        for (int j = 0; j < CI_TOKENS * 128; j++)
            if (j % 128 != 42) assert_true(plain.y[j] == big.y[j]);
    }
    encode_and_back("kivi4", KVF_K, 128, &big);
    assert_true(relative_score_error(&big, 128, 8) < 0.1);
    encode_and_back("q8_0:rot=h", KVF_K, 128, &big);
    assert_true(relative_score_error(&big, 128, 8) < 0.01);
    encode_and_back("q4_0:rot=h", KVF_K, 128, &big);
    assert_true(relative_score_error(&big, 128, 8) < 0.15);
}

/* What the norm rules are for: n1 keeps the length of a row, n2 makes its score with itself right; each to within the f16 scale
 * (2^-11, squared for a length) and f32. n0 does neither at 2 bits. */
static void norm_rules_keep_what_they_promise(void **state)
{
    (void)state;
    static const char *const specs[] = {"uni2", "uni3", "uni4", "uni8"};
    sample s;
    ci_fill(s.x, 128, CI_GAUSS, 9);
    for (int i = 0; i < 4 * 3; i++) {
        char spec[64];
        double worst_length = 0, worst_score = 0;
        snprintf(spec, sizeof spec, "%s:norm=n%d", specs[i / 3], i % 3);
        encode_and_back(spec, KVF_V, 128, &s);
        for (int t = 0; t < CI_TOKENS; t++) {
            double xx = 0, xy = 0, yy = 0;
            for (int c = t * 128; c < t * 128 + 128; c++) {
                xx += (double)s.x[c] * s.x[c], xy += (double)s.x[c] * s.y[c], yy += (double)s.y[c] * s.y[c];
            }
            worst_length = fmax(worst_length, fabs(sqrt(yy / xx) - 1));
            worst_score = fmax(worst_score, fabs(xy / xx - 1));
        }
        if (i % 3 == 1) assert_true(worst_length < 0x1p-11 + 1e-5);
        if (i % 3 == 2) assert_true(worst_score < 0x1p-11 + 1e-5);
        if (i == 0) assert_true(worst_length > 0.01 && worst_score > 0.01);
    }
}

/* Rule n2 makes a vector longer the farther its codes point away, and a row that the transform turns into a spike has the worst: all
 * codes but one say next to nothing. At 60 degrees rule n3 takes over, so no error is above sqrt(3) lengths. */
static void values_never_come_back_far_away(void **state)
{
    (void)state;
    static const char *const specs[] = {"turbo1", "turbo2", "uni2", "uni3", "tcq1", "tcq2", "rvq2"};
    static const char *const turns[] = {"h", "h1", "none"};
    sample s;
    for (size_t i = 0; i < 3 * sizeof specs / sizeof *specs; i++)
        for (int input = 0; input < 3; input++) {
            char spec[64];
            snprintf(spec, sizeof spec, "%s:rot=%s", specs[i / 3], turns[i % 3]);
            for (int j = 0; j < CI_TOKENS * 64; j++)
                s.x[j] = input == 0 ? 7.25f : input == 1 ? (j % 64 == 9) * 3.0f : (j % 64 < 2) * 1.0f;
            encode_and_back(spec, KVF_V, 64, &s);
            for (int t = 0; t < CI_TOKENS; t++) {
                double xx = 0, dd = 0;
                for (int c = t * 64; c < t * 64 + 64; c++)
                    xx += (double)s.x[c] * s.x[c], dd += ((double)s.x[c] - s.y[c]) * ((double)s.x[c] - s.y[c]);
                if (!(dd <= 3.01 * xx)) fail_msg("%s, input %d, token %d: squared error %g of %g", spec, input, t, dd, xx);
            }
        }
}

/* Exact zeros and no 0/0: rows where scales belong to tokens, channels where they belong to channels. */
static void zero_rows_and_zero_channels(void **state)
{
    (void)state;
    sample s;
    static const char *const by_token[] = {"q8_0", "q4_0", "q8_0:rot=h", "q4_0:rot=h",  "f16",
                                           "uni2", "uni3", "uni4",       "uni8:norm=n0"};
    ci_fill(s.x, 128, CI_ZERO_ROW, 6);
    for (int side = KVF_K; side <= KVF_V; side++)
        for (size_t i = 0; i < sizeof by_token / sizeof *by_token; i++) {
            encode_and_back(by_token[i], (kvf_side)side, 128, &s);
            for (int c = 0; c < 128; c++) assert_true(s.y[5 * 128 + c] == 0 && s.y[63 * 128 + c] == 0);
        }
    encode_and_back("kivi2", KVF_V, 128, &s);
    for (int c = 0; c < 128; c++) assert_true(s.y[5 * 128 + c] == 0 && s.y[63 * 128 + c] == 0);
    static const char *const by_channel[] = {"kivi1", "kivi2", "kivi3", "kivi4", "kivi8", "f16"};
    ci_fill(s.x, 128, CI_ZERO_CHANNEL, 6);
    for (size_t i = 0; i < sizeof by_channel / sizeof *by_channel; i++) {
        encode_and_back(by_channel[i], KVF_K, 128, &s);
        for (int t = 0; t < CI_TOKENS; t++) assert_true(s.y[t * 128] == 0 && s.y[t * 128 + 127] == 0);
    }
}

/* +100, -100, zeros: exactly back with KIVI; a group that holds two neighbours has a finite scale and both come back. */
static void constant_groups_are_exact(void **state)
{
    (void)state;
    static const ci_kind kinds[] = {CI_PLUS_100, CI_MINUS_100, CI_ZERO, CI_CLOSE, CI_TINY};
    static const char *const specs[] = {"kivi1", "kivi2", "kivi3", "kivi4", "kivi8"};
    sample s;
    for (int side = KVF_K; side <= KVF_V; side++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
                if (kinds[k] == CI_TINY && specs[i][4] < '3') continue; /* seven values do not fit in two bits */
                ci_fill(s.x, 80, kinds[k], 2);
                encode_and_back(specs[i], (kvf_side)side, 80, &s);
                for (int j = 0; j < CI_TOKENS * 80; j++) {
                    double limit = kinds[k] == CI_CLOSE ? 0x1p-14 : 0; /* 1/16 in 2^bits - 1 f16 steps */
                    assert_true(fabs((double)s.x[j] - (double)s.y[j]) <= limit);
                }
            }
}

/* Rows arrive as f32 too: beyond f16 they saturate, as in the cache; NaN and infinity are refused before anything is written. */
static void inputs_beyond_f16(void **state)
{
    (void)state;
    sample s;
    static _Alignas(64) unsigned char record[CI_TOKENS * 64 * 2];
    ci_fill(s.x, 64, CI_GAUSS, 1);
    s.x[77] = 1e30f;
    s.x[78] = -70000.0f;
    s.x[79] = 1e-30f;
    s.x[80] = 1.0f + 0x1p-12f;
    encode_and_back("f16", KVF_K, 64, &s);
    assert_true(s.y[77] == 65504 && s.y[78] == -65504 && s.y[79] == 0 && s.y[80] == 1);
    static const char *const specs[] = {"q8_0", "q4_0:rot=h", "kivi8", "prod4", "rvq4", "turbo3:outliers=16"};
    static _Alignas(64) unsigned char from_f16[CI_TOKENS * 64 * 2];
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) { /* codes see the rounded row */
        sample rounded = s;
        for (int j = 0; j < CI_TOKENS * 64; j++) {
            s.x[j] += s.x[j] * 0x1p-13f;
            rounded.x[j] = (float)ci_half(s.x[j]);
        }
        memset(record, 0, sizeof record);
        memset(from_f16, 0, sizeof from_f16);
        assert_int_equal(kvf_op_encode(specs[i], KVF_V, 64, s.x, record), KVF_OK);
        assert_int_equal(kvf_op_encode(specs[i], KVF_V, 64, rounded.x, from_f16), KVF_OK);
        assert_memory_equal(record, from_f16, sizeof record);
    }
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        ci_fill(s.x, 64, CI_GAUSS, 1);
        s.x[CI_TOKENS * 64 - 1] = bad[i];
        memset(record, 0x5a, sizeof record);
        assert_int_equal(kvf_op_encode("f16", KVF_K, 64, s.x, record), KVF_E_NONFINITE);
        for (size_t b = 0; b < sizeof record; b++) assert_int_equal(record[b], 0x5a);
    }
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    sample s;
    static _Alignas(64) unsigned char record[CI_TOKENS * 64 * 2 + 64];
    ci_fill(s.x, 64, CI_GAUSS, 1);
    assert_int_equal(kvf_op_encode("kivi5", KVF_K, 64, s.x, record), KVF_E_SPEC);
    assert_int_equal(kvf_op_decode("kivi5", KVF_K, 64, record, s.y), KVF_E_SPEC);
    assert_int_equal(kvf_op_encode("f16", KVF_K, 64, s.x, record + 32), KVF_E_ARG); /* not aligned */
    assert_int_equal(kvf_op_decode("f16", KVF_K, 64, record + 2, s.y), KVF_E_ARG);
    assert_int_equal(kvf_op_encode("f16", KVF_K, 64, NULL, record), KVF_E_ARG);
    assert_int_equal(kvf_op_encode("f16", KVF_K, 64, s.x, NULL), KVF_E_ARG);
    assert_int_equal(kvf_op_encode(NULL, KVF_K, 64, s.x, record), KVF_E_ARG);
    assert_int_equal(kvf_op_encode("f16", KVF_K, 0, s.x, record), KVF_E_ARG);
    assert_int_equal(kvf_op_encode("f16", (kvf_side)7, 64, s.x, record), KVF_E_ARG);
    assert_int_equal(kvf_op_decode("q8_0:rot=h", KVF_K, 63, record, s.y), KVF_E_UNSUPPORTED);
}

/* ---- every stage does something: switched off, the result changes ---- */

static uint64_t hash_of(const char *spec, kvf_side side, ci_kind kind)
{
    sample s;
    ci_fill(s.x, 128, kind, 12);
    encode_and_back(spec, side, 128, &s);
    return ci_hash(s.y, sizeof s.y, CI_HASH_START);
}

static double error_of(const char *spec, kvf_side side, ci_kind kind)
{
    sample s;
    double sum = 0;
    ci_fill(s.x, 128, kind, 12);
    encode_and_back(spec, side, 128, &s);
    for (int i = 0; i < CI_TOKENS * 128; i++) sum += ((double)s.x[i] - s.y[i]) * ((double)s.x[i] - s.y[i]);
    return sum;
}

static void each_stage_changes_the_result(void **state)
{
    (void)state;
    for (int side = KVF_K; side <= KVF_V; side++) {
        assert_true(hash_of("q8_0", (kvf_side)side, CI_GAUSS) != hash_of("q8_0:rot=h", (kvf_side)side, CI_GAUSS));
        assert_true(hash_of("q4_0", (kvf_side)side, CI_GAUSS) != hash_of("q4_0:rot=h", (kvf_side)side, CI_GAUSS));
        assert_true(hash_of("kivi4", (kvf_side)side, CI_GAUSS) != hash_of("kivi4:group=64", (kvf_side)side, CI_GAUSS));
        /* smaller groups and more bits: less error */
        assert_true(error_of("kivi4:group=16", (kvf_side)side, CI_GAUSS) < error_of("kivi4", (kvf_side)side, CI_GAUSS));
        assert_true(error_of("kivi4", (kvf_side)side, CI_GAUSS) < error_of("kivi4:group=64", (kvf_side)side, CI_GAUSS));
        static const char *const finer[] = {"kivi1", "kivi2", "kivi3", "kivi4", "kivi8"};
        for (int i = 0; i < 4; i++)
            assert_true(error_of(finer[i + 1], (kvf_side)side, CI_GAUSS) < error_of(finer[i], (kvf_side)side, CI_GAUSS) / 3);
        /* a rotation spreads the one large channel over all others: the group that holds it gains, the rest of the head loses */
        assert_true(error_of("q4_0:rot=h", (kvf_side)side, CI_OUTLIER) > error_of("q4_0", (kvf_side)side, CI_OUTLIER));
    }
    /* the minimum carries a bias: KIVI does not notice one, the symmetric code of the same width suffers */
    assert_true(error_of("kivi4", KVF_K, CI_BIASED) < 1.01 * error_of("kivi4", KVF_K, CI_GAUSS));
    assert_true(error_of("q4_0", KVF_K, CI_BIASED) > 10 * error_of("q4_0", KVF_K, CI_GAUSS));
    /* the group of values runs along channels: a large channel spoils its own token only */
    assert_true(hash_of("kivi4", KVF_K, CI_GAUSS) != hash_of("kivi4", KVF_V, CI_GAUSS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_codec_keeps_its_limit),
        cmocka_unit_test(one_channel_a_thousand_times_larger),
        cmocka_unit_test(norm_rules_keep_what_they_promise),
        cmocka_unit_test(values_never_come_back_far_away),
        cmocka_unit_test(zero_rows_and_zero_channels),
        cmocka_unit_test(constant_groups_are_exact),
        cmocka_unit_test(inputs_beyond_f16),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(each_stage_changes_the_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
