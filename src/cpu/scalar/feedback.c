/* SPDX-License-Identifier: MIT
 * Here because of the optimisation level: the loop over channels is the one that counts. */
#include "calib/feedback.h"

void kvfi_feedback_add(const float *factors, int32_t dim, int32_t sub, int32_t m, const float *left, int32_t n_tokens, float *x)
{
    const int32_t behind = dim - (m + 1) * sub;
    factors += (size_t)m * (size_t)sub * (size_t)(2 * dim - (m + 1) * sub) / 2;
    for (int32_t t = 0; t < n_tokens; t++) {
        float *to = x + (size_t)t * (size_t)dim + (dim - behind);
        for (int32_t j = 0; j < sub; j++) {
            const float *f = factors + (size_t)j * (size_t)behind, r = left[t * sub + j];
            for (int32_t i = 0; i < behind; i++) to[i] += f[i] * r;
        }
    }
}
