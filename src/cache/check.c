/* SPDX-License-Identifier: MIT */
#include "cache/check.h"

#include <string.h>

int kvfi_check_view(kvf_cache *c, int32_t layer, const char *what, const kvf_view *v)
{
    if (!v || !v->data) return kvfi_fail(c, KVF_E_ARG, "layer %d: the %s are NULL", (int)layer, what);
    if (v->type != KVF_F16 && v->type != KVF_F32)
        return kvfi_fail(c, KVF_E_ARG, "layer %d: the %s have type %d; allowed are KVF_F16 (1) and KVF_F32 (2)", (int)layer, what,
                         (int)v->type);
    return KVF_OK;
}

/* 0 when all n elements are finite. Exponent bits all ones mean NaN or infinity; the loops have no exit so that they vectorise. */
static int any_nonfinite_f32(const char *row, int32_t n, int64_t *saturated)
{
    int bad = 0, large = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, row + 4 * (size_t)i, 4);
        bits &= 0x7fffffffu;
        bad |= bits >= 0x7f800000u;
        large += bits > 0x477fe000u; /* above 65504 */
    }
    *saturated += large;
    return bad;
}

static int any_nonfinite_f16(const char *row, int32_t n)
{
    int bad = 0;
    for (int32_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, row + 2 * (size_t)i, 2);
        bad |= (bits & 0x7c00u) == 0x7c00u;
    }
    return bad;
}

static int blame(kvf_cache *c, int32_t layer, const char *what, int32_t head, int32_t batch_row, const char *row, int32_t type,
                 int32_t dim)
{
    int32_t channel = 0;
    int64_t ignore = 0;
    const size_t size = type == KVF_F32 ? 4 : 2;
    while (channel < dim - 1 && !(type == KVF_F32 ? any_nonfinite_f32(row + size * (size_t)channel, 1, &ignore)
                                                  : any_nonfinite_f16(row + size * (size_t)channel, 1)))
        channel++;
    const kvf_token *t = &c->batch.tokens[batch_row];
    return kvfi_fail(c, KVF_E_NONFINITE, "layer %d, head %d, position %d of sequence %d: %s channel %d is NaN or infinite",
                     (int)layer, (int)head, (int)t->pos, (int)t->seq, what, (int)channel);
}

int kvfi_check_rows(kvf_cache *c, int32_t layer, const char *what, const kvf_view *v, const int32_t *cells, int32_t heads,
                    int32_t dim, int64_t *saturated)
{
    int64_t large = 0;
    for (int32_t i = 0; i < c->batch.n; i++)
        for (int32_t h = 0; h < heads; h++) {
            const char *row = (const char *)v->data + (cells ? cells[i] : i) * v->token_stride + h * v->head_stride;
            int bad = v->type == KVF_F32 ? any_nonfinite_f32(row, dim, &large) : any_nonfinite_f16(row, dim);
            if (bad) return blame(c, layer, what, h, i, row, v->type, dim);
        }
    if (saturated) *saturated += large;
    return KVF_OK;
}
