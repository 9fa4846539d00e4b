/* SPDX-License-Identifier: MIT
 * What the dot product of bytes replaces. */
#include "cpu/isa.h"
#include "cpu/neondot/neondot.h"

void kvfi_kernels_neondot(kvfi_kernels *k)
{
    kvfi_neondot_coded(k);
}
