/* SPDX-License-Identifier: MIT
 * Links the installed adapter and libllama. Without a model there is only so much to do: it must refuse politely. */
#include <kvfold_llama.h>
#include <llama.h>

#include <stdio.h>

int main(void)
{
    kvf_llama_params p;
    kvf_llama_params_init(&p);
    struct llama_context_params cp = llama_context_default_params();
    kvf_llama *h = NULL;
    char error[256] = "";
    int code = kvf_llama_prepare(NULL, &cp, &p, &h, error, sizeof error);
    printf("%d: %s\n", code, error);
    kvf_llama_free(&h);
    return code < 0 && h == NULL && error[0] ? 0 : 1;
}
