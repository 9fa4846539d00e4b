/* SPDX-License-Identifier: MIT
 * Packed codes with AVX2. A 32-bit lane holds the codes of four adjacent elements of the reduction for one output, so eight
 * outputs stand side by side and no sum goes across lanes: take a byte of each lane, convert, multiply by a broadcast. A code is
 * unpacked once for all vectors of a block. */
#include "cpu/avx2/simd.h"
#include "cpu/overlay/panel.h"

static const float byte_weight[4] = {1, 0x1p-8f, 0x1p-16f, 1};

/* One byte a code: reduction 4q..4q+3 of lanes 8h..8h+7 of group g. shift[i] is plane_shift of plane i in all lanes. */
KVFI_INLINE __m256i code_bytes(const panel *p, int bits, int g, int q, int h, const __m256i shift[3])
{
    __m256i sum = _mm256_setzero_si256();
    KVFI_UNROLL
    for (int i = 0, done = 0; i < 3; i++) {
        const int width = kvfi_plane_width[bits][i];
        if (!width) break;
        __m256i x = _mm256_load_si256((const __m256i *)(const void *)(plane_line(p, i, width, g, q) + 32 * h));
        if (width < 8) x = _mm256_and_si256(_mm256_srlv_epi32(x, shift[i]), _mm256_set1_epi8((char)((1 << width) - 1)));
        sum = i ? _mm256_or_si256(sum, _mm256_slli_epi32(x, done)) : x;
        done += width;
    }
    return sum;
}

/* Byte j of each lane, 256^j too large but for the last, which would become negative where it stands. */
KVFI_INLINE __m256 weighty_floats(__m256i bytes, int j)
{
    return _mm256_cvtepi32_ps(j == 3 ? _mm256_srli_epi32(bytes, 24) : _mm256_and_si256(bytes, _mm256_set1_epi32(255 << 8 * j)));
}

/* The codes themselves. */
KVFI_INLINE __m256 code_floats(__m256i bytes, int j)
{
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(bytes, 8 * j), _mm256_set1_epi32(255)));
}

/* The table in registers. Bytes are looked up before a lane is taken apart, floats after. */
typedef struct table {
    __m256 eight;
    __m256i low, high; /* entries 0 .. 15 and 16 .. 31, twice */
    __m256 unit;
    const float *wide;
} table;

KVFI_INLINE table open_table(int look, const entries *e)
{
    table x = {.wide = e->wide};
    if (look) x.unit = _mm256_set1_ps(e->unit);
    if (look == 3) x.eight = _mm256_load_ps(e->wide);
    if (look == 4 || look == 5) x.low = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)(const void *)e->byte));
    if (look == 5) x.high = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)(const void *)(e->byte + 16)));
    return x;
}

/* Codes to entries of one byte, or as they were. A byte shuffle gives 0 for an index with the sign set, which is how each half
 * of 32 entries leaves out what belongs to the other. */
KVFI_INLINE __m256i byte_entries(int look, const table *x, __m256i codes)
{
    if (look == 4) return _mm256_shuffle_epi8(x->low, codes);
    if (look != 5) return codes;
    const __m256i low = _mm256_shuffle_epi8(x->low, _mm256_add_epi8(codes, _mm256_set1_epi8(0x70)));
    return _mm256_or_si256(low, _mm256_shuffle_epi8(x->high, _mm256_sub_epi8(codes, _mm256_set1_epi8(0x10))));
}

/* Entry j of each lane, from what byte_entries gave. A permutation looks at three bits only. */
KVFI_INLINE __m256 entry_floats(int look, const table *x, __m256i bytes, int j)
{
    if (look == 3) return _mm256_permutevar8x32_ps(x->eight, _mm256_srli_epi32(bytes, 8 * j));
    if (look != 8) return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(bytes, 24 - 8 * j), 24));
    return _mm256_i32gather_ps(x->wide, _mm256_and_si256(_mm256_srli_epi32(bytes, 8 * j), _mm256_set1_epi32(255)), 4);
}

KVFI_INLINE void start_shifts(int bits, int g, int q, __m256i shift[3])
{
    KVFI_UNROLL
    for (int i = 0; i < 3; i++) shift[i] = _mm256_set1_epi32(plane_shift(kvfi_plane_width[bits][i], g, q));
}

KVFI_INLINE void next_shifts(int bits, __m256i shift[3])
{
    KVFI_UNROLL
    for (int i = 0; i < 3; i++)
        if (kvfi_plane_width[bits][i] == 1) shift[i] = _mm256_xor_si256(shift[i], _mm256_set1_epi32(4));
}

/* With one or two vectors there are too few sums to cover the latency of an addition, so each vector gets `sets` of them. */
KVFI_INLINE void dots_of(const panel *p, int bits, int look, const entries *e, int g, int q0, int nq, int nv, const float *m,
                         size_t stride, float t[][16], ahead *next)
{
    const table entry = open_table(look, e);
    const int sets = nv == 1 ? 4 : nv == 2 ? 2 : 1;
    __m256 acc[4][4][2];
    __m256i shift[3];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int s = 0; s < sets; s++) acc[v][s][0] = acc[v][s][1] = _mm256_setzero_ps();
    }
    uintptr_t at = next->at;
    const size_t step = next->step;
    start_shifts(bits, g, q0, shift);
    for (int q = q0; q < q0 + nq; q++, m += 4) {
        const __m256i low = byte_entries(look, &entry, code_bytes(p, bits, g, q, 0, shift));
        const __m256i high = byte_entries(look, &entry, code_bytes(p, bits, g, q, 1, shift));
        fetch(at);
        if (bits == 8) fetch(at + 64); /* a record of bytes has more lines than quads */
        at += step;
        next_shifts(bits, shift);
        KVFI_UNROLL
        for (int j = 0; j < 4; j++) {
            const __m256 x = look ? entry_floats(look, &entry, low, j) : weighty_floats(low, j);
            const __m256 y = look ? entry_floats(look, &entry, high, j) : weighty_floats(high, j);
            KVFI_UNROLL
            for (int v = 0; v < nv; v++) {
                const __m256 k = _mm256_broadcast_ss(m + (size_t)v * stride + j);
                acc[v][j % sets][0] = _mm256_fmadd_ps(x, k, acc[v][j % sets][0]);
                acc[v][j % sets][1] = _mm256_fmadd_ps(y, k, acc[v][j % sets][1]);
            }
        }
    }
    next->at = at;
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256 sum = acc[v][0][h];
            if (sets == 2) sum = _mm256_add_ps(sum, acc[v][1][h]);
            if (sets == 4) sum = _mm256_add_ps(_mm256_add_ps(sum, acc[v][1][h]), _mm256_add_ps(acc[v][2][h], acc[v][3][h]));
            _mm256_storeu_ps(t[v] + 8 * h, sum);
        }
    }
}

KVFI_INLINE void fold_step(__m256 k, __m256 z, const float *m, size_t stride, int nv, float *folded, size_t folded_stride,
                           __m256 sum[4])
{
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        const __m256 x = _mm256_loadu_ps(m + (size_t)v * stride);
        _mm256_storeu_ps(folded + (size_t)v * folded_stride, _mm256_mul_ps(x, k));
        sum[v] = _mm256_fmadd_ps(x, z, sum[v]);
    }
}

KVFI_INLINE void fold_of(const uint16_t *scale, const uint16_t *min, float zero, const float *weights, int live, int n,
                         const float *m, size_t stride, int nv, float *folded, size_t folded_stride, float *bias)
{
    const __m256 minus_zero = _mm256_set1_ps(-zero), weight = _mm256_broadcast_ps((const __m128 *)(const void *)weights);
    __m256 sum[4];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) sum[v] = _mm256_setzero_ps();
    int r = 0;
    for (; r + 8 <= live; r += 8) {
        const __m256 k = half8(scale + r), z = min ? half8(min + r) : _mm256_mul_ps(k, minus_zero);
        fold_step(_mm256_mul_ps(k, weight), z, m + r, stride, nv, folded + r, folded_stride, sum);
    }
    for (; r < n; r += 8) {
        const __m256 lanes = _mm256_castsi256_ps(first_lanes(live - r)), k = _mm256_and_ps(half8(scale + r), lanes);
        const __m256 z = min ? _mm256_and_ps(half8(min + r), lanes) : _mm256_mul_ps(k, minus_zero);
        fold_step(_mm256_mul_ps(k, weight), z, m + r, stride, nv, folded + r, folded_stride, sum);
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) bias[v] = sum8(sum[v]);
}

static void fold(const uint16_t *scale, const uint16_t *min, float zero, const float *weight, int live, int n, const float *m,
                 size_t stride, int nv, float *folded, size_t folded_stride, float *bias)
{
    switch (nv) {
#define FOLD(nv)                                                                                                                 \
    case nv: fold_of(scale, min, zero, weight, live, n, m, stride, nv, folded, folded_stride, bias); break;
        FOLD(1)
        FOLD(2)
        FOLD(3)
        FOLD(4)
    }
}

static void add_scaled(float t[][16], int nv, const uint16_t *scale, const uint16_t *min, float zero, const float *sums,
                       size_t sums_stride, float *out, size_t stride)
{
    for (int h = 0; h < 16; h += 8) {
        const __m256 k = half8(scale + h), z = min ? half8(min + h) : _mm256_mul_ps(k, _mm256_set1_ps(-zero));
        for (int v = 0; v < nv; v++) {
            float *o = out + (size_t)v * stride + h;
            const __m256 sum = _mm256_broadcast_ss(sums + (size_t)v * sums_stride);
            const __m256 base = _mm256_fmadd_ps(z, sum, _mm256_loadu_ps(o));
            _mm256_storeu_ps(o, _mm256_fmadd_ps(k, _mm256_loadu_ps(t[v] + h), base));
        }
    }
}

static void add_biased(float t[][16], int nv, const float *bias, float *out, size_t stride)
{
    for (int v = 0; v < nv; v++)
        for (int h = 0; h < 16; h += 8) {
            float *o = out + (size_t)v * stride + h;
            const __m256 x = _mm256_add_ps(_mm256_loadu_ps(t[v] + h), _mm256_broadcast_ss(bias + v));
            _mm256_storeu_ps(o, _mm256_add_ps(_mm256_loadu_ps(o), x));
        }
}

/* value = code * scale + min, or (code - zero) * scale: rounded step by step, so that tiles equal scalar ones bit for bit. */
KVFI_INLINE __m256 decoded(__m256 code, __m256 scale, __m256 min, __m256 zero, int has_min)
{
    if (has_min) return _mm256_add_ps(_mm256_mul_ps(code, scale), min);
    return _mm256_mul_ps(_mm256_sub_ps(code, zero), scale);
}

KVFI_INLINE __m256 level_times(int look, const table *entry, __m256i bytes, int j, __m256 scale, __m256 min, __m256 zero,
                               int has_min)
{
    if (look) return _mm256_mul_ps(_mm256_mul_ps(entry_floats(look, entry, bytes, j), entry->unit), scale);
    return decoded(code_floats(bytes, j), scale, min, zero, has_min);
}

KVFI_INLINE void tile_scaled_of(const panel *p, int bits, int look, const entries *e, int g, int q0, int nq,
                                const uint16_t *scale, const uint16_t *min, float zero, float *tile, size_t stride)
{
    const table entry = open_table(look, e);
    const __m256 z = _mm256_set1_ps(zero);
    for (int h = 0; h < 2; h++) {
        const __m256 k = half8(scale + 8 * h), low = min ? half8(min + 8 * h) : z;
        __m256i shift[3];
        start_shifts(bits, g, q0, shift);
        for (int q = q0; q < q0 + nq; q++) {
            const __m256i x = byte_entries(look, &entry, code_bytes(p, bits, g, q, h, shift));
            next_shifts(bits, shift);
            KVFI_UNROLL
            for (int j = 0; j < 4; j++)
                _mm256_storeu_ps(tile + (size_t)(4 * q + j) * stride + 8 * h,
                                 level_times(look, &entry, x, j, k, low, z, min != NULL));
        }
    }
}

KVFI_INLINE void tile_folded_of(const panel *p, int bits, int look, const entries *e, int g, int q0, int nq, const float *scale,
                                const float *min, float zero, float *tile, size_t stride)
{
    const table entry = open_table(look, e);
    const __m256 z = _mm256_set1_ps(zero);
    __m256i shift[3];
    start_shifts(bits, g, q0, shift);
    for (int q = q0; q < q0 + nq; q++) {
        KVFI_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256i x = byte_entries(look, &entry, code_bytes(p, bits, g, q, h, shift));
            KVFI_UNROLL
            for (int j = 0; j < 4; j++) {
                const int r = 4 * q + j;
                const __m256 k = _mm256_broadcast_ss(scale + r), low = min ? _mm256_broadcast_ss(min + r) : z;
                _mm256_storeu_ps(tile + (size_t)r * stride + 8 * h, level_times(look, &entry, x, j, k, low, z, min != NULL));
            }
        }
        next_shifts(bits, shift);
    }
}

static void widen(const uint16_t *from, int n, float *to)
{
    for (int i = 0; i < n; i += 8) _mm256_storeu_ps(to + i, half8(from + i));
}

#include "cpu/overlay/coded.h"

void kvfi_avx2_coded(kvfi_kernels *k)
{
    k->kind[KVF_KIND_TOKEN] = k->kind[KVF_KIND_TABLE] = k->kind[KVF_KIND_CHANNEL] = coded_ops;
}
