/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks that have met say to each other, through rank 0: bytes, or why there are none. */
#include "core/tcp/tcp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/message.h"
#include "util/alloc.h"

#define FRAME_MAGIC 0x4c61704d65657432u

/* What precedes all bytes after the proofs. */
typedef struct frame {
    uint64_t magic;
    int64_t status; /* of the sender; not LAP_OK: the bytes are its sentence */
    uint64_t bytes;
} frame_t;

lap_status_t lap_tcp_send_frame(int fd, lap_status_t status, const void *data, size_t bytes,
                                lap_deadline_t *deadline)
{
    const frame_t frame = {.magic = FRAME_MAGIC, .status = status, .bytes = bytes};
    LAP_TRY(lap_tcp_write(fd, &frame, sizeof(frame), deadline));
    return lap_tcp_write(fd, data, bytes, deadline);
}

/* Whether a number of the wire is LAP_OK or a failure that this library knows. */
static bool is_verdict(int64_t status)
{
    static const int64_t known[] = {
#define KNOWN(name, value, text) value,
        LAP_STATUS_LIST(KNOWN)
#undef KNOWN
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (known[i] == status)
            return status <= LAP_OK; /* LAP_IN_PROGRESS is neither */
    return false;
}

lap_status_t lap_tcp_receive_frame(int fd, void *data, size_t bytes, bool *verdict_p,
                                   lap_deadline_t *deadline)
{
    frame_t frame;
    char text[LAP_ERROR_TEXT] = "";
    *verdict_p = false;
    LAP_TRY(lap_tcp_read(fd, &frame, sizeof(frame), deadline));
    if (frame.magic != FRAME_MAGIC || !is_verdict(frame.status) ||
        frame.bytes != (frame.status == LAP_OK ? bytes : sizeof(text))) {
        errno = EPROTO;
        return LAP_ERR_PEER_LOST;
    }
    if (frame.status == LAP_OK)
        return lap_tcp_read(fd, data, bytes, deadline);
    LAP_TRY(lap_tcp_read(fd, text, sizeof(text), deadline));
    text[sizeof(text) - 1] = '\0';
    *verdict_p = true;
    return lap_error((lap_status_t)frame.status, "%s", text);
}

void lap_tcp_tell(int fd, lap_status_t status)
{
    struct {
        frame_t frame;
        char text[LAP_ERROR_TEXT];
    } message = {.frame = {.magic = FRAME_MAGIC, .status = status, .bytes = LAP_ERROR_TEXT}};
    snprintf(message.text, sizeof(message.text), "%s", lap_last_error());
    (void)send(fd, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void lap_tcp_tell_all(lap_tcp_meeting_t *meeting, lap_status_t status)
{
    for (int rank = 1; rank < meeting->size; rank++)
        if (meeting->fds[rank] >= 0)
            lap_tcp_tell(meeting->fds[rank], status);
}

/* Of a frame of `rank` that did not come, or did not get there. */
static lap_status_t frame_failed(const lap_tcp_meeting_t *meeting, int rank, lap_status_t status)
{
    if (status == LAP_ERR_PEER_LOST)
        return lap_error(status, "rank %d went away while the ranks were meeting", rank);
    if (status == LAP_ERR_TIMEOUT)
        return lap_error(status, "rank %d came to the others but has not answered within %g s",
                         rank, (double)meeting->timeout_ns * 1e-9);
    return status;
}

/* Until rank `awaited` has said something: who goes away meanwhile ends it for all. */
static lap_status_t await_rank(const lap_tcp_meeting_t *meeting, struct pollfd *polls, int awaited,
                               lap_deadline_t *deadline)
{
    for (int rank = 0; rank < meeting->size; rank++)
        polls[rank] =
            (struct pollfd){.fd = meeting->fds[rank],
                            .events = (short)(rank == awaited ? POLLIN | POLLRDHUP : POLLRDHUP)};
    const lap_status_t status = lap_wait_polls(polls, meeting->size, deadline);
    if (status != LAP_OK)
        return frame_failed(meeting, awaited, status);
    for (int rank = 1; rank < meeting->size; rank++)
        if (polls[rank].revents & (POLLRDHUP | POLLHUP | POLLERR))
            return frame_failed(meeting, rank, LAP_ERR_PEER_LOST);
    return LAP_OK;
}

static lap_status_t host_collect(const lap_tcp_meeting_t *meeting, struct pollfd *polls,
                                 size_t bytes, char *all, lap_deadline_t *deadline)
{
    for (int rank = 1; rank < meeting->size; rank++) {
        LAP_TRY(await_rank(meeting, polls, rank, deadline));
        bool verdict;
        const lap_status_t status = lap_tcp_receive_frame(
            meeting->fds[rank], all + (size_t)rank * bytes, bytes, &verdict, deadline);
        if (status != LAP_OK)
            return verdict ? status : frame_failed(meeting, rank, status);
    }
    return LAP_OK;
}

static lap_status_t host_gather(lap_tcp_meeting_t *meeting, size_t bytes, char *all,
                                lap_deadline_t *deadline)
{
    struct pollfd *polls = lap_alloc((size_t)meeting->size, sizeof(*polls));
    lap_status_t status =
        polls ? host_collect(meeting, polls, bytes, all, deadline)
              : lap_error(LAP_ERR_NO_MEMORY, "no memory to gather %d ranks", meeting->size);
    lap_free(polls);
    if (status != LAP_OK) {
        lap_tcp_tell_all(meeting, status);
        return status;
    }
    for (int rank = 1; rank < meeting->size; rank++) {
        status = lap_tcp_send_frame(meeting->fds[rank], LAP_OK, all, (size_t)meeting->size * bytes,
                                    deadline);
        if (status == LAP_OK)
            continue;
        status = frame_failed(meeting, rank, status);
        /* It may have a part of the frame, and would take the sentence for the rest. */
        close(meeting->fds[rank]);
        meeting->fds[rank] = -1;
        lap_tcp_tell_all(meeting, status);
        return status;
    }
    return LAP_OK;
}

lap_status_t lap_tcp_gather(lap_tcp_meeting_t *meeting, const void *mine, size_t bytes, void *all,
                            lap_deadline_t *deadline)
{
    if (meeting->rank == 0) {
        memcpy(all, mine, bytes);
        return host_gather(meeting, bytes, all, deadline);
    }
    /* What cannot be sent because rank 0 is gone is no failure yet: it may have left its sentence. */
    bool verdict = false;
    lap_status_t status = lap_tcp_send_frame(meeting->fds[0], LAP_OK, mine, bytes, deadline);
    if (status == LAP_OK || status == LAP_ERR_PEER_LOST)
        status = lap_tcp_receive_frame(meeting->fds[0], all, (size_t)meeting->size * bytes,
                                       &verdict, deadline);
    return status == LAP_OK || verdict ? status : frame_failed(meeting, 0, status);
}
