/* SPDX-License-Identifier: MIT
 * Everything about a cache that follows from its parameters alone: checked layers, plans of both sides, offsets, sizes.
 * kvf_bytes and the cache itself compute from the same numbers, so the estimate cannot differ from what is used. */
#ifndef KVFI_GEOMETRY_H
#define KVFI_GEOMETRY_H

#include "base/memory.h"
#include "calib/calibration.h"
#include "calib/self.h"
#include "codec/codec.h"
#include "cpu/kernels.h"
#include "evict/policy.h"

enum {
    KVFI_VECTORS = 64, /* most query vectors that one part handles at a time: its scores fill 16 KiB of L1 */
    KVFI_DIRECT = 16, /* up to this many vectors read rows and packed codes directly; more unfold a tile first (but see `many`) */
    KVFI_OFFSETS =
        1024, /* segments whose centre's share of the scores is remembered, for up to 16 vectors; for 64 a quarter of them */
    KVFI_OFFSET_BYTES = KVFI_OFFSETS * (8 + KVFI_DIRECT * 4)
};

/* A layer that owns keys and values, with everything needed to store a token of it. */
typedef struct kvfi_store {
    kvf_part k, v;                          /* v unused when v_in_k */
    const kvf_calibrated_layer *calibrated; /* what the caller knows of it; NULL: nothing */
    int32_t layer;                          /* index of the owning layer, for messages */
    int32_t kv_heads;
    int32_t v_dim;
    int32_t v_in_k;
    int32_t window;      /* the widest among the layers that read it; 0: everything */
    int32_t first_head;  /* its first validity word in a table row */
    int32_t evicts;      /* the policy drops rows of it: it has no window of its own and is not protected */
    int32_t budget;      /* rows that a head keeps then; 0: the share of the policy */
    int32_t torn_budget; /* the same in sequences that are torn (cache.h), whose rows take more bytes */
    int32_t own_budget;  /* 1: that of kvf_layer.evict_budget; -1: all, as that says */
    const float
        *direction; /* [kv_heads][k_dim] of the queries, each at most 1 / sqrt(k_dim) long; NULL unless the policy needs it */
    int32_t first_score; /* its first head among those whose rows are ranked */
    int32_t mass;        /* the attention that its rows receive is summed up (mass.h) */
    int32_t packs;       /* there is a policy, and it does not keep everything: its blocks can lie in chains (chain.h), */
    int32_t chained;     /* from the start, as the policy ranks its rows; others' do in torn sequences */
    int32_t moves;       /* its tokens move between records as they are */
    size_t link_bytes;   /* of a link of its chain */
    size_t chain_offset; /* link bytes of the chained stores before it */
    size_t record_bytes; /* one head of one block: K record, then V record */
    size_t block_bytes;  /* kv_heads records */
    size_t k_row, v_row; /* bytes of one exact row of one head */
    kvf_rotation turned; /* that of the values, as the output is turned back: of the first v_dim channels when v_in_k */
    int32_t staged;      /* its keys are centred or scaled before they are coded */
    int32_t self;        /* ... by what is estimated from the prompt; otherwise by what is known from the start */
    int32_t n_pairs;
    kvfi_pair *pairs;   /* channels that RoPE turns */
    int32_t keys_known; /* 1: a block of its keys was sealed and is in mean_share, 2: and what is to be said of them was said */
    double mean_share;  /* of the first sealed block's keys, see kvf_keys; -1: none yet */
    int32_t unturned;   /* the keys did not turn as described, by the newest estimate of any sequence */
    int32_t unturned_said; /* 1: that is to be said, 2: it was */
    int32_t unknown_turns; /* no description of how they turn: a mean in every block took the place of one from the prompt */
    size_t key_sums;       /* offset in a sequence's exact store: [kv_heads][KVFI_KEY_SUMS][dim] doubles */
    size_t pair_sums;      /* ... [n_pairs][3] doubles */
    size_t
        table; /* offset in a table set, `known` when not `self`: int64 rotate, then [kv_heads] of dim doubles (c_0) and dim floats
                          (scale) */
    size_t table_head;                         /* bytes of one head there */
    size_t window_k, window_v, sink_k, sink_v; /* offsets in a sequence's exact store: [kv_heads][rows][dim] each */
} kvfi_store;

typedef struct kvfi_layer {
    int32_t q_heads, kv_heads, k_dim, v_dim, v_in_k;
    int32_t group;      /* query heads per KV head */
    int32_t window;     /* of this layer's own mask */
    int32_t store;      /* where its keys and values are */
    size_t v_stride;    /* floats of an accumulator: v_dim and what the transform of the values adds, in whole 64 bytes */
    size_t query_sums;  /* offset in a sequence's exact store, of stores with `self`: two copies (now, pending) of
                          [KVFI_EPOCHS][kv_heads][k_dim] doubles; epoch e is a snapshot at 128 << e rows, the last runs */
    size_t query_bytes; /* of one copy; 0 when the layer gathers none */
    int32_t shares;     /* 1: the store belongs to an earlier layer */
} kvfi_layer;

typedef struct kvfi_geometry {
    kvfi_kernels kernels; /* of the instruction set asked for */
    int32_t n_layers, n_stores;
    int32_t sink, recent, keep;
    int32_t exact_bits; /* of exact rows: 16 or 8 (rows.h) */
    int32_t max_sequences, max_batch, threads;
    int32_t window_rows; /* exact rows a sequence has room for: R + 63 rounded up to whole blocks */
    kvfi_evict evict;
    int32_t n_scored; /* KV heads whose rows are ranked */
    int32_t n_heads;  /* KV heads over all stores: validity words of a block */
    kvfi_layer *layers;
    kvfi_store *stores;
    size_t layers_bytes, stores_bytes;
    kvfi_calibration calibration;
    uint8_t *known; /* key stages of the stores that estimate none */
    size_t known_bytes;
    int32_t first_seal; /* nothing is sealed before this many rows: estimates come first */
    kvfi_pair *pairs;
    size_t pairs_bytes;
    float *directions; /* of the stores whose policy needs them */
    size_t directions_bytes;
    float *matrices; /* of rotations that are matrices; stores with equal ones share them */
    size_t matrices_bytes;
    float *books; /* codebooks of the sides that code with such */
    size_t books_bytes;
    uint8_t *entries; /* centroids as bytes, of the sides that have such */
    size_t entries_bytes;
    float *feedback; /* factors of the stores whose keys are coded with error feedback */
    size_t feedback_bytes;
    size_t table_bytes;             /* of one table set, all stores; 0: no store estimates anything */
    size_t sums_offset, sums_bytes; /* the sums of a sequence, contiguous in its exact store */
    /* A row of a sequence's block table: int32 first position and epoch, then ids[n_stores], validity[n_heads]. */
    size_t row_ids, row_valid, row_bytes;
    size_t chain_bytes; /* a link of every chained store, and what is beside it */
    size_t
        beside_bytes; /* of that what a link of the longest chain has beside it, for policies that rank by attention (mass.h): */
    size_t sort_offset, weights_offset; /* what sorts a chain, and weights of one decoded row; both follow all links */
    int32_t weight_heads;               /* query heads there is room for: those of the layer that has most */
    size_t mass_offset; /* of the masses of open rows in a sequence's exact store: [n_scored][sum, pending][open_most] floats */
    int32_t open_most;  /* window_rows + max_batch */
    size_t sequence_bytes; /* exact store of one sequence */
    /* Scratch of one thread inside attention: offsets and size; see attend.c. */
    size_t slot_q, slot_rotated, slot_prepared, slot_scores, slot_bias, slot_acc, slot_acc_rotated, slot_tile_k, slot_tile_v,
        slot_rows_k, slot_rows_v, slot_offsets, slot_bytes;
    int32_t seal_each;
    size_t coded_rows, coded_record,
        coded_bytes;      /* seal_each: offsets of an x[64][pad] tile pair (0), rows and a record; size of all */
    int32_t max_items;    /* most work items that a batch can make */
    int32_t max_parts;    /* most parts (items x spans) whose partial results are kept */
    int32_t max_masses;   /* most parts that sum up attention, see attend.c */
    size_t partial_bytes; /* of one partial result */
    size_t fixed_bytes;   /* everything that exists from creation on */
} kvfi_geometry;

/* Sizes of so many tokens fit 63 bits at up to 64 MiB a token. */
#define KVFI_TOKENS_MOST ((int64_t)1 << 36)

/* Blocks to seal when the last `open` of a sequence's `rows` rows are not sealed yet. */
int64_t kvfi_sealed(const kvfi_geometry *g, int64_t rows, int64_t open);

/* Do all sealed blocks of a store lie in its chain once a choice is made? `torn` is the sequence's (cache.h). */
static inline int kvfi_in_chain(const kvfi_store *s, int torn)
{
    return s->chained || (torn && s->packs);
}

/* Blocks that a store keeps of a sequence with `sealed` blocks whose next position is `next` (first position 0): the first `head` and
 * those from `tail` on; none of stores in chains. */
typedef struct kvfi_kept {
    int64_t head, tail;
} kvfi_kept;
kvfi_kept kvfi_kept_blocks(const kvfi_geometry *g, const kvfi_store *s, int64_t sealed, int64_t next, int torn);

/* Blocks of a store in chains after `sealed` blocks: exact when its tokens move and it estimates nothing, else the most that it can be. */
int64_t kvfi_chain_blocks(const kvfi_geometry *g, const kvfi_store *s, int64_t sealed, int torn);

/* May a block whose last position is `last` be freed when the next position is `next`? */
static inline int kvfi_left_window(const kvfi_geometry *g, const kvfi_store *s, int64_t last, int64_t next)
{
    return s->window && last <= next - g->keep - s->window;
}

/* Rows that a head keeps when the block that begins at `first` of a sequence from `start` on is sealed: R more are present then. */
int64_t kvfi_budget_at(const kvfi_geometry *g, const kvfi_store *s, int64_t start, int64_t first, int torn);

/* For a budget in bytes: the most tokens of each sequence that fit, into the stores without a budget of their own. The rest of g is complete. */
int kvfi_fit_budget(kvfi_geometry *g, char *error, size_t error_size);

/* Checks p and fills g. On failure returns a kvf_error with a sentence in error and g is empty. */
int kvfi_geometry_init(kvfi_geometry *g, const kvf_params *p, const kvf_allocator *a, char *error, size_t error_size);
void kvfi_geometry_free(kvfi_geometry *g, const kvf_allocator *a);

/* Bytes of what the geometry itself owns. */
size_t kvfi_geometry_bytes(const kvfi_geometry *g);

/* Bytes of bookkeeping for one block in use. */
enum { KVFI_BLOCK_META = 16 };

#endif
