/* SPDX-License-Identifier: MIT
 * Sentences: the last failure of a handle, and the caller's log. */
#include "adapter.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int kvfi_host_fail(kvf_llama *h, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(h->error, sizeof h->error, format, args);
    va_end(args);
    return code;
}

/* Takes over the cache's own sentence: `what` says where it happened, in layers of the model. */
int kvfi_host_fail_cache(kvf_llama *h, int code, const char *what)
{
    const char *sentence = kvf_cache_error(h->cache);
    return kvfi_host_fail(h, code, "%s: %s", what, *sentence ? sentence : kvf_strerror(code));
}

void kvfi_host_log(const kvf_llama *h, kvf_log_level level, const char *format, ...)
{
    if (!h->log) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    h->log(h->log_user, level, line);
}

const char *kvf_llama_error(const kvf_llama *h)
{
    return h ? h->error : "no handle";
}
