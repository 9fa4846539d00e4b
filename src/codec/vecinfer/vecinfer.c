/* SPDX-License-Identifier: MIT
 * vecinfer: product codes (Yao et al., VecInfer, arXiv 2510.06175). A vector is cut into sub-vectors of 2, 4 or 8 channels, each the index
 * of the nearest of 2^bits centroids that were trained on text; nothing else is stored, neither norm nor scale. Keys are centred, divided
 * by lambda and turned by the Hadamard transform before, which makes all sub-vectors alike, so that one table serves them; values are
 * coded as they are.
 *   k = Hadamard((key - centre) / lambda)       q = Hadamard(query * lambda)       <q, k> = <query, key - centre>
 * Centre, lambda and centroids come from a calibration file: without one there is nothing to code with. Where the file also knows the second
 * moment of the queries, a sub-vector of a key is coded with what is left of those before it, so that errors fall where queries see
 * least of them (calib/feedback.h). */
#include "base/text.h"
#include "calib/feedback.h"
#include "codec/shared/part.h"
#include "codec/shared/rotation.h"
#include "codec/shared/stages.h"
#include "cpu/scalar/scalar.h"
#include "gpu/kernels/vector.h"

#include <stdio.h>
#include <string.h>

/* Bits a channel, and what they stand for. */
static const struct geometry {
    const char *number;
    int32_t sub, bits;
} geometries[] = {{"2", 4, 8}, {"1.5", 8, 12}, {"1.25", 8, 10}, {"1", 8, 8}};

static int named_geometry(const kvf_spec *spec, kvf_part *part, char *error, size_t size)
{
    for (size_t i = 0; i < sizeof geometries / sizeof *geometries; i++)
        if (!strcmp(spec->number, geometries[i].number)) {
            part->sub = geometries[i].sub, part->bits = geometries[i].bits;
            return KVF_OK;
        }
    kvfi_sentence(error, size,
                  "codec 'vecinfer%s' does not exist; there are vecinfer2, vecinfer1.5, vecinfer1.25, vecinfer1 and "
                  "vecinfer:sub=CHANNELS,bits=BITS",
                  spec->number);
    return KVF_E_SPEC;
}

static int free_geometry(const kvf_spec *spec, kvf_part *part, char *error, size_t size)
{
    static const char subs[] = "2, 4 or 8 channels", widths[] = "1 to 12, those of an index";
    int rc = kvfi_spec_int(spec, "sub", 4, subs, &part->sub, error, size);
    if (!rc) rc = kvfi_spec_int(spec, "bits", 8, widths, &part->bits, error, size);
    if (rc) return rc;
    if (part->sub != 2 && part->sub != 4 && part->sub != 8) return kvfi_spec_refuse(spec, "sub", subs, error, size);
    return part->bits < 1 || part->bits > 12 ? kvfi_spec_refuse(spec, "bits", widths, error, size) : KVF_OK;
}

/* per=layer: one table for all heads; per=head: one for each. */
static int parse_per(const kvf_spec *spec, int32_t *per_head, char *error, size_t size)
{
    const char *per = kvfi_spec_get(spec, "per", "layer");
    *per_head = !strcmp(per, "head");
    if (*per_head || !strcmp(per, "layer")) return KVF_OK;
    return kvfi_spec_refuse(spec, "per", "layer or head", error, size);
}

/* feedback=query, where what is needed for it is known, or feedback=none. */
static int parse_feedback(const kvf_spec *spec, kvf_part *part, char *error, size_t size)
{
    const int known = part->calibrated && part->calibrated->q_moment;
    const char *feedback = kvfi_spec_get(spec, "feedback", known ? "query" : "none");
    part->fed = !strcmp(feedback, "query");
    if (!part->fed && strcmp(feedback, "none") != 0) return kvfi_spec_refuse(spec, "feedback", "query or none", error, size);
    if (part->side == KVF_K || !kvfi_spec_get(spec, "feedback", NULL)) return KVF_OK;
    kvfi_sentence(error, size, "codec 'vecinfer': feedback is for keys; what sees the errors of values is not known");
    return KVF_E_SPEC;
}

/* The codebook of that geometry, if it is known. */
static void find_book(kvf_part *part)
{
    const kvf_calibrated_layer *layer = part->calibrated;
    for (int32_t i = 0; layer && i < layer->n_codebooks && !part->book; i++) {
        const kvf_codebook *b = &layer->codebooks[i];
        if (b->side != (int32_t)part->side || b->sub != part->sub || b->bits != part->bits) continue;
        if (b->heads != (part->per_head ? layer->kv_heads : 1)) continue;
        part->book = b->centroids;
        part->book_stride = b->heads > 1 ? (size_t)part->sub << part->bits : 0;
    }
}

static int setup_keys(int32_t dim, kvf_part *part, char *error, size_t size)
{
    if (dim % 2) {
        kvfi_sentence(error, size, "codec 'vecinfer' needs key heads of an even number of channels, not %d", (int)dim);
        return KVF_E_UNSUPPORTED;
    }
    kvfi_rotation_init(&part->rot, "h", 0, dim);
    part->centre = 1, part->scaled = KVFI_SCALE_LAMBDA, part->from_file = 1;
    return KVF_OK;
}

static int setup(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t size)
{
    static const char *const free_options[] = {"sub", "bits", "per", "feedback", NULL}, *const options[] = {"per", "feedback",
                                                                                                            NULL};
    int rc = kvfi_spec_only(spec, spec->number[0] ? options : free_options, error, size);
    if (!rc) rc = spec->number[0] ? named_geometry(spec, part, error, size) : free_geometry(spec, part, error, size);
    if (!rc) rc = parse_per(spec, &part->per_head, error, size);
    if (!rc) rc = parse_feedback(spec, part, error, size);
    if (rc) return rc;
    if (dim % part->sub) {
        kvfi_sentence(error, size, "codec 'vecinfer': heads of %d channels cannot be cut into sub-vectors of %d", (int)dim,
                      (int)part->sub);
        return KVF_E_UNSUPPORTED;
    }
    part->kind = KVF_KIND_VECTOR;
    part->t_group = 1;
    if (part->side == KVF_K) rc = setup_keys(dim, part, error, size);
    if (rc) return rc;
    kvfi_part_layout(part, dim);
    find_book(part);
    snprintf(part->canonical, sizeof part->canonical, "vecinfer:sub=%d,bits=%d,per=%s%s", (int)part->sub, (int)part->bits,
             part->per_head ? "head" : "layer",
             part->side == KVF_V ? ""
             : part->fed         ? ",feedback=query"
                                 : ",feedback=none");
    return KVF_OK;
}

/* What the indices leave of sub-vectors m, some[64][sub], changes those behind them. */
static void feed_back(const kvf_part *part, int32_t m, const uint16_t *index, float *some, float *x)
{
    if (!part->feedback) return;
    for (int32_t t = 0; t < KVF_BLOCK; t++)
        for (int32_t j = 0; j < part->sub; j++) some[t * part->sub + j] -= part->book[index[t] * part->sub + j];
    kvfi_feedback_add(part->feedback, part->dim, part->sub, m, some, KVF_BLOCK, x);
}

static void encode(const kvf_part *part, float *x, void *record)
{
    float some[KVF_BLOCK * 8];
    uint16_t index[KVF_BLOCK];
    memset(record, 0, part->bytes);
    kvfi_rotate_block(part, x);
    if (part->block_mean) kvfi_take_mean(part, x, record); /* keys that turn in an unknown way */
    for (int32_t m = 0; m < part->dim / part->sub; m++) {
        for (int32_t t = 0; t < KVF_BLOCK; t++)
            memcpy(some + t * part->sub, x + t * part->dim + m * part->sub, (size_t)part->sub * sizeof *some);
        KVFI_EXACT(part, nearest)(some, KVF_BLOCK, part->sub, part->book, 1 << part->bits, index);
        for (int32_t t = 0; t < KVF_BLOCK; t++) kvfi_index_flip(record, part->bits, m, t, index[t]);
        feed_back(part, m, index, some, x);
    }
}

const kvf_codec kvfi_codec_vecinfer = {
    .name = "vecinfer",
    .summary = "indices of trained centroids for 2, 4 or 8 channels at once: 1 to 2 bits; needs a calibration file with codebooks",
    .examples = "vecinfer2 vecinfer1.5 vecinfer1.25 vecinfer1 vecinfer:sub=2,bits=5 vecinfer2:per=head",
    .sides = 1u << KVF_K | 1u << KVF_V,
    .setup = setup,
    .encode = encode,
};
