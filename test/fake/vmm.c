/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management of the fake driver: memory is a file, mapped at addresses that were
 * reserved before. What is left over at the end of the process is reported, and what is released twice:
 * the process then fails.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

#define GRANULE ((size_t)2 << 20)

/* Memory. It goes when it has neither a handle nor a mapping any more. */
typedef struct memory {
    CUmemGenericAllocationHandle handle; /* never used again, so that a second release shows */
    int file;
    size_t bytes; /* of this process; those of others are not counted here */
    bool held;    /* the handle has not been released yet */
    int mappings;
    struct memory *next;
} memory_t;

typedef struct range {
    CUdeviceptr address;
    size_t bytes;
    memory_t *memory; /* mapped there; NULL: none */
    struct range *next;
} range_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static range_t *ranges;
static memory_t *memories;
static CUmemGenericAllocationHandle last_handle;
static bool wrong; /* something was released twice */

static range_t *find(CUdeviceptr address)
{
    range_t *range = ranges;
    while (range && address - range->address >= range->bytes)
        range = range->next;
    return range;
}

bool fake_vmm_has(CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    const range_t *range = find(address);
    const bool has = range && range->memory;
    pthread_mutex_unlock(&lock);
    return has;
}

static CUresult granularity(size_t *bytes_p)
{
    *bytes_p = GRANULE;
    return CUDA_SUCCESS;
}

/* With the lock. */
static memory_t *find_memory(CUmemGenericAllocationHandle handle)
{
    memory_t *memory = memories;
    while (memory && memory->handle != handle)
        memory = memory->next;
    return memory && memory->held ? memory : NULL;
}

/* Takes the file; `bytes` are those that this process has less of now. */
static CUmemGenericAllocationHandle add_memory(int file, size_t bytes)
{
    memory_t *memory = calloc(1, sizeof(*memory));
    pthread_mutex_lock(&lock);
    const CUmemGenericAllocationHandle handle = ++last_handle;
    *memory = (memory_t){.handle = handle, .file = file, .bytes = bytes, .held = true};
    memory->next = memories;
    memories = memory;
    pthread_mutex_unlock(&lock);
    return handle;
}

/* With the lock. */
static void drop_unused(memory_t *memory)
{
    memory_t **link = &memories;
    if (memory->held || memory->mappings > 0)
        return;
    while (*link != memory)
        link = &(*link)->next;
    *link = memory->next;
    close(memory->file);
    fake_give(memory->bytes);
    free(memory);
}

static CUresult create_file(CUmemGenericAllocationHandle *handle_p, size_t bytes)
{
    if (!fake_take(bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const int file = memfd_create("fake VMM", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0) {
        fake_give(bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    fake_count(FAKE_BLOCKS, 1);
    fake_count(FAKE_BYTES, bytes);
    *handle_p = add_memory(file, bytes);
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *handle_p, size_t bytes,
                       const CUmemAllocationProp *properties, unsigned long long flags)
{
    (void)flags;
    if (bytes == 0 || bytes % GRANULE != 0 ||
        properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    return create_file(handle_p, bytes);
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&lock);
    memory_t *memory = find_memory(handle);
    if (memory) {
        memory->held = false;
        drop_unused(memory);
    } else {
        wrong = true;
    }
    pthread_mutex_unlock(&lock);
    return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult export_file(void *file_p, CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&lock);
    const memory_t *memory = find_memory(handle);
    const int file = memory ? dup(memory->file) : -1;
    pthread_mutex_unlock(&lock);
    memcpy(file_p, &file, sizeof(file));
    return file >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult import_file(CUmemGenericAllocationHandle *handle_p, void *given)
{
    const int file = dup((int)(intptr_t)given);
    if (file < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *handle_p = add_memory(file, 0);
    return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *address_p, size_t bytes)
{
    void *data = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range_t *range = calloc(1, sizeof(*range));
    range->address = *address_p = (CUdeviceptr)data | FAKE_BIT;
    range->bytes = bytes;
    pthread_mutex_lock(&lock);
    range->next = ranges;
    ranges = range;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* Only what is not mapped any more. */
static CUresult free_range(CUdeviceptr address, size_t bytes)
{
    range_t **link = &ranges;
    pthread_mutex_lock(&lock);
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    range_t *range = *link;
    const bool right = range && range->bytes == bytes && !range->memory;
    if (right) {
        *link = range->next;
        munmap(fake_at((void *)address), bytes);
        free(range);
    }
    pthread_mutex_unlock(&lock);
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The range at an address, if it is of so many bytes. With the lock. */
static range_t *find_exactly(CUdeviceptr address, size_t bytes)
{
    range_t *range = find(address);
    return range && range->address == address && range->bytes == bytes ? range : NULL;
}

static CUresult map(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle)
{
    struct stat info;
    pthread_mutex_lock(&lock);
    range_t *range = find_exactly(address, bytes);
    memory_t *memory = find_memory(handle);
    const bool right = range && !range->memory && memory && offset == 0 &&
                       fstat(memory->file, &info) == 0 && info.st_size == (off_t)bytes &&
                       mmap(fake_at((void *)address), bytes, PROT_NONE, MAP_FIXED | MAP_SHARED,
                            memory->file, 0) != MAP_FAILED;
    if (right) {
        range->memory = memory;
        memory->mappings++;
    }
    pthread_mutex_unlock(&lock);
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult unmap(CUdeviceptr address, size_t bytes)
{
    fake_drain();
    pthread_mutex_lock(&lock);
    range_t *range = find_exactly(address, bytes);
    const bool right = range && range->memory &&
                       mmap(fake_at((void *)address), bytes, PROT_NONE,
                            MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
    if (right) {
        range->memory->mappings--;
        drop_unused(range->memory);
        range->memory = NULL;
    }
    pthread_mutex_unlock(&lock);
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_access(CUdeviceptr address, size_t bytes)
{
    if (mprotect(fake_at((void *)address), bytes, PROT_READ | PROT_WRITE) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* The last thing that a process does. */
__attribute__((destructor)) static void tell_rest(void)
{
    if (memories || ranges)
        fprintf(stderr, "not ok - the fake driver has VMM memory left: %s, %s\n",
                memories ? "memory" : "no memory", ranges ? "ranges" : "no range");
    if (wrong)
        fprintf(stderr, "not ok - a handle of VMM memory was released that was not held\n");
    if (!memories && !ranges && !wrong)
        return;
    fflush(NULL);
    _exit(1);
}

const fake_call_t fake_vmm_calls[] = {
    FAKE_CALL("cuMemGetAllocationGranularity", granularity),
    FAKE_CALL("cuMemCreate", create),
    FAKE_CALL("cuMemRelease", release),
    FAKE_CALL("cuMemExportToShareableHandle", export_file),
    FAKE_CALL("cuMemImportFromShareableHandle", import_file),
    FAKE_CALL("cuMemAddressReserve", reserve),
    FAKE_CALL("cuMemAddressFree", free_range),
    FAKE_CALL("cuMemMap", map),
    FAKE_CALL("cuMemUnmap", unmap),
    FAKE_CALL("cuMemSetAccess", set_access),
    {NULL, NULL},
};
