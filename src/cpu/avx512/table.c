/* SPDX-License-Identifier: MIT
 * What AVX-512 with VNNI replaces; the rest stays with AVX2. */
#include "cpu/avx512/simd.h"
#include "cpu/isa.h"

void kvfi_kernels_avx512(kvfi_kernels *k)
{
    kvfi_avx512_coded(k);
    kvfi_avx512_half(k);
    kvfi_avx512_rows(k);
    kvfi_avx512_tile(k);
    kvfi_avx512_vector(k);
    kvfi_avx512_softmax(k);
    kvfi_avx512_hadamard(k);
    kvfi_avx512_coding(k);
}
