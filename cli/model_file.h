/* SPDX-License-Identifier: MIT
 * A GGUF model file: is it one, is it whole, what does its header say. No weights are read.
 */
#ifndef KVFOLD_CLI_MODEL_FILE_H
#define KVFOLD_CLI_MODEL_FILE_H

#include "cli.h"

struct gguf_context;

typedef struct model_file {
    const char *path;
    struct gguf_context *gguf; /* header of the (first) file */
    const char *arch;          /* general.architecture */
    int64_t bytes;             /* of all parts */
    int parts;                 /* files of a split model, else 1 */
} model_file;

/* Opens and checks. CLI_GO, or an exit code after one sentence: CLI_USAGE no path, CLI_CANNOT missing or unreadable, CLI_DAMAGED
 * not a GGUF, damaged or truncated. */
int model_file_open(model_file *m, const char *path);
void model_file_close(model_file *m);

/* Keys below the architecture: model_file_int(m, "block_count", ...). True when present with that type. */
bool model_file_int(const model_file *m, const char *key, int64_t *value);
/* Element i of an array, or the number itself when the key is no array. False: absent, or i past the end. */
bool model_file_int_at(const model_file *m, const char *key, int64_t i, int64_t *value);
bool model_file_is_array(const model_file *m, const char *key);
/* Full key. NULL when absent or no string. */
const char *model_file_string(const model_file *m, const char *key);

#endif
