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
/* For the answer of rank 0 to a failure, and for the rest of a frame. */
#define VERDICT_NS 2000000000u

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

static void tell(int fd, lap_status_t status, const char *text)
{
    struct {
        frame_t frame;
        char text[LAP_ERROR_TEXT];
    } message = {.frame = {.magic = FRAME_MAGIC, .status = status, .bytes = LAP_ERROR_TEXT}};
    snprintf(message.text, sizeof(message.text), "%s", text);
    (void)send(fd, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void lap_tcp_tell(int fd, lap_status_t status)
{
    tell(fd, status, lap_last_error());
}

static void tell_all(lap_tcp_rendezvous_t *rendezvous, lap_status_t status, const char *text)
{
    rendezvous->failed = true;
    for (int rank = 1; rank < rendezvous->size; rank++)
        if (rendezvous->fds[rank] >= 0)
            tell(rendezvous->fds[rank], status, text);
}

void lap_tcp_tell_all(lap_tcp_rendezvous_t *rendezvous, lap_status_t status)
{
    tell_all(rendezvous, status, lap_last_error());
}

/* Of a frame of `rank` that did not come, or did not get there. */
static lap_status_t frame_failed(const lap_tcp_rendezvous_t *rendezvous, int rank,
                                 lap_status_t status)
{
    char within[LAP_LIMIT_TEXT];
    if (status == LAP_ERR_PEER_LOST)
        return lap_error(status, "rank %d went away while the ranks were meeting", rank);
    if (status == LAP_ERR_TIMEOUT)
        return lap_error(status, "rank %d came to the others but has not answered %s", rank,
                         lap_tcp_within(rendezvous, within));
    return status;
}

/* Takes what ranks say as it comes: one that fails ends it for all, and so does one that goes away. */
static lap_status_t host_collect(const lap_tcp_rendezvous_t *rendezvous, struct pollfd *polls,
                                 size_t bytes, char *all, lap_deadline_t *deadline)
{
    const int size = rendezvous->size;
    int missing = size - 1, first = 1;
    for (int rank = 0; rank < size; rank++)
        polls[rank] = (struct pollfd){.fd = rendezvous->fds[rank], .events = POLLIN | POLLRDHUP};
    while (missing > 0) {
        lap_status_t status = lap_wait_polls(polls, size, deadline);
        while (!(polls[first].events & POLLIN))
            first++;
        if (status != LAP_OK)
            return frame_failed(rendezvous, first, status);
        for (int rank = 1; rank < size; rank++) {
            bool verdict = false;
            if (!polls[rank].revents)
                continue;
            status = LAP_ERR_PEER_LOST;
            if (polls[rank].events & POLLIN)
                status = lap_tcp_receive_frame(rendezvous->fds[rank], all + (size_t)rank * bytes,
                                               bytes, &verdict, deadline);
            if (status != LAP_OK)
                return verdict ? status : frame_failed(rendezvous, rank, status);
            polls[rank].events = POLLRDHUP;
            missing--;
        }
    }
    return LAP_OK;
}

static lap_status_t host_gather(lap_tcp_rendezvous_t *rendezvous, size_t bytes, char *all,
                                lap_deadline_t *deadline)
{
    struct pollfd *polls = lap_alloc((size_t)rendezvous->size, sizeof(*polls));
    lap_status_t status =
        polls ? host_collect(rendezvous, polls, bytes, all, deadline)
              : lap_error(LAP_ERR_NO_MEMORY, "no memory to gather %d ranks", rendezvous->size);
    lap_free(polls);
    if (status != LAP_OK) {
        lap_tcp_tell_all(rendezvous, status);
        return status;
    }
    for (int rank = 1; rank < rendezvous->size; rank++) {
        status = lap_tcp_send_frame(rendezvous->fds[rank], LAP_OK, all,
                                    (size_t)rendezvous->size * bytes, deadline);
        if (status == LAP_OK)
            continue;
        status = frame_failed(rendezvous, rank, status);
        /* It may have a part of the frame, and would take the sentence for the rest. */
        close(rendezvous->fds[rank]);
        rendezvous->fds[rank] = -1;
        lap_tcp_tell_all(rendezvous, status);
        return status;
    }
    return LAP_OK;
}

lap_status_t lap_tcp_gather(lap_tcp_rendezvous_t *rendezvous, const void *mine, size_t bytes,
                            void *all, lap_deadline_t *deadline)
{
    if (rendezvous->rank == 0) {
        memcpy(all, mine, bytes);
        return host_gather(rendezvous, bytes, all, deadline);
    }
    /* What cannot be sent because rank 0 is gone is no failure yet: it may have left its sentence. */
    bool verdict = false;
    lap_status_t status = lap_tcp_send_frame(rendezvous->fds[0], LAP_OK, mine, bytes, deadline);
    if (status == LAP_OK || status == LAP_ERR_PEER_LOST)
        status = lap_tcp_receive_frame(rendezvous->fds[0], all, (size_t)rendezvous->size * bytes,
                                       &verdict, deadline);
    return status == LAP_OK || verdict ? status : frame_failed(rendezvous, 0, status);
}

lap_status_t lap_tcp_report(lap_tcp_rendezvous_t *rendezvous, lap_status_t status,
                            lap_deadline_t *deadline)
{
    char mine[LAP_ERROR_TEXT], text[LAP_ERROR_TEXT];
    bool verdict = false;
    if (rendezvous->failed) /* this is what all have heard */
        return status;
    rendezvous->failed = true;
    snprintf(mine, sizeof(mine), "%s", lap_last_error());
    snprintf(text, sizeof(text), "rank %d: %.*s", rendezvous->rank, LAP_ERROR_TEXT - 24, mine);
    if (rendezvous->rank == 0) {
        tell_all(rendezvous, status, text);
        return status;
    }
    tell(rendezvous->fds[0], status, text);
    lap_deadline_part_t part = lap_deadline_begin_part(deadline, VERDICT_NS);
    const lap_status_t first =
        lap_tcp_receive_frame(rendezvous->fds[0], NULL, 0, &verdict, &part.until);
    lap_deadline_end_part(deadline, &part);
    if (verdict && strcmp(lap_last_error(), text) != 0)
        return first;
    /* Another rank that this one has lost may have ended because rank 0 did. */
    if (!verdict && first == LAP_ERR_PEER_LOST && status == LAP_ERR_PEER_LOST)
        return frame_failed(rendezvous, 0, first);
    return lap_error(status, "%s", mine);
}

lap_status_t lap_tcp_hear(lap_tcp_rendezvous_t *rendezvous, int rank, int revents, bool *ready_p)
{
    const int fd = rendezvous->fds[rank];
    const bool gone = revents & (POLLRDHUP | POLLHUP | POLLERR);
    lap_status_t status = LAP_ERR_PEER_LOST;
    bool verdict = false;
    frame_t frame;
    const ssize_t got = recv(fd, &frame, sizeof(frame), MSG_PEEK | MSG_DONTWAIT);
    const bool whole = got == sizeof(frame);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return LAP_OK;
    if (!gone && got > 0 && !whole)
        return LAP_OK; /* more will come */
    *ready_p = !gone && whole && frame.status == LAP_OK && rendezvous->rank == 0;
    if (*ready_p)
        return LAP_OK;
    lap_deadline_t deadline = lap_deadline_after(VERDICT_NS);
    if (whole && frame.status != LAP_OK)
        status = lap_tcp_receive_frame(fd, NULL, 0, &verdict, &deadline);
    if (!verdict)
        status = frame_failed(rendezvous, rank, LAP_ERR_PEER_LOST);
    rendezvous->failed = true;
    if (rendezvous->rank == 0)
        lap_tcp_tell_all(rendezvous, status);
    return status;
}

lap_status_t lap_tcp_look(lap_tcp_rendezvous_t *rendezvous)
{
    for (int rank = 0; rank < rendezvous->size; rank++) {
        struct pollfd one = {.fd = rendezvous->fds[rank], .events = POLLIN | POLLRDHUP};
        bool ready;
        if (poll(&one, 1, 0) > 0)
            LAP_TRY(lap_tcp_hear(rendezvous, rank, one.revents, &ready));
    }
    return LAP_OK;
}
