/* SPDX-License-Identifier: MIT */
#include "codec/codec.h"

#define KVFI_CODEC(symbol) extern const kvf_codec kvfi_codec_##symbol;
#include "codec/codecs.def"
#undef KVFI_CODEC

static const kvf_codec *const codecs[] = {
#define KVFI_CODEC(symbol) &kvfi_codec_##symbol,
#include "codec/codecs.def"
#undef KVFI_CODEC
};

const kvf_codec *kvfi_codec_at(int32_t i)
{
    return i >= 0 && i < (int32_t)(sizeof codecs / sizeof *codecs) ? codecs[i] : NULL;
}
