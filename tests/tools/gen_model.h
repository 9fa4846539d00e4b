/* SPDX-License-Identifier: MIT
 * Test models with random weights: GGUF files that stock libllama loads, one for each kind of attention that a host can meet.
 * The same name gives the same bytes on every machine (no library function that rounds freely is used on the weights).
 * There is no tokenizer, unless `bytes` is set: token ids 0 .. GEN_VOCAB-1 are fed directly. */
#ifndef KVF_TESTS_GEN_MODEL_H
#define KVF_TESTS_GEN_MODEL_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "ggml.h"

#define GEN_VOCAB 256

struct gen;

/* How a decoder layer departs from the plain one (RMS norm, separate Q K V without bias, gated feed-forward, own output matrix). */
enum gen_style {
    GEN_LAYER_NORM = 1 << 0,
    GEN_NORM_BIAS = 1 << 1,
    GEN_TIED = 1 << 2,     /* the output matrix is the embedding */
    GEN_PARALLEL = 1 << 3, /* no norm before the feed-forward, which runs beside the attention */
    GEN_QKV_BIAS = 1 << 4,
    GEN_FUSED_QKV = 1 << 5,
    GEN_NO_GATE = 1 << 6,
    GEN_POST_NORM = 1 << 7,
    GEN_QK_NORM = 1 << 8,
    GEN_UNIT_SCALE = 1 << 9,      /* scores are not divided by sqrt(head size) */
    GEN_SCALED_EMBD = 1 << 10,    /* the graph multiplies embeddings by sqrt(embd) */
    GEN_WINDOW_PATTERN = 1 << 11, /* the file lists which layers are windowed; else the architecture's rule holds */
    GEN_V_FROM_K = 1 << 12        /* full layers project no values: they are the keys before norm and RoPE */
};

enum gen_factors {
    GEN_FACTORS_NONE,
    GEN_FACTORS_SMOOTH,    /* rope_freqs, 1 for fast channels to 32 for slow ones */
    GEN_FACTORS_QUARTER,   /* rope_freqs, a quarter of the channels turns, the others stand still */
    GEN_FACTORS_LONG_SHORT /* rope_factors_long and rope_factors_short */
};

typedef struct gen_model {
    const char *name, *arch, *exercises;
    const char *refused; /* NULL, or why kvfold must refuse it */
    int32_t layers, embd, heads, kv_heads, head_dim, ff;
    int32_t head_dim_full; /* of layers without window; 0: head_dim */
    int32_t v_dim;         /* 0: head_dim */
    int32_t latent;        /* rank of the compressed KV of latent attention; 0: ordinary attention */
    int32_t query_latent;  /* rank of compressed queries */
    int32_t indexer_heads;
    int32_t window, full_every; /* layers with (il + 1) % full_every == 0 are full, the others see `window` tokens; 0: all full */
    int32_t attention_every;    /* layers with (il + 1) % attention_every == 0 have attention; 0: all */
    int32_t shared;             /* the last `shared` layers read the KV of an earlier layer */
    int32_t experts;
    int32_t context; /* training length; 0: 131072 */
    float rope_base, rope_base_window;
    int32_t rope_dims;     /* 0: the head size */
    int32_t no_rope_every; /* layers with (il + 1) % no_rope_every == 0 have no RoPE; 0: all have */
    const char *rope_scaling;
    float rope_factor;
    int32_t original_context;
    enum gen_factors rope_factors;
    float post_norm; /* weight of the norms after attention and feed-forward; 0: 1 */
    unsigned style;
    int32_t bytes;                           /* 1: a tokenizer, whose tokens are the 256 bytes, so that the model reads text */
    void (*keys)(struct gen *);              /* metadata beyond the common keys */
    void (*globals)(struct gen *);           /* tensors outside the layers, beyond the common ones */
    void (*layer)(struct gen *, int32_t il); /* NULL: the decoder layer */
    void (*extra)(struct gen *, int32_t il); /* tensors of a layer beyond those */
} gen_model;

/* What a host must find out about one layer. */
typedef struct gen_layer {
    int32_t attention;
    int32_t q_heads, kv_heads, k_dim, v_dim;
    int32_t window;    /* 0: full */
    int32_t share;     /* layer whose KV it reads, -1: own */
    int32_t v_in_k;    /* values are the first channels of the keys */
    int32_t rope_dims; /* 0: no RoPE */
} gen_layer;

/* NULL past the end, and for a name that does not exist. */
const gen_model *gen_model_at(int32_t i);
const gen_model *gen_model_find(const char *name);

void gen_model_layer(const gen_model *m, int32_t il, gen_layer *layer);

/* Writes the model; matrices in `weights` where their rows fit its blocks, else f32. -1 with a sentence on failure; no file is
 * left then. */
int gen_model_write(const gen_model *m, enum ggml_type weights, const char *path, char *error, size_t error_size);

/* The table of docs/SUPPORT.md. */
void gen_model_support(FILE *f);

#endif
