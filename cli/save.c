/* SPDX-License-Identifier: MIT
 * What is kept: a file that is either the old one or the new one.
 */
#define _POSIX_C_SOURCE 200809L
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int cannot(const char *path, const char *temporary)
{
    int error = errno;
    if (temporary) unlink(temporary);
    cli_error("cannot save '%s': %s%s", path, strerror(error), temporary ? "; nothing that was there is lost" : "");
    return CLI_CANNOT;
}

/* A file beside `path`, open for writing. mkstemp makes it private: it gets the rights that the file of that name has, or that any
 * new file would have. */
static int open_beside(const char *path, char *name)
{
    struct stat old;
    int file = mkstemp(name);
    if (file < 0) return -1;
    mode_t mask = umask(0);
    umask(mask);
    if (fchmod(file, stat(path, &old) == 0 ? old.st_mode & 0777 : 0666 & ~mask) != 0) errno = 0; /* not worth losing a result */
    return file;
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
    return fsync(file) == 0;
}

int cli_save(const char *path, const char *bytes, size_t n)
{
    cli_text name = {0};
    cli_text_format(&name, "%s.XXXXXX", path);
    int code = CLI_GO, file = open_beside(path, name.data);
    if (file < 0) {
        code = cannot(path, NULL);
    } else {
        bool written = write_all(file, bytes, n);
        int error = errno;
        if (close(file) != 0 && written) written = false, error = errno;
        errno = error;
        if (!written || rename(name.data, path) != 0) code = cannot(path, name.data);
    }
    cli_text_free(&name);
    return code;
}

int cli_save_check(const char *path)
{
    const char *slash = strrchr(path, '/');
    cli_text folder = {0};
    cli_text_format(&folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    int code = CLI_GO;
    if (cli_is_directory(path)) {
        cli_error("cannot save '%s': it is a directory", path);
        code = CLI_CANNOT;
    } else if (access(folder.data, W_OK) != 0) {
        code = cannot(path, NULL);
    }
    cli_text_free(&folder);
    return code;
}
