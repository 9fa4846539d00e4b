/* SPDX-License-Identifier: MIT
 * The parts of `kvfold bench e2e`: the arms of libllama, worker processes, and one run of a model at a depth. */
#ifndef KVFOLD_CLI_BENCH_E2E_H
#define KVFOLD_CLI_BENCH_E2E_H

#include "bench.h"
#include "child.h"

#include <llama.h>

/* Plain libllama as an arm: one type for K and V. Quantised V exists only with flash attention. */
typedef struct bench_plain {
    const char *name;
    enum ggml_type type;
    enum llama_flash_attn_type flash;
} bench_plain;

const bench_plain *bench_plain_at(int i); /* NULL past the end */
const bench_plain *bench_plain_named(const char *name);

typedef struct bench_worker_settings {
    const char *model, *file, *arm;
    kv_settings kv; /* `kv.kv` is one arm as the command line writes it, with its options */
    int64_t depth, room, batch, threads, seed;
} bench_worker_settings;

/* ---- bench_e2e_arm.c: an arm and its process ------------------------------------------------------------------------------ */

typedef struct e2e_settings {
    const char *file;      /* NULL: seeded tokens */
    const kv_settings *kv; /* what holds for all our arms */
    int predict, prompt;   /* tokens of one sample of decoding, of prefill */
    int samples, first, processes, batch, threads;
    uint64_t seed;
} e2e_settings;

enum { E2E_PROCESSES_MOST = 16 };

typedef struct e2e_arm {
    char name[CLI_ARM_NAME];  /* of ours: as written, which is what its process gets */
    const bench_plain *plain; /* or */
    const kv_choice *choice;
    child child;
    char failed[900]; /* the sentence, "" while all is well */
    double first_ms[MEASURE_SAMPLES_MAX];
    int fills;
    struct json_t *end; /* what the process said of itself when the text was written */
    double peak[E2E_PROCESSES_MOST], anonymous[E2E_PROCESSES_MOST];
    int processes;
} e2e_arm;

/* Room beyond the depth that all samples together need. */
int e2e_room(const e2e_settings *s);

/* Starts the process and waits until the model is loaded. 0, or -1 with the sentence in a->failed. */
int e2e_start(e2e_arm *a, const e2e_settings *s, const char *model, int depth);
void e2e_end(e2e_arm *a);

/* 0 when the answer was ok. After a failure nothing more is asked. */
int e2e_ask(e2e_arm *a, const char *command);

/* Feeds the history and finds the first token; adds to first_ms when that is kept. */
int e2e_fill(e2e_arm *a, int depth, bool keep);

/* What the process says of itself; NULL on failure. */
struct json_t *e2e_report(e2e_arm *a);

/* Adds the report's memory to the list of processes. */
void e2e_add_process(e2e_arm *a, const struct json_t *report);

/* ---- bench_e2e_run.c ------------------------------------------------------------------------------------------------------ */

typedef struct e2e_plan {
    e2e_settings set;
    const cli_arms *arms;
    size_t pool;
    struct json_t *result;
    bool refused, wrong; /* an arm could not run to its end; text differs where it must not */
} e2e_plan;

/* All arms of one model at one depth. CLI_GO, or an exit code after a sentence. */
int e2e_run(e2e_plan *plan, const char *model, int depth);

/* ---- bench_e2e_report.c --------------------------------------------------------------------------------------------------- */

/* What is the matter with the texts: of an arm against the baseline's. Into a text of E2E_VERDICT bytes; `exact`: they should
 * agree. Returns true when they do. */
enum { E2E_VERDICT = 160 };
bool e2e_text_verdict(const char *base, const char *x, bool exact, char *text);

/* Two lists of tokens that should agree: the index of the first that differs, -1: none. There `gap` is the distance of the two
 * largest logits of the base, in nats, and *near says whether it is so small that arithmetic alone decides. */
int e2e_first_difference(const struct json_t *base, const struct json_t *x, double *gap, bool *near);

/* Peak memory of an arm against the baseline. */
void e2e_memory_verdict(const double *base, int n_base, const double *x, int n, char *text, measure_bytes *m);

int bench_worker(int argc, char **argv);

#endif
