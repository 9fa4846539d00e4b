/* SPDX-License-Identifier: MIT
 * Between gen_model.c (the list, the weights, the file) and gen_arch.c (keys and tensors of each architecture). */
#ifndef KVF_TESTS_GEN_ARCH_H
#define KVF_TESTS_GEN_ARCH_H

#include "gen_model.h"
#include "gguf.h"

/* How a tensor is filled. */
typedef enum gen_fill {
    GEN_NORMAL,   /* mean + sd * about-normal noise */
    GEN_STRONG,   /* the same, and every 16th value 12 times as large */
    GEN_NEGATIVE, /* -|mean + sd * noise| */
    GEN_SMOOTH,   /* from 1 at the first value to `mean` at the last */
    GEN_QUARTER   /* 1 in the first quarter, 1e30 after */
} gen_fill;

/* Weights that a norm needs beyond f32 and those of matrices are f32 always. */
typedef struct gen_tensor {
    gen_fill fill;
    float mean, sd;
} gen_tensor;

#define GEN_TENSORS_MAX 1024

typedef struct gen {
    const gen_model *m;
    enum ggml_type weights;
    struct gguf_context *meta;
    struct ggml_context *shapes;
    gen_tensor tensors[GEN_TENSORS_MAX]; /* beside those of `meta`, in the same order */
    int32_t n;
} gen;

/* Sets "<arch>.<key>". */
void gen_u32(gen *g, const char *key, uint32_t value);
void gen_f32(gen *g, const char *key, float value);

/* Declares tensors. Layer il >= 0 puts "blk.<il>." before the name. */
void gen_vector(gen *g, int32_t il, const char *name, int64_t n, gen_fill fill, float mean, float sd);
/* About gain / sqrt(in) a weight, so that an input of unit variance gives outputs of variance gain^2. */
void gen_matrix(gen *g, int32_t il, const char *name, int64_t in, int64_t out, float gain);
/* A matrix that is never quantised: a kernel or a small table. n2 = 0: two dimensions. */
void gen_table(gen *g, int32_t il, const char *name, int64_t n0, int64_t n1, int64_t n2, gen_fill fill, float mean, float sd);

/* Everything of g->m. */
void gen_declare(gen *g);

/* The functions that models.def names. */
void gen_keys_cohere2(gen *g);
void gen_keys_qwen2vl(gen *g);
void gen_keys_mpt(gen *g);
void gen_keys_gemma2(gen *g);
void gen_keys_gemma4(gen *g);
void gen_keys_experts(gen *g);
void gen_keys_lfm2(gen *g);
void gen_keys_deepseek2(gen *g);
void gen_keys_mamba(gen *g);
void gen_keys_bert(gen *g);
void gen_keys_llama4(gen *g);
void gen_globals_gemma3n(gen *g);
void gen_globals_lfm2(gen *g);
void gen_globals_bert(gen *g);
void gen_layer_gpt_oss(gen *g, int32_t il);
void gen_layer_lfm2(gen *g, int32_t il);
void gen_layer_deepseek2(gen *g, int32_t il);
void gen_layer_mamba(gen *g, int32_t il);
void gen_layer_bert(gen *g, int32_t il);
void gen_extra_gemma3n(gen *g, int32_t il);

#endif
