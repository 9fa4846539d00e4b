/* SPDX-License-Identifier: MIT */
#include "codec/shared/stages.h"

#include "base/half.h"
#include "base/text.h"
#include "gpu/kernels/codes.h"
#include "gpu/kernels/hadamard.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int parse_norm(const kvf_spec *spec, kvf_side side, kvf_part *part, char *error, size_t size)
{
    const char *norm = kvfi_spec_get(spec, "norm", side == KVF_K ? "n1" : "n2");
    if (norm[0] == 'n' && norm[1] >= '0' && norm[1] <= '3' && !norm[2]) {
        part->norm = norm[1] - '0';
        return KVF_OK;
    }
    kvfi_sentence(error, size, "codec '%s': norm is '%s', but may be n0, n1, n2 or n3", spec->name, norm);
    return KVF_E_SPEC;
}

int kvfi_spec_prompt(const kvf_spec *spec, const char *key, kvf_side side, int32_t *on, char *error, size_t size)
{
    const char *value = kvfi_spec_get(spec, key, side == KVF_K ? "prompt" : "none");
    *on = !strcmp(value, "prompt");
    if (side == KVF_V && kvfi_spec_get(spec, key, NULL)) {
        kvfi_sentence(error, size, "codec '%s': %s is for keys; values are never centred or scaled", spec->name, key);
        return KVF_E_SPEC;
    }
    if (*on || !strcmp(value, "none")) return KVF_OK;
    kvfi_sentence(error, size, "codec '%s': %s is '%s', but may be 'prompt' or 'none'", spec->name, key, value);
    return KVF_E_SPEC;
}

int kvfi_spec_stages(const kvf_spec *spec, kvf_side side, int32_t dim, kvf_part *part, char *error, size_t size)
{
    int rc = kvfi_spec_rotation(spec, dim % 2 ? "none" : "h", dim, &part->rot, error, size);
    if (!rc) rc = parse_norm(spec, side, part, error, size);
    if (!rc) rc = kvfi_spec_prompt(spec, "centre", side, &part->centre, error, size);
    if (!rc) rc = kvfi_spec_prompt(spec, "scale", side, &part->scaled, error, size);
    return rc;
}

void kvfi_stages_canonical(kvf_part *part, const char *name)
{
    part->canonical[0] = '\0';
    kvfi_canonical_add(part, "%s%d:rot=%s,norm=n%d", name, (int)part->bits, part->rot ? "h" : "none", (int)part->norm);
    if (part->side == KVF_K)
        kvfi_canonical_add(part, ",centre=%s,scale=%s", part->centre ? "prompt" : "none", part->scaled ? "prompt" : "none");
}

void kvfi_canonical_add(kvf_part *part, const char *format, ...)
{
    const size_t used = strlen(part->canonical);
    va_list values;
    va_start(values, format);
    vsnprintf(part->canonical + used, sizeof part->canonical - used, format, values);
    va_end(values);
}

float kvfi_dot16(const float *a, const float *b, int32_t n)
{
    float sum[16] = {0};
    for (int32_t i = 0; i < n; i++) sum[i % 16] += a[i] * b[i];
    for (int32_t half = 8; half; half /= 2)
        for (int32_t i = 0; i < half; i++) sum[i] += sum[i + half];
    return sum[0];
}

uint16_t kvfi_norm_scale(int32_t norm, const float *x, const float *c, int32_t n, float plain)
{
    if (norm == KVFI_NORM_PLAIN) return kvfi_half_saturated(plain);
    const float xx = kvfi_dot16(x, x, n), xc = kvfi_dot16(x, c, n), cc = kvfi_dot16(c, c, n);
    float scale = 0;
    if (cc > 0 && norm == KVFI_NORM_KEPT) scale = sqrtf(xx / cc);
    if (xc > 0 && norm == KVFI_NORM_UNBIASED) scale = xx / xc;
    if (cc > 0 && norm == KVFI_NORM_LEAST) scale = xc / cc;
    return kvfi_half_saturated(scale);
}

/* Codes of token t: they take the place of its values, which are not needed any more. */
static uint8_t *codes_of(const kvf_part *part, float *x, int32_t t)
{
    return (uint8_t *)(x + t * part->dim);
}

static void put_codes(const kvf_part *part, float *x, void *record)
{
    uint8_t row[KVFI_DIM_MAX] = {0};
    for (int32_t t = 0; part->side == KVF_V && t < KVF_BLOCK; t++) {
        memcpy(row, codes_of(part, x, t), (size_t)part->dim);
        kvfi_codes_put_row(record, part->bits, KVF_BLOCK, part->dim_pad, t, row);
    }
    for (int32_t c = 0; part->side == KVF_K && c < part->dim; c++) {
        for (int32_t t = 0; t < KVF_BLOCK; t++) row[t] = codes_of(part, x, t)[c];
        kvfi_codes_put_row(record, part->bits, part->dim_pad, KVF_BLOCK, c, row);
    }
}

void kvfi_encode_tokens(const kvf_part *part, float *x, void *record, kvfi_token_coder code)
{
    uint8_t codes[KVFI_DIM_MAX];
    float decoded[KVFI_DIM_MAX];
    uint16_t *scales = kvfi_halves(record, part->scale_offset);
    memset(record, 0, part->bytes);
    if (part->rot) kvfi_rotate_tokens(x, part->dim, part->rot);
    for (int32_t t = 0; t < KVF_BLOCK; t++) {
        const float *values = x + t * part->dim;
        float plain = code(part, values, codes, decoded);
        scales[t] = kvfi_norm_scale(part->norm, values, decoded, part->dim, plain);
        memcpy(codes_of(part, x, t), codes, (size_t)part->dim);
    }
    put_codes(part, x, record);
}
