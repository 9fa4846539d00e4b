/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lockstep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double log_sum_exp(const float *x, int32_t n, int32_t *top)
{
    double sum = 0;
    *top = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[*top]) *top = i;
    for (int32_t i = 0; i < n; i++) sum += exp((double)x[i] - (double)x[*top]);
    return (double)x[*top] + log(sum);
}

static void add_position(tally *t, const float *p, const float *q, int32_t n)
{
    int32_t top_p, top_q;
    double lse_p = log_sum_exp(p, n, &top_p), lse_q = log_sum_exp(q, n, &top_q), kld = 0;
    for (int32_t i = 0; i < n; i++) {
        double lp = (double)p[i] - lse_p;
        kld += exp(lp) * (lp - ((double)q[i] - lse_q));
    }
    t->sum += kld;
    t->most = fmax(t->most, kld);
    t->same_top += top_p == top_q;
    t->n++;
}

void lockstep(arm *arms, tally *tallies, int n_arms, const llama_token *tokens, int32_t n, int32_t first)
{
    const int32_t vocab = arms[0].n_vocab;
    float *logits[LOCKSTEP_MOST]; /* [KVF_BLOCK][vocab] */
    assert_true(n_arms <= LOCKSTEP_MOST);
    for (int i = 0; i < n_arms; i++) {
        logits[i] = malloc((size_t)KVF_BLOCK * (size_t)vocab * sizeof(float));
        assert_non_null(logits[i]);
        tallies[i] = (tally){0};
    }
    for (int32_t at = 0; at < n; at += KVF_BLOCK) {
        bool wanted = at + KVF_BLOCK > first;
        for (int i = 0; i < n_arms; i++)
            assert_int_equal(arm_feed(&arms[i], tokens, at, KVF_BLOCK, 0, wanted ? logits[i] : NULL), 0);
        for (int32_t t = at; wanted && t < at + KVF_BLOCK; t++) {
            size_t row = (size_t)(t - at) * (size_t)vocab;
            if (t < first || t > n - 2) continue;
            for (int i = 1; i < n_arms; i++) add_position(&tallies[i], logits[0] + row, logits[i] + row, vocab);
        }
    }
    for (int i = 0; i < n_arms; i++) free(logits[i]);
}
