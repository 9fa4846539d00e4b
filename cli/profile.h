/* SPDX-License-Identifier: MIT
 * Profiles: which codec each layer gets, as kvfold tune finds it. A text file, one setting a line, # begins a comment:
 *
 *   # kvfold profile 1
 *   model f0f7dedab51497af          hash of the weights that it was made for (kvf_llama_model_hash); may be missing
 *   calibration 5c4e1f0a2b3d4c5e    hash of the bytes of the calibration file that it was tuned with; missing: with none, or not known
 *   kv turbo3/turbo3                codecs of layers that no line names
 *   0,3,17=turbo4/turbo2            codecs of those layers, as --kv-layer takes them
 */
#ifndef KVFOLD_CLI_PROFILE_H
#define KVFOLD_CLI_PROFILE_H

#include "cli.h"

enum { PROFILE_LINES = 128 };

typedef struct profile {
    cli_text text; /* the file, its lines cut apart; the strings below lie in it */
    const char *kv;
    const char *layers[PROFILE_LINES];
    int n_layers;
    bool has_model, has_calibration;
    uint64_t model, calibration;
} profile;

/* CLI_GO, or CLI_CANNOT or CLI_DAMAGED after a sentence; profile_free is fine either way. */
int profile_read(profile *p, const char *path);
/* The same of text that is at hand; `name` is what sentences call it. */
int profile_parse(profile *p, const char *text, const char *name);
/* Warns when the model or the calibration (paths; NULL: none) are not those that the profile, called `name`, was made for. */
void profile_doubt(const profile *p, const char *name, const char *model, const char *calibration);
void profile_free(profile *p);

#endif
