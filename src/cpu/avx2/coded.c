/* SPDX-License-Identifier: MIT
 * Packed codes with AVX2. A 32-bit lane holds the codes of four adjacent elements of the reduction for one output, so eight
 * outputs stand side by side and no sum goes across lanes. The even and the odd bytes of a lane become pairs of 16 bits, and madd
 * multiplies each pair with two multipliers of 16 bits and adds the products: exact, where the multiplication of bytes (maddubs)
 * would saturate. A code is unpacked once for all vectors of a block. */
#include "cpu/avx2/simd.h"
#include "cpu/overlay/record.h"

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

/* ---- products: overlay/planes.h ---------------------------------------------------------------------------------------------- */

/* Entries as unsigned bytes, twice 16. */
typedef struct lookup {
    __m256i low, high;
} lookup;

KVFI_INLINE lookup open_lookup(int look, const uint8_t *entry)
{
    lookup x = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    if (look) x.low = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)entry));
    if (look == 5) x.high = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(entry + 16)));
    return x;
}

/* Three bits: the two of the first plane stay where they are, but those of the last group, and the third bit joins them above. From
 * even quads it comes by a shift to the left, from odd ones to the right. */
typedef struct three {
    __m256i low, bit[2], shift[2], place;
} three;

KVFI_INLINE int place_of_three(int g)
{
    return g < 3 ? 2 * g : 4;
}

KVFI_INLINE three open_three(int g)
{
    const int place = place_of_three(g);
    return (three){.low = _mm256_set1_epi8((char)(3 << place)),
                   .bit = {_mm256_set1_epi8((char)(1 << g)), _mm256_set1_epi8((char)(16 << g))},
                   .shift = {_mm256_set1_epi32(place + 2 - g), _mm256_set1_epi32(g + 4 - place - 2)},
                   .place = _mm256_set1_epi32(place)};
}

KVFI_INLINE __m256i three_bits(const panel *p, int last, int g, int q, int h, const three *t)
{
    __m256i low = _mm256_load_si256((const __m256i *)(const void *)(plane_line(p, 0, 2, g, q) + 32 * h));
    const __m256i third = _mm256_load_si256((const __m256i *)(const void *)(plane_line(p, 1, 1, g, q) + 32 * h));
    if (last) low = _mm256_srli_epi32(low, 2);
    return _mm256_or_si256(_mm256_and_si256(low, t->low),
                           q & 1 ? _mm256_srlv_epi32(_mm256_and_si256(third, t->bit[1]), t->shift[1])
                                 : _mm256_sllv_epi32(_mm256_and_si256(third, t->bit[0]), t->shift[0]));
}

/* Codes, or entries, of eight lanes. One plane and no table: the code stays where it stands in its byte, and sums come out
 * 2^plane_shift too large. */
KVFI_INLINE __m256i product_bytes(const panel *p, int bits, int look, const lookup *x, int g, int q, int h, __m256i in_place,
                                  const __m256i shift[3])
{
    const int width = kvfi_plane_width[bits][0];
    if (width == bits && !look) {
        __m256i c = _mm256_load_si256((const __m256i *)(const void *)(plane_line(p, 0, width, g, q) + 32 * h));
        if (bits == 1 && q & 1) c = _mm256_srli_epi32(c, 4);
        return bits == 8 ? c : _mm256_and_si256(c, in_place);
    }
    const __m256i c = code_bytes(p, bits, g, q, h, shift);
    if (!look) return c;
    const __m256i low = _mm256_shuffle_epi8(x->low, c); /* which looks at four bits */
    if (look == 4) return low;
    return _mm256_blendv_epi8(low, _mm256_shuffle_epi8(x->high, c), _mm256_slli_epi32(c, 3)); /* bit 4 to the sign of its byte */
}

KVFI_INLINE __m256i broadcast4(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* x is needed here: otherwise gcc 12 adds products to each other first, for which the registers do not suffice, and sums go through
 * memory. */
#define NEEDED(x) __asm__("" : "+x"(x))

/* One quad of sixteen lanes. Multipliers are fetched once for both halves. */
KVFI_INLINE void dot(__m256i low, __m256i high, const quad *m, int nv, __m256i sum[VECTORS][2])
{
    const __m256i mask = _mm256_set1_epi32(0x00ff00ff);
    const __m256i even[2] = {_mm256_and_si256(low, mask), _mm256_and_si256(high, mask)};
    const __m256i odd[2] = {_mm256_srli_epi16(low, 8), _mm256_srli_epi16(high, 8)};
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        const char *at = (const char *)(m + v * SECTION);
        const __m256i first = broadcast4(at), second = broadcast4(at + 4);
        KVFI_UNROLL
        for (int h = 0; h < 2; h++) {
            sum[v][h] = _mm256_add_epi32(sum[v][h], _mm256_madd_epi16(even[h], first));
            NEEDED(sum[v][h]);
            sum[v][h] = _mm256_add_epi32(sum[v][h], _mm256_madd_epi16(odd[h], second));
            NEEDED(sum[v][h]);
        }
    }
}

KVFI_INLINE void fetch_ahead(int bits, ahead *next)
{
    fetch(next->at);
    if (bits == 8) fetch(next->at + 64); /* a record of bytes has more lines than quads */
    next->at += next->step;
}

/* A copy stays in registers; through the pointer each quad would wait for what the one before it stored. NULL: a line that is there. */
KVFI_INLINE ahead open_ahead(const ahead *next, const stretch *r)
{
    return next ? *next : (ahead){(uintptr_t)r->m, 0};
}

KVFI_INLINE void close_ahead(ahead *next, ahead soon)
{
    if (next) next->at = soon.at;
}

KVFI_INLINE void finish_sums(int place, int nv, __m256i sum[VECTORS][2], __m256 t[VECTORS][2])
{
    const __m256 factor = _mm256_set1_ps(1.0f / (float)(1 << place));
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int h = 0; h < 2; h++) t[v][h] = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[v][h]), factor);
    }
}

KVFI_INLINE void clear_sums(int nv, __m256i sum[VECTORS][2])
{
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) sum[v][0] = sum[v][1] = _mm256_setzero_si256();
}

KVFI_INLINE void sum_up_three(const panel *p, int last, int look, const uint8_t *entry, int g, int nv, const stretch *r,
                              __m256 t[VECTORS][2], ahead *next)
{
    const three at = open_three(g);
    const lookup x = open_lookup(look, entry);
    const quad *m = r->m;
    ahead soon = open_ahead(next, r);
    __m256i sum[VECTORS][2];
    clear_sums(nv, sum);
    for (int q = r->q0, end = r->q0 + r->nq; q < end; q++, m++) {
        __m256i c[2];
        fetch_ahead(3, &soon);
        KVFI_UNROLL
        for (int h = 0; h < 2; h++) {
            c[h] = three_bits(p, last, g, q, h, &at);
            if (look) c[h] = _mm256_shuffle_epi8(x.low, _mm256_srlv_epi32(c[h], at.place));
        }
        dot(c[0], c[1], m, nv, sum);
    }
    close_ahead(next, soon);
    finish_sums(look ? 0 : place_of_three(g), nv, sum, t);
}

/* t[v][h]: sums of a stretch for the sixteen lanes of group g. A pair of groups fetches once: `ahead` is NULL for the second. */
KVFI_INLINE void sum_up(const panel *p, int bits, int look, const uint8_t *entry, int g, int nv, const stretch *r,
                        __m256 t[VECTORS][2], ahead *next)
{
    const int width = kvfi_plane_width[bits][0], plain = width == bits && !look, shift_of_codes = plane_shift(width, g, 0);
    const __m256i in_place = _mm256_set1_epi8((char)(((1 << width) - 1) << shift_of_codes));
    const lookup x = open_lookup(look, entry);
    const quad *m = r->m;
    ahead soon = open_ahead(next, r);
    __m256i sum[VECTORS][2], shift[3];
    clear_sums(nv, sum);
    start_shifts(bits, g, r->q0, shift);
    for (int q = r->q0; q < r->q0 + r->nq; q++, m++) {
        fetch_ahead(bits, &soon);
        dot(product_bytes(p, bits, look, &x, g, q, 0, in_place, shift),
            product_bytes(p, bits, look, &x, g, q, 1, in_place, shift), m, nv, sum);
        next_shifts(bits, shift);
    }
    close_ahead(next, soon);
    finish_sums(plain ? shift_of_codes : 0, nv, sum, t);
}

/* Sixteen lanes from `lane` of the product on. */
KVFI_INLINE void add_scaled(const product *x, const stretch *r, int lane, int nv, __m256 t[VECTORS][2])
{
    const __m256 zero = _mm256_set1_ps(x->zero);
    KVFI_UNROLL
    for (int h = 0; h < 2; h++) {
        const int at = x->lane + lane + 8 * h;
        const __m256 k = half8(r->scale + at);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            float *o = x->out + (size_t)v * x->out_stride + lane + 8 * h;
            const __m256 sum = _mm256_broadcast_ss(r->sum + (size_t)v * x->sum_stride);
            const __m256 y = _mm256_fnmadd_ps(zero, sum, t[v][h]), ku = _mm256_mul_ps(k, _mm256_broadcast_ss(x->unit + v));
            __m256 z = _mm256_fmadd_ps(y, ku, _mm256_loadu_ps(o));
            if (r->min)
                z = _mm256_fmadd_ps(_mm256_fmadd_ps(k, zero, half8(r->min + at)),
                                    _mm256_broadcast_ss(r->total + (size_t)v * x->sum_stride), z);
            _mm256_storeu_ps(o, z);
        }
    }
}

/* The bias belongs to the first stretch. */
KVFI_INLINE void add_biased(const product *x, int first, int lane, int nv, __m256 t[VECTORS][2])
{
    KVFI_UNROLL
    for (int h = 0; h < 2; h++) {
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            float *o = x->out + (size_t)v * x->out_stride + lane + 8 * h;
            const __m256 bias = _mm256_set1_ps(first ? x->bias[v] : 0);
            const __m256 y = _mm256_fmadd_ps(t[v][h], _mm256_broadcast_ss(x->unit + v), bias);
            _mm256_storeu_ps(o, _mm256_add_ps(_mm256_loadu_ps(o), y));
        }
    }
}

KVFI_INLINE void product_of(const panel *p, int bits, int look, const uint8_t *entry, int nv, const product *x, ahead *next)
{
    for (int lane = 0; lane < 32 * x->pairs && lane < x->lanes; lane += 16)
        for (int i = 0; i < x->runs; i++) {
            __m256 t[VECTORS][2];
            const int g = 2 * x->pair + lane / 16;
            ahead *fetched = lane % 32 ? NULL : next;
            if (bits != 3)
                sum_up(p, bits, look, entry, g, nv, x->run + i, t, fetched);
            else if (g < 3)
                sum_up_three(p, 0, look, entry, g, nv, x->run + i, t, fetched);
            else
                sum_up_three(p, 1, look, entry, g, nv, x->run + i, t, fetched);
            if (x->run[i].scale)
                add_scaled(x, x->run + i, lane, nv, t);
            else
                add_biased(x, i == 0, lane, nv, t);
        }
}

/* Sixteen entries at a time; a lane whose index lies in another sixteen gets zero. */
static inline void look_up(const uint8_t *entry, int bits, int n, uint8_t *bytes)
{
    const __m256i four = _mm256_set1_epi8(15);
    for (int i = 0; i < n; i += 32) {
        const __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)(bytes + i));
        const __m256i low = _mm256_and_si256(codes, four), high = _mm256_andnot_si256(four, codes);
        __m256i x = _mm256_setzero_si256();
        for (int part = 0; part == 0 || part * 16 < 1 << bits; part++) {
            const __m256i here = _mm256_cmpeq_epi8(high, _mm256_set1_epi8((char)(part * 16)));
            const __m128i sixteen = _mm_loadu_si128((const __m128i *)(const void *)(entry + part * 16));
            const __m256i found = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), low);
            x = _mm256_or_si256(x, _mm256_and_si256(here, found));
        }
        _mm256_storeu_si256((__m256i *)(void *)(bytes + i), x);
    }
}

/* i and 255 - i are looked up as one, then turned round. An index beyond the sixteen reaches the top bit, for which a shuffle gives 0. */
static inline void look_up_states(const uint8_t *entry, int n, uint8_t *bytes)
{
    const __m256i beyond = _mm256_set1_epi8(0x70), zero = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 32) {
        const __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)(bytes + i));
        const __m256i upper = _mm256_cmpgt_epi8(zero, codes), index = _mm256_xor_si256(codes, upper);
        __m256i x = zero;
        KVFI_UNROLL
        for (int part = 0; part < 8; part++) {
            const __m256i at = _mm256_adds_epu8(_mm256_xor_si256(index, _mm256_set1_epi8((char)(part * 16))), beyond);
            const __m128i sixteen = _mm_loadu_si128((const __m128i *)(const void *)(entry + part * 16));
            x = _mm256_or_si256(x, _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), at));
        }
        _mm256_storeu_si256((__m256i *)(void *)(bytes + i), _mm256_sub_epi8(_mm256_xor_si256(x, upper), upper));
    }
}

KVFI_INLINE __m256 magnitude8(__m256 x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

static float limits(const float *x, int n)
{
    __m256 top = _mm256_setzero_ps();
    for (int i = 0; i < n; i += 8) top = _mm256_max_ps(top, magnitude8(_mm256_maskload_ps(x + i, first_lanes(n - i))));
    return max8(top);
}

KVFI_INLINE uint32_t above_of(const float *x, float limit)
{
    const __m256 most = _mm256_set1_ps(limit);
    const __m256 low = _mm256_cmp_ps(magnitude8(_mm256_loadu_ps(x)), most, _CMP_GT_OQ);
    const __m256 high = _mm256_cmp_ps(magnitude8(_mm256_loadu_ps(x + 8)), most, _CMP_GT_OQ);
    return (uint32_t)(_mm256_movemask_ps(low) | _mm256_movemask_ps(high) << 8);
}

/* Four quads from sixteen integers; a quad is its multipliers 0, 2, 1, 3. */
KVFI_INLINE __m256i four_quads(__m256i low, __m256i high)
{
    const __m256i both = _mm256_packs_epi32(low, high);
    const __m256i order = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(both, _MM_SHUFFLE(3, 1, 2, 0)), _MM_SHUFFLE(3, 1, 2, 0));
    return _mm256_permute4x64_epi64(order, _MM_SHUFFLE(3, 1, 2, 0));
}

KVFI_INLINE int sum_of_integers(__m256i sum)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

static float to_quads(const float *x, int n, float inverse, quad *m)
{
    const __m256 k = _mm256_set1_ps(inverse);
    __m256i sum = _mm256_setzero_si256();
    int r = 0;
    for (; r + 16 <= n; r += 16) {
        const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + r), k));
        const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + r + 8), k));
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
        _mm256_storeu_si256((__m256i *)(void *)(m + r / 4), four_quads(a, b));
    }
    if (r < n) {
        const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_maskload_ps(x + r, first_lanes(n - r)), k));
        const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_maskload_ps(x + r + 8, first_lanes(n - r - 8)), k));
        quad some[4];
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
        _mm256_storeu_si256((__m256i *)(void *)some, four_quads(a, b));
        memcpy(m + r / 4, some, (size_t)(n - r) / 4 * sizeof *some);
    }
    return (float)sum_of_integers(sum);
}

KVFI_INLINE void fold_of(const uint16_t *scale, const uint16_t *min, float zero, int live, int n, const float *m, size_t stride,
                         int nv, float *x, size_t x_stride, float *bias)
{
    __m256 sum[VECTORS];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) sum[v] = _mm256_setzero_ps();
    for (int r = 0; r < n; r += 8) {
        const __m256 lanes = _mm256_castsi256_ps(first_lanes(live - r)), k = _mm256_and_ps(half8(scale + r), lanes);
        const __m256 low = min ? _mm256_and_ps(half8(min + r), lanes) : k, z = _mm256_fmadd_ps(k, _mm256_set1_ps(zero), low);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            const __m256 y = _mm256_loadu_ps(m + (size_t)v * stride + r);
            _mm256_storeu_ps(x + (size_t)v * x_stride + r, _mm256_mul_ps(y, k));
            sum[v] = _mm256_fmadd_ps(y, z, sum[v]);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) bias[v] = min ? sum8(sum[v]) : 0;
}

/* Products with scales stay in L1 until their largest is known. */
KVFI_INLINE void fold_quads_of(const uint16_t *scale, const uint16_t *min, float zero, int n, const float *m, size_t stride,
                               int nv, quad *quads, float *unit, float *bias, float *mean)
{
    float x[VECTORS][4 * SECTION];
    __m256 top[VECTORS], low[VECTORS], all[VECTORS];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) top[v] = low[v] = all[v] = _mm256_setzero_ps();
    for (int r = 0; r < n; r += 8) {
        const __m256 k = half8(scale + r), z = min ? _mm256_fmadd_ps(k, _mm256_set1_ps(zero), half8(min + r)) : k;
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            const __m256 y = _mm256_loadu_ps(m + (size_t)v * stride + r), yk = _mm256_mul_ps(y, k);
            _mm256_storeu_ps(x[v] + r, yk);
            top[v] = _mm256_max_ps(top[v], magnitude8(yk));
            if (mean) all[v] = _mm256_add_ps(all[v], magnitude8(yk));
            if (min) low[v] = _mm256_fmadd_ps(y, z, low[v]);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        const float largest = max8(top[v]), some = largest > NOTHING ? largest : 0;
        unit[v] = some / TOP;
        if (mean) mean[v] = sum8(all[v]) / (float)n;
        bias[v] = (min ? sum8(low[v]) : 0) - unit[v] * zero * to_quads(x[v], n, some > 0 ? TOP / some : 0, quads + v * SECTION);
    }
}

/* ---- tiles: overlay/unfold.h -------------------------------------------------------------------------------------------------- */

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

#include "cpu/overlay/planes.h"
#include "cpu/overlay/unfold.h"

void kvfi_avx2_coded(kvfi_kernels *k)
{
    static const kvf_kind kinds[] = {KVF_KIND_TOKEN, KVF_KIND_TABLE, KVF_KIND_CHANNEL};
    planes_entries(k, 0);
    for (int i = 0; i < 3; i++) k->kind[kinds[i]].unfold = coded_unfold;
}
