/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "gguf_out.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf.h"

static int fail(gguf_out *o, const char *what, int code)
{
    snprintf(o->error, sizeof o->error, "cannot %s %s: %s", what, o->path, strerror(code));
    return -1;
}

static int write_meta(gguf_out *o, const struct gguf_context *meta)
{
    size_t size = gguf_get_meta_size(meta);
    void *bytes = malloc(size);
    if (!bytes) return fail(o, "hold the metadata of", ENOMEM);
    gguf_get_meta_data(meta, bytes);
    int rc = gguf_out_write(o, bytes, size);
    free(bytes);
    o->written = 0;
    return rc;
}

int gguf_out_open(gguf_out *o, const char *path, const struct gguf_context *meta)
{
    memset(o, 0, sizeof *o);
    o->alignment = gguf_get_alignment(meta);
    o->path = path;
    if (whole_file_open(&o->to, path) != 0) return fail(o, "create", errno);
    o->file = fdopen(o->to.fd, "wb");
    if (!o->file) return fail(o, "create", errno);
    return write_meta(o, meta);
}

int gguf_out_write(gguf_out *o, const void *data, size_t size)
{
    errno = 0;
    if (fwrite(data, 1, size, o->file) != size) return fail(o, "write", errno ? errno : EIO);
    o->written += size;
    return 0;
}

int gguf_out_pad(gguf_out *o)
{
    static const char zeros[64];
    size_t rest = (size_t)(o->written % o->alignment);
    size_t left = rest ? o->alignment - rest : 0;
    while (left) {
        size_t n = left < sizeof zeros ? left : sizeof zeros;
        if (gguf_out_write(o, zeros, n)) return -1;
        left -= n;
    }
    return 0;
}

int gguf_out_close(gguf_out *o)
{
    int copy = fflush(o->file) == 0 ? dup(o->to.fd) : -1; /* stdio owns the one that it was given */
    if (copy < 0) return fail(o, "write", errno);
    fclose(o->file);
    o->file = NULL;
    o->to.fd = copy;
    return whole_file_close(&o->to) == 0 ? 0 : fail(o, "write", errno);
}

void gguf_out_abort(gguf_out *o)
{
    if (o->file) fclose(o->file), o->to.fd = -1;
    o->file = NULL;
    whole_file_abort(&o->to);
}
