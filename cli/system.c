/* SPDX-License-Identifier: MIT
 * What the operating system knows: memory, processors, terminals, signals. The only file with system headers. */
#define _GNU_SOURCE
#include "cli.h"

#ifdef __GLIBC__
#endif
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A "Name:   123 kB" line of a file under /proc, in bytes; -1 when absent. */
static int64_t proc_bytes(const char *path, const char *name)
{
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    char line[256];
    long long kilobytes = -1;
    while (kilobytes < 0 && fgets(line, sizeof line, f)) {
        size_t n = strlen(name);
        if (strncmp(line, name, n) == 0 && line[n] == ':' && sscanf(line + n + 1, "%lld", &kilobytes) != 1) kilobytes = -1;
    }
    fclose(f);
    return kilobytes < 0 ? -1 : (int64_t)kilobytes * 1024;
}

int64_t cli_memory_total(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (int64_t)pages * size : -1;
}

int64_t cli_memory_available(void)
{
    int64_t bytes = proc_bytes("/proc/meminfo", "MemAvailable");
    return bytes >= 0 ? bytes : cli_memory_total();
}

int64_t cli_memory_peak(void)
{
    int64_t bytes = proc_bytes("/proc/self/status", "VmHWM");
    if (bytes >= 0) return bytes;
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return -1;
#ifdef __APPLE__
    return (int64_t)usage.ru_maxrss;
#else
    return (int64_t)usage.ru_maxrss * 1024;
#endif
}

int64_t cli_memory_resident(void)
{
    return proc_bytes("/proc/self/status", "VmRSS");
}

int64_t cli_memory_anonymous(void)
{
    return proc_bytes("/proc/self/status", "RssAnon");
}

static int processors(void)
{
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

int cli_threads_default(void)
{
    /* Matrix products gain nothing from the second thread of a core; small counts are usually virtual machines without any. */
    int n = processors();
    return n <= 4 ? n : n / 2;
}

bool cli_is_terminal(FILE *f)
{
    return isatty(fileno(f)) != 0;
}

bool cli_is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool cli_is_stream(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

void cli_catch_interrupt(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = (int)SA_RESETHAND; /* no SA_RESTART: a read of the next turn ends too */
    sigaction(SIGINT, &action, NULL);
}

bool cli_interrupted(void)
{
    return interrupted != 0;
}

int cli_stopped(void)
{
    cli_note("interrupted: nothing was written");
    return CLI_CANNOT;
}
