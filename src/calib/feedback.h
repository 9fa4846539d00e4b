/* SPDX-License-Identifier: MIT
 * Error feedback for codes of keys: what coding one sub-vector did to the scores, the sub-vectors behind it take back.
 *
 * With y a transformed key, e = y - its code and S the second moment of the transformed queries, the mean square of what coding does to a
 * score is e' S e, and S is far from a multiple of the identity. Sub-vectors are coded in order. Once those before sub-vector m are, the real
 * e of the others that makes e' S e least is - S_uu^-1 S_uc e_c, u the channels from m on and c those before, so sub-vector m is coded as
 * if it were y_m plus that much of S_uu^-1 S_uc e_c. Told from r, what each index left of a sub-vector as it was coded, rather than from e, the
 * share of all channels behind it is linear in r too, and can be added as soon as r is known: no copy of y is needed.
 * (Noise shaping of sigma-delta converters; for weights GPTQ, arXiv 2210.17323, and LDLQ of QuIP, arXiv 2307.13304.)
 */
#ifndef KVFI_FEEDBACK_H
#define KVFI_FEEDBACK_H

#include "kvfold_codec.h"

/* Floats of one head: for each sub-vector m and each of its channels, the factors of all channels behind m. dim is a multiple of sub. */
static inline size_t kvfi_feedback_floats(int32_t dim, int32_t sub)
{
    return (size_t)dim * (size_t)(dim - sub) / 2;
}

/* Those factors from moment[dim][dim], the mean of q q' before the key stages, symmetric; lambda[dim] multiplies queries; both are turned by
 * the Hadamard transform of rot=h. A quarter of the mean eigenvalue is added to all of them: a text shows no more than some directions of
 * the queries, and keys moved far leave the centroids. work[dim * dim]. All zeros where the moment is. Exact: the same bits on every target.
 * KVF_E_ARG: the moment is none, which is symmetric and has no negative eigenvalues (but for rounding); factors are undefined then. */
int kvfi_feedback_fill(const float *moment, const float *lambda, int32_t dim, int32_t sub, double *work, float *factors);

/* Adds the share of left[n_tokens][sub], what coding left of sub-vector m of x[n_tokens][dim], to the channels behind it. */
void kvfi_feedback_add(const float *factors, int32_t dim, int32_t sub, int32_t m, const float *left, int32_t n_tokens, float *x);

#endif
