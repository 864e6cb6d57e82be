/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An emulated link on a GPU, as link.c has it on a host: data goes at once, its signal when a link
 * would have delivered it. The signal waits on a stream of its own, in a kernel of one thread that
 * sleeps; transfers come one after the other there, as on the link. Signals without data have
 * another stream, so that they overtake.
 */
#include "transport/cuda_ipc/cuda_ipc.h"
#include "util/alloc.h"

#define NOTES 4096u     /* transfers of a call whose beginning is noted at once */
#define LONGEST_NS 1e18 /* thirty years: keeps sums of times from wrapping */

enum { CARRY, CREDIT, STREAMS };

struct lap_paced {
    lap_stream_t *streams[STREAMS];
    bool used[STREAMS]; /* since the last join */
    unsigned raises;    /* so far; and how many of them each stream has behind it */
    unsigned behind[LAP_CUDA_SLOTS];
    lap_event_t *mark;
    uint64_t *notes; /* device memory: when transfers began; then when the link is free */
    unsigned nnotes;
};

static uint64_t to_ns(double seconds)
{
    const double ns = seconds * 1e9;
    return (uint64_t)(ns < LONGEST_NS ? ns : LONGEST_NS);
}

static lap_status_t begin(struct lap_paced *paced, lap_cuda_device_t *device)
{
    lap_device_t *base = &device->base;
    CUdeviceptr notes;
    for (int s = 0; s < STREAMS; s++)
        LAP_TRY(lap_cuda_stream_create(base, true, &paced->streams[s]));
    LAP_TRY(lap_cuda_event_create(base, &paced->mark));
    LAP_TRY(lap_cuda_enter(device));
    LAP_TRY(
        lap_cuda_leave(device, lap_cuda_memory(device, (NOTES + 1) * sizeof(uint64_t), &notes)));
    paced->notes = (uint64_t *)(uintptr_t)notes;
    return LAP_OK;
}

lap_status_t lap_cuda_ipc_link_begin(lap_buffer_t *buffer)
{
    struct lap_part *part = buffer->part;
    part->paced = lap_alloc(1, sizeof(*part->paced));
    if (!part->paced)
        return lap_error(LAP_ERR_NO_MEMORY, "no memory for an emulated link");
    return begin(part->paced, part->device);
}

void lap_paced_free(struct lap_part *part)
{
    struct lap_paced *paced = part->paced;
    if (!paced)
        return;
    for (int s = 0; s < STREAMS; s++)
        if (paced->streams[s])
            lap_cuda_stream_destroy(paced->streams[s]);
    if (paced->mark)
        lap_cuda_event_destroy(paced->mark);
    lap_cuda_free(&part->device->base, paced->notes);
    lap_free(paced);
    part->paced = NULL;
}

lap_status_t lap_paced_note(struct lap_part *part, lap_stream_t *stream, const uint64_t **issued_p)
{
    struct lap_paced *paced = part->paced;
    const lap_cuda_stamp_t args = {&paced->notes[paced->nnotes++ % NOTES]};
    LAP_TRY(lap_cuda_enter(part->device));
    LAP_TRY(lap_cuda_leave(part->device,
                           lap_cuda_launch(stream, LAP_CUDA_KERNEL_stamp, 1, 1, 1, 1, &args)));
    *issued_p = args.at;
    return LAP_OK;
}

lap_status_t lap_paced_raise(lap_buffer_t *buffer, lap_stream_t *stream, const uint64_t *issued,
                             const lap_raise_t *raise)
{
    struct lap_part *part = buffer->part;
    struct lap_paced *paced = part->paced;
    const lap_link_t *link = &buffer->link;
    const int which = raise->bytes > 0 ? CARRY : CREDIT;
    lap_stream_t *own = paced->streams[which];
    const lap_cuda_pace_t args = {
        .board = part->device->board,
        .issued = issued,
        .link_free = which == CARRY ? &paced->notes[NOTES] : NULL,
        .carry_ns = link->bytes_per_s > 0 ? to_ns((double)raise->bytes / link->bytes_per_s) : 0,
        .latency_ns = to_ns(link->latency_s),
        .lost = part->device->lost,
        .raise = lap_part_raise(part, raise),
    };
    LAP_TRY(lap_cuda_event_record(paced->mark, stream));
    LAP_TRY(lap_cuda_stream_wait_event(own, paced->mark));
    paced->used[which] = true;
    paced->raises++;
    LAP_TRY(lap_cuda_enter(part->device));
    LAP_TRY(lap_cuda_leave(part->device,
                           lap_cuda_launch(own, LAP_CUDA_KERNEL_pace, 1, 1, 1, 1, &args)));
    return raise->span ? lap_cuda_stamp(own, &raise->span->end) : LAP_OK;
}

/* The stream goes on when all signals have been raised that were issued so far. */
static lap_status_t follow(struct lap_paced *paced, lap_stream_t *stream)
{
    for (int s = 0; s < STREAMS; s++) {
        if (!paced->used[s])
            continue;
        LAP_TRY(lap_cuda_event_record(paced->mark, paced->streams[s]));
        LAP_TRY(lap_cuda_stream_wait_event(stream, paced->mark));
    }
    paced->behind[stream->slot] = paced->raises;
    return LAP_OK;
}

/*
 * A wait comes after all that its rank sends before it (see order_waits.c), and what is sent here
 * is sent when it is delivered: where streams share a queue, a wait would else hold up what paces a
 * signal for the very peer that it waits for. Peers that do the same lose no time by it.
 */
lap_status_t lap_paced_before_wait(struct lap_part *part, lap_stream_t *stream)
{
    struct lap_paced *paced = part->paced;
    return paced->behind[stream->slot] == paced->raises ? LAP_OK : follow(paced, stream);
}

lap_status_t lap_paced_join(struct lap_part *part, lap_stream_t *stream)
{
    LAP_TRY(follow(part->paced, stream));
    for (int s = 0; s < STREAMS; s++)
        part->paced->used[s] = false;
    return LAP_OK;
}
