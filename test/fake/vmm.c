/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management of the fake driver: memory is a file, mapped at addresses that were
 * reserved before. What is left over at the end of the process is told.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fake.h"

#define GRANULE ((size_t)2 << 20)

typedef struct range {
    CUdeviceptr address;
    size_t bytes;
    bool mapped;
    struct range *next;
} range_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the ranges */
static range_t *ranges;
static atomic_int handles;

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
    const bool has = range && range->mapped;
    pthread_mutex_unlock(&lock);
    return has;
}

static CUresult granularity(size_t *bytes_p)
{
    *bytes_p = GRANULE;
    return CUDA_SUCCESS;
}

/* A handle is the number of a file, less one, so that 0 is none. */
static CUresult create(CUmemGenericAllocationHandle *handle_p, size_t bytes,
                       const CUmemAllocationProp *properties, unsigned long long flags)
{
    size_t most;
    (void)flags;
    cuDeviceTotalMem(&most, 0);
    if (bytes == 0 || bytes % GRANULE != 0 ||
        properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > most)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const int file = memfd_create("fake VMM", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    handles++;
    *handle_p = (CUmemGenericAllocationHandle)file + 1;
    return CUDA_SUCCESS;
}

static CUresult create_multicast(CUmemGenericAllocationHandle *handle_p,
                                 const CUmulticastObjectProp *given)
{
    const CUmemAllocationProp properties = {.requestedHandleTypes =
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    return create(handle_p, given->size, &properties, 0);
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    handles--;
    return close((int)handle - 1) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult export_file(void *file_p, CUmemGenericAllocationHandle handle)
{
    const int file = dup((int)handle - 1);
    memcpy(file_p, &file, sizeof(file));
    return file >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult import_file(CUmemGenericAllocationHandle *handle_p, void *given)
{
    const int file = dup((int)(intptr_t)given);
    if (file < 0)
        return CUDA_ERROR_INVALID_VALUE;
    handles++;
    *handle_p = (CUmemGenericAllocationHandle)file + 1;
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
    const bool right = range && range->bytes == bytes && !range->mapped;
    if (right) {
        *link = range->next;
        munmap(fake_at((void *)address), bytes);
        free(range);
    }
    pthread_mutex_unlock(&lock);
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Puts something else at a range. */
static CUresult replace(CUdeviceptr address, size_t bytes, int file, bool mapped)
{
    struct stat info = {.st_size = (off_t)bytes};
    const int flags = MAP_FIXED | (mapped ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
    pthread_mutex_lock(&lock);
    range_t *range = find(address);
    bool right = range && range->address == address && range->bytes == bytes &&
                 range->mapped != mapped && (!mapped || fstat(file, &info) == 0) &&
                 info.st_size == (off_t)bytes;
    right = right && mmap(fake_at((void *)address), bytes, PROT_NONE, flags, file, 0) != MAP_FAILED;
    if (right)
        range->mapped = mapped;
    pthread_mutex_unlock(&lock);
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult map(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle)
{
    return offset == 0 ? replace(address, bytes, (int)handle - 1, true) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult unmap(CUdeviceptr address, size_t bytes)
{
    fake_settle();
    return replace(address, bytes, -1, false);
}

static CUresult set_access(CUdeviceptr address, size_t bytes)
{
    if (mprotect(fake_at((void *)address), bytes, PROT_READ | PROT_WRITE) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult succeed(void)
{
    return CUDA_SUCCESS;
}

__attribute__((destructor)) static void tell_rest(void)
{
    if (handles > 0 || ranges)
        fprintf(stderr, "not ok - the fake driver has VMM memory left: %d handles, %s\n", handles,
                ranges ? "ranges" : "no range");
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
    FAKE_CALL("cuMulticastGetGranularity", granularity),
    FAKE_CALL("cuMulticastCreate", create_multicast),
    FAKE_CALL("cuMulticastAddDevice", succeed),
    FAKE_CALL("cuMulticastBindMem", succeed),
    {NULL, NULL},
};
