/* SPDX-License-Identifier: MIT
 * AVX-512 with VBMI and GFNI beside what the folder avx512 needs: the processors from 2019 on that have VNNI, but for the first two
 * generations with it. */
#ifndef KVFI_AVX512VBMI_H
#define KVFI_AVX512VBMI_H

#include "cpu/kernels.h"

void kvfi_avx512vbmi_coded(kvfi_kernels *k);
void kvfi_avx512vbmi_vector(kvfi_kernels *k);

#endif
