/* SPDX-License-Identifier: MIT
 * KVF_KIND_VECTOR: product codes. */
#include "codec/shared/part.h"
#include "cpu/scalar/scalar.h"
#include "gpu/kernels/vector.h"

#include <string.h>

void kvfi_scalar_nearest(const float *x, int64_t n, int32_t sub, const float *centroids, int32_t k, uint16_t *index)
{
    for (int64_t i = 0; i < n; i++) index[i] = (uint16_t)kvfi_nearest_centroid(x + (size_t)i * (size_t)sub, centroids, k, sub);
}

/* row[j][t]: channel j of sub-vector m of the 64 tokens. */
static void decode_run(const kvfi_shape *s, const uint8_t *record, int m, float row[][KVFI_CHUNK])
{
    for (int t = 0; t < KVF_BLOCK; t++) {
        const float *centroid = kvfi_centroid(s, record, t, m);
        for (int j = 0; j < s->sub; j++) row[j][t] = centroid[j];
    }
}

void kvfi_scalar_vector_score(const kvf_part *part, const void *record, const void *prepared, int32_t n, float *out)
{
    const kvfi_shape s = kvfi_shape_of(part);
    const size_t stride = (size_t)s.dim_pad;
    const float *q = prepared;
    float sum[KVFI_TILE][KVFI_CHUNK], row[8][KVFI_CHUNK];
    for (int32_t v = 0; v < n; v += KVFI_TILE, q += KVFI_TILE * stride) {
        const int32_t nv = n - v < KVFI_TILE ? n - v : KVFI_TILE;
        memset(sum, 0, sizeof sum);
        for (int m = 0; m < s.dim / s.sub; m++) {
            decode_run(&s, record, m, row);
            for (int j = 0; j < s.sub; j++) kvfi_scalar_add(sum, q + m * s.sub + j, stride, nv, row[j]);
        }
        memcpy(out + (size_t)v * KVF_BLOCK, sum, (size_t)nv * sizeof *sum);
    }
}

static void mix_tile(const kvfi_shape *s, const uint8_t *record, const float *w, int32_t n, int first, int count, float *acc,
                     size_t stride)
{
    float sum[KVFI_TILE][KVFI_CHUNK] = {{0}}, row[KVFI_CHUNK];
    for (int t = 0; t < KVF_BLOCK; t++) {
        for (int i = 0; i < count; i += s->sub)
            memcpy(row + i, kvfi_centroid(s, record, t, (first + i) / s->sub), (size_t)s->sub * sizeof *row);
        for (int32_t v = 0; v < n; v++)
            for (int i = 0; i < count; i++) sum[v][i] += w[v * KVF_BLOCK + t] * row[i];
    }
    for (int32_t v = 0; v < n; v++)
        for (int i = 0; i < count; i++) acc[(size_t)v * stride + (size_t)(first + i)] += sum[v][i];
}

void kvfi_scalar_vector_mix(const kvf_part *part, const void *record, const float *w, int32_t n, float *acc, size_t stride)
{
    const kvfi_shape s = kvfi_shape_of(part);
    kvfi_scalar_mix(&s, record, w, n, acc, stride, mix_tile);
}

void kvfi_scalar_vector_unfold(const kvf_part *part, const void *record, float *tile)
{
    const kvfi_shape s = kvfi_shape_of(part);
    const int lanes = s.keys ? KVF_BLOCK : s.dim_pad;
    memset(tile, 0, (size_t)s.dim_pad * KVF_BLOCK * sizeof *tile);
    for (int m = 0; m < s.dim / s.sub; m++)
        for (int t = 0; t < KVF_BLOCK; t++) {
            const float *centroid = kvfi_centroid(&s, record, t, m);
            for (int j = 0, c = m * s.sub; j < s.sub; j++, c++) tile[s.keys ? c * lanes + t : t * lanes + c] = centroid[j];
        }
}

void kvfi_scalar_vector(kvfi_kind_ops *ops)
{
    *ops = (kvfi_kind_ops){kvfi_scalar_prepared_bytes,
                           kvfi_scalar_prepare,
                           kvfi_scalar_vector_score,
                           kvfi_scalar_vector_mix,
                           kvfi_scalar_vector_unfold,
                           0,
                           0};
}
