/* SPDX-License-Identifier: MIT
 * A generated model, its text, and what plain libllama says about it: made when first asked for and kept until another model is
 * asked for, as several tests in a row look at the same one. */
#ifndef KVF_TESTS_FIXTURE_H
#define KVF_TESTS_FIXTURE_H

#include "arm.h"
#include "gen_model.h"

#define TEXT_TOKENS 704 /* enough for every window, what is kept beyond it (256), and blocks that are freed */
#define PREFILL_TOKENS 300
#define DECODE_TOKENS 40

/* Tolerances, as relative error of a row of logits. libllama sums values in f32 for batches of 64 rows or more: 1e-3 against
 * those. For fewer rows it sums in f16, which alone moves logits by 2e-3 to 5e-3: 1e-2 against those. */
#define AGAINST_WIDE 1e-3
#define AGAINST_SINGLE 1e-2

typedef struct fixture {
    const gen_model *spec;
    struct llama_model *model;
    int32_t n_vocab;
    llama_token text[TEXT_TOKENS];
    float *wide;   /* logits of every position, in batches of at least 64 rows: libllama then sums attention in f32 */
    float *single; /* of the first PREFILL_TOKENS in one batch, of DECODE_TOKENS more one by one */
} fixture;

/* Fails the test when the model cannot be made or run. */
fixture *fixture_get(const char *name);

/* At the end of a group of tests. */
int fixture_free(void **state);

/* Generates and loads one model without keeping it. */
struct llama_model *fixture_load(const char *name, enum ggml_type weights);

/* A new folder for files of this test; removed by fixture_free when empty. */
const char *fixture_folder(void);

/* rows * vocabulary floats, or the test fails. */
float *fixture_logits(int32_t n_vocab, int32_t rows);

/* These fail the test with the sentence of what went wrong. */

void fixture_open(arm *a, const fixture *f, const arm_options *o);

/* Positions [pos, pos + n) of the text as sequence 0. logits: NULL, or a table of which rows pos .. are filled. */
void fixture_feed(arm *a, const fixture *f, int32_t pos, int32_t n, float *logits);

/* Rows [from, to) of x and y, bit for bit. */
void fixture_expect_same(const fixture *f, const char *what, const float *x, const float *y, int32_t from, int32_t to);

#endif
