/* SPDX-License-Identifier: MIT */
#include "codec/shared/stages.h"

#include "base/half.h"
#include "base/text.h"
#include "gpu/kernels/codes.h"
#include "gpu/kernels/hadamard.h"

#include <math.h>
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

static int parse_prompt(const kvf_spec *spec, const char *key, kvf_side side, int32_t *on, char *error, size_t size)
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
    kvf_spec turned = *spec;
    if (!kvfi_spec_get(spec, "rot", NULL) && dim % 2 == 0)
        turned.n_options = 1, strcpy(turned.option[0].key, "rot"), strcpy(turned.option[0].value, "h");
    int rc = kvfi_spec_rotation(&turned, dim, &part->rot, error, size);
    if (!rc) rc = parse_norm(spec, side, part, error, size);
    if (!rc) rc = parse_prompt(spec, "centre", side, &part->centre, error, size);
    if (!rc) rc = parse_prompt(spec, "scale", side, &part->scaled, error, size);
    return rc;
}

void kvfi_stages_canonical(kvf_part *part, const char *name)
{
    int n = snprintf(part->canonical, sizeof part->canonical, "%s%d:rot=%s,norm=n%d", name, (int)part->bits, part->rot ? "h" : "none",
                     (int)part->norm);
    if (part->side == KVF_K)
        snprintf(part->canonical + n, sizeof part->canonical - (size_t)n, ",centre=%s,scale=%s", part->centre ? "prompt" : "none",
                 part->scaled ? "prompt" : "none");
}

float kvfi_dot16(const float *a, const float *b, int32_t n)
{
    float sum[16] = {0};
    for (int32_t i = 0; i < n; i++) sum[i % 16] += a[i] * b[i];
    for (int32_t half = 8; half; half /= 2)
        for (int32_t i = 0; i < half; i++) sum[i] += sum[i + half];
    return sum[0];
}

float kvfi_peak(const float *x, int32_t n)
{
    float peak = 0;
    for (int32_t i = 0; i < n; i++) {
        float m = fabsf(x[i]);
        if (m > peak) peak = m;
    }
    return peak;
}

uint16_t kvfi_norm_scale(const kvf_part *part, const float *x, const float *c, float plain)
{
    if (part->norm == KVFI_NORM_PLAIN) return kvfi_half_saturated(plain);
    const float xx = kvfi_dot16(x, x, part->dim), xc = kvfi_dot16(x, c, part->dim), cc = kvfi_dot16(c, c, part->dim);
    float scale = 0;
    if (cc > 0 && part->norm == KVFI_NORM_KEPT) scale = sqrtf(xx / cc);
    if (xc > 0 && part->norm == KVFI_NORM_UNBIASED) scale = xx / xc;
    if (cc > 0 && part->norm == KVFI_NORM_LEAST) scale = xc / cc;
    return kvfi_half_saturated(scale);
}

void kvfi_transform_tokens(const kvf_part *part, float *x)
{
    if (part->rot) kvfi_rotate_tokens(x, part->dim, part->rot);
}

void kvfi_put_tokens(const kvf_part *part, const uint8_t codes[][KVFI_DIM_MAX], void *record)
{
    uint8_t row[KVF_BLOCK];
    if (part->side == KVF_V) {
        for (int32_t t = 0; t < KVF_BLOCK; t++) kvfi_codes_put_row(record, part->bits, KVF_BLOCK, part->dim_pad, t, codes[t]);
        return;
    }
    for (int32_t c = 0; c < part->dim; c++) {
        for (int32_t t = 0; t < KVF_BLOCK; t++) row[t] = codes[t][c];
        kvfi_codes_put_row(record, part->bits, part->dim_pad, KVF_BLOCK, c, row);
    }
}
