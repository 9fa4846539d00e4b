/* SPDX-License-Identifier: MIT
 * Layers without attention (recurrent, convolution) keep a state of a sequence that cannot be stepped back. It is saved before
 * a decode and put back when the decode fails. */
#include "adapter.h"

#include <stdlib.h>

/* Saves what libllama calls the partial state of a sequence: everything but the cells of full attention. */
int kvfi_host_save_state(kvf_llama *h, int32_t seq)
{
    kvfi_host_state *s = &h->state;
    size_t size = llama_state_seq_get_size_ext(h->ctx, seq, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    if (size > s->capacity) {
        uint8_t *data = realloc(s->data, size);
        if (!data)
            return kvfi_host_fail(h, KVF_E_NOMEM, "out of memory: %zu bytes for the recurrent state of sequence %d", size,
                                  (int)seq);
        s->data = data, s->capacity = size;
    }
    s->size = size ? llama_state_seq_get_data_ext(h->ctx, s->data, size, seq, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) : 0;
    if (!s->size) return kvfi_host_fail(h, KVF_E_HOST, "libllama does not give the recurrent state of sequence %d", (int)seq);
    return KVF_OK;
}

int kvfi_host_restore_state(kvf_llama *h, int32_t seq)
{
    size_t read = llama_state_seq_set_data_ext(h->ctx, h->state.data, h->state.size, seq, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    return read == h->state.size ? KVF_OK : KVF_E_HOST;
}
