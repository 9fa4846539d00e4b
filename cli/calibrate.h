/* SPDX-License-Identifier: MIT
 * The parts of `kvfold calibrate`: what attention sees is sampled, then learnt from, then written.
 *
 * One reservoir for the whole model (Vitter, "Random sampling with a reservoir", 1985, algorithm R): position i of the text takes slot i,
 * or later a slot drawn by the seed alone, so the sample depends neither on the size of batches nor on threads. Memory is bounded by
 * the number of slots.
 *
 * One more chunk, of which nothing is sampled, says how well scores of keys rank them: its attention is computed in full, and each key's
 * mean weight over the queries that could see it is compared with the scores (Spearman). */
#ifndef KVFOLD_CLI_CALIBRATE_H
#define KVFOLD_CLI_CALIBRATE_H

#include "quality.h"
#include "tune.h"

#include <kvfold_calibration.h>

enum {
    CALIBRATE_SKIP = 4,         /* positions at the start of a chunk that are never coded */
    CALIBRATE_LEAST = 64,       /* tokens of a text */
    CALIBRATE_RANK_MOST = 1024, /* tokens of the chunk that keys are ranked on */
    CALIBRATE_LOSS_MOST = 1024, /* tokens that sensitivities are measured on, and the fewest that show any */
    CALIBRATE_LOSS_LEAST = 256,
    CALIBRATE_RANK_LEAST = 64, /* queries that must see a key before its mean weight counts */
    CALIBRATE_BOOKS = 16,
};

typedef struct calibrate_settings {
    const char *model, *out, *slice, *books;
    cli_list files;
    int64_t context, chunks, positions, threads, seed;
    bool sensitivity, verbose;
} calibrate_settings;

/* What ranks keys, best first in quality of what it knows: X(name, in the file) */
#define CALIBRATE_SCORES(X)                                                                                                      \
    X(QUERIES, "q")  /* q_direction */                                                                                           \
    X(NORM, "knorm") /* short keys */                                                                                            \
    X(RECENT, "recency")                                                                                                         \
    X(KEYS, "k") /* k_direction */

typedef enum calibrate_score {
#define CALIBRATE_SCORE(name, text) CALIBRATE_##name,
    CALIBRATE_SCORES(CALIBRATE_SCORE)
#undef CALIBRATE_SCORE
        CALIBRATE_SCORES_N
} calibrate_score;
extern const char *const calibrate_score_name[CALIBRATE_SCORES_N];

/* ---- calibrate_collect.c ----------------------------------------------------------------------------------------------------- */

typedef struct calibrate_layer {
    kvf_llama_layer_t info;
    int32_t owner;          /* layer whose keys it reads */
    ggml_fp16_t *q, *k, *v; /* [slots][heads][channels]; k and v NULL when it reads another layer's */
    float *keys;            /* ranking, [kv_heads][k_dim][CALIBRATE_RANK_MOST]; NULL as above */
    double *weight; /* ranking, [kv_heads][CALIBRATE_RANK_MOST]: weight that a key was given by all queries that read it */
} calibrate_layer;

typedef struct calibrate_collection {
    calibrate_layer *layer; /* [n_layers] */
    int32_t n_layers;
    int32_t slots, filled;
    int32_t *pos; /* [slots] */
    int64_t seen; /* positions offered */
    uint64_t seed;
    const char *biased; /* why scores are more than queries by keys, so that keys are not ranked; NULL: they are not */
    bool ranking;       /* the chunk being read ranks keys */
    int32_t ranked;     /* its tokens */
    int32_t *slot;      /* [rows of a batch] where each row goes, -1: nowhere */
    int32_t rows;
    int32_t drawn_layer; /* that drew the slots of this batch; -1: none yet */
    int64_t bytes;
} calibrate_collection;

/* For kvf_llama_params.observe. */
void calibrate_observe(void *collection, const kvf_llama_rows *rows);
/* Room for layers of those descriptions, info[n]: `slots` positions of the text, batches of at most `rows`. calibrate_collect_close frees
 * it. */
void calibrate_collect_make(calibrate_collection *c, const kvf_llama_layer_t *info, int32_t n, int64_t slots, int32_t rows,
                            uint64_t seed);
/* The same for the layers of an attached model. CLI_GO or an exit code after a sentence. */
int calibrate_collect_open(calibrate_collection *c, const kvf_llama *fold, const struct llama_model *model, int64_t slots,
                           int32_t rows, uint64_t seed);
void calibrate_collect_close(calibrate_collection *c);

/* ---- calibrate_learn.c ------------------------------------------------------------------------------------------------------- */

/* One layer's results, [kv_heads][k_dim] and [kv_heads]; books[i]: centroids of settings' codebook i. */
typedef struct calibrate_result {
    kvf_learnt learnt;
    float *arrays;                   /* all of them but q_moment */
    float *moment;                   /* [kv_heads][k_dim][k_dim]; NULL: no codebook asks for it */
    float *rank[CALIBRATE_SCORES_N]; /* NULL: not known */
    float *book[CALIBRATE_BOOKS];
} calibrate_result;

typedef struct calibrate_books {
    kvf_codebook book[CALIBRATE_BOOKS];
    int n;
} calibrate_books;

/* "4x8,8x8": of keys and of values each; "k4x8" or "v8x12" of one side. CLI_GO or CLI_USAGE after a sentence. */
int calibrate_books_parse(calibrate_books *books, const char *text);
/* Why keys cannot be ranked, NULL when they are. */
const char *calibrate_unranked(const calibrate_collection *c);
/* Layer il, which owns its keys. CLI_GO or an exit code after a sentence. */
int calibrate_learn(const calibrate_collection *c, int32_t il, const calibrate_books *books, uint64_t seed, calibrate_result *r);
void calibrate_result_free(calibrate_result *r);

/* Spearman's rank correlation of x and y, ties sharing their mean rank; 0 when either is constant. */
double calibrate_spearman(const double *x, const double *y, int32_t n);

/* ---- calibrate_file.c -------------------------------------------------------------------------------------------------------- */

typedef struct calibrate_about {
    const char *architecture;
    uint64_t model_hash, text_hash, seed;
    int64_t tokens;
    int32_t positions, context;
    const tune_losses *losses; /* NULL: they were not asked for */
} calibrate_about;

/* CLI_GO or an exit code after a sentence. result[n_layers], zeros for layers that own no keys. */
int calibrate_write(const char *path, const calibrate_collection *c, const calibrate_result *result, const calibrate_books *books,
                    const calibrate_about *about);

#endif
