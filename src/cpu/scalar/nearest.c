/* SPDX-License-Identifier: MIT */
#include "cpu/scalar/scalar.h"
#include "gpu/kernels/vector.h"

void kvfi_scalar_nearest(const float *x, int64_t n, int32_t sub, const float *centroids, int32_t k, uint16_t *index)
{
    for (int64_t i = 0; i < n; i++) index[i] = (uint16_t)kvfi_nearest_centroid(x + (size_t)i * (size_t)sub, centroids, k, sub);
}
