/* SPDX-License-Identifier: MIT
 * Strings: growing buffers, UTF-8, sizes for people, edit distance, files read whole. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void *need(void *p)
{
    if (!p) {
        cli_error("out of memory");
        exit(CLI_CANNOT);
    }
    return p;
}

void *cli_alloc(size_t count, size_t size)
{
    return need(calloc(count ? count : 1, size));
}

static void grow(cli_text *t, size_t n)
{
    if (t->length + n + 1 <= t->capacity) return;
    size_t capacity = t->capacity ? t->capacity : 256;
    while (capacity < t->length + n + 1) capacity *= 2;
    t->data = need(realloc(t->data, capacity));
    t->capacity = capacity;
}

void cli_text_add(cli_text *t, const char *bytes, size_t n)
{
    grow(t, n);
    if (n > 0) memcpy(t->data + t->length, bytes, n);
    t->length += n;
    t->data[t->length] = '\0';
}

void cli_text_format(cli_text *t, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n > 0) {
        grow(t, (size_t)n);
        vsnprintf(t->data + t->length, (size_t)n + 1, format, again);
        t->length += (size_t)n;
    }
    va_end(again);
}

void cli_text_free(cli_text *t)
{
    free(t->data);
    *t = (cli_text){0};
}

const char *cli_bytes(int64_t bytes)
{
    static char ring[8][32];
    static int next;
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    char *text = ring[next++ % 8];
    if (bytes < 0) return "unknown";
    double x = (double)bytes;
    int u = 0;
    for (; x >= 1024 && u < 4; u++) x /= 1024;
    snprintf(text, sizeof ring[0], u == 0 ? "%.0f %s" : "%.1f %s", x, unit[u]);
    return text;
}

static size_t smallest(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

const char *cli_file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

size_t cli_distance(const char *a, const char *b)
{
    enum { MOST = 64 };
    size_t row[MOST + 1];
    size_t n = strlen(b);
    if (n > MOST) return SIZE_MAX;
    for (size_t j = 0; j <= n; j++) row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t up = row[j];
            row[j] = smallest(up + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = up;
        }
    }
    return row[n];
}

bool cli_near(const char *a, const char *b)
{
    const size_t third = strlen(a) / 3;
    return cli_distance(a, b) <= (third > 2 ? third : 2); /* two: a swap of letters */
}

/* ---- UTF-8 (RFC 3629) ------------------------------------------------------------------------------------------------------ */

static int sequence_length(unsigned char lead)
{
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    if (lead >= 0xF0 && lead <= 0xF4) return 4;
    return -1;
}

/* The second byte has narrower limits after some leads: no overlong forms, no surrogates, nothing above U+10FFFF. */
static bool second_fits(unsigned char lead, unsigned char second)
{
    unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    return second >= low && second <= high;
}

int cli_utf8_step(const char *p, size_t n)
{
    const unsigned char *u = (const unsigned char *)p;
    int length = n ? sequence_length(u[0]) : 0;
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= n) return 0;
        if (i == 1 ? !second_fits(u[0], u[1]) : (u[i] & 0xC0) != 0x80) return -1;
    }
    return length;
}

size_t cli_utf8_add(cli_text *t, const char *bytes, size_t n)
{
    size_t replaced = 0;
    for (size_t i = 0; i < n;) {
        int step = cli_utf8_step(bytes + i, n - i);
        if (step > 0) {
            cli_text_add(t, bytes + i, (size_t)step);
            i += (size_t)step;
        } else {
            cli_text_add(t, "\xEF\xBF\xBD", 3);
            replaced++;
            i++;
        }
    }
    return replaced;
}

/* ---- command line and files ------------------------------------------------------------------------------------------------ */

static int hex(char c)
{
    const char *digits = "0123456789abcdef";
    const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

void cli_unescape(char *text)
{
    static const char from[] = "ntr\\\"'", to[] = "\n\t\r\\\"'";
    char *out = text;
    for (char *in = text; *in; in++) {
        const char *at = in[0] == '\\' && in[1] ? strchr(from, in[1]) : NULL;
        if (at) {
            *out++ = to[at - from];
            in++;
        } else if (in[0] == '\\' && in[1] == 'x' && hex(in[2]) >= 0 && hex(in[3]) >= 0) {
            *out++ = (char)(hex(in[2]) * 16 + hex(in[3]));
            in += 3;
        } else {
            *out++ = *in;
        }
    }
    *out = '\0';
}

int cli_read_file(const char *path, cli_text *t)
{
    bool standard = strcmp(path, "-") == 0;
    if (!standard && cli_is_directory(path)) {
        cli_error("cannot read '%s': it is a directory", path);
        return CLI_CANNOT;
    }
    FILE *f = standard ? stdin : fopen(path, "rb");
    if (!f) {
        cli_error("cannot read '%s': %s", path, strerror(errno));
        return CLI_CANNOT;
    }
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) cli_text_add(t, chunk, n);
    bool failed = ferror(f) != 0;
    if (!standard) fclose(f);
    if (failed) {
        cli_error("cannot read '%s': %s", path, strerror(errno));
        return CLI_CANNOT;
    }
    return CLI_GO;
}
