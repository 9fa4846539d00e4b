/* SPDX-License-Identifier: MIT */
#include "codec/shared/part.h"

#include "base/text.h"
#include "gpu/kernels/hadamard.h"

#include <string.h>

void kvfi_part_layout(kvf_part *part, int32_t dim)
{
    part->dim = dim;
    part->dim_pad = (dim + 15) / 16 * 16;
    part->n_cg = part->kind == KVF_KIND_TOKEN || part->kind == KVF_KIND_TABLE ? (dim + part->c_group - 1) / part->c_group : 0;
    part->n_tg = part->kind == KVF_KIND_CHANNEL ? KVF_BLOCK / part->t_group : 0;
    size_t codes = kvfi_codes_bytes(part->bits, KVF_BLOCK, part->dim_pad);
    size_t scales = 2 * ((size_t)part->n_cg * KVF_BLOCK + (size_t)part->n_tg * (size_t)part->dim_pad);
    part->scale_offset = kvfi_align64(codes);
    part->min_offset = part->scale_offset + kvfi_align64(scales);
    part->bytes = part->min_offset + (part->has_min ? kvfi_align64(scales) : 0);
}

double kvfi_part_bits(const kvf_part *part)
{
    return 8.0 * (double)part->bytes / ((double)KVF_BLOCK * part->dim);
}

int kvfi_spec_no_bits(const kvf_spec *spec, char *error, size_t error_size)
{
    if (spec->bits < 0) return KVF_OK;
    kvfi_sentence(error, error_size, "codec '%s%d' does not exist: '%s' takes no number behind its name", spec->name,
                  (int)spec->bits, spec->name);
    return KVF_E_SPEC;
}

int kvfi_spec_rotation(const kvf_spec *spec, const char *fallback, int32_t dim, int32_t *block, char *error, size_t error_size)
{
    const char *rot = kvfi_spec_get(spec, "rot", fallback);
    *block = 0;
    if (!strcmp(rot, "none")) return KVF_OK;
    if (strcmp(rot, "h")) {
        kvfi_sentence(error, error_size, "codec '%s': rot is '%s', but may be 'none' or 'h' (Hadamard)", spec->name, rot);
        return KVF_E_SPEC;
    }
    *block = dim & -dim;
    if (*block > 1) return KVF_OK;
    kvfi_sentence(error, error_size, "codec '%s': rot=h needs an even head size, not %d", spec->name, (int)dim);
    return KVF_E_UNSUPPORTED;
}

void kvfi_rotate_tokens(float *x, int32_t dim, int32_t block)
{
    for (int32_t i = 0; i < KVF_BLOCK * dim; i += block) kvfi_hadamard_block(x + i, block);
}
