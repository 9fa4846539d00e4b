/* SPDX-License-Identifier: MIT */
#define _XOPEN_SOURCE 700
#include "whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINKS_MOST = 40 };

/* ---- names ----------------------------------------------------------------------------------------------------------------- */

/* The first n bytes of a, then b. NULL when memory is short. */
static char *join(const char *a, size_t n, const char *b)
{
    size_t m = strlen(b);
    char *s = malloc(n + m + 1);
    if (!s) return NULL;
    memcpy(s, a, n);
    memcpy(s + n, b, m + 1);
    return s;
}

static size_t folder_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* What the link `path` points to, seen from here; NULL when it is no link. */
static char *follow(const char *path)
{
    char to[PATH_MAX];
    ssize_t n = readlink(path, to, sizeof to - 1);
    if (n < 0) return NULL;
    to[n] = '\0';
    return join(path, to[0] == '/' ? 0 : folder_length(path), to);
}

/* A link may point to a file that is still to come. NULL with errno. */
static char *resolve(const char *path)
{
    char *at = join(path, strlen(path), "");
    for (int i = 0; at && i < LINKS_MOST; i++) {
        char *next = follow(at);
        if (!next) return at;
        free(at);
        at = next;
    }
    errno = at ? ELOOP : ENOMEM;
    free(at);
    return NULL;
}

static bool is_stream(const struct stat *st)
{
    return !S_ISREG(st->st_mode) && !S_ISDIR(st->st_mode);
}

int whole_file_check(const char *path)
{
    struct stat st;
    bool there = stat(path, &st) == 0;
    if (there && S_ISDIR(st.st_mode)) {
        errno = EISDIR;
        return -1;
    }
    if (there && is_stream(&st)) return access(path, W_OK);
    char *real = resolve(path);
    if (!real) return -1;
    size_t n = folder_length(real);
    char *folder = n ? join(real, n, "") : join(".", 1, "");
    int code = folder ? access(folder, W_OK) : -1;
    free(folder);
    free(real);
    return code;
}

static bool same_inode(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Is the folder of both the same, and the name in it? */
static bool same_place(const char *a, const char *b)
{
    struct stat x, y;
    const size_t n = folder_length(a), m = folder_length(b);
    char *in_a = n ? join(a, n, "") : join(".", 1, ""), *in_b = m ? join(b, m, "") : join(".", 1, "");
    const bool same =
        in_a && in_b && strcmp(a + n, b + m) == 0 && stat(in_a, &x) == 0 && stat(in_b, &y) == 0 && same_inode(&x, &y);
    free(in_a);
    free(in_b);
    return same;
}

bool whole_file_same(const char *a, const char *b)
{
    struct stat x, y;
    const bool a_there = stat(a, &x) == 0, b_there = stat(b, &y) == 0;
    if (a_there || b_there) return a_there && b_there && S_ISREG(x.st_mode) && same_inode(&x, &y);
    char *real_a = resolve(a), *real_b = resolve(b);
    const bool same = real_a && real_b && same_place(real_a, real_b);
    free(real_a);
    free(real_b);
    return same;
}

/* ---- files ----------------------------------------------------------------------------------------------------------------- */

static void forget(whole_file *f)
{
    free(f->path);
    free(f->temporary);
    *f = (whole_file){.fd = -1};
}

/* mkstemp makes it private: it gets the rights that the file of that name has, or that any new file would have. Not worth failing. */
static int open_beside(whole_file *f, const struct stat *old)
{
    f->temporary = join(f->path, strlen(f->path), ".XXXXXX");
    f->fd = f->temporary ? mkstemp(f->temporary) : -1;
    if (f->fd < 0) return -1;
    mode_t mask = umask(0);
    umask(mask);
    (void)!fchmod(f->fd, old ? old->st_mode & 0777 : 0666 & ~mask);
    return 0;
}

int whole_file_open(whole_file *f, const char *path)
{
    struct stat st;
    bool there = stat(path, &st) == 0;
    *f = (whole_file){.fd = -1};
    if (whole_file_check(path) != 0) return -1;
    f->path = there && is_stream(&st) ? join(path, strlen(path), "") : resolve(path);
    if (f->path && there && is_stream(&st)) f->fd = open(path, O_WRONLY | O_NOCTTY);
    if (f->path && !(there && is_stream(&st))) open_beside(f, there ? &st : NULL);
    if (f->fd >= 0) return 0;
    int error = errno;
    forget(f);
    errno = error;
    return -1;
}

int whole_file_close(whole_file *f)
{
    int fd = f->fd, failed = f->temporary && fsync(fd) != 0, error = errno;
    f->fd = -1;
    if (close(fd) != 0 && !failed) failed = 1, error = errno;
    if (!failed && f->temporary && rename(f->temporary, f->path) != 0) failed = 1, error = errno;
    if (failed && f->temporary) unlink(f->temporary);
    forget(f);
    errno = error;
    return failed ? -1 : 0;
}

void whole_file_abort(whole_file *f)
{
    int error = errno;
    if (f->fd >= 0) close(f->fd);
    if (f->temporary) unlink(f->temporary);
    forget(f);
    errno = error;
}
