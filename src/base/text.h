/* SPDX-License-Identifier: MIT
 * Sentences for people: error texts that name the thing. */
#ifndef KVFI_TEXT_H
#define KVFI_TEXT_H

#include <stddef.h>

#if defined(__GNUC__)
#define KVFI_PRINTF(format_at, first_at) __attribute__((format(printf, format_at, first_at)))
#else
#define KVFI_PRINTF(format_at, first_at)
#endif

/* Formats a sentence into error[size], cut to fit and always terminated. Does nothing when error is NULL or size is 0, so that
 * callers need no test of their own. No argument may point into error. */
void kvfi_sentence(char *error, size_t size, const char *format, ...) KVFI_PRINTF(3, 4);

/* The first n characters of a text from outside, for error sentences: whatever is not printable must not reach a terminal. */
enum { KVFI_SHOWN = 96 };
typedef struct kvfi_shown {
    char text[KVFI_SHOWN];
} kvfi_shown;
kvfi_shown kvfi_show(const char *text, size_t n);

#endif
