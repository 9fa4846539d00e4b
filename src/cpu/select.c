/* SPDX-License-Identifier: MIT
 * Which kernels run. The table is filled scalar first and overlaid set by set up to the wanted one, so a set may leave out what
 * it cannot do better, and lowering the mask runs exactly the code of a lesser processor. */
#include "cpu/isa.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

typedef struct isa_entry {
    const char *name;
    void (*overlay)(kvfi_kernels *k); /* NULL: not compiled in */
} isa_entry;

/* A folder that is not compiled must not be referred to, not even in an expression that is never evaluated. */
#define OVERLAY_0(name) NULL
#define OVERLAY_1(name) kvfi_kernels_##name
#define OVERLAY_PASTE(name, built) OVERLAY_##built(name)
#define OVERLAY(name, built) OVERLAY_PASTE(name, built)

static const isa_entry sets[KVFI_ISAS] = {
#define KVFI_ISA(name, built) {#name, OVERLAY(name, built)},
#include "cpu/isa.def"
#undef KVFI_ISA
};

static int usable(int i)
{
    return sets[i].overlay && kvfi_isa_detect((kvfi_isa)i);
}

/* The i-th set that is compiled in, -1 past the end. */
static int built_at(int i)
{
    for (int s = 0; s < KVFI_ISAS; s++)
        if (sets[s].overlay && i-- == 0) return s;
    return -1;
}

int kvfi_cpu_count(void)
{
    int n = 0;
    while (built_at(n) >= 0) n++;
    return n;
}

const char *kvfi_cpu_name(int i)
{
    int s = i < 0 ? -1 : built_at(i);
    return s < 0 ? NULL : sets[s].name;
}

int kvfi_cpu_present(int i)
{
    int s = i < 0 ? -1 : built_at(i);
    return s >= 0 && usable(s);
}

int kvf_cpu_list(int32_t i, const char **name, int32_t *present)
{
    const char *found = kvfi_cpu_name(i);
    if (!found) return KVF_E_ARG;
    if (name) *name = found;
    if (present) *present = kvfi_cpu_present(i);
    return KVF_OK;
}

/* "scalar, avx2": the sets that could be chosen here. */
static void list_usable(char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < KVFI_ISAS; i++) {
        if (!usable(i)) continue;
        kvfi_sentence(text + used, size - used, "%s%s", used ? ", " : "", sets[i].name);
        used += strlen(text + used);
    }
}

static int refuse(const char *name, const char *source, const char *why, char *error, size_t error_size)
{
    char usable_here[128];
    list_usable(usable_here, sizeof usable_here);
    kvfi_sentence(error, error_size, "instruction set \"%.40s\"%s %s; here are: %s", name, source, why, usable_here);
    return KVF_E_UNSUPPORTED;
}

static int best_usable(void)
{
    int best = KVFI_ISA_scalar;
    for (int i = 0; i < KVFI_ISAS; i++)
        if (usable(i)) best = i;
    return best;
}

/* Finds the wanted set. name NULL or "": $KVFOLD_CPU, and when that is unset or empty, the best. */
static int find(const char *name, int *found, char *error, size_t error_size)
{
    const char *source = "";
    if (!name || !*name) name = getenv("KVFOLD_CPU"), source = " (from KVFOLD_CPU)";
    if (!name || !*name) {
        *found = best_usable();
        return KVF_OK;
    }
    for (int i = 0; i < KVFI_ISAS; i++) {
        if (strcmp(name, sets[i].name)) continue;
        if (!sets[i].overlay) return refuse(name, source, "is not built into this library", error, error_size);
        if (!kvfi_isa_detect((kvfi_isa)i)) return refuse(name, source, "is absent from this processor", error, error_size);
        *found = i;
        return KVF_OK;
    }
    return refuse(name, source, "is unknown", error, error_size);
}

int kvfi_kernels_select(const char *name, kvfi_kernels *k, char *error, size_t error_size)
{
    int wanted = 0, code = find(name, &wanted, error, error_size);
    if (code) return code;
    memset(k, 0, sizeof *k);
    for (int i = 0; i <= wanted; i++)
        if (usable(i)) sets[i].overlay(k);
    k->name = sets[wanted].name;
    return KVF_OK;
}
