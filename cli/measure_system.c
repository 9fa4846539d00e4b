/* SPDX-License-Identifier: MIT
 * The real machine for measure.h: what /proc and the clocks say. */
#define _GNU_SOURCE
#include "measure.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double system_now(void *user)
{
    (void)user;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Processor seconds of a process that may still run; 0: this one. */
static double process_seconds(long pid)
{
    struct timespec t;
    clockid_t clock;
    if (clock_getcpuclockid((pid_t)pid, &clock) != 0 || clock_gettime(clock, &t) != 0) return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Busy seconds of all processors, ours included, and stolen ones. */
static int read_stat(double *busy, double *stolen)
{
    FILE *f = fopen("/proc/stat", "r");
    if (!f) return -1;
    unsigned long long user, nice, system, idle, iowait, irq, softirq, steal;
    int n =
        fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal);
    fclose(f);
    if (n != 8) return -1;
    double tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    *busy = (double)(user + nice + system + irq + softirq) * tick;
    *stolen = (double)steal * tick;
    return 0;
}

/* Seconds that the threads of a process stood in a run queue: sees a rival within microseconds, where the kernel keeps the figure. */
static double read_waited(long pid)
{
    char path[600];
    snprintf(path, sizeof path, "/proc/%ld/task", pid);
    DIR *dir = opendir(path);
    if (!dir) return -1;
    double waited = 0;
    int threads = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%ld/task/%s/schedstat", pid, e->d_name);
        FILE *f = fopen(path, "r");
        unsigned long long ran, delay;
        if (!f) continue;
        if (fscanf(f, "%llu %llu", &ran, &delay) == 2) {
            waited += 1e-9 * (double)delay;
            threads++;
        }
        fclose(f);
    }
    closedir(dir);
    return threads ? waited : -1;
}

void measure_system_load(const long *pid, int n, measure_load *load)
{
    double busy, own = process_seconds(0);
    *load = (measure_load){-1, -1, read_waited((long)getpid())};
    for (int i = 0; i < n; i++) {
        double waited = read_waited(pid[i]);
        own += process_seconds(pid[i]);
        if (load->waited >= 0 && waited >= 0) load->waited += waited;
    }
    if (read_stat(&busy, &load->stolen) == 0) load->other = busy - own;
}

static void system_load(void *user, measure_load *load)
{
    (void)user;
    measure_system_load(NULL, 0, load);
}

enum { PROCESSORS_MOST = 4096 };

/* Of one processor: what the governor says, else what /proc/cpuinfo last saw; 0: unknown. */
static double processor_mhz(int processor)
{
    char line[256];
    double value = 0, found = 0;
    int at = -1;
    snprintf(line, sizeof line, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", processor);
    FILE *f = fopen(line, "r");
    if (f) {
        int n = fscanf(f, "%lf", &value);
        fclose(f);
        if (n == 1) return value * 1e-3;
    }
    f = fopen("/proc/cpuinfo", "r");
    while (f && found <= 0 && fgets(line, sizeof line, f)) {
        sscanf(line, "processor : %d", &at);
        if (at == processor && sscanf(line, "cpu MHz : %lf", &value) == 1) found = value;
    }
    if (f) fclose(f);
    return found;
}

/* The processor that a thread ran on last, field 39 of its stat; the name in field 2 may hold spaces. -1: unknown. */
static int last_processor(long pid, const char *thread)
{
    char path[600], line[1024] = "";
    int processor = -1;
    snprintf(path, sizeof path, "/proc/%ld/task/%s/stat", pid, thread);
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    const char *at = fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    fclose(f);
    for (int field = 2; at && field < 39; field++) at = strchr(at + 1, ' ');
    return at && sscanf(at, "%d", &processor) == 1 ? processor : -1;
}

static void mark_processors(long pid, unsigned char *ran)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/task", pid);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        int processor = e->d_name[0] == '.' ? -1 : last_processor(pid, e->d_name);
        if (processor >= 0 && processor < PROCESSORS_MOST) ran[processor] = 1;
    }
    if (dir) closedir(dir);
}

double measure_system_mhz(const long *pid, int n)
{
    unsigned char ran[PROCESSORS_MOST] = {0};
    double sum = 0;
    int known = 0;
    if (n == 0) mark_processors((long)getpid(), ran);
    for (int i = 0; i < n; i++) mark_processors(pid[i], ran);
    for (int i = 0; i < PROCESSORS_MOST; i++) {
        double mhz = ran[i] ? processor_mhz(i) : 0;
        sum += mhz;
        known += mhz > 0;
    }
    return known ? sum / known : 0;
}

static double system_mhz(void *user)
{
    (void)user;
    return measure_system_mhz(NULL, 0);
}

static double system_faults(void *user)
{
    (void)user;
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_minflt + (double)usage.ru_majflt : 0;
}

const measure_io measure_system = {.now = system_now, .load = system_load, .mhz = system_mhz, .faults = system_faults};
