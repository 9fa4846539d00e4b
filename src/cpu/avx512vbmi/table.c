/* SPDX-License-Identifier: MIT
 * What AVX-512 with VBMI and GFNI replaces; the rest stays with AVX-512. */
#include "cpu/avx512vbmi/avx512vbmi.h"
#include "cpu/isa.h"

void kvfi_kernels_avx512vbmi(kvfi_kernels *k)
{
    kvfi_avx512vbmi_coded(k);
    kvfi_avx512vbmi_vector(k);
}
