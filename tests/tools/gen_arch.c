/* SPDX-License-Identifier: MIT
 * Keys and tensors of each architecture, as libllama's loader asks for them. */
#include "gen_arch.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define NORM_EPS 1e-5f

static bool has(const gen *g, unsigned style)
{
    return (g->m->style & style) != 0;
}

/* ---- pieces --------------------------------------------------------------------------------------------------------------- */

static void weighted_norm(gen *g, int32_t il, const char *name, int64_t n, float weight)
{
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    gen_vector(g, il, full, n, GEN_NORMAL, weight, 0.1f * weight);
    snprintf(full, sizeof full, "%s.bias", name);
    if (has(g, GEN_NORM_BIAS)) gen_vector(g, il, full, n, GEN_NORMAL, 0, 0.1f);
}

static void norm(gen *g, int32_t il, const char *name, int64_t n)
{
    weighted_norm(g, il, name, n, 1);
}

/* Weight w on both sides gives scores of deviation w^2 sqrt(dim) where they are not divided by sqrt(dim). */
static void qk_norms(gen *g, int32_t il, int32_t dim)
{
    float w = has(g, GEN_UNIT_SCALE) ? 1.2f / sqrtf(sqrtf((float)dim)) : 1.2f;
    gen_vector(g, il, "attn_q_norm.weight", dim, GEN_NORMAL, w, 0.1f * w);
    gen_vector(g, il, "attn_k_norm.weight", dim, GEN_NORMAL, w, 0.1f * w);
}

/* Gain 1.3 in queries and keys: scores spread over a few units, so that history matters and no key takes all. */
static void projections(gen *g, int32_t il, const gen_layer *l)
{
    int64_t embd = g->m->embd, q = (int64_t)l->q_heads * l->k_dim;
    int64_t k = (int64_t)l->kv_heads * l->k_dim, v = (int64_t)l->kv_heads * l->v_dim;
    bool own = l->share < 0 || !has(g, GEN_V_FROM_K), values = own && (l->window || !has(g, GEN_V_FROM_K));
    if (has(g, GEN_FUSED_QKV)) {
        gen_matrix(g, il, "attn_qkv.weight", embd, q + k + v, 1.3f);
        return;
    }
    gen_matrix(g, il, "attn_q.weight", embd, q, 1.3f);
    if (own) gen_matrix(g, il, "attn_k.weight", embd, k, 1.3f);
    if (values) gen_matrix(g, il, "attn_v.weight", embd, v, 1);
    if (has(g, GEN_QKV_BIAS)) {
        gen_vector(g, il, "attn_q.bias", q, GEN_NORMAL, 0, 0.3f);
        gen_vector(g, il, "attn_k.bias", k, GEN_STRONG, 0, 0.5f);
        gen_vector(g, il, "attn_v.bias", v, GEN_NORMAL, 0, 0.3f);
    }
    if (has(g, GEN_QK_NORM)) qk_norms(g, il, l->k_dim);
}

/* Averaging over many values shrinks them: gain 2 keeps the attention's share in the residual stream. */
static void attention(gen *g, int32_t il, const gen_layer *l)
{
    projections(g, il, l);
    gen_matrix(g, il, "attn_output.weight", (int64_t)l->q_heads * l->v_dim, g->m->embd, 2);
}

static void feed_forward(gen *g, int32_t il)
{
    int64_t embd = g->m->embd, ff = g->m->ff;
    if (!has(g, GEN_NO_GATE)) gen_matrix(g, il, "ffn_gate.weight", embd, ff, 1);
    gen_matrix(g, il, "ffn_up.weight", embd, ff, 1);
    gen_matrix(g, il, "ffn_down.weight", ff, embd, 1);
}

static void decoder_layer(gen *g, int32_t il)
{
    gen_layer l;
    float post = g->m->post_norm > 0 ? g->m->post_norm : 1;
    gen_model_layer(g->m, il, &l);
    norm(g, il, "attn_norm", g->m->embd);
    attention(g, il, &l);
    if (has(g, GEN_POST_NORM)) weighted_norm(g, il, "post_attention_norm", g->m->embd, post);
    if (!has(g, GEN_PARALLEL)) norm(g, il, "ffn_norm", g->m->embd);
    feed_forward(g, il);
    if (has(g, GEN_POST_NORM)) weighted_norm(g, il, "post_ffw_norm", g->m->embd, post);
}

/* ---- whole models --------------------------------------------------------------------------------------------------------- */

static void window_keys(gen *g)
{
    uint32_t windowed[256];
    char name[128];
    if (!g->m->window) return;
    gen_u32(g, "attention.sliding_window", (uint32_t)g->m->window);
    if (g->m->rope_base_window > 0) gen_f32(g, "rope.freq_base_swa", g->m->rope_base_window);
    if (!has(g, GEN_WINDOW_PATTERN)) return;
    for (int32_t il = 0; il < g->m->layers; il++) windowed[il] = (il + 1) % g->m->full_every != 0;
    snprintf(name, sizeof name, "%s.attention.sliding_window_pattern", g->m->arch);
    gguf_set_arr_data(g->meta, name, GGUF_TYPE_UINT32, windowed, (size_t)g->m->layers);
}

static void rope_keys(gen *g)
{
    const gen_model *m = g->m;
    char name[128];
    if (m->rope_base > 0) gen_f32(g, "rope.freq_base", m->rope_base);
    if (m->original_context) gen_u32(g, "rope.scaling.original_context_length", (uint32_t)m->original_context);
    if (m->rope_factor > 0) gen_f32(g, "rope.scaling.factor", m->rope_factor);
    if (m->rope_scaling) {
        snprintf(name, sizeof name, "%s.rope.scaling.type", m->arch);
        gguf_set_val_str(g->meta, name, m->rope_scaling);
    }
    if (m->rope_factors == GEN_FACTORS_LONG_SHORT) gen_f32(g, "rope.scaling.attn_factor", 1.19f);
}

static void head_keys(gen *g)
{
    const gen_model *m = g->m;
    int32_t full = m->head_dim_full ? m->head_dim_full : m->head_dim;
    gen_u32(g, "attention.head_count", (uint32_t)m->heads);
    gen_u32(g, "attention.head_count_kv", (uint32_t)m->kv_heads);
    gen_u32(g, "attention.key_length", (uint32_t)(m->latent ? m->latent + m->rope_dims : full));
    gen_u32(g, "attention.value_length", (uint32_t)(m->latent ? m->latent : full));
    gen_u32(g, "rope.dimension_count", (uint32_t)(m->rope_dims ? m->rope_dims : full));
}

/* The byte tokens of a SentencePiece vocabulary and nothing else; no token is put before a text. */
static void byte_keys(gen *g)
{
    enum { BYTE_TOKEN = 6 };
    char text[GEN_VOCAB][8];
    const char *token[GEN_VOCAB];
    float score[GEN_VOCAB] = {0};
    int32_t type[GEN_VOCAB];
    for (int i = 0; i < GEN_VOCAB; i++) {
        snprintf(text[i], sizeof text[i], "<0x%02X>", (unsigned)i);
        token[i] = text[i];
        type[i] = BYTE_TOKEN;
    }
    gguf_set_arr_str(g->meta, "tokenizer.ggml.tokens", token, GEN_VOCAB);
    gguf_set_arr_data(g->meta, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, score, GEN_VOCAB);
    gguf_set_arr_data(g->meta, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, type, GEN_VOCAB);
    gguf_set_val_bool(g->meta, "tokenizer.ggml.add_bos_token", false);
    gguf_set_val_bool(g->meta, "tokenizer.ggml.add_space_prefix", false);
}

static void common_keys(gen *g)
{
    const gen_model *m = g->m;
    gguf_set_val_str(g->meta, "general.architecture", m->arch);
    gguf_set_val_str(g->meta, "general.name", m->name);
    gguf_set_val_str(g->meta, "tokenizer.ggml.model", m->bytes ? "llama" : "none");
    if (m->bytes) byte_keys(g);
    gen_u32(g, "vocab_size", GEN_VOCAB);
    gen_u32(g, "context_length", (uint32_t)(m->context ? m->context : 131072));
    gen_u32(g, "embedding_length", (uint32_t)m->embd);
    gen_u32(g, "block_count", (uint32_t)m->layers);
    gen_u32(g, "feed_forward_length", (uint32_t)m->ff);
    gen_f32(g, has(g, GEN_LAYER_NORM) ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", NORM_EPS);
    if (m->heads) head_keys(g);
    rope_keys(g);
    window_keys(g);
    if (m->experts) {
        gen_u32(g, "expert_count", (uint32_t)m->experts);
        gen_u32(g, "expert_used_count", (uint32_t)(m->experts / 2));
    }
    if (m->keys) m->keys(g);
}

static void rope_tensors(gen *g)
{
    int32_t full = g->m->head_dim_full ? g->m->head_dim_full : g->m->head_dim;
    int64_t pairs = (g->m->rope_dims ? g->m->rope_dims : full) / 2;
    switch (g->m->rope_factors) {
    case GEN_FACTORS_SMOOTH: gen_vector(g, -1, "rope_freqs.weight", pairs, GEN_SMOOTH, 32, 0); break;
    case GEN_FACTORS_QUARTER: gen_vector(g, -1, "rope_freqs.weight", pairs, GEN_QUARTER, 0, 0); break;
    case GEN_FACTORS_LONG_SHORT:
        gen_vector(g, -1, "rope_factors_short.weight", pairs, GEN_SMOOTH, 1.5f, 0);
        gen_vector(g, -1, "rope_factors_long.weight", pairs, GEN_SMOOTH, 24, 0);
        break;
    case GEN_FACTORS_NONE: break;
    }
}

void gen_declare(gen *g)
{
    const gen_model *m = g->m;
    float unit = sqrtf((float)m->embd);
    common_keys(g);
    gen_matrix(g, -1, "token_embd.weight", m->embd, GEN_VOCAB, has(g, GEN_SCALED_EMBD) ? 1 : has(g, GEN_TIED) ? 2 : unit);
    if (!has(g, GEN_TIED)) gen_matrix(g, -1, "output.weight", m->embd, GEN_VOCAB, 2);
    if (m->globals)
        m->globals(g);
    else
        norm(g, -1, "output_norm", m->embd);
    rope_tensors(g);
    for (int32_t il = 0; il < m->layers; il++) {
        if (m->layer)
            m->layer(g, il);
        else
            decoder_layer(g, il);
        if (m->extra) m->extra(g, il);
    }
}

/* ---- architectures -------------------------------------------------------------------------------------------------------- */

void gen_keys_cohere2(gen *g)
{
    gen_f32(g, "logit_scale", 0.25f);
}

void gen_keys_qwen2vl(gen *g)
{
    char name[128];
    int32_t sections[4] = {g->m->head_dim / 8, g->m->head_dim * 3 / 16, g->m->head_dim * 3 / 16, 0};
    snprintf(name, sizeof name, "%s.rope.dimension_sections", g->m->arch);
    gguf_set_arr_data(g->meta, name, GGUF_TYPE_INT32, sections, 4);
}

void gen_keys_mpt(gen *g)
{
    gen_f32(g, "attention.max_alibi_bias", 8);
}

/* A cap of 5 bends scores of this size; the 50 of the real model would be invisible here. */
void gen_keys_gemma2(gen *g)
{
    gen_f32(g, "attn_logit_softcapping", 5);
    gen_f32(g, "final_logit_softcapping", 30);
}

void gen_keys_gemma4(gen *g)
{
    gen_u32(g, "attention.key_length_swa", (uint32_t)g->m->head_dim);
    gen_u32(g, "attention.value_length_swa", (uint32_t)g->m->head_dim);
    gen_u32(g, "rope.dimension_count_swa", (uint32_t)g->m->head_dim);
    gen_u32(g, "attention.shared_kv_layers", (uint32_t)g->m->shared);
    gen_u32(g, "embedding_length_per_layer_input", 0);
}

void gen_keys_experts(gen *g)
{
    gen_u32(g, "expert_feed_forward_length", (uint32_t)g->m->ff);
}

/* No layer has experts, but the loader wants some to exist. */
void gen_keys_llama4(gen *g)
{
    gen_keys_experts(g);
    gen_u32(g, "interleave_moe_layer_step", 0);
}

void gen_layer_gpt_oss(gen *g, int32_t il)
{
    const gen_model *m = g->m;
    gen_layer l;
    float in = 1 / sqrtf((float)m->embd), down = 1 / sqrtf((float)m->ff);
    gen_model_layer(m, il, &l);
    norm(g, il, "attn_norm", m->embd);
    attention(g, il, &l);
    gen_vector(g, il, "attn_output.bias", m->embd, GEN_NORMAL, 0, 0.1f);
    gen_vector(g, il, "attn_sinks.weight", m->heads, GEN_NORMAL, 3, 1);
    norm(g, il, "post_attention_norm", m->embd);
    gen_matrix(g, il, "ffn_gate_inp.weight", m->embd, m->experts, 1);
    gen_vector(g, il, "ffn_gate_inp.bias", m->experts, GEN_NORMAL, 0, 0.1f);
    gen_table(g, il, "ffn_gate_exps.weight", m->embd, m->ff, m->experts, GEN_NORMAL, 0, in);
    gen_table(g, il, "ffn_gate_exps.bias", m->ff, m->experts, 0, GEN_NORMAL, 0, 0.1f);
    gen_table(g, il, "ffn_up_exps.weight", m->embd, m->ff, m->experts, GEN_NORMAL, 0, in);
    gen_table(g, il, "ffn_up_exps.bias", m->ff, m->experts, 0, GEN_NORMAL, 0, 0.1f);
    gen_table(g, il, "ffn_down_exps.weight", m->ff, m->embd, m->experts, GEN_NORMAL, 0, down);
    gen_table(g, il, "ffn_down_exps.bias", m->embd, m->experts, 0, GEN_NORMAL, 0, 0.1f);
}

/* A layer without KV heads is a convolution. */
void gen_keys_lfm2(gen *g)
{
    uint32_t kv_heads[256];
    char name[128];
    for (int32_t il = 0; il < g->m->layers; il++) kv_heads[il] = (il + 1) % g->m->attention_every ? 0 : (uint32_t)g->m->kv_heads;
    snprintf(name, sizeof name, "%s.attention.head_count_kv", g->m->arch);
    gguf_set_arr_data(g->meta, name, GGUF_TYPE_UINT32, kv_heads, (size_t)g->m->layers);
    gen_u32(g, "shortconv.l_cache", 3);
}

void gen_globals_lfm2(gen *g)
{
    norm(g, -1, "token_embd_norm", g->m->embd);
}

void gen_layer_lfm2(gen *g, int32_t il)
{
    int32_t embd = g->m->embd;
    gen_layer l;
    gen_model_layer(g->m, il, &l);
    norm(g, il, "attn_norm", embd);
    if (l.attention) {
        attention(g, il, &l);
    } else {
        gen_table(g, il, "shortconv.conv.weight", 3, embd, 0, GEN_NORMAL, 0, 0.6f);
        gen_matrix(g, il, "shortconv.in_proj.weight", embd, 3 * embd, 1);
        gen_matrix(g, il, "shortconv.out_proj.weight", embd, embd, 1);
    }
    norm(g, il, "ffn_norm", embd);
    feed_forward(g, il);
}

/* The leading layers are dense, and all of them lead. */
void gen_keys_deepseek2(gen *g)
{
    const gen_model *m = g->m;
    gen_u32(g, "attention.kv_lora_rank", (uint32_t)m->latent);
    gen_u32(g, "attention.q_lora_rank", (uint32_t)m->query_latent);
    gen_u32(g, "attention.key_length_mla", (uint32_t)m->head_dim);
    gen_u32(g, "attention.value_length_mla", (uint32_t)m->v_dim);
    gen_u32(g, "leading_dense_block_count", (uint32_t)m->layers);
    gen_u32(g, "expert_feed_forward_length", (uint32_t)m->ff);
    gen_u32(g, "expert_shared_count", 1);
    gen_u32(g, "expert_gating_func", 1);
    if (m->indexer_heads) {
        gen_u32(g, "attention.indexer.head_count", (uint32_t)m->indexer_heads);
        gen_u32(g, "attention.indexer.key_length", 128);
        gen_u32(g, "attention.indexer.top_k", 64);
    }
}

static void indexer(gen *g, int32_t il)
{
    gen_vector(g, il, "indexer.k_norm.weight", 128, GEN_NORMAL, 1, 0.1f);
    gen_vector(g, il, "indexer.k_norm.bias", 128, GEN_NORMAL, 0, 0.1f);
    gen_matrix(g, il, "indexer.proj.weight", g->m->embd, g->m->indexer_heads, 1);
    gen_matrix(g, il, "indexer.attn_k.weight", g->m->embd, 128, 1);
    gen_matrix(g, il, "indexer.attn_q_b.weight", g->m->query_latent, (int64_t)g->m->indexer_heads * 128, 1);
}

void gen_layer_deepseek2(gen *g, int32_t il)
{
    const gen_model *m = g->m;
    int64_t embd = m->embd, q = (int64_t)m->heads * m->head_dim;
    float from_latent = 1 / sqrtf((float)m->latent);
    norm(g, il, "attn_norm", embd);
    if (m->query_latent) {
        gen_matrix(g, il, "attn_q_a.weight", embd, m->query_latent, 1);
        norm(g, il, "attn_q_a_norm", m->query_latent);
        gen_matrix(g, il, "attn_q_b.weight", m->query_latent, q, 1.3f);
    } else {
        gen_matrix(g, il, "attn_q.weight", embd, q, 1.3f);
    }
    gen_matrix(g, il, "attn_kv_a_mqa.weight", embd, m->latent + m->rope_dims, 1.3f);
    norm(g, il, "attn_kv_a_norm", m->latent);
    gen_table(g, il, "attn_k_b.weight", m->head_dim - m->rope_dims, m->latent, m->heads, GEN_NORMAL, 0, 1.3f * from_latent);
    gen_table(g, il, "attn_v_b.weight", m->latent, m->v_dim, m->heads, GEN_NORMAL, 0, from_latent);
    gen_matrix(g, il, "attn_output.weight", (int64_t)m->heads * m->v_dim, embd, 2);
    if (m->indexer_heads) indexer(g, il);
    norm(g, il, "ffn_norm", embd);
    feed_forward(g, il);
}

/* Sizes that the architecture fixes. */
enum { ALTUP_INPUTS = 4, ALTUP_EMBD = 256, LAUREL_RANK = 64 };

void gen_globals_gemma3n(gen *g)
{
    int64_t embd = g->m->embd, per_layer = (int64_t)ALTUP_EMBD * g->m->layers;
    float in = 1 / sqrtf((float)embd);
    norm(g, -1, "output_norm", embd);
    gen_table(g, -1, "altup_proj.weight", embd, embd, ALTUP_INPUTS - 1, GEN_NORMAL, 0, in);
    gen_table(g, -1, "altup_unembd_proj.weight", embd, embd, ALTUP_INPUTS - 1, GEN_NORMAL, 0, in);
    gen_table(g, -1, "per_layer_token_embd.weight", per_layer, GEN_VOCAB, 0, GEN_NORMAL, 0, 1 / sqrtf((float)ALTUP_EMBD));
    gen_table(g, -1, "per_layer_model_proj.weight", embd, per_layer, 0, GEN_NORMAL, 0, 1);
    norm(g, -1, "per_layer_proj_norm", ALTUP_EMBD);
}

void gen_extra_gemma3n(gen *g, int32_t il)
{
    int64_t embd = g->m->embd;
    gen_matrix(g, il, "inp_gate.weight", embd, ALTUP_EMBD, 1);
    gen_matrix(g, il, "proj.weight", ALTUP_EMBD, embd, 1);
    norm(g, il, "post_norm", embd);
    gen_table(g, il, "altup_correct_coef.weight", ALTUP_INPUTS, ALTUP_INPUTS, 0, GEN_NORMAL, 0, 0.1f);
    norm(g, il, "altup_correct_scale", embd);
    gen_table(g, il, "altup_predict_coef.weight", ALTUP_INPUTS, ALTUP_INPUTS * ALTUP_INPUTS, 0, GEN_NORMAL, 0, 0.1f);
    gen_table(g, il, "altup_router.weight", embd, ALTUP_INPUTS, 0, GEN_NORMAL, 0, 4);
    norm(g, il, "altup_router_norm", embd);
    gen_matrix(g, il, "laurel_l.weight", embd, LAUREL_RANK, 1);
    gen_matrix(g, il, "laurel_r.weight", LAUREL_RANK, embd, 1);
    norm(g, il, "laurel_post_norm", embd);
}

enum { SSM_KERNEL = 4, SSM_STATE = 16, SSM_RANK = 8 };

void gen_keys_mamba(gen *g)
{
    gen_u32(g, "ssm.conv_kernel", SSM_KERNEL);
    gen_u32(g, "ssm.inner_size", (uint32_t)(2 * g->m->embd));
    gen_u32(g, "ssm.state_size", SSM_STATE);
    gen_u32(g, "ssm.time_step_rank", SSM_RANK);
}

void gen_layer_mamba(gen *g, int32_t il)
{
    int64_t embd = g->m->embd, inner = 2 * embd;
    norm(g, il, "attn_norm", embd);
    gen_matrix(g, il, "ssm_in.weight", embd, 2 * inner, 1);
    gen_table(g, il, "ssm_conv1d.weight", SSM_KERNEL, inner, 0, GEN_NORMAL, 0, 0.5f);
    gen_vector(g, il, "ssm_conv1d.bias", inner, GEN_NORMAL, 0, 0.1f);
    gen_matrix(g, il, "ssm_x.weight", inner, SSM_RANK + 2 * SSM_STATE, 1);
    gen_matrix(g, il, "ssm_dt.weight", SSM_RANK, inner, 1);
    gen_vector(g, il, "ssm_dt.bias", inner, GEN_NORMAL, 0, 0.1f);
    gen_table(g, il, "ssm_a", SSM_STATE, inner, 0, GEN_NEGATIVE, 1, 0.3f);
    gen_vector(g, il, "ssm_d", inner, GEN_NORMAL, 1, 0.1f);
    gen_matrix(g, il, "ssm_out.weight", inner, embd, 1);
}

void gen_keys_bert(gen *g)
{
    gguf_set_val_u32(g->meta, "tokenizer.ggml.token_type_count", 2);
    gguf_set_val_bool(g->meta, "bert.attention.causal", false);
}

void gen_globals_bert(gen *g)
{
    gen_table(g, -1, "position_embd.weight", g->m->embd, g->m->context, 0, GEN_NORMAL, 0, 0.3f);
    norm(g, -1, "token_embd_norm", g->m->embd);
}

void gen_layer_bert(gen *g, int32_t il)
{
    gen_layer l;
    gen_model_layer(g->m, il, &l);
    attention(g, il, &l);
    norm(g, il, "attn_output_norm", g->m->embd);
    feed_forward(g, il);
    norm(g, il, "layer_output_norm", g->m->embd);
}
