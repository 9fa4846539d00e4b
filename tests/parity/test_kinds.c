/* SPDX-License-Identifier: MIT
 * Packed records: score, mix and unfold of every inner kind, on records of every codec and on invented ones that no codec makes:
 * all widths, both sides, groups of any size. */
#include "codec/shared/entries.h"
#include "gpu/kernels/trellis.h"
#include "gpu/kernels/value.h"
#include "gpu/kernels/vector.h"
#include "../unit/books.h"
#include "parity.h"

/* Of value (t, c): what its terms may add up to before they cancel, and the part of it before the scale, with that scale. */
typedef struct size_of_value {
    float all, level, scale;
} size_of_value;

static void magnitudes(const kvf_part *part, const void *record, size_of_value *out)
{
    const kvfi_shape s = kvfi_shape_of(part);
    if (part->kind == KVF_KIND_SUM) return; /* the same function on every set: nothing may differ */
    for (int t = 0; t < KVF_BLOCK; t++)
        for (int c = 0; c < part->dim; c++) {
            size_of_value *m = out + t * part->dim + c;
            *m = (size_of_value){0};
            if (part->kind == KVF_KIND_HALF || part->kind == KVF_KIND_VECTOR) {
                m->all =
                    fabsf(part->kind == KVF_KIND_HALF ? kvfi_value_half(&s, record, t, c) : kvfi_value_vector(&s, record, t, c));
                m->level = m->all, m->scale = 1;
                continue;
            }
            const int i = part->kind == KVF_KIND_CHANNEL ? kvfi_scale_index_channel(&s, t, c) : kvfi_scale_index_token(&s, t, c);
            const int code = part->kind == KVF_KIND_TRELLIS ? kvfi_state_of(&s, record, t, c) : kvfi_code_of(&s, record, t, c);
            const float middle = 0.5f * (float)((1 << s.bits) - 1); /* from where minima may be taken */
            m->level = s.table     ? fabsf((float)s.table[code] * s.unit)
                       : s.has_min ? fmaxf((float)code, middle)
                                   : (float)code + fabsf(s.zero);
            m->scale = fabsf(kvfi_section(record, s.scale_offset, i));
            m->all = m->level * m->scale;
            if (s.table)
                m->all += (s.bits <= 5 ? 128.0f : 32768.0f) * s.unit * m->scale; /* added where entries are unsigned bytes */
            if (s.has_min) m->all += fabsf(kvfi_section(record, s.min_offset, i));
        }
}

/* Where the scale runs along the reduction, it is folded into the multipliers before they are rounded. */
static int scale_is_folded(const kvf_part *part)
{
    return (part->kind == KVF_KIND_CHANNEL) == (part->side == KVF_K);
}

/* One output of a product: m over n values that lie `step` apart. */
static double rounding(const kvfi_kind_ops *ops, const kvf_part *part, const float *m, const size_of_value *x, int n, int step)
{
    const int folded = scale_is_folded(part);
    double largest = 0, levels = 0;
    for (int r = 0; r < n; r++) {
        const size_of_value *y = x + r * step;
        largest = fmax(largest, fabs((double)m[r]) * (folded ? (double)y->scale : 1));
        levels += (double)y->level * (folded ? 1 : (double)y->scale);
    }
    return px_fixed_point(ops, part->side == KVF_K ? part->dim_pad : KVF_BLOCK, largest, levels);
}

/* Queries with a gap of junk between vectors; padded channels are zero. */
static px_input queries(const kvf_part *part, int n, size_t stride, size_t shift, int flavour, uint64_t *state)
{
    px_input q = px_input_make((stride * (size_t)(n - 1) + (size_t)part->dim_pad) * sizeof(float), shift);
    float *x = q.data;
    for (int v = 0; v < n; v++)
        for (int c = 0; c < (v + 1 < n ? (int)stride : part->dim_pad); c++)
            x[(size_t)v * stride + (size_t)c] = c < part->dim ? px_number(flavour, c, state) : c < part->dim_pad ? 0 : px_junk();
    return q;
}

static void score_with(const kvfi_kernels *k, const kvf_part *part, const void *record, const float *q, size_t stride, int n,
                       float *s)
{
    const kvfi_kind_ops *ops = &k->kind[part->kind];
    const size_t bytes = ops->prepared_bytes(part, n);
    assert_int_equal(bytes % 64, 0);
    px_output prepared = px_output_make(bytes, 0);
    ops->prepare(part, q, stride, n, prepared.data);
    ops->score(part, record, prepared.data, n, s);
    px_output_free(&prepared, "the prepared queries");
}

static void check_score(const kvfi_kernels *scalar, const kvfi_kernels *fast, const kvf_part *part, const void *record,
                        const size_of_value *magnitude, int n, int flavour, uint64_t seed)
{
    const size_t stride = (size_t)part->dim_pad + (seed % 3 ? 0 : 5), bytes = (size_t)n * KVF_BLOCK * sizeof(float);
    px_input in = queries(part, n, stride, seed % 2 * 4, flavour, &seed);
    px_output want = px_output_make(bytes, 0), got = px_output_make(bytes, seed % 4 * 4);
    const float *q = in.data;
    score_with(scalar, part, record, q, stride, n, want.data);
    score_with(fast, part, record, q, stride, n, got.data);
    for (int v = 0; v < n; v++)
        for (int t = 0; t < KVF_BLOCK; t++) {
            double sum = 0;
            for (int c = 0; c < part->dim; c++)
                sum += fabs((double)q[(size_t)v * stride + (size_t)c]) * (double)magnitude[t * part->dim + c].all;
            const double more =
                rounding(&fast->kind[part->kind], part, q + (size_t)v * stride, magnitude + t * part->dim, part->dim, 1);
            px_close_by(PX_KIND_SCORE, got.data[v * KVF_BLOCK + t], want.data[v * KVF_BLOCK + t], sum, more, "score", v, t);
        }
    px_output_free(&want, "scalar scores");
    px_output_free(&got, "the scores");
    px_input_free(&in);
}

static void check_mix(const kvfi_kernels *scalar, const kvfi_kernels *fast, const kvf_part *part, const void *record,
                      const size_of_value *magnitude, int n, int flavour, uint64_t seed)
{
    const size_t stride = (size_t)part->dim_pad + (seed % 3 ? 0 : 7), bytes = stride * (size_t)n * sizeof(float);
    px_input in = px_input_make((size_t)n * KVF_BLOCK * sizeof(float), seed % 2 * 4);
    px_output want = px_output_make(bytes, 0), got = px_output_make(bytes, seed % 4 * 4);
    float *w = in.data, *start = ci_alloc(bytes);
    for (int i = 0; i < n * KVF_BLOCK; i++) w[i] = px_weight(flavour, i % KVF_BLOCK, &seed);
    for (int v = 0; v < n; v++)
        for (int c = 0; c < part->dim_pad; c++) {
            const size_t i = (size_t)v * stride + (size_t)c;
            want.data[i] = got.data[i] = start[i] = c < part->dim ? (float)ci_gauss(&seed) : 0;
        }
    scalar->kind[part->kind].mix(part, record, w, n, want.data, stride);
    fast->kind[part->kind].mix(part, record, w, n, got.data, stride);
    for (int v = 0; v < n; v++) {
        for (int c = 0; c < part->dim; c++) {
            const size_t i = (size_t)v * stride + (size_t)c;
            double sum = fabs((double)start[i]);
            for (int t = 0; t < KVF_BLOCK; t++) sum += (double)w[v * KVF_BLOCK + t] * (double)magnitude[t * part->dim + c].all;
            const double more = rounding(&fast->kind[part->kind], part, w + v * KVF_BLOCK, magnitude + c, KVF_BLOCK, part->dim);
            px_close_by(PX_KIND_MIX, got.data[i], want.data[i], sum, more, "acc", v, c);
        }
        for (size_t c = (size_t)part->dim_pad; c < stride; c++) px_untouched(&got, (size_t)v * stride + c, "the accumulators");
    }
    px_output_free(&want, "scalar accumulators");
    px_output_free(&got, "the accumulators");
    px_input_free(&in);
    free(start);
}

static void check_unfold(const kvfi_kernels *scalar, const kvfi_kernels *fast, const kvf_part *part, const void *record,
                         uint64_t seed)
{
    const size_t n = (size_t)part->dim_pad * KVF_BLOCK, row = part->side == KVF_K ? KVF_BLOCK : (size_t)part->dim_pad;
    px_output want = px_output_make(n * sizeof(float), 0), got = px_output_make(n * sizeof(float), seed % 4 * 4);
    scalar->kind[part->kind].unfold(part, record, want.data);
    fast->kind[part->kind].unfold(part, record, got.data);
    for (size_t i = 0; i < n; i++) px_same(PX_UNFOLD, got.data[i], want.data[i], "tile", (int)(i / row), (int)(i % row));
    px_output_free(&want, "the scalar tile");
    px_output_free(&got, "the tile");
}

/* What stands for channels that do not exist must not matter, were it infinite or no number. */
static void spoil_padding(const kvf_part *part, uint8_t *record, uint64_t *state)
{
    const kvfi_shape s = kvfi_shape_of(part);
    const size_t half = part->kind == KVF_KIND_HALF, sections = part->has_min ? 2 : 1;
    for (int c = part->dim; c < part->dim_pad; c++)
        for (int t = 0; t < KVF_BLOCK; t++) {
            if (part->kind == KVF_KIND_SUM || part->kind == KVF_KIND_VECTOR) continue; /* tests/oracle spoils it; none is kept */
            if (half)
                kvfi_halves(record, 0)[kvfi_half_index(&s, t, c)] = 0x7e00;
            else
                kvfi_code_put(record, s.bits, kvfi_reduction(&s), kvfi_lanes(&s), s.keys ? c : t, s.keys ? t : c,
                              (int)(ci_next(state) >> 40) & ((1 << s.bits) - 1));
        }
    if (part->kind != KVF_KIND_CHANNEL) return;
    for (size_t i = 0; i < sections; i++)
        for (int g = 0; g < s.n_tg; g++)
            for (int c = part->dim; c < part->dim_pad; c++)
                kvfi_halves(record, i ? part->min_offset : part->scale_offset)[g * part->dim_pad + c] = c % 2 ? 0x7e00 : 0xfc00;
}

/* One record, a few numbers of vectors. */
static void check_record(const kvfi_kernels *scalar, const kvfi_kernels *fast, const kvf_part *part, uint8_t *record, int round,
                         uint64_t seed)
{
    size_of_value *magnitude = ci_alloc((size_t)part->dim * KVF_BLOCK * sizeof *magnitude);
    spoil_padding(part, record, &seed);
    magnitudes(part, record, magnitude);
    for (int i = 0; i < 2; i++) {
        const int n = px_vectors[(round * 3 + i * 5) % PX_VECTORS], flavour = (round + i) % PX_FLAVOURS;
        if (part->side == KVF_K)
            check_score(scalar, fast, part, record, magnitude, n, flavour, seed + (uint64_t)i);
        else
            check_mix(scalar, fast, part, record, magnitude, n, flavour, seed + (uint64_t)i);
    }
    check_unfold(scalar, fast, part, record, seed);
    free(magnitude);
}

/* Coding with the exact entries of the set writes what scalar code writes. */
static void check_same_bytes(const kvfi_kernels *fast, const kvf_part *part, const uint8_t *record, int dim, ci_kind kind,
                             uint64_t seed)
{
    kvf_part with = *part;
    float *x = ci_alloc((size_t)part->dim_pad * KVF_BLOCK * sizeof(float));
    uint8_t *other = ci_alloc(part->bytes);
    with.kernels = fast;
    ci_fill(x, dim, kind, seed);
    memset(other, 0xa5, part->bytes);
    part->codec->encode(&with, x, other);
    for (size_t i = 0; i < part->bytes; i++)
        if (record[i] != other[i]) fail_msg("%s, %s: byte %zu of the record differs", fast->name, part->canonical, i);
    free(other);
    free(x);
}

/* ---- records of codecs ----------------------------------------------------------------------------------------------------- */

static void check_codec(const kvfi_kernels *scalar, const kvfi_kernels *fast, const char *spec, kvf_side side, int *round)
{
    /* searching for paths and among thousands of centroids, and sums of matrices, which every set does alike, would be most of the time */
    const int slow = !strncmp(spec, "tcq", 3) || ci_sum(spec) || strstr(spec, "haar") || !strncmp(spec, "vecinfer1", 9),
              share = CI_SHARE * (slow ? 5 : 1);
    for (int d = 0; d < CI_DIMS; d++)
        for (int kind = 0; kind < CI_KIND_COUNT; kind++) {
            kvf_part part;
            char error[256];
            const int dim = ci_dims[d];
            const uint64_t seed = (uint64_t)++ * round;
            if ((d + kind + *round) % share) continue; /* another share for each codec */
            px_at("%s: %s, %s, %d channels, %s, round %d", fast->name, spec, side ? "values" : "keys", dim, ci_kind_name[kind],
                  *round);
            if (kvfi_part_setup_calibrated(spec, side, dim, tb_layer(), &part, error, sizeof error))
                continue; /* e.g. a rotation of odd sizes */
            float *x = ci_alloc((size_t)part.dim_pad * KVF_BLOCK * sizeof(float));
            uint8_t *record = ci_alloc(part.bytes);
            ci_fill(x, dim, (ci_kind)kind, seed);
            part.codec->encode(&part, x, record);
            check_same_bytes(fast, &part, record, dim, (ci_kind)kind, seed);
            check_record(scalar, fast, &part, record, *round, seed);
            free(record);
            free(x);
        }
}

static void codecs(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    int round = 0;
    for (int i = 0; kvfi_codec_at(i); i++)
        for (int side = KVF_K; side <= KVF_V; side++) {
            const char *list = kvfi_codec_at(i)->examples;
            char spec[64];
            while (kvfi_codec_at(i)->sides >> side & 1 && ci_word(&list, spec))
                check_codec(scalar, fast, spec, (kvf_side)side, &round);
        }
    assert_true(round > 100);
}

static void test_codecs(void **state)
{
    (void)state;
    px_each_set(codecs);
}

/* ---- invented records ------------------------------------------------------------------------------------------------------ */

/* Entries in no order, some of them 0, the ends among them. */
static void invent_table(kvf_part *part, uint64_t *state)
{
    const int top = part->bits <= 5 ? 127 : 16383;
    part->unit = (float)(0.02 + ci_uniform(state) / 64);
    part->zero = 3; /* means nothing to a table */
    for (int i = 0; i < 1 << part->bits; i++) part->table[i] = (int16_t)(ci_uniform(state) * (top + 0.9));
    part->table[0] = (int16_t)top;
    part->table[(1 << part->bits) - 1] = (int16_t)-top;
    for (int i = 0; i < 128 && part->kind == KVF_KIND_TRELLIS; i++) {
        part->table[i] = (int16_t)(i ? ci_uniform(state) * 127.9 : top);
        part->table[255 - i] = (int16_t)-part->table[i];
    }
}

static kvf_part invent(kvf_kind kind, kvf_side side, int bits, int group, int has_min, int dim)
{
    kvf_part part = {.kind = kind, .side = side, .bits = bits, .has_min = has_min, .t_group = 1, .c_group = 1};
    if (kind == KVF_KIND_CHANNEL)
        part.t_group = group;
    else
        part.c_group = group;
    if (!has_min) part.zero = bits < 4 ? (float)((1 << bits) - 1) / 2 : (float)(1 << (bits - 1));
    kvfi_part_layout(&part, dim);
    return part;
}

static void random_record(const kvf_part *part, uint8_t *record, uint64_t *state)
{
    for (size_t i = 0; i < part->bytes; i++) record[i] = (uint8_t)(ci_next(state) >> 32);
    for (size_t i = part->scale_offset; i < part->bytes; i += 2) {
        const uint16_t h = kvfi_half_saturated((float)(ci_gauss(state) * (i % 34 ? 1 : 100)));
        memcpy(record + i, &h, sizeof h);
    }
}

static void check_invented(const kvfi_kernels *scalar, const kvfi_kernels *fast, kvf_kind kind, int bits)
{
    static const int groups[2][6] = {{32, 16, 128, 5, 24, 8}, {32, 64, 16, 8, 2, 1}};
    const int trellis = kind == KVF_KIND_TRELLIS, table = trellis || kind == KVF_KIND_TABLE;
    int round = bits * 1000;
    for (int side = KVF_K; side <= KVF_V; side++)
        for (int d = 0; d < CI_DIMS; d++)
            for (int g = 0; g < 6; g++) {
                uint64_t seed = (uint64_t)++round;
                const int group = groups[kind == KVF_KIND_CHANNEL][g], has_min = (round + d) % 2 && !table;
                if (g > 1 && (g + d + bits) % 4) continue;               /* the usual groups always, the others by turns */
                if (CI_SHARE > 3 && (g + d + bits + side) % 4) continue; /* where that is slow, those by turns, too */
                if (trellis && (g || ci_dims[d] < 8)) continue;          /* which knows no groups */
                kvf_part part = invent(kind, (kvf_side)side, bits, trellis ? ci_dims[d] : group, has_min, ci_dims[d]);
                if (table) invent_table(&part, &seed);
                part.next_offset = (int64_t)part.bytes; /* fetching ahead may not matter, least of all past what exists */
                part.next_bytes = round % 3 ? part.bytes : 0;
                px_at("%s: kind %d, %d bits, %s, groups of %d, %s, %d channels, round %d", fast->name, (int)kind, bits,
                      side ? "values" : "keys", group, has_min ? "minima" : "no minima", ci_dims[d], round);
                uint8_t *record = ci_alloc(part.bytes);
                random_record(&part, record, &seed);
                check_record(scalar, fast, &part, record, round, seed);
                free(record);
            }
}

/* Random indices into random centroids. */
static void check_product(const kvfi_kernels *scalar, const kvfi_kernels *fast, int sub, int bits)
{
    int round = sub * 100 + bits;
    float *book = ci_alloc(((size_t)sub << bits) * sizeof *book);
    for (int side = KVF_K; side <= KVF_V; side++)
        for (int d = 0; d < CI_DIMS; d++) {
            uint64_t seed = (uint64_t)++round;
            if (ci_dims[d] % sub || (CI_SHARE > 3 && (d + bits + side) % 4)) continue;
            kvf_part part = {
                .kind = KVF_KIND_VECTOR, .side = (kvf_side)side, .bits = bits, .sub = sub, .t_group = 1, .book = book};
            kvfi_part_layout(&part, ci_dims[d]);
            for (int i = 0; i < sub << bits; i++) book[i] = (float)ci_gauss(&seed);
            if (round % 2) kvfi_round_to_entries(book, (size_t)sub << bits);
            uint8_t *entries = ci_alloc(kvfi_entries_bytes(&part, 1) + 64);
            if (kvfi_entries_bytes(&part, 1)) kvfi_entries_fill(&part, 1, entries);
            assert_true(!part.entries == (bits != 8 || sub == 2 || round % 2 == 0));
            px_at("%s: product codes, %d channels x %d bits, %s, %d channels", fast->name, sub, bits, side ? "values" : "keys",
                  ci_dims[d]);
            uint8_t *record = ci_alloc(part.bytes);
            for (size_t i = 0; i < part.bytes; i++) record[i] = (uint8_t)(ci_next(&seed) >> 32);
            check_record(scalar, fast, &part, record, round, seed);
            free(record);
            free(entries);
        }
    free(book);
}

static void widths(const kvfi_kernels *scalar, const kvfi_kernels *fast)
{
    for (int bits = 1; bits <= 8; bits++) {
        check_invented(scalar, fast, KVF_KIND_TOKEN, bits);
        check_invented(scalar, fast, KVF_KIND_TABLE, bits);
        check_invented(scalar, fast, KVF_KIND_CHANNEL, bits);
        if (bits <= 4) check_invented(scalar, fast, KVF_KIND_TRELLIS, bits);
    }
    for (int bits = 1; bits <= 12; bits++)
        for (int sub = 2; sub <= 8; sub *= 2) check_product(scalar, fast, sub, bits);
}

static void test_widths(void **state)
{
    (void)state;
    px_each_set(widths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_codecs), cmocka_unit_test(test_widths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
