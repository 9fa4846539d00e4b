/* SPDX-License-Identifier: MIT
 * Steps through the bit-shift trellis with AVX2. */
#include "cpu/avx2/simd.h"

KVFI_INLINE ints lower(floats a, floats b)
{
    return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

KVFI_INLINE floats least_of(floats a, floats b)
{
    return _mm256_min_ps(a, b);
}

KVFI_INLINE ints either(ints m, ints a, ints b)
{
    return _mm256_blendv_epi8(b, a, m);
}

KVFI_INLINE ints append(ints x, ints m)
{
    return _mm256_sub_epi32(_mm256_add_epi32(x, x), m);
}

#include "cpu/overlay/paths.h"

void kvfi_avx2_paths(kvfi_kernels *k)
{
    k->paths = paths;
}
