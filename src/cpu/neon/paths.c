/* SPDX-License-Identifier: MIT
 * Steps through the bit-shift trellis with NEON. */
#include "cpu/neon/simd.h"

KVFI_INLINE ints lower(floats a, floats b)
{
    return vreinterpretq_s32_u32(vcltq_f32(a, b));
}

KVFI_INLINE floats least_of(floats a, floats b)
{
    return vminq_f32(a, b); /* of numbers that are neither NaN nor -0, which sums of squares never are */
}

KVFI_INLINE ints either(ints m, ints a, ints b)
{
    return vbslq_s32(vreinterpretq_u32_s32(m), a, b);
}

KVFI_INLINE ints append(ints x, ints m)
{
    return vsubq_s32(vaddq_s32(x, x), m);
}

#include "cpu/overlay/paths.h"

void kvfi_neon_paths(kvfi_kernels *k)
{
    k->paths = paths;
}
