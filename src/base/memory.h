/* SPDX-License-Identifier: MIT
 * Memory of one cache: the caller's allocator or pages of the system, and how much of a region is in physical memory. */
#ifndef KVFI_MEMORY_H
#define KVFI_MEMORY_H

#include "kvfold.h"

/* The allocator to use when the caller gave none: large regions are mapped and touched only when used. */
kvf_allocator kvfi_system_allocator(void);

/* `size` bytes aligned to 64, NULL when none; size 0 gives NULL. */
void *kvfi_alloc(const kvf_allocator *a, size_t size);
void *kvfi_alloc_zero(const kvf_allocator *a, size_t size);
void kvfi_release(const kvf_allocator *a, void *memory, size_t size); /* NULL is fine */

/* Bytes of [memory, memory + size) that are in physical memory, by whole pages clipped to the region; -1 if unknown. */
int64_t kvfi_resident(const void *memory, size_t size);

/* Gives the physical pages that lie wholly inside a region back to the system; its contents become undefined. Only for memory
 * of the system allocator; does nothing otherwise. */
void kvfi_trim(const kvf_allocator *a, void *memory, size_t size);
/* Bytes of a page; 4096 where there are none to give back. */
size_t kvfi_page_bytes(void);

static inline size_t kvfi_round_up(size_t n, size_t unit)
{
    return (n + unit - 1) / unit * unit;
}

#endif
