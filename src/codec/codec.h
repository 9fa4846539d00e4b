/* SPDX-License-Identifier: MIT
 * Internal face of the codecs: registry, spec strings, plans of one side. */
#ifndef KVFI_CODEC_H
#define KVFI_CODEC_H

#include "kvfold_codec.h"

/* Every codec once (codecs.def). i past the end gives NULL. */
const kvf_codec *kvfi_codec_at(int32_t i);

/* Parses `text` and sets the part up for one side and head size, applying the codec's limits. On error returns a kvf_error and
 * leaves a sentence that lists what exists. error may be NULL. */
int kvfi_part_setup(const char *text, kvf_side side, int32_t dim, kvf_part *part, char *error, size_t error_size);

/* The same for a layer of which `calibrated` is known (NULL: nothing): key stages come from there when the spec does not say otherwise.
 * The part keeps the pointer. */
int kvfi_part_setup_calibrated(const char *text, kvf_side side, int32_t dim, const kvf_calibrated_layer *calibrated,
                               kvf_part *part, char *error, size_t error_size);

/* kvf_part.scaled. */
enum { KVFI_SCALE_NONE, KVFI_SCALE_SPREAD, KVFI_SCALE_LAMBDA };

/* All-in bits of a code: 8 * bytes of a record / (64 * dim). */
double kvfi_part_bits(const kvf_part *part);

/* Does anything of the part depend on the seed of its spec: a rotation, a sketch? */
int kvfi_part_draws(const kvf_part *part);

/* How many scales of a record are the largest number of f16, of either sign: steps and lengths that were clipped when they were stored. */
int32_t kvfi_part_saturated(const kvf_part *part, const void *record);

/* What specs of one sort are about: "codec" or "policy", the names that exist (NULL past the end), a valid spec or more of each, and
 * whether a number may follow the name. */
typedef struct kvfi_spec_names {
    const char *noun;
    const char *(*name)(int32_t i);
    const char *(*examples)(int32_t i);
    int32_t numbered;
} kvfi_spec_names;

/* Name, number and options of a spec; *which is the index of the name. Values are not checked. KVF_E_SPEC with a sentence. */
int kvfi_spec_parse(const char *text, const kvfi_spec_names *names, kvf_spec *spec, int32_t *which, char *error,
                    size_t error_size);

/* Option helpers for setup functions: the value of `key`, or `fallback`. kvfi_spec_only refuses keys that are not in `allowed`
 * (NULL-terminated). */
const char *kvfi_spec_get(const kvf_spec *spec, const char *key, const char *fallback);

/* A whole number from 0 to 999999. What may stand there is said by `range`, which also serves to refuse a number afterwards, so that
 * one option has one sentence. */
int kvfi_spec_int(const kvf_spec *spec, const char *key, int32_t fallback, const char *range, int32_t *value, char *error,
                  size_t error_size);
/* KVF_E_SPEC, with the sentence that `key` is what it is, but may be `range`. */
int kvfi_spec_refuse(const kvf_spec *spec, const char *key, const char *range, char *error, size_t error_size);
int kvfi_spec_only(const kvf_spec *spec, const char *const *allowed, char *error, size_t error_size);

#endif
