/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the transport `cuda_ipc`. */
#ifndef LAP_TRANSPORT_CUDA_IPC_CUDA_IPC_H
#define LAP_TRANSPORT_CUDA_IPC_CUDA_IPC_H

#include "device/cuda/cuda.h"
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
    struct lap_paced *paced;    /* with an emulated link; else NULL */
    bool in_turn;               /* ranks share a process and a GPU: see cuda_ipc.c */
};

static inline lap_cuda_word_t *lap_part_words(const struct lap_part *part, int rank)
{
    return (lap_cuda_word_t *)(void *)part->bases[rank];
}

static inline lap_cuda_raise_t lap_part_raise(const struct lap_part *part, const lap_raise_t *raise)
{
    return (lap_cuda_raise_t){&lap_part_words(part, raise->peer)[raise->signal], part->calls,
                              raise->tag};
}

/* An emulated link on the GPU, instead of the one of hosts. */
lap_status_t lap_cuda_ipc_link_begin(lap_buffer_t *buffer);
void lap_paced_free(struct lap_part *part);

/* The time at which a transfer begins, noted on its stream; for lap_paced_raise. */
lap_status_t lap_paced_note(struct lap_part *part, lap_stream_t *stream, const uint64_t **issued_p);
/* Raises when the link would have carried `raise->bytes` bytes; the stream goes on at once. */
lap_status_t lap_paced_raise(lap_buffer_t *buffer, lap_stream_t *stream, const uint64_t *issued,
                             const lap_raise_t *raise);
/* The stream goes on when all that is on its way has come. */
lap_status_t lap_paced_join(struct lap_part *part, lap_stream_t *stream);

#endif
