/* SPDX-License-Identifier: MIT
 * What AVX2 (with FMA and F16C) replaces. */
#include "cpu/avx2/simd.h"
#include "cpu/isa.h"

void kvfi_kernels_avx2(kvfi_kernels *k)
{
    kvfi_avx2_coded(k);
    kvfi_avx2_half(k);
    kvfi_avx2_rows(k);
    kvfi_avx2_tile(k);
    kvfi_avx2_vector(k);
    kvfi_avx2_paths(k);
    kvfi_avx2_softmax(k);
    kvfi_avx2_hadamard(k);
    kvfi_avx2_coding(k);
}
