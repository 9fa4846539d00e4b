/* SPDX-License-Identifier: MIT
 * Small things of the NEON folder, all static. */
#ifndef KVFI_NEON_SIMD_H
#define KVFI_NEON_SIMD_H

#include "cpu/kernels.h"

#include <arm_neon.h>
#include <string.h>

#define KVFI_INLINE static inline __attribute__((always_inline))
#define KVFI_UNROLL _Pragma("GCC unroll 16")

KVFI_INLINE float32x4_t half4(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

/* The sums of four vectors. */
KVFI_INLINE float32x4_t sum4x4(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d)
{
    return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
}

/* Elements c .. c+3 of a row of f16 or f32, of which those from c + count on do not exist and read as zero. */
KVFI_INLINE float32x4_t row4(kvf_type type, const char *row, int c, int count)
{
    if (type == KVF_F32) {
        if (count >= 4) return vld1q_f32((const float *)(const void *)(row + (size_t)c * sizeof(float)));
        float some[4] = {0};
        memcpy(some, row + (size_t)c * sizeof(float), (size_t)(count > 0 ? count & 3 : 0) * sizeof some[0]);
        return vld1q_f32(some);
    }
    if (count >= 4) return half4((const uint16_t *)(const void *)(row + (size_t)c * sizeof(uint16_t)));
    uint16_t some[4] = {0};
    memcpy(some, row + (size_t)c * sizeof(uint16_t), (size_t)(count > 0 ? count & 3 : 0) * sizeof some[0]);
    return half4(some);
}

/* Starts fetching a line that will be wanted soon; any address will do. */
KVFI_INLINE void fetch(uintptr_t address)
{
    __builtin_prefetch((const void *)address);
}

void kvfi_neon_coded(kvfi_kernels *k);
void kvfi_neon_half(kvfi_kernels *k);
void kvfi_neon_rows(kvfi_kernels *k);
void kvfi_neon_tile(kvfi_kernels *k);
void kvfi_neon_vector(kvfi_kernels *k);
void kvfi_neon_paths(kvfi_kernels *k);
void kvfi_neon_softmax(kvfi_kernels *k);
void kvfi_neon_hadamard(kvfi_kernels *k);

/* One vector and what templates of all sets (cpu/overlay) do with it. */
enum { LANES = 4 };
typedef float32x4_t floats;
typedef int32x4_t ints;

KVFI_INLINE floats load_lanes(const float *p)
{
    return vld1q_f32(p);
}

KVFI_INLINE void store_lanes(float *p, floats x)
{
    vst1q_f32(p, x);
}

KVFI_INLINE floats set_lanes(float x)
{
    return vdupq_n_f32(x);
}

KVFI_INLINE floats add_lanes(floats a, floats b)
{
    return vaddq_f32(a, b);
}

KVFI_INLINE floats sub_lanes(floats a, floats b)
{
    return vsubq_f32(a, b);
}

KVFI_INLINE floats mul_lanes(floats a, floats b)
{
    return vmulq_f32(a, b);
}

KVFI_INLINE floats fma_lanes(floats a, floats b, floats c)
{
    return vfmaq_f32(c, a, b);
}

KVFI_INLINE ints set_ints(int32_t i)
{
    return vdupq_n_s32(i);
}

KVFI_INLINE void store_ints(int32_t *p, ints x)
{
    vst1q_s32(p, x);
}

#endif
