/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator and the other parts of the transport `nccl`. */
#ifndef LAP_TRANSPORT_NCCL_NCCL_COMM_H
#define LAP_TRANSPORT_NCCL_NCCL_COMM_H

#include "transport/cuda_ipc/cuda_ipc.h"
#include "transport/nccl/nccl_load.h"

/*
 * Memory that becomes a window, and where NCCL writes the handle: it does so when all ranks are
 * there, or, of one that they do not come to, when the communicator is aborted. Until then neither
 * is freed, and of a communicator of the caller's they are left to it.
 */
typedef struct lap_nccl_cell {
    void *memory;
    ncclWindow_t window;
    struct lap_nccl_cell *next;
} lap_nccl_cell_t;

/*
 * The communicator of a group, which its buffers share. NCCL's own work is on one stream, of the
 * primary context: on a stream of a green context its copies bring the driver down.
 */
typedef struct lap_nccl_comm {
    lap_cuda_client_t client; /* of the device; first */
    lap_nccl_api_t api;
    ncclComm_t comm; /* NULL: not made yet */
    bool borrowed;   /* it is the caller's */
    bool in_step;    /* all ranks are in one, and agree after it: who waits sees who has failed */
    size_t users;    /* windows, and operators of cuBLASMp that were given up */
    lap_nccl_cell_t *unfinished; /* windows that NCCL did not make: it makes no others then */
    lap_group_t *group;
    lap_cuda_device_t *device;
    bool all_near;     /* NCCL gives the address of every rank's memory to every other */
    CUstream wire;     /* the rest is for ranks that are not near each other */
    CUfunction raise;  /* the kernel lap_raise, in the primary context */
    lap_event_t *sent; /* recorded on a stream of the device, for the wire to wait for, */
    CUevent done;      /* and the other way round */
} lap_nccl_comm_t;

/* The communicator of a group, made when first asked for. Collective. */
lap_status_t lap_nccl_comm_get(lap_group_t *group, lap_nccl_comm_t **comm_p);

/*
 * Around calls of NCCL: makes the primary context current. Leave returns the status given, or what
 * went wrong there.
 */
lap_status_t lap_nccl_enter(lap_nccl_comm_t *comm);
lap_status_t lap_nccl_leave(lap_nccl_comm_t *comm, lap_status_t status);

/*
 * Waits until NCCL has done its latest call, as far as the host is concerned. Between enter
 * and leave.
 */
lap_status_t lap_nccl_await(lap_nccl_comm_t *comm, ncclResult_t result, const char *what);
/* The same for what the wire was given. */
lap_status_t lap_nccl_await_wire(lap_nccl_comm_t *comm);

/*
 * While this rank waits in a step that all ranks take before lap_nccl_agree: LAP_IN_PROGRESS when
 * another rank has come there with a failure so long ago that the step does not end by itself, as
 * it does where all ranks fail alike. *since_p is 0 at first.
 */
#define LAP_NCCL_LAST_NS 500000000u
lap_status_t lap_nccl_look(lap_group_t *group, uint64_t now, uint64_t *since_p);
/* As lap_group_agree; a failure that this rank gave up on is reported by the rank that failed. */
lap_status_t lap_nccl_agree(lap_group_t *group, lap_status_t status);

/* Memory that is registered as a window on all ranks. */
typedef struct lap_nccl_window {
    void *memory;
    ncclWindow_t window;
} lap_nccl_window_t;

/*
 * Collective. The memory is zero. After a failure nothing is left of it, but for what NCCL may
 * still be at, which comm has.
 */
lap_status_t lap_nccl_window_create(lap_nccl_comm_t *comm, size_t bytes,
                                    lap_nccl_window_t *window_p);
void lap_nccl_window_destroy(lap_nccl_comm_t *comm, lap_nccl_window_t *window);

/*
 * The memory of a buffer is that of `cuda_ipc`, in a window. Where not all ranks are near each
 * other two things follow the data. One is a copy of it: NCCL sends rows from a window only. The
 * other is the words that this rank has raised, [rank][signal]. They are put into those of the peer
 * as they are: each word has one rank that raises it.
 */
typedef struct lap_nccl_part {
    struct lap_part part; /* first; bases[r] is NULL where rank r is not near */
    lap_nccl_comm_t *comm;
    lap_nccl_window_t window;
    size_t stage, out; /* where these begin */
} lap_nccl_part_t;

static inline lap_nccl_part_t *lap_nccl_part_of(const lap_buffer_t *buffer)
{
    return buffer->backend;
}

/* Puts and raises to ranks that are not near, in the order of a stream; see nccl_far.c. */
lap_status_t lap_nccl_far_put(lap_buffer_t *buffer, lap_stream_t *stream, const lap_put_t *put);
lap_status_t lap_nccl_far_raise(lap_buffer_t *buffer, lap_stream_t *stream,
                                const lap_raise_t *raise);
/* The rows of a put, not its signal, by the calling thread. */
lap_status_t lap_nccl_far_put_now(lap_buffer_t *buffer, const lap_put_t *put);

#endif
