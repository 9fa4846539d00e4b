/* SPDX-License-Identifier: MIT
 * The parts of `kvfold quality`: text, arms, the lockstep run, the report.
 *
 * Decode-faithful: the text is fed in host batches of exactly 64 aligned tokens. With a window that is a multiple of 64, a query
 * then sees the same tokens coded and the same exact as if the text had come one token at a time. All arms are fed the same batch
 * before any is fed the next one, so their logits are compared where libllama leaves them and nothing is written to a file.
 */
#ifndef KVFOLD_CLI_QUALITY_H
#define KVFOLD_CLI_QUALITY_H

#include "arms.h"
#include "progress.h"
#include "quality_stats.h"
#include "result.h"
#include "run.h"

enum {
    QUALITY_BATCH = KVF_BLOCK,           /* rows of a batch: what one sealing takes */
    QUALITY_PREFILL = 4 * QUALITY_BATCH, /* rows of a batch as an ordinary prompt is read */
    QUALITY_BUCKETS = 4,                 /* of depth */
    QUALITY_BLOCK = 8,                   /* neighbouring positions of a chunk that errors take as one */
    QUALITY_WORST_MOST = 32,
    QUALITY_ARMS_MOST = CLI_ARMS_MOST,
};

/* held_out: of `chunks`, the last ones of each text, which kvfold tune judges on; 0 of other commands. */
typedef struct quality_settings {
    const char *model, *list, *arms_file, *slice;
    cli_list files;
    int64_t context, score, chunks, held_out, threads, seed, worst, resident, gpu_layers, floor;
    bool verbose, seal_each, generate;
    kv_settings kv; /* the same for all our arms */
    result_settings out;
} quality_settings;

/* ---- quality_text.c: what is read ------------------------------------------------------------------------------------------ */

typedef struct quality_text {
    const char *name;     /* path */
    int64_t first, bytes; /* what was taken of it, whole characters */
    uint64_t hash;        /* of those bytes */
    int32_t tokens;       /* in those bytes */
    int32_t chunks;       /* that are read of it */
} quality_text;

/* One context full of text, judged at its last `score` positions that have a next token. */
typedef struct quality_chunk {
    llama_token *token; /* [context], the model's beginning of text first where it asks for one */
    int text;           /* index of its text */
} quality_chunk;

typedef struct quality_input {
    quality_text text[CLI_LIST_MOST];
    int n_texts;
    quality_chunk *chunk;
    int n_chunks;
    int32_t context, score;
} quality_input;

/* Reads the bytes of all texts and checks them, before a model is loaded. `raw` has one entry a file. */
int quality_read(quality_input *in, cli_text *raw, const quality_settings *set);
/* CLI_GO, or an exit code after a sentence. */
int quality_tokenize(quality_input *in, const cli_text *raw, const struct llama_vocab *vocab, const quality_settings *set);
void quality_input_free(quality_input *in);

/* ---- quality_generate.c: what is written with a cache ----------------------------------------------------------------------- */

typedef enum quality_check {
    QUALITY_GREEDY,
    QUALITY_RECALL,
    QUALITY_ARITHMETIC,
    QUALITY_STRUCTURE,
    QUALITY_CHECKS
} quality_check;
extern const char *const quality_check_name[QUALITY_CHECKS], *const quality_check_key[QUALITY_CHECKS];

/* Is a written text the answer? Of facts and sums: it begins with it, and a number ends where the answer's does. Of structure: it
 * begins with a JSON value equal to the answer's. */
bool quality_right(quality_check kind, const char *text, const char *answer);

typedef struct quality_generation {
    bool done; /* all questions were asked */
    int asked[QUALITY_CHECKS], passed[QUALITY_CHECKS];
    int32_t same_tokens, tokens; /* of free text: as the reference's, from its start; of the reference */
} quality_generation;

/* The reference's free text. */
typedef struct quality_answer {
    llama_token token[64];
    int32_t n;
} quality_answer;

/* ---- quality_arm.c: a cache ------------------------------------------------------------------------------------------------ */

typedef struct quality_arm {
    char name[CLI_ARM_NAME];
    bool host;           /* libllama's own cache */
    enum ggml_type k, v; /* of libllama's */
    kv_choice choice;    /* of ours */
    int32_t rows;        /* of one batch */
    struct llama_context *ctx;
    kvf_llama *fold;
    int32_t at, fed;                  /* the batch that its logits are of: first position, rows; fed 0: none */
    char failure[600];                /* why it could not be made or go on, "" when it could */
    double bits_code, bits_per_value; /* of the cache alone */
    double with_host;                 /* bits_per_value and the cells that libllama keeps beside a folded cache */
    int64_t evicted;                  /* tokens that each head has lost to its policy at the end of a chunk */
    int64_t recoded;      /* rows of single heads that were coded a second time when blocks were compacted, over all chunks */
    int64_t body;         /* tokens in packed blocks at the end of a chunk; of libllama's: all */
    quality_point *point; /* [n_points], in the order of the text */
    int64_t n_points;
    quality_generation generation;
} quality_arm;

/* First length of the cache at which an arm's policy drops something even of the layer with the largest budget: a block is sealed then,
 * with the exact rows behind it. */
int64_t quality_arm_binds_at(const quality_arm *arm, const quality_settings *set);

/* Is its budget one of bytes, so that only a cache can tell of how many tokens? */
bool quality_arm_budgets_bytes(const quality_arm *arm);

/* Arms as the options name them, in their order; none is of a profile that set->out would replace. Never the reference. CLI_GO, or an exit
 * code after a sentence. */
int quality_arms_make(quality_arm *arms, int *n, const quality_settings *set);
/* kv_choice_meet of all of them, each profile once; that of set->kv has met the model with the session. */
void quality_arms_meet(const quality_arm *arms, int n, const quality_settings *set);
/* An arm of libllama's f16 cache. */
void quality_arm_plain(quality_arm *arm, const char *name, int32_t rows);
void quality_arm_free(quality_arm *arm);

/* Makes the context. False with the reason in arm->failure. */
bool quality_arm_open(quality_arm *arm, const session *s, const quality_settings *set);
void quality_arm_close(quality_arm *arm);
/* Forgets all tokens. */
bool quality_arm_clear(quality_arm *arm);
/* Decodes the batch that begins at `at`, when it is not decoded yet, with logits for positions from `first` on. False when it
 * failed or was interrupted. */
bool quality_arm_feed(quality_arm *arm, const llama_token *token, int32_t at, int32_t n, int32_t first);
/* The same for one token after those that it holds. */
bool quality_arm_feed_one(quality_arm *arm, llama_token token, int32_t pos);
/* Forgets tokens from `pos` on. False when this cache cannot: clear it then. */
bool quality_arm_cut(quality_arm *arm, int32_t pos);
const float *quality_arm_logits(quality_arm *arm, int32_t pos);
/* Notes what the cache that is now full takes. */
void quality_arm_count(quality_arm *arm);

/* ---- quality_run.c: the run ------------------------------------------------------------------------------------------------ */

typedef struct quality_run {
    const quality_settings *set;
    session *s;
    quality_input in;
    quality_arm reference; /* llama-f16 */
    quality_arm prefill;   /* the same cache, filled by batches of QUALITY_PREFILL rows */
    quality_arm floor;     /* the same cache, filled by batches of set->floor rows: how far arithmetic alone moves the result */
    quality_arm *arm;      /* [n_arms] */
    int n_arms;
    quality_answer *answer; /* of the reference, one a question; NULL without --generate */
    int groups;             /* passes over the text */
    bool interrupted;
    double seconds;
} quality_run;

/* Runs all arms. CLI_GO (also when interrupted, or when single arms failed) or an exit code after a sentence. */
int quality_run_all(quality_run *run);
/* Asks all arms that could run, after that. */
void quality_generate(quality_run *run);
/* Chunk and position of a point. */
void quality_place(const quality_run *run, int64_t point, int *chunk, int32_t *pos);

/* ---- quality_result.c: what an arm's points say ---------------------------------------------------------------------------- */

enum { QUALITY_KLD_N = 3, QUALITY_CHANGE_N = 9 }; /* percentiles of the divergence and of the change of probability */
extern const double quality_kld_share[QUALITY_KLD_N], quality_change_share[QUALITY_CHANGE_N];
extern const char *const quality_kld_name[QUALITY_KLD_N], *const quality_change_name[QUALITY_CHANGE_N];

typedef struct quality_part {
    int64_t n;
    quality_mean kld, same_top;
} quality_part;

typedef enum quality_verdict { QUALITY_ABOVE, QUALITY_AT_FLOOR, QUALITY_NO_FLOOR } quality_verdict;

typedef struct quality_result {
    int64_t n;
    quality_mean ppl, ratio, kld, same_top, change, change_square;
    double kld_share[QUALITY_KLD_N], kld_max;
    double change_at[QUALITY_CHANGE_N];
    quality_part bucket[QUALITY_BUCKETS];
    quality_part text[CLI_LIST_MOST];
    int64_t worst[QUALITY_WORST_MOST]; /* points with the largest kld, largest first */
    int n_worst;
    quality_interval above_floor; /* of the mean kld, 99 % */
    quality_verdict verdict;
} quality_result;

void quality_summarise(const quality_run *run, const quality_arm *arm, quality_result *r);
/* The mean divergence of a less that of b, at the positions that both have: bootstrap over the blocks. */
quality_interval quality_difference(const quality_run *run, const quality_arm *a, const quality_arm *b, double confidence,
                                    uint64_t seed);
/* Do that many positions make enough blocks for the bootstrap's interval to be believed? */
bool quality_bounds(const quality_run *run, int64_t points);
/* Sums of the divergence over blocks of QUALITY_BLOCK positions (the last one of a chunk may be shorter), for a comparison with the same
 * blocks of another run; room for one a position. Returns how many there are. */
int64_t quality_block_sums(const quality_run *run, const quality_arm *arm, double *sum);
/* First position of a bucket of depth; bucket QUALITY_BUCKETS gives the end. */
int32_t quality_bucket_from(const quality_run *run, int bucket);

/* What stands at a position: up to `tokens` tokens before it, the next one, and what the reference and the arm hold likeliest. */
typedef struct quality_words {
    cli_text before, next, top_reference, top;
} quality_words;
void quality_words_at(const quality_run *run, const quality_arm *arm, int64_t point, int32_t tokens, quality_words *w);
void quality_words_free(quality_words *w);

/* ---- quality_report.c, quality_json.c -------------------------------------------------------------------------------------- */

void quality_print_table(const quality_run *run);
struct json_t *quality_json(const quality_run *run);

#endif
