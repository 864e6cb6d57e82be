/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An emulated link on a GPU, as link.c has it on a host: data and its signal go at once, and with
 * the signal goes the time at which a link would have delivered it. Who waits for the signal waits
 * until then, so that nothing runs meanwhile on behalf of the link. Times are those of the GPU's
 * clock; GPUs whose clocks differ are off by that much.
 */
#include "transport/cuda_ipc/cuda_ipc.h"
#include "util/alloc.h"

#define STAMPS 4096u    /* transfers of a call whose beginning is stamped at once */
#define LONGEST_NS 1e18 /* thirty years: keeps sums of times from wrapping */

struct lap_paced {
    uint64_t *stamps; /* device memory: when transfers began; then when the link is free */
    unsigned nstamps;
    const uint64_t *
        *begun;    /* of each peer: when the transfer began whose signal is still to come */
    bool captured; /* those were stamped while a graph was captured */
};

static uint64_t to_ns(double seconds)
{
    const double ns = seconds * 1e9;
    return (uint64_t)(ns < LONGEST_NS ? ns : LONGEST_NS);
}

lap_status_t lap_cuda_ipc_link_begin(lap_buffer_t *buffer)
{
    struct lap_part *part = buffer->backend;
    CUdeviceptr stamps;
    part->paced = lap_alloc(1, sizeof(*part->paced));
    if (!part->paced)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for an emulated link");
    part->paced->begun = lap_alloc((size_t)buffer->group->size, sizeof(*part->paced->begun));
    if (!part->paced->begun)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for an emulated link");
    LAP_TRY(lap_cuda_enter(part->device));
    LAP_TRY(lap_cuda_leave(
        part->device, lap_cuda_memory(part->device, (STAMPS + 1) * sizeof(uint64_t), &stamps)));
    part->paced->stamps = (uint64_t *)(uintptr_t)stamps;
    return LAP_OK;
}

void lap_paced_free(struct lap_part *part)
{
    if (!part->paced)
        return;
    lap_cuda_free(&part->device->base, part->paced->stamps);
    lap_free(part->paced->begun);
    lap_free(part->paced);
    part->paced = NULL;
}

/* A graph that was given up may have left some whose signal never came, nor were they stamped. */
static void forget_given_up(struct lap_part *part, int size)
{
    struct lap_paced *paced = part->paced;
    if (paced->captured == part->device->capturing)
        return;
    for (int peer = 0; peer < size; peer++)
        paced->begun[peer] = NULL;
    paced->captured = part->device->capturing;
}

lap_status_t lap_paced_begin(lap_buffer_t *buffer, lap_stream_t *stream, int peer)
{
    struct lap_paced *paced = lap_part_of(buffer)->paced;
    forget_given_up(buffer->backend, buffer->group->size);
    if (paced->begun[peer])
        return LAP_OK;
    uint64_t *stamp = &paced->stamps[paced->nstamps++ % STAMPS];
    paced->begun[peer] = stamp;
    return lap_cuda_write_time(stream, stamp);
}

/* What a rank sends to itself needs no link. */
lap_status_t lap_paced_transit(lap_buffer_t *buffer, const lap_raise_t *raise,
                               lap_cuda_transit_t *transit_p)
{
    struct lap_part *part = buffer->backend;
    const lap_link_t *link = &buffer->link;
    const bool leaves = raise->peer != buffer->group->rank;
    uint64_t *arrival = NULL;
    if (raise->span)
        LAP_TRY(lap_cuda_await_arrival(part->device, &raise->span->end, &arrival));
    *transit_p = (lap_cuda_transit_t){
        .issued = raise->bytes > 0 ? part->paced->begun[raise->peer] : NULL,
        .link_free = leaves && raise->bytes > 0 ? &part->paced->stamps[STAMPS] : NULL,
        .carry_ns = link->bytes_per_s > 0 ? to_ns((double)raise->bytes / link->bytes_per_s) : 0,
        .latency_ns = leaves ? to_ns(link->latency_s) : 0,
        .arrival = arrival,
    };
    if (raise->bytes > 0)
        part->paced->begun[raise->peer] = NULL;
    return LAP_OK;
}
