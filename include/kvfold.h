/* SPDX-License-Identifier: MIT
 * kvfold: a key/value cache for attention whose history is folded into 1 to 8 bits.
 *
 * The cache keeps, per layer and KV head and in token order,
 *   sink (the first S tokens, f16) | body (packed blocks of 64 tokens) | window (the newest R to R+63, f16)
 * and attends to the packed codes directly: no dequantised copy of the history ever exists.
 *
 * The life of a batch (a transaction):
 *   kvf_batch_begin   (sequence, position) of every row to come; refuses what cannot fit
 *   kvf_attend_*      for each layer: queries against history + the batch's own rows (the "exact tail")
 *   kvf_batch_append  for each layer: points at the batch's K and V rows, checks them, copies nothing
 *   kvf_batch_commit  stores the rows, seals whole blocks, then drops rows by policy; or kvf_batch_abort: as if nothing had been
 *
 * Conventions
 * - Functions return KVF_OK (0) or a negative kvf_error. After a failure kvf_cache_error() holds a whole sentence that names
 *   the layer, head, position or option; questions (kvf_stats, kvf_keys, kvf_evicted) leave it alone. Nothing is changed by a call
 *   that fails.
 * - Every struct that the caller fills starts with `size`; the *_init function sets it, with all defaults. Reserved fields are 0.
 * - Strides are in bytes. Elements of one head of one token are contiguous.
 * - No function prints, exits, aborts, or keeps a pointer that it was given, except where stated (kvf_batch_append).
 * - Arithmetic supposes that the processor rounds to nearest. A thread that attends or commits needs 256 KiB of stack.
 * - Threads: one thread at a time may use a cache; between kvf_attend_begin and kvf_attend_end any number of threads may call
 *   kvf_attend_part on the same plan. Different caches are independent. There are no mutable globals.
 */
#ifndef KVFOLD_H
#define KVFOLD_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(KVFOLD_SHARED)
#ifdef KVFOLD_BUILD
#define KVF_API __declspec(dllexport)
#else
#define KVF_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define KVF_API __attribute__((visibility("default")))
#else
#define KVF_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KVF_VERSION_MAJOR 0
#define KVF_VERSION_MINOR 1
#define KVF_VERSION_PATCH 0

/* Tokens of one packed block: of one layer, all KV heads. Fixed by the format (docs/FORMAT.md). */
#define KVF_BLOCK 64

/* ---- errors --------------------------------------------------------------------------------------------------------------- */

/* X(name, code, text): the whole list; kvf_strerror is made from it. */
#define KVF_ERRORS(X)                                                                                                            \
    X(OK, 0, "success")                                                                                                          \
    X(E_ARG, -1, "invalid argument")                                                                                             \
    X(E_SPEC, -2, "unknown codec or malformed codec spec")                                                                       \
    X(E_UNSUPPORTED, -3, "combination not supported")                                                                            \
    X(E_NOMEM, -4, "out of memory")                                                                                              \
    X(E_STATE, -5, "call not allowed in this state")                                                                             \
    X(E_FULL, -6, "does not fit in what was reserved")                                                                           \
    X(E_NONFINITE, -7, "NaN or infinity in the input")                                                                           \
    X(E_POSITION, -8, "position out of order")                                                                                   \
    X(E_VERSION, -9, "struct size of another version")                                                                           \
    X(E_HOST, -10, "the host failed")                                                                                            \
    X(E_MODEL, -11, "model cannot be folded")                                                                                    \
    X(E_IO, -12, "input or output failed")                                                                                       \
    X(E_DAMAGED, -13, "input is damaged")

typedef enum kvf_error {
#define KVF_ERROR_ENUM(name, code, text) KVF_##name = code,
    KVF_ERRORS(KVF_ERROR_ENUM)
#undef KVF_ERROR_ENUM
} kvf_error;

/* Text of an error code; never NULL. */
KVF_API const char *kvf_strerror(int code);

/* "0.1.0" */
KVF_API const char *kvf_version(void);

/* ---- parameters ----------------------------------------------------------------------------------------------------------- */

typedef enum kvf_type { KVF_F16 = 1, KVF_F32 = 2 } kvf_type;
typedef enum kvf_side { KVF_K = 0, KVF_V = 1 } kvf_side;
typedef enum kvf_rope_style {
    KVF_ROPE_NORM = 0,   /* pairs of neighbours: channels 2i and 2i + 1 */
    KVF_ROPE_NEOX = 1,   /* pairs of halves: channels i and i + rope_dims / 2 */
    KVF_ROPE_UNKNOWN = 2 /* the keys are turned in a way that cannot be described here; rope_dims is 0 */
} kvf_rope_style;
typedef enum kvf_log_level { KVF_LOG_INFO = 0, KVF_LOG_WARN = 1 } kvf_log_level;

/* Memory hooks. `allocate` returns `size` bytes aligned to 64 or NULL; contents may be anything. `release` gets the same size.
 * Both may be called only from functions that are documented to allocate. */
typedef struct kvf_allocator {
    void *(*allocate)(void *user, size_t size);
    void (*release)(void *user, void *memory, size_t size);
    void *user;
} kvf_allocator;

/* One attention layer. */
typedef struct kvf_layer {
    uint32_t size;    /* sizeof(kvf_layer) */
    int32_t q_heads;  /* query heads; a multiple of kv_heads */
    int32_t kv_heads; /* 1 or more */
    int32_t k_dim;    /* channels of one key head (and of one query head), 1 to 1024 */
    int32_t v_dim;    /* channels of one value head, 1 to 1024 */
    int32_t window;   /* 0: attends to everything. W > 0: key j is visible to query i when pos_i - pos_j < W */
    int32_t v_in_k;   /* 1: V is the first v_dim channels of K (latent attention); only K is given and stored */
    int32_t share;    /* -1: own K/V. l >= 0: reads the K/V of the earlier layer l and stores none (l itself must own its K/V) */
    const char *k;    /* codec spec of the keys, as "kivi4:group=32"; NULL: kvf_params.k. Copied */
    const char *v;    /* the same for values */
    /* The rotary position embedding that the keys carry, for codecs that estimate key stages from the prompt. It turns the first
     * rope_dims channels in pairs by position * rope_freq[pair] radians; scaling rules (linear, YaRN, frequency factors) are all
     * in the frequencies. 0 dims: the keys are not rotated, unless the style is KVF_ROPE_UNKNOWN: then a centre from the prompt
     * (centre=prompt) becomes a mean that every block carries (centre=block). */
    int32_t rope_dims;       /* even, at most k_dim */
    int32_t rope_style;      /* kvf_rope_style */
    const double *rope_freq; /* [rope_dims / 2], copied; NULL when rope_dims is 0 */
    int64_t
        evict_budget; /* rows that each head keeps: 0: as kvf_params.evict says; -1: all. Only for layers that the policy works on */
    int64_t reserved[3];
} kvf_layer;

typedef struct kvf_params {
    uint32_t size;           /* sizeof(kvf_params) */
    int32_t n_layers;        /* 1 or more */
    const kvf_layer *layers; /* [n_layers], copied */
    const char *k;           /* default codec of keys; NULL: that of the default preset */
    const char *v;           /* default codec of values; NULL: that of the default preset, whatever k is */
    int32_t sink;            /* S, tokens kept exact at the start, 0 to 64; default 4 */
    int32_t recent;          /* R, newest tokens kept exact (R to R+63 are), 0 to 65536; default 64 */
    int32_t max_sequences;   /* sequence ids are 0 .. max_sequences-1; default 1, at most 256 */
    int32_t max_batch;       /* rows of one batch; default 512 */
    int32_t threads;     /* how many threads will call kvf_attend_part at once (a hint for the split); default 1, at most 256 */
    int32_t window_keep; /* tokens that windowed layers keep beyond their window, so that rm can step back; default 256 */
    int32_t exact_bits;  /* how the rows of sink and window are kept: 16 (f16, default) or 8 (q8_0: 8.5 bits a value) */
    int32_t seal_each; /* 1: for judging codecs only. Queries see the rows of their own batch coded, themselves included, as in a
                                 cache without a window; needs recent 0. Rows that do not fill an aligned block of 64 tokens within
                                 the batch are seen exactly, and so are the first 128 where the codec estimates key stages. default 0 */
    const char *cpu;   /* "scalar", "avx2", "neon"; NULL: $KVFOLD_CPU, else the best present. Absent sets are refused */
    const kvf_allocator *allocator; /* NULL: pages of the operating system, touched only when used */
    void (*log)(void *user, kvf_log_level level, const char *text); /* NULL: silent. One line, no newline */
    void *log_user;
    char *error; /* NULL, or error_size bytes where kvf_cache_create and kvf_bytes leave their sentence */
    size_t error_size;
    const char
        *evict; /* which tokens stay, as "window:budget=1024,recent=256,sink=4" (kvf_policy_list); NULL: "none", all. Copied.
                                 budget is that of each head: tokens, a share as 25% of all, or what makes `accounted` of the whole cache
                                 stay within 64MiB after each commit: max_sequences sequences get equal parts, however long they get.
                                 protect=0-1+29 names layers that keep everything, layers=2-5:512+28:256 others with budgets in tokens of their own (evict_budget of a layer comes before that);
                                 those with a window of their own are left alone */
    const struct kvf_calibration
        *calibration; /* kvfold_calibration.h; NULL: none. Copied. Key stages come from it instead of from the
                                 prompt, and codecs and policies that need codebooks or directions find them there */
    int64_t reserved[4];
} kvf_params;

/* Fills the defaults. Layers must be set by the caller. */
KVF_API void kvf_params_init(kvf_params *p);
KVF_API void kvf_layer_init(kvf_layer *l);

/* ---- cache ---------------------------------------------------------------------------------------------------------------- */

typedef struct kvf_cache kvf_cache; /* opaque */

/* Creates an empty cache. Allocates. On failure *cache is NULL and p->error (if set) says why. */
KVF_API int kvf_cache_create(kvf_cache **cache, const kvf_params *p);

/* Frees a cache and sets the pointer to NULL. NULL and pointer to NULL are fine. */
KVF_API void kvf_cache_free(kvf_cache **cache);

/* Maps everything that `sequences` sequences of together `tokens` tokens and batches of `batch` rows need, touching nothing.
 * Afterwards batch, attend and sequence calls within those limits never allocate; what does not fit fails with KVF_E_FULL.
 * What counts as tokens:
 * - of layers that the policy works on, the rows that a head holds of each sequence, however long that gets: at most the budget and 63
 *   more (kvf_evicted_t.kept). A copy counts in full, as its rows may come to lie in other blocks. Rows that were removed do not count,
 *   with one exception: those in the middle of blocks of a policy without scores (window) do, until its next 64 rows are stored;
 * - of layers that keep all, 64 for every packed block, once for sequences that share it, and the rows not packed yet. A cut into a block leaves
 *   it partly empty; room for 8 such blocks a sequence is added, for layers with a window of their own too where there is a policy.
 * As long as that and the rows of the batch are within `tokens` in every layer, kvf_batch_begin and kvf_seq_cp have what they need.
 * May be called again to grow. Without it the cache grows when needed, in kvf_batch_begin, kvf_seq_cp and kvf_attend_begin. */
KVF_API int kvf_reserve(kvf_cache *cache, int64_t tokens, int32_t sequences, int32_t batch);

/* The sentence of the last failure on this cache, "" when none. Valid until the next call. */
KVF_API const char *kvf_cache_error(const kvf_cache *cache);

/* ---- batches -------------------------------------------------------------------------------------------------------------- */

/* One row of a batch. */
typedef struct kvf_token {
    int32_t seq; /* 0 .. max_sequences-1 */
    int32_t pos; /* next position of that sequence: kvf_seq_pos_max + 1, then one more for each row; any start >= 0 when empty */
} kvf_token;

/* Rows of keys, values or queries that the caller owns: element c of head h of token t is at
 * (char *)data + t * token_stride + h * head_stride + c * sizeof(type). No alignment beyond that of the type is needed. */
typedef struct kvf_view {
    const void *data;
    int32_t type; /* kvf_type */
    int32_t reserved;
    int64_t token_stride; /* bytes */
    int64_t head_stride;  /* bytes */
} kvf_view;

/* Opens a batch of n rows (1 .. max_batch). Refuses (KVF_E_POSITION, KVF_E_FULL, ...) before anything changes. May allocate
 * unless reserved. Only one batch may be open. */
KVF_API int kvf_batch_begin(kvf_cache *cache, const kvf_token *tokens, int32_t n);

/* Stages the rows of one layer: row j of the batch is row cells[j] of the views (cells NULL: row j). Checks that they are
 * finite (KVF_E_NONFINITE names layer, head and position) and remembers pointers: rows and cells must stay valid and unchanged
 * until commit or abort. f32 rows are stored as f16; magnitudes above 65504 saturate and are counted. v is NULL for v_in_k
 * layers. Layers that share are not appended. Each other layer once, in any order. Does not allocate. */
KVF_API int kvf_batch_append(kvf_cache *cache, int32_t layer, const kvf_view *k, const kvf_view *v, const int32_t *cells);

/* Stores the staged rows, seals whole blocks, frees blocks that left a window; last of all, for every block that was sealed, the policy
 * drops coded rows until each head is within its budget: the sink, the rows left of it, and R newest. Fails only with KVF_E_STATE: no batch open, an
 * attention open, a layer not appended, or scores of an attention that a policy cannot rank rows by; a batch that is open stays so then.
 * Does not allocate. */
KVF_API int kvf_batch_commit(kvf_cache *cache);

/* Forgets the open batch. The cache is byte for byte what it was before kvf_batch_begin. */
KVF_API int kvf_batch_abort(kvf_cache *cache);

/* ---- attention ------------------------------------------------------------------------------------------------------------ */

/* One layer's attention for all rows of the open batch. For query row i, head h and visible key j:
 *   s_ij = scale * <q_i, k_j>;  softcap c > 0: s_ij = c * tanh(s_ij / c);  plus bias
 *   out_i = sum_j softmax_j(s_ij) v_j       in f32, streamed (online softmax: Milakov and Gimelshein, arXiv 1805.02867)
 * History (rows of earlier batches of the same sequence) is masked by stored positions: causal, and `window` of the layer.
 * The batch's own rows are given as exact tail. A row that sees nothing gives zeros and log-sum-exp -inf. Queries, keys, values,
 * slopes and sinks are checked to be finite; that their products fit f32 is the caller's business. */
typedef struct kvf_attention {
    uint32_t size; /* sizeof(kvf_attention) */
    int32_t layer;
    kvf_view q;           /* [rows][q_heads][k_dim] */
    kvf_view k;           /* tail keys [cells][kv_heads][k_dim]; of the layer shared, if this one shares */
    kvf_view v;           /* tail values [cells][kv_heads][v_dim]; ignored for v_in_k */
    const int32_t *cells; /* [rows]: row j of the batch is row cells[j] of k and v and column cells[j] of the mask; NULL: j */
    const void *mask;     /* [rows][columns], added to the scores of the tail after multiplication by the head's slope (1 if
                               slopes is NULL); finite or -inf, which hides; not checked. NULL: same sequence, causal, window, ALiBi from positions */
    int32_t mask_type;    /* kvf_type */
    int32_t reserved0;
    int64_t mask_stride;      /* bytes from one query row of the mask to the next */
    float scale;              /* usually 1/sqrt(k_dim) */
    float softcap;            /* 0: none */
    const float *slopes;      /* ALiBi (arXiv 2108.12409) slope of each query head [q_heads]; history gets -slope*(pos_i - pos_j).
                               NULL: none */
    const float *sinks;       /* [q_heads] attention-sink logits that join the softmax denominator only; NULL: none */
    float *out;               /* [rows][q_heads][v_dim] */
    int64_t out_token_stride; /* bytes */
    int64_t out_head_stride;  /* bytes */
    float *lse;               /* [rows][q_heads] natural log of the softmax denominator (sinks included); NULL: not wanted */
    int64_t reserved[4];
} kvf_attention;

KVF_API void kvf_attention_init(kvf_attention *a);

/* The work of one attention, ready to be shared out. */
typedef struct kvf_plan {
    int32_t parts; /* how many parts there are, 1 or more */
    int32_t reserved;
    size_t scratch; /* bytes of scratch in use; owned by the cache */
    kvf_cache *cache;
} kvf_plan;

/* Checks the request (finite queries and tail), groups rows by sequence and splits the work. `a` and what it points at must
 * stay valid until kvf_attend_end. Only one plan may be open. Allocates only if not reserved. */
KVF_API int kvf_attend_begin(kvf_cache *cache, const kvf_attention *a, kvf_plan *plan);

/* Does part i (0 .. parts-1): any thread, any order. A part that was done already is not done again. */
KVF_API void kvf_attend_part(const kvf_plan *plan, int32_t i);

/* Merges the parts by their log-sum-exp and writes `out` and `lse`; closes the plan. KVF_E_STATE when a part was not done: the plan
 * then stays open, and the missing parts may still be done. KVF_E_NONFINITE under a policy that ranks rows by attention (h2o, snapkv), at
 * a layer's first attention in a batch: scores are NaN or infinite. The plan is closed, and the batch can only be aborted. */
KVF_API int kvf_attend_end(kvf_plan *plan);

/* All three in the calling thread; no plan stays open. */
KVF_API int kvf_attend(kvf_cache *cache, const kvf_attention *a);

/* Merges attention over two disjoint sets of keys: (out, lse) becomes that of the union with (other, other_lse).
 * n rows of dim channels, contiguous. This is the merge that threads, devices and machines share. */
KVF_API void kvf_merge(float *out, float *lse, const float *other, const float *other_lse, int64_t n, int64_t dim);

/* ---- sequences ------------------------------------------------------------------------------------------------------------ */

typedef enum kvf_ability {
    KVF_CAN_RM = 1,       /* may rows from pos on be removed? (a windowed layer may have freed what would be needed) */
    KVF_CAN_RM_EXACT = 2, /* would that leave every kept row as in a run that never had the removed ones? (no coded row dies) */
    KVF_CAN_SHIFT = 3     /* may positions be shifted? never: coded keys hold their rotation */
} kvf_ability;

/* 1 yes, 0 no (kvf_cache_error says why), negative for a wrong argument. */
KVF_API int kvf_can(kvf_cache *cache, kvf_ability what, int32_t seq, int32_t pos);

/* Removes rows with p0 <= position < p1; p1 < 0: to the end; p0 <= 0 and p1 < 0: the whole sequence. Removing up to the end
 * lowers the next position to p0. Coded rows are marked dead; the following rows open a new block. What key stages have learnt from removed rows
 * they keep, unless at most the first 4 rows remain, uncoded or in the sink: then they learn anew. Under a policy with scores the rows that
 * stay move together at once, as after a choice: codecs whose scales belong to several tokens may code some of them again (rows_recoded).
 * No batch may be open. */
KVF_API int kvf_seq_rm(kvf_cache *cache, int32_t seq, int32_t p0, int32_t p1);

/* Copies a sequence: sealed blocks are shared, sink and window are copied. dst must be empty. May allocate unless reserved; KVF_E_FULL,
 * with nothing changed, when the copy does not fit in what was (kvf_reserve says how it counts). */
KVF_API int kvf_seq_cp(kvf_cache *cache, int32_t src, int32_t dst);

/* Removes every other sequence. */
KVF_API int kvf_seq_keep(kvf_cache *cache, int32_t seq);

/* Last position given to the sequence, -1 when empty. The next position is this plus one, whatever rows are kept. */
KVF_API int32_t kvf_seq_pos_max(const kvf_cache *cache, int32_t seq);

/* One row of one KV head as attention sees it, out[k_dim or v_dim]: exact rows as they are, packed ones decoded with everything that
 * was done before coding undone. For tests and measurements: it decodes a whole block. KVF_E_POSITION when no such row is held. */
KVF_API int kvf_seq_read(kvf_cache *cache, int32_t seq, int32_t layer, kvf_side side, int32_t head, int32_t pos, float *out);

/* The same of n rows (1 or more) at pos .. pos + n - 1, out[n][k_dim or v_dim]; each block is decoded once. KVF_E_POSITION names the first
 * row that is not held; those before it are in out then. */
KVF_API int kvf_seq_read_range(kvf_cache *cache, int32_t seq, int32_t layer, kvf_side side, int32_t head, int32_t pos, int32_t n,
                               float *out);

/* ---- numbers -------------------------------------------------------------------------------------------------------------- */

typedef struct kvf_stats_t {
    uint32_t size;  /* set by the caller to sizeof(kvf_stats_t) */
    int32_t layers; /* layers of the cache */
    int32_t
        layers_folded; /* of those, layers whose K or V is coded in fewer than 16 bits (sharing layers count as their owner) */
    int32_t sequences; /* not empty */
    int64_t
        tokens; /* rows held, over all sequences: of each, by the layer that holds most and there the head that does. Windowed layers
                            are asked only when there are no others. So with layers that keep everything it is theirs; kvf_evicted tells each
                            layer's, and tokens + tokens_evicted is more than was given where layers differ */
    int64_t tokens_sink;    /* of those: the first S of each sequence, exact for ever, */
    int64_t tokens_body;    /* in packed blocks, */
    int64_t tokens_window;  /* exact and recent */
    int64_t accounted;      /* bytes in use by the cache: equals kvf_bytes for one sequence */
    int64_t reserved_bytes; /* bytes mapped, used or not */
    int64_t resident;       /* bytes of those mappings in physical memory, measured; -1 where the system cannot tell */
    int64_t f16;            /* bytes in f16, no codes, of all rows held: of every layer and head those that it has */
    int64_t saturated;      /* values above 65504 that were clipped, since creation */
    double bits_code_k;     /* bits per key value of the body: codes, scales, padding; mean over layers weighted by values */
    double bits_code_v;
    double bits_code;      /* keys and values together */
    double bits_per_value; /* all-in: 8 * accounted / values held (0 when empty) */
    const char *cpu;       /* instruction set in use; belongs to the cache */
    int64_t
        tokens_evicted; /* rows that the policy took from each head of the layer that lost most, over the sequences held; those behind
                               a cut do not count (kvf_evicted_t.evicted) */
    int64_t
        saturated_scales; /* scales and lengths of coded vectors that f16 cannot hold (above 65504) and that were clipped, since
                                 creation */
    int64_t rows_recoded; /* coded rows of one head that were decoded and coded again when blocks were compacted, since creation:
                                 codecs whose scales belong to several tokens only */
    int64_t reserved[5];
} kvf_stats_t;

KVF_API int kvf_stats(const kvf_cache *cache, kvf_stats_t *s);

/* How the keys of one layer are centred before they are coded, and how much that matters there. */
typedef enum kvf_key_rule {
    KVF_KEYS_AS_THEY_ARE = 0, /* no centre: the codec has none, or was told so */
    KVF_KEYS_UNROTATED = 1,   /* mean of the prompt's un-rotated keys, one centre for 512 positions */
    KVF_KEYS_PLAIN_MEAN = 2,  /* plain mean of the prompt's keys: they are not rotated, or do not turn as described */
    KVF_KEYS_BLOCK_MEAN = 3,  /* every block carries the mean of its keys */
    KVF_KEYS_FILE = 4         /* mean of the calibration's un-rotated keys, one centre for 512 positions */
} kvf_key_rule;

typedef struct kvf_keys_t {
    uint32_t size; /* set by the caller to sizeof(kvf_keys_t) */
    int32_t rule;  /* kvf_key_rule in force; before the first estimates the one that is intended */
    double
        mean_share; /* squared length of the mean key over the mean squared length, 0 to 1, over rows S to 63 of the first block
                          that was sealed; the head with the most. -1: no block was sealed yet */
    int32_t risky;  /* 1: mean_share is above 0.95, and the codec would spend its codes on that mean: few bits, no centre */
} kvf_keys_t;

/* KVF_E_ARG: no such layer; KVF_E_VERSION: wrong size. Layers that share K/V answer for their owner. */
KVF_API int kvf_keys(const kvf_cache *cache, int32_t layer, kvf_keys_t *keys);

/* What a policy did in one layer, over all sequences held. Every KV head of a layer keeps as many rows, each its own. */
typedef struct kvf_evicted_t {
    uint32_t size;  /* set by the caller to sizeof(kvf_evicted_t) */
    int32_t pruned; /* 1: the policy works on this layer; 0: there is none, or the layer has a window of its own */
    int64_t kept;   /* rows that a head holds, exact ones included, removed ones not: of the head that has most */
    int64_t
        evicted; /* rows that it lost to the policy; those that were removed or left a window do not count. After a cut (kvf_seq_rm to
                        the end) at most those that are missing before it */
    int64_t budget; /* rows that it may keep of each sequence; 0: a share, or all */
    int32_t own;    /* 1: that is the layer's own, from kvf_layer.evict_budget or layers=; 0: it is the policy's */
    int32_t reserved;
} kvf_evicted_t;

/* KVF_E_ARG: no such layer; KVF_E_VERSION: wrong size. Layers that share K/V answer for their owner. */
KVF_API int kvf_evicted(const kvf_cache *cache, int32_t layer, kvf_evicted_t *e);

/* `accounted` of a cache made with p that holds one sequence of n_tokens rows (0 to 2^36) appended from position 0, before it exists.
 * With a policy that scores rows it is exact where tokens move between blocks as they are and keys have no stages from the prompt; such
 * stages may leave up to 3 blocks a layer less, and codecs whose scales belong to several tokens (kivi keys) down to half of them.
 * Negative kvf_error on failure (p->error says why). */
KVF_API int64_t kvf_bytes(const kvf_params *p, int64_t n_tokens);

/* ---- what exists ---------------------------------------------------------------------------------------------------------- */

typedef struct kvf_codec_info {
    const char *name;     /* "kivi" */
    const char *summary;  /* one line */
    const char *examples; /* "kivi4 kivi2:group=64" */
    uint32_t sides;       /* bit 0: keys, bit 1: values */
} kvf_codec_info;

/* 0 and *info filled for i < number of codecs, else KVF_E_ARG. */
KVF_API int kvf_codec_list(int32_t i, kvf_codec_info *info);

typedef struct kvf_policy_info {
    const char *name;     /* "knorm" */
    const char *summary;  /* one line */
    const char *examples; /* valid specs, separated by one space */
    int32_t score_bytes;  /* that it keeps for a token and KV head */
} kvf_policy_info;

/* 0 and *info filled for i < number of policies, else KVF_E_ARG. */
KVF_API int kvf_policy_list(int32_t i, kvf_policy_info *info);

typedef struct kvf_evict_info {
    char canonical[200];  /* the spec with every option written out */
    int32_t evicts;       /* 0: "none" */
    int32_t sink, recent; /* rows that are protected at both ends */
    int64_t budget; /* rows that a head keeps of `tokens` in the layer with the largest budget: of the policy's own and those of
                       layers= (a layer that protect= names has none). tokens when it keeps all, or when only a cache can tell: */
    int64_t bytes;  /* the budget is one of bytes; 0: it is not */
    int32_t score_bytes; /* as in kvf_policy_info */
    int32_t reserved;
} kvf_evict_info;

/* Checks a policy spec (NULL: "none") for a cache with the given sink and recent that holds `tokens`. error may be NULL. */
KVF_API int kvf_evict_check(const char *spec, int32_t sink, int32_t recent, int64_t tokens, kvf_evict_info *info, char *error,
                            size_t error_size);

typedef struct kvf_spec_info {
    char canonical[96]; /* the spec with every option written out */
    double bits_code;   /* bits per value: codes, scales, padding */
    size_t block_bytes; /* one head of one block of 64 tokens */
    int32_t head_dim_padded;
} kvf_spec_info;

/* Checks a spec for one side and head size. error may be NULL. */
KVF_API int kvf_spec_check(const char *spec, kvf_side side, int32_t head_dim, kvf_spec_info *info, char *error,
                           size_t error_size);

/* What `kvfold quality` once measured of a preset: how far the next-token distribution moves from the one with libllama's own f16 cache,
 * as mean KL divergence over the judged positions of one English text. True of that model and text, which are small; a hint for others.
 * docs/measured has the whole results and the commands. */
typedef struct kvf_measure {
    const char *model; /* file name without .gguf, as "smollm2-135m-instruct-f32" */
    int32_t context;   /* tokens of the text that was read */
    int32_t positions; /* of those, the last ones that were judged */
    double kld;        /* mean over them, in nats */
    double kld_error;  /* one standard error of that mean */
} kvf_measure;

typedef struct kvf_preset_info {
    const char *name, *k, *v;
    int32_t sink, recent, is_default;
    int32_t n_measured;
    const kvf_measure *measured; /* [n_measured], one a model, the same models in the same order for every preset; static */
} kvf_preset_info;
KVF_API int kvf_preset_list(int32_t i, kvf_preset_info *info);

/* Instruction sets built in, best last: "scalar" "avx2" ...; present is 1 if this processor has it. KVF_E_ARG past the end. */
KVF_API int kvf_cpu_list(int32_t i, const char **name, int32_t *present);

/* ---- operations alone ----------------------------------------------------------------------------------------------------- */

/* Bytes of n codes of `bits` (1 to 8) bits: ceil(n * bits / 8). */
KVF_API size_t kvf_op_packed_bytes(size_t n, int32_t bits);

/* Packs codes (one a byte, < 2^bits) as one little-endian bit stream; unused bits of the last byte are 0. KVF_E_ARG when a code
 * is too large or bits is not 1 to 8. */
KVF_API int kvf_op_pack(const uint8_t *codes, size_t n, int32_t bits, uint8_t *packed);
KVF_API int kvf_op_unpack(const uint8_t *packed, size_t n, int32_t bits, uint8_t *codes);

/* KIVI (Liu et al., arXiv 2402.02750, section 3): asymmetric uniform codes,
 *   scale = (max - min) / (2^bits - 1), zero = min, code = clamp(round_half_even((x - zero) / scale), 0, 2^bits - 1)
 * over groups of x[tokens][dim]: axis 0, `group` consecutive tokens of one channel (keys); axis 1, `group` consecutive channels
 * of one token (values). The last group may be short. scale and zero have shape [ceil(tokens/group)][dim] (axis 0) or
 * [tokens][ceil(dim/group)] (axis 1) and are rounded to `stored` (KVF_F16 or KVF_F32) before coding. scale is at least 1e-8
 * as f32 before rounding (0 for a constant group stored as f16); a constant group gets codes 0 and comes back as its rounded
 * zero: exactly in f32. Stored as f16, scale and zero saturate at 65504. No tokens: nothing is done. KVF_E_NONFINITE: NaN, infinity, or a magnitude above half the f32 range. */
KVF_API int kvf_op_kivi_quantise(const float *x, int64_t tokens, int64_t dim, int32_t bits, int32_t group, int32_t axis,
                                 kvf_type stored, uint8_t *codes, float *scale, float *zero);
/* x = code * scale + zero, multiplication and addition rounded apart. */
KVF_API int kvf_op_kivi_dequantise(const uint8_t *codes, const float *scale, const float *zero, int64_t tokens, int64_t dim,
                                   int32_t group, int32_t axis, float *x);

/* Orthonormal Walsh-Hadamard transform in place (Sylvester order), n vectors of dim channels in blocks of `block` (a power of
 * two that divides dim). Its own inverse. */
KVF_API int kvf_op_hadamard(float *x, int64_t n, int64_t dim, int32_t block);

/* The rotations of codec specs (rot=, seed=; docs/FORMAT.md, Stages): "none", "h" (Hadamard in blocks of the largest power of two that
 * divides dim), "h1" (random signs, one Hadamard of all channels), "h2" (the same twice). kvf_op_rotated_size: channels after the
 * transform, dim for "none" and "h"; for the others the next size that has a Hadamard matrix: 2^k, 12 2^k, 20 2^k or 28 2^k; negative
 * KVF_E_ARG when the name is unknown or another (NULL too), or dim is not 1 to 1024. */
KVF_API int32_t kvf_op_rotated_size(const char *rot, int32_t dim);
/* y[n][kvf_op_rotated_size] = R x, x[n][dim] with zeros behind it; and back, x = the first dim channels of R' y. Orthonormal; the same
 * bits on every target. x and y must not overlap. */
KVF_API int kvf_op_rotate(const char *rot, uint32_t seed, const float *x, int64_t n, int32_t dim, float *y);
KVF_API int kvf_op_rotate_back(const char *rot, uint32_t seed, const float *y, int64_t n, int32_t dim, float *x);

/* The scalar codebook of 2^bits levels with the least mean-square error (Lloyd 1957, Max 1960), ascending, symmetric: of a standard
 * normal variable for dim 0, else of one coordinate of a random unit vector in dim dimensions, times sqrt(dim) (dim below 4: the
 * normal variable too). levels[2^bits]; *error, which may be NULL, receives that error. The same bits on every target. KVF_E_ARG when
 * bits is not 1 to 8, or dim is negative or above 2^20. */
KVF_API int kvf_op_codebook(int32_t bits, int32_t dim, float *levels, double *error);

/* code = number of midpoints (levels[i] + levels[i + 1]) / 2 that lie strictly below x: the nearest level, and of two equally near ones
 * the lower. levels[n_levels] must not descend; 1 to 256 of them. Midpoints are f32: the sum is rounded, its half is exact. Infinite x
 * get the outermost codes. KVF_E_NONFINITE: x is NaN, or a level is not finite or beyond half the f32 range; nothing is promised of
 * codes then. */
KVF_API int kvf_op_codebook_quantise(const float *x, size_t n, const float *levels, int32_t n_levels, uint8_t *codes);
/* x = levels[code]. KVF_E_ARG when a code is not below n_levels. */
KVF_API int kvf_op_codebook_dequantise(const uint8_t *codes, size_t n, const float *levels, int32_t n_levels, float *x);

/* Norm, rotation, codebook and packing of n vectors x[n][dim] in one go, vector by vector: nothing is written but its norm and its
 * codes: norm = ||x||, codes = quantise(y * (sqrt(size) / norm)) with y[size] = x rotated (rot and seed as in kvf_op_rotate), packed
 * as kvf_op_pack does into packed[n][kvf_op_packed_bytes(size, bits)]. levels[2^bits] as above, in units of a coordinate of a vector of
 * length sqrt(size), as kvf_op_codebook gives them. The codes are those of the operations one after the other, bit for bit. A vector of
 * norm 0 is coded as zeros. Sums are f32, element i into partial sum i % 16, then halves added pairwise. Lengths
 * below 2^-60 lose precision, below 2^-75 they are 0. KVF_E_NONFINITE: a norm is not finite, as from 2^64 on; vectors before that one are
 * done then, its own norm and codes and those behind it are as they were. */
KVF_API int kvf_op_rotate_quantise_pack(const char *rot, uint32_t seed, const float *x, int64_t n, int32_t dim,
                                        const float *levels, int32_t bits, uint8_t *packed, float *norm);
/* And back: x = the first dim channels of R' (levels[code] * (norm / sqrt(size))). */
KVF_API int kvf_op_unpack_dequantise_rotate(const char *rot, uint32_t seed, const uint8_t *packed, const float *norm, int64_t n,
                                            int32_t dim, const float *levels, int32_t bits, float *x);

/* Encodes 64 tokens of one head, x[64][head_dim], into a record of kvf_spec_info.block_bytes bytes (64-byte aligned) as the
 * cache would, and back. Rows are rounded to f16 first (saturating); NaN and infinity are refused. Stages that come from a
 * prompt (centre, channel scale) are left out. Both allocate scratch. */
KVF_API int kvf_op_encode(const char *spec, kvf_side side, int32_t head_dim, const float *x, void *record);
KVF_API int kvf_op_decode(const char *spec, kvf_side side, int32_t head_dim, const void *record, float *x);
/* The same for KV head `head` of a layer of which something is known, as codecs with codebooks need (KVF_E_UNSUPPORTED without). Centre and
 * channel scale are left out here, too. NULL: nothing is known. */
struct kvf_calibrated_layer;
KVF_API int kvf_op_encode_calibrated(const char *spec, kvf_side side, int32_t head_dim, const struct kvf_calibrated_layer *layer,
                                     int32_t head, const float *x, void *record);
KVF_API int kvf_op_decode_calibrated(const char *spec, kvf_side side, int32_t head_dim, const struct kvf_calibrated_layer *layer,
                                     int32_t head, const void *record, float *x);

/* Product codes (Jegou et al., 2011): index[i] = the nearest of centroids[k][sub] to x[i][sub], i < n, by the squared distance in f32, channel
 * after channel; of equally near ones the lowest. sub 2, 4 or 8, k 1 to 4096. The same indices on every instruction set, no memory but the
 * arguments. KVF_E_NONFINITE: x or a centroid is not finite; nothing is promised of indices then. */
KVF_API int kvf_op_nearest_centroid(const float *x, int64_t n, int32_t sub, const float *centroids, int32_t k, uint16_t *index);
/* x[i] = the centroid of index[i]. KVF_E_ARG when an index is not below k. */
KVF_API int kvf_op_gather_centroids(const uint16_t *index, int64_t n, int32_t sub, const float *centroids, int32_t k, float *x);

#ifdef __cplusplus
}
#endif
#endif
