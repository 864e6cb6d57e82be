/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the transport `cuda_ipc`. */
#ifndef LAP_TRANSPORT_CUDA_IPC_CUDA_IPC_H
#define LAP_TRANSPORT_CUDA_IPC_CUDA_IPC_H

#include "device/cuda/cuda.h"
#include "transport/cuda_ipc/cuda_ipc_kind.h"
#include "transport/transport.h"

/*
 * What a buffer has in the memory of GPUs: [signal words | per word, raises of earlier calls, then
 * the number of these calls | data].
 */
struct lap_part {
    lap_cuda_device_t *device;
    uint32_t *consumed, *calls; /* of this rank */
    size_t data, bytes;         /* where data begins, and the end */
    char **bases;               /* of each rank, as seen from here; NULL: not mapped */
    _Atomic uint32_t **users;   /* how many peers have each rank's mapped; in host memory */
    lap_cuda_memory_t *kinds;   /* how each rank's gets to the others */
    bool chosen;                /* this rank's, by LAP_CUDA_MEMORY */
    CUmemGenericAllocationHandle handle; /* of this rank's memory, while the buffer is made; or 0 */
    int fd;                              /* and a descriptor; or -1 */
    struct lap_paced *paced;             /* with an emulated link; else NULL */
    bool in_turn;                        /* ranks share a process and a GPU: see cuda_ipc.c */
};

static inline struct lap_part *lap_part_of(const lap_buffer_t *buffer)
{
    return buffer->backend;
}

static inline lap_cuda_word_t *lap_part_words(const struct lap_part *part, int rank)
{
    return (lap_cuda_word_t *)(void *)part->bases[rank];
}

/* Slots of the table. */
lap_status_t lap_cuda_ipc_buffer_create(lap_buffer_t *buffer);
void lap_cuda_ipc_buffer_destroy(lap_buffer_t *buffer);
/* And those that serve any buffer whose backend begins with a struct lap_part. */
lap_status_t lap_cuda_ipc_put(lap_buffer_t *buffer, const lap_device_ops_t *device,
                              lap_stream_t *stream, const lap_put_t *put);
lap_status_t lap_cuda_ipc_raise(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                lap_stream_t *stream, const lap_raise_t *raise);
lap_status_t lap_cuda_ipc_wait(lap_buffer_t *buffer, const lap_device_ops_t *device,
                               lap_stream_t *stream, const lap_wait_t *wait);
lap_status_t lap_cuda_ipc_end_signals(lap_buffer_t *buffer, const lap_device_ops_t *device,
                                      lap_stream_t *stream, const uint32_t *raised,
                                      size_t nsignals);
/* The rows of a put, not its signal, by the calling thread. */
lap_status_t lap_part_copy_now(lap_buffer_t *buffer, const lap_put_t *put);

/* Where a rank computes, as it is sent to the others. No padding: it is sent as bytes. */
typedef struct lap_part_place {
    int32_t gpu, part, parts;
} lap_part_place_t;

lap_part_place_t lap_part_place(const lap_cuda_device_t *device);
/*
 * Notes what follows from the places of all ranks, that of the next `stride` bytes further: whether
 * ranks take turns, and whether they are in each other's way.
 */
void lap_part_share(lap_buffer_t *buffer, const lap_part_place_t *first, size_t stride);

/*
 * Memory by VMM. It is zeroed when it is made, and goes when the handle is released and nobody has
 * it mapped any more. lap_vmm_size rounds up to what can be made. All of them enter and leave the
 * device themselves. Unmap takes NULL, release takes 0.
 */
lap_status_t lap_vmm_size(lap_cuda_device_t *device, size_t *bytes);
lap_status_t lap_vmm_create(lap_cuda_device_t *device, size_t bytes,
                            CUmemGenericAllocationHandle *handle_p, char **base_p);
lap_status_t lap_vmm_export(lap_cuda_device_t *device, CUmemGenericAllocationHandle handle,
                            int *fd_p);
lap_status_t lap_vmm_import(lap_cuda_device_t *device, size_t bytes, int fd, char **base_p);
void lap_vmm_unmap(lap_cuda_device_t *device, size_t bytes, char *base);
void lap_vmm_release(lap_cuda_device_t *device, CUmemGenericAllocationHandle handle);

/* An emulated link on the GPU, instead of the one of hosts. */
lap_status_t lap_cuda_ipc_link_begin(lap_buffer_t *buffer);
void lap_paced_free(struct lap_part *part);

/*
 * The time at which a transfer to a peer begins, noted on its stream unless one has begun already
 * whose signal is still to come.
 */
lap_status_t lap_paced_begin(lap_buffer_t *buffer, lap_stream_t *stream, int peer);
/* The way of a signal with `raise->bytes` bytes of data; raise->span: its end will be known. */
lap_status_t lap_paced_transit(lap_buffer_t *buffer, const lap_raise_t *raise,
                               lap_cuda_transit_t *transit_p);

#endif
