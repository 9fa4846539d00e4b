/* SPDX-License-Identifier: MIT
 * Reading the tensors of a graph: names, views, buffers, parameters. */
#include "adapter.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* The tensor that owns the memory of a view; copies that the scheduler or the graph made are looked through. */
const struct ggml_tensor *kvfi_host_root(const struct ggml_tensor *t)
{
    while (t) {
        if (t->view_src)
            t = t->view_src;
        else if (t->op == GGML_OP_CPY && t->src[0])
            t = t->src[0];
        else
            break;
    }
    return t;
}

/* Layer of "cache_k_l<n>" (side 'k') or "cache_v_l<n>", -1 when the name is another. The scheduler puts text around names. */
int32_t kvfi_host_cache_layer(const struct ggml_tensor *t, char side)
{
    char key[] = "cache_?_l";
    key[6] = side;
    const char *at = t ? strstr(t->name, key) : NULL;
    if (!at) return -1;
    at += sizeof key - 1;
    if (!isdigit((unsigned char)*at)) return -1;
    long n = strtol(at, NULL, 10);
    return n < 65536 ? (int32_t)n : -1;
}

int kvfi_host_is_cache(const struct ggml_tensor *t)
{
    return t && strstr(t->name, "cache_") != NULL;
}

/* Nodes that a model names carry their layer: "attn_norm-12", "Qcur-12 (view)". -1: none. */
int32_t kvfi_host_name_layer(const char *name)
{
    const char *end = strstr(name, " (");
    if (!end) end = name + strlen(name);
    const char *at = end;
    while (at > name && isdigit((unsigned char)at[-1])) at--;
    if (at == end || at - name < 2 || at[-1] != '-' || end - at > 5) return -1;
    return (int32_t)strtol(at, NULL, 10);
}

int kvfi_host_in_host_memory(const struct ggml_tensor *t)
{
    ggml_backend_buffer_t buffer = t->view_src ? t->view_src->buffer : t->buffer;
    return t->data && (!buffer || ggml_backend_buffer_is_host(buffer));
}

float kvfi_host_param(const struct ggml_tensor *t, int i)
{
    float value;
    memcpy(&value, &t->op_params[i], sizeof value);
    return value;
}

/* Masks are f16: 0 or, with ALiBi, a distance where visible; -inf where not. */
int kvfi_host_visible(const struct ggml_tensor *mask, int64_t row, int64_t column)
{
    ggml_fp16_t bits;
    memcpy(&bits, (const char *)mask->data + (size_t)row * mask->nb[1] + (size_t)column * mask->nb[0], sizeof bits);
    return bits != 0xFC00;
}
