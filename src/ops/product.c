/* SPDX-License-Identifier: MIT
 * Product codes: the search for the nearest centroid, and the way back. */
#include "cpu/kernels.h"

#include <math.h>
#include <string.h>

static int allowed(int64_t n, int32_t sub, const float *centroids, int32_t k)
{
    return n >= 0 && (sub == 2 || sub == 4 || sub == 8) && centroids && k >= 1 && k <= 4096;
}

static int finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return 0;
    return 1;
}

int kvf_op_nearest_centroid(const float *x, int64_t n, int32_t sub, const float *centroids, int32_t k, uint16_t *index)
{
    kvfi_kernels kernels;
    if (!allowed(n, sub, centroids, k) || (n && (!x || !index))) return KVF_E_ARG;
    if (!finite(x, (size_t)n * (size_t)sub) || !finite(centroids, (size_t)k * (size_t)sub)) return KVF_E_NONFINITE;
    int rc = kvfi_kernels_select(NULL, &kernels, NULL, 0);
    if (!rc) kernels.nearest(x, n, sub, centroids, k, index);
    return rc;
}

int kvf_op_gather_centroids(const uint16_t *index, int64_t n, int32_t sub, const float *centroids, int32_t k, float *x)
{
    if (!allowed(n, sub, centroids, k) || (n && (!x || !index))) return KVF_E_ARG;
    for (int64_t i = 0; i < n; i++)
        if (index[i] >= k) return KVF_E_ARG;
    for (int64_t i = 0; i < n; i++, x += sub) memcpy(x, centroids + index[i] * sub, (size_t)sub * sizeof *x);
    return KVF_OK;
}
