/* SPDX-License-Identifier: MIT
 * What this processor can do. A set counts as present only when the operating system also saves its registers. */
#include "cpu/isa.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1ul << 20) /* C libraries older than the bit */
#endif
#endif

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

#define LEAF7_EBX_AVX512VL (1u << 31) /* no int holds it */

enum {
    LEAF1_ECX_FMA = 1 << 12,
    LEAF1_ECX_OSXSAVE = 1 << 27,
    LEAF1_ECX_AVX = 1 << 28,
    LEAF1_ECX_F16C = 1 << 29,
    LEAF7_EBX_AVX2 = 1 << 5,
    LEAF7_EBX_AVX512F = 1 << 16,
    LEAF7_EBX_AVX512DQ = 1 << 17,
    LEAF7_EBX_AVX512BW = 1 << 30,
    LEAF7_ECX_AVX512_VBMI = 1 << 1,
    LEAF7_ECX_GFNI = 1 << 8,
    LEAF7_ECX_AVX512_VNNI = 1 << 11,
    XCR0_YMM = 1 << 1 | 1 << 2,         /* XMM and upper halves of YMM */
    XCR0_ZMM = 1 << 5 | 1 << 6 | 1 << 7 /* mask registers, upper halves of ZMM, registers 16 to 31 */
};

/* XCR0, the register sets that the system saves. Legal only after OSXSAVE was seen; assembly because the intrinsic would need a
 * compiler flag that this file must not have. */
static uint32_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static int has_avx2(void)
{
    const uint32_t need = LEAF1_ECX_FMA | LEAF1_ECX_OSXSAVE | LEAF1_ECX_AVX | LEAF1_ECX_F16C;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need) != need) return 0;
    if ((saved_registers() & XCR0_YMM) != XCR0_YMM) return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & LEAF7_EBX_AVX2);
}

/* AVX-512 as processors with VNNI have it: F, DQ, BW, VL. Without VNNI (the first two generations) AVX2 runs. */
static int has_avx512(void)
{
    const uint32_t need = LEAF7_EBX_AVX512F | LEAF7_EBX_AVX512DQ | LEAF7_EBX_AVX512BW | LEAF7_EBX_AVX512VL;
    uint32_t a, b, c, d;
    if (!has_avx2() || (saved_registers() & XCR0_ZMM) != XCR0_ZMM) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    return (b & need) == need && (c & LEAF7_ECX_AVX512_VNNI);
}

static int has_avx512vbmi(void)
{
    const uint32_t need = LEAF7_ECX_AVX512_VBMI | LEAF7_ECX_GFNI;
    uint32_t a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & need) == need;
}
#else
static int has_avx2(void)
{
    return 0;
}

static int has_avx512(void)
{
    return 0;
}

static int has_avx512vbmi(void)
{
    return 0;
}
#endif

/* Advanced SIMD is part of the base AArch64 architecture. */
static int has_neon(void)
{
#if defined(__aarch64__)
    return 1;
#else
    return 0;
#endif
}

/* The dot product of bytes, optional from Armv8.2 on. Linux tells; elsewhere it is there when every processor that the compiler
 * builds for has it, as on Apple's. */
static int has_neondot(void)
{
#if defined(__aarch64__) && defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
    return 1;
#else
    return 0;
#endif
}

int kvfi_isa_detect(kvfi_isa isa)
{
    switch (isa) {
    case KVFI_ISA_scalar: return 1;
    case KVFI_ISA_avx2: return has_avx2();
    case KVFI_ISA_avx512: return has_avx512();
    case KVFI_ISA_avx512vbmi: return has_avx512vbmi();
    case KVFI_ISA_neon: return has_neon();
    case KVFI_ISA_neondot: return has_neondot();
    case KVFI_ISAS: break;
    }
    return 0;
}
