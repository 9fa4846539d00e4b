/* SPDX-License-Identifier: MIT
 * What exists: version, error texts, codecs, presets. */
#include "calib/calibration.h"
#include "codec/codec.h"

#include <string.h>

#define TEXT_OF(x) #x
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *kvf_version(void)
{
    return VERSION_TEXT(KVF_VERSION_MAJOR, KVF_VERSION_MINOR, KVF_VERSION_PATCH);
}

const char *kvf_strerror(int code)
{
    switch (code) {
#define ERROR_TEXT(name, value, text)                                                                                            \
    case value: return text;
        KVF_ERRORS(ERROR_TEXT)
#undef ERROR_TEXT
    default: return "unknown error code";
    }
}

int kvf_codec_list(int32_t i, kvf_codec_info *info)
{
    const kvf_codec *codec = kvfi_codec_at(i);
    if (!codec || !info) return KVF_E_ARG;
    *info = (kvf_codec_info){codec->name, codec->summary, codec->examples, codec->sides};
    return KVF_OK;
}

int kvf_spec_check(const char *spec, kvf_side side, int32_t head_dim, kvf_spec_info *info, char *error, size_t error_size)
{
    return kvf_spec_check_calibrated(spec, side, head_dim, NULL, info, error, error_size);
}

int kvf_spec_check_calibrated(const char *spec, kvf_side side, int32_t head_dim, const kvf_calibrated_layer *known,
                              kvf_spec_info *info, char *error, size_t error_size)
{
    kvf_part part;
    int rc = kvfi_known_check(known, error, error_size);
    if (!rc) rc = kvfi_part_setup_calibrated(spec, side, head_dim, known, &part, error, error_size);
    if (rc || !info) return rc;
    memcpy(info->canonical, part.canonical, sizeof info->canonical);
    info->bits_code = kvfi_part_bits(&part);
    info->block_bytes = part.bytes;
    info->head_dim_padded = part.dim_pad;
    return KVF_OK;
}

static const kvf_measure measured[] = {
#define KVFI_MEASURED(preset, model, context, positions, kld, error) {model, context, positions, kld, error},
#include "codec/measured.def"
#undef KVFI_MEASURED
};

static const char *const measured_of[] = {
#define KVFI_MEASURED(preset, model, context, positions, kld, error) preset,
#include "codec/measured.def"
#undef KVFI_MEASURED
};

/* The rows of a preset lie together. */
static void find_measured(kvf_preset_info *info)
{
    for (size_t i = sizeof measured / sizeof *measured; i-- > 0;)
        if (strcmp(measured_of[i], info->name) == 0) {
            info->measured = &measured[i];
            info->n_measured++;
        }
}

int kvf_preset_list(int32_t i, kvf_preset_info *info)
{
    static const kvf_preset_info presets[] = {
#define KVFI_PRESET(name, k, v, sink, recent, is_default) {name, k, v, sink, recent, is_default, 0, NULL},
#include "codec/presets.def"
#undef KVFI_PRESET
    };
    if (!info || i < 0 || i >= (int32_t)(sizeof presets / sizeof *presets)) return KVF_E_ARG;
    *info = presets[i];
    find_measured(info);
    return KVF_OK;
}
