/* SPDX-License-Identifier: MIT
 * Inside of the llama adapter. Only public names of llama.h, ggml.h and ggml-backend.h; the cache only through kvfold.h. */
#ifndef KVFI_HOST_ADAPTER_H
#define KVFI_HOST_ADAPTER_H

#include "kvfold_llama.h"

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

#ifdef __GNUC__
#define KVFI_HOST_PRINTF(at, first) __attribute__((format(printf, at, first)))
#else
#define KVFI_HOST_PRINTF(at, first)
#endif

enum {
    KVFI_HOST_PAD = 256,      /* libllama rounds n_ctx and the cells of a window cache up to this */
    KVFI_HOST_MIN_BATCH = 16, /* rows; the probe needs a few */
    KVFI_HOST_PROBE_ROWS = 3,
    KVFI_HOST_INDEX_SETS = 8, /* distinct cell-index tensors of one graph: K and V, full and window, with room */
    KVFI_HOST_MASKS = 8,      /* distinct masks of one graph */
    KVFI_HOST_SPEC = 96       /* characters of a codec spec */
};

/* RoPE as the graph applies it to the keys of one layer. dims 0: none on the key's path. */
typedef struct kvfi_host_rope {
    int32_t dims, mode, original_ctx, offset;
    int32_t sections[4];
    float base, scale, ext, attn, beta_fast, beta_slow;
    int32_t n_factors;
    float *factors; /* frequency factors, copied; NULL: none */
    char factors_name[GGML_MAX_NAME];
} kvfi_host_rope;

/* One attention layer of the model; its index in kvf_llama.attn is its layer in the cache. */
typedef struct kvfi_host_layer {
    int32_t il;    /* layer of the model */
    int32_t owner; /* layer of the model whose cache tensors it reads */
    int32_t share; /* index of the owner in kvf_llama.attn, -1: itself */
    int32_t q_heads, kv_heads, k_dim, v_dim, v_in_k;
    int32_t window;  /* 0: full */
    int32_t visible; /* cells that the window probe saw */
    float scale, max_bias, softcap;
    float *slopes;      /* ALiBi, [q_heads]; NULL: none */
    int64_t row_bytes;  /* of one host cell: K and V */
    int64_t host_bytes; /* of its cache tensors */
    int64_t host_cells;
    double mismatch; /* relative distance from ggml's own attention, measured at attach */
    kvfi_host_rope rope;
    char k[KVFI_HOST_SPEC], v[KVFI_HOST_SPEC]; /* override asked for, then the canonical spec */
    kvf_view k_rows, v_rows;                   /* of the decode in progress */
    double *rope_freq; /* [rope.dims / 2] radians per position; NULL: not rotated, or not by one frequency a pair */
    const int32_t *cells;
} kvfi_host_layer;

/* What the graph says about cache_k_l<il>. */
typedef struct kvfi_host_slot {
    int32_t stored;          /* its rows are written by this graph */
    int32_t read;            /* a flash attention reads it */
    const int32_t *cells[2]; /* of the decode in progress, by kvf_side */
    kvfi_host_rope rope;     /* filled by the probe, moved to the layer */
} kvfi_host_slot;

typedef enum kvfi_host_mode {
    KVFI_HOST_IDLE,   /* only the caller's own callback */
    KVFI_HOST_SHAPE,  /* probe: which layers, which shapes */
    KVFI_HOST_WINDOW, /* probe: cells that each layer sees */
    KVFI_HOST_CHECK,  /* probe: our attention beside ggml's */
    KVFI_HOST_DECODE
} kvfi_host_mode;

typedef struct kvfi_host_index {
    const struct ggml_tensor *tensor;
    int32_t *cells; /* [n_batch] */
} kvfi_host_index;

/* The decode in progress, as the callback sees it. */
typedef struct kvfi_host_run {
    kvfi_host_mode mode;
    int32_t rows, attended, last_il;
    int error;                   /* first failure inside the graph; the sentence is in kvf_llama.error */
    int stopped;                 /* the caller's callback ended the graph */
    int caller_wants;            /* the caller asked for the node that is being computed */
    struct ggml_tensor *stop;    /* node asked for by us */
    struct ggml_tensor *skipped; /* node whose COMPUTE flag is cleared at this moment */
    int32_t n_index, n_masks;
    kvfi_host_index index[KVFI_HOST_INDEX_SETS];
    const struct ggml_tensor *masks[KVFI_HOST_MASKS]; /* those whose row order is proven */
} kvfi_host_run;

typedef struct kvfi_host_threads {
    ggml_backend_t cpu; /* for the custom-op graph and for finding out who owns ggml's threads */
    struct ggml_context *memory;
    struct ggml_cgraph *graph;
    ggml_backend_set_n_threads_t set_n_threads;
    int openmp; /* ggml's workers belong to the OpenMP runtime that this file was built with */
    const kvf_plan *plan;
    int team; /* written by the probe */
} kvfi_host_threads;

typedef struct kvfi_host_state {
    uint8_t *data;
    size_t size, capacity;
} kvfi_host_state;

struct kvf_llama {
    const struct llama_model *model;
    struct llama_context *ctx; /* NULL: not attached */
    kvf_cache *cache;
    ggml_backend_sched_eval_callback caller_callback;
    void *caller_data;
    char *k, *v, *kv_layer, *cpu, *evict;
    int32_t sink, recent; /* those of the cache: no default is left */
    int32_t keep_host_attention, seal_each, exact_bits;
    void (*log)(void *user, kvf_log_level level, const char *text);
    void *log_user;
    const kvf_llama_calibration *calibration;
    void (*observe)(void *user, const kvf_llama_rows *rows);
    void *observe_user;

    int32_t n_seq, n_batch, n_layers, n_slots, n_vocab, window, hybrid;
    int32_t host_seq;  /* sequences asked of libllama */
    int32_t host_ctx;  /* cells asked of libllama */
    int32_t long_rope; /* 0: no such model; 1: the short factors apply; 2: the long ones */
    int64_t n_ctx;
    int64_t n_positions; /* that a sequence may take */
    int64_t reserved;    /* tokens reserved in the cache */

    int32_t n_attn;
    kvfi_host_layer *attn; /* [n_layers], in graph order */
    kvfi_host_slot *slots; /* [n_slots] by layer of the model */
    kvfi_host_run run;
    kvfi_host_threads threads;

    /* one part of a batch, [n_batch] */
    kvf_token *tokens;
    llama_token *ids;
    llama_pos *positions;
    llama_seq_id *seqs, **seq_ptrs;
    int32_t *seq_counts;
    int8_t *outputs;
    int32_t *cell_memory; /* [KVFI_HOST_INDEX_SETS][n_batch] */
    float *scratch;       /* output of one attention, for the check */
    size_t scratch_size;

    /* the whole batch: rows and where their logits are */
    int32_t n_rows, rows_done, last_first, rows_capacity;
    int32_t *row_seq, *row_pos; /* [rows_capacity] */
    int32_t *row_saved;         /* index in saved, -1: none */
    int8_t *row_output;
    float *saved;
    size_t saved_capacity; /* rows */

    int32_t *next; /* [n_seq] next position while a batch is checked */
    int64_t *held; /* [n_seq] rows of each sequence */
    int8_t *lost;  /* [n_seq] recurrent state could not be restored */
    kvfi_host_state state;

    int64_t asks, stops, attend_us;
    char error[512];
};

/* errors.c */
int kvfi_host_fail(kvf_llama *h, int code, const char *format, ...) KVFI_HOST_PRINTF(3, 4);
int kvfi_host_fail_cache(kvf_llama *h, int code, const char *what);
void kvfi_host_log(const kvf_llama *h, kvf_log_level level, const char *format, ...) KVFI_HOST_PRINTF(3, 4);

/* graph.c: reading tensors */
const struct ggml_tensor *kvfi_host_root(const struct ggml_tensor *t);
int32_t kvfi_host_cache_layer(const struct ggml_tensor *t, char side);
int kvfi_host_is_cache(const struct ggml_tensor *t);
int32_t kvfi_host_name_layer(const char *name);
int kvfi_host_in_host_memory(const struct ggml_tensor *t);
float kvfi_host_param(const struct ggml_tensor *t, int i);
int kvfi_host_visible(const struct ggml_tensor *mask, int64_t row, int64_t column);

/* rope.c */
int kvfi_host_rope_freq(const kvfi_host_rope *rope, double *freq);
int kvfi_host_read_rope(const struct ggml_tensor *key, kvfi_host_rope *rope);

/* callback.c */
bool kvfi_host_callback(struct ggml_tensor *t, bool ask, void *user);
int kvfi_host_graph(kvf_llama *h, kvfi_host_mode mode, struct llama_batch batch);

/* attention.c */
int kvfi_host_prove_order(kvf_llama *h, const struct ggml_tensor *mask, const kvfi_host_layer *l);
int kvfi_host_attend(kvf_llama *h, int32_t layer, const struct ggml_tensor *t, float *out);

/* attach.c */
int32_t kvfi_host_rope_style(const kvfi_host_layer *l);

/* threads.c */
int kvfi_host_threads_init(kvf_llama *h);
void kvfi_host_threads_free(kvfi_host_threads *t);
void kvfi_host_run_plan(kvfi_host_threads *t, const kvf_plan *plan, int32_t n_threads);

/* layers.c: probe results of one attention */
int kvfi_host_add_layer(kvf_llama *h, const struct ggml_tensor *t);
int kvfi_host_same_layer(kvf_llama *h, const kvfi_host_layer *l, const struct ggml_tensor *t);
void kvfi_host_free_layers(kvf_llama *h);

/* probe.c */
int kvfi_host_probe(kvf_llama *h);
int kvfi_host_check(kvf_llama *h);

/* spec_layers.c */
int kvfi_host_layer_specs(kvf_llama *h, const char *text);

/* recurrent.c */
int kvfi_host_save_state(kvf_llama *h, int32_t seq);
int kvfi_host_restore_state(kvf_llama *h, int32_t seq);

/* rows.c: the caller's batch */
int kvfi_host_check_batch(kvf_llama *h, const struct llama_batch *batch);
int32_t kvfi_host_part_end(const kvf_llama *h, int32_t first);
struct llama_batch kvfi_host_part(kvf_llama *h, const struct llama_batch *batch, int32_t first, int32_t end);
int kvfi_host_rows_room(kvf_llama *h, int32_t rows);
int kvfi_host_logits_room(kvf_llama *h);
void kvfi_host_keep_logits(kvf_llama *h, int32_t first, int32_t end);

/* Fills n_positions: the cache exists (positions.c). */
void kvfi_host_set_positions(kvf_llama *h);

#endif
