/* SPDX-License-Identifier: MIT
 * What NEON replaces. Turning exact rows into tiles stays scalar: it is a small part of a prefill. */
#include "cpu/isa.h"
#include "cpu/neon/simd.h"

void kvfi_kernels_neon(kvfi_kernels *k)
{
    kvfi_neon_coded(k);
    kvfi_neon_half(k);
    kvfi_neon_rows(k);
    kvfi_neon_tile(k);
    kvfi_neon_vector(k);
    kvfi_neon_paths(k);
    kvfi_neon_softmax(k);
    kvfi_neon_hadamard(k);
}
