/* SPDX-License-Identifier: MIT
 * bias-keys IN.gguf OUT.gguf VALUE CHANNELS
 * Writes the same model with VALUE added to the last CHANNELS channels of every key head, before RoPE: those are the pairs that turn
 * slowest. Models with such keys exist; codecs that share a scale over channels must cope with them. Llama models only: they take an
 * optional bias of the key projection. The whole file is in memory while it is copied. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "ggml.h"
#include "gguf.h"

static uint32_t number(const struct gguf_context *meta, const char *name)
{
    int64_t key = gguf_find_key(meta, name);
    return key >= 0 && gguf_get_kv_type(meta, key) == GGUF_TYPE_UINT32 ? gguf_get_val_u32(meta, key) : 0;
}

static void add_bias(struct gguf_context *meta, struct ggml_context *room, uint32_t layer, uint32_t heads, uint32_t dim,
                     float value, uint32_t channels)
{
    struct ggml_tensor *t = ggml_new_tensor_1d(room, GGML_TYPE_F32, (int64_t)heads * dim);
    float *bias = t->data;
    for (uint32_t i = 0; i < heads * dim; i++) bias[i] = i % dim >= dim - channels ? value : 0;
    ggml_format_name(t, "blk.%u.attn_k.bias", layer);
    gguf_add_tensor(meta, t);
}

static int copy(const char *in, const char *path, float value, uint32_t channels)
{
    struct ggml_context *weights = NULL;
    struct gguf_context *meta = gguf_init_from_file(in, (struct gguf_init_params){.no_alloc = false, .ctx = &weights});
    if (!meta) return fprintf(stderr, "bias-keys: cannot read %s\n", in), 2;
    uint32_t layers = number(meta, "llama.block_count"), heads = number(meta, "llama.attention.head_count_kv"),
             q_heads = number(meta, "llama.attention.head_count"),
             dim = q_heads ? number(meta, "llama.embedding_length") / q_heads : 0;
    if (!layers || !heads || !dim || channels > dim)
        return fprintf(stderr, "bias-keys: %s is not a llama model of that shape\n", in), 2;
    struct ggml_context *room =
        ggml_init((struct ggml_init_params){.mem_size = layers * (ggml_tensor_overhead() + 4ul * heads * dim + 64)});
    struct gguf_context *out = gguf_init_empty();
    gguf_set_kv(out, meta);
    for (int64_t i = 0; i < gguf_get_n_tensors(meta); i++)
        gguf_add_tensor(out, ggml_get_tensor(weights, gguf_get_tensor_name(meta, i)));
    for (uint32_t i = 0; i < layers; i++) add_bias(out, room, i, heads, dim, value, channels);
    const int ok = gguf_write_to_file(out, path, false);
    gguf_free(out), gguf_free(meta), ggml_free(weights), ggml_free(room);
    return ok ? 0 : (fprintf(stderr, "bias-keys: cannot write %s\n", path), remove(path), 2);
}

int main(int argc, char **argv)
{
    if (argc != 5) return fprintf(stderr, "usage: bias-keys IN.gguf OUT.gguf VALUE CHANNELS\n"), 1;
    return copy(argv[1], argv[2], strtof(argv[3], NULL), (uint32_t)strtoul(argv[4], NULL, 10));
}
