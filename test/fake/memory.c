/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the fake driver: of its GPUs, of other processes, and pinned memory. See fake.h. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

#define PEERS 64
#define ALIGNMENT 256u /* of memory of a GPU */

typedef struct memory {
    CUdeviceptr address; /* as others see it: see FAKE_BIT */
    char *data;          /* where it begins; with FAKE_STRICT the address may be further on, */
    size_t bytes;        /* so many before its end */
    size_t room;         /* from data on */
    int file;
    unsigned gpu;
    struct memory *next;
} memory_t;

static atomic_size_t used;                               /* bytes, also those of vmm.c */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static memory_t *memories;                               /* of this process, */
static memory_t *mapped;                                 /* of others, */
static memory_t *pinned;                                 /* and of the host */
static int peers[PEERS];                                 /* processes whose memory was mapped */
static int npeers;

static bool is_strict(void)
{
    static atomic_int is = -1;
    if (is < 0)
        is = fake_number("FAKE_STRICT", 0);
    return is > 0;
}

/* Addresses that nobody can use: at `at`, or anywhere. */
static void *bar(void *at, size_t bytes)
{
    return mmap(at, bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);
}

static CUresult map(int file, size_t bytes, char **data_p)
{
    void *at = is_strict() ? bar(NULL, bytes + FAKE_PAGE) : NULL;
    void *data = at == MAP_FAILED ? at
                                  : mmap(at, bytes, PROT_READ | PROT_WRITE,
                                         MAP_SHARED | (at ? MAP_FIXED : 0), file, 0);
    if (data == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *data_p = data;
    return CUDA_SUCCESS;
}

static void unmap(const memory_t *memory)
{
    if (is_strict())
        (void)bar(memory->data, memory->room);
    else
        munmap(memory->data, memory->room);
}

/* Memory of GPUs as others see it. */
static void set_address(memory_t *memory)
{
    memory->address =
        ((CUdeviceptr)memory->data + memory->room - memory->bytes) | (CUdeviceptr)FAKE_BIT;
}

/* Without a lock: who calls may have one of its own. */
bool fake_take(size_t bytes)
{
    size_t total, before = used;
    cuDeviceTotalMem(&total, 0);
    do {
        if (bytes > total - before)
            return false;
    } while (!atomic_compare_exchange_weak(&used, &before, before + bytes));
    return true;
}

void fake_give(size_t bytes)
{
    used -= bytes;
}

static CUresult allocate(CUdeviceptr *address_p, size_t bytes)
{
    if (fake_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const size_t whole = (bytes + FAKE_PAGE - 1) / FAKE_PAGE * FAKE_PAGE;
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (fake_failure("cuMemAlloc now"))
        return (CUresult)fake_failure("cuMemAlloc now");
    if (whole < bytes || !fake_take(whole))
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory_t *memory = calloc(1, sizeof(*memory));
    memory->bytes = is_strict() ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : whole;
    memory->room = whole;
    memory->file = memfd_create("fake GPU", MFD_CLOEXEC);
    memory->gpu = fake_gpu(fake_context());
    if (ftruncate(memory->file, (off_t)whole) != 0 ||
        map(memory->file, whole, &memory->data) != CUDA_SUCCESS) {
        fake_give(whole);
        close(memory->file);
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    set_address(memory);
    fake_count(FAKE_BLOCKS, 1);
    fake_count(FAKE_BYTES, bytes);
    *address_p = memory->address;
    pthread_mutex_lock(&lock);
    memory->next = memories;
    memories = memory;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* Takes memory out of a list, and away; returns its bytes, or 0 when it is not there. */
static size_t take(memory_t **list, CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    while (*list && (*list)->address != address)
        list = &(*list)->next;
    memory_t *memory = *list;
    const size_t bytes = memory ? memory->room : 0;
    if (memory) {
        *list = memory->next;
        unmap(memory);
        close(memory->file);
        free(memory);
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

/* As a GPU that has one queue, it first ends what it was given. */
static CUresult release(CUdeviceptr address)
{
    if (fake_fate() != CUDA_SUCCESS) /* what runs still uses it */
        return fake_fate();
    if (fake_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    fake_drain();
    if (fake_number("FAKE_FREE_WAITS", 0))
        fake_await_work();
    const size_t bytes = take(&memories, address);
    fake_give(bytes);
    return bytes > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult tell_memory(size_t *free_p, size_t *total_p)
{
    if (!fake_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    cuDeviceTotalMem(total_p, 0);
    *free_p = *total_p - used;
    return CUDA_SUCCESS;
}

static CUresult pin(void **memory_p, size_t bytes, unsigned flags)
{
    (void)flags;
    if (fake_failure("cuMemHostAlloc now")) /* from when the variable is set, not from the start */
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory_t *memory = calloc(1, sizeof(*memory));
    fake_count(FAKE_PINNED, bytes);
    *memory = (memory_t){
        .address = (CUdeviceptr)data, .data = data, .bytes = bytes, .room = bytes, .file = -1};
    pthread_mutex_lock(&lock);
    memory->next = pinned;
    pinned = memory;
    pthread_mutex_unlock(&lock);
    *memory_p = data;
    return CUDA_SUCCESS;
}

/* All of the host's memory passes for pinned, and all of a GPU's for that of the first one. */
static CUresult unpin(void *memory)
{
    if (fake_fate() != CUDA_SUCCESS)
        return fake_fate();
    return take(&pinned, (CUdeviceptr)memory) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A program that exits has its pinned memory no longer, though its threads may still run. */
__attribute__((destructor)) static void unmap_pinned(void)
{
    if (!fake_number("FAKE_EXIT_UNMAPS", 0))
        return;
    for (const memory_t *memory = pinned; memory; memory = memory->next)
        (void)munmap(memory->data, memory->bytes);
    (void)usleep(300000);
}

/* The one that has this address in it; NULL: none. With the lock. */
static const memory_t *find(const memory_t *list, CUdeviceptr address)
{
    while (list && address - list->address >= list->bytes)
        list = list->next;
    return list;
}

static CUresult ask_pointer(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    unsigned *number = value;
    pthread_mutex_lock(&lock);
    const memory_t *of_gpu = find(memories, address);
    if (!of_gpu)
        of_gpu = find(mapped, address);
    const bool by_vmm = fake_vmm_has(address);
    const bool known = of_gpu || by_vmm || find(pinned, address);
    const unsigned gpu = of_gpu ? of_gpu->gpu : 0;
    pthread_mutex_unlock(&lock);
    if (!known)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *number = of_gpu || by_vmm ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *number = gpu;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *number = 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* Where another process finds memory. */
typedef struct handle {
    int pid, file;
    size_t bytes, room;
    unsigned gpu;
} handle_t;

static CUresult get_handle(CUipcMemHandle *handle_p, CUdeviceptr address)
{
    handle_t handle = {.pid = getpid(), .file = -1};
    if (fake_number("FAKE_NO_IPC", 0) == 1)
        return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    for (const memory_t *memory = memories; memory; memory = memory->next)
        if (memory->address == address) {
            handle.file = memory->file;
            handle.bytes = memory->bytes;
            handle.room = memory->room;
            handle.gpu = memory->gpu;
        }
    pthread_mutex_unlock(&lock);
    memset(handle_p, 0, sizeof(*handle_p));
    memcpy(handle_p, &handle, sizeof(handle));
    return handle.file >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Keeps in mind whose memory is mapped here. With the lock. */
static void note_peer(int pid)
{
    for (int i = 0; i < npeers; i++)
        if (peers[i] == pid)
            return;
    if (npeers < PEERS)
        peers[npeers++] = pid;
}

static CUresult open_handle(CUdeviceptr *address_p, CUipcMemHandle given, unsigned flags)
{
    handle_t handle;
    char path[64];
    (void)flags;
    if (fake_number("FAKE_NO_IPC", 0) == 2)
        return CUDA_ERROR_INVALID_CONTEXT;
    memcpy(&handle, &given, sizeof(handle));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle.pid, handle.file);
    memory_t *memory = calloc(1, sizeof(*memory));
    memory->bytes = handle.bytes;
    memory->room = handle.room;
    memory->gpu = handle.gpu;
    memory->file = open(path, O_RDWR | O_CLOEXEC);
    if (memory->file < 0 || map(memory->file, memory->room, &memory->data) != CUDA_SUCCESS) {
        close(memory->file);
        free(memory);
        return CUDA_ERROR_INVALID_VALUE;
    }
    set_address(memory);
    *address_p = memory->address;
    pthread_mutex_lock(&lock);
    note_peer(handle.pid);
    memory->next = mapped;
    mapped = memory;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult close_handle(CUdeviceptr address)
{
    if (fake_fate() != CUDA_SUCCESS)
        return fake_fate();
    fake_drain();
    return take(&mapped, address) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Whether a process has ended; one that nobody has waited for yet has, too. */
static bool has_died(int pid)
{
    char path[64], line[512] = "";
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return true;
    const char *name_end = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
    fclose(file);
    return !name_end || strstr(name_end, ") Z") == name_end || strstr(name_end, ") X") == name_end;
}

CUresult fake_fate(void)
{
    static atomic_bool doomed;
    static atomic_int shared = -1;
    if (shared < 0)
        shared = fake_number("FAKE_SHARED_FATE", 0);
    if (!shared)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < npeers && !doomed; i++)
        doomed = has_died(peers[i]);
    pthread_mutex_unlock(&lock);
    return doomed ? CUDA_ERROR_MPS_CLIENT_TERMINATED : CUDA_SUCCESS;
}

const fake_call_t fake_memory_calls[] = {
    FAKE_CALL("cuMemAlloc", allocate),
    FAKE_CALL("cuMemFree", release),
    FAKE_CALL("cuMemGetInfo", tell_memory),
    FAKE_CALL("cuMemHostAlloc", pin),
    FAKE_CALL("cuMemFreeHost", unpin),
    FAKE_CALL("cuPointerGetAttribute", ask_pointer),
    FAKE_CALL("cuIpcGetMemHandle", get_handle),
    FAKE_CALL("cuIpcOpenMemHandle", open_handle),
    FAKE_CALL("cuIpcCloseMemHandle", close_handle),
    {NULL, NULL},
};
