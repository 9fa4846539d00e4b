/* SPDX-License-Identifier: MIT */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

void kvfi_sentence(char *error, size_t size, const char *format, ...)
{
    if (!error || !size) return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(error, size, format, args);
    va_end(args);
    if (n < 0) error[0] = '\0';
}

kvfi_shown kvfi_show(const char *text, size_t n)
{
    kvfi_shown s;
    if (n > KVFI_SHOWN - 1) n = KVFI_SHOWN - 1;
    for (size_t i = 0; i < n; i++) s.text[i] = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
    s.text[n] = '\0';
    return s;
}
