/* SPDX-License-Identifier: MIT
 * The stages that rotated codecs have in common: options rot, centre, scale, norm; exact sums; norm rules. */
#ifndef KVFI_STAGES_H
#define KVFI_STAGES_H

#include "base/text.h"
#include "codec/shared/part.h"

#include <math.h>

/* How the scale of a coded vector is corrected, x the vector, c the decoded one before scaling:
 * 0: ||x|| as the codebook assumes; 1: ||x|| / ||c|| (norm kept); 2: ||x||^2 / <x, c> (unbiased), or rule 3 where c points 60 degrees
 * and more away from x; 3: <x, c> / <c, c> (least squares, below 0 when c points backwards). Measured defaults: keys 1, values 2. */
enum { KVFI_NORM_PLAIN, KVFI_NORM_KEPT, KVFI_NORM_UNBIASED, KVFI_NORM_LEAST };

/* Parses into the part: rot=none|h|h1|h2|haar and seed=N; for keys centre=none|prompt|file|block and scale=none|prompt|file. `rot` and
 * `prompt` are what holds when they are not given; "prompt" becomes "file" when part->calibrated has mean and spreads. */
int kvfi_spec_stages(const kvf_spec *spec, const char *rot, const char *prompt, int32_t dim, kvf_part *part, char *error,
                     size_t error_size);

/* Its options, for kvfi_spec_only: write them in front of a codec's own. */
#define KVFI_STAGE_OPTIONS "rot", "seed", "centre", "scale"

/* What codecs with one corrected scale a token read first: refuses options that are not in `allowed`, then the stages, all on, and
 * norm=n0..n3, the default of the side when it is not given. */
int kvfi_spec_rotated(const kvf_spec *spec, const char *const *allowed, int32_t dim, kvf_part *part, char *error,
                      size_t error_size);
#define KVFI_ROTATED_OPTIONS KVFI_STAGE_OPTIONS, "norm"

/* The mean that a record of part->block_mean keeps: mean[dim], in the domain of the codes. */
void kvfi_block_mean(const kvf_part *part, const void *record, float *mean);

/* The mean of x[64][dim]: its int8 form goes into the record, its decoded form is subtracted. */
void kvfi_take_mean(const kvf_part *part, float *x, void *record);

/* centre=prompt or file becomes centre=block: for keys whose rotation is not known. The record grows by the mean. */
void kvfi_centre_by_block(kvf_part *part);

/* Adds it to one decoded vector x[dim]; nothing when the record keeps none. */
void kvfi_add_mean(const kvf_part *part, const void *record, float *x);

/* Appends the stages to part->canonical, which holds "name:" or "name:option=value,". */
void kvfi_stages_canonical(kvf_part *part);

/* The kernel dot16 where no part says which set's to use. */
float kvfi_dot16(const float *a, const float *b, int32_t n);

/* rintf for magnitudes up to 2^22, without a call: the last place of the sum is 1. */
static inline float kvfi_round_small(float x)
{
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

/* The same with half away from zero (roundf): the largest float below one half is added to the magnitude. */
static inline float kvfi_round_away(float x)
{
    return (float)(int32_t)(x + copysignf(0x1.fffffep-2f, x));
}

/* Least and largest of x[n], n at least 1; which of +0 and -0 is not said. */
void kvfi_range(const float *x, int32_t n, float *low, float *high);

/* The f16 scale of a vector x[n] whose decoded form before scaling is c, by the rule of the part; `plain` is that of rule 0. Zero
 * vectors get 0; magnitudes above 65504 saturate. */
uint16_t kvfi_norm_scale(const kvf_part *part, const float *x, const float *c, int32_t n, float plain);

enum { KVFI_TOKENS_AT_ONCE = 8 };

/* Codes n tokens x[n][dim] of a rotated codec: codes[n][dim_pad], channels from dim on untouched; before scaling, decoded[n][dim]; and plain[n], the scales of norm rule
 * n0. `with` is what the codec has made for all tokens of the block. */
typedef void (*kvfi_token_coder)(const kvf_part *part, const float *x, uint8_t *codes, float *decoded, float *plain,
                                 const void *with);

/* The encode slot of those codecs: transform, code n tokens after n (n divides KVFI_TOKENS_AT_ONCE), correct each scale by the norm
 * rule, pack. */
void kvfi_encode_tokens(const kvf_part *part, float *x, void *record, int32_t n, kvfi_token_coder code, const void *with);

#endif
