/* SPDX-License-Identifier: MIT
 * Threads for the parts of an attention, inside the host's callback.
 *
 * ggml's workers spin for a while after each piece of the graph. A second pool would fight with them for the cores, so the
 * parts run on ggml's own threads: through OpenMP when ggml's CPU backend uses the very runtime that this file was built
 * with, otherwise as a custom operation of a graph of one node on a CPU backend. Which of the two holds is not guessed from
 * names: a custom operation asks, from inside ggml's team, whether our OpenMP runtime knows of a team. (Where two runtimes are
 * loaded, the question might go to one and our parallel regions to the other: so a region of our own is asked as well.) */
#include "adapter.h"

#include <stdatomic.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* A custom operation of ggml is computed by every thread of the team. */
static void probe_team(struct ggml_tensor *dst, int ith, int nth, void *user)
{
    (void)dst;
    kvfi_host_threads *t = user;
#ifdef _OPENMP
    if (ith == 0 && nth > 1) t->team = omp_in_parallel() && omp_get_num_threads() == nth;
#else
    (void)ith, (void)nth, (void)t;
#endif
}

static void work(struct ggml_tensor *dst, int ith, int nth, void *user)
{
    (void)dst;
    const kvfi_host_threads *t = user;
    for (int32_t i = ith; i < t->plan->parts; i += nth) kvf_attend_part(t->plan, i);
}

static struct ggml_cgraph *one_node(struct ggml_context **memory, ggml_custom_op_t f, kvfi_host_threads *t)
{
    size_t bytes = 4 * ggml_tensor_overhead() + ggml_graph_overhead_custom(8, false) + 4096;
    *memory = ggml_init((struct ggml_init_params){.mem_size = bytes, .mem_buffer = NULL, .no_alloc = false});
    if (!*memory) return NULL;
    struct ggml_tensor *node = ggml_custom_4d(*memory, GGML_TYPE_F32, 1, 1, 1, 1, NULL, 0, f, GGML_N_TASKS_MAX, t);
    struct ggml_cgraph *graph = ggml_new_graph_custom(*memory, 8, false);
    ggml_build_forward_expand(graph, node);
    return graph;
}

#ifdef _OPENMP
static int own_team(void)
{
    int team = 0;
#pragma omp parallel num_threads(2)
    {
#pragma omp master
        team = omp_get_num_threads();
    }
    return team == 2;
}
#endif

static int same_openmp(kvfi_host_threads *t)
{
#ifdef _OPENMP
    struct ggml_context *memory;
    struct ggml_cgraph *graph = one_node(&memory, probe_team, t);
    if (!graph) return 0;
    t->team = 0;
    t->set_n_threads(t->cpu, 2);
    int same = ggml_backend_graph_compute(t->cpu, graph) == GGML_STATUS_SUCCESS && t->team && own_team();
    ggml_free(memory);
    return same;
#else
    (void)t;
    return 0;
#endif
}

int kvfi_host_threads_init(kvf_llama *h)
{
    kvfi_host_threads *t = &h->threads;
    t->cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    if (!t->cpu) return kvfi_host_fail(h, KVF_E_HOST, "ggml has no CPU backend");
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(t->cpu));
    void *f = ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (!f) return kvfi_host_fail(h, KVF_E_HOST, "ggml's CPU backend does not let its number of threads be set");
    memcpy(&t->set_n_threads, &f, sizeof f);
    t->openmp = same_openmp(t);
    if (t->openmp) return KVF_OK;
    t->graph = one_node(&t->memory, work, t);
    if (!t->graph) return kvfi_host_fail(h, KVF_E_NOMEM, "out of memory: a graph of one node");
    kvfi_host_log(h, KVF_LOG_INFO,
                  "attention runs as a ggml graph: ggml's threads do not belong to the OpenMP runtime of this library");
    return KVF_OK;
}

void kvfi_host_threads_free(kvfi_host_threads *t)
{
    if (t->memory) ggml_free(t->memory);
    if (t->cpu) ggml_backend_free(t->cpu);
    memset(t, 0, sizeof *t);
}

/* Does every part, with exactly the host's number of threads. Parts that could not be done are noticed by kvf_attend_end. */
void kvfi_host_run_plan(kvfi_host_threads *t, const kvf_plan *plan, int32_t n_threads)
{
    if (n_threads <= 1 || plan->parts <= 1) {
        for (int32_t i = 0; i < plan->parts; i++) kvf_attend_part(plan, i);
        return;
    }
#ifdef _OPENMP
    if (t->openmp) {
#pragma omp parallel for num_threads(n_threads) schedule(dynamic, 1)
        for (int32_t i = 0; i < plan->parts; i++) kvf_attend_part(plan, i);
        return;
    }
#endif
    t->plan = plan;
    t->set_n_threads(t->cpu, n_threads);
    (void)ggml_backend_graph_compute(t->cpu, t->graph);
    t->plan = NULL;
}
