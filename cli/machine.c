/* SPDX-License-Identifier: MIT */
#include "machine.h"
#include "cli.h"
#include "version.h"

#include <ggml.h>
#include <jansson.h>
#include <kvfold.h>
#include <llama.h>
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

size_t machine_last_level_cache(void)
{
    size_t most = 0;
    for (int i = 0; i < 8; i++) {
        char path[96], unit = 0;
        unsigned long size;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        if (fscanf(f, "%lu%c", &size, &unit) >= 1) {
            size_t bytes = (size_t)size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
            if (bytes > most) most = bytes;
        }
        fclose(f);
    }
    return most ? most : (size_t)64 << 20;
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
