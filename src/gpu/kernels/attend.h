/* SPDX-License-Identifier: MIT
 * One score of one (query vector, token) and one mixed sum of one (vector, channel) on a packed record: the definition that
 * every kernel of the kind keeps to within the tolerance of docs/FORMAT.md. Sums are f32 and ascend in channel or token.
 *
 * Scale and minimum are folded: with value = (code - zero) * scale + min,
 *   scale per token and channel group   s_t   = sum_g scale[g][t] * sum_{c in g} q_c (code - zero) + min[g][t] * sum_{c in g} q_c
 *                                       out_c = sum_t (w_t scale[g][t]) (code - zero) + sum_t w_t min[g][t]
 *   scale per channel and token group   s_t   = sum_c (q_c scale[g][c]) (code - zero) + sum_c q_c min[g][c]
 *                                       out_c = sum_g scale[g][c] * sum_{t in g} w_t (code - zero) + min[g][c] * sum_{t in g} w_t
 * so that the inner sums touch integers only. (zero is 0 where there is a minimum.) With a table, its entry stands for code - zero. */
#ifndef KVFI_KERNELS_ATTEND_H
#define KVFI_KERNELS_ATTEND_H

#include "gpu/kernels/shape.h"

/* Sum of the group [first, first + n) of x: what a minimum is multiplied with. */
KVF_FN float kvfi_group_sum(const KVF_GLOBAL float *x, int first, int n)
{
    float sum = 0.0f;
    for (int i = first; i < first + n; i++) sum += x[i];
    return sum;
}

/* Live channels of group g; the last group may be short. */
KVF_FN int kvfi_group_size(const KVF_PRIVATE kvfi_shape *s, int g)
{
    int left = s->dim - g * s->c_group;
    return left < s->c_group ? left : s->c_group;
}

/* sums[g] = kvfi_group_sum of the channels of group g, once per query (unused without minima). */
KVF_FN float kvfi_score_token(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, const KVF_GLOBAL float *q,
                              const KVF_GLOBAL float *sums, int t)
{
    float score = 0.0f;
    for (int g = 0; g < s->n_cg; g++) {
        float part = 0.0f;
        for (int c = g * s->c_group; c < g * s->c_group + kvfi_group_size(s, g); c++)
            part += q[c] * kvfi_level(s, kvfi_code_of(s, record, t, c));
        score += kvfi_section(record, s->scale_offset, g * KVFI_TOKENS + t) * part;
        if (s->has_min) score += kvfi_section(record, s->min_offset, g * KVFI_TOKENS + t) * sums[g];
    }
    return score;
}

KVF_FN float kvfi_score_channel(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, const KVF_GLOBAL float *q,
                                int t)
{
    float score = 0.0f, bias = 0.0f;
    for (int c = 0; c < s->dim; c++) {
        int i = kvfi_scale_index_channel(s, t, c);
        score += q[c] * kvfi_section(record, s->scale_offset, i) * kvfi_level(s, kvfi_code_of(s, record, t, c));
        if (s->has_min) bias += q[c] * kvfi_section(record, s->min_offset, i);
    }
    return score + bias;
}

KVF_FN float kvfi_score_half(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, const KVF_GLOBAL float *q, int t)
{
    float score = 0.0f;
    for (int c = 0; c < s->dim; c++) score += q[c] * kvfi_section(record, 0, kvfi_half_index(s, t, c));
    return score;
}

/* What the 64 tokens of a record add to channel c < dim. */
KVF_FN float kvfi_mix_token(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, const KVF_GLOBAL float *w, int c)
{
    float sum = 0.0f, bias = 0.0f;
    for (int t = 0; t < KVFI_TOKENS; t++) {
        int i = kvfi_scale_index_token(s, t, c);
        sum += w[t] * kvfi_section(record, s->scale_offset, i) * kvfi_level(s, kvfi_code_of(s, record, t, c));
        if (s->has_min) bias += w[t] * kvfi_section(record, s->min_offset, i);
    }
    return sum + bias;
}

KVF_FN float kvfi_mix_channel(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, const KVF_GLOBAL float *w, int c)
{
    float sum = 0.0f;
    for (int g = 0; g < s->n_tg; g++) {
        float part = 0.0f;
        for (int t = g * s->t_group; t < (g + 1) * s->t_group; t++) part += w[t] * kvfi_level(s, kvfi_code_of(s, record, t, c));
        sum += kvfi_section(record, s->scale_offset, g * s->dim_pad + c) * part;
        if (s->has_min)
            sum += kvfi_section(record, s->min_offset, g * s->dim_pad + c) * kvfi_group_sum(w, g * s->t_group, s->t_group);
    }
    return sum;
}

KVF_FN float kvfi_mix_half(const KVF_PRIVATE kvfi_shape *s, const KVF_GLOBAL uint8_t *record, const KVF_GLOBAL float *w, int c)
{
    float sum = 0.0f;
    for (int t = 0; t < KVFI_TOKENS; t++) sum += w[t] * kvfi_section(record, 0, kvfi_half_index(s, t, c));
    return sum;
}

#endif
