/* SPDX-License-Identifier: MIT
 * What the folder of the dot product of bytes (FEAT_DotProd, of Armv8.2) brings; the rest stays with NEON. */
#ifndef KVFI_NEONDOT_H
#define KVFI_NEONDOT_H

#include "cpu/kernels.h"

void kvfi_neondot_coded(kvfi_kernels *k);

#endif
