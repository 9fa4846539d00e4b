/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

#if defined(__unix__) || defined(__APPLE__)
#define KVFI_PAGES 1
#include <sys/mman.h>
#include <unistd.h>
#endif

/* Below this a mapping of its own would waste more in page rounding than lazy touching saves. */
enum { MAP_FROM = 128 * 1024 };

static void *heap_allocate(size_t size)
{
#if defined(_WIN32)
    return _aligned_malloc(size, 64);
#else
    void *memory = NULL;
    return posix_memalign(&memory, 64, size) ? NULL : memory;
#endif
}

static void heap_release(void *memory)
{
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
}

static void *system_allocate(void *user, size_t size)
{
    (void)user;
#ifdef KVFI_PAGES
    if (size >= MAP_FROM) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
        flags |= MAP_NORESERVE;
#endif
        void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
        return memory == MAP_FAILED ? NULL : memory;
    }
#endif
    return heap_allocate(size);
}

static void system_release(void *user, void *memory, size_t size)
{
    (void)user;
#ifdef KVFI_PAGES
    if (size >= MAP_FROM) {
        munmap(memory, size);
        return;
    }
#endif
    (void)size;
    heap_release(memory);
}

kvf_allocator kvfi_system_allocator(void)
{
    return (kvf_allocator){system_allocate, system_release, NULL};
}

void *kvfi_alloc(const kvf_allocator *a, size_t size)
{
    return size ? a->allocate(a->user, size) : NULL;
}

void *kvfi_alloc_zero(const kvf_allocator *a, size_t size)
{
    void *memory = kvfi_alloc(a, size);
    /* Fresh mappings are zero already: writing would touch every page. */
    int fresh = a->allocate == system_allocate && size >= MAP_FROM;
#ifndef KVFI_PAGES
    fresh = 0;
#endif
    if (memory && !fresh) memset(memory, 0, size);
    return memory;
}

void kvfi_release(const kvf_allocator *a, void *memory, size_t size)
{
    if (memory) a->release(a->user, memory, size);
}

#ifdef __linux__
int64_t kvfi_resident(const void *memory, size_t size)
{
    if (!memory || !size) return 0;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)memory, end = start + size;
    int64_t resident = 0;
    unsigned char state[1024];
    for (uintptr_t at = start & ~(page - 1); at < end; at += page * sizeof state) {
        size_t pages = (end - at + page - 1) / page;
        if (pages > sizeof state) pages = sizeof state;
        if (mincore((void *)at, pages * page, state)) return -1;
        for (size_t i = 0; i < pages; i++) {
            uintptr_t from = at + i * page, to = from + page;
            if (state[i] & 1) resident += (int64_t)((to < end ? to : end) - (from > start ? from : start));
        }
    }
    return resident;
}
#else
int64_t kvfi_resident(const void *memory, size_t size)
{
    (void)memory, (void)size;
    return -1;
}
#endif

size_t kvfi_page_bytes(void)
{
#ifdef KVFI_PAGES
    return (size_t)sysconf(_SC_PAGESIZE);
#else
    return 4096;
#endif
}

void kvfi_trim(const kvf_allocator *a, void *memory, size_t size)
{
#if defined(KVFI_PAGES) && defined(MADV_DONTNEED)
    if (a->allocate != system_allocate) return;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = kvfi_round_up((uintptr_t)memory, page), to = ((uintptr_t)memory + size) & ~(page - 1);
    if (from < to) madvise((void *)from, to - from, MADV_DONTNEED);
#else
    (void)a, (void)memory, (void)size;
#endif
}
