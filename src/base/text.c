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
