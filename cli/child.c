/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { ARGS_MOST = 64 };

/* Two pipes: in[0] -> child, child -> out[1]. Close-on-exec, so that no other child keeps them open. */
static int make_pipes(int in[2], int out[2])
{
    if (pipe2(in, O_CLOEXEC) != 0) return -1;
    if (pipe2(out, O_CLOEXEC) == 0) return 0;
    int error = errno;
    close(in[0]);
    close(in[1]);
    errno = error;
    return -1;
}

static int start(child *c, const char *program, const char *const *args,
                 int (*spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[],
                              char *const[]))
{
    char *argv[ARGS_MOST + 2] = {(char *)(uintptr_t)program};
    int in[2], out[2], n = 1;
    pid_t pid;
    posix_spawn_file_actions_t actions;
    *c = (child){0};
    for (; args[n - 1] && n <= ARGS_MOST; n++) argv[n] = (char *)(uintptr_t)args[n - 1]; /* posix_spawn changes none */
    if (make_pipes(in, out) != 0) return -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    int error = spawn(&pid, program, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    if (error == 0) {
        c->pid = pid;
        c->to = fdopen(in[1], "w");
        c->from = fdopen(out[0], "r");
        signal(SIGPIPE, SIG_IGN); /* a child that is gone is an answer that does not come */
        return 0;
    }
    close(in[1]);
    close(out[0]);
    errno = error;
    return -1;
}

int child_start(child *c, const char *const *args)
{
    return start(c, "/proc/self/exe", args, posix_spawn);
}

int child_start_program(child *c, const char *program, const char *const *args)
{
    return start(c, program, args, posix_spawnp);
}

const char *child_answer(child *c)
{
    int byte;
    c->line.length = 0;
    for (;;) {
        errno = 0;
        byte = getc(c->from);
        if (byte == EOF && errno == EINTR) { /* Ctrl-C: the answer still comes */
            clearerr(c->from);
            continue;
        }
        if (byte == EOF || byte == '\n') break;
        char b = (char)byte;
        cli_text_add(&c->line, &b, 1);
    }
    if (byte == EOF) return NULL;
    return c->line.length ? c->line.data : "";
}

const char *child_ask(child *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int written = vfprintf(c->to, format, args);
    va_end(args);
    if (written < 0 || putc('\n', c->to) == EOF || fflush(c->to) != 0) return NULL;
    return child_answer(c);
}

int child_end(child *c)
{
    int status = -1;
    if (c->to) fclose(c->to);
    if (c->from) fclose(c->from);
    if (c->pid > 0)
        while (waitpid((pid_t)c->pid, &status, 0) < 0 && errno == EINTR) {}
    cli_text_free(&c->line);
    *c = (child){0};
    if (status == -1) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void child_ignore_interrupt(void)
{
    signal(SIGINT, SIG_IGN);
}
