/* SPDX-License-Identifier: MIT
 * Compiles and links only with a libllama that has every newer name the adapter uses. Never run. */
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "llama.h"

static bool on_node(struct ggml_tensor *t, bool ask, void *user)
{
    (void)user;
    if (ask) return t->op == GGML_OP_FLASH_ATTN_EXT || t->op == GGML_OP_SET_ROWS || t->op == GGML_OP_ROPE;
    t->flags |= GGML_TENSOR_FLAG_COMPUTE;
    return ggml_backend_buffer_is_host(t->buffer);
}

int main(void)
{
    struct llama_context_params p = llama_context_default_params();
    p.cb_eval = on_node;
    p.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    p.kv_unified = true;
    p.swa_full = false;
    struct llama_context *ctx = llama_init_from_model(NULL, p);
    llama_memory_t memory = llama_get_memory(ctx);
    llama_memory_seq_rm(memory, 0, llama_memory_seq_pos_max(memory, 0), -1);
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    return ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads") == NULL || llama_model_n_swa(NULL) ||
           llama_state_seq_get_size_ext(ctx, 0, 0) > 0;
}
