/* SPDX-License-Identifier: MIT
 * RoPE of a layer's keys, read from the node that turns them. */
#include "adapter.h"

#include <math.h>

#include <stdlib.h>
#include <string.h>

/* Slots of op_params of GGML_OP_ROPE. */
enum {
    DIMS = 1,
    MODE = 2,
    ORIGINAL_CTX = 4,
    BASE = 5,
    SCALE = 6,
    EXT = 7,
    ATTN = 8,
    BETA_FAST = 9,
    BETA_SLOW = 10,
    SECTIONS = 11,
    OFFSET = 15
};

/* Walks from the rows that enter the cache towards the projection. Latent attention joins a turned and an unturned piece. */
static const struct ggml_tensor *find_rope(const struct ggml_tensor *t, int steps)
{
    for (; t && steps > 0; steps--) {
        switch (t->op) {
        case GGML_OP_ROPE: return t;
        case GGML_OP_CONCAT: {
            const struct ggml_tensor *first = find_rope(t->src[0], steps - 1);
            return first ? first : find_rope(t->src[1], steps - 1);
        }
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE:
        case GGML_OP_CONT:
        case GGML_OP_CPY:
        case GGML_OP_DUP:
        case GGML_OP_PAD:
        case GGML_OP_SCALE:
        case GGML_OP_MUL:
        case GGML_OP_ADD:
        case GGML_OP_NORM:
        case GGML_OP_RMS_NORM:
        case GGML_OP_L2_NORM: t = t->src[0]; break;
        default: return NULL;
        }
    }
    return NULL;
}

static int copy_factors(const struct ggml_tensor *factors, kvfi_host_rope *rope)
{
    if (!factors || factors->type != GGML_TYPE_F32 || factors->ne[0] < rope->dims / 2) return KVF_OK;
    size_t bytes = (size_t)(rope->dims / 2) * sizeof(float);
    rope->factors = malloc(bytes ? bytes : 1);
    if (!rope->factors) return KVF_E_NOMEM;
    ggml_backend_tensor_get(factors, rope->factors, 0, bytes);
    rope->n_factors = rope->dims / 2;
    memcpy(rope->factors_name, factors->name, sizeof rope->factors_name);
    return KVF_OK;
}

/* Fills *rope from the path of `key`, the rows of a SET_ROWS node; dims stays 0 when the keys are not turned. */
int kvfi_host_read_rope(const struct ggml_tensor *key, kvfi_host_rope *rope)
{
    free(rope->factors);
    memset(rope, 0, sizeof *rope);
    const struct ggml_tensor *t = find_rope(key, 32);
    if (!t) return KVF_OK;
    rope->dims = t->op_params[DIMS];
    rope->mode = t->op_params[MODE];
    rope->original_ctx = t->op_params[ORIGINAL_CTX];
    rope->offset = t->op_params[OFFSET];
    memcpy(rope->sections, &t->op_params[SECTIONS], sizeof rope->sections);
    rope->base = kvfi_host_param(t, BASE);
    rope->scale = kvfi_host_param(t, SCALE);
    rope->ext = kvfi_host_param(t, EXT);
    rope->attn = kvfi_host_param(t, ATTN);
    rope->beta_fast = kvfi_host_param(t, BETA_FAST);
    rope->beta_slow = kvfi_host_param(t, BETA_SLOW);
    return copy_factors(t->src[2], rope);
}

/* Pair (in the sense of YaRN's correction) whose wavelength makes `turns` turns over the original context. */
static double correction(const kvfi_host_rope *r, double turns)
{
    return r->dims * log(r->original_ctx / (turns * 6.283185307179586)) / (2 * log((double)r->base));
}

/* Radians per position of each pair as ggml turns it: base, frequency factor, linear scale, YaRN's mix of both. Returns 0 when
 * this kind of RoPE is not described by one frequency a pair (then the keys count as not rotated). */
int kvfi_host_rope_freq(const kvfi_host_rope *r, double *freq)
{
    const int known = r->mode == GGML_ROPE_TYPE_NORMAL || r->mode == GGML_ROPE_TYPE_NEOX || r->mode == GGML_ROPE_TYPE_MROPE ||
                      r->mode == GGML_ROPE_TYPE_IMROPE;
    if (!r->dims || r->offset || !known || r->base <= 0) return 0;
    double low = floor(correction(r, r->beta_fast)), high = ceil(correction(r, r->beta_slow));
    low = low > 0 ? low : 0;
    high = high < r->dims - 1 ? high : r->dims - 1;
    for (int32_t i = 0; i < r->dims / 2; i++) {
        double full = pow((double)r->base, -2.0 * i / r->dims) / (r->n_factors ? (double)r->factors[i] : 1.0);
        double slow = full * (double)r->scale, ramp = (i - low) / (high - low > 0.001 ? high - low : 0.001);
        double mix = r->ext != 0 ? (1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp)) * (double)r->ext : 0;
        freq[i] = slow * (1 - mix) + full * mix;
    }
    return 1;
}
