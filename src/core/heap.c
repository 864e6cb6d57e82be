/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions of shared memory. A region is one page with its count of users, then its data. Processes
 * cut it from their memfd and reserve its pages at once; threads map plain memory and keep it in a
 * list. A request is held against the memory that the machine and the cgroup still have, piece by
 * piece, so that too much is an error and not the end of the process. Space in the memfd is never
 * reused: only offsets are used up, and there are 2^63 of them.
 */
#include "core/heap.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/status.h"
#include "core/world.h"
#include "util/alloc.h"
#include "util/log.h"

/*
 * Pages are reserved in pieces of this size: others take memory meanwhile, and a signal undoes only
 * one piece.
 */
#define PIECE_BYTES ((uint64_t)64 << 20)

/* The first page of a region. A hole reads as zeros, so a region that was freed has no users. */
typedef struct region_header {
    _Atomic uint32_t users;
    uint32_t limit;                    /* users there may be at most */
    uint64_t bytes;                    /* as asked */
    struct region_header *prev, *next; /* of a thread heap */
} region_header_t;

struct lap_thread_heap {
    pthread_mutex_t lock; /* guards all below, and the headers in the list */
    int users;
    region_header_t *first;
};

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* The bytes of a region with its first page. False when that overflows. */
static bool region_extent(size_t bytes, size_t *extent_p)
{
    const size_t page = page_bytes();
    if (bytes > (size_t)INT64_MAX - 2 * page)
        return false;
    *extent_p = page + (bytes + page - 1) / page * page;
    return true;
}

static void fill_region(int owner, region_header_t *header, uint64_t handle, lap_region_t *region_p)
{
    region_p->data = (char *)header + page_bytes();
    region_p->bytes = header->bytes;
    region_p->handle = handle;
    region_p->owner = owner;
}

/* How much memory there is. */

/* The number after `name` at the start of a line, or 0. */
static uint64_t number_after(const char *text, const char *name)
{
    const size_t length = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, length) == 0)
            return strtoull(line + length, NULL, 10);
    }
    return 0;
}

static uint64_t cgroup_room(const char *folder)
{
    char path[640], text[4096];
    snprintf(path, sizeof(path), "%s/memory.max", folder);
    if (!lap_file_read_text(path, text, sizeof(text)) || strncmp(text, "max", 3) == 0)
        return UINT64_MAX;
    const uint64_t max = strtoull(text, NULL, 10);
    snprintf(path, sizeof(path), "%s/memory.current", folder);
    if (!lap_file_read_text(path, text, sizeof(text)))
        return UINT64_MAX;
    uint64_t used = strtoull(text, NULL, 10);
    /* Cached files count as used but make way when memory is needed. */
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    if (lap_file_read_text(path, text, sizeof(text))) {
        uint64_t cached = number_after(text, "inactive_file ") + number_after(text, "active_file ");
        used -= cached < used ? cached : used;
    }
    return max > used ? max - used : 0;
}

/* The tightest of the cgroups that this process is in, from its own up to the root. */
static uint64_t all_cgroups_room(void)
{
    char text[512], folder[600];
    if (!lap_file_read_text("/proc/self/cgroup", text, sizeof(text)))
        return UINT64_MAX;
    const char *path = strstr(text, "0::/");
    if (!path)
        return UINT64_MAX;
    const char *root = "/sys/fs/cgroup";
    snprintf(folder, sizeof(folder), "%s%.*s", root, (int)strcspn(path + 3, "\n"), path + 3);
    uint64_t room = UINT64_MAX;
    while (strlen(folder) >= strlen(root)) {
        uint64_t here = cgroup_room(folder);
        room = here < room ? here : room;
        *strrchr(folder, '/') = '\0';
    }
    return room;
}

uint64_t lap_memory_room(void)
{
    char text[1024];
    uint64_t room = UINT64_MAX;
    if (lap_file_read_text("/proc/meminfo", text, sizeof(text)) && strstr(text, "MemAvailable:"))
        room = number_after(text, "MemAvailable:") * 1024;
    uint64_t cgroups = all_cgroups_room();
    room = cgroups < room ? cgroups : room;
    return room - room / 16;
}

static lap_status_t no_memory(uint64_t asked, uint64_t room)
{
    return lap_error(LAP_ERR_NO_MEMORY, "%llu bytes of shared memory asked, %llu bytes available",
                     (unsigned long long)asked, (unsigned long long)room);
}

/* Heaps of processes. */

lap_status_t lap_heap_open(int *fd_p)
{
    int fd = memfd_create("lap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return lap_error_errno("memfd_create");
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
        lap_status_t status = lap_error_errno("sealing a memfd");
        close(fd);
        return status;
    }
    *fd_p = fd;
    return LAP_OK;
}

static void punch_hole(int fd, uint64_t offset, uint64_t bytes)
{
    while (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes) !=
           0) {
        if (errno != EINTR) {
            lap_warn("cannot give back %llu bytes of shared memory: %s", (unsigned long long)bytes,
                     strerror(errno));
            return;
        }
    }
}

/* A file size limit would come as SIGXFSZ, so it is asked for beforehand. */
static uint64_t file_room(uint64_t offset)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur > offset ? limit.rlim_cur - offset : 0;
}

/* Really takes the pages of [offset, offset + extent), or none of them. */
static lap_status_t reserve(int fd, uint64_t offset, uint64_t extent)
{
    lap_status_t status = LAP_OK;
    uint64_t done = 0;
    while (done < extent) {
        const uint64_t left = extent - done, piece = left < PIECE_BYTES ? left : PIECE_BYTES;
        uint64_t room = lap_memory_room(), file = file_room(offset + done);
        room = file < room ? file : room;
        if (left > room) {
            status = no_memory(extent, done + room);
            break;
        }
        if (fallocate(fd, 0, (off_t)(offset + done), (off_t)piece) == 0) {
            done += piece;
        } else if (errno == ENOSPC || errno == ENOMEM) {
            status = no_memory(extent, done);
            break;
        } else if (errno != EINTR) {
            status = lap_error_errno("reserving %llu bytes of shared memory",
                                     (unsigned long long)extent);
            break;
        }
    }
    if (status != LAP_OK && done > 0)
        punch_hole(fd, offset, done);
    return status;
}

static lap_status_t map_extent(int fd, uint64_t offset, size_t extent, region_header_t **header_p)
{
    void *memory = mmap(NULL, extent, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (memory == MAP_FAILED)
        return lap_error_errno("mapping %zu bytes of shared memory", extent);
    /* A core dump of one rank would hold the memory of all. An old kernel's would, then. */
    (void)madvise(memory, extent, MADV_DONTDUMP);
    *header_p = memory;
    return LAP_OK;
}

static lap_status_t process_region_create(struct lap_world *world, size_t bytes, size_t extent,
                                          int users, lap_region_t *region_p)
{
    const int fd = world->peers[world->rank].heap_fd;
    const uint64_t offset = world->heap_end;
    LAP_TRY(reserve(fd, offset, extent));
    region_header_t *header = NULL;
    lap_status_t status = map_extent(fd, offset, extent, &header);
    if (status != LAP_OK) {
        punch_hole(fd, offset, extent);
        return status;
    }
    header->limit = (uint32_t)users;
    header->bytes = bytes;
    atomic_store_explicit(&header->users, 1, memory_order_release);
    world->heap_end = offset + extent;
    fill_region(world->rank, header, offset, region_p);
    return LAP_OK;
}

/* Adds a user unless there is none left, in which case the region is gone for good. */
static lap_status_t take(region_header_t *header, int owner, size_t bytes)
{
    uint32_t users = atomic_load_explicit(&header->users, memory_order_acquire);
    do {
        if (users == 0)
            return lap_error(LAP_ERR_PEER_LOST, "rank %d of the world has given up its region",
                             owner);
        if (header->bytes != bytes)
            return lap_error(LAP_ERR_MISMATCH, "a region of rank %d has %llu bytes, not %zu", owner,
                             (unsigned long long)header->bytes, bytes);
        if (users >= header->limit)
            return lap_error(LAP_ERR_INTERNAL, "a region of rank %d has %u users already", owner,
                             users);
    } while (!atomic_compare_exchange_weak_explicit(&header->users, &users, users + 1,
                                                    memory_order_acq_rel, memory_order_acquire));
    return LAP_OK;
}

static lap_status_t process_region_map(struct lap_world *world, int owner, uint64_t handle,
                                       size_t bytes, size_t extent, lap_region_t *region_p)
{
    const int fd = world->peers[owner].heap_fd;
    struct stat file;
    if (fstat(fd, &file) != 0)
        return lap_error_errno("looking at the heap of rank %d", owner);
    if (handle > (uint64_t)file.st_size || extent > (uint64_t)file.st_size - handle)
        return lap_error(LAP_ERR_INTERNAL, "rank %d has no region of %zu bytes at %llu", owner,
                         bytes, (unsigned long long)handle);
    region_header_t *header = NULL;
    LAP_TRY(map_extent(fd, handle, extent, &header));
    lap_status_t status = take(header, owner, bytes);
    if (status != LAP_OK) {
        munmap(header, extent);
        return status;
    }
    fill_region(owner, header, handle, region_p);
    return LAP_OK;
}

static void process_region_unmap(struct lap_world *world, const lap_region_t *region,
                                 region_header_t *header, size_t extent)
{
    /*
     * Acquires the last writes of the users that went before, releases ours to the one that frees.
     */
    if (atomic_fetch_sub_explicit(&header->users, 1, memory_order_acq_rel) == 1)
        punch_hole(world->peers[region->owner].heap_fd, region->handle, extent);
    munmap(header, extent);
}

/* Heaps of threads. */

lap_status_t lap_thread_heap_create(int users, lap_thread_heap_t **heap_p)
{
    lap_thread_heap_t *heap = lap_alloc(1, sizeof(*heap));
    if (!heap)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for the heap of %d thread ranks", users);
    heap->users = users;
    errno = pthread_mutex_init(&heap->lock, NULL);
    if (errno != 0) {
        lap_free(heap);
        return lap_error_errno("making a mutex");
    }
    *heap_p = heap;
    return LAP_OK;
}

static void thread_region_free(lap_thread_heap_t *heap, region_header_t *header)
{
    size_t extent = 0;
    region_extent(header->bytes, &extent);
    *(header->prev ? &header->prev->next : &heap->first) = header->next;
    if (header->next)
        header->next->prev = header->prev;
    munmap(header, extent);
}

void lap_thread_heap_release(lap_thread_heap_t *heap)
{
    if (!heap)
        return;
    pthread_mutex_lock(&heap->lock);
    const bool last = --heap->users == 0;
    /* What is still here was made for ranks that left before they mapped it. */
    while (last && heap->first)
        thread_region_free(heap, heap->first);
    pthread_mutex_unlock(&heap->lock);
    if (last) {
        pthread_mutex_destroy(&heap->lock);
        lap_free(heap);
    }
}

static lap_status_t thread_region_create(struct lap_world *world, size_t bytes, size_t extent,
                                         int users, lap_region_t *region_p)
{
    const uint64_t room = lap_memory_room();
    if (extent > room)
        return no_memory(extent, room);
    region_header_t *header = mmap(NULL, extent, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (header == MAP_FAILED)
        return lap_error_errno("mapping %zu bytes of memory", extent);
    header->limit = (uint32_t)users;
    header->bytes = bytes;
    atomic_store_explicit(&header->users, 1, memory_order_relaxed);
    lap_thread_heap_t *heap = world->thread_heap;
    pthread_mutex_lock(&heap->lock);
    header->next = heap->first;
    if (heap->first)
        heap->first->prev = header;
    heap->first = header;
    pthread_mutex_unlock(&heap->lock);
    fill_region(world->rank, header, (uint64_t)(uintptr_t)header, region_p);
    return LAP_OK;
}

static lap_status_t thread_region_map(struct lap_world *world, int owner, uint64_t handle,
                                      size_t bytes, lap_region_t *region_p)
{
    lap_thread_heap_t *heap = world->thread_heap;
    lap_status_t status;
    pthread_mutex_lock(&heap->lock);
    region_header_t *header = heap->first;
    while (header && (uint64_t)(uintptr_t)header != handle)
        header = header->next;
    if (header)
        status = take(header, owner, bytes);
    else
        status = lap_error(LAP_ERR_PEER_LOST, "rank %d has given up its region", owner);
    if (status == LAP_OK)
        fill_region(owner, header, handle, region_p);
    pthread_mutex_unlock(&heap->lock);
    return status;
}

static void thread_region_unmap(struct lap_world *world, region_header_t *header)
{
    lap_thread_heap_t *heap = world->thread_heap;
    pthread_mutex_lock(&heap->lock);
    if (atomic_fetch_sub_explicit(&header->users, 1, memory_order_acq_rel) == 1)
        thread_region_free(heap, header);
    pthread_mutex_unlock(&heap->lock);
}

/* Both. */

lap_status_t lap_region_create(struct lap_world *world, size_t bytes, int users,
                               lap_region_t *region_p)
{
    size_t extent;
    if (!region_extent(bytes, &extent))
        return no_memory(bytes, lap_memory_room());
    if (world->kind == LAP_WORLD_THREADS)
        return thread_region_create(world, bytes, extent, users, region_p);
    return process_region_create(world, bytes, extent, users, region_p);
}

lap_status_t lap_region_map(struct lap_world *world, int owner, uint64_t handle, size_t bytes,
                            lap_region_t *region_p)
{
    size_t extent;
    if (!region_extent(bytes, &extent))
        return lap_error(LAP_ERR_INTERNAL, "rank %d cannot have a region of %zu bytes", owner,
                         bytes);
    if (world->kind == LAP_WORLD_THREADS)
        return thread_region_map(world, owner, handle, bytes, region_p);
    return process_region_map(world, owner, handle, bytes, extent, region_p);
}

void lap_region_unmap(struct lap_world *world, lap_region_t *region)
{
    if (!region->data)
        return;
    region_header_t *header = (region_header_t *)(void *)((char *)region->data - page_bytes());
    size_t extent = 0;
    region_extent(region->bytes, &extent);
    if (world->kind == LAP_WORLD_THREADS)
        thread_region_unmap(world, header);
    else
        process_region_unmap(world, region, header, extent);
    *region = (lap_region_t){0};
}
