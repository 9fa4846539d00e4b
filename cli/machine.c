/* SPDX-License-Identifier: MIT */
#include "machine.h"
#include "cli.h"
#include "version.h"

#include <ggml.h>
#include <jansson.h>
#include <kvfold.h>
#include <llama.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static const char *processor_name(char *name, size_t size)
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
    return name;
}

enum { PROCESSORS_MOST = 1024, CACHES_MOST = 64, INDEXES = 8 };

/* The first line of a file of one cache of one processor, "" when there is none. */
static const char *cache_file(const char *folder, int cpu, int index, const char *name, char *line, int size)
{
    char path[600];
    snprintf(path, sizeof path, "%s/cpu%d/cache/index%d/%s", folder, cpu, index, name);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(line, size, f)) line[0] = '\0';
    if (f) fclose(f);
    line[strcspn(line, "\n")] = '\0';
    return line;
}

static size_t cache_bytes(const char *text)
{
    char unit = 0;
    unsigned long size = 0;
    if (sscanf(text, "%lu%c", &size, &unit) < 1) return 0;
    return (size_t)size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
}

/* Index of the highest level that this processor has, -1: none. */
static int last_level(const char *folder, int cpu)
{
    char line[32];
    int best = -1, level = 0;
    for (int i = 0; i < INDEXES; i++) {
        int found = atoi(cache_file(folder, cpu, i, "level", line, sizeof line));
        if (found > level) level = found, best = i;
    }
    return best;
}

/* Machines have one for each socket or group of cores: those that different processors share are counted once each. */
size_t machine_caches_below(const char *folder)
{
    char seen[CACHES_MOST][128], shared[128], size[32];
    size_t total = 0;
    int n = 0;
    for (int cpu = 0; cpu < PROCESSORS_MOST && n < CACHES_MOST; cpu++) {
        int index = last_level(folder, cpu), at = 0;
        if (index < 0) continue;
        if (!cache_file(folder, cpu, index, "shared_cpu_list", shared, sizeof shared)[0])
            snprintf(shared, sizeof shared, "%d", cpu);
        while (at < n && strcmp(seen[at], shared) != 0) at++;
        if (at < n) continue;
        memcpy(seen[n++], shared, sizeof shared);
        total += cache_bytes(cache_file(folder, cpu, index, "size", size, sizeof size));
    }
    return total;
}

size_t machine_last_level_cache(void)
{
    size_t total = machine_caches_below("/sys/devices/system/cpu");
    return total ? total : (size_t)64 << 20;
}

json_t *machine_json(void)
{
    char name[128];
    struct utsname system = {0};
    json_t *o = json_object();
    json_object_set_new(o, "processor", cli_json_text(processor_name(name, sizeof name)));
    json_object_set_new(o, "processors", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_object_set_new(o, "last_level_cache", json_integer((json_int_t)machine_last_level_cache()));
    json_object_set_new(o, "memory", json_integer((json_int_t)cli_memory_total()));
    if (uname(&system) == 0) {
        json_object_set_new(o, "system", cli_json_text(system.sysname));
        json_object_set_new(o, "release", cli_json_text(system.release));
        json_object_set_new(o, "architecture", cli_json_text(system.machine));
    }
    json_object_set_new(o, "kvfold", json_string(kvf_version()));
    json_object_set_new(o, "build", json_string(cli_build_id()));
    json_object_set_new(o, "compiler", json_string(cli_compiler()));
    json_object_set_new(o, "cpu", json_string(cli_cpu_in_use()));
    json_object_set_new(o, "libllama", json_string(llama_version()));
    json_object_set_new(o, "ggml", json_string(ggml_version()));
    json_object_set_new(o, "ggml_features", json_string(llama_print_system_info()));
    return o;
}
