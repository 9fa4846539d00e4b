/* SPDX-License-Identifier: MIT
 * The stages that rotated codecs have in common: options rot, centre, scale, norm; exact sums; norm rules. */
#ifndef KVFI_STAGES_H
#define KVFI_STAGES_H

#include "codec/shared/part.h"

/* How the scale of a coded vector is corrected, x the vector, c the decoded one before scaling:
 * 0: ||x|| as the codebook assumes; 1: ||x|| / ||c|| (norm kept); 2: ||x||^2 / <x, c> (unbiased); 3: <x, c> / <c, c> (least
 * squares). Measured defaults: keys 1, values 2. */
enum { KVFI_NORM_PLAIN, KVFI_NORM_KEPT, KVFI_NORM_UNBIASED, KVFI_NORM_LEAST };

/* Parses rot=none|h (default h), seed=N, norm=n0..n3 and, for keys, centre=prompt|none and scale=prompt|none (default prompt) into
 * the part. */
int kvfi_spec_stages(const kvf_spec *spec, kvf_side side, int32_t dim, kvf_part *part, char *error, size_t error_size);

/* Writes part->canonical from name, bits and stages. */
void kvfi_stages_canonical(kvf_part *part, const char *name);

/* f32 sums with a fixed tree: 16 interleaved partials (element i into partial i % 16), then halves added pairwise. The same bits on
 * every target and vector width. */
float kvfi_dot16(const float *a, const float *b, int32_t n);

/* Largest magnitude. */
float kvfi_peak(const float *x, int32_t n);

/* The f16 scale of a vector x whose decoded form before scaling is c, by the part's norm rule. `plain` is the scale of rule n0.
 * Zero vectors get 0; magnitudes above 65504 saturate. */
uint16_t kvfi_norm_scale(const kvf_part *part, const float *x, const float *c, float plain);

/* Signs, then the Hadamard transform, of 64 tokens in place. */
void kvfi_transform_tokens(const kvf_part *part, float *x);

/* Stores codes[64][KVFI_DIM_MAX] of all tokens into a zeroed record. */
void kvfi_put_tokens(const kvf_part *part, const uint8_t codes[][KVFI_DIM_MAX], void *record);

#endif
