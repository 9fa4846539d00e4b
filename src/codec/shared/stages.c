/* SPDX-License-Identifier: MIT */
#include "codec/shared/stages.h"

#include "base/half.h"
#include "base/text.h"
#include "codec/shared/pack.h"
#include "codec/shared/rotation.h"
#include "cpu/scalar/scalar.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Where a key stage comes from. */
enum { NONE, PROMPT, FROM_FILE, BLOCK };
static const char *const sources[] = {"none", "prompt", "file", "block"};

static int parse_key_stage(const kvf_spec *spec, const char *key, const char *fallback, int n, int32_t *stage, char *error,
                           size_t size)
{
    const char *value = kvfi_spec_get(spec, key, fallback);
    for (*stage = 0; *stage < n; ++*stage)
        if (!strcmp(value, sources[*stage])) return KVF_OK;
    return kvfi_spec_refuse(spec, key, n == BLOCK ? "none, prompt or file" : "none, prompt, file or block", error, size);
}

/* What holds where the spec is silent: the source that the other stage names, else the file when it knows enough. */
static const char *default_source(const kvf_spec *spec, const char *other, const char *prompt, const kvf_calibrated_layer *known)
{
    const char *named = kvfi_spec_get(spec, other, "");
    if (strcmp(prompt, sources[PROMPT]) != 0) return prompt;
    if (!strcmp(named, sources[PROMPT]) || !strcmp(named, sources[FROM_FILE])) return named;
    return known && known->k_mean && known->k_rms && known->q_rms ? sources[FROM_FILE] : prompt;
}

static int parse_key_stages(const kvf_spec *spec, const char *prompt, kvf_part *part, char *error, size_t size)
{
    int32_t centre = 0, scale = 0;
    int rc =
        parse_key_stage(spec, "centre", default_source(spec, "scale", prompt, part->calibrated), BLOCK + 1, &centre, error, size);
    if (!rc)
        rc = parse_key_stage(spec, "scale", default_source(spec, "centre", prompt, part->calibrated), BLOCK, &scale, error, size);
    if (!rc && ((centre == PROMPT && scale == FROM_FILE) || (centre == FROM_FILE && scale == PROMPT))) {
        kvfi_sentence(error, size, "codec '%s': centre=%s,scale=%s: prompt and file do not mix; both must come from one",
                      spec->name, sources[centre], sources[scale]);
        return KVF_E_SPEC;
    }
    part->centre = centre == PROMPT || centre == FROM_FILE, part->block_mean = centre == BLOCK, part->scaled = scale != NONE;
    part->from_file = centre == FROM_FILE || scale == FROM_FILE;
    return rc;
}

static int parse_norm(const kvf_spec *spec, kvf_part *part, char *error, size_t size)
{
    const char *norm = kvfi_spec_get(spec, "norm", part->side == KVF_K ? "n1" : "n2");
    if (norm[0] == 'n' && norm[1] >= '0' && norm[1] <= '3' && !norm[2]) {
        part->norm = norm[1] - '0';
        return KVF_OK;
    }
    return kvfi_spec_refuse(spec, "norm", "n0, n1, n2 or n3", error, size);
}

int kvfi_spec_rotated(const kvf_spec *spec, const char *const *allowed, int32_t dim, kvf_part *part, char *error, size_t size)
{
    int rc = kvfi_spec_only(spec, allowed, error, size);
    if (!rc) rc = kvfi_spec_stages(spec, "h1", "prompt", dim, part, error, size);
    return rc ? rc : parse_norm(spec, part, error, size);
}

/* Appends to part->canonical. */
KVFI_PRINTF(2, 3) static void canonical_add(kvf_part *part, const char *format, ...)
{
    const size_t used = strlen(part->canonical);
    va_list values;
    va_start(values, format);
    vsnprintf(part->canonical + used, sizeof part->canonical - used, format, values);
    va_end(values);
}

static int refuse_key_stages(const kvf_spec *spec, char *error, size_t size)
{
    const char *key = kvfi_spec_get(spec, "centre", NULL) ? "centre" : kvfi_spec_get(spec, "scale", NULL) ? "scale" : NULL;
    if (!key) return KVF_OK;
    kvfi_sentence(error, size, "codec '%s': %s is for keys; values are never centred or scaled", spec->name, key);
    return KVF_E_SPEC;
}

int kvfi_spec_stages(const kvf_spec *spec, const char *rot, const char *prompt, int32_t dim, kvf_part *part, char *error,
                     size_t size)
{
    int rc = kvfi_spec_rotation(spec, rot, dim, &part->rot, error, size);
    if (rc) return rc;
    return part->side == KVF_K ? parse_key_stages(spec, prompt, part, error, size) : refuse_key_stages(spec, error, size);
}

void kvfi_stages_canonical(kvf_part *part)
{
    canonical_add(part, "rot=%s,seed=%u", kvfi_rotation_name(&part->rot), (unsigned)part->rot.seed);
    if (part->side == KVF_V) return;
    const char *source = sources[part->from_file ? FROM_FILE : PROMPT];
    canonical_add(part, ",centre=%s,scale=%s",
                  part->block_mean ? sources[BLOCK]
                  : part->centre   ? source
                                   : sources[NONE],
                  part->scaled ? source : sources[NONE]);
}

float kvfi_dot16(const float *a, const float *b, int32_t n)
{
    return kvfi_scalar_dot16(a, b, n);
}

/* 16 side by side. */
void kvfi_range(const float *x, int32_t n, float *low, float *high)
{
    enum { LANES = 16 };
    float least[LANES], most[LANES];
    int32_t i = 0;
    for (int j = 0; j < LANES; j++) least[j] = most[j] = x[0];
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            least[j] = x[i + j] < least[j] ? x[i + j] : least[j];
            most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
        }
    for (; i < n; i++) {
        least[0] = x[i] < least[0] ? x[i] : least[0];
        most[0] = x[i] > most[0] ? x[i] : most[0];
    }
    for (int half = LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++) {
            least[j] = least[j + half] < least[j] ? least[j + half] : least[j];
            most[j] = most[j + half] > most[j] ? most[j + half] : most[j];
        }
    *low = least[0], *high = most[0];
}

uint16_t kvfi_norm_scale(const kvf_part *part, const float *x, const float *c, int32_t n, float plain)
{
    const int32_t norm = part->norm;
    if (norm == KVFI_NORM_PLAIN) return kvfi_half_saturated(plain);
    float (*const dot)(const float *, const float *, int32_t) = KVFI_EXACT(part, dot16);
    const float xx = dot(x, x, n), xc = dot(x, c, n), cc = dot(c, c, n);
    const int near =
        xc > 0 && 4 * xc * xc >= xx * cc; /* from 60 degrees on, the unbiased scale would be twice the length and more */
    if (!(cc > 0)) return 0;
    if (norm == KVFI_NORM_KEPT) return kvfi_half_saturated(sqrtf(xx / cc));
    return kvfi_half_saturated(norm == KVFI_NORM_UNBIASED && near ? xx / xc : xc / cc);
}

/* ---- the mean of a block ------------------------------------------------------------------------------------------------------- */

static void find_mean(const kvf_part *part, const float *x, void *record)
{
    float mean[KVFI_DIM_MAX] = {0}, peak = 0;
    for (int32_t t = 0; t < KVF_BLOCK; t++)
        for (int32_t c = 0; c < part->dim; c++) mean[c] += x[t * part->dim + c];
    for (int32_t c = 0; c < part->dim; c++) {
        mean[c] *= 1.0f / KVF_BLOCK;
        if (fabsf(mean[c]) > peak) peak = fabsf(mean[c]);
    }
    int8_t *codes = (int8_t *)record + part->mean_offset;
    uint16_t *step = kvfi_halves(record, part->mean_offset + (size_t)part->dim_pad);
    *step = kvfi_half_saturated(peak / 127);
    const float size = kvfi_half_to_float(*step), inverse = size > 0 ? 1.0f / size : 0.0f;
    for (int32_t c = 0; c < part->dim; c++) {
        float code = rintf(mean[c] * inverse);
        codes[c] = (int8_t)(code > 127 ? 127 : code < -127 ? -127 : code);
    }
}

void kvfi_take_mean(const kvf_part *part, float *x, void *record)
{
    float mean[KVFI_DIM_MAX];
    if (part->like)
        memcpy((uint8_t *)record + part->mean_offset, part->like + part->mean_offset, (size_t)part->dim_pad + sizeof(uint16_t));
    else
        find_mean(part, x, record);
    kvfi_block_mean(part, record, mean);
    for (int32_t t = 0; t < KVF_BLOCK; t++)
        for (int32_t c = 0; c < part->dim; c++) x[t * part->dim + c] -= mean[c];
}

void kvfi_block_mean(const kvf_part *part, const void *record, float *mean)
{
    const int8_t *codes = (const int8_t *)record + part->mean_offset;
    uint16_t step;
    memcpy(&step, codes + part->dim_pad, sizeof step);
    for (int32_t c = 0; c < part->dim; c++) mean[c] = (float)codes[c] * kvfi_half_to_float(step);
}

void kvfi_centre_by_block(kvf_part *part)
{
    const char *was = part->from_file ? "centre=file" : "centre=prompt";
    char *centre = strstr(part->canonical, was), rest[sizeof part->canonical];
    part->centre = 0, part->block_mean = 1;
    kvfi_part_layout(part, part->head_dim);
    if (!centre) return;
    snprintf(rest, sizeof rest, "%s", centre + strlen(was));
    snprintf(centre, sizeof part->canonical - (size_t)(centre - part->canonical), "centre=block%s", rest);
}

void kvfi_add_mean(const kvf_part *part, const void *record, float *x)
{
    float mean[KVFI_DIM_MAX];
    if (!part->block_mean) return;
    kvfi_block_mean(part, record, mean);
    for (int32_t c = 0; c < part->dim; c++) x[c] += mean[c];
}

void kvfi_encode_tokens(const kvf_part *part, float *x, void *record, int32_t n, kvfi_token_coder code, const void *with)
{
    const int32_t dim = part->dim, pad = part->dim_pad;
    const kvfi_packing packing = kvfi_packing_of(part, record);
    uint8_t codes[KVFI_PACKED_TOKENS * KVFI_DIM_MAX];
    float decoded[KVFI_TOKENS_AT_ONCE * KVFI_DIM_MAX], plain[KVFI_TOKENS_AT_ONCE];
    uint16_t *scales = kvfi_halves(record, part->scale_offset);
    memset(record, 0, part->bytes);
    memset(codes, 0, (size_t)KVFI_PACKED_TOKENS * (size_t)pad); /* so is the padding */
    kvfi_rotate_block(part, x);
    if (part->block_mean) kvfi_take_mean(part, x, record);
    for (int32_t t = 0; t < KVF_BLOCK; t += n) {
        code(part, x + t * dim, codes + t % KVFI_PACKED_TOKENS * pad, decoded, plain, with);
        for (int32_t i = 0; i < n; i++)
            scales[t + i] = kvfi_norm_scale(part, x + (t + i) * dim, decoded + i * dim, dim, plain[i]);
        if ((t + n) % KVFI_PACKED_TOKENS == 0) kvfi_pack(&packing, t + n - KVFI_PACKED_TOKENS, 0, pad, codes, (size_t)pad);
    }
}
