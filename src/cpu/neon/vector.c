/* SPDX-License-Identifier: MIT
 * KVF_KIND_VECTOR with NEON. */
#include "cpu/neon/simd.h"

enum { SCORE_VECTORS = 4, MIX_VECTORS = 4, MIX_UNITS = 1 };
#define SEARCH_GROUPS(sub) ((sub) == 8 ? 2 : 4)

KVFI_INLINE void take_lower(floats d, int32_t k, floats *least, ints *index)
{
    const uint32x4_t lower = vcltq_f32(d, *least);
    *least = vbslq_f32(lower, d, *least);
    *index = vbslq_s32(lower, vdupq_n_s32(k), *index);
}

KVFI_INLINE floats from_quads(const float *const q[1])
{
    return vld1q_f32(q[0]);
}

KVFI_INLINE void sum_lanes4(const floats x[4], float *out)
{
    vst1q_f32(out, sum4x4(x[0], x[1], x[2], x[3]));
}

KVFI_INLINE void transpose_quads(const float *const q[4], float *tile, size_t stride)
{
    const float32x4x2_t a = vtrnq_f32(vld1q_f32(q[0]), vld1q_f32(q[1])), b = vtrnq_f32(vld1q_f32(q[2]), vld1q_f32(q[3]));
    vst1q_f32(tile, vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0])));
    vst1q_f32(tile + stride, vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1])));
    vst1q_f32(tile + 2 * stride, vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0])));
    vst1q_f32(tile + 3 * stride, vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1])));
}

#include "cpu/overlay/vector.h"

void kvfi_neon_vector(kvfi_kernels *k)
{
    vector_entries(k);
}
