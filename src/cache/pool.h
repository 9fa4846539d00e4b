/* SPDX-License-Identifier: MIT
 * Blocks of one store: fixed size, 64-byte aligned, written once, never moved, counted references. */
#ifndef KVFI_POOL_H
#define KVFI_POOL_H

#include "cache/geometry.h"

#define KVFI_NO_BLOCK UINT32_MAX

typedef struct kvfi_block {
    uint8_t *data;
    uint32_t references; /* 0: free */
    uint32_t next_free;
} kvfi_block;

typedef struct kvfi_chunk {
    uint8_t *data;
    size_t bytes;
    uint32_t first, end; /* its blocks */
    struct kvfi_chunk *next;
} kvfi_chunk;

typedef struct kvfi_pool {
    size_t block_bytes;
    kvfi_block *blocks; /* [capacity], written up to `untouched` */
    uint32_t capacity;
    uint32_t in_use;
    uint64_t references; /* to all blocks: how many would be in use if none were shared */
    uint32_t free_head;  /* blocks that were used before come first: their pages are there already. */
    uint32_t warm;       /* How many those are */
    uint32_t cold_head;  /* then those whose pages were given back */
    uint32_t untouched;  /* from here on never handed out */
    kvfi_chunk *chunks;
} kvfi_pool;

void kvfi_pool_init(kvfi_pool *p, size_t block_bytes);
void kvfi_pool_free(kvfi_pool *p, const kvf_allocator *a);

/* Makes the capacity at least `blocks`: KVF_OK or KVF_E_NOMEM (nothing changed). */
int kvfi_pool_grow(kvfi_pool *p, const kvf_allocator *a, uint64_t blocks);

static inline uint32_t kvfi_pool_available(const kvfi_pool *p)
{
    return p->capacity - p->in_use;
}

/* The caller has made sure that one is available. References: 1. */
uint32_t kvfi_pool_take(kvfi_pool *p);
void kvfi_pool_share(kvfi_pool *p, uint32_t id);

/* Drops a reference; the last one frees the block, whose pages stay. */
void kvfi_pool_drop(kvfi_pool *p, uint32_t id);

/* Gives back the pages of free blocks, those included that they share with each other, but for `keep` blocks. How many that were. */
uint32_t kvfi_pool_trim(kvfi_pool *p, const kvf_allocator *a, uint32_t keep);

static inline uint8_t *kvfi_pool_data(const kvfi_pool *p, uint32_t id)
{
    return p->blocks[id].data;
}

int64_t kvfi_pool_resident(const kvfi_pool *p);
int64_t kvfi_pool_reserved(const kvfi_pool *p);

#endif
