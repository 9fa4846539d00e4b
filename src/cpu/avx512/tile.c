/* SPDX-License-Identifier: MIT
 * Dense tiles with AVX-512: out[v][lane] += sum_r m[v][r] * tile[r][lane]. Six vectors by 64 lanes fill 24 registers, and a row
 * takes ten loads for 24 multiplications. */
#include "cpu/avx512/simd.h"

enum { VECTORS = 6, GROUPS = 4 };

typedef struct task {
    const float *tile, *m;
    float *out;
    size_t row, stride, out_stride; /* floats from one row of the tile, vector of m, vector of out to the next */
    int n;                          /* rows */
    int set;                        /* 1: overwrite out */
} task;

/* 16 * groups lanes. */
KVFI_INLINE void product_of(const task *x, int groups, int nv)
{
    const float *tile = x->tile, *m = x->m;
    const size_t stride = x->stride;
    __m512 acc[VECTORS][GROUPS];
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int g = 0; g < groups; g++) acc[v][g] = _mm512_setzero_ps();
    }
    for (int r = 0; r < x->n; r++, tile += x->row, m++) {
        __m512 t[GROUPS];
        KVFI_UNROLL
        for (int g = 0; g < groups; g++) t[g] = _mm512_loadu_ps(tile + 16 * g);
        KVFI_UNROLL
        for (int v = 0; v < nv; v++) {
            const __m512 k = _mm512_set1_ps(m[(size_t)v * stride]);
            KVFI_UNROLL
            for (int g = 0; g < groups; g++) acc[v][g] = _mm512_fmadd_ps(t[g], k, acc[v][g]);
        }
    }
    KVFI_UNROLL
    for (int v = 0; v < nv; v++) {
        KVFI_UNROLL
        for (int g = 0; g < groups; g++) {
            float *o = x->out + (size_t)v * x->out_stride + 16 * g;
            _mm512_storeu_ps(o, x->set ? acc[v][g] : _mm512_add_ps(_mm512_loadu_ps(o), acc[v][g]));
        }
    }
}

#define CASE(groups, nv)                                                                                                         \
    case (groups)*8 + (nv):                                                                                                      \
        product_of(x, groups, nv);                                                                                               \
        break;
#define CASES(groups) CASE(groups, 1) CASE(groups, 2) CASE(groups, 3) CASE(groups, 4) CASE(groups, 5) CASE(groups, 6)

static void product(const task *x, int groups, int nv)
{
    switch (groups * 8 + nv) {
        CASES(1)
        CASES(2)
        CASES(3)
        CASES(4)
    }
}

/* All lanes, all vectors; chunks of lanes outside, so that a chunk of the tile is read again from L1. */
static void products(task x, int lanes, int nv)
{
    const task whole = x;
    for (int lane = 0; lane < lanes; lane += 16 * GROUPS) {
        const int groups = lanes - lane < 16 * GROUPS ? (lanes - lane) / 16 : GROUPS;
        for (int v = 0, take; v < nv; v += take) {
            const int left = nv - v;
            take = left <= VECTORS ? left : left < 2 * VECTORS ? (left + 1) / 2 : VECTORS;
            x.tile = whole.tile + lane, x.m = whole.m + (size_t)v * x.stride;
            x.out = whole.out + (size_t)v * x.out_stride + lane;
            product(&x, groups, take);
        }
    }
}

static void tile_score(const float *tile, int32_t dim_pad, const float *q, size_t q_stride, int32_t nv, float *s)
{
    products((task){tile, q, s, KVF_BLOCK, q_stride, KVF_BLOCK, dim_pad, 1}, KVF_BLOCK, nv);
}

static void tile_mix(const float *tile, int32_t dim_pad, const float *w, int32_t nv, float *acc, size_t stride)
{
    products((task){tile, w, acc, (size_t)dim_pad, KVF_BLOCK, stride, KVF_BLOCK, 0}, dim_pad, nv);
}

#include "cpu/overlay/trellis.h"

void kvfi_avx512_tile(kvfi_kernels *k)
{
    k->tile_score = tile_score;
    k->tile_mix = tile_mix;
    k->kind[KVF_KIND_TRELLIS].unfold = trellis_unfold;
}
