/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict memory on a real GPU. Preloaded (LD_PRELOAD), it gives the library, and a program that
 * calls it, memory whose end is that of what is mapped, between addresses that nobody can use.
 * What is freed is unmapped at once, without a wait for what runs, and its addresses are never
 * used again: a kernel that runs beyond its memory, or later, ends with
 * CUDA_ERROR_ILLEGAL_ADDRESS. CUDA IPC does not know such memory: LAP_CUDA_MEMORY=vmm. Over the
 * fake driver FAKE_STRICT does the same.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <cudaTypedefs.h>

#define ALIGNMENT ((size_t)256) /* of memory of a GPU */

#define CALLS(X)                                                                                   \
    X(cuCtxGetDevice, 2000)                                                                        \
    X(cuMemFree, 3020)                                                                             \
    X(cuMemAddressReserve, 10020)                                                                  \
    X(cuMemCreate, 10020)                                                                          \
    X(cuMemRelease, 10020)                                                                         \
    X(cuMemMap, 10020)                                                                             \
    X(cuMemUnmap, 10020)                                                                           \
    X(cuMemSetAccess, 10020)                                                                       \
    X(cuMemGetAllocationGranularity, 10020)

typedef struct memory {
    CUdeviceptr address, mapped;
    size_t bytes; /* mapped */
    struct memory *next;
} memory_t;

static struct {
    PFN_cuGetProcAddress_v12000 find;
#define FIELD(name, version) PFN_##name##_v##version name; /* NOLINT(bugprone-macro-parentheses) */
    CALLS(FIELD)
#undef FIELD
} driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static memory_t *memories;

static CUresult map(memory_t *memory, size_t granule, const CUmemAllocationProp *properties)
{
    const CUmemAccessDesc access = {properties->location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr reserved;
    CUresult result = driver.cuMemCreate(&handle, memory->bytes, properties, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = driver.cuMemAddressReserve(&reserved, memory->bytes + 2 * granule, 0, 0, 0);
    memory->mapped = reserved + granule;
    if (result == CUDA_SUCCESS)
        result = driver.cuMemMap(memory->mapped, memory->bytes, 0, handle, 0);
    (void)driver.cuMemRelease(handle); /* the mapping keeps it */
    return result == CUDA_SUCCESS ? driver.cuMemSetAccess(memory->mapped, memory->bytes, &access, 1)
                                  : result;
}

static CUresult map_new(memory_t *memory, size_t bytes)
{
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
    };
    size_t granule = 0;
    CUdevice device;
    CUresult result = driver.cuCtxGetDevice(&device);
    properties.location.id = device;
    if (result == CUDA_SUCCESS)
        result = driver.cuMemGetAllocationGranularity(&granule, &properties,
                                                      CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS)
        return result;
    memory->bytes = (bytes + granule - 1) / granule * granule;
    return map(memory, granule, &properties);
}

static CUresult allocate(CUdeviceptr *address_p, size_t bytes)
{
    memory_t *memory = bytes > 0 ? calloc(1, sizeof(*memory)) : NULL;
    if (!memory)
        return bytes > 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    const CUresult result = map_new(memory, bytes);
    if (result != CUDA_SUCCESS) {
        free(memory);
        return result;
    }
    const size_t whole = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *address_p = memory->address = memory->mapped + memory->bytes - whole;
    pthread_mutex_lock(&lock);
    memory->next = memories;
    memories = memory;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    memory_t **link = &memories;
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    memory_t *memory = *link;
    if (memory)
        *link = memory->next;
    pthread_mutex_unlock(&lock);
    if (!memory)
        return driver.cuMemFree(address);
    const CUresult result = driver.cuMemUnmap(memory->mapped, memory->bytes);
    free(memory);
    return result;
}

static CUresult find(const char *name, void **function_p, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status)
{
    CUresult (*const alloc)(CUdeviceptr *, size_t) = allocate;
    CUresult (*const free)(CUdeviceptr) = release;
    const CUresult result = driver.find(name, function_p, version, flags, status);
    if (result == CUDA_SUCCESS && strcmp(name, "cuMemAlloc") == 0)
        memcpy(function_p, &alloc, sizeof(alloc));
    if (result == CUDA_SUCCESS && strcmp(name, "cuMemFree") == 0)
        memcpy(function_p, &free, sizeof(free));
    return result;
}

/* A driver that lacks a call lacks it here, too: it is then never called, or crashes. */
static void load(void *symbol)
{
    memcpy(&driver.find, &symbol, sizeof(driver.find));
#define FIND(name, version)                                                                        \
    (void)driver.find(#name, (void **)(void *)&driver.name, version,                               \
                      CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL);
    CALLS(FIND)
#undef FIND
}

/* All that a program finds in a library: of the driver, first of all, where to find the rest. */
__attribute__((visibility("default"))) void *dlsym(void *restrict handle,
                                                   const char *restrict name);
void *dlsym(void *restrict handle, const char *restrict name)
{
    static void *(*next)(void *, const char *);
    if (!next) {
        void *at = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        at = at ? at : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        memcpy(&next, &at, sizeof(next));
    }
    void *symbol = next(handle, name);
    if (!symbol || strcmp(name, "cuGetProcAddress_v2") != 0)
        return symbol;
    CUresult (*const ours)(const char *, void **, int, cuuint64_t,
                           CUdriverProcAddressQueryResult *) = find;
    load(symbol);
    memcpy(&symbol, &ours, sizeof(symbol));
    return symbol;
}
