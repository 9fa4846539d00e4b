/* SPDX-License-Identifier: MIT */
#include "cache/pool.h"

#include <string.h>

_Static_assert(sizeof(kvfi_block) == KVFI_BLOCK_META || sizeof(void *) != 8, "the size formula counts block bookkeeping");

void kvfi_pool_init(kvfi_pool *p, size_t block_bytes)
{
    *p = (kvfi_pool){.block_bytes = block_bytes, .free_head = KVFI_NO_BLOCK, .cold_head = KVFI_NO_BLOCK};
}

void kvfi_pool_free(kvfi_pool *p, const kvf_allocator *a)
{
    for (kvfi_chunk *c = p->chunks, *next; c; c = next) {
        next = c->next;
        kvfi_release(a, c->data, c->bytes);
        kvfi_release(a, c, sizeof *c);
    }
    kvfi_release(a, p->blocks, p->capacity * sizeof *p->blocks);
    kvfi_pool_init(p, p->block_bytes);
}

int kvfi_pool_grow(kvfi_pool *p, const kvf_allocator *a, uint64_t blocks)
{
    if (blocks <= p->capacity) return KVF_OK;
    if (blocks >= KVFI_NO_BLOCK || blocks > SIZE_MAX / (p->block_bytes + sizeof *p->blocks)) return KVF_E_NOMEM;
    size_t more = (size_t)blocks - p->capacity;
    kvfi_chunk *chunk = kvfi_alloc(a, sizeof *chunk);
    kvfi_block *meta = kvfi_alloc(a, (size_t)blocks * sizeof *meta);
    uint8_t *data = kvfi_alloc(a, more * p->block_bytes);
    if (!chunk || !meta || !data) {
        kvfi_release(a, chunk, sizeof *chunk);
        kvfi_release(a, meta, (size_t)blocks * sizeof *meta);
        kvfi_release(a, data, more * p->block_bytes);
        return KVF_E_NOMEM;
    }
    if (p->untouched) memcpy(meta, p->blocks, p->untouched * sizeof *meta); /* the rest stays pages that nobody wrote to */
    kvfi_release(a, p->blocks, p->capacity * sizeof *p->blocks);
    *chunk = (kvfi_chunk){data, more * p->block_bytes, p->capacity, (uint32_t)blocks, p->chunks};
    p->chunks = chunk, p->blocks = meta, p->capacity = (uint32_t)blocks;
    return KVF_OK;
}

static const kvfi_chunk *chunk_of(const kvfi_pool *p, uint32_t id)
{
    const kvfi_chunk *c = p->chunks;
    while (id < c->first || id >= c->end) c = c->next;
    return c;
}

uint32_t kvfi_pool_take(kvfi_pool *p)
{
    uint32_t id = p->free_head != KVFI_NO_BLOCK ? p->free_head : p->cold_head;
    if (p->free_head != KVFI_NO_BLOCK) {
        p->free_head = p->blocks[id].next_free, p->warm--;
    } else if (id != KVFI_NO_BLOCK) {
        p->cold_head = p->blocks[id].next_free;
    } else {
        id = p->untouched++;
        const kvfi_chunk *c = chunk_of(p, id);
        p->blocks[id].data = c->data + (size_t)(id - c->first) * p->block_bytes;
    }
    p->blocks[id].references = 1;
    p->in_use++, p->references++;
    return id;
}

void kvfi_pool_share(kvfi_pool *p, uint32_t id)
{
    p->blocks[id].references++, p->references++;
}

static int is_free(const kvfi_pool *p, uint32_t id)
{
    return id >= p->untouched || !p->blocks[id].references;
}

/* Pages that the free block lies on and no used one. Blocks may be smaller than a page. */
static void trim_around(const kvfi_pool *p, const kvf_allocator *a, uint32_t id)
{
    const kvfi_chunk *c = chunk_of(p, id);
    const size_t reach = kvfi_page_bytes();
    uint32_t from = id, to = id + 1;
    while (from > c->first && (size_t)(id - from) * p->block_bytes < reach && is_free(p, from - 1)) from--;
    while (to < c->end && (size_t)(to - id - 1) * p->block_bytes < reach && is_free(p, to)) to++;
    kvfi_trim(a, c->data + (size_t)(from - c->first) * p->block_bytes, (size_t)(to - from) * p->block_bytes);
}

void kvfi_pool_drop(kvfi_pool *p, uint32_t id)
{
    kvfi_block *b = &p->blocks[id];
    p->references--;
    if (--b->references) return;
    b->next_free = p->free_head;
    p->free_head = id, p->warm++;
    p->in_use--;
}

uint32_t kvfi_pool_trim(kvfi_pool *p, const kvf_allocator *a, uint32_t keep)
{
    uint32_t n = 0;
    for (; p->warm > keep; p->warm--, n++) {
        const uint32_t id = p->free_head;
        p->free_head = p->blocks[id].next_free;
        p->blocks[id].next_free = p->cold_head;
        p->cold_head = id;
        trim_around(p, a, id);
    }
    return n;
}

int64_t kvfi_pool_resident(const kvfi_pool *p)
{
    int64_t sum = (int64_t)(p->untouched * sizeof *p->blocks);
    for (const kvfi_chunk *c = p->chunks; c; c = c->next) {
        int64_t r = kvfi_resident(c->data, c->bytes);
        if (r < 0) return -1;
        sum += r;
    }
    return sum;
}

int64_t kvfi_pool_reserved(const kvfi_pool *p)
{
    int64_t sum = (int64_t)(p->capacity * sizeof *p->blocks);
    for (const kvfi_chunk *c = p->chunks; c; c = c->next) sum += (int64_t)c->bytes;
    return sum;
}
