/* SPDX-License-Identifier: MIT
 * A file that takes its name only when it is whole: its bytes go to a file of their own beside it. Links are followed, so that what
 * they point to is replaced and they stay. A pipe or a device has nothing to lose and is written to directly. Nothing here prints.
 */
#ifndef KVFOLD_CLI_WHOLE_FILE_H
#define KVFOLD_CLI_WHOLE_FILE_H

#include <stdbool.h>

typedef struct whole_file {
    char *path;      /* links followed */
    char *temporary; /* beside it; NULL: a pipe or a device */
    int fd;
} whole_file;

/* Could PATH be written? 0, or -1 with errno (EISDIR: it is a folder), which says more before a long run than after it. */
int whole_file_check(const char *path);

/* Do both paths lead to one file, or would they, once it is written? False of pipes, devices and folders, which nothing replaces. */
bool whole_file_same(const char *a, const char *b);

/* 0 with an empty file open for writing, or -1 with errno and nothing to free. Never opens a file that is there already, except to
 * write to a pipe or a device. */
int whole_file_open(whole_file *f, const char *path);

/* Closes it and gives it its name. 0, or -1 with errno: then nothing that was there is changed. */
int whole_file_close(whole_file *f);

/* Closes it and takes it away; what was there stays. Keeps errno. */
void whole_file_abort(whole_file *f);

#endif
