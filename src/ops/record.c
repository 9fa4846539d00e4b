/* SPDX-License-Identifier: MIT
 * One record alone: as the cache encodes it, and back. */
#include "calib/calibration.h"
#include "calib/feedback.h"
#include "codec/shared/rotation.h"
#include "codec/shared/stages.h"
#include "codec/shared/part.h"
#include "cpu/isa.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Spec and head size, and what is known of the layer. */
typedef struct subject {
    const char *spec;
    kvf_side side;
    int32_t dim;
    const kvf_calibrated_layer *calibrated;
    int32_t head;
} subject;

static int setup(const subject *of, const void *x, const void *record, kvf_part *part)
{
    kvf_part shared;
    int rc = kvfi_known_check(of->calibrated, NULL, 0);
    if (!rc) rc = kvfi_part_setup_calibrated(of->spec, of->side, of->dim, of->calibrated, &shared, NULL, 0);
    if (rc) return rc;
    if (shared.fed && !(of->calibrated && of->calibrated->q_moment && of->calibrated->k_lambda)) return KVF_E_UNSUPPORTED;
    if (shared.kind == KVF_KIND_VECTOR && !shared.book) return KVF_E_UNSUPPORTED;
    if (of->head < 0 || (of->calibrated && of->head >= of->calibrated->kv_heads)) return KVF_E_ARG;
    *part = *kvfi_part_of(&shared, of->head, &(kvf_part){0});
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

/* Error feedback of the head, where the codec takes it. */
static int make_feedback(const subject *of, kvf_part *part)
{
    const size_t dim = (size_t)part->dim, at = (size_t)of->head * dim;
    if (!part->fed) return KVF_OK;
    double *work = malloc(dim * dim * sizeof *work);
    float *factors = malloc((kvfi_feedback_floats(part->dim, part->sub) + 1) * sizeof *factors);
    int rc = work && factors ? KVF_OK : KVF_E_NOMEM;
    if (!rc)
        rc = kvfi_feedback_fill(of->calibrated->q_moment + at * dim, of->calibrated->k_lambda + at, part->dim, part->sub, work,
                                factors);
    free(work);
    part->feedback = factors;
    return rc;
}

static void free_made(kvf_part *part)
{
    free((void *)(uintptr_t)part->rot.matrix);
    free((void *)(uintptr_t)part->feedback);
}

static int encode(const subject *of, const float *x, void *record)
{
    kvf_part part;
    int rc = setup(of, x, record, &part);
    if (rc) return rc;
    size_t n = KVF_BLOCK * (size_t)of->dim;
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return KVF_E_NONFINITE;
    float *rows = malloc(KVF_BLOCK * (size_t)part.dim_pad * sizeof *rows);
    rc = rows ? make_matrix(&part) : KVF_E_NOMEM;
    if (!rc) rc = make_feedback(of, &part);
    kvfi_kernels kernels;
    if (!kvfi_kernels_select(NULL, &kernels, NULL, 0)) part.kernels = &kernels;
    for (size_t i = 0; !rc && i < n; i++) rows[i] = kvfi_half_to_float(kvfi_half_saturated(x[i]));
    if (!rc) part.codec->encode(&part, rows, record);
    free(rows), free_made(&part);
    return rc;
}

static int decode(const subject *of, const void *record, float *x)
{
    kvf_part part;
    int rc = setup(of, x, record, &part);
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
        memcpy(x + t * of->dim, row, (size_t)of->dim * sizeof *x);
    }
    free(tile), free(row), free_made(&part);
    return rc;
}

int kvf_op_encode(const char *spec, kvf_side side, int32_t head_dim, const float *x, void *record)
{
    return encode(&(subject){spec, side, head_dim, NULL, 0}, x, record);
}

int kvf_op_decode(const char *spec, kvf_side side, int32_t head_dim, const void *record, float *x)
{
    return decode(&(subject){spec, side, head_dim, NULL, 0}, record, x);
}

int kvf_op_encode_calibrated(const char *spec, kvf_side side, int32_t head_dim, const kvf_calibrated_layer *layer, int32_t head,
                             const float *x, void *record)
{
    return encode(&(subject){spec, side, head_dim, layer, head}, x, record);
}

int kvf_op_decode_calibrated(const char *spec, kvf_side side, int32_t head_dim, const kvf_calibrated_layer *layer, int32_t head,
                             const void *record, float *x)
{
    return decode(&(subject){spec, side, head_dim, layer, head}, record, x);
}
