/* SPDX-License-Identifier: MIT */
#include "version.h"
#include "options.h"

#include <jansson.h>
#include <kvfold.h>
#include <llama.h>

#include <stdlib.h>

#ifndef KVFOLD_BUILD_ID
#define KVFOLD_BUILD_ID "unknown"
#endif

const char *cli_build_id(void)
{
    return KVFOLD_BUILD_ID;
}

const char *cli_compiler(void)
{
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}

const char *cli_cpu_in_use(void)
{
    const char *asked = getenv("KVFOLD_CPU"), *name, *best = "scalar";
    int32_t present;
    if (asked && asked[0]) return asked;
    for (int32_t i = 0; kvf_cpu_list(i, &name, &present) == KVF_OK; i++) {
        if (present) best = name;
    }
    return best;
}

typedef struct version_settings {
    bool json;
} version_settings;

static const cli_option options[] = {
    CLI_HEAD("options"),
    CLI_SWITCH(CLI_ON, "--json", version_settings, json, "one JSON object"),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "--version",
    .usage = "[OPTIONS]",
    .about = "Versions of kvfold, libllama and ggml, and the instruction set in use.",
    .options = options,
};

int cli_print_version(int argc, char **argv)
{
    version_settings set = {0};
    int code = cli_parse(&syntax, &set, argc, argv);
    if (code != CLI_GO) return code;
    if (set.json)
        return cli_print_json(json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "version", kvf_version(), "build", cli_build_id(),
                                        "libllama", llama_version(), "ggml", ggml_version(), "ggml_commit", ggml_commit(), "cpu",
                                        cli_cpu_in_use(), "compiler", cli_compiler()));
    printf("kvfold %s (build %s)\n", kvf_version(), cli_build_id());
    printf("libllama %s, ggml %s (%s)\n", llama_version(), ggml_version(), ggml_commit());
    printf("cpu %s\n", cli_cpu_in_use());
    printf("compiler %s\n", cli_compiler());
    return cli_finish(CLI_DONE);
}
