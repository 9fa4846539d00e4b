/* SPDX-License-Identifier: MIT */
#include "cpu/scalar/scalar.h"

#include "codec/shared/part.h"
#include "cpu/isa.h"
#include "gpu/kernels/attend.h"
#include "gpu/kernels/value.h"

#include <string.h>

size_t kvfi_scalar_prepared_bytes(const kvf_part *part, int32_t n)
{
    size_t sums = part->has_min ? (size_t)part->n_cg : 0;
    return kvfi_align64((size_t)n * ((size_t)part->dim_pad + sums) * sizeof(float));
}

void kvfi_scalar_prepare(const kvf_part *part, const float *q, size_t stride, int32_t n, void *prepared)
{
    kvfi_shape s = kvfi_shape_of(part);
    float *copy = prepared, *sums = copy + (size_t)n * (size_t)s.dim_pad;
    for (int32_t v = 0; v < n; v++) {
        memcpy(copy + (size_t)v * (size_t)s.dim_pad, q + (size_t)v * stride, (size_t)s.dim_pad * sizeof(float));
        for (int g = 0; s.has_min && g < s.n_cg; g++)
            sums[v * s.n_cg + g] = kvfi_group_sum(q + (size_t)v * stride, g * s.c_group, kvfi_group_size(&s, g));
    }
}

void kvfi_scalar_mix(const kvfi_shape *s, const void *record, const float *w, int32_t n, float *acc, size_t stride,
                     kvfi_scalar_mixer mix_tile)
{
    for (int32_t v = 0; v < n; v += KVFI_TILE)
        for (int c = 0; c < s->dim; c += KVFI_CHUNK)
            mix_tile(s, record, w + v * KVF_BLOCK, n - v < KVFI_TILE ? n - v : KVFI_TILE, c,
                     s->dim - c < KVFI_CHUNK ? s->dim - c : KVFI_CHUNK, acc + (size_t)v * stride, stride);
}

void kvfi_scalar_unfold(const kvf_part *part, const void *record, float *tile, int (*scale_index)(const kvfi_shape *, int, int))
{
    kvfi_shape s = kvfi_shape_of(part);
    int lanes = kvfi_lanes(&s);
    uint8_t codes[KVFI_DIM_MAX];
    for (int r = 0; r < kvfi_reduction(&s); r++, tile += lanes) {
        kvfi_codes_get_row(record, s.bits, kvfi_reduction(&s), lanes, r, 0, lanes, codes);
        for (int i = 0; i < lanes; i++) {
            int c = s.keys ? r : i, at = scale_index(&s, s.keys ? i : r, c);
            tile[i] = 0.0f;
            if (c >= s.dim) continue;
            tile[i] = kvfi_dequantise(&s, codes[i], kvfi_section(record, s.scale_offset, at),
                                      s.has_min ? kvfi_section(record, s.min_offset, at) : 0.0f);
        }
    }
}

void kvfi_kernels_scalar(kvfi_kernels *k)
{
    memset(k, 0, sizeof *k);
    k->name = "scalar";
    kvfi_scalar_half(&k->kind[KVF_KIND_HALF]);
    kvfi_scalar_token(&k->kind[KVF_KIND_TOKEN]);
    kvfi_scalar_token(&k->kind[KVF_KIND_TABLE]);
    kvfi_scalar_channel(&k->kind[KVF_KIND_CHANNEL]);
    kvfi_scalar_trellis(&k->kind[KVF_KIND_TRELLIS]);
    kvfi_scalar_sum(&k->kind[KVF_KIND_SUM]);
    kvfi_scalar_vector(&k->kind[KVF_KIND_VECTOR]);
    kvfi_scalar_rows(k);
    kvfi_scalar_tiles(k);
    k->softmax = kvfi_scalar_softmax;
    k->hadamard = kvfi_scalar_hadamard;
    k->nearest = kvfi_scalar_nearest;
    k->paths = kvfi_scalar_paths;
    k->dot16 = kvfi_scalar_dot16;
    k->widen = kvfi_scalar_widen;
    k->narrow = kvfi_scalar_narrow;
    k->rank = kvfi_scalar_rank;
}
