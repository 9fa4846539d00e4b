/* SPDX-License-Identifier: MIT
 * kvfold_codec.h: the seam between the cache and its codecs. UNSTABLE: may change in any release.
 *
 * A codec is a recipe: an optional transform, a quantiser, an arrangement. It fills a kvf_part (the immutable plan of one side
 * of one layer) and encodes blocks. Scoring and mixing belong to the few *inner kinds* that recipes share, so a new codec that
 * uses an existing kind runs at once on every instruction set and device. The cache knows codecs only through this header.
 */
#ifndef KVFOLD_CODEC_H
#define KVFOLD_CODEC_H

#include "kvfold.h"
#include "kvfold_calibration.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Inner kinds: what the numbers in a record are. */
typedef enum kvf_kind {
    KVF_KIND_HALF,    /* f16 values, no codes */
    KVF_KIND_TOKEN,   /* uniform codes; one scale (and minimum) per token and group of channels */
    KVF_KIND_TABLE,   /* as KVF_KIND_TOKEN, but a code is an index into a table of integers */
    KVF_KIND_CHANNEL, /* uniform codes; one scale (and minimum) per channel and group of tokens */
    KVF_KIND_TRELLIS, /* as KVF_KIND_TABLE, but the index is made of the codes of this channel and of those before it, 8 bits */
    KVF_KIND_SUM,     /* one or two code matrices, each of another linear map of the vector: kvf_matrix */
    KVF_KIND_VECTOR, /* product codes: an index of `bits` bits stands for `sub` adjacent channels, values are its centroid; no scales */
    KVF_KINDS
} kvf_kind;

/* Orthogonal transforms of the channels before coding: none; Hadamard in blocks of the largest power of two that divides the head
 * size (llama.cpp's); random signs and one Hadamard of the whole head; the same twice; a random orthogonal matrix. */
typedef enum kvf_rotation_kind { KVF_ROT_NONE, KVF_ROT_H, KVF_ROT_H1, KVF_ROT_H2, KVF_ROT_HAAR } kvf_rotation_kind;

typedef struct kvf_rotation {
    int32_t kind;
    int32_t size;          /* channels that are turned: the head size, or more with zeros behind it (h1, h2) */
    int32_t block;         /* size of Sylvester's part, a power of two */
    int32_t odd;           /* 12, 20 or 28 when the size is one of these times `block`, else 1 */
    uint32_t seed;         /* of signs and matrix */
    uint32_t minus[2][32]; /* h1, h2: bit c % 32 of word c / 32: channel c changes its sign before the first, second round */
    const float *matrix;   /* haar: [size][size], provided by the owner of the part */
} kvf_rotation;

/* What a code matrix of KVF_KIND_SUM is made of: coordinates A x of the vector x. The vector decodes to the sum of A^T (decoded
 * coordinates) over the matrices. */
typedef enum kvf_map {
    KVF_MAP_SAME,     /* x itself */
    KVF_MAP_CHANNELS, /* the selected channels in ascending order, then a rotation of their own */
    KVF_MAP_SKETCH    /* random directions: codec/shared/sketch.h */
} kvf_map;

typedef enum kvf_select { KVF_SELECT_ALL, KVF_SELECT_REGULAR, KVF_SELECT_OUTLIERS } kvf_select;

typedef struct kvf_matrix {
    kvf_map map;
    kvf_select select;   /* channels that the map sees; which are outliers is chosen for each record */
    int32_t size, width; /* coordinates; rounded up to 16 */
    int32_t bits;
    int32_t table;    /* value = table[table + code] * unit * scale; -1: value = +-1/2 * unit * scale, code 1 for plus */
    kvf_rotation rot; /* KVF_MAP_CHANNELS: of the selected channels and the zeros behind them; not haar */
    float unit;
    size_t codes_offset, scale_offset; /* one f16 scale a token */
} kvf_matrix;

/* One side of one layer, fixed at creation. Record layout: docs/FORMAT.md. */
typedef struct kvf_part {
    const struct kvf_codec *codec;
    kvf_side side;
    const kvf_calibrated_layer *calibrated; /* what is known of the layer, set before setup; NULL: nothing */
    const struct kvfi_kernels
        *kernels; /* whose exact entries may be used in coding: the bytes are the same with any. Set by the owner after
                                           setup; NULL: scalar code */
    const uint8_t
        *like; /* encoding: a record whose numbers of several tokens (mean of the block, choice of outliers; ranges of channels
                            where new ones would lose more) stand in the new one as well; NULL, as mostly: none. Not that record itself */
    kvf_kind kind;
    int32_t head_dim;   /* channels of a head as the caller sees them */
    int32_t dim;        /* channels that are coded: head_dim, or more when the transform needs zeros behind it */
    int32_t dim_pad;    /* channels inside the record: dim rounded up to 16 */
    int32_t bits;       /* of a code; 16 for KVF_KIND_HALF */
    int32_t t_group;    /* tokens that share a scale: 1 for KVF_KIND_TOKEN; divides 64 for KVF_KIND_CHANNEL */
    int32_t c_group;    /* channels that share a scale: any for KVF_KIND_TOKEN (last group may be short); 1 for CHANNEL */
    int32_t n_cg;       /* ceil(dim / c_group) channel groups, KVF_KIND_TOKEN */
    int32_t n_tg;       /* 64 / t_group token groups, KVF_KIND_CHANNEL */
    int32_t has_min;    /* value = code * scale + min; otherwise value = (code - zero) * scale */
    float zero;         /* used when has_min is 0 */
    int16_t table[256]; /* KVF_KIND_TABLE: value = table[code] * unit * scale; up to 5 bits each entry fits an int8. TRELLIS: all
                             256 are used and fit an int8, and table[255 - i] = -table[i] */
    float unit;
    int32_t sub;        /* KVF_KIND_VECTOR: channels of a sub-vector, 2, 4 or 8; dim is a multiple */
    int32_t per_head;   /* ... 1: every KV head has centroids of its own */
    const float *book;  /* ... its centroids [2^bits][sub], those of head 0. Provided by the owner of the part; NULL: not there */
    size_t book_stride; /* ... floats from one head's centroids to the next, 0: all heads share them */
    const uint8_t
        *entries; /* ... the same as bytes, [sub][256]: (entry - 128) * unit; NULL: they are no bytes (codec/shared/entries.h) */
    const float *units;   /* ... beside entries: `unit` of each head's, where every head has its own */
    kvf_matrix matrix[2]; /* KVF_KIND_SUM */
    int32_t n_matrices;
    int32_t n_out;          /* outlier channels of a record, 0: none are told apart */
    size_t set_offset;      /* from the start of the record: one bit a channel, set for outliers */
    int32_t iid;            /* sketches: 1 for independent normal directions, 0 for orthogonal ones */
    int32_t stage;          /* rvq: bits of the first of two stages, the low bits of a code */
    kvf_rotation rot;       /* of the channels before coding; queries are turned too, outputs turned back */
    int32_t centre;         /* keys: 1 to subtract a centre before the transform (calib/self.h) */
    int32_t block_mean;     /* keys: 1 to subtract the mean of the block's vectors after the transform; the record keeps it */
    int32_t norm;           /* rule by which the scale of a coded vector is corrected (codec/shared/stages.h) */
    int32_t scaled;         /* keys: 1 to divide channels by a scale, 2 by the calibration's k_lambda; queries are multiplied */
    int32_t fed;            /* keys: 1 to code sub-vectors with error feedback (calib/feedback.h) */
    const float *feedback;  /* ... its factors, those of head 0; provided by the owner of the part; NULL: codes are the nearest */
    size_t feedback_stride; /* ... floats from one head's factors to the next */
    int32_t from_file;      /* keys: centre and scale are those of `calibrated`, not estimated from the prompt */
    size_t scale_offset;    /* bytes from the start of the record to the f16 scales */
    size_t min_offset;      /* ... to the f16 minima (has_min) */
    size_t mean_offset;     /* ... to the mean of the block's coded vectors: int8[dim_pad], then its f16 step; 0: none is kept */
    size_t bytes;           /* of a record, a multiple of 64 */
    int64_t next_offset; /* set by the cache, a hint for fetching ahead: the record that is probably read after this one starts */
    size_t next_bytes;   /* next_offset bytes after the start of this one and has next_bytes bytes; 0: not known */
    char canonical[96];  /* the spec with every option written out */
} kvf_part;

/* A parsed spec: name, number, options. "kivi4:group=64" is {"kivi", 4, "4", {{"group", "64"}}}; "q8_0:rot=h" is {"q8_0", -1, "", ...};
 * "vecinfer1.5" is {"vecinfer", -2, "1.5"}. */
typedef struct kvf_spec {
    char name[24];
    int32_t bits;   /* the whole number that follows the name; -1 when there is none, -2 when it is a fraction */
    char number[8]; /* as it is written */
    int32_t n_options;
    struct {
        char key[16], value[40];
    } option[8];
    const char *noun; /* what error sentences call it: "codec" */
} kvf_spec;

/* May serve latent attention, where V is the first channels of K: a record of keys unfolds precisely enough to be mixed. */
#define KVF_CODEC_LATENT 1u

typedef struct kvf_codec {
    const char *name; /* without the number of bits */
    const char *summary;
    const char *examples; /* separated by one space; each is a valid spec: tests, fuzz and bench run over all of them */
    uint32_t sides;       /* bit kvf_side */
    uint32_t flags;       /* KVF_CODEC_* */
    /* Checks the spec and fills everything of *part but codec and side, which are set. Returns KVF_OK, KVF_E_SPEC or KVF_E_UNSUPPORTED with a
     * sentence in error that says what is allowed. dim, the head size, is 1 to 1024. */
    int (*setup)(const kvf_spec *spec, int32_t dim, kvf_part *part, char *error, size_t error_size);
    /* x[64][head_dim], finite -> record of part->bytes bytes, all of them written. Exact arithmetic: the same bytes on every
     * target. x has room for 64 * dim_pad floats and may be overwritten (the transform works in place). Never fails. */
    void (*encode)(const kvf_part *part, float *x, void *record);
} kvf_codec;

#ifdef __cplusplus
}
#endif
#endif
