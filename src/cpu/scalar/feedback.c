/* SPDX-License-Identifier: MIT
 * Here because of the optimisation level: the loop over channels is the one that counts. */
#include "calib/feedback.h"

/* Several channels of the sub-vector at once, so that what is added to is loaded and stored once; sums are rounded as if they came one by one. */
static void add_pair(float *restrict to, const float *restrict f, const float *restrict g, float r, float s, int32_t n)
{
    for (int32_t i = 0; i < n; i++) to[i] = (to[i] + f[i] * r) + g[i] * s;
}

static void add_four(float *restrict to, const float *restrict f, size_t stride, const float r[4], int32_t n)
{
    const float *f1 = f + stride, *f2 = f1 + stride, *f3 = f2 + stride, r0 = r[0], r1 = r[1], r2 = r[2], r3 = r[3];
    for (int32_t i = 0; i < n; i++) to[i] = (((to[i] + f[i] * r0) + f1[i] * r1) + f2[i] * r2) + f3[i] * r3;
}

void kvfi_feedback_add(const float *factors, int32_t dim, int32_t sub, int32_t m, const float *left, int32_t n_tokens, float *x)
{
    const int32_t behind = dim - (m + 1) * sub;
    const size_t stride = (size_t)behind;
    factors += (size_t)m * (size_t)sub * (size_t)(2 * dim - (m + 1) * sub) / 2;
    for (int32_t t = 0; t < n_tokens; t++, left += sub) {
        float *to = x + (size_t)t * (size_t)dim + (dim - behind);
        if (sub == 2) add_pair(to, factors, factors + stride, left[0], left[1], behind);
        for (int32_t j = 0; j + 4 <= sub; j += 4) add_four(to, factors + (size_t)j * stride, stride, left + j, behind);
    }
}
