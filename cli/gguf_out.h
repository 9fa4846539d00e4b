/* SPDX-License-Identifier: MIT
 * Writes a GGUF file piece by piece, so that memory stays bounded by one piece: the metadata first, then the data of each tensor
 * in order. PATH is the old file until all bytes are on the disk (whole_file.h): whoever finds PATH finds it whole. */
#ifndef KVFOLD_CLI_GGUF_OUT_H
#define KVFOLD_CLI_GGUF_OUT_H

#include "whole_file.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct gguf_context;

typedef struct gguf_out {
    FILE *file;
    whole_file to;
    const char *path; /* the caller's */
    uint64_t written; /* bytes of tensor data so far */
    size_t alignment; /* of each tensor's start */
    char error[512];  /* the sentence, after a call that returned -1 */
} gguf_out;

/* All return 0, or -1 with `error` set; gguf_out_abort must then be called. */
int gguf_out_open(gguf_out *o, const char *path, const struct gguf_context *meta);
int gguf_out_write(gguf_out *o, const void *data, size_t size);
int gguf_out_pad(gguf_out *o); /* at the end of every tensor */
int gguf_out_close(gguf_out *o);

/* Removes what was written and is not yet whole. Safe after close and after a failed open. */
void gguf_out_abort(gguf_out *o);

#endif
