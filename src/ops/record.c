/* SPDX-License-Identifier: MIT
 * One record alone: as the cache encodes it, and back. */
#include "codec/shared/rotation.h"
#include "codec/shared/stages.h"
#include "codec/shared/part.h"
#include "cpu/isa.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int setup(const char *spec, kvf_side side, int32_t dim, const void *x, const void *record, kvf_part *part)
{
    int rc = kvfi_part_setup(spec, side, dim, part, NULL, 0);
    if (rc) return rc;
    return x && record && (uintptr_t)record % 64 == 0 ? KVF_OK : KVF_E_ARG;
}

/* A rotation that is a matrix: 0, or KVF_E_NOMEM. */
static int make_matrix(kvf_part *part)
{
    const size_t n = kvfi_rotation_floats(&part->rot);
    if (!n) return KVF_OK;
    double *work = malloc(n * sizeof *work);
    float *matrix = malloc(n * sizeof *matrix);
    if (work && matrix) kvfi_rotation_fill(&part->rot, work, matrix);
    free(work);
    part->rot.matrix = matrix;
    return work && matrix ? KVF_OK : KVF_E_NOMEM;
}

static void free_matrix(kvf_part *part)
{
    free((void *)(uintptr_t)part->rot.matrix);
}

int kvf_op_encode(const char *spec, kvf_side side, int32_t head_dim, const float *x, void *record)
{
    kvf_part part;
    int rc = setup(spec, side, head_dim, x, record, &part);
    if (rc) return rc;
    size_t n = KVF_BLOCK * (size_t)head_dim;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return KVF_E_NONFINITE;
    float *rows = malloc(KVF_BLOCK * (size_t)part.dim_pad * sizeof *rows);
    rc = rows ? make_matrix(&part) : KVF_E_NOMEM;
    for (size_t i = 0; !rc && i < n; i++) rows[i] = kvfi_half_to_float(kvfi_half_saturated(x[i]));
    if (!rc) part.codec->encode(&part, rows, record);
    free(rows), free_matrix(&part);
    return rc;
}

int kvf_op_decode(const char *spec, kvf_side side, int32_t head_dim, const void *record, float *x)
{
    kvf_part part;
    int rc = setup(spec, side, head_dim, x, record, &part);
    if (rc) return rc;
    float *tile = malloc(KVF_BLOCK * (size_t)part.dim_pad * sizeof *tile), *row = malloc(KVFI_DIM_MAX * sizeof *row);
    rc = tile && row ? make_matrix(&part) : KVF_E_NOMEM;
    kvfi_kernels k;
    kvfi_kernels_scalar(&k);
    kvfi_shape s = kvfi_shape_of(&part);
    if (!rc) k.kind[part.kind].unfold(&part, record, tile);
    for (int t = 0; !rc && t < KVF_BLOCK; t++) {
        for (int c = 0; c < part.dim; c++) row[c] = tile[kvfi_half_index(&s, t, c)];
        kvfi_add_mean(&part, record, row);
        kvfi_rotate_back(&part.rot, k.hadamard, row, 0, 1);
        memcpy(x + (size_t)t * (size_t)head_dim, row, (size_t)head_dim * sizeof *x);
    }
    free(tile), free(row), free_matrix(&part);
    return rc;
}
