/* SPDX-License-Identifier: MIT
 * The result of `bench attend` as a table and as JSON. Losing rows are printed like all others. */
#include "bench.h"
#include "cli.h"

#include <ggml.h>
#include <jansson.h>
#include <kvfold.h>
#include <llama.h>
#include <string.h>
#include <unistd.h>

static double gigabytes_a_second(size_t bytes, double us)
{
    return us > 0 ? (double)bytes / us * 1e-3 : 0;
}

/* ---- machine -------------------------------------------------------------------------------------------------------------- */

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

/* Instruction set of our rows; all have the same. */
static const char *instruction_set(const bench_report *r)
{
    for (int c = 0; c < r->n_results; c++)
        for (int i = 0; i < r->result[c].n_rows; i++)
            if (r->result[c].row[i].arm.cpu[0]) return r->result[c].row[i].arm.cpu;
    return "none";
}

size_t bench_last_level_cache(void)
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

/* ---- table ---------------------------------------------------------------------------------------------------------------- */

static void print_ratio(const bench_result *r, int i)
{
    const measure_ratio *x = &r->row[i].ratio;
    char text[64];
    if (i == r->baseline)
        snprintf(text, sizeof text, "the baseline");
    else if (!x->distinguishable)
        snprintf(text, sizeof text, "not distinguishable (%.2f to %.2f)", x->low, x->high);
    else
        snprintf(text, sizeof text, "%.2f (%.2f to %.2f)", x->ratio, x->low, x->high);
    printf("  %-36s", text);
}

static void print_row(const bench_result *r, int i)
{
    const bench_row *row = &r->row[i];
    double rate = gigabytes_a_second(row->arm.bytes, row->time.median);
    double limit = gigabytes_a_second(r->read_bytes, r->read.median);
    printf("%-28s %9.1f %9.1f %9.1f %5.1f%% %9.2f %7.1f %6.0f%%", row->arm.name, row->time.median, row->time.min, row->time.max,
           100 * row->time.noise, (double)row->arm.bytes / 1048576, rate, 100 * rate / limit);
    print_ratio(r, i);
    printf("  %.1e%s\n", row->error, row->ours && !(row->error <= BENCH_ERROR_LIMIT) ? " WRONG" : "");
}

static void print_context(const bench_report *report, const bench_result *r)
{
    const bench_shape *s = &report->shape;
    printf("\n%d query heads, %d KV heads, head size %d, %d tokens, %d thread%s, %d samples%s\n", s->q_heads, s->kv_heads,
           s->head_dim, r->context, s->threads, s->threads == 1 ? "" : "s", r->rounds.rounds,
           report->interrupted ? " (interrupted)" : "");
    printf("noise floor %.1f %%: %s against itself %.3f (99 %% interval %.3f to %.3f)\n", 100 * r->floor,
           r->row[r->repeated].arm.name, r->against_itself.ratio, r->against_itself.low, r->against_itself.high);
    printf("memory gives %.1f GB/s (read-only sum in the same rounds; best %.1f)\n",
           gigabytes_a_second(r->read_bytes, r->read.median), gigabytes_a_second(r->read_bytes, r->read.min));
    if (r->rounds.marked || r->rounds.repeated)
        printf("other load: %d rounds repeated, %d of %d kept although others had up to %.0f %% of the processors\n",
               r->rounds.repeated, r->rounds.marked, r->rounds.rounds, 100 * r->rounds.worst);
    printf("\n%-28s %9s %9s %9s %6s %9s %7s %7s  %-36s  %s\n", "K/V", "us median", "min", "max", "noise", "MiB read", "GB/s",
           "limit", "times the speed of the baseline", "error");
    for (int i = 0; i < r->n_rows; i++) print_row(r, i);
}

void bench_print(const bench_report *report)
{
    char name[128];
    printf("attention of one decoded token, per layer; %s, %ld processors, last-level cache %s\n",
           processor_name(name, sizeof name), sysconf(_SC_NPROCESSORS_ONLN), cli_bytes((int64_t)report->cache));
    printf("kvfold %s (%s), libllama %s, ggml %s\n", kvf_version(), instruction_set(report), llama_version(), ggml_version());
    for (int i = 0; i < report->n_results; i++) print_context(report, &report->result[i]);
    printf("\nlimit: bytes of K and V over time, as a share of what memory gives. error: against double precision over the keys "
           "and\n"
           "values that the row really holds. Ratios outside of one run mean nothing: compare rows of one table.\n");
}

/* ---- JSON ----------------------------------------------------------------------------------------------------------------- */

static json_t *real_digits(double x)
{
    return x == x && x < 1e300 && x > -1e300 ? json_real(x) : json_null();
}

static json_t *row_json(const bench_result *r, int i)
{
    const bench_row *row = &r->row[i];
    double rate = gigabytes_a_second(row->arm.bytes, row->time.median);
    json_t *o = json_object();
    json_object_set_new(o, "name", json_string(row->arm.name));
    json_object_set_new(o, "context", json_integer(r->context));
    json_object_set_new(o, "us_median", cli_json_real(row->time.median));
    json_object_set_new(o, "us_min", cli_json_real(row->time.min));
    json_object_set_new(o, "us_max", cli_json_real(row->time.max));
    json_object_set_new(o, "bytes", json_integer((json_int_t)row->arm.bytes));
    json_object_set_new(o, "samples", json_integer(r->rounds.rounds));
    json_object_set_new(o, "calls", json_integer(row->arm.layers));
    json_object_set_new(o, "noise", cli_json_real(row->time.noise));
    json_object_set_new(o, "gb_per_s", cli_json_real(rate));
    json_object_set_new(o, "of_limit", cli_json_real(rate / gigabytes_a_second(r->read_bytes, r->read.median)));
    json_object_set_new(o, "ratio", cli_json_real(row->ratio.ratio));
    json_object_set_new(o, "ratio_low", cli_json_real(row->ratio.low));
    json_object_set_new(o, "ratio_high", cli_json_real(row->ratio.high));
    json_object_set_new(o, "distinguishable", json_boolean(i != r->baseline && row->ratio.distinguishable));
    json_object_set_new(o, "error", real_digits(row->error));
    return o;
}

static json_t *context_json(const bench_result *r)
{
    json_t *o = json_object(), *self = json_object(), *load = json_object();
    json_object_set_new(self, "name", json_string(r->row[r->repeated].arm.name));
    json_object_set_new(self, "ratio", cli_json_real(r->against_itself.ratio));
    json_object_set_new(self, "low", cli_json_real(r->against_itself.low));
    json_object_set_new(self, "high", cli_json_real(r->against_itself.high));
    json_object_set_new(load, "repeated", json_integer(r->rounds.repeated));
    json_object_set_new(load, "marked", json_integer(r->rounds.marked));
    json_object_set_new(load, "worst_share", cli_json_real(r->rounds.worst));
    json_object_set_new(o, "context", json_integer(r->context));
    json_object_set_new(o, "baseline", json_string(r->row[r->baseline].arm.name));
    json_object_set_new(o, "against_itself", self);
    json_object_set_new(o, "noise_floor", cli_json_real(r->floor));
    json_object_set_new(o, "read_gb_per_s", cli_json_real(gigabytes_a_second(r->read_bytes, r->read.median)));
    json_object_set_new(o, "read_gb_per_s_best", cli_json_real(gigabytes_a_second(r->read_bytes, r->read.min)));
    json_object_set_new(o, "other_load", load);
    return o;
}

static json_t *machine_json(const bench_report *r)
{
    char name[128];
    json_t *o = json_object();
    json_object_set_new(o, "processor", json_string(processor_name(name, sizeof name)));
    json_object_set_new(o, "processors", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_object_set_new(o, "last_level_cache", json_integer((json_int_t)r->cache));
    json_object_set_new(o, "kvfold", json_string(kvf_version()));
    json_object_set_new(o, "pool", json_integer((json_int_t)r->pool));
    json_object_set_new(o, "cpu", json_string(instruction_set(r)));
    json_object_set_new(o, "libllama", json_string(llama_version()));
    json_object_set_new(o, "ggml", json_string(ggml_version()));
    json_object_set_new(o, "ggml_features", json_string(llama_print_system_info()));
    return o;
}

/* A number where there is one context, an array where there are several. */
static json_t *shape_json(const bench_report *r)
{
    json_t *o = json_object(), *contexts = json_array();
    for (int i = 0; i < r->n_results; i++) json_array_append_new(contexts, json_integer(r->result[i].context));
    json_object_set_new(o, "q_heads", json_integer(r->shape.q_heads));
    json_object_set_new(o, "kv_heads", json_integer(r->shape.kv_heads));
    json_object_set_new(o, "head_dim", json_integer(r->shape.head_dim));
    json_object_set(o, "context", r->n_results == 1 ? json_array_get(contexts, 0) : contexts);
    json_object_set_new(o, "threads", json_integer(r->shape.threads));
    json_decref(contexts);
    return o;
}

json_t *bench_json(const bench_report *r)
{
    json_t *o = json_object(), *rows = json_array(), *contexts = json_array(), *refused = json_array();
    for (int c = 0; c < r->n_results; c++) {
        json_array_append_new(contexts, context_json(&r->result[c]));
        for (int i = 0; i < r->result[c].n_rows; i++) json_array_append_new(rows, row_json(&r->result[c], i));
    }
    for (int i = 0; i < r->n_refused; i++) json_array_append_new(refused, json_string(r->refused[i].reason));
    json_object_set_new(o, "machine", machine_json(r));
    json_object_set_new(o, "shape", shape_json(r));
    json_object_set_new(o, "contexts", contexts);
    json_object_set_new(o, "rows", rows);
    json_object_set_new(o, "refused", refused);
    if (r->interrupted) json_object_set_new(o, "interrupted", json_true());
    return o;
}
