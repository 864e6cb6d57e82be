/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator and the other parts of the transport `nccl`. */
#ifndef LAP_TRANSPORT_NCCL_NCCL_COMM_H
#define LAP_TRANSPORT_NCCL_NCCL_COMM_H

#include "device/cuda/cuda.h"
#include "transport/nccl/nccl_load.h"
#include "transport/transport.h"

#define LAP_NCCL_FLIGHTS 256 /* rounds that may be in flight and still be told about */

/* A round that was issued. */
typedef struct lap_nccl_flight {
    uint32_t number;
    lap_buffer_t *buffer;
    lap_round_t round;
} lap_nccl_flight_t;

/*
 * The communicator of a group, which its buffers share. All that it does is on one stream, the
 * wire, in the order of rounds.
 */
typedef struct lap_nccl_comm {
    lap_cuda_client_t client; /* of the device; first */
    lap_nccl_api_t api;
    ncclComm_t comm; /* NULL: not made yet, or ended by a failure */
    lap_group_t *group;
    lap_cuda_device_t *device;
    lap_stream_t *wire;
    lap_event_t *mark;
    lap_cuda_word_t *progress; /* pinned: rounds that have begun, and that have ended */
    uint32_t issued;           /* rounds */
    unsigned looks;
    lap_nccl_flight_t flights[LAP_NCCL_FLIGHTS];
    /* Rows with gaps go and come by way of packed ones. */
    char *packed;
    size_t packed_bytes;
    char *outgrown[LAP_CUDA_OUTGROWN]; /* earlier ones: what was issued may still use them */
    unsigned noutgrown;
} lap_nccl_comm_t;

/* The communicator of a group, made when first asked for. Collective. */
lap_status_t lap_nccl_comm_get(lap_group_t *group, lap_nccl_comm_t **comm_p);

/*
 * Waits until what NCCL was told last has been done, as far as the host is concerned. Between
 * lap_cuda_enter and _leave.
 */
lap_status_t lap_nccl_await(lap_nccl_comm_t *comm, const char *what);

/*
 * What a buffer has in the memory of the GPU: [a word for each peer to be sent | the one that came
 * from each | per peer, calls in which one came, then the number of calls | data]. The word goes
 * ahead of the first rows to a peer in each call, with the tag of the call, so that ranks in
 * different calls do not take each other's rows for their own.
 */
struct lap_stage {
    lap_nccl_comm_t *comm;
    char *memory;
    lap_cuda_word_t *out, *in;
    uint32_t *consumed, *calls;
    uint32_t *word_received; /* host memory, per peer: not 0 when its word has come in this call, */
    uint32_t *word_sent;     /* and when it has been sent one */
};

static inline struct lap_stage *lap_nccl_stage_of(const lap_buffer_t *buffer)
{
    return buffer->backend;
}

lap_status_t lap_nccl_exchange(lap_buffer_t *buffer, const lap_device_ops_t *device,
                               const lap_round_t *round);

#endif
