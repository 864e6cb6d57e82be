/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnccl.so.2 that sends through memory which the processes of one host share. It is as strict
 * as NCCL may be: a send ends only when it has been received, what a communicator is given runs one
 * group after the other, and nothing is under way before the caller has asked until it is not in
 * progress any more. It looks at what NCCL would take on trust: that a receive has the size, and the
 * number, of the send that it meets. Ranks may share the one fake GPU, which NCCL refuses.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <nccl.h>

#include "fake.h"

#define RANKS 16
#define CHUNK 4096
#define OPS 256 /* of a group */
#define POLLS 3 /* until something has been done */

/* One way between two ranks. */
typedef struct lane {
    _Atomic uint32_t full; /* a chunk is there to be taken */
    uint32_t number;       /* of the message on this lane */
    uint64_t total;        /* its bytes */
    uint64_t bytes;        /* of the chunk */
    char chunk[CHUNK];
} lane_t;

/* What the ranks of a communicator share. */
typedef struct hall {
    _Atomic int arrived;
    lane_t lanes[RANKS][RANKS]; /* [from][to] */
} hall_t;

/* What travels as an id. */
typedef struct address {
    int pid, fd;
} address_t;

typedef struct op {
    struct ncclComm *comm;
    bool sends;
    char *data;
    size_t bytes, moved;
    int peer;
    uint32_t number; /* on its lane */
    bool done;
    CUstream stream;
} op_t;

typedef struct group {
    struct ncclComm *comm;
    uint32_t turn;
    uint32_t nops;
    op_t ops[OPS];
} group_t;

struct ncclComm {
    int rank, size;
    hall_t *hall;
    int polls; /* still to come, before what was told last is done */
    bool connected;
    group_t *told; /* a group that waits for these polls */
    uint32_t issued;
    _Atomic uint32_t ended; /* groups */
    _Atomic int error;
    _Atomic bool aborted;
    uint32_t sent[RANKS], received[RANKS];
};

static _Thread_local int depth;
static _Thread_local group_t *open_group;
static _Thread_local char sentence[256];

static void nap(void)
{
    nanosleep(&(struct timespec){0, 20000}, NULL);
}

/* ---- in a stream ---- */

static bool fail(struct ncclComm *comm, const char *what, const op_t *op, const lane_t *lane)
{
    fprintf(stderr,
            "fake NCCL: rank %d: %s: message %u from rank %d has %llu bytes, expected message %u "
            "of %zu\n",
            comm->rank, what, lane->number, op->peer, (unsigned long long)lane->total, op->number,
            op->bytes);
    atomic_store(&comm->error, ncclInternalError);
    return false;
}

static bool move_send(op_t *op)
{
    lane_t *lane = &op->comm->hall->lanes[op->comm->rank][op->peer];
    if (atomic_load(&lane->full))
        return false;
    op->done = op->moved == op->bytes;
    if (op->done)
        return true;
    const size_t left = op->bytes - op->moved, bytes = left < CHUNK ? left : CHUNK;
    lane->number = op->number;
    lane->total = op->bytes;
    lane->bytes = bytes;
    memcpy(lane->chunk, op->data + op->moved, bytes);
    op->moved += bytes;
    atomic_store(&lane->full, 1);
    return true;
}

static bool move_receive(op_t *op)
{
    lane_t *lane = &op->comm->hall->lanes[op->peer][op->comm->rank];
    if (!atomic_load(&lane->full))
        return false;
    if (lane->number != op->number || lane->total != op->bytes)
        return fail(op->comm, "a receive meets another send", op, lane);
    memcpy(op->data + op->moved, lane->chunk, lane->bytes);
    op->moved += lane->bytes;
    op->done = op->moved == op->bytes;
    atomic_store(&lane->full, 0);
    return true;
}

/* Messages of one lane go one after the other, all others at once. */
static bool is_behind(const group_t *group, uint32_t index)
{
    const op_t *op = &group->ops[index];
    for (uint32_t i = 0; i < index; i++)
        if (!group->ops[i].done && group->ops[i].sends == op->sends &&
            group->ops[i].peer == op->peer)
            return true;
    return false;
}

/* Returns whether anything is left to do. */
static bool move(group_t *group)
{
    bool left = false, moved = false;
    for (uint32_t i = 0; i < group->nops; i++) {
        op_t *op = &group->ops[i];
        if (op->done)
            continue;
        left = true;
        if (!is_behind(group, i))
            moved = (op->sends ? move_send(op) : move_receive(op)) || moved;
    }
    if (left && !moved)
        nap();
    return left;
}

static void run_group(void *args)
{
    group_t *group = *(group_t **)args;
    struct ncclComm *comm = group->comm;
    while (atomic_load(&comm->ended) != group->turn && !atomic_load(&comm->aborted))
        nap();
    while (!atomic_load(&comm->aborted) && !atomic_load(&comm->error) && move(group))
        ;
    /* After an error nothing goes on until it is ended, as it would in a kernel. */
    while (atomic_load(&comm->error) && !atomic_load(&comm->aborted))
        nap();
    free(group);
    atomic_fetch_add(&comm->ended, 1);
}

/* ---- groups ---- */

static ncclResult_t refuse(const char *text)
{
    snprintf(sentence, sizeof(sentence), "fake NCCL: %s", text);
    fprintf(stderr, "%s\n", sentence);
    return ncclInvalidUsage;
}

static ncclResult_t launch(group_t *group)
{
    group->turn = group->comm->issued++;
    return fake_issue(group->ops[0].stream, run_group, &group, sizeof(group), true) == CUDA_SUCCESS
               ? ncclSuccess
               : ncclUnhandledCudaError;
}

FAKE_EXPORT ncclResult_t ncclGroupStart(void)
{
    if (depth++ > 0)
        return ncclSuccess;
    open_group = calloc(1, sizeof(*open_group));
    return open_group ? ncclSuccess : ncclSystemError;
}

FAKE_EXPORT ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0)
        return refuse("a group ends that was not begun");
    if (--depth > 0)
        return ncclSuccess;
    group_t *group = open_group;
    open_group = NULL;
    if (group->nops == 0) {
        free(group);
        return ncclSuccess;
    }
    group->comm->told = group;
    group->comm->polls = POLLS;
    return ncclInProgress;
}

static ncclResult_t add(struct ncclComm *comm, bool sends, uintptr_t data, size_t bytes, int peer,
                        CUstream stream)
{
    if (depth == 0)
        return refuse("a send or receive of its own would wait for its peer: expected a group");
    if (comm->polls > 0)
        return refuse("a send or receive while the last group is in progress");
    if (peer < 0 || peer >= comm->size || peer == comm->rank)
        return refuse("a send or receive of a rank that is none of the others");
    if (open_group->nops == OPS)
        return refuse("more sends and receives in a group than it has room for");
    if (open_group->nops > 0 && (open_group->comm != comm || open_group->ops[0].stream != stream))
        return refuse("a group on several streams or communicators");
    open_group->comm = comm;
    open_group->ops[open_group->nops++] = (op_t){
        .comm = comm,
        .sends = sends,
        .data = fake_at((void *)data),
        .bytes = bytes,
        .peer = peer,
        .number = sends ? ++comm->sent[peer] : ++comm->received[peer],
        .stream = stream,
    };
    return ncclSuccess;
}

FAKE_EXPORT ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                                  ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclUint8)
        return ncclInvalidArgument;
    return add(comm, true, (uintptr_t)data, count, peer, stream);
}

FAKE_EXPORT ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer,
                                  ncclComm_t comm, cudaStream_t stream)
{
    if (type != ncclUint8)
        return ncclInvalidArgument;
    return add(comm, false, (uintptr_t)data, count, peer, stream);
}

/* ---- communicators ---- */

FAKE_EXPORT ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

FAKE_EXPORT const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclInvalidUsage ? "invalid usage" : "an error of the fake NCCL";
}

FAKE_EXPORT const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return sentence;
}

/* The memory stays open in the process of rank 0, where the others find it. */
FAKE_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *unique)
{
    const address_t id = {(int)getpid(), memfd_create("fake-nccl", MFD_CLOEXEC)};
    if (id.fd < 0 || ftruncate(id.fd, (off_t)sizeof(hall_t)) != 0)
        return ncclSystemError;
    memset(unique, 0, sizeof(*unique));
    memcpy(unique->internal, &id, sizeof(id));
    return ncclSuccess;
}

FAKE_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm_p, int size, ncclUniqueId unique,
                                                int rank, ncclConfig_t *config)
{
    address_t id;
    char path[64];
    if (size > RANKS || config->blocking != 0)
        return refuse("a communicator that blocks, or of more ranks than it has room for");
    memcpy(&id, unique.internal, sizeof(id));
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", id.pid, id.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    hall_t *hall =
        fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(hall_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    struct ncclComm *comm = hall == MAP_FAILED ? NULL : calloc(1, sizeof(*comm));
    if (!comm)
        return ncclSystemError;
    comm->rank = rank;
    comm->size = size;
    comm->hall = hall;
    atomic_fetch_add(&hall->arrived, 1);
    *comm_p = comm;
    return ncclInProgress;
}

FAKE_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
    *result = (ncclResult_t)atomic_load(&comm->error);
    if (*result != ncclSuccess)
        return ncclSuccess;
    if (!comm->connected)
        comm->connected = atomic_load(&comm->hall->arrived) == comm->size;
    if (!comm->connected || (comm->polls > 0 && --comm->polls > 0)) {
        *result = ncclInProgress;
        return ncclSuccess;
    }
    if (comm->told)
        *result = launch(comm->told);
    comm->told = NULL;
    return ncclSuccess;
}

/* Ends what is in the streams, and waits until it has ended. */
FAKE_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    atomic_store(&comm->aborted, true);
    while (atomic_load(&comm->ended) != comm->issued)
        nap();
    free(comm->told);
    munmap(comm->hall, sizeof(hall_t));
    free(comm);
    return ncclSuccess;
}
