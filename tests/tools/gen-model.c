/* SPDX-License-Identifier: MIT
 * gen-model [--bytes] NAME OUT.gguf [TYPE]: writes one of the test models; with --bytes, one that reads text. gen-model alone lists
 * them; gen-model --support prints the table of docs/SUPPORT.md. */
#include <stdio.h>
#include <string.h>

#include "gen_model.h"

static int list(FILE *f)
{
    fprintf(f, "usage: gen-model [--bytes] NAME OUT.gguf [f32|f16|bf16|q8_0|q4_0|q4_1|...]\n       gen-model --support\n");
    for (int32_t i = 0; gen_model_at(i); i++)
        fprintf(f, "  %-15s %-11s %s\n", gen_model_at(i)->name, gen_model_at(i)->arch, gen_model_at(i)->exercises);
    return 1;
}

static int can_write(enum ggml_type type)
{
    return type == GGML_TYPE_F32 || (ggml_get_type_traits(type)->to_float && !ggml_quantize_requires_imatrix(type));
}

static int find_type(const char *name, enum ggml_type *type)
{
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char *known = ggml_type_name((enum ggml_type)i);
        *type = (enum ggml_type)i;
        if (known && !strcmp(known, name) && can_write(*type)) return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    char error[512];
    enum ggml_type weights = GGML_TYPE_F32;
    if (argc == 2 && !strcmp(argv[1], "--support")) {
        gen_model_support(stdout);
        return 0;
    }
    int bytes = argc > 1 && !strcmp(argv[1], "--bytes");
    argc -= bytes, argv += bytes;
    if (argc != 3 && argc != 4) return list(stderr);
    const gen_model *known = gen_model_find(argv[1]);
    if (!known) {
        fprintf(stderr, "gen-model: there is no model %s\n", argv[1]);
        return list(stderr);
    }
    if (argc == 4 && !find_type(argv[3], &weights)) {
        fprintf(stderr, "gen-model: %s is no type of weights that can be written\n", argv[3]);
        return 1;
    }
    gen_model m = *known;
    m.bytes = bytes;
    if (gen_model_write(&m, weights, argv[2], error, sizeof error)) {
        fprintf(stderr, "gen-model: %s\n", error);
        return 2;
    }
    return 0;
}
