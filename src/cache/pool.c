/* SPDX-License-Identifier: MIT */
#include "cache/pool.h"

#include <string.h>

_Static_assert(sizeof(kvfi_block) == KVFI_BLOCK_META || sizeof(void *) != 8, "the size formula counts block bookkeeping");

void kvfi_pool_init(kvfi_pool *p, size_t block_bytes)
{
    *p = (kvfi_pool){.block_bytes = block_bytes, .free_head = KVFI_NO_BLOCK};
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
    if (p->capacity) memcpy(meta, p->blocks, p->capacity * sizeof *meta);
    for (size_t i = 0; i < more; i++) meta[p->capacity + i] = (kvfi_block){data + i * p->block_bytes, 0, KVFI_NO_BLOCK};
    kvfi_release(a, p->blocks, p->capacity * sizeof *p->blocks);
    *chunk = (kvfi_chunk){data, more * p->block_bytes, p->chunks};
    p->chunks = chunk, p->blocks = meta, p->capacity = (uint32_t)blocks;
    return KVF_OK;
}

uint32_t kvfi_pool_take(kvfi_pool *p)
{
    uint32_t id = p->free_head;
    if (id != KVFI_NO_BLOCK)
        p->free_head = p->blocks[id].next_free;
    else
        id = p->untouched++;
    p->blocks[id].references = 1;
    p->in_use++, p->references++;
    return id;
}

void kvfi_pool_share(kvfi_pool *p, uint32_t id)
{
    p->blocks[id].references++, p->references++;
}

void kvfi_pool_drop(kvfi_pool *p, const kvf_allocator *a, uint32_t id, int trim)
{
    kvfi_block *b = &p->blocks[id];
    p->references--;
    if (--b->references) return;
    b->next_free = p->free_head;
    p->free_head = id;
    p->in_use--;
    if (trim) kvfi_trim(a, b->data, p->block_bytes);
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
