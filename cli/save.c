/* SPDX-License-Identifier: MIT
 * What is kept: a file that is either the old one or the new one.
 */
#define _POSIX_C_SOURCE 200809L
#include "cli.h"
#include "whole_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static int cannot(const char *path, const char *more)
{
    if (errno == EISDIR)
        cli_error("cannot save '%s': it is a directory", path);
    else
        cli_error("cannot save '%s': %s%s", path, strerror(errno), more);
    return CLI_CANNOT;
}

static bool write_all(int file, const char *text, size_t n)
{
    while (n > 0) {
        ssize_t wrote = write(file, text, n);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return false;
        text += wrote;
        n -= (size_t)wrote;
    }
    return true;
}

int cli_save(const char *path, const char *bytes, size_t n)
{
    whole_file f;
    if (whole_file_open(&f, path) != 0) return cannot(path, "");
    const char *more = f.temporary ? "; nothing that was there is lost" : "";
    if (write_all(f.fd, bytes, n)) return whole_file_close(&f) == 0 ? CLI_GO : cannot(path, more);
    whole_file_abort(&f);
    return cannot(path, more);
}

int cli_save_check(const char *path)
{
    if (!*path || strcmp(path, "-") == 0) {
        cli_error("'%s' is no name of a file: what is kept is written beside its place first, then put there", path);
        return CLI_USAGE;
    }
    return whole_file_check(path) == 0 ? CLI_GO : cannot(path, "");
}

int cli_save_apart(const char *out, const char *other)
{
    if (!out || !other || !whole_file_same(out, other)) return CLI_GO;
    cli_error("%s and %s are the same file", other, out);
    return CLI_USAGE;
}

int cli_save_apart_all(const char *out, const char *const *other, int n)
{
    int code = CLI_GO;
    for (int i = 0; i < n && code == CLI_GO; i++) code = cli_save_apart(out, other[i]);
    return code;
}
