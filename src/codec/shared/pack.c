/* SPDX-License-Identifier: MIT
 * A field of the arrangement is a quad of the reduction and 16 lanes: 64 codes, which fill the bytes of a line. So a field is laid out as
 * bytes once, and each plane takes its bits of all of them, shifted to their place. */
#include "codec/shared/pack.h"

#include "codec/shared/layout.h"

#include <string.h>

enum { LINE = 64, LANES = 16, QUAD = 4, WORDS = LINE / 8 };

/* Keys: lanes are tokens, so that four adjacent codes of a token stay together. */
static void arrange_keys(const uint8_t *codes, size_t stride, int quad, uint8_t *line)
{
    for (int i = 0; i < LANES; i++) memcpy(line + QUAD * i, codes + (size_t)i * stride + QUAD * quad, QUAD);
}

/* Values: lanes are channels; four tokens come together. */
static void arrange_values(const uint8_t *codes, size_t stride, int quad, uint8_t *line)
{
    const uint8_t *row[QUAD];
    for (int j = 0; j < QUAD; j++) row[j] = codes + (size_t)(QUAD * quad + j) * stride;
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < QUAD; j++) line[QUAD * i + j] = row[j][i];
}

/* Bits low .. low + width - 1 of 64 codes, from bit `shift` of their bytes on. Nothing crosses a byte: words are eight codes. */
static void put_plane(const uint8_t *line, int low, int width, int shift, uint8_t *to)
{
    const uint64_t mask = (((uint64_t)1 << width) - 1) * 0x0101010101010101u;
    uint64_t from[WORDS], sum[WORDS];
    memcpy(from, line, LINE);
    memcpy(sum, to, LINE);
    for (int i = 0; i < WORDS; i++) sum[i] |= (from[i] >> low & mask) << shift;
    memcpy(to, sum, LINE);
}

/* 64 codes of the reduction's quad from r on and the lanes from `lane` on. */
static void put_field(const kvfi_packing *p, int r, int lane, const uint8_t *line)
{
    const int keys = p->side == KVF_K;
    for (int plane = 0, low = 0; kvfi_plane_width[p->bits][plane]; low += kvfi_plane_width[p->bits][plane++]) {
        const kvfi_where at = kvfi_code_at(p->bits, keys ? p->width : KVF_BLOCK, keys ? KVF_BLOCK : p->width, r, lane, plane);
        put_plane(line, low, kvfi_plane_width[p->bits][plane], at.shift, p->to + at.byte);
    }
}

void kvfi_pack(const kvfi_packing *p, int32_t t, int32_t c, int32_t channels, const uint8_t *codes, size_t stride)
{
    uint8_t line[LINE];
    for (int32_t i = 0; i < channels; i += LANES)
        for (int quad = 0; quad < LANES / QUAD; quad++) {
            if (p->side == KVF_K) {
                arrange_keys(codes + i, stride, quad, line);
                put_field(p, c + i + QUAD * quad, t, line);
            } else {
                arrange_values(codes + i, stride, quad, line);
                put_field(p, t + QUAD * quad, c + i, line);
            }
        }
}
