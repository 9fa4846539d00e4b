/* SPDX-License-Identifier: MIT
 * Results that are kept: on which machine they were found, and a file that is either the old one or the new one.
 */
#define _POSIX_C_SOURCE 200809L
#include "cli.h"
#include "version.h"

#include <jansson.h>
#include <kvfold.h>
#include <llama.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

/* ---- files ----------------------------------------------------------------------------------------------------------------- */

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

static int save(const char *path, const char *text)
{
    cli_text name = {0};
    cli_text_format(&name, "%s.XXXXXX", path);
    int code = CLI_GO, file = open_beside(path, name.data);
    if (file < 0) {
        code = cannot(path, NULL);
    } else {
        bool written = write_all(file, text, strlen(text)) && write_all(file, "\n", 1);
        int error = errno;
        if (close(file) != 0 && written) written = false, error = errno;
        errno = error;
        if (!written || rename(name.data, path) != 0) code = cannot(path, name.data);
    }
    cli_text_free(&name);
    return code;
}

int cli_save_json(const char *path, json_t *object)
{
    char *text = object ? json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    int code = CLI_CANNOT;
    json_decref(object);
    if (text)
        code = save(path, text);
    else
        cli_error("cannot save '%s': the result cannot be written as JSON", path);
    free(text);
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

/* ---- where a result comes from --------------------------------------------------------------------------------------------- */

static void processor_name(char *name, size_t size)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(name, size, "unknown processor");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", 10) != 0) continue;
        snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f) fclose(f);
}

json_t *cli_machine_json(void)
{
    char name[128];
    struct utsname os;
    if (uname(&os) != 0) memset(&os, 0, sizeof os);
    processor_name(name, sizeof name);
    return json_pack("{s:o, s:I, s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "processor", cli_json_text(name),
                     "processors", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "memory", (json_int_t)cli_memory_total(), "system",
                     os.sysname, "release", os.release, "architecture", os.machine, "kvfold", kvf_version(), "build",
                     cli_build_id(), "compiler", cli_compiler(), "cpu", cli_cpu_in_use(), "libllama", llama_version(), "ggml",
                     ggml_version(), "ggml_features", llama_print_system_info());
}

void cli_command_text(cli_text *text, int argc, char **argv)
{
    cli_text_format(text, "kvfold");
    for (int i = 0; i < argc; i++) {
        bool plain = argv[i][0] && strspn(argv[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./,:=+@%") ==
                                       strlen(argv[i]);
        cli_text_format(text, plain ? " " : " '");
        for (const char *p = argv[i]; *p; p++) {
            if (*p == '\'')
                cli_text_add(text, "'\\''", 4);
            else
                cli_text_add(text, p, 1);
        }
        if (!plain) cli_text_add(text, "'", 1);
    }
}
