/* SPDX-License-Identifier: MIT
 * kvfold doctor: does this machine have what a run needs? One line for each check.
 */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include "model_file.h"
#include "options.h"
#include "shape.h"
#include "version.h"

#include <jansson.h>
#include <kvfold.h>
#include <llama.h>

#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <link.h>
#endif

typedef struct doctor_settings {
    const char *model;
    bool json, verbose;
} doctor_settings;

static const cli_option options[] = {
    CLI_HEAD("options"),
    CLI_WORD("-m --model", "FILE", doctor_settings, model, "check this model file too; -m may be left out"),
    CLI_SWITCH(CLI_ON, "--json", doctor_settings, json, "one JSON object"),
    CLI_SWITCH(CLI_ON, "-v --verbose", doctor_settings, verbose, "show the log of libllama, on stderr"),
    CLI_END,
};

static const cli_syntax syntax = {
    .command = "doctor",
    .usage = "[-m FILE] [OPTIONS]",
    .about =
        "Checks libraries, processor, threads, memory and, if given, a model file. Exit code 0: fine, 2: something is missing.",
    .options = options,
    .positional = true,
    .positional_field = offsetof(doctor_settings, model),
};

/* ---- the list of findings -------------------------------------------------------------------------------------------------- */

typedef enum verdict { FINE, WARN, FAIL } verdict;
static const char *const verdict_name[] = {"ok", "warn", "fail"};

typedef struct findings {
    json_t *list;
    verdict worst;
} findings;

static void add(findings *f, const char *check, verdict v, cli_text *text)
{
    json_array_append_new(
        f->list, json_pack("{s:s, s:s, s:s}", "check", check, "status", verdict_name[v], "text", text->data ? text->data : ""));
    f->worst = v > f->worst ? v : f->worst;
    cli_text_free(text);
}

/* ---- checks ---------------------------------------------------------------------------------------------------------------- */

static void check_libraries(findings *f)
{
    cli_text t = {0};
    cli_text_format(&t, "kvfold %s (build %s), compiled for header version %d.%d.%d", kvf_version(), cli_build_id(),
                    KVF_VERSION_MAJOR, KVF_VERSION_MINOR, KVF_VERSION_PATCH);
    char header[32];
    snprintf(header, sizeof header, "%d.%d.%d", KVF_VERSION_MAJOR, KVF_VERSION_MINOR, KVF_VERSION_PATCH);
    add(f, "kvfold", strcmp(header, kvf_version()) == 0 ? FINE : FAIL, &t);
    cli_text_format(&t, "libllama %s, ggml %s (%s)", llama_version(), ggml_version(), ggml_commit());
    add(f, "libllama", FINE, &t);
}

static void check_backends(findings *f)
{
    cli_text t = {0};
    bool cpu = false;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        cpu = cpu || ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
        cli_text_format(&t, "%s%s (%s)", i ? ", " : "", ggml_backend_dev_name(dev), ggml_backend_dev_description(dev));
    }
    if (!cpu)
        cli_text_format(&t, "%sno CPU backend of ggml was found: its shared library must lie beside libggml",
                        t.length ? "; " : "");
    add(f, "backends", cpu ? FINE : FAIL, &t);
}

static void check_cpu(findings *f)
{
    cli_text t = {0};
    const char *name, *wanted = cli_cpu_in_use();
    int32_t present;
    bool usable = false;
    for (int32_t i = 0; kvf_cpu_list(i, &name, &present) == KVF_OK; i++) {
        cli_text_format(&t, "%s%s%s", i ? ", " : "", name, present ? "" : " (absent)");
        usable = usable || (present && strcmp(name, wanted) == 0);
    }
    cli_text_format(&t, "; in use: %s%s; threads by default: %d", wanted, usable ? "" : " (not possible: unset KVFOLD_CPU)",
                    cli_threads_default());
    add(f, "processor", usable ? FINE : FAIL, &t);
}

#ifdef __linux__
static int find_openmp(struct dl_phdr_info *info, size_t size, void *user)
{
    static const char *const names[] = {"libgomp", "libomp", "libiomp"};
    (void)size;
    const char *slash = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    const char *file = slash ? slash + 1 : info->dlpi_name ? info->dlpi_name : "";
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strncmp(file, names[i], strlen(names[i])) == 0)
            cli_text_format(user, "%s%s", ((cli_text *)user)->length ? ", " : "", file);
    }
    return 0;
}

/* Two OpenMP runtimes in one process fight for the processors. */
static void check_openmp(findings *f)
{
    cli_text t = {0};
    dl_iterate_phdr(find_openmp, &t);
    verdict v = t.data && strchr(t.data, ',') ? WARN : FINE;
    cli_text_format(&t, v == WARN  ? ": two runtimes contend for the processors"
                        : t.length ? ""
                                   : "none loaded: ggml brings its own threads");
    add(f, "openmp", v, &t);
}
#else
static void check_openmp(findings *f)
{
    (void)f;
}
#endif

static void check_memory(findings *f)
{
    cli_text t = {0};
    cli_text_format(&t, "%s available of %s", cli_bytes(cli_memory_available()), cli_bytes(cli_memory_total()));
    add(f, "memory", FINE, &t);
}

static void check_writing(findings *f)
{
    cli_text t = {0};
    FILE *file = tmpfile();
    bool fine = file && fputs("kvfold", file) >= 0 && fflush(file) == 0;
    if (file) fclose(file);
    cli_text_format(&t, fine ? "temporary files can be written" : "no temporary file can be written: disk full, or no right to");
    add(f, "disk", fine ? FINE : WARN, &t);
}

static void check_template(findings *f, const model_file *m)
{
    cli_text t = {0};
    const char *form = model_file_string(m, "tokenizer.chat_template");
    const struct llama_chat_message hello = {"user", "hello"};
    bool known = form && llama_chat_apply_template(form, &hello, 1, true, NULL, 0) >= 0;
    if (!form)
        cli_text_format(&t, "none in the model: run feeds the text as it is");
    else
        cli_text_format(&t, known ? "known to libllama" : "not known to libllama: run needs --chat-template NAME or --raw");
    add(f, "chat template", form && !known ? WARN : FINE, &t);
}

static void check_fit(findings *f, const model_file *m)
{
    cli_text t = {0};
    int64_t available = cli_memory_available();
    bool fits = available < 0 || m->bytes <= available;
    cli_text_format(&t, "weights of %s, %s available (kvfold plan has the cache)", cli_bytes(m->bytes), cli_bytes(available));
    add(f, "fit", fits ? FINE : WARN, &t);
}

/* CLI_GO, or the exit code for a file that cannot be used. The sentence is on stderr. */
static int check_model(findings *f, const char *path)
{
    model_file m;
    shape s = {0};
    cli_text t = {0};
    int code = model_file_open(&m, path);
    if (code == CLI_GO) code = shape_read(&s, &m);
    if (code != CLI_GO) {
        cli_text_format(&t, "'%s' cannot be used", path);
        add(f, "model", FAIL, &t);
        return code;
    }
    bool fine = !s.refused[0];
    cli_text_format(&t, "%s, %d layers, %d with attention%s%s", m.arch, s.n_layers, s.n_attention,
                    fine ? "" : "; cannot be folded: ", s.refused);
    add(f, "model", fine ? FINE : FAIL, &t);
    check_template(f, &m);
    check_fit(f, &m);
    shape_free(&s);
    model_file_close(&m);
    return CLI_GO;
}

/* ---- output ---------------------------------------------------------------------------------------------------------------- */

static int print_table(const findings *f)
{
    size_t i;
    json_t *row;
    json_array_foreach(f->list, i, row)
    {
        printf("%-5s %-14s %s\n", json_string_value(json_object_get(row, "status")),
               json_string_value(json_object_get(row, "check")), json_string_value(json_object_get(row, "text")));
    }
    json_decref(f->list);
    return cli_finish(CLI_DONE);
}

int cmd_doctor(int argc, char **argv)
{
    doctor_settings set = {0};
    int code = cli_parse(&syntax, &set, argc, argv);
    if (code != CLI_GO) return code;
    cli_log_install(set.verbose);
    ggml_backend_load_all();
    findings f = {.list = json_array()};
    check_libraries(&f);
    check_backends(&f);
    check_cpu(&f);
    check_openmp(&f);
    check_memory(&f);
    check_writing(&f);
    int bad = set.model ? check_model(&f, set.model) : CLI_GO;
    int result = bad != CLI_GO ? bad : f.worst == FAIL ? CLI_CANNOT : CLI_DONE;
    code = set.json ? cli_print_json(json_pack("{s:b, s:o}", "ok", f.worst != FAIL, "checks", f.list)) : print_table(&f);
    return code == CLI_DONE ? result : code;
}
