/* SPDX-License-Identifier: MIT
 * Instruction sets: which are compiled in, and how each is recognised. */
#ifndef KVFI_ISA_H
#define KVFI_ISA_H

#include "cpu/kernels.h"

/* The build defines KVFI_HAVE_<SET>=1 when it compiles that folder. */
#define KVFI_HAVE_SCALAR 1
#ifndef KVFI_HAVE_AVX2
#define KVFI_HAVE_AVX2 0
#endif
#ifndef KVFI_HAVE_AVX512
#define KVFI_HAVE_AVX512 0
#endif
#ifndef KVFI_HAVE_AVX512VBMI
#define KVFI_HAVE_AVX512VBMI 0
#endif
#ifndef KVFI_HAVE_NEON
#define KVFI_HAVE_NEON 0
#endif
#ifndef KVFI_HAVE_NEONDOT
#define KVFI_HAVE_NEONDOT 0
#endif

typedef enum kvfi_isa {
#define KVFI_ISA(name, built) KVFI_ISA_##name,
#include "cpu/isa.def"
#undef KVFI_ISA
    KVFI_ISAS
} kvfi_isa;

/* 1 when processor and operating system support the set. Asks each time; nothing is remembered. */
int kvfi_isa_detect(kvfi_isa isa);

#define KVFI_ISA(name, built) void kvfi_kernels_##name(kvfi_kernels *k);
#include "cpu/isa.def"
#undef KVFI_ISA

#endif
