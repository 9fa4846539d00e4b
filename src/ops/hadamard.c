/* SPDX-License-Identifier: MIT */
#include "gpu/kernels/hadamard.h"
#include "kvfold.h"

int kvf_op_hadamard(float *x, int64_t n, int64_t dim, int32_t block)
{
    if (n < 0 || dim < 1 || block < 1 || (block & (block - 1)) || dim % block || n > INT64_MAX / 4 / dim || (n && !x))
        return KVF_E_ARG;
    for (int64_t i = 0; i < n * dim; i += block) kvfi_hadamard_block(x + i, block);
    return KVF_OK;
}
