/* SPDX-License-Identifier: MIT
 * One record alone: as the cache encodes it, and back. */
#include "codec/shared/part.h"
#include "cpu/isa.h"

#include <math.h>
#include <stdlib.h>

static int setup(const char *spec, kvf_side side, int32_t dim, const void *x, const void *record, kvf_part *part)
{
    int rc = kvfi_part_setup(spec, side, dim, part, NULL, 0);
    if (rc) return rc;
    return x && record && (uintptr_t)record % 64 == 0 ? KVF_OK : KVF_E_ARG;
}

int kvf_op_encode(const char *spec, kvf_side side, int32_t head_dim, const float *x, void *record)
{
    kvf_part part;
    int rc = setup(spec, side, head_dim, x, record, &part);
    if (rc) return rc;
    size_t n = KVF_BLOCK * (size_t)head_dim;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return KVF_E_NONFINITE;
    float *rows = malloc(n * sizeof *rows);
    if (!rows) return KVF_E_NOMEM;
    for (size_t i = 0; i < n; i++) rows[i] = kvfi_half_to_float(kvfi_half_saturated(x[i]));
    part.codec->encode(&part, rows, record);
    free(rows);
    return KVF_OK;
}

int kvf_op_decode(const char *spec, kvf_side side, int32_t head_dim, const void *record, float *x)
{
    kvf_part part;
    int rc = setup(spec, side, head_dim, x, record, &part);
    if (rc) return rc;
    float *tile = malloc(KVF_BLOCK * (size_t)part.dim_pad * sizeof *tile);
    if (!tile) return KVF_E_NOMEM;
    kvfi_kernels k;
    kvfi_kernels_scalar(&k);
    kvfi_shape s = kvfi_shape_of(&part);
    k.kind[part.kind].unfold(&part, record, tile);
    for (int t = 0; t < KVF_BLOCK; t++)
        for (int c = 0; c < head_dim; c++) x[t * head_dim + c] = tile[kvfi_half_index(&s, t, c)];
    if (part.rot) kvfi_rotate_tokens(x, head_dim, part.rot);
    free(tile);
    return KVF_OK;
}
